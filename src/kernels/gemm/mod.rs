//! Matrix products: `C = A·B`, packed, tiled and in parallel, with what happens to a finished tile left to the caller.
//!
//! The scheme is the one of GotoBLAS (Goto and van de Geijn, "Anatomy of High-Performance Matrix Multiplication",
//! ACM TOMS 34, 2008): a slice of `KC` of the inner extent is packed into panels as wide as the register tile, blocks
//! of A stay in the second cache level while the panels of B stream by. Both operands are packed in parallel, then
//! tiles of C are computed in parallel.
//!
//! The order in which the terms of one element of C are added depends on the shape alone: a result is the same, bit for
//! bit, whatever the number of threads.

mod micro;
mod pack;
mod serial;

use rayon::prelude::*;

use crate::kernels::isa::Isa;
use crate::kernels::storage::Element;
use micro::{MAX_TILE, Tile, tile_of};
use pack::{pack_panel, panel_floats};
pub use serial::Panels;

/// Inner extent of a packed slice: with it a panel of B (16 wide) takes 24 KiB of the first cache level.
const KC: usize = 384;
/// Rows of A in one job: 144 · 384 floats are 216 KiB, less than half of a second cache level of 512 KiB.
const MC: usize = 144;
/// Rows of A packed at a time: bounds the workspace to 3 MiB for A.
const M_CHUNK: usize = 2048;
/// Panels of B in one job.
const JOB_PANELS: usize = 16;

/// A matrix that is read: any strides, so that a transpose costs nothing but its name.
#[derive(Clone, Copy, Debug)]
pub struct Matrix<'a, T = f32> {
    data: &'a [T],
    rows: usize,
    columns: usize,
    row_stride: usize,
    column_stride: usize,
}

impl<'a, T: Element> Matrix<'a, T> {
    /// A row-major matrix of `rows` × `columns` without gaps.
    pub fn new(data: &'a [T], rows: usize, columns: usize) -> Self {
        Self::strided(data, rows, columns, columns)
    }

    /// A row-major matrix whose rows begin `stride` values apart.
    pub fn strided(data: &'a [T], rows: usize, columns: usize, stride: usize) -> Self {
        if rows > 0 && columns > 0 {
            assert!(columns <= stride && (rows - 1) * stride + columns <= data.len(), "a matrix lies outside its data");
        }
        Matrix { data, rows, columns, row_stride: stride, column_stride: 1 }
    }

    /// The transpose.
    pub fn t(self) -> Self {
        Matrix {
            data: self.data,
            rows: self.columns,
            columns: self.rows,
            row_stride: self.column_stride,
            column_stride: self.row_stride,
        }
    }
}

/// One of the products that share their left operand.
#[derive(Debug)]
pub struct Product<'a, T = f32> {
    /// Right operand, `[k, n]`.
    pub b: Matrix<'a, T>,
    /// Result, row-major `[m, n]`.
    pub c: &'a mut [f32],
    /// Distance between two rows of `c`.
    pub stride: usize,
    /// What is added to the product.
    pub add: Add<'a>,
}

/// What is added to a product.
#[derive(Clone, Copy, Debug)]
pub enum Add<'a> {
    /// Nothing: the result replaces what was there.
    Nothing,
    /// A vector of n to every row.
    Bias(&'a [f32]),
    /// What the result holds already.
    Existing,
}

/// Memory for packed panels, kept between products: it grows to what the largest one needs and stays.
#[derive(Debug, Default)]
pub struct PackBuffer {
    values: Vec<f32>,
}

impl PackBuffer {
    /// Two buffers of at least these many floats, both aligned to a cache line.
    fn split(&mut self, a: usize, b: usize) -> (&mut [f32], &mut [f32]) {
        const LINE: usize = 16;
        let a = a.next_multiple_of(LINE);
        let wanted = a + b + LINE;
        if self.values.len() < wanted {
            // The old panels are worth nothing: free them first, so that the peak is the new size alone.
            self.values = Vec::new();
            self.values = vec![0.0; wanted];
        }
        let skip = self.values.as_ptr().align_offset(64).min(LINE);
        let (first, rest) = self.values[skip..].split_at_mut(a);
        (first, &mut rest[..b])
    }

    /// Bytes that it holds now.
    pub fn bytes(&self) -> usize {
        self.values.len() * size_of::<f32>()
    }
}

/// A pointer that jobs writing to disjoint places may share.
#[derive(Clone, Copy)]
struct Shared(*mut f32);
// SAFETY: `Shared` is only a number; every use of it states which places it writes and why no one else does.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}
impl Shared {
    #[inline(always)]
    fn at(self, offset: usize) -> *mut f32 {
        self.0.wrapping_add(offset)
    }
}

/// One product.
pub fn multiply<A: Element, B: Element>(
    pack: &mut PackBuffer,
    a: Matrix<'_, A>,
    b: Matrix<'_, B>,
    c: &mut [f32],
    add: Add<'_>,
) {
    let stride = b.columns;
    multiply_many(pack, a, &mut [Product { b, c, stride, add }]);
}

/// Several products with one left operand, which is packed once.
pub fn multiply_many<A: Element, B: Element>(pack: &mut PackBuffer, a: Matrix<'_, A>, products: &mut [Product<'_, B>]) {
    multiply_then(pack, a, products, |_, _, _, _: &mut [f32]| {});
}

/// One panel of packed B: which product, its first column there, how many columns.
struct Panel {
    product: usize,
    column: usize,
    width: usize,
}

/// As [`multiply_many`]; `finish(product, row, column, values)` then sees every piece of a row of every result once,
/// complete and still in the cache, and may change it. Pieces are disjoint and come in any order, from any thread.
///
/// # Panics
/// If the extents contradict each other: a bug in the caller.
pub fn multiply_then<A: Element, B: Element>(
    pack: &mut PackBuffer,
    a: Matrix<'_, A>,
    products: &mut [Product<'_, B>],
    finish: impl Fn(usize, usize, usize, &mut [f32]) + Sync,
) {
    let (m, k) = (a.rows, a.columns);
    for product in products.iter() {
        check(m, k, product);
    }
    let tile = tile_of(Isa::detect());
    let panels = panels_of(products, tile.nr);
    if m == 0 || panels.is_empty() {
        return;
    }
    let outputs: Vec<Shared> = products.iter_mut().map(|p| Shared(p.c.as_mut_ptr())).collect();
    let products = &*products;
    let slices = k.div_ceil(KC).max(1);
    let kc = k.div_ceil(slices);
    let m_chunk = m.div_ceil(m.div_ceil(M_CHUNK)).next_multiple_of(tile.mr);
    let (packed_a, packed_b) =
        pack.split(m_chunk.div_ceil(tile.mr) * panel_floats(kc, tile.mr), panels.len() * panel_floats(kc, tile.nr));

    for slice in 0..slices {
        let k_range = slice * kc..((slice + 1) * kc).min(k);
        let depth = k_range.len();
        let (a_floats, b_floats) = (panel_floats(depth, tile.mr), panel_floats(depth, tile.nr));
        packed_b[..panels.len() * b_floats].par_chunks_mut(b_floats).with_min_len(4).zip(&panels).for_each(
            |(to, panel)| {
                let b = products[panel.product].b.t();
                pack_panel(b, panel.column, panel.width, k_range.clone(), tile.nr, to);
            },
        );
        for m_start in (0..m).step_by(m_chunk) {
            let rows = m_chunk.min(m - m_start);
            let a_panels = rows.div_ceil(tile.mr);
            packed_a[..a_panels * a_floats].par_chunks_mut(a_floats).with_min_len(8).enumerate().for_each(|(i, to)| {
                let row = i * tile.mr;
                pack_panel(a, m_start + row, tile.mr.min(rows - row), k_range.clone(), tile.mr, to);
            });
            let job = Block {
                tile,
                depth,
                first: slice == 0,
                last: slice + 1 == slices,
                a: &packed_a[..a_panels * a_floats],
                b: &packed_b[..panels.len() * b_floats],
                panels: &panels,
                outputs: &outputs,
                products,
                m_start,
                rows,
            };
            let block_panels = a_panels.div_ceil(rows.div_ceil(MC));
            let (down, across) = (a_panels.div_ceil(block_panels), panels.len().div_ceil(JOB_PANELS));
            (0..down * across).into_par_iter().with_max_len(1).for_each(|index| {
                let (i, j) = (index / across, index % across);
                let a_range = i * block_panels..((i + 1) * block_panels).min(a_panels);
                let b_range = j * JOB_PANELS..((j + 1) * JOB_PANELS).min(panels.len());
                job.run(a_range, b_range, &finish);
            });
        }
    }
}

fn check<B: Element>(m: usize, k: usize, product: &Product<'_, B>) {
    let n = product.b.columns;
    assert_eq!(product.b.rows, k, "the inner extents of a product differ");
    assert!(
        m == 0 || n == 0 || (product.stride >= n && product.c.len() >= (m - 1) * product.stride + n),
        "the result of a product is too small"
    );
    if let Add::Bias(bias) = product.add {
        assert_eq!(bias.len(), n, "a bias does not fit its product");
    }
}

fn panels_of<B: Element>(products: &[Product<'_, B>], nr: usize) -> Vec<Panel> {
    let mut panels = Vec::new();
    for (product, p) in products.iter().enumerate() {
        let n = p.b.columns;
        panels.extend((0..n).step_by(nr).map(|column| Panel { product, column, width: nr.min(n - column) }));
    }
    panels
}

/// A packed slice of both operands, and where its products go.
struct Block<'a, B> {
    tile: Tile,
    depth: usize,
    /// The first slice of k replaces the result (or begins with what is to be added), later ones add to it.
    first: bool,
    last: bool,
    a: &'a [f32],
    b: &'a [f32],
    panels: &'a [Panel],
    outputs: &'a [Shared],
    products: &'a [Product<'a, B>],
    m_start: usize,
    rows: usize,
}

impl<B: Element> Block<'_, B> {
    /// Computes the tiles of these panels of A and B.
    fn run(
        &self,
        a_range: std::ops::Range<usize>,
        b_range: std::ops::Range<usize>,
        finish: &(impl Fn(usize, usize, usize, &mut [f32]) + Sync),
    ) {
        let (mr, nr) = (self.tile.mr, self.tile.nr);
        let (a_floats, b_floats) = (panel_floats(self.depth, mr), panel_floats(self.depth, nr));
        for panel_index in b_range {
            let panel = &self.panels[panel_index];
            let product = &self.products[panel.product];
            let output = self.outputs[panel.product];
            let b = &self.b[panel_index * b_floats..][..b_floats];
            let accumulate = !self.first || matches!(product.add, Add::Existing);
            let bias = match product.add {
                Add::Bias(bias) if self.first => Some(&bias[panel.column..][..panel.width]),
                _ => None,
            };
            for a_index in a_range.clone() {
                let row = a_index * mr;
                let height = mr.min(self.rows - row);
                let a = &self.a[a_index * a_floats..][..a_floats];
                let offset = (self.m_start + row) * product.stride + panel.column;
                let whole = height == mr && panel.width == nr && bias.is_none();
                // SAFETY: `check` made sure that the whole result lies inside the slice behind `output`, whose unique
                // borrow lives as long as this block. Every pair of panels belongs to exactly one job, so no other
                // thread touches this tile. The packed panels hold `depth` groups of `mr` and `nr` floats.
                unsafe {
                    let c = output.at(offset);
                    if whole {
                        (self.tile.run)(self.depth, a.as_ptr(), b.as_ptr(), c, product.stride, accumulate);
                    } else {
                        let mut edge = [0.0f32; MAX_TILE];
                        (self.tile.run)(self.depth, a.as_ptr(), b.as_ptr(), edge.as_mut_ptr(), nr, false);
                        for i in 0..height {
                            let to = std::slice::from_raw_parts_mut(c.add(i * product.stride), panel.width);
                            let from = &edge[i * nr..][..panel.width];
                            match (accumulate, bias) {
                                (true, _) => to.iter_mut().zip(from).for_each(|(t, f)| *t += f),
                                (false, Some(bias)) => {
                                    to.iter_mut().zip(from).zip(bias).for_each(|((t, f), b)| *t = f + b)
                                }
                                (false, None) => to.copy_from_slice(from),
                            }
                        }
                    }
                    if self.last {
                        for i in 0..height {
                            let piece = std::slice::from_raw_parts_mut(c.add(i * product.stride), panel.width);
                            finish(panel.product, self.m_start + row + i, panel.column, piece);
                        }
                    }
                }
            }
        }
    }
}
