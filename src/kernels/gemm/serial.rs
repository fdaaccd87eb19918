//! Products small enough for one thread, with packed operands that are used more than once: attention's.

use super::Matrix;
use super::micro::{MAX_TILE, Tile, tile_of};
use super::pack::{pack_panel, panel_floats};
use crate::kernels::isa::Isa;
use crate::kernels::storage::Element;

/// A packed operand. Its memory is kept when it is packed anew.
#[derive(Debug, Default)]
pub struct Panels {
    values: Vec<f32>,
    /// Where the first panel begins: a cache line's boundary.
    skip: usize,
    /// Rows of a left operand, columns of a right one.
    extent: usize,
    /// Inner extent.
    depth: usize,
}

impl Panels {
    /// Packs a left operand.
    pub fn pack_left<T: Element>(&mut self, matrix: Matrix<'_, T>) {
        self.pack(matrix, tile_of(Isa::detect()).mr);
    }

    /// Packs a right operand.
    pub fn pack_right<T: Element>(&mut self, matrix: Matrix<'_, T>) {
        self.pack(matrix.t(), tile_of(Isa::detect()).nr);
    }

    fn pack<T: Element>(&mut self, matrix: Matrix<'_, T>, width: usize) {
        (self.extent, self.depth) = (matrix.rows, matrix.columns);
        let floats = panel_floats(self.depth, width);
        let wanted = self.extent.div_ceil(width) * floats + 16;
        if self.values.len() < wanted {
            self.values = Vec::new();
            self.values = vec![0.0; wanted];
        }
        self.skip = self.values.as_ptr().align_offset(64).min(16);
        for (i, to) in self.values[self.skip..wanted - 16 + self.skip].chunks_exact_mut(floats).enumerate() {
            let row = i * width;
            pack_panel(matrix, row, width.min(self.extent - row), 0..self.depth, width, to);
        }
    }

    /// `c = self · right` for `c` row-major without gaps, or `c += …` to accumulate.
    ///
    /// # Panics
    /// If the extents contradict each other: a bug in the caller.
    pub fn multiply(&self, right: &Panels, c: &mut [f32], accumulate: bool) {
        let Tile { mr, nr, run } = tile_of(Isa::detect());
        let (m, n, depth) = (self.extent, right.extent, self.depth);
        assert_eq!(depth, right.depth, "the inner extents of a product differ");
        assert!(c.len() >= m * n, "the result of a product is too small");
        let (a_floats, b_floats) = (panel_floats(depth, mr), panel_floats(depth, nr));
        for column in (0..n).step_by(nr) {
            let b = &right.values[right.skip + column / nr * b_floats..][..b_floats];
            let width = nr.min(n - column);
            for row in (0..m).step_by(mr) {
                let a = &self.values[self.skip + row / mr * a_floats..][..a_floats];
                let height = mr.min(m - row);
                if height == mr && width == nr {
                    // SAFETY: the tile's last element, (row + mr - 1) · n + column + nr - 1, lies below m · n, which
                    // `c` holds; the panels hold `depth` groups of `mr` and `nr` floats.
                    unsafe { run(depth, a.as_ptr(), b.as_ptr(), c.as_mut_ptr().add(row * n + column), n, accumulate) };
                    continue;
                }
                let mut edge = [0.0f32; MAX_TILE];
                // SAFETY: as above; `edge` holds mr · nr floats.
                unsafe { run(depth, a.as_ptr(), b.as_ptr(), edge.as_mut_ptr(), nr, false) };
                for i in 0..height {
                    let to = &mut c[(row + i) * n + column..][..width];
                    let from = &edge[i * nr..][..width];
                    if accumulate {
                        to.iter_mut().zip(from).for_each(|(t, f)| *t += f);
                    } else {
                        to.copy_from_slice(from);
                    }
                }
            }
        }
    }

    /// Bytes that it holds.
    pub fn bytes(&self) -> usize {
        self.values.len() * size_of::<f32>()
    }
}
