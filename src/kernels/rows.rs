//! Passes over the rows of `[tokens, features]` in parallel.

use rayon::prelude::*;

use crate::kernels::math::{add_assign, add_widened};
use crate::kernels::storage::Element;

/// Rows that one job takes. Fixed, so that sums over rows do not depend on the number of threads.
pub(super) const ROWS: usize = 32;

/// Raw access for jobs that write to disjoint pieces of one slice.
#[derive(Debug)]
pub(super) struct Pieces<'a, T> {
    start: *mut T,
    length: usize,
    borrow: std::marker::PhantomData<&'a mut [T]>,
}

// SAFETY: `Pieces` is a unique borrow of a slice of `T: Send`; its only method leaves disjointness to its caller.
unsafe impl<T: Send> Sync for Pieces<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Send> Send for Pieces<'_, T> {}

impl<'a, T> Pieces<'a, T> {
    pub(super) fn new(values: &'a mut [T]) -> Self {
        Pieces { start: values.as_mut_ptr(), length: values.len(), borrow: std::marker::PhantomData }
    }

    /// `count` values from `offset` on.
    ///
    /// # Safety
    /// No other piece that is alive may overlap this one.
    #[allow(clippy::mut_from_ref)]
    pub(super) unsafe fn piece(&self, offset: usize, count: usize) -> &mut [T] {
        assert!(offset + count <= self.length, "a piece lies outside its slice");
        // SAFETY: inside the slice that `self` borrows uniquely; disjoint from other pieces, as the caller grants.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(offset), count) }
    }
}

/// Runs `job(first_row, sums)` for every block of [`ROWS`] rows in parallel, each with `width` sums of its own that
/// begin at zero, and returns the sums of all blocks, added in the order of the rows.
pub(super) fn for_blocks(
    rows: usize,
    width: usize,
    job: impl Fn(std::ops::Range<usize>, &mut [f32]) + Sync,
) -> Vec<f32> {
    let blocks = rows.div_ceil(ROWS);
    let range = |i: usize| i * ROWS..((i + 1) * ROWS).min(rows);
    if width == 0 {
        (0..blocks).into_par_iter().for_each(|i| job(range(i), &mut []));
        return Vec::new();
    }
    let mut partial = vec![0.0f32; blocks * width];
    partial.par_chunks_mut(width).enumerate().for_each(|(i, sums)| job(range(i), sums));
    let mut total = vec![0.0f32; width];
    for sums in partial.chunks_exact(width) {
        add_assign(&mut total, sums);
    }
    total
}

/// Sums of the columns of a row-major matrix.
pub(super) fn column_sums<T: Element>(values: &[T], width: usize) -> Vec<f32> {
    for_blocks(values.len() / width.max(1), width, |rows, sums| {
        for row in values[rows.start * width..rows.end * width].chunks_exact(width) {
            add_widened(sums, row);
        }
    })
}
