//! AdamW in one pass over a parameter, its two moments and its gradient, in place.
//!
//! Loshchilov and Hutter, "Decoupled Weight Decay Regularization" (arXiv:1711.05101), with PyTorch's order of operations.

use rayon::prelude::*;

use crate::kernels::isa::{fma, vectorized};

/// Decay of the first moment.
pub const BETA_1: f32 = 0.9;
/// Decay of the second moment.
pub const BETA_2: f32 = 0.999;
/// Added to the root of the second moment.
pub const EPSILON: f32 = 1e-8;

/// What one update multiplies with.
#[derive(Clone, Copy, Debug)]
pub struct Factors {
    /// Of the gradient: clipping and unscaling.
    gradient: f32,
    /// Of the parameter: weight decay.
    keep: f32,
    /// Of the first moment: learning rate and both corrections of bias.
    rate: f32,
    /// Added to the root of the second moment, corrected as it is.
    epsilon: f32,
}

impl Factors {
    /// For update number `time`, from 1.
    pub fn new(time: usize, rate: f64, decay: f64, gradient: f64) -> Self {
        let left = |beta: f32| 1.0 - f64::from(beta).powf(time as f64);
        let root = left(BETA_2).sqrt();
        Factors {
            gradient: gradient as f32,
            keep: (1.0 - rate * decay) as f32,
            rate: (rate * root / left(BETA_1)) as f32,
            epsilon: (f64::from(EPSILON) * root) as f32,
        }
    }
}

vectorized! {
    fn update_block(factors: Factors, value: &mut [f32], first: &mut [f32], second: &mut [f32], gradient: &[f32]) {
        let n = value.len();
        let (first, second, gradient) = (&mut first[..n], &mut second[..n], &gradient[..n]);
        for i in 0..n {
            let g = gradient[i] * factors.gradient;
            first[i] = fma::<FMA>(first[i], BETA_1, (1.0 - BETA_1) * g);
            second[i] = fma::<FMA>(second[i], BETA_2, (1.0 - BETA_2) * g * g);
            let step = factors.rate * first[i] / (second[i].sqrt() + factors.epsilon);
            value[i] = fma::<FMA>(value[i], factors.keep, -step);
        }
    }
}

vectorized! {
    /// As [`update_block`] where the gradient is zero.
    fn decay_block(factors: Factors, value: &mut [f32], first: &mut [f32], second: &mut [f32]) {
        let n = value.len();
        let (first, second) = (&mut first[..n], &mut second[..n]);
        for i in 0..n {
            first[i] *= BETA_1;
            second[i] *= BETA_2;
            let step = factors.rate * first[i] / (second[i].sqrt() + factors.epsilon);
            value[i] = fma::<FMA>(value[i], factors.keep, -step);
        }
    }
}

/// One update of a parameter. `gradient(i)` is that of block `i` of `block` values; `None` stands for zeros.
///
/// # Panics
/// If the slices differ in length: a bug in the caller.
pub fn update<'a>(
    factors: Factors,
    value: &mut [f32],
    first: &mut [f32],
    second: &mut [f32],
    block: usize,
    gradient: impl Fn(usize) -> Option<&'a [f32]> + Sync,
) {
    assert!(value.len() == first.len() && value.len() == second.len(), "a moment does not fit its parameter");
    let block = block.max(1);
    let moments = first.par_chunks_mut(block).zip(second.par_chunks_mut(block));
    value.par_chunks_mut(block).zip(moments).with_min_len(16).enumerate().for_each(|(i, (value, (first, second)))| {
        match gradient(i) {
            Some(gradient) => update_block(factors, value, first, second, gradient),
            None => decay_block(factors, value, first, second),
        }
    });
}
