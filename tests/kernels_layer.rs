//! The fused encoder layer against a plain one in 64 bits, and what it promises about masks, packing and threads.

use autofit::kernels::backward::{LayerGradients, backward};
use autofit::kernels::dropout::{Masks, Site, fill_mask};
use autofit::kernels::layer::*;

/// Numbers between -1 and 1, the same in every run.
fn numbers(seed: u64, count: usize, scale: f32) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..count)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            ((state >> 40) as f32 / (1u64 << 23) as f32 - 1.0) * scale
        })
        .collect()
}

/// Parameters in the order of `LayerWeights::slices`.
type Parameters = [Vec<f32>; 16];

/// Where the bias of the keys lies in that order.
const KEY_BIAS: usize = 3;

fn parameters(shape: &LayerShape, seed: u64) -> Parameters {
    let (d, f) = (shape.hidden, shape.intermediate);
    let sizes = [d * d, d, d * d, d, d * d, d, d * d, d, d, d, d * f, f, f * d, d, d, d];
    std::array::from_fn(|i| {
        let mut values =
            numbers(seed + i as u64, sizes[i], if sizes[i] > f.max(d) { 0.9 / (d as f32).sqrt() } else { 0.3 });
        if i == 8 || i == 14 {
            values.iter_mut().for_each(|v| *v += 1.0);
        }
        values
    })
}

fn weights(p: &Parameters) -> LayerWeights<'_> {
    let linear = |i: usize| Linear { weight: &p[i], bias: &p[i + 1] };
    let norm = |i: usize| Norm { gamma: &p[i], beta: &p[i + 1] };
    LayerWeights {
        query: linear(0),
        key: linear(2),
        value: linear(4),
        attention_output: linear(6),
        attention_norm: norm(8),
        intermediate: linear(10),
        output: linear(12),
        output_norm: norm(14),
    }
}

/// A case: a shape, the lengths of its samples, dropout.
struct Case {
    shape: LayerShape,
    lengths: Vec<usize>,
    ids: Vec<u64>,
    dropout: Option<Dropout>,
}

impl Case {
    fn new(hidden: usize, heads: usize, intermediate: usize, activation: Activation, lengths: &[usize]) -> Case {
        let ids = (0..lengths.len() as u64).map(|i| 100 + i).collect();
        let shape = LayerShape { hidden, heads, intermediate, eps: 1e-5, activation };
        Case { shape, lengths: lengths.to_vec(), ids, dropout: None }
    }

    fn dropping(mut self) -> Case {
        self.dropout = Some(Dropout { seed: 11, hidden: 0.2, attention: 0.3 });
        self
    }

    fn offsets(&self) -> Vec<usize> {
        let ends = self.lengths.iter().scan(0, |sum, l| {
            *sum += l;
            Some(*sum)
        });
        std::iter::once(0).chain(ends).collect()
    }

    fn tokens(&self) -> usize {
        self.lengths.iter().sum()
    }

    fn input(&self) -> Vec<f32> {
        numbers(5, self.tokens() * self.shape.hidden, 1.5)
    }

    /// What the loss multiplies the output with: its gradient by the output.
    fn upstream(&self) -> Vec<f32> {
        numbers(6, self.tokens() * self.shape.hidden, 1.0)
    }

    fn run(&self, p: &Parameters, x: &[f32], keep: Keep) -> (Vec<f32>, Option<Saved>) {
        let offsets = self.offsets();
        let rows = Rows { offsets: &offsets, ids: &self.ids };
        let pass = Pass { rows, layer: 3, dropout: self.dropout, outputs: Outputs::All, storage: Storage::F32 };
        forward(&mut Workspace::default(), &self.shape, &weights(p), &pass, x, keep)
    }

    /// Output, gradient by x, gradients of the parameters.
    fn both(&self, p: &Parameters, storage: Storage) -> (Vec<f32>, Vec<f32>, LayerGradients) {
        let (x, mut gradient) = (self.input(), self.upstream());
        let offsets = self.offsets();
        let rows = Rows { offsets: &offsets, ids: &self.ids };
        let pass = Pass { rows, layer: 3, dropout: self.dropout, outputs: Outputs::All, storage };
        let mut work = Workspace::default();
        let (y, saved) = forward(&mut work, &self.shape, &weights(p), &pass, &x, Keep::Tape);
        let mut gradients = LayerGradients::zeros(&self.shape);
        backward(&mut work, &self.shape, &weights(p), &pass, &x, saved.unwrap(), &mut gradient, gradients.slices_mut());
        (y, gradient, gradients)
    }
}

// ---- the plain layer, 64 bits ----

type Rows64 = Vec<Vec<f64>>;

fn linear64(x: &Rows64, weight: &[f64], bias: &[f64]) -> Rows64 {
    let n = bias.len();
    x.iter()
        .map(|row| {
            (0..n).map(|j| bias[j] + row.iter().enumerate().map(|(i, v)| v * weight[i * n + j]).sum::<f64>()).collect()
        })
        .collect()
}

fn norm64(x: &Rows64, gamma: &[f64], beta: &[f64], eps: f64) -> Rows64 {
    x.iter()
        .map(|row| {
            let n = row.len() as f64;
            let mean = row.iter().sum::<f64>() / n;
            let variance = row.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / n;
            let scale = 1.0 / (variance + eps).sqrt();
            row.iter().enumerate().map(|(j, v)| (v - mean) * scale * gamma[j] + beta[j]).collect()
        })
        .collect()
}

/// erf by its Taylor series where that converges well, else by its continued fraction.
fn erf64(x: f64) -> f64 {
    if x.abs() < 3.0 {
        let (mut term, mut sum) = (x, x);
        for n in 1..120 {
            term *= -x * x / n as f64;
            sum += term / (2 * n + 1) as f64;
        }
        return sum * std::f64::consts::FRAC_2_SQRT_PI;
    }
    let a = x.abs();
    let mut fraction = a;
    for n in (1..80).rev() {
        fraction = a + n as f64 / 2.0 / fraction;
    }
    (1.0 - (-a * a).exp() / std::f64::consts::PI.sqrt() / fraction) * x.signum()
}

fn activation64(kind: Activation, x: f64) -> f64 {
    match kind {
        Activation::Gelu => 0.5 * x * (1.0 + erf64(x / 2f64.sqrt())),
        Activation::GeluTanh => {
            0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3))).tanh())
        }
        Activation::Relu => x.max(0.0),
    }
}

/// `x + mask · values`, masks by the public generator.
fn residual64(case: &Case, site: Site, x: &Rows64, values: &Rows64) -> Rows64 {
    let mut t = 0;
    let mut out = Vec::new();
    for (length, id) in case.lengths.iter().zip(&case.ids) {
        for position in 0..*length {
            let mut factors = vec![1.0f32; case.shape.hidden];
            if let Some(d) = case.dropout {
                fill_mask(Masks::new(d.seed, 3, site, d.hidden).row(*id, position), &mut factors);
            }
            out.push((0..case.shape.hidden).map(|j| x[t][j] + values[t][j] * f64::from(factors[j])).collect());
            t += 1;
        }
    }
    out
}

fn attention64(case: &Case, q: &Rows64, k: &Rows64, v: &Rows64) -> Rows64 {
    let size = case.shape.hidden / case.shape.heads;
    let mut out = vec![vec![0.0; case.shape.hidden]; q.len()];
    let mut start = 0;
    for (length, id) in case.lengths.iter().zip(&case.ids) {
        for head in 0..case.shape.heads {
            for i in 0..*length {
                let mut factors = vec![1.0f32; *length];
                if let Some(d) = case.dropout {
                    let masks = Masks::new(d.seed, 3, Site::Attention { head: head as u32 }, d.attention);
                    fill_mask(masks.row(*id, i), &mut factors);
                }
                let columns = head * size..(head + 1) * size;
                let scores: Vec<f64> = (0..*length)
                    .map(|j| {
                        columns.clone().map(|c| q[start + i][c] * k[start + j][c]).sum::<f64>() / (size as f64).sqrt()
                    })
                    .collect();
                let top = scores.iter().cloned().fold(f64::MIN, f64::max);
                let total: f64 = scores.iter().map(|s| (s - top).exp()).sum();
                for c in columns {
                    out[start + i][c] = (0..*length)
                        .map(|j| (scores[j] - top).exp() / total * f64::from(factors[j]) * v[start + j][c])
                        .sum();
                }
            }
        }
        start += length;
    }
    out
}

fn forward64(case: &Case, p: &[Vec<f64>], x: &[f64]) -> Vec<f64> {
    let x: Rows64 = x.chunks(case.shape.hidden).map(<[f64]>::to_vec).collect();
    let eps = f64::from(case.shape.eps);
    let context =
        attention64(case, &linear64(&x, &p[0], &p[1]), &linear64(&x, &p[2], &p[3]), &linear64(&x, &p[4], &p[5]));
    let sum = residual64(case, Site::AttentionOutput, &x, &linear64(&context, &p[6], &p[7]));
    let h = norm64(&sum, &p[8], &p[9], eps);
    let mut inner = linear64(&h, &p[10], &p[11]);
    inner.iter_mut().flatten().for_each(|v| *v = activation64(case.shape.activation, *v));
    let sum = residual64(case, Site::Output, &h, &linear64(&inner, &p[12], &p[13]));
    norm64(&sum, &p[14], &p[15], eps).concat()
}

fn loss64(case: &Case, p: &[Vec<f64>], x: &[f64]) -> f64 {
    forward64(case, p, x).iter().zip(case.upstream()).map(|(y, u)| y * f64::from(u)).sum()
}

fn widened(values: &[f32]) -> Vec<f64> {
    values.iter().map(|v| f64::from(*v)).collect()
}

fn relative_distance(a: &[f32], b: &[f32]) -> f64 {
    assert_eq!(a.len(), b.len());
    let square = |v: f64| v * v;
    let distance: f64 = a.iter().zip(b).map(|(a, b)| square(f64::from(a - b))).sum();
    let norm: f64 = b.iter().map(|b| square(f64::from(*b))).sum();
    (distance / norm.max(1e-30)).sqrt()
}

/// Compares the output with the plain layer's, and gradients with differences of it: every one, or every `stride`-th.
fn check(case: &Case, stride: usize) {
    let p = parameters(&case.shape, 1);
    let (y, dx, mut gradients) = case.both(&p, Storage::F32);
    let mut p64: Vec<Vec<f64>> = p.iter().map(|v| widened(v)).collect();
    let mut x64 = widened(&case.input());
    let plain = forward64(case, &p64, &x64);
    assert_eq!(y.len(), plain.len());
    for (ours, plain) in y.iter().zip(plain) {
        assert!((f64::from(*ours) - plain).abs() < 2e-5, "output {ours} instead of {plain}");
    }
    let step = 1e-5;
    let close = |ours: f32, lower: f64, upper: f64, what: String| {
        let plain = (upper - lower) / (2.0 * step);
        let error = (f64::from(ours) - plain).abs();
        assert!(error < 1e-4 * (1.0 + plain.abs()), "gradient {ours} instead of {plain} at {what}");
    };
    for i in (0..x64.len()).step_by(stride) {
        let at = x64[i];
        let [upper, lower] = [at + step, at - step].map(|v| {
            x64[i] = v;
            loss64(case, &p64, &x64)
        });
        x64[i] = at;
        close(dx[i], lower, upper, format!("x[{i}]"));
    }
    for (number, gradient) in gradients.slices_mut().into_iter().enumerate() {
        for i in (0..gradient.len()).step_by(stride) {
            let at = p64[number][i];
            let [upper, lower] = [at + step, at - step].map(|v| {
                p64[number][i] = v;
                loss64(case, &p64, &x64)
            });
            p64[number][i] = at;
            close(gradient[i], lower, upper, format!("parameter {number}[{i}]"));
        }
    }
}

#[test]
fn gelu_matches_the_plain_layer() {
    check(&Case::new(12, 3, 20, Activation::Gelu, &[5, 3]), 1);
}

#[test]
fn gelu_tanh_matches_the_plain_layer() {
    check(&Case::new(12, 3, 20, Activation::GeluTanh, &[4, 1]), 1);
}

#[test]
fn relu_matches_the_plain_layer() {
    check(&Case::new(12, 3, 20, Activation::Relu, &[4, 2]), 1);
}

#[test]
fn dropout_matches_the_plain_layer() {
    check(&Case::new(12, 3, 20, Activation::Gelu, &[5, 3]).dropping(), 1);
}

#[test]
fn one_token_one_head_matches() {
    check(&Case::new(7, 1, 5, Activation::Gelu, &[1]), 1);
}

#[test]
fn odd_extents_and_empty_rows_match() {
    check(&Case::new(35, 5, 67, Activation::Gelu, &[0, 19, 1, 0, 33]).dropping(), 97);
}

#[test]
fn several_blocks_of_queries_match() {
    check(&Case::new(16, 2, 24, Activation::Gelu, &[101]).dropping(), 131);
}

#[test]
fn extents_beyond_a_packed_slice_match() {
    // More than one slice of the inner extent, panel of columns and block of rows.
    check(&Case::new(400, 4, 410, Activation::Gelu, &[150, 7]), 90_001);
}

#[test]
fn more_tokens_than_a_block() {
    // The plain layer is too slow here: the same rows in several calls must give the same numbers.
    let shape = Case::new(16, 2, 24, Activation::Gelu, &[]).shape;
    let lengths: Vec<usize> = (0..30).map(|i| 30 + 3 * i).collect();
    let whole =
        Case { lengths: lengths.clone(), ids: (0..30).collect(), ..Case::new(16, 2, 24, Activation::Gelu, &[]) }
            .dropping();
    assert!(whole.tokens() > 2 * 1024);
    let p = parameters(&shape, 1);
    let (y, dx, mut gradients) = whole.both(&p, Storage::F32);
    let (x, upstream, offsets) = (whole.input(), whole.upstream(), whole.offsets());
    let mut work = Workspace::default();
    let mut sum = LayerGradients::zeros(&shape);
    for i in 0..30 {
        let range = offsets[i] * 16..offsets[i + 1] * 16;
        let rows = Rows { offsets: &[0, lengths[i]], ids: &[i as u64] };
        let pass = Pass { rows, layer: 3, dropout: whole.dropout, outputs: Outputs::All, storage: Storage::F32 };
        let (part, saved) = forward(&mut work, &shape, &weights(&p), &pass, &x[range.clone()], Keep::Tape);
        assert_eq!(part, y[range.clone()], "the output of a sample depends on its neighbours");
        let mut gradient = upstream[range.clone()].to_vec();
        backward(
            &mut work,
            &shape,
            &weights(&p),
            &pass,
            &x[range.clone()],
            saved.unwrap(),
            &mut gradient,
            sum.slices_mut(),
        );
        assert_eq!(gradient, dx[range], "the gradient of a sample depends on its neighbours");
    }
    for (number, (whole, parts)) in gradients.slices_mut().into_iter().zip(sum.slices_mut()).enumerate() {
        // Softmax does not see the bias of the keys: its gradient is rounding and nothing else.
        if number != KEY_BIAS {
            assert!(relative_distance(whole, parts) < 1e-5, "gradient {number} differs");
        }
    }
}

#[test]
fn order_of_samples_changes_nothing() {
    let case = Case::new(24, 4, 40, Activation::Gelu, &[9, 17, 4]).dropping();
    let p = parameters(&case.shape, 2);
    let x = case.input();
    let (y, _) = case.run(&p, &x, Keep::Nothing);
    let turned =
        Case { lengths: vec![4, 9, 17], ids: vec![102, 100, 101], ..Case::new(24, 4, 40, Activation::Gelu, &[]) }
            .dropping();
    let cut = 26 * 24;
    let (turned, _) = turned.run(&p, &[&x[cut..], &x[..cut]].concat(), Keep::Nothing);
    assert_eq!(y, [&turned[4 * 24..], &turned[..4 * 24]].concat());
}

#[test]
fn a_tape_changes_no_output_and_makes_it_again() {
    for storage in [Storage::F32, Storage::Bf16, Storage::F16] {
        let case = Case::new(40, 4, 72, Activation::Gelu, &[9, 30]).dropping();
        let p = parameters(&case.shape, 2);
        let offsets = case.offsets();
        let rows = Rows { offsets: &offsets, ids: &case.ids };
        let pass = Pass { rows, layer: 3, dropout: case.dropout, outputs: Outputs::All, storage };
        let mut work = Workspace::default();
        let (without, none) = forward(&mut work, &case.shape, &weights(&p), &pass, &case.input(), Keep::Nothing);
        let (with, saved) = forward(&mut work, &case.shape, &weights(&p), &pass, &case.input(), Keep::Tape);
        let saved = saved.unwrap();
        assert!(none.is_none());
        assert_eq!(without, with);
        assert_eq!(saved.output(weights(&p).output_norm), with);
        let (_, only) = forward(&mut work, &case.shape, &weights(&p), &pass, &case.input(), Keep::Output);
        let only = only.unwrap();
        assert_eq!(only.output(weights(&p).output_norm), with);
        assert_eq!(only.bytes(), case.tokens() * (40 * storage.bytes() + 4));
        assert_eq!(saved.bytes(), case.tokens() * case.shape.saved_bytes_per_token(storage));
    }
}

#[test]
fn sixteen_bits_stay_near() {
    let case = Case::new(64, 4, 128, Activation::Gelu, &[40, 24]).dropping();
    let p = parameters(&case.shape, 3);
    let (y, dx, mut gradients) = case.both(&p, Storage::F32);
    for (storage, tolerance) in [(Storage::Bf16, 0.03), (Storage::F16, 0.004)] {
        let (y16, dx16, mut gradients16) = case.both(&p, storage);
        let distance = relative_distance(&y16, &y);
        assert!(distance > 0.0 && distance < tolerance / 3.0, "{storage:?}: output differs by {distance}");
        assert!(relative_distance(&dx16, &dx) < tolerance);
        for (number, (a, b)) in gradients16.slices_mut().into_iter().zip(gradients.slices_mut()).enumerate() {
            // Softmax does not see the bias of the keys: its gradient is rounding and nothing else.
            if number != KEY_BIAS {
                let distance = relative_distance(a, b);
                assert!(distance < tolerance, "{storage:?}: gradient {number} differs by {distance}");
            }
        }
    }
}

#[test]
fn the_number_of_threads_changes_no_bit() {
    let case = Case::new(96, 4, 200, Activation::Gelu, &[70, 200, 11]).dropping();
    let p = parameters(&case.shape, 4);
    let [one, three] = [1, 3].map(|threads| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| case.both(&p, Storage::F32))
    });
    assert_eq!(one.0, three.0);
    assert_eq!(one.1, three.1);
    assert_eq!(one.2, three.2);
}

#[test]
fn gradients_are_added_to_what_is_there() {
    let case = Case::new(16, 2, 24, Activation::Gelu, &[6]);
    let p = parameters(&case.shape, 5);
    let (_, _, mut once) = case.both(&p, Storage::F32);
    let offsets = case.offsets();
    let pass = Pass {
        rows: Rows { offsets: &offsets, ids: &case.ids },
        layer: 3,
        dropout: None,
        outputs: Outputs::All,
        storage: Storage::F32,
    };
    let mut work = Workspace::default();
    let mut twice = LayerGradients::zeros(&case.shape);
    for _ in 0..2 {
        let (_, saved) = forward(&mut work, &case.shape, &weights(&p), &pass, &case.input(), Keep::Tape);
        let mut gradient = case.upstream();
        backward(
            &mut work,
            &case.shape,
            &weights(&p),
            &pass,
            &case.input(),
            saved.unwrap(),
            &mut gradient,
            twice.slices_mut(),
        );
    }
    for (twice, once) in twice.slices_mut().into_iter().zip(once.slices_mut()) {
        let doubled: Vec<f32> = once.iter().map(|v| v * 2.0).collect();
        assert!(relative_distance(twice, &doubled) < 1e-6);
    }
}

#[test]
fn a_not_a_number_is_not_hidden() {
    let case = Case::new(16, 2, 24, Activation::Gelu, &[6]);
    let p = parameters(&case.shape, 5);
    let mut x = case.input();
    x[3] = f32::NAN;
    let (y, _) = case.run(&p, &x, Keep::Nothing);
    assert!(y.iter().all(|v| v.is_nan()), "every token attends to the one that is not a number");
}

#[test]
fn masks_drop_as_often_as_asked_and_differ_by_place() {
    let count = |masks: Masks, id: u64, position: usize| {
        let mut factors = vec![0.0; 1 << 14];
        fill_mask(masks.row(id, position), &mut factors);
        factors
    };
    let masks = Masks::new(7, 0, Site::Output, 0.1);
    let base = count(masks, 5, 9);
    let dropped = base.iter().filter(|f| **f == 0.0).count() as f64 / base.len() as f64;
    // Five standard deviations.
    assert!((dropped - 0.1).abs() < 5.0 * (0.09f64 / base.len() as f64).sqrt(), "{dropped} were dropped");
    assert!(base.iter().all(|f| *f == 0.0 || (*f - 1.0 / 0.9).abs() < 1e-6));
    let others = [
        count(Masks::new(8, 0, Site::Output, 0.1), 5, 9),
        count(Masks::new(7, 1, Site::Output, 0.1), 5, 9),
        count(Masks::new(7, 0, Site::AttentionOutput, 0.1), 5, 9),
        count(masks, 6, 9),
        count(masks, 5, 10),
    ];
    for other in others {
        let same = base.iter().zip(&other).filter(|(a, b)| a == b).count() as f64 / base.len() as f64;
        // Independent masks agree with probability 0.9² + 0.1².
        assert!((same - 0.82).abs() < 0.02, "{same} of two masks agree");
    }
    // Neighbouring features are independent too.
    let pairs = base.windows(2).filter(|w| w[0] == 0.0 && w[1] == 0.0).count() as f64 / base.len() as f64;
    assert!((pairs - 0.01).abs() < 0.005, "{pairs} of neighbours are dropped together");
}

#[test]
fn outputs_of_first_tokens_alone_are_the_same_and_so_are_their_gradients() {
    for storage in [Storage::F32, Storage::Bf16] {
        let case = Case::new(48, 4, 80, Activation::Gelu, &[60, 0, 1, 9]).dropping();
        let p = parameters(&case.shape, 8);
        let (x, offsets, d) = (case.input(), case.offsets(), 48);
        let rows = Rows { offsets: &offsets, ids: &case.ids };
        let mut work = Workspace::default();
        let firsts = [0, 60, 61];
        let upstream = numbers(17, firsts.len() * d, 1.0);
        let [(y, dx, mut one), (some, dx_some, mut two)] = [Outputs::All, Outputs::First].map(|outputs| {
            let pass = Pass { rows, layer: 3, dropout: case.dropout, outputs, storage };
            let (y, saved) = forward(&mut work, &case.shape, &weights(&p), &pass, &x, Keep::Tape);
            let mut gradient = match outputs {
                Outputs::First => upstream.clone(),
                Outputs::All => vec![0.0; x.len()],
            };
            if outputs == Outputs::All {
                for (first, from) in firsts.iter().zip(upstream.chunks_exact(d)) {
                    gradient[first * d..][..d].copy_from_slice(from);
                }
            }
            let mut sums = LayerGradients::zeros(&case.shape);
            let tape = saved.unwrap();
            assert!(tape.is_tape());
            backward(&mut work, &case.shape, &weights(&p), &pass, &x, tape, &mut gradient, sums.slices_mut());
            (y, gradient, sums)
        });
        let expected: Vec<f32> = firsts.iter().flat_map(|first| y[first * d..][..d].to_vec()).collect();
        assert!(relative_distance(&some, &expected) < 1e-6);
        assert!(relative_distance(&dx_some, &dx) < 1e-5);
        for (number, (a, b)) in two.slices_mut().into_iter().zip(one.slices_mut()).enumerate() {
            if number != KEY_BIAS {
                assert!(relative_distance(a, b) < 1e-5, "gradient {number} differs by {}", relative_distance(a, b));
            }
        }
    }
}
