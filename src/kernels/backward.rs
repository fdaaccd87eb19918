//! One encoder layer backward, by hand. See [`crate::kernels::layer`] for the forward equations.

use crate::kernels::activation::activate_backward;
use crate::kernels::attention;
use crate::kernels::dropout::{Masks, Site, masked};
use crate::kernels::gemm::{Add, Matrix, Product, multiply, multiply_many};
use crate::kernels::gradients::Place;
pub use crate::kernels::gradients::{LayerGradients, LinearGradient, NormGradient, Sinks};
use crate::kernels::layer::{
    Activations, BLOCK, LayerShape, LayerWeights, Linear, Norm, Normalized, Pass, Rows, Saved, Tape, Workspace,
    attention_masks, grow, hidden_masks, mask_at, places as tokens, scaled_into,
};
use crate::kernels::lora::{self, AdapterSink};
use crate::kernels::math::add_assign;
use crate::kernels::norm::normalize_backward;
use crate::kernels::rows::{Pieces, column_sums, for_blocks};
use crate::kernels::storage::Element;

/// Adds what a trained parameter gets; nothing happens to others.
fn add_to(place: &mut Place<'_>, sums: &[f32]) {
    if let Some(place) = place {
        add_assign(place, sums);
    }
}

/// One layer backward. `x` is forward's input, `gradient` that of the loss by its output: it becomes that by `x`, whose
/// length it then has.
/// Gradients of the parameters are added to `places`, in the order of [`LayerWeights::slices`]. The tape's memory is reused for them on the way, so it is
/// gone afterwards.
///
/// Besides its arguments it takes, for T tokens, `4 · (T · d + min(T, BLOCK) · max(f + 2 d, …))` bytes of workspace
/// at most, and what packing takes.
///
/// # Panics
/// If a slice does not fit the shape: a bug in the caller.
#[allow(clippy::too_many_arguments)]
pub fn backward(
    work: &mut Workspace,
    shape: &LayerShape,
    weights: &LayerWeights<'_>,
    pass: &Pass<'_>,
    x: &[f32],
    saved: Saved,
    gradient: &mut Vec<f32>,
    places: [&mut [f32]; 16],
) {
    let own = LayerGradients::from_places(places.map(Some));
    backward_into(work, shape, weights, pass, x, saved, gradient, Sinks { own, ..Sinks::default() });
}

/// As [`backward`], for the parameters that have a place in `sinks`.
///
/// # Panics
/// As [`backward`].
#[allow(clippy::too_many_arguments)]
pub fn backward_into(
    work: &mut Workspace,
    shape: &LayerShape,
    weights: &LayerWeights<'_>,
    pass: &Pass<'_>,
    x: &[f32],
    saved: Saved,
    gradient: &mut Vec<f32>,
    mut sinks: Sinks<'_>,
) {
    assert_eq!(x.len(), pass.rows.tokens() * shape.hidden, "the input is not [tokens, hidden]");
    for (place, weight) in sinks.own.places().iter().zip(weights.slices()) {
        assert!(place.is_none_or(|place| place == weight.len()), "a gradient does not fit its parameter");
    }
    let gradients = &mut sinks;
    let offsets = pass.output_offsets();
    let outputs = tokens(Rows { offsets: &offsets, ids: pass.rows.ids });
    assert_eq!(outputs.len() * shape.hidden, gradient.len(), "the gradient does not fit the output");
    let layer = Layer { shape, weights, pass, places: &outputs, offsets: &offsets };
    match saved.0 {
        Tape::F32(tape) => layer.run(work, x, tape, gradient, gradients),
        Tape::Bf16(tape) => layer.run(work, x, tape, gradient, gradients),
        Tape::F16(tape) => layer.run(work, x, tape, gradient, gradients),
    }
}

struct Layer<'a> {
    shape: &'a LayerShape,
    weights: &'a LayerWeights<'a>,
    pass: &'a Pass<'a>,
    /// The tokens with an output.
    places: &'a [(u64, u32)],
    offsets: &'a [usize],
}

impl Layer<'_> {
    fn run<T: Element>(
        &self,
        work: &mut Workspace,
        x: &[f32],
        tape: Activations<T>,
        gradient: &mut Vec<f32>,
        to: &mut Sinks<'_>,
    ) {
        let Activations { q, k, v, context, log_sums, attention, inner, output } = tape;
        self.norm(self.weights.output_norm, &output, gradient, &mut to.own.output_norm);
        drop(output);
        self.feed_forward(work, &attention.values, inner, gradient, &mut to.own);
        self.norm(self.weights.attention_norm, &attention, gradient, &mut to.own.attention_norm);
        drop(attention);
        self.attention(work, x, [q, k, v], context, &log_sums, gradient, to);
    }

    /// Through a LayerNorm, in place.
    fn norm<T: Element>(
        &self,
        norm: Norm<'_>,
        normalized: &Normalized<T>,
        gradient: &mut [f32],
        to: &mut NormGradient<Place<'_>>,
    ) {
        let d = self.shape.hidden;
        let gradient = Pieces::new(gradient);
        let sums = for_blocks(self.places.len(), 2 * d, |block, sums| {
            for t in block {
                // SAFETY: every token is in one block, and a block is one job's.
                let row = unsafe { gradient.piece(t * d, d) };
                normalize_backward(row, &normalized.values[t * d..][..d], normalized.rstd[t], norm.gamma, sums);
            }
        });
        add_to(&mut to.gamma, &sums[..d]);
        add_to(&mut to.beta, &sums[d..]);
    }

    /// `to = gradient · mask` for tokens from `start` on; the sums of its columns are the bias's gradient.
    fn mask(&self, masks: &Masks, start: usize, gradient: &[f32], to: &mut [f32], bias: &mut Place<'_>) {
        let d = self.shape.hidden;
        let to = Pieces::new(to);
        let sums = for_blocks(gradient.len() / d, d, |block, sums| {
            for t in block {
                // SAFETY: every token is in one block, and a block is one job's.
                let to = unsafe { to.piece(t * d, d) };
                masked(mask_at(masks, self.places[start + t]), &gradient[t * d..][..d], to);
                add_assign(sums, to);
            }
        });
        add_to(bias, &sums);
    }

    /// Through the feed-forward block: `gradient` (of the sum before the last normalisation) becomes the gradient of h.
    fn feed_forward<T: Element>(
        &self,
        work: &mut Workspace,
        h_normalized: &[T],
        mut inner: Vec<T>,
        gradient: &mut [f32],
        to: &mut LayerGradients<Place<'_>>,
    ) {
        let (d, f, tokens) = (self.shape.hidden, self.shape.intermediate, self.places.len());
        let masks = hidden_masks(self.pass, Site::Output);
        let (up, down) = (self.weights.intermediate, self.weights.output);
        for start in (0..tokens).step_by(BLOCK) {
            let end = (start + BLOCK).min(tokens);
            let n = end - start;
            let (rows, d_inner) = grow(&mut work.floats, n * (d + f)).split_at_mut(n * d);
            let gradient = &mut gradient[start * d..end * d];
            let inner = &mut inner[start * f..end * f];
            self.mask(&masks, start, gradient, rows, &mut to.output.bias);
            let d_out = Matrix::new(&*rows, n, d);
            multiply(&mut work.pack, d_out, Matrix::new(down.weight, f, d).t(), d_inner, Add::Nothing);
            self.activation(inner, d_inner, &mut to.intermediate.bias);
            let active = Matrix::new(&*inner, n, f);
            if let Some(weight) = &mut to.output.weight {
                multiply(&mut work.pack, active.t(), d_out, weight, Add::Existing);
            }
            let d_inner = Matrix::new(&*d_inner, n, f);
            if let Some(weight) = &mut to.intermediate.weight {
                // The masked gradient is done with: its place takes h.
                scaled_into(&h_normalized[start * d..end * d], self.weights.attention_norm, rows);
                multiply(&mut work.pack, Matrix::new(&*rows, n, d).t(), d_inner, weight, Add::Existing);
            }
            multiply(&mut work.pack, d_inner, Matrix::new(up.weight, d, f).t(), gradient, Add::Existing);
        }
    }

    /// Through the nonlinearity: `inner` becomes its output, `gradient` the gradient of its input.
    fn activation<T: Element>(&self, inner: &mut [T], gradient: &mut [f32], bias: &mut Place<'_>) {
        let f = self.shape.intermediate;
        let rows = gradient.len() / f;
        let (inner, gradient) = (Pieces::new(inner), Pieces::new(gradient));
        let sums = for_blocks(rows, f, |block, sums| {
            for t in block {
                // SAFETY: every token is in one block, and a block is one job's.
                let (inner, gradient) = unsafe { (inner.piece(t * f, f), gradient.piece(t * f, f)) };
                activate_backward(self.shape.activation, inner, gradient, sums);
            }
        });
        add_to(bias, &sums);
    }

    /// Through attention: `gradient` (of the sum before its normalisation) becomes the gradient of x.
    #[allow(clippy::too_many_arguments)]
    fn attention<T: Element>(
        &self,
        work: &mut Workspace,
        x: &[f32],
        [mut q, mut k, mut v]: [Vec<T>; 3],
        context: Vec<T>,
        log_sums: &[f32],
        gradient: &mut Vec<f32>,
        to: &mut Sinks<'_>,
    ) {
        let (d, tokens) = (self.shape.hidden, self.places.len());
        let masks = hidden_masks(self.pass, Site::AttentionOutput);
        let d_context = grow(&mut work.more, tokens * d);
        for start in (0..tokens).step_by(BLOCK) {
            let end = (start + BLOCK).min(tokens);
            let n = end - start;
            let d_out = grow(&mut work.floats, n * d);
            self.mask(&masks, start, &gradient[start * d..end * d], d_out, &mut to.own.attention_output.bias);
            let d_out = Matrix::new(&*d_out, n, d);
            let weight = Matrix::new(self.weights.attention_output.weight, d, d);
            multiply(&mut work.pack, d_out, weight.t(), &mut d_context[start * d..end * d], Add::Nothing);
            if let Some(to) = &mut to.own.attention_output.weight {
                let context = Matrix::new(&context[start * d..end * d], n, d);
                multiply(&mut work.pack, context.t(), d_out, to, Add::Existing);
            }
        }
        attention::backward(
            &mut work.scratches,
            self.pass.rows,
            self.offsets,
            self.shape.attention(),
            [&mut q, &mut k, &mut v],
            &attention_masks(self.pass, self.shape.heads),
            &context,
            log_sums,
            d_context,
        );
        drop(context);
        let (w, own) = (self.weights, &mut to.own);
        let mut query = Target { map: w.query, own: &mut own.query, adapter: to.query.as_mut() };
        let mut key = Target { map: w.key, own: &mut own.key, adapter: None };
        let mut value = Target { map: w.value, own: &mut own.value, adapter: to.value.as_mut() };
        match self.pass.gather(x, d) {
            None => self.projections(work, x, [q, k, v], gradient, [&mut query, &mut key, &mut value]),
            Some(chosen) => {
                self.projections(work, &chosen, [q], gradient, [&mut query]);
                let some = std::mem::replace(gradient, vec![0.0; x.len()]);
                let firsts = self.pass.rows.offsets.windows(2).filter(|pair| pair[0] < pair[1]);
                for (pair, some) in firsts.zip(some.chunks_exact(d)) {
                    gradient[pair[0] * d..][..d].copy_from_slice(some);
                }
                self.projections(work, x, [k, v], gradient, [&mut key, &mut value]);
            }
        }
    }

    /// Through queries, keys and values (or some of them), whose gradients these are.
    fn projections<T: Element, const N: usize>(
        &self,
        work: &mut Workspace,
        x: &[f32],
        d_qkv: [Vec<T>; N],
        gradient: &mut [f32],
        to: [&mut Target<'_, '_>; N],
    ) {
        let d = self.shape.hidden;
        let tokens = x.len() / d;
        let mut products = Vec::with_capacity(N);
        for (part, to) in d_qkv.iter().zip(to) {
            if let Some(bias) = &mut to.own.bias {
                add_assign(bias, &column_sums(part, d));
            }
            if let Some(adapter) = &mut to.adapter {
                lora::backward(work, x, part, adapter);
            }
            let part = Matrix::new(part, tokens, d);
            multiply(&mut work.pack, part, Matrix::new(to.map.weight, d, d).t(), gradient, Add::Existing);
            if let Some(weight) = &mut to.own.weight {
                products.push(Product { b: part, c: weight, stride: d, add: Add::Existing });
            }
        }
        multiply_many(&mut work.pack, Matrix::new(x, tokens, d).t(), &mut products);
    }
}

/// A projection and where its gradients go.
struct Target<'a, 'b> {
    map: Linear<'a>,
    own: &'a mut LinearGradient<Place<'b>>,
    adapter: Option<&'a mut AdapterSink<'b>>,
}
