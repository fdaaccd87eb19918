//! Elementary functions without branches or tables, so that loops over them vectorise, and sums over lanes.

use crate::kernels::isa::{fma, vectorized};
use crate::kernels::storage::Element;

/// Partial sums that a reduction runs in parallel. Their number, not the processor's, fixes the order of additions:
/// every level of instructions adds in the same order.
pub const LANES: usize = 16;

/// e^x, within 2 units in the last place between -87 and 88; beyond, the value at that end. NaN stays NaN.
///
/// Cody and Waite's reduction to |r| <= ln 2 / 2 and the polynomial of Cephes' `expf`.
#[inline(always)]
pub fn exp<const FMA: bool>(x: f32) -> f32 {
    // Adding 1.5 · 2^23 rounds to an integer and leaves that integer in the low bits.
    const ROUND: f32 = 12_582_912.0;
    let x = if x < -87.0 { -87.0 } else { x };
    let x = if x > 88.0 { 88.0 } else { x };
    let shifted = fma::<FMA>(x, std::f32::consts::LOG2_E, ROUND);
    let n = shifted - ROUND;
    let r = fma::<FMA>(n, -0.693_359_4, x);
    let r = fma::<FMA>(n, 2.121_944_4e-4, r);
    let mut p = 1.987_569_1e-4;
    for c in [1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5] {
        p = fma::<FMA>(p, r, c);
    }
    let y = fma::<FMA>(p * r, r, r) + 1.0;
    y * f32::from_bits((shifted.to_bits() << 23).wrapping_add(0x3f80_0000))
}

/// Φ(x), the normal distribution function, and e^(-x²/2), which its derivative needs.
///
/// Φ is wrong by at most 2e-7: Abramowitz and Stegun, Handbook of Mathematical Functions, 7.1.26, for erf.
#[inline(always)]
pub fn normal<const FMA: bool>(x: f32) -> (f32, f32) {
    let z = x.abs() * std::f32::consts::FRAC_1_SQRT_2;
    let bell = exp::<FMA>(-0.5 * x * x);
    let t = 1.0 / fma::<FMA>(0.327_591_1, z, 1.0);
    let mut p = 1.061_405_4;
    for c in [-1.453_152_1, 1.421_413_8, -0.284_496_72, 0.254_829_6] {
        p = fma::<FMA>(p, t, c);
    }
    let tail = 0.5 * p * t * bell;
    (if x < 0.0 { tail } else { 1.0 - tail }, bell)
}

/// Sum of `term(i)` for i below `n`.
#[inline(always)]
pub fn sum(n: usize, term: impl Fn(usize) -> f32) -> f32 {
    let mut lanes = [0.0f32; LANES];
    let whole = n / LANES * LANES;
    for start in (0..whole).step_by(LANES) {
        for (j, lane) in lanes.iter_mut().enumerate() {
            *lane += term(start + j);
        }
    }
    for (j, lane) in lanes.iter_mut().enumerate().take(n - whole) {
        *lane += term(whole + j);
    }
    fold(lanes, |a, b| a + b)
}

/// Combines lanes pairwise.
#[inline(always)]
pub fn fold(mut lanes: [f32; LANES], combine: impl Fn(f32, f32) -> f32) -> f32 {
    let mut half = LANES / 2;
    while half > 0 {
        for j in 0..half {
            lanes[j] = combine(lanes[j], lanes[j + half]);
        }
        half /= 2;
    }
    lanes[0]
}

/// Largest value; negative infinity if there is none. NaN are passed over.
#[inline(always)]
pub fn maximum(values: &[f32]) -> f32 {
    let larger = |a: f32, b: f32| if a > b { a } else { b };
    let mut lanes = [f32::NEG_INFINITY; LANES];
    let mut chunks = values.chunks_exact(LANES);
    for chunk in &mut chunks {
        for (lane, v) in lanes.iter_mut().zip(chunk) {
            *lane = larger(*v, *lane);
        }
    }
    for (lane, v) in lanes.iter_mut().zip(chunks.remainder()) {
        *lane = larger(*v, *lane);
    }
    fold(lanes, larger)
}

vectorized! {
    /// `to += from`.
    pub fn add_assign(to: &mut [f32], from: &[f32]) {
        for (to, from) in to.iter_mut().zip(from) {
            *to += from;
        }
    }
}

vectorized! {
    /// `to += from`, widened.
    pub fn add_widened<T: Element>(to: &mut [f32], from: &[T]) {
        for (to, from) in to.iter_mut().zip(from) {
            *to += from.widen();
        }
    }
}

vectorized! {
    /// Sum of squares.
    pub fn sum_of_squares(values: &[f32]) -> f32 {
        sum(values.len(), |i| values[i] * values[i])
    }
}
