//! Scaled dot-product attention over packed rows, forward and backward, one (sample, head) at a time.
//!
//! No matrix of S × S outlives a block of queries: forward keeps the logarithm of each softmax's denominator, backward
//! computes the probabilities again from it (as FlashAttention does; Dao et al., arXiv:2205.14135). Every sample attends
//! to its own tokens only, so there is no mask and no padding.

use std::sync::{Mutex, PoisonError};

use rayon::prelude::*;

use crate::kernels::dropout::{Mask, Masks};
use crate::kernels::gemm::{Matrix, Panels};
use crate::kernels::isa::{fma, vectorized};
use crate::kernels::math::{exp, maximum, sum};
use crate::kernels::rows::Pieces;
use crate::kernels::storage::{Element, narrow_into, widen_into};

/// Queries whose scores are held at a time: a multiple of every tile's rows.
const QUERIES: usize = 48;

/// Which tokens belong together.
#[derive(Clone, Copy, Debug)]
pub struct Rows<'a> {
    /// Where each sample's tokens begin, and the end of the last: `[samples + 1]`, from 0, ascending.
    pub offsets: &'a [usize],
    /// Number of each sample in the effective batch: dropout's masks depend on it. `[samples]`.
    pub ids: &'a [u64],
}

impl Rows<'_> {
    /// Samples.
    pub fn count(&self) -> usize {
        self.ids.len()
    }

    /// All tokens.
    pub fn tokens(&self) -> usize {
        self.offsets.last().copied().unwrap_or(0)
    }

    /// Panics if the offsets are not what they should be: a bug in the caller.
    pub(super) fn check(&self) {
        assert_eq!(self.offsets.len(), self.ids.len() + 1, "a row needs an offset and an id");
        assert_eq!(self.offsets.first(), Some(&0), "the first row begins at token 0");
        assert!(self.offsets.is_sorted(), "row offsets descend");
    }
}

/// The shape of attention.
#[derive(Clone, Copy, Debug)]
pub(super) struct Heads {
    /// Features of all heads.
    pub hidden: usize,
    /// Heads.
    pub count: usize,
}

impl Heads {
    fn size(self) -> usize {
        self.hidden / self.count
    }
    fn scale(self) -> f32 {
        1.0 / (self.size() as f32).sqrt()
    }
}

/// One thread's memory.
#[derive(Debug, Default)]
struct Scratch {
    floats: Vec<f32>,
    left: Panels,
    right: Panels,
    keys: Panels,
    values: Panels,
    keys_back: Panels,
}

/// Memory of all threads: grows to what the longest row needs and stays.
#[derive(Debug, Default)]
pub(super) struct Scratches(Vec<Mutex<Scratch>>);

impl Scratches {
    fn prepare(&mut self) {
        let wanted = rayon::current_num_threads() + 1;
        self.0.resize_with(wanted.max(self.0.len()), Default::default);
    }

    fn with<R>(&self, job: impl FnOnce(&mut Scratch) -> R) -> R {
        // Each thread of the pool has its own; the last is for a caller outside of it.
        let index = rayon::current_thread_index().unwrap_or(self.0.len() - 1).min(self.0.len() - 1);
        let mut scratch = self.0[index].lock().unwrap_or_else(PoisonError::into_inner);
        job(&mut scratch)
    }

    pub(super) fn bytes(&mut self) -> usize {
        let of = |s: &Scratch| {
            s.floats.len() * 4
                + s.left.bytes()
                + s.right.bytes()
                + s.keys.bytes()
                + s.values.bytes()
                + s.keys_back.bytes()
        };
        self.0.iter_mut().map(|s| of(s.get_mut().unwrap_or_else(PoisonError::into_inner))).sum()
    }
}

/// Cuts consecutive pieces of these lengths from a vector that grows to hold them.
fn cut<const N: usize>(floats: &mut Vec<f32>, lengths: [usize; N]) -> [&mut [f32]; N] {
    let total = lengths.iter().sum();
    if floats.len() < total {
        floats.resize(total, 0.0);
    }
    let mut rest = floats.as_mut_slice();
    lengths.map(|length| rest.split_off_mut(..length).unwrap_or_default())
}

/// One sample's tokens and one head's columns of a `[tokens, hidden]` matrix.
#[derive(Clone, Copy)]
struct Head {
    first: usize,
    length: usize,
    hidden: usize,
    column: usize,
    size: usize,
}

impl Head {
    fn load<T: Element>(&self, from: &[T], to: &mut [f32]) {
        for (i, to) in to.chunks_exact_mut(self.size).enumerate() {
            widen_into(&from[(self.first + i) * self.hidden + self.column..][..self.size], to);
        }
    }

    /// # Safety
    /// No one else may hold a piece of these tokens and columns.
    unsafe fn load_pieces<T: Element>(&self, from: &Pieces<'_, T>, to: &mut [f32]) {
        for (i, to) in to.chunks_exact_mut(self.size).enumerate() {
            // SAFETY: the caller grants it.
            widen_into(unsafe { from.piece((self.first + i) * self.hidden + self.column, self.size) }, to);
        }
    }

    /// # Safety
    /// No one else may hold a piece of these tokens and columns.
    unsafe fn store<T: Element>(&self, token: usize, from: &[f32], to: &Pieces<'_, T>) {
        for (i, from) in from.chunks_exact(self.size).enumerate() {
            // SAFETY: the caller grants it.
            let to = unsafe { to.piece((self.first + token + i) * self.hidden + self.column, self.size) };
            narrow_into(from, to);
        }
    }
}

/// Runs `job(row, head, queries, keys)` for all samples and heads in parallel. `queries` are the offsets of the samples'
/// queries, which belong to the first tokens of each.
fn for_heads(rows: Rows<'_>, queries: &[usize], heads: Heads, job: impl Fn(usize, usize, Head, Head) + Sync) {
    let size = heads.size();
    (0..rows.count() * heads.count).into_par_iter().with_max_len(1).for_each(|index| {
        let (row, head) = (index / heads.count, index % heads.count);
        let place = |offsets: &[usize]| {
            let (first, end) = (offsets[row], offsets[row + 1]);
            Head { first, length: end - first, hidden: heads.hidden, column: head * size, size }
        };
        let (queries, keys) = (place(queries), place(rows.offsets));
        if queries.length > 0 {
            job(row, head, queries, keys);
        }
    });
}

vectorized! {
    /// Scores of one query become masked probabilities; returns the logarithm of the softmax's denominator.
    fn softmax_row(scores: &mut [f32], mask: Option<Mask>) -> f32 {
        let top = maximum(scores);
        for score in scores.iter_mut() {
            *score = exp::<FMA>(*score - top);
        }
        let total = sum(scores.len(), |j| scores[j]);
        let inverse = 1.0 / total;
        match mask {
            Some(mask) => {
                for (j, score) in scores.iter_mut().enumerate() {
                    *score *= inverse * mask.factor(j);
                }
            }
            None => {
                for score in scores.iter_mut() {
                    *score *= inverse;
                }
            }
        }
        top + total.ln()
    }
}

vectorized! {
    /// Backward of one query. `scores` become masked probabilities, as forward had them; `gradient` of those becomes the
    /// gradient of the scores. `delta` is the sum of output · gradient of the output.
    fn softmax_row_backward(scores: &mut [f32], gradient: &mut [f32], log_sum: f32, delta: f32, mask: Option<Mask>) {
        let n = scores.len();
        let gradient = &mut gradient[..n];
        match mask {
            Some(mask) => {
                for j in 0..n {
                    let (p, factor) = (exp::<FMA>(scores[j] - log_sum), mask.factor(j));
                    gradient[j] = p * fma::<FMA>(gradient[j], factor, -delta);
                    scores[j] = p * factor;
                }
            }
            None => {
                for j in 0..n {
                    let p = exp::<FMA>(scores[j] - log_sum);
                    gradient[j] = p * (gradient[j] - delta);
                    scores[j] = p;
                }
            }
        }
    }
}

vectorized! {
    fn scale_in_place(values: &mut [f32], factor: f32) {
        for value in values.iter_mut() {
            *value *= factor;
        }
    }
}

vectorized! {
    fn dot(a: &[f32], b: &[f32]) -> f32 {
        let b = &b[..a.len()];
        sum(a.len(), |j| a[j] * b[j])
    }
}

/// Masks of every head, none where nothing is dropped.
fn mask_of(masks: &[Masks], head: usize, row_id: u64, query: usize) -> Option<Mask> {
    masks.get(head).filter(|m| !m.is_none()).map(|m| m.row(row_id, query))
}

/// Attention of queries, keys and values `[tokens, hidden]` into `context`. Queries, `context` and `log_sums`
/// `[queries, heads]`, which takes what backward needs, where given, hold those tokens alone that `queries` has offsets
/// of: the first ones of each sample. `masks` has one entry a head, or none.
#[allow(clippy::too_many_arguments)]
pub(super) fn forward<T: Element>(
    scratches: &mut Scratches,
    rows: Rows<'_>,
    queries: &[usize],
    heads: Heads,
    [q, k, v]: [&[T]; 3],
    masks: &[Masks],
    context: &mut [T],
    log_sums: Option<&mut [f32]>,
) {
    scratches.prepare();
    let scratches = &*scratches;
    let context = Pieces::new(context);
    let log_sums = log_sums.map(Pieces::new);
    for_heads(rows, queries, heads, |row, head, queries, place| {
        scratches.with(|scratch| {
            let Scratch { floats, left, right: _, keys, values, .. } = scratch;
            let (asked, length, size) = (queries.length, place.length, place.size);
            let block = QUERIES.min(asked);
            let [matrix, scores, output] = cut(floats, [length * size, block * length, block * size]);
            place.load(k, matrix);
            keys.pack_right(Matrix::new(matrix, length, size).t());
            place.load(v, matrix);
            values.pack_right(Matrix::new(matrix, length, size));
            let matrix = &mut matrix[..asked * size];
            queries.load(q, matrix);
            scale_in_place(matrix, heads.scale());
            for first in (0..asked).step_by(QUERIES) {
                let count = QUERIES.min(asked - first);
                let scores = &mut scores[..count * length];
                left.pack_left(Matrix::new(&matrix[first * size..], count, size));
                left.multiply(keys, scores, false);
                for (i, scores) in scores.chunks_exact_mut(length).enumerate() {
                    let query = first + i;
                    let log_sum = softmax_row(scores, mask_of(masks, head, rows.ids[row], query));
                    if let Some(log_sums) = &log_sums {
                        // SAFETY: this token and head belong to this job alone.
                        unsafe { log_sums.piece((queries.first + query) * heads.count + head, 1)[0] = log_sum };
                    }
                }
                left.pack_left(Matrix::new(scores, count, length));
                let output = &mut output[..count * size];
                left.multiply(values, output, false);
                // SAFETY: these tokens and columns belong to this job alone.
                unsafe { queries.store(first, output, &context) };
            }
        });
    });
}

/// Backward of [`forward`]: queries, keys and values are replaced by their gradients. `context` is forward's output,
/// `gradient` that of the loss by it.
#[allow(clippy::too_many_arguments)]
pub(super) fn backward<T: Element>(
    scratches: &mut Scratches,
    rows: Rows<'_>,
    queries: &[usize],
    heads: Heads,
    [q, k, v]: [&mut [T]; 3],
    masks: &[Masks],
    context: &[T],
    log_sums: &[f32],
    gradient: &[f32],
) {
    scratches.prepare();
    let scratches = &*scratches;
    let (q_pieces, k_pieces, v_pieces) = (Pieces::new(q), Pieces::new(k), Pieces::new(v));
    for_heads(rows, queries, heads, |row, head, queries, place| {
        scratches.with(|scratch| {
            let Scratch { floats, left, right, keys, values, keys_back } = scratch;
            let (asked, length, size) = (queries.length, place.length, place.size);
            let (area, block) = (length * size, QUERIES.min(asked));
            let lengths =
                [area, asked * size, asked * size, area, area, block * length, block * length, block * size, block];
            let [q, d_out, out, dk, dv, scores, d_scores, dq, delta] = cut(floats, lengths);
            // SAFETY: these tokens and columns of q, k and v belong to this job alone, here and at the stores below.
            unsafe {
                place.load_pieces(&k_pieces, q);
                keys.pack_right(Matrix::new(q, length, size).t());
                keys_back.pack_right(Matrix::new(q, length, size));
                place.load_pieces(&v_pieces, q);
                values.pack_right(Matrix::new(q, length, size).t());
            }
            let q = &mut q[..asked * size];
            // SAFETY: as above.
            unsafe { queries.load_pieces(&q_pieces, q) };
            scale_in_place(q, heads.scale());
            queries.load(gradient, d_out);
            queries.load(context, out);
            for first in (0..asked).step_by(QUERIES) {
                let count = QUERIES.min(asked - first);
                let (scores, d_scores) = (&mut scores[..count * length], &mut d_scores[..count * length]);
                let dq = &mut dq[..count * size];
                let q = Matrix::new(&q[first * size..], count, size);
                let d_block = &d_out[first * size..][..count * size];
                let d_out = Matrix::new(d_block, count, size);
                left.pack_left(q);
                left.multiply(keys, scores, false);
                left.pack_left(d_out);
                left.multiply(values, d_scores, false);
                let out = out[first * size..].chunks_exact(size);
                for ((delta, out), d) in delta.iter_mut().zip(out).zip(d_block.chunks_exact(size)) {
                    *delta = dot(out, d);
                }
                let both = scores.chunks_exact_mut(length).zip(d_scores.chunks_exact_mut(length));
                for (i, (scores, d_scores)) in both.enumerate() {
                    let query = first + i;
                    let log_sum = log_sums[(queries.first + query) * heads.count + head];
                    let mask = mask_of(masks, head, rows.ids[row], query);
                    softmax_row_backward(scores, d_scores, log_sum, delta[i], mask);
                }
                let accumulate = first > 0;
                left.pack_left(Matrix::new(scores, count, length).t());
                right.pack_right(d_out);
                left.multiply(right, dv, accumulate);
                left.pack_left(Matrix::new(d_scores, count, length).t());
                right.pack_right(q);
                left.multiply(right, dk, accumulate);
                left.pack_left(Matrix::new(d_scores, count, length));
                left.multiply(keys_back, dq, false);
                scale_in_place(dq, heads.scale());
                // SAFETY: as above.
                unsafe { queries.store(first, dq, &q_pieces) };
            }
            // SAFETY: as above.
            unsafe {
                place.store(0, dk, &k_pieces);
                place.store(0, dv, &v_pieces);
            }
        });
    });
}
