//! The feed-forward block's nonlinearity and its derivative, from the value before it.

use crate::kernels::isa::{fma, vectorized};
use crate::kernels::math::{exp, normal};
use crate::kernels::storage::Element;

/// Which nonlinearity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// `x · Φ(x)`, exact.
    Gelu,
    /// GELU's tanh approximation (`gelu_new`, `gelu_pytorch_tanh`).
    GeluTanh,
    /// `max(x, 0)`.
    Relu,
}

/// 1 / √(2π).
const FRAC_1_SQRT_2PI: f32 = 0.398_942_3;
/// √(2/π), the tanh approximation's scale.
const SQRT_2_PI: f32 = 0.797_884_6;
/// The tanh approximation's cubic coefficient.
const CUBIC: f32 = 0.044_715;

#[inline(always)]
fn gelu<const FMA: bool>(x: f32) -> (f32, f32) {
    let (phi, bell) = normal::<FMA>(x);
    (x * phi, fma::<FMA>(x * FRAC_1_SQRT_2PI, bell, phi))
}

/// `x/2 · (1 + tanh u)` is `x · σ(2u)`: one exponential, no tanh.
#[inline(always)]
fn gelu_tanh<const FMA: bool>(x: f32) -> (f32, f32) {
    let square = x * x;
    let u2 = 2.0 * SQRT_2_PI * x * fma::<FMA>(CUBIC, square, 1.0);
    let s = 1.0 / (1.0 + exp::<FMA>(-u2));
    let du2 = 2.0 * SQRT_2_PI * fma::<FMA>(3.0 * CUBIC, square, 1.0);
    (x * s, fma::<FMA>(x * s * (1.0 - s), du2, s))
}

#[inline(always)]
fn relu<const FMA: bool>(x: f32) -> (f32, f32) {
    // A NaN goes through, so that a diverged step is seen.
    (if x < 0.0 { 0.0 } else { x }, if x > 0.0 { 1.0 } else { 0.0 })
}

#[inline(always)]
fn apply<T: Element>(values: &[T], to: &mut [f32], f: impl Fn(f32) -> (f32, f32)) {
    for (to, x) in to.iter_mut().zip(values) {
        *to = T::narrow(f(x.widen()).0).widen();
    }
}

vectorized! {
    /// `to = f(values)`, rounded to what `T` can hold.
    pub fn activate<T: Element>(kind: Activation, values: &[T], to: &mut [f32]) {
        match kind {
            Activation::Gelu => apply(values, to, gelu::<FMA>),
            Activation::GeluTanh => apply(values, to, gelu_tanh::<FMA>),
            Activation::Relu => apply(values, to, relu::<FMA>),
        }
    }
}

#[inline(always)]
fn apply_backward<T: Element>(
    values: &mut [T],
    gradient: &mut [f32],
    columns: &mut [f32],
    f: impl Fn(f32) -> (f32, f32),
) {
    for ((value, gradient), column) in values.iter_mut().zip(gradient).zip(columns) {
        let (y, dy) = f(value.widen());
        *value = T::narrow(y);
        *gradient *= dy;
        *column += *gradient;
    }
}

vectorized! {
    /// One row of backward: `values` (before the nonlinearity) become its output, `gradient` of the output becomes that
    /// of the input, and is added to `columns`.
    pub fn activate_backward<T: Element>(kind: Activation, values: &mut [T], gradient: &mut [f32], columns: &mut [f32]) {
        match kind {
            Activation::Gelu => apply_backward(values, gradient, columns, gelu::<FMA>),
            Activation::GeluTanh => apply_backward(values, gradient, columns, gelu_tanh::<FMA>),
            Activation::Relu => apply_backward(values, gradient, columns, relu::<FMA>),
        }
    }
}
