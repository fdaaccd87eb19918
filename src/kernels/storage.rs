//! The precision in which saved activations are kept between forward and backward.
//!
//! Arithmetic is always 32-bit. In [`Storage::Bf16`] and [`Storage::F16`] a value is rounded to 16 bits where it is saved,
//! and forward goes on with the rounded value, so that backward is the exact gradient of what forward computed.

use half::{bf16, f16};

use crate::kernels::isa::vectorized;

/// A type that saved activations or matrix operands can have.
pub trait Element: Copy + Default + Send + Sync + 'static {
    /// The value in 32 bits.
    fn widen(self) -> f32;
    /// The nearest value of this type, ties to even.
    fn narrow(value: f32) -> Self;
    /// The slice itself where it is 32-bit already: then nothing has to be converted.
    fn whole(values: &[Self]) -> Option<&[f32]>;
    /// As [`Element::whole`], to write.
    fn whole_mut(values: &mut [Self]) -> Option<&mut [f32]>;
}

impl Element for f32 {
    #[inline(always)]
    fn widen(self) -> f32 {
        self
    }
    #[inline(always)]
    fn narrow(value: f32) -> f32 {
        value
    }
    fn whole(values: &[f32]) -> Option<&[f32]> {
        Some(values)
    }
    fn whole_mut(values: &mut [f32]) -> Option<&mut [f32]> {
        Some(values)
    }
}

impl Element for bf16 {
    #[inline(always)]
    fn widen(self) -> f32 {
        f32::from_bits(u32::from(self.to_bits()) << 16)
    }
    /// Without branches, so that it vectorises. A NaN stays a NaN: its quiet bit is set before rounding could carry
    /// it into infinity.
    #[inline(always)]
    fn narrow(value: f32) -> bf16 {
        let bits = value.to_bits();
        let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16;
        let quiet = (bits >> 16) | 0x40;
        let is_nan = (bits & 0x7fff_ffff) > 0x7f80_0000;
        bf16::from_bits(if is_nan { quiet as u16 } else { rounded as u16 })
    }
    fn whole(_: &[bf16]) -> Option<&[f32]> {
        None
    }
    fn whole_mut(_: &mut [bf16]) -> Option<&mut [f32]> {
        None
    }
}

impl Element for f16 {
    /// Shifting the fields into place leaves an exponent that is too small by 112, which one exact product mends, for
    /// subnormals too; infinities and NaN get their exponent by hand.
    #[inline(always)]
    fn widen(self) -> f32 {
        const TWO_TO_112: f32 = f32::from_bits((127 + 112) << 23);
        let bits = u32::from(self.to_bits());
        let magnitude = (bits & 0x7fff) << 13;
        let finite = (f32::from_bits(magnitude) * TWO_TO_112).to_bits();
        let value = if magnitude >= 0x7c00 << 13 { magnitude | 0x7f80_0000 } else { finite };
        f32::from_bits(value | ((bits & 0x8000) << 16))
    }
    /// Without branches, so that it vectorises. Subnormals are rounded by adding 1/2, whose last bit is worth 2^-24.
    #[inline(always)]
    fn narrow(value: f32) -> f16 {
        let bits = value.to_bits();
        let magnitude = bits & 0x7fff_ffff;
        let normal =
            magnitude.wrapping_add(((112u32 << 23).wrapping_neg()).wrapping_add(0xfff + ((magnitude >> 13) & 1)));
        let small = (f32::from_bits(magnitude) + 0.5).to_bits().wrapping_sub(0.5f32.to_bits());
        let beyond = if magnitude > 0x7f80_0000 { 0x7e00 } else { 0x7c00 };
        let rounded = if magnitude < (127 - 14) << 23 { small } else { normal >> 13 };
        let rounded = if magnitude >= (127 + 16) << 23 { beyond } else { rounded };
        f16::from_bits((rounded | ((bits >> 16) & 0x8000)) as u16)
    }
    fn whole(_: &[f16]) -> Option<&[f32]> {
        None
    }
    fn whole_mut(_: &mut [f16]) -> Option<&mut [f32]> {
        None
    }
}

/// How saved activations are stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Storage {
    /// 4 bytes a value.
    #[default]
    F32,
    /// 2 bytes a value: bfloat16.
    Bf16,
    /// 2 bytes a value: half precision. Gradients kept in it need loss scaling.
    F16,
}

impl Storage {
    /// Bytes of one stored value.
    pub fn bytes(self) -> usize {
        match self {
            Storage::F32 => 4,
            Storage::Bf16 | Storage::F16 => 2,
        }
    }
}

vectorized! {
    /// Rounds every value to what `T` can hold.
    pub fn narrow_into<T: Element>(from: &[f32], to: &mut [T]) {
        for (to, from) in to.iter_mut().zip(from) {
            *to = T::narrow(*from);
        }
    }
}

vectorized! {
    /// Widens every value to 32 bits.
    pub fn widen_into<T: Element>(from: &[T], to: &mut [f32]) {
        for (to, from) in to.iter_mut().zip(from) {
            *to = from.widen();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_precision_converts_as_the_half_crate_does() {
        for bits in 0..=u16::MAX {
            let (ours, theirs) = (f16::from_bits(bits).widen(), f16::from_bits(bits).to_f32());
            assert!(ours.to_bits() == theirs.to_bits() || (ours.is_nan() && theirs.is_nan()), "{bits:#x}");
        }
        for step in 0..=u32::MAX / 65_521 {
            let value = f32::from_bits(step * 65_521);
            let (ours, theirs) = (f16::narrow(value), f16::from_f32(value));
            assert!(ours.to_bits() == theirs.to_bits() || (ours.is_nan() && theirs.is_nan()), "{value:e}");
            let (ours, theirs) = (<bf16 as Element>::narrow(value), bf16::from_f32(value));
            assert!(ours.to_bits() == theirs.to_bits() || (ours.is_nan() && theirs.is_nan()), "{value:e}");
        }
    }
}
