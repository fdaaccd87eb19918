//! A model and its optimizer's memory into and out of snapshots, one parameter at a time.

use anyhow::{Context, Result};
use burn::module::{Module, ModuleMapper, Param};
use burn::tensor::Tensor;

use super::optimizer::Optimizer;
use super::snapshot::{Opened, Parameter};
use crate::model::{Classifier, views};

/// Everything that a snapshot holds of a model under training.
pub fn parameters(model: &Classifier, optimizer: &Optimizer) -> Vec<Parameter> {
    let all = views::parameters(model).into_iter();
    all.map(|(path, id, value)| Parameter { path, value, memory: optimizer.export(id) }).collect()
}

/// The model with the values of a snapshot; the optimizer remembers what it did then. No second copy of the model is
/// held meanwhile.
///
/// # Errors
/// If the snapshot is not one of this model and optimizer.
pub fn restore<S>(model: Classifier, optimizer: &mut Optimizer, from: &mut Opened<S>) -> Result<Classifier> {
    let name = from.found.path.display().to_string();
    let mut restorer = Restorer { path: Vec::new(), optimizer, from, error: None };
    let model = model.map(&mut restorer);
    match restorer.error {
        Some(error) => Err(error).with_context(|| format!("can't resume from {name}")),
        None => Ok(model),
    }
}

struct Restorer<'a, S> {
    path: Vec<String>,
    optimizer: &'a mut Optimizer,
    from: &'a mut Opened<S>,
    error: Option<anyhow::Error>,
}

impl<S> Restorer<'_, S> {
    fn one<const D: usize>(&mut self, param: &Param<Tensor<D>>) -> Result<Tensor<D>> {
        let path = self.path.join(".");
        let old = param.val();
        let (shape, device) = (old.dims(), old.device());
        drop(old);
        let value = Tensor::from_data(self.from.value(&path, &shape)?, &device);
        if let Some(memory) = self.from.memory(&path)? {
            let plain = device.without_autodiff();
            self.optimizer.import(param.id, D, memory, &plain).with_context(|| path)?;
        }
        Ok(value)
    }
}

impl<S> ModuleMapper for Restorer<'_, S> {
    fn enter_module(&mut self, name: &str, _container: &str) {
        self.path.push(name.to_string());
    }

    fn exit_module(&mut self, _name: &str, _container: &str) {
        self.path.pop();
    }

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        if self.error.is_some() {
            return param;
        }
        match self.one(&param) {
            // What was frozen stays so.
            Ok(value) => Param::initialized(param.id, value.set_require_grad(param.val().is_require_grad())),
            Err(error) => {
                self.error = Some(error);
                param
            }
        }
    }
}
