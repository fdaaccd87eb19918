//! Packing: panels in which the values that one step of the register tile needs lie side by side.

use std::ops::Range;

use super::Matrix;
use crate::kernels::isa::vectorized;
use crate::kernels::storage::Element;

/// Floats of a packed panel. Eight more than its values: a copy of whole vectors may write past a narrow step, and the
/// next panel begins on a cache line.
pub(super) fn panel_floats(depth: usize, width: usize) -> usize {
    (depth * width + 8).next_multiple_of(16)
}

/// Packs rows `row .. row + count` and columns `k` of a matrix: `to[i · width + r]` becomes element `(row + r, k + i)`,
/// and 0 where `r >= count`.
pub(super) fn pack_panel<T: Element>(
    matrix: Matrix<'_, T>,
    row: usize,
    count: usize,
    k: Range<usize>,
    width: usize,
    to: &mut [f32],
) {
    let start = row * matrix.row_stride + k.start * matrix.column_stride;
    let data = &matrix.data[start.min(matrix.data.len())..];
    let depth = k.len();
    match (matrix.row_stride, matrix.column_stride, width) {
        (1, stride, 6) => copy_rows::<T, Width<6>>(data, stride, count, depth, to),
        (1, stride, 12) => copy_rows::<T, Width<12>>(data, stride, count, depth, to),
        (1, stride, 16) => copy_rows::<T, Width<16>>(data, stride, count, depth, to),
        (1, stride, 32) => copy_rows::<T, Width<32>>(data, stride, count, depth, to),
        (stride, 1, 6) => transpose::<T, Width<6>>(data, stride, count, depth, to),
        (stride, 1, 12) => transpose::<T, Width<12>>(data, stride, count, depth, to),
        (stride, 1, 16) => transpose::<T, Width<16>>(data, stride, count, depth, to),
        (stride, 1, 32) => transpose::<T, Width<32>>(data, stride, count, depth, to),
        (row_stride, column_stride, _) => any(data, row_stride, column_stride, count, depth, width, to),
    }
}

/// A panel's width, known when the loops are compiled.
trait PanelWidth {
    const WIDTH: usize;
}
struct Width<const N: usize>;
impl<const N: usize> PanelWidth for Width<N> {
    const WIDTH: usize = N;
}

vectorized! {
    /// Values of one step are neighbours in memory: copy them.
    fn copy_rows<T: Element, W: PanelWidth>(data: &[T], stride: usize, count: usize, depth: usize, to: &mut [f32]) {
        for (i, group) in to.chunks_exact_mut(W::WIDTH).take(depth).enumerate() {
            let from = &data[i * stride..][..count];
            if count == W::WIDTH {
                for (to, from) in group.iter_mut().zip(&from[..W::WIDTH]) {
                    *to = from.widen();
                }
            } else {
                group.fill(0.0);
                for (to, from) in group.iter_mut().zip(from) {
                    *to = from.widen();
                }
            }
        }
    }
}

vectorized! {
    /// Values of one row are neighbours in memory: transpose. A step of the panel is written as a whole, one value from
    /// each row.
    fn transpose<T: Element, W: PanelWidth>(data: &[T], stride: usize, count: usize, depth: usize, to: &mut [f32]) {
        let to = &mut to[..depth * W::WIDTH];
        if count == W::WIDTH {
            let mut first = 0;
            while first < W::WIDTH {
                let rows = 6.min(W::WIDTH - first);
                match rows {
                    6 => gather::<T, 6>(data, stride, depth, first, W::WIDTH, to),
                    _ => gather::<T, 2>(data, stride, depth, first, W::WIDTH, to),
                }
                first += if rows == 6 { 6 } else { 2 };
            }
        } else {
            to.fill(0.0);
            for r in 0..count {
                gather::<T, 1>(data, stride, depth, r, W::WIDTH, to);
            }
        }
    }
}

/// Writes rows `first .. first + ROWS` of a panel that is `width` wide.
#[inline(always)]
fn gather<T: Element, const ROWS: usize>(
    data: &[T],
    stride: usize,
    depth: usize,
    first: usize,
    width: usize,
    to: &mut [f32],
) {
    let rows: [&[T]; ROWS] = std::array::from_fn(|r| &data[(first + r) * stride..][..depth]);
    for (i, group) in to.chunks_exact_mut(width).enumerate() {
        for (value, row) in group[first..first + ROWS].iter_mut().zip(&rows) {
            *value = row[i].widen();
        }
    }
}

fn any<T: Element>(
    data: &[T],
    row_stride: usize,
    column_stride: usize,
    count: usize,
    depth: usize,
    width: usize,
    to: &mut [f32],
) {
    for (i, group) in to.chunks_exact_mut(width).take(depth).enumerate() {
        for (r, value) in group.iter_mut().enumerate() {
            *value = if r < count { data[r * row_stride + i * column_stride].widen() } else { 0.0 };
        }
    }
}
