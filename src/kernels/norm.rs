//! LayerNorm of one row, with what its place in a post-LN layer always brings along: the residual and the mask before it.

use crate::kernels::dropout::Mask;
use crate::kernels::isa::{fma, vectorized};
use crate::kernels::math::sum;
use crate::kernels::storage::Element;

/// Scale and shift of a normalisation, `[d]` each.
#[derive(Clone, Copy, Debug)]
pub struct Norm<'a> {
    /// Scale.
    pub gamma: &'a [f32],
    /// Shift.
    pub beta: &'a [f32],
}

vectorized! {
    /// `row = row · mask + residual`.
    pub fn add_residual(row: &mut [f32], residual: &[f32], mask: Mask) {
        for (j, (value, residual)) in row.iter_mut().zip(residual).enumerate() {
            *value = fma::<FMA>(*value, mask.factor(j), *residual);
        }
    }
}

vectorized! {
    /// Normalises `row` to mean 0 and variance 1 and rounds it to what `T` holds: that is what is saved. Returns
    /// 1 / √(variance + eps).
    pub fn normalize<T: Element>(row: &mut [f32], eps: f32) -> f32 {
        let n = row.len();
        let mean = sum(n, |j| row[j]) / n as f32;
        let variance = sum(n, |j| (row[j] - mean) * (row[j] - mean)) / n as f32;
        let rstd = 1.0 / (variance + eps).sqrt();
        for value in row.iter_mut() {
            *value = T::narrow((*value - mean) * rstd).widen();
        }
        rstd
    }
}

vectorized! {
    /// `to = normalized · γ + β`.
    pub fn scale_shift<T: Element>(normalized: &[T], gamma: &[f32], beta: &[f32], to: &mut [f32]) {
        for (((to, n), g), b) in to.iter_mut().zip(normalized).zip(gamma).zip(beta) {
            *to = fma::<FMA>(n.widen(), *g, *b);
        }
    }
}

vectorized! {
    /// `row = row · γ + β`.
    pub fn scale_shift_in_place(row: &mut [f32], gamma: &[f32], beta: &[f32]) {
        for ((value, g), b) in row.iter_mut().zip(gamma).zip(beta) {
            *value = fma::<FMA>(*value, *g, *b);
        }
    }
}

vectorized! {
    /// Backward of one row: `dy` becomes the gradient before normalisation, `sums` (`2 · d`) take the gradients of γ
    /// and β.
    ///
    /// With g = dy · γ: dx = rstd · (g - mean(g) - x̂ · mean(g · x̂)).
    pub fn normalize_backward<T: Element>(dy: &mut [f32], normalized: &[T], rstd: f32, gamma: &[f32], sums: &mut [f32]) {
        let n = dy.len();
        let (normalized, gamma) = (&normalized[..n], &gamma[..n]);
        let (d_gamma, d_beta) = sums.split_at_mut(n);
        let d_beta = &mut d_beta[..n];
        for j in 0..n {
            d_gamma[j] = fma::<FMA>(dy[j], normalized[j].widen(), d_gamma[j]);
            d_beta[j] += dy[j];
            dy[j] *= gamma[j];
        }
        let mean = sum(n, |j| dy[j]) / n as f32;
        let slope = sum(n, |j| dy[j] * normalized[j].widen()) / n as f32;
        for j in 0..n {
            dy[j] = rstd * (dy[j] - mean - normalized[j].widen() * slope);
        }
    }
}
