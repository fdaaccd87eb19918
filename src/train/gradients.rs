//! The sum of the gradients of a step's micro-batches, by parameter.

use burn::module::{Module, ModuleVisitor, Param, ParamId};
use burn::optim::GradientsParams;
use burn::tensor::{FloatDType, Gradients, Int, Tensor};

/// Gradients accumulated so far, each on its parameter's device and in 32 bits.
#[derive(Debug, Default)]
pub struct GradientSum {
    sums: GradientsParams,
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

    /// The gradient of a parameter, taken out.
    pub fn take<const D: usize>(&mut self, id: ParamId) -> Option<Tensor<D>> {
        self.sums.remove(id)
    }

    /// The gradient of a parameter, shared.
    pub fn get<const D: usize>(&self, id: ParamId) -> Option<Tensor<D>> {
        self.sums.get(id)
    }

    /// Whether no gradient has arrived yet.
    pub fn is_empty(&self) -> bool {
        self.sums.is_empty()
    }

    /// The Euclidean norm over all gradients of `model`; not finite when any of them is not.
    pub fn norm<M: Module>(&self, model: &M) -> f64 {
        let mut visitor = Squares { sums: &self.sums, total: None };
        model.visit(&mut visitor);
        visitor.total.map_or(0.0, |total| total.into_scalar::<f32>() as f64).sqrt()
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
    sums: &'a GradientsParams,
    total: Option<Tensor<1>>,
}

impl ModuleVisitor for Squares<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let Some(gradient) = self.sums.get::<D>(param.id) else { return };
        let squares = gradient.square().sum();
        self.total = Some(match self.total.take() {
            Some(total) => total + squares,
            None => squares,
        });
    }
}
