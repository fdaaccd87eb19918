//! Which vector instructions this processor has, and how a plain loop gets to use them.
//!
//! The crate is built for the oldest processor of its target, so a plain loop would be compiled to four lanes without
//! fused multiply-add. `vectorized!` compiles a loop once more for each wider instruction set and picks at run time;
//! there is no intrinsic in it, the compiler vectorises.

/// A level of vector instructions, narrowest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Isa {
    /// What the target guarantees.
    Portable,
    /// x86-64 with AVX2, FMA and F16C: 8 lanes, 16 registers.
    Avx2,
    /// x86-64 with AVX-512 F, BW, DQ and VL: 16 lanes, 32 registers.
    Avx512,
}

impl Isa {
    /// The widest level that this processor has.
    #[inline]
    pub fn detect() -> Isa {
        #[cfg(target_arch = "x86_64")]
        {
            // The standard library caches the answer: this is a load and a test.
            if is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512dq")
                && is_x86_feature_detected!("avx512vl")
                && is_x86_feature_detected!("fma")
            {
                return Isa::Avx512;
            }
            if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
                return Isa::Avx2;
            }
        }
        Isa::Portable
    }
}

/// Whether the target guarantees a fused multiply-add, so that `f32::mul_add` is one instruction without asking.
pub const GUARANTEED_FMA: bool = cfg!(any(target_arch = "aarch64", target_feature = "fma"));

/// `a · b + c`, fused where `FMA` says that it is one instruction (in software it would be a slow library call).
#[inline(always)]
pub fn fma<const FMA: bool>(a: f32, b: f32, c: f32) -> f32 {
    if FMA { a.mul_add(b, c) } else { a * b + c }
}

/// Defines a function whose body is compiled for every [`Isa`] and chosen at run time. The body may use the constant
/// `FMA` with [`fma`]; functions that it calls must be `#[inline(always)]` to be compiled with it.
macro_rules! vectorized {
    ($(#[$meta:meta])* $vis:vis fn $name:ident $(<$($generic:ident: $bound:path),+>)? ($($arg:ident: $ty:ty),* $(,)?) $(-> $ret:ty)? $body:block) => {
        $(#[$meta])*
        #[allow(clippy::too_many_arguments)]
        $vis fn $name $(<$($generic: $bound),+>)? ($($arg: $ty),*) $(-> $ret)? {
            #[inline(always)]
            #[allow(clippy::too_many_arguments, clippy::extra_unused_type_parameters)]
            fn body<const FMA: bool $(, $($generic: $bound),+)?>($($arg: $ty),*) $(-> $ret)? $body
            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx2,fma")]
                fn avx2 $(<$($generic: $bound),+>)? ($($arg: $ty),*) $(-> $ret)? {
                    body::<true $(, $($generic),+)?>($($arg),*)
                }
                #[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512dq,avx512vl")]
                fn avx512 $(<$($generic: $bound),+>)? ($($arg: $ty),*) $(-> $ret)? {
                    body::<true $(, $($generic),+)?>($($arg),*)
                }
                match $crate::kernels::isa::Isa::detect() {
                    // SAFETY: the processor has just been found to have these instructions.
                    $crate::kernels::isa::Isa::Avx512 => return unsafe { avx512$(::<$($generic),+>)?($($arg),*) },
                    // SAFETY: as above.
                    $crate::kernels::isa::Isa::Avx2 => return unsafe { avx2$(::<$($generic),+>)?($($arg),*) },
                    $crate::kernels::isa::Isa::Portable => {}
                }
            }
            body::<{ $crate::kernels::isa::GUARANTEED_FMA } $(, $($generic),+)?>($($arg),*)
        }
    };
}
pub(crate) use vectorized;
