//! Filling a model from a checkpoint.

use std::collections::BTreeSet;

use anyhow::{Result, ensure};
use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::tensor::{Tensor, TensorData};

use super::super::Classifier;
use super::super::checkpoint::{Checkpoint, Loaded};
use super::super::config::ModelConfig;
use super::super::views::Trail;
use super::{aliases, hf_name, is_linear_matrix, listed};

/// What loading found out besides the weights.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LoadReport {
    /// Parameters of the head that the checkpoint does not have (or has for other classes): they stay random.
    pub initialised: Vec<String>,
    /// Tensors of the checkpoint that the model has no place for.
    pub unused: Vec<String>,
}

impl LoadReport {
    /// What a person should know about it.
    pub fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        if !self.initialised.is_empty() {
            notes.push(format!("newly initialised, to be trained: {}", listed(&self.initialised)));
        }
        if !self.unused.is_empty() {
            notes.push(format!("in the checkpoint but not used: {}", listed(&self.unused)));
        }
        notes
    }
}

/// Fills a model from a checkpoint.
///
/// # Errors
/// If a tensor of the encoder is missing or has another shape (every such name is listed), or can't be read.
pub fn load(model: Classifier, config: &ModelConfig, checkpoint: &mut Checkpoint) -> Result<(Classifier, LoadReport)> {
    let mut loader = Loader::new(config, checkpoint);
    let model = model.map(&mut loader);
    let Loader { used, initialised, missing, error, checkpoint, .. } = loader;
    if let Some(error) = error {
        return Err(error);
    }
    none_missing(&missing)?;
    // Old checkpoints hold the constant 0, 1, 2, … beside the weights.
    let counted = |name: &str| name.ends_with("position_ids");
    let unused = checkpoint.names().filter(|n| !used.contains(*n) && !counted(n)).map(str::to_string).collect();
    Ok((model, LoadReport { initialised, unused }))
}

/// Makes sure that a model could be filled from a checkpoint, without holding a tensor. The values of the tensors are not
/// looked at.
///
/// # Errors
/// As [`load`].
pub fn check(config: &ModelConfig, checkpoint: &mut Checkpoint) -> Result<()> {
    let mut loader = Loader::new(config, checkpoint);
    Classifier::outline(config).visit(&mut loader);
    match loader.error {
        Some(error) => Err(error),
        None => none_missing(&loader.missing),
    }
}

fn none_missing(missing: &[String]) -> Result<()> {
    ensure!(missing.is_empty(), "the checkpoint lacks {} tensors of the encoder: {}", missing.len(), listed(missing));
    Ok(())
}

struct Loader<'a> {
    path: Trail,
    config: &'a ModelConfig,
    checkpoint: &'a mut Checkpoint,
    used: BTreeSet<String>,
    initialised: Vec<String>,
    missing: Vec<String>,
    error: Option<anyhow::Error>,
}

impl<'a> Loader<'a> {
    fn new(config: &'a ModelConfig, checkpoint: &'a mut Checkpoint) -> Self {
        let (used, initialised, missing) = (BTreeSet::new(), Vec::new(), Vec::new());
        Loader { path: Trail::default(), config, checkpoint, used, initialised, missing, error: None }
    }

    /// The name of the tensor for the parameter at `path`, or `None` if it stays random.
    fn find(&mut self, path: &str, dims: &[usize]) -> Result<Option<String>> {
        let family = self.config.family;
        let stored: Vec<usize> =
            if is_linear_matrix(path) { dims.iter().rev().copied().collect() } else { dims.to_vec() };
        let found = aliases(family, path).into_iter().find(|name| self.checkpoint.shape(name).is_some());
        let Some(name) = found else {
            let full = hf_name(family, path);
            if path.starts_with("head.") {
                self.initialised.push(full)
            } else {
                self.missing.push(full)
            }
            return Ok(None);
        };
        self.used.insert(name.clone());
        let shape = self.checkpoint.shape(&name).unwrap_or_default().to_vec();
        if shape != stored && path.starts_with("head.classifier") {
            self.initialised.push(format!("{name} (the checkpoint's is for {} classes)", shape.first().unwrap_or(&0)));
            return Ok(None);
        }
        ensure!(shape == stored, "tensor {name} has shape {shape:?}, but config.json makes it {stored:?}");
        Ok(Some(name))
    }

    /// The tensor for the parameter at `path`, or `None` if it stays random.
    fn read(&mut self, path: &str, dims: &[usize]) -> Result<Option<Loaded>> {
        let Some(name) = self.find(path, dims)? else { return Ok(None) };
        let tensor = self.checkpoint.read(&name)?;
        Ok(Some(if is_linear_matrix(path) { transposed(tensor) } else { tensor }))
    }
}

/// Looks for every tensor and reads none.
impl ModuleVisitor for Loader<'_> {
    fn enter_module(&mut self, name: &str, _container: &str) {
        self.path.0.push(name.to_string());
    }

    fn exit_module(&mut self, _name: &str, _container: &str) {
        self.path.0.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if self.error.is_none()
            && let Err(error) = self.find(&self.path.text(), param.lazy_shape().as_slice())
        {
            self.error = Some(error);
        }
    }
}

impl ModuleMapper for Loader<'_> {
    fn enter_module(&mut self, name: &str, _container: &str) {
        self.path.0.push(name.to_string());
    }

    fn exit_module(&mut self, _name: &str, _container: &str) {
        self.path.0.pop();
    }

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        if self.error.is_some() {
            return param;
        }
        let dims = param.lazy_shape();
        match self.read(&self.path.text(), dims.as_slice()) {
            Ok(None) => param,
            Ok(Some(loaded)) => {
                let device = param.lazy_device();
                let value =
                    Tensor::<D>::from_data(TensorData::new(loaded.values, loaded.shape), &device).require_grad();
                Param::initialized(param.id, value)
            }
            Err(error) => {
                self.error = Some(error);
                param
            }
        }
    }
}

/// `[rows, columns]` to `[columns, rows]`.
fn transposed(tensor: Loaded) -> Loaded {
    let &[rows, columns] = tensor.shape.as_slice() else { return tensor };
    let mut values = Vec::with_capacity(tensor.values.len());
    for column in 0..columns {
        values.extend((0..rows).map(|row| tensor.values[row * columns + column]));
    }
    Loaded { shape: vec![columns, rows], values }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transposition_swaps_rows_and_columns() {
        let t = transposed(Loaded { shape: vec![2, 3], values: vec![1.0, 2.0, 3.0, 4.0, 5.0, 6.0] });
        assert_eq!((t.shape, t.values), (vec![3, 2], vec![1.0, 4.0, 2.0, 5.0, 3.0, 6.0]));
    }

    #[test]
    fn a_check_says_what_loading_says_and_holds_no_tensor() {
        use std::path::Path;
        let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
        let device = burn::tensor::Device::flex().autodiff();
        for name in ["tiny-bert", "tiny-distilbert", "tiny-roberta", "variants/bare", "variants/missing"] {
            let folder = fixtures.join(name);
            let own = ModelConfig::from_file(&folder.join("config.json")).unwrap();
            let wider = ModelConfig { intermediate_size: own.intermediate_size + 1, ..own.clone() };
            let classes = own.clone().with_labels((0..2_000).map(|label| label.to_string()).collect());
            for config in [own, wider, classes] {
                let open = || Checkpoint::open(&folder).unwrap();
                let checked = check(&config, &mut open()).map_err(|error| format!("{error:#}"));
                let loaded = load(Classifier::init(&config, 1, &device), &config, &mut open());
                assert_eq!(checked, loaded.map(|_| ()).map_err(|error| format!("{error:#}")), "{name}");
            }
        }
    }
}
