//! The sum of the gradients of a step's micro-batches, by parameter.

use std::collections::HashMap;

use burn::module::{Module, ModuleVisitor, Param, ParamId};
use burn::optim::GradientsParams;
use burn::tensor::{Device, FloatDType, Gradients, Int, Tensor};
use rayon::prelude::*;

use crate::kernels::bridge::{self, Values, ValuesMut};
use crate::kernels::math::{add_assign, sum_of_squares};

/// Gradients accumulated so far, each on its parameter's device and in 32 bits.
#[derive(Debug, Default)]
pub struct GradientSum {
    sums: GradientsParams,
    /// Gradients of tables of which only some rows were looked up; a parameter is here or in `sums`.
    tables: HashMap<ParamId, Rows>,
}

/// Those rows of a table's gradient that are not zero.
#[derive(Debug)]
pub struct Rows {
    height: usize,
    width: usize,
    place: HashMap<u32, usize>,
    values: Vec<f32>,
}

impl Rows {
    /// Values in a row.
    pub fn width(&self) -> usize {
        self.width
    }

    /// The gradient of a row; `None` where it is zero.
    pub fn row(&self, number: usize) -> Option<&[f32]> {
        let place = *self.place.get(&u32::try_from(number).ok()?)?;
        self.values.get(place * self.width..(place + 1) * self.width)
    }

    fn add(&mut self, ids: &[u32], values: &[f32]) {
        for &id in ids {
            let next = self.place.len();
            self.place.entry(id).or_insert(next);
        }
        // Exactly: doubling would take bytes that a cap may not have.
        self.values.reserve_exact(self.place.len() * self.width - self.values.len());
        self.values.resize(self.place.len() * self.width, 0.0);
        for (id, values) in ids.iter().zip(values.chunks_exact(self.width)) {
            add_assign(&mut self.values[self.place[id] * self.width..][..self.width], values);
        }
    }

    /// The whole table.
    fn dense<const D: usize>(&self) -> Tensor<D> {
        let mut dense = vec![0.0; self.height * self.width];
        for (&id, &place) in &self.place {
            let from = &self.values[place * self.width..][..self.width];
            dense[id as usize * self.width..][..self.width].copy_from_slice(from);
        }
        // Only matrices are tables: D is 2.
        let mut shape = [1; D];
        shape.iter_mut().zip([self.height, self.width]).for_each(|(to, from)| *to = from);
        bridge::tensor(dense, shape, &Device::flex())
    }
}

impl GradientSum {
    /// Adds the gradients that one segment's tape gave, taking them out of the tape.
    pub fn absorb<M: Module>(&mut self, tape: &mut Gradients, segment: &M) {
        segment.visit(&mut Absorb { tape, sums: &mut self.sums });
    }

    /// Adds `values[i]` (`[rows, width]`) to row `ids[i]` of the gradient of an embedding table.
    ///
    /// The table's gradient is written in place: a dense gradient for every micro-batch would cost the bytes of the
    /// whole vocabulary each time.
    pub fn scatter(&mut self, table: &Param<Tensor<2>>, ids: Tensor<1, Int>, values: Tensor<2>) {
        let sum = match self.sums.remove::<2>(table.id) {
            Some(sum) => sum,
            None => {
                let plain = table.val().without_autodiff();
                Tensor::zeros(plain.shape(), &plain.device())
            }
        };
        let sum = sum.select_assign(0, ids, values.cast(FloatDType::F32), burn::tensor::IndexingUpdateOp::Add);
        self.sums.register(table.id, sum);
    }

    /// As [`GradientSum::scatter`] on the CPU: `values` is `[ids, width]`. Rows that no id names take no memory.
    pub(super) fn add_rows(&mut self, table: &Param<Tensor<2>>, ids: &[u32], values: &[f32]) {
        let [height, width] = table.val().dims();
        let rows = self.tables.entry(table.id);
        rows.or_insert_with(|| Rows { height, width, place: HashMap::new(), values: Vec::new() }).add(ids, values);
    }

    /// Makes room for `count` rows of a table's gradient, zeros where no gradient has arrived: what a whole step holds
    /// whose micro-batches have other ids each. Without effect on a gradient that is not kept by rows.
    pub(super) fn widen(&mut self, table: &Param<Tensor<2>>, count: usize) {
        let Some(rows) = self.tables.get_mut(&table.id) else { return };
        let missing = count.min(rows.height).saturating_sub(rows.place.len());
        let absent = (0..rows.height as u32).filter(|id| !rows.place.contains_key(id));
        let filler: Vec<u32> = absent.take(missing).collect();
        rows.add(&filler, &vec![0.0; filler.len() * rows.width]);
    }

    /// Takes a parameter's gradient out to be added to; zeros if there is none yet. Hand it back to
    /// [`GradientSum::close`].
    pub(super) fn open<const D: usize>(&mut self, param: &Param<Tensor<D>>) -> ValuesMut {
        let so_far = self.sums.remove::<D>(param.id).and_then(ValuesMut::of);
        so_far.unwrap_or_else(|| ValuesMut::zeros(param.val().dims()))
    }

    /// Puts back what [`GradientSum::open`] took out.
    pub(super) fn close<const D: usize>(&mut self, param: &Param<Tensor<D>>, values: ValuesMut) {
        self.sums.register(param.id, values.into_tensor::<D>());
    }

    /// The gradient of a parameter, taken out.
    pub fn take<const D: usize>(&mut self, id: ParamId) -> Option<Tensor<D>> {
        self.take_rows(id).map(|rows| rows.dense()).or_else(|| self.sums.remove(id))
    }

    /// The gradient of a table, taken out, where it is kept by rows.
    pub fn take_rows(&mut self, id: ParamId) -> Option<Rows> {
        self.tables.remove(&id)
    }

    /// The gradient of a parameter, shared or copied.
    pub fn get<const D: usize>(&self, id: ParamId) -> Option<Tensor<D>> {
        self.tables.get(&id).map(Rows::dense).or_else(|| self.sums.get(id))
    }

    /// Whether no gradient has arrived yet.
    pub fn is_empty(&self) -> bool {
        self.sums.is_empty() && self.tables.is_empty()
    }

    /// The Euclidean norm over all gradients of `model`; not finite when any of them is not.
    pub fn norm<M: Module>(&self, model: &M) -> f64 {
        let mut visitor = Squares { gradients: self, total: None, on_host: 0.0 };
        model.visit(&mut visitor);
        let on_device = visitor.total.map_or(0.0, |total| f64::from(total.into_scalar::<f32>()));
        (on_device + visitor.on_host).sqrt()
    }
}

struct Absorb<'a> {
    tape: &'a mut Gradients,
    sums: &'a mut GradientsParams,
}

impl ModuleVisitor for Absorb<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let value = param.val();
        if !value.is_require_grad() {
            return;
        }
        let Some(new) = value.grad_remove(self.tape) else { return };
        let sum = match self.sums.remove::<D>(param.id) {
            Some(old) => old + new,
            None => new,
        };
        self.sums.register(param.id, sum);
    }
}

struct Squares<'a> {
    gradients: &'a GradientSum,
    total: Option<Tensor<1>>,
    on_host: f64,
}

impl ModuleVisitor for Squares<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if let Some(rows) = self.gradients.tables.get(&param.id) {
            self.on_host += squares(&rows.values);
            return;
        }
        let Some(gradient) = self.gradients.sums.get::<D>(param.id) else { return };
        if let Some(values) = Values::of(gradient.clone()) {
            self.on_host += squares(values.slice());
            return;
        }
        let squares = gradient.square().sum();
        self.total = Some(match self.total.take() {
            Some(total) => total + squares,
            None => squares,
        });
    }
}

/// Sum of squares, the same whatever the number of threads.
fn squares(values: &[f32]) -> f64 {
    const BLOCK: usize = 1 << 15;
    let blocks: Vec<f64> = values.par_chunks(BLOCK).map(|block| f64::from(sum_of_squares(block))).collect();
    blocks.iter().sum()
}
