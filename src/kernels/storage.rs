//! The precision in which saved activations are kept between forward and backward.
//!
//! Arithmetic is always 32-bit. In [`Storage::Bf16`] a value is rounded to 16 bits where it is saved, and forward goes
//! on with the rounded value, so that backward is the exact gradient of what forward computed.

use half::bf16;

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

/// How saved activations are stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Storage {
    /// 4 bytes a value.
    #[default]
    F32,
    /// 2 bytes a value: bfloat16.
    Bf16,
}

impl Storage {
    /// Bytes of one stored value.
    pub fn bytes(self) -> usize {
        match self {
            Storage::F32 => 4,
            Storage::Bf16 => 2,
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
