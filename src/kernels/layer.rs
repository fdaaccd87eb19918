//! One post-LN encoder layer (BERT, DistilBERT, RoBERTa) over packed tokens: types and forward.
//!
//! ```text
//! q, k, v = x·W + b                                          saved: 3 d
//! context = dropout(softmax(q·kᵀ / √d_head))·v               saved: d, and one logarithm a head
//! h       = LayerNorm(x + dropout(context·W + b))            saved: d (normalised), 1 / σ
//! u       = h·W + b                                          saved: f (f is 4 d in all presets)
//! y       = LayerNorm(h + dropout(act(u)·W + b))             saved: d (normalised), 1 / σ
//! ```
//!
//! A token's tape takes `(6 d + f) · bytes + 4 · (heads + 2)` bytes, `bytes` being 4 or 2: 30,776 for DistilBERT and
//! BERT-base in 32 bits. Neither x nor y is part of it: [`Saved::output`] makes y again, exactly, so a caller needs to
//! keep the input of the first layer only.

use half::{bf16, f16};
use rayon::prelude::*;

pub use crate::kernels::activation::Activation;
use crate::kernels::activation::activate;
pub use crate::kernels::attention::Rows;
use crate::kernels::attention::{self, Heads, Scratches};
pub use crate::kernels::dropout::Dropout;
use crate::kernels::dropout::{Mask, Masks, Site};
use crate::kernels::gemm::{Add, Matrix, PackBuffer, Product, multiply, multiply_many};
pub use crate::kernels::norm::Norm;
use crate::kernels::norm::{add_residual, normalize, scale_shift, scale_shift_in_place};
use crate::kernels::rows::{Pieces, for_blocks};
pub use crate::kernels::storage::Storage;
use crate::kernels::storage::{Element, narrow_into};

/// Tokens that go through the feed-forward block at a time: bounds the workspace, which holds `BLOCK · f` floats.
/// Each block packs the weights anew, which takes about 2000 / BLOCK percent of its time.
pub(super) const BLOCK: usize = 1024;

/// The shape of a layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LayerShape {
    /// Features of a token, d: a multiple of `heads`.
    pub hidden: usize,
    /// Attention heads.
    pub heads: usize,
    /// Features inside the feed-forward block, f.
    pub intermediate: usize,
    /// Added to the variance in both normalisations.
    pub eps: f32,
    /// The feed-forward block's nonlinearity.
    pub activation: Activation,
}

impl LayerShape {
    pub(super) fn attention(&self) -> Heads {
        Heads { hidden: self.hidden, count: self.heads }
    }

    /// Bytes that the tape keeps for each token.
    pub fn saved_bytes_per_token(&self, storage: Storage) -> usize {
        (6 * self.hidden + self.intermediate) * storage.bytes() + 4 * (self.heads + 2)
    }
}

/// A linear map: `x·weight + bias`.
#[derive(Clone, Copy, Debug)]
pub struct Linear<'a> {
    /// `[in, out]`, row-major (the transpose of what checkpoints hold).
    pub weight: &'a [f32],
    /// `[out]`.
    pub bias: &'a [f32],
}

/// The parameters of a layer.
#[derive(Clone, Copy, Debug)]
pub struct LayerWeights<'a> {
    /// `[d, d]`.
    pub query: Linear<'a>,
    /// `[d, d]`.
    pub key: Linear<'a>,
    /// `[d, d]`.
    pub value: Linear<'a>,
    /// `[d, d]`.
    pub attention_output: Linear<'a>,
    /// `[d]`.
    pub attention_norm: Norm<'a>,
    /// `[d, f]`.
    pub intermediate: Linear<'a>,
    /// `[f, d]`.
    pub output: Linear<'a>,
    /// `[d]`.
    pub output_norm: Norm<'a>,
}

/// Whether forward leaves what backward needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    /// Nothing: inference.
    Nothing,
    /// What makes the output again, [`Saved::output`]: for a layer whose tape is not kept, but whose output the next one
    /// will need.
    Output,
    /// The tape.
    Tape,
}

/// Of which tokens a layer gives the output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Outputs {
    /// Of all: `[tokens, d]`.
    #[default]
    All,
    /// Of each sample's first: `[samples, d]`. For the top layer, where the head looks at nothing else: every token still
    /// gives a key and a value, but only the first a query, and only it passes the feed-forward block.
    First,
}

/// What varies from call to call besides the input.
#[derive(Clone, Copy, Debug)]
pub struct Pass<'a> {
    /// Which tokens belong together.
    pub rows: Rows<'a>,
    /// The layer's number: another for each, so that their dropout differs.
    pub layer: usize,
    /// Dropout, or none.
    pub dropout: Option<Dropout>,
    /// Of which tokens the output is wanted.
    pub outputs: Outputs,
    /// In which precision values are rounded where a tape would save them. A layer computed without a tape must round as
    /// the later pass with one will: recomputation is then exact.
    pub storage: Storage,
}

impl Pass<'_> {
    /// Where each sample's outputs begin, and the end of the last.
    pub(super) fn output_offsets(&self) -> Vec<usize> {
        match self.outputs {
            Outputs::All => self.rows.offsets.to_vec(),
            Outputs::First => {
                let ends = self.rows.offsets.windows(2).scan(0, |end, pair| {
                    *end += (pair[1] - pair[0]).min(1);
                    Some(*end)
                });
                std::iter::once(0).chain(ends).collect()
            }
        }
    }

    /// The rows of `x` `[tokens, d]` whose outputs are wanted; `None` for all of them.
    pub(super) fn gather(&self, x: &[f32], d: usize) -> Option<Vec<f32>> {
        let firsts = self.rows.offsets.windows(2).filter(|pair| pair[0] < pair[1]);
        (self.outputs == Outputs::First).then(|| firsts.flat_map(|pair| &x[pair[0] * d..][..d]).copied().collect())
    }
}

/// Memory that layers share and keep between calls. It grows to what the largest call needs.
#[derive(Debug, Default)]
pub struct Workspace {
    pub(super) pack: PackBuffer,
    pub(super) scratches: Scratches,
    pub(super) floats: Vec<f32>,
    pub(super) more: Vec<f32>,
}

impl Workspace {
    /// Bytes that it holds now.
    pub fn bytes(&mut self) -> usize {
        self.pack.bytes() + self.scratches.bytes() + (self.floats.capacity() + self.more.capacity()) * size_of::<f32>()
    }
}

/// The first `length` floats of a buffer that grows to hold them.
pub(super) fn grow(buffer: &mut Vec<f32>, length: usize) -> &mut [f32] {
    if buffer.len() < length {
        // The old values are worth nothing: free them first, so that the peak is the new size alone.
        *buffer = Vec::new();
        *buffer = vec![0.0; length];
    }
    &mut buffer[..length]
}

/// The tape of one layer.
#[derive(Debug)]
pub struct Saved(pub(super) Tape);

#[derive(Debug)]
pub(super) enum Tape {
    F32(Activations<f32>),
    Bf16(Activations<bf16>),
    F16(Activations<f16>),
}

/// Saved values, `[tokens, …]` each.
#[derive(Debug)]
pub(super) struct Activations<T> {
    pub q: Vec<T>,
    pub k: Vec<T>,
    pub v: Vec<T>,
    pub context: Vec<T>,
    /// Logarithms of the softmax's denominators, `[tokens, heads]`.
    pub log_sums: Vec<f32>,
    /// Attention's output, residual added, normalised, before γ and β.
    pub attention: Normalized<T>,
    /// The feed-forward block before its nonlinearity.
    pub inner: Vec<T>,
    /// The layer's output before γ and β.
    pub output: Normalized<T>,
}

/// Normalised rows and what they were multiplied by.
#[derive(Debug)]
pub(super) struct Normalized<T> {
    pub values: Vec<T>,
    pub rstd: Vec<f32>,
}

impl Saved {
    /// Bytes that it holds.
    pub fn bytes(&self) -> usize {
        fn of<T>(a: &Activations<T>) -> usize {
            let values =
                [&a.q, &a.k, &a.v, &a.context, &a.attention.values, &a.inner, &a.output.values].map(|v| v.capacity());
            let floats = [&a.log_sums, &a.attention.rstd, &a.output.rstd].map(|v| v.capacity());
            values.iter().sum::<usize>() * size_of::<T>() + floats.iter().sum::<usize>() * 4
        }
        match &self.0 {
            Tape::F32(a) => of(a),
            Tape::Bf16(a) => of(a),
            Tape::F16(a) => of(a),
        }
    }

    /// Whether it is a whole tape, which backward can use, and not just the output.
    pub fn is_tape(&self) -> bool {
        match &self.0 {
            Tape::F32(a) => !a.inner.is_empty(),
            Tape::Bf16(a) => !a.inner.is_empty(),
            Tape::F16(a) => !a.inner.is_empty(),
        }
    }

    /// The layer's output, bit for bit as forward returned it: the next layer's input need not be kept.
    pub fn output(&self, norm: Norm<'_>) -> Vec<f32> {
        match &self.0 {
            Tape::F32(a) => scaled(&a.output.values, norm),
            Tape::Bf16(a) => scaled(&a.output.values, norm),
            Tape::F16(a) => scaled(&a.output.values, norm),
        }
    }
}

/// `normalized · γ + β` for all rows.
pub(super) fn scaled<T: Element>(normalized: &[T], norm: Norm<'_>) -> Vec<f32> {
    let mut to = vec![0.0; normalized.len()];
    scaled_into(normalized, norm, &mut to);
    to
}

pub(super) fn scaled_into<T: Element>(normalized: &[T], norm: Norm<'_>, to: &mut [f32]) {
    let d = norm.gamma.len();
    to.par_chunks_mut(d).with_min_len(16).zip(normalized.par_chunks(d)).for_each(|(to, from)| {
        scale_shift(from, norm.gamma, norm.beta, to);
    });
}

/// The masks of attention's heads, none without dropout.
pub(super) fn attention_masks(pass: &Pass<'_>, heads: usize) -> Vec<Masks> {
    match pass.dropout {
        Some(d) if d.attention > 0.0 => (0..heads as u32)
            .map(|head| Masks::new(d.seed, pass.layer, Site::Attention { head }, d.attention))
            .collect(),
        _ => Vec::new(),
    }
}

/// The masks of one of the two outputs.
pub(super) fn hidden_masks(pass: &Pass<'_>, site: Site) -> Masks {
    pass.dropout.map_or(Masks::NONE, |d| Masks::new(d.seed, pass.layer, site, d.hidden))
}

/// The sample and the position of every token.
pub(super) fn places(rows: Rows<'_>) -> Vec<(u64, u32)> {
    let tokens = |i: usize| (0..(rows.offsets[i + 1] - rows.offsets[i]) as u32).map(move |p| (rows.ids[i], p));
    (0..rows.count()).flat_map(tokens).collect()
}

/// The mask of a token.
pub(super) fn mask_at(masks: &Masks, place: (u64, u32)) -> Mask {
    if masks.is_none() { Masks::NONE.row(0, 0) } else { masks.row(place.0, place.1 as usize) }
}

fn check(shape: &LayerShape, weights: &LayerWeights<'_>, x: &[f32], rows: Rows<'_>) {
    let (d, f) = (shape.hidden, shape.intermediate);
    rows.check();
    assert!(shape.heads > 0 && d % shape.heads == 0, "the hidden size is no multiple of the heads");
    assert_eq!(x.len(), rows.tokens() * d, "the input is not [tokens, hidden]");
    let linear = |l: &Linear<'_>, i: usize, o: usize| l.weight.len() == i * o && l.bias.len() == o;
    let norm = |n: &Norm<'_>| n.gamma.len() == d && n.beta.len() == d;
    assert!(
        [weights.query, weights.key, weights.value, weights.attention_output].iter().all(|l| linear(l, d, d))
            && linear(&weights.intermediate, d, f)
            && linear(&weights.output, f, d)
            && norm(&weights.attention_norm)
            && norm(&weights.output_norm),
        "a weight does not fit the layer's shape"
    );
}

/// One layer: `x` `[tokens, d]` to y, of the tokens that [`Pass::outputs`] says, and the tape if it is to be kept.
///
/// # Panics
/// If a slice does not fit the shape: a bug in the caller.
pub fn forward(
    work: &mut Workspace,
    shape: &LayerShape,
    weights: &LayerWeights<'_>,
    pass: &Pass<'_>,
    x: &[f32],
    keep: Keep,
) -> (Vec<f32>, Option<Saved>) {
    check(shape, weights, x, pass.rows);
    match pass.storage {
        Storage::F32 => {
            let (y, tape) = run::<f32>(work, shape, weights, pass, x, keep);
            (y, tape.map(|t| Saved(Tape::F32(t))))
        }
        Storage::Bf16 => {
            let (y, tape) = run::<bf16>(work, shape, weights, pass, x, keep);
            (y, tape.map(|t| Saved(Tape::Bf16(t))))
        }
        Storage::F16 => {
            let (y, tape) = run::<f16>(work, shape, weights, pass, x, keep);
            (y, tape.map(|t| Saved(Tape::F16(t))))
        }
    }
}

fn run<T: Element>(
    work: &mut Workspace,
    shape: &LayerShape,
    weights: &LayerWeights<'_>,
    pass: &Pass<'_>,
    x: &[f32],
    keep: Keep,
) -> (Vec<f32>, Option<Activations<T>>) {
    let (offsets, d) = (pass.output_offsets(), shape.hidden);
    let kept = keep == Keep::Tape;
    let places = places(Rows { offsets: &offsets, ids: pass.rows.ids });
    let tokens = places.len();
    let chosen = pass.gather(x, d);
    let [q, k, v] = match &chosen {
        None => project::<T, 3>(work, shape, [weights.query, weights.key, weights.value], x),
        Some(chosen) => {
            let [k, v] = project::<T, 2>(work, shape, [weights.key, weights.value], x);
            let [q] = project::<T, 1>(work, shape, [weights.query], chosen);
            [q, k, v]
        }
    };
    let x = chosen.as_deref().unwrap_or(x);
    let mut context = vec![T::default(); tokens * d];
    let mut log_sums = if kept { vec![0.0; tokens * shape.heads] } else { Vec::new() };
    attention::forward(
        &mut work.scratches,
        pass.rows,
        &offsets,
        shape.attention(),
        [&q, &k, &v],
        &attention_masks(pass, shape.heads),
        &mut context,
        kept.then_some(log_sums.as_mut_slice()),
    );
    let [q, k, v] = if kept {
        [q, k, v]
    } else {
        drop((q, k, v));
        [const { Vec::new() }; 3]
    };

    let mut h = vec![0.0f32; tokens * d];
    let output = weights.attention_output;
    multiply(
        &mut work.pack,
        Matrix::new(&context, tokens, d),
        Matrix::new(output.weight, d, d),
        &mut h,
        Add::Bias(output.bias),
    );
    let context = if kept {
        context
    } else {
        drop(context);
        Vec::new()
    };
    let masks = hidden_masks(pass, Site::AttentionOutput);
    let attention = finish::<T>(shape, &places, &masks, weights.attention_norm, x, &mut h, kept);

    let mut y = vec![0.0f32; tokens * d];
    let inner = feed_forward::<T>(work, shape, weights, &h, &mut y, kept);
    let masks = hidden_masks(pass, Site::Output);
    let output = finish::<T>(shape, &places, &masks, weights.output_norm, &h, &mut y, keep != Keep::Nothing);
    let tape = Activations { q, k, v, context, log_sums, attention, inner, output };
    (y, (keep != Keep::Nothing).then_some(tape))
}

/// Queries, keys and values, or some of them.
fn project<T: Element, const N: usize>(
    work: &mut Workspace,
    shape: &LayerShape,
    maps: [Linear<'_>; N],
    x: &[f32],
) -> [Vec<T>; N] {
    let d = shape.hidden;
    let mut out = maps.map(|_| vec![T::default(); x.len()]);
    // For 32 bits the products are written where they are kept; else a block at a time is computed and rounded.
    let whole = T::whole(&[]).is_some();
    let block = if whole { x.len() } else { BLOCK / 2 * d };
    for start in (0..x.len()).step_by(block.max(1)) {
        let end = (start + block).min(x.len());
        let (n, tokens) = (end - start, (end - start) / d);
        let temporary = if whole { &mut [][..] } else { grow(&mut work.floats, N * n) };
        let mut parts = temporary.chunks_exact_mut(n);
        let mut products = Vec::with_capacity(N);
        for (to, map) in out.iter_mut().zip(maps) {
            let b = Matrix::new(map.weight, d, d);
            let c = match T::whole_mut(&mut to[start..end]) {
                Some(c) => c,
                None => parts.next().unwrap_or_default(),
            };
            products.push(Product { b, c, stride: d, add: Add::Bias(map.bias) });
        }
        multiply_many(&mut work.pack, Matrix::new(&x[start..end], tokens, d), &mut products);
        drop(products);
        if !whole {
            for (to, from) in out.iter_mut().zip(work.floats.chunks_exact(n)) {
                narrow_rows(from, &mut to[start..end]);
            }
        }
    }
    out
}

fn narrow_rows<T: Element>(from: &[f32], to: &mut [T]) {
    const CHUNK: usize = 1 << 14;
    to.par_chunks_mut(CHUNK).zip(from.par_chunks(CHUNK)).for_each(|(to, from)| narrow_into(from, to));
}

/// `values = LayerNorm(residual + dropout(values))`, row by row; the normalised rows are kept where asked.
fn finish<T: Element>(
    shape: &LayerShape,
    places: &[(u64, u32)],
    masks: &Masks,
    norm: Norm<'_>,
    residual: &[f32],
    values: &mut [f32],
    kept: bool,
) -> Normalized<T> {
    let (d, tokens) = (shape.hidden, places.len());
    let mut normalized = vec![T::default(); if kept { tokens * d } else { 0 }];
    let mut rstds = vec![0.0f32; if kept { tokens } else { 0 }];
    let (values, saved, saved_rstds) = (Pieces::new(values), Pieces::new(&mut normalized), Pieces::new(&mut rstds));
    for_blocks(tokens, 0, |block, _| {
        for t in block {
            // SAFETY: every token is in one block, and a block is one job's.
            let row = unsafe { values.piece(t * d, d) };
            add_residual(row, &residual[t * d..][..d], mask_at(masks, places[t]));
            let rstd = normalize::<T>(row, shape.eps);
            if kept {
                // SAFETY: as above.
                unsafe {
                    narrow_into(row, saved.piece(t * d, d));
                    saved_rstds.piece(t, 1)[0] = rstd;
                }
            }
            scale_shift_in_place(row, norm.gamma, norm.beta);
        }
    });
    Normalized { values: normalized, rstd: rstds }
}

/// `y = act(h·W + b)·W + b`, a block of tokens at a time. Returns what was before the nonlinearity where it is kept.
fn feed_forward<T: Element>(
    work: &mut Workspace,
    shape: &LayerShape,
    weights: &LayerWeights<'_>,
    h: &[f32],
    y: &mut [f32],
    kept: bool,
) -> Vec<T> {
    let (d, f) = (shape.hidden, shape.intermediate);
    let tokens = h.len() / d;
    let mut inner = vec![T::default(); if kept { tokens * f } else { 0 }];
    for start in (0..tokens).step_by(BLOCK) {
        let end = (start + BLOCK).min(tokens);
        let n = end - start;
        let active = grow(&mut work.floats, n * f);
        let kept_inner = if kept { &mut inner[start * f..end * f] } else { &mut [][..] };
        let up = Matrix::new(weights.intermediate.weight, d, f);
        let add = Add::Bias(weights.intermediate.bias);
        let left = Matrix::new(&h[start * d..end * d], n, d);
        match T::whole_mut(kept_inner).filter(|_| kept) {
            Some(inner) => {
                multiply(&mut work.pack, left, up, inner, add);
                active.par_chunks_mut(f).zip(inner.par_chunks(f)).for_each(|(to, from)| {
                    activate::<f32>(shape.activation, from, to);
                });
            }
            None => {
                multiply(&mut work.pack, left, up, active, add);
                if kept {
                    narrow_rows(active, kept_inner);
                }
                active.par_chunks_mut(f).for_each(|row| activate_rounded::<T>(shape.activation, row));
            }
        }
        let down = Matrix::new(weights.output.weight, f, d);
        let left = Matrix::new(&*active, n, f);
        multiply(&mut work.pack, left, down, &mut y[start * d..end * d], Add::Bias(weights.output.bias));
    }
    inner
}

/// Rounds a row to what `T` holds, then applies the nonlinearity, in pieces that stay in registers' reach.
fn activate_rounded<T: Element>(kind: Activation, row: &mut [f32]) {
    const PIECE: usize = 256;
    let mut rounded = [T::default(); PIECE];
    for piece in row.chunks_mut(PIECE) {
        let rounded = &mut rounded[..piece.len()];
        narrow_into(piece, rounded);
        activate::<T>(kind, rounded, piece);
    }
}
