//! Register tiles: `mr × nr` elements of C from one packed panel of A and one of B.

use crate::kernels::isa::Isa;

/// Floats of the largest tile.
pub(super) const MAX_TILE: usize = 12 * 32;

/// A tile's extents and the function that computes it.
#[derive(Clone, Copy)]
pub(super) struct Tile {
    /// Rows of A in a panel.
    pub mr: usize,
    /// Columns of B in a panel.
    pub nr: usize,
    /// `run(depth, a, b, c, stride, accumulate)`: `c = a·b`, or `c += a·b`.
    ///
    /// # Safety
    /// `a` and `b` must be readable for `depth · mr` and `depth · nr` floats, `c` writable (and readable, to
    /// accumulate) for `mr` rows of `nr` floats, `stride` apart; the processor must have the instructions.
    pub run: unsafe fn(usize, *const f32, *const f32, *mut f32, usize, bool),
}

/// The tile for a level of instructions.
pub(super) fn tile_of(isa: Isa) -> Tile {
    match isa {
        #[cfg(target_arch = "x86_64")]
        // 24 of 32 registers accumulate, 2 hold B.
        Isa::Avx512 => Tile { mr: 12, nr: 32, run: x86::tile_12x32 },
        #[cfg(target_arch = "x86_64")]
        // 12 of 16 registers accumulate, 2 hold B, 1 a value of A.
        Isa::Avx2 => Tile { mr: 6, nr: 16, run: x86::tile_6x16 },
        _ => Tile { mr: 4, nr: 8, run: portable_4x8 },
    }
}

/// Left to the compiler: 32 sums fit the 16 registers of four lanes that every 64-bit target has.
///
/// # Safety
/// As [`Tile::run`] says.
unsafe fn portable_4x8(depth: usize, a: *const f32, b: *const f32, c: *mut f32, stride: usize, accumulate: bool) {
    use crate::kernels::isa::{GUARANTEED_FMA, fma};
    // SAFETY: the caller grants these extents.
    let (a, b) = unsafe { (std::slice::from_raw_parts(a, depth * 4), std::slice::from_raw_parts(b, depth * 8)) };
    let mut sums = [[0.0f32; 8]; 4];
    for (a, b) in a.chunks_exact(4).zip(b.chunks_exact(8)) {
        for (sums, a) in sums.iter_mut().zip(a) {
            for (sum, b) in sums.iter_mut().zip(b) {
                *sum = fma::<GUARANTEED_FMA>(*a, *b, *sum);
            }
        }
    }
    for (i, sums) in sums.iter().enumerate() {
        // SAFETY: the caller grants `mr` rows of `nr` floats.
        let row = unsafe { std::slice::from_raw_parts_mut(c.add(i * stride), 8) };
        for (to, sum) in row.iter_mut().zip(sums) {
            *to = if accumulate { *to + sum } else { *sum };
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    /// # Safety
    /// As [`super::Tile::run`] says.
    #[target_feature(enable = "avx2,fma")]
    pub(super) unsafe fn tile_6x16(
        depth: usize,
        mut a: *const f32,
        mut b: *const f32,
        c: *mut f32,
        stride: usize,
        accumulate: bool,
    ) {
        // SAFETY: every access stays inside the extents that the caller grants: the loops advance `a` by 6 and `b` by
        // 16 floats for each of `depth` steps; prefetching never faults.
        unsafe {
            let mut sums = [[_mm256_setzero_ps(); 2]; 6];
            for i in 0..6 {
                _mm_prefetch::<_MM_HINT_T0>(c.wrapping_add(i * stride).cast());
                _mm_prefetch::<_MM_HINT_T0>(c.wrapping_add(i * stride + 15).cast());
            }
            macro_rules! step {
                ($u:expr) => {
                    let b0 = _mm256_loadu_ps(b.add($u * 16));
                    let b1 = _mm256_loadu_ps(b.add($u * 16 + 8));
                    for i in 0..6 {
                        let value = _mm256_broadcast_ss(&*a.add($u * 6 + i));
                        sums[i][0] = _mm256_fmadd_ps(value, b0, sums[i][0]);
                        sums[i][1] = _mm256_fmadd_ps(value, b1, sums[i][1]);
                    }
                };
            }
            for _ in 0..depth / 4 {
                step!(0);
                step!(1);
                step!(2);
                step!(3);
                a = a.add(24);
                b = b.add(64);
            }
            for _ in 0..depth % 4 {
                step!(0);
                a = a.add(6);
                b = b.add(16);
            }
            for (i, sums) in sums.iter().enumerate() {
                for (half, sum) in sums.iter().enumerate() {
                    let to = c.add(i * stride + half * 8);
                    let sum = if accumulate { _mm256_add_ps(*sum, _mm256_loadu_ps(to)) } else { *sum };
                    _mm256_storeu_ps(to, sum);
                }
            }
        }
    }

    /// # Safety
    /// As [`super::Tile::run`] says.
    #[target_feature(enable = "avx512f")]
    pub(super) unsafe fn tile_12x32(
        depth: usize,
        mut a: *const f32,
        mut b: *const f32,
        c: *mut f32,
        stride: usize,
        accumulate: bool,
    ) {
        // SAFETY: as in `tile_6x16`, with 12 and 32 floats for each step.
        unsafe {
            let mut sums = [[_mm512_setzero_ps(); 2]; 12];
            for i in 0..12 {
                _mm_prefetch::<_MM_HINT_T0>(c.wrapping_add(i * stride).cast());
                _mm_prefetch::<_MM_HINT_T0>(c.wrapping_add(i * stride + 16).cast());
            }
            macro_rules! step {
                ($u:expr) => {
                    let b0 = _mm512_loadu_ps(b.add($u * 32));
                    let b1 = _mm512_loadu_ps(b.add($u * 32 + 16));
                    for i in 0..12 {
                        let value = _mm512_set1_ps(*a.add($u * 12 + i));
                        sums[i][0] = _mm512_fmadd_ps(value, b0, sums[i][0]);
                        sums[i][1] = _mm512_fmadd_ps(value, b1, sums[i][1]);
                    }
                };
            }
            for _ in 0..depth / 2 {
                step!(0);
                step!(1);
                a = a.add(24);
                b = b.add(64);
            }
            if depth % 2 == 1 {
                step!(0);
            }
            for (i, sums) in sums.iter().enumerate() {
                for (half, sum) in sums.iter().enumerate() {
                    let to = c.add(i * stride + half * 16);
                    let sum = if accumulate { _mm512_add_ps(*sum, _mm512_loadu_ps(to)) } else { *sum };
                    _mm512_storeu_ps(to, sum);
                }
            }
        }
    }
}
