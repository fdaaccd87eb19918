//! Low-rank adapters beside a projection: `W + s·A·B` when it is used, and the gradients of A and B without that of W.

use crate::kernels::gemm::{Add, Matrix, multiply};
use crate::kernels::layer::{Workspace, grow};
use crate::kernels::storage::Element;

/// The two small matrices.
#[derive(Clone, Copy, Debug)]
pub struct Adapter<'a> {
    /// A, `[in, rank]`.
    pub down: &'a [f32],
    /// B, `[rank, out]`.
    pub up: &'a [f32],
    /// r.
    pub rank: usize,
    /// s.
    pub scale: f32,
}

impl Adapter<'_> {
    /// `[in, out]`.
    fn extents(&self) -> [usize; 2] {
        [self.down.len() / self.rank, self.up.len() / self.rank]
    }

    fn scaled(&self, values: &[f32]) -> Vec<f32> {
        values.iter().map(|value| value * self.scale).collect()
    }
}

/// An adapter and where its gradients are added.
#[derive(Debug)]
pub struct AdapterSink<'a> {
    /// The adapter.
    pub adapter: Adapter<'a>,
    /// Of A, `[in, rank]`.
    pub down: &'a mut [f32],
    /// Of B, `[rank, out]`.
    pub up: &'a mut [f32],
}

/// `W + s·A·B`, `[in, out]`.
///
/// # Panics
/// If the extents contradict each other: a bug in the caller.
pub fn merged(work: &mut Workspace, weight: &[f32], adapter: Adapter<'_>) -> Vec<f32> {
    let [inputs, outputs] = adapter.extents();
    assert_eq!(weight.len(), inputs * outputs, "an adapter does not fit its projection");
    let mut merged = weight.to_vec();
    let down = adapter.scaled(adapter.down);
    let (a, b) = (Matrix::new(&down, inputs, adapter.rank), Matrix::new(adapter.up, adapter.rank, outputs));
    multiply(&mut work.pack, a, b, &mut merged, Add::Existing);
    merged
}

/// Adds the gradients of A and B: `A += xᵀ·(G·(s·B)ᵀ)`, `B += (x·(s·A))ᵀ·G`, for the projection's input x `[tokens, in]`
/// and the gradient G of its output `[tokens, out]`.
///
/// The gradient of W, `xᵀ·G`, from which both would follow too, is never made: it takes `in · out` floats, and more
/// time than the four thin products.
pub(super) fn backward<T: Element>(work: &mut Workspace, x: &[f32], gradient: &[T], to: &mut AdapterSink<'_>) {
    let adapter = to.adapter;
    let ([inputs, outputs], rank) = (adapter.extents(), adapter.rank);
    let tokens = gradient.len() / outputs;
    let (x, gradient) = (Matrix::new(x, tokens, inputs), Matrix::new(gradient, tokens, outputs));
    let narrow = grow(&mut work.floats, tokens * rank);
    let up = adapter.scaled(adapter.up);
    multiply(&mut work.pack, gradient, Matrix::new(&up, rank, outputs).t(), narrow, Add::Nothing);
    multiply(&mut work.pack, x.t(), Matrix::new(&*narrow, tokens, rank), to.down, Add::Existing);
    let down = adapter.scaled(adapter.down);
    multiply(&mut work.pack, x, Matrix::new(&down, inputs, rank), narrow, Add::Nothing);
    multiply(&mut work.pack, Matrix::new(&*narrow, tokens, rank).t(), gradient, to.up, Add::Existing);
}
