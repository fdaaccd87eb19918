//! Whether parameters still are numbers: looked at before anything is kept of them.

use anyhow::{Context, Result};
use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::Tensor;

/// The sum over all floating-point parameters of a module, read back from the device; NaN if it has none.
///
/// # Errors
/// If a value can't be read: on an accelerator this is where a failed allocation shows.
pub fn parameter_sum<M: Module>(model: &M) -> Result<f64> {
    struct Sum(Option<Tensor<1>>);
    impl ModuleVisitor for Sum {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let sum = param.val().without_autodiff().sum();
            self.0 = Some(match self.0.take() {
                Some(total) => total + sum,
                None => sum,
            });
        }
    }
    let mut visitor = Sum(None);
    model.visit(&mut visitor);
    match visitor.0 {
        Some(sum) => sum.try_into_scalar::<f32>().map(f64::from).context("reading back the updated parameters"),
        None => Ok(f64::NAN),
    }
}
