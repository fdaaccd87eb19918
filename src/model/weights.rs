//! Weights in and out: our parameter paths against Hugging Face's tensor names.
//!
//! A linear layer is stored `[outputs, inputs]` by PyTorch and `[inputs, outputs]` by Burn, so matrices of linear
//! layers are transposed on the way; embeddings are not.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use burn::module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId};
use burn::tensor::{Tensor, TensorData};

use super::Classifier;
use super::adapter::Adapter;
use super::checkpoint::{Checkpoint, Loaded};
use super::config::{Family, ModelConfig};
use super::views::{self, TensorView, Trail};

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

/// Our layer names with BERT's (RoBERTa's) and DistilBERT's.
const LAYER_NAMES: [(&str, &str, &str); 8] = [
    ("query", "attention.self.query", "attention.q_lin"),
    ("key", "attention.self.key", "attention.k_lin"),
    ("value", "attention.self.value", "attention.v_lin"),
    ("attention_output", "attention.output.dense", "attention.out_lin"),
    ("attention_norm", "attention.output.LayerNorm", "sa_layer_norm"),
    ("intermediate", "intermediate.dense", "ffn.lin1"),
    ("output", "output.dense", "ffn.lin2"),
    ("output_norm", "output.LayerNorm", "output_layer_norm"),
];

/// Hugging Face's name of the parameter at one of our paths, with the family's prefix: what a model with a
/// classification head calls it.
pub fn hf_name(family: Family, path: &str) -> String {
    let prefix = family.model_type();
    let (owner, leaf) = path.rsplit_once('.').unwrap_or(("", path));
    let leaf = match leaf {
        "gamma" => "weight",
        "beta" => "bias",
        other => other,
    };
    let distil = family == Family::DistilBert;
    let owner = match owner.split('.').collect::<Vec<_>>().as_slice() {
        ["embeddings", "norm"] => format!("{prefix}.embeddings.LayerNorm"),
        ["embeddings", table] => format!("{prefix}.embeddings.{table}_embeddings"),
        ["layers", number, layer] => {
            let name = LAYER_NAMES.iter().find(|row| row.0 == *layer).map(|row| if distil { row.2 } else { row.1 });
            let stack = if distil { "transformer.layer" } else { "encoder.layer" };
            format!("{prefix}.{stack}.{number}.{}", name.unwrap_or(layer))
        }
        ["head", part] => match (family, *part) {
            (Family::Bert, "dense") => format!("{prefix}.pooler.dense"),
            (Family::DistilBert, "dense") => "pre_classifier".to_string(),
            (Family::Roberta, "dense") => "classifier.dense".to_string(),
            (Family::Roberta, _) => "classifier.out_proj".to_string(),
            _ => "classifier".to_string(),
        },
        _ => owner.to_string(),
    };
    format!("{owner}.{leaf}")
}

/// The names under which a checkpoint may hold a tensor: with and without the family's prefix, and LayerNorm's of
/// the first TensorFlow exports.
fn aliases(family: Family, path: &str) -> Vec<String> {
    let full = hf_name(family, path);
    let short = full.strip_prefix(family.model_type()).and_then(|rest| rest.strip_prefix('.')).map(str::to_string);
    let mut names: Vec<String> = std::iter::once(full).chain(short).collect();
    if path.ends_with("gamma") || path.ends_with("beta") {
        let old: Vec<String> = names
            .iter()
            .map(|n| n.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"))
            .collect();
        names.extend(old);
    }
    names
}

/// Whether PyTorch stores the parameter at this path transposed: the matrix of a linear layer.
fn is_linear_matrix(path: &str) -> bool {
    path.ends_with(".weight") && !path.starts_with("embeddings.")
}

/// Fills a model from a checkpoint.
///
/// # Errors
/// If a tensor of the encoder is missing or has another shape (every such name is listed), or can't be read.
pub fn load(model: Classifier, config: &ModelConfig, checkpoint: &mut Checkpoint) -> Result<(Classifier, LoadReport)> {
    let mut loader = Loader {
        path: Trail::default(),
        config,
        checkpoint,
        used: BTreeSet::new(),
        initialised: vec![],
        missing: vec![],
        error: None,
    };
    let model = model.map(&mut loader);
    let Loader { used, initialised, missing, error, checkpoint, .. } = loader;
    if let Some(error) = error {
        return Err(error);
    }
    if !missing.is_empty() {
        bail!("the checkpoint lacks {} tensors of the encoder: {}", missing.len(), listed(&missing));
    }
    // Old checkpoints hold the constant 0, 1, 2, … beside the weights.
    let counted = |name: &str| name.ends_with("position_ids");
    let unused = checkpoint.names().filter(|n| !used.contains(*n) && !counted(n)).map(str::to_string).collect();
    Ok((model, LoadReport { initialised, unused }))
}

/// Names for a message, the first dozen of them.
pub fn listed(names: &[String]) -> String {
    const SHOWN: usize = 12;
    let head = names.iter().take(SHOWN).cloned().collect::<Vec<_>>().join(", ");
    if names.len() > SHOWN { format!("{head} and {} more", names.len() - SHOWN) } else { head }
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

impl Loader<'_> {
    /// The tensor for the parameter at `path`, or `None` if it stays random.
    fn find(&mut self, path: &str, dims: &[usize]) -> Result<Option<Loaded>> {
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
        let mut tensor = self.checkpoint.read(&name)?;
        if is_linear_matrix(path) {
            tensor = transposed(tensor);
        }
        Ok(Some(tensor))
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
        match self.find(&self.path.text(), dims.as_slice()) {
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

/// Writes `model.safetensors` as `transformers` names and lays out its tensors. Tensors are read from the device
/// one at a time: no second copy of the model is held. Adapters are merged into their projections on the way.
///
/// # Errors
/// If the file can't be written.
pub fn save(model: &Classifier, config: &ModelConfig, file: &Path) -> Result<()> {
    let mut views = Views { path: Trail::default(), family: config.family, adapters: adapters(model), found: vec![] };
    model.visit(&mut views);
    let notes = [("format".to_string(), "pt".to_string())].into();
    views::write(file, &views.found, &notes).with_context(|| format!("can't write {}", file.display()))
}

/// Adapters by the path of the matrix that they belong to.
fn adapters(model: &Classifier) -> BTreeMap<String, Adapter> {
    let named = model.layers.iter().enumerate().flat_map(|(number, layer)| {
        [("query", &layer.query_adapter), ("value", &layer.value_adapter)]
            .into_iter()
            .filter_map(move |(name, adapter)| Some((format!("layers.{number}.{name}.weight"), adapter.clone()?)))
    });
    named.collect()
}

/// Whether the parameter at this path is an adapter's.
fn is_adapters(path: &str) -> bool {
    path.contains("_adapter.")
}

struct Views {
    path: Trail,
    family: Family,
    adapters: BTreeMap<String, Adapter>,
    found: Vec<(String, TensorView)>,
}

impl ModuleVisitor for Views {
    fn enter_module(&mut self, name: &str, _container: &str) {
        self.path.0.push(name.to_string());
    }

    fn exit_module(&mut self, _name: &str, _container: &str) {
        self.path.0.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let path = self.path.text();
        if is_adapters(&path) {
            return;
        }
        let view = match (self.adapters.remove(&path), is_linear_matrix(&path)) {
            (Some(adapter), _) => {
                // Only matrices have adapters: D is 2.
                let value = param.val().without_autodiff();
                let shape = value.dims().into_iter().rev().collect();
                TensorView::read(shape, move || {
                    let merged = value.clone() + adapter.product().reshape(value.dims());
                    merged.transpose().into_data().bytes().to_vec()
                })
            }
            (None, true) => TensorView::transposed(param.val()),
            (None, false) => TensorView::of(param.val()),
        };
        self.found.push((hf_name(self.family, &path), view));
    }
}

/// Gives every parameter an identity derived from its path, so that optimizer state saved by one process finds its
/// parameter in the next.
pub fn with_stable_ids(model: Classifier) -> Classifier {
    struct Rename(Trail);
    impl ModuleMapper for Rename {
        fn enter_module(&mut self, name: &str, _container: &str) {
            self.0.0.push(name.to_string());
        }

        fn exit_module(&mut self, _name: &str, _container: &str) {
            self.0.0.pop();
        }

        fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
            let (_, value, mapper) = param.consume();
            Param::from_mapped_value(ParamId::from(fnv1a(&self.0.text())), value, mapper)
        }
    }
    model.map(&mut Rename(Trail::default()))
}

/// Fowler–Noll–Vo hash, 64 bits: stable across versions, unlike the standard library's hasher.
fn fnv1a(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_transformers() {
        let name = |family, path| hf_name(family, path);
        assert_eq!(name(Family::Bert, "embeddings.word.weight"), "bert.embeddings.word_embeddings.weight");
        assert_eq!(name(Family::Bert, "embeddings.token_type.weight"), "bert.embeddings.token_type_embeddings.weight");
        assert_eq!(
            name(Family::Bert, "layers.3.attention_norm.gamma"),
            "bert.encoder.layer.3.attention.output.LayerNorm.weight"
        );
        assert_eq!(name(Family::Bert, "head.dense.bias"), "bert.pooler.dense.bias");
        assert_eq!(
            name(Family::DistilBert, "layers.0.query.weight"),
            "distilbert.transformer.layer.0.attention.q_lin.weight"
        );
        assert_eq!(
            name(Family::DistilBert, "layers.0.output_norm.beta"),
            "distilbert.transformer.layer.0.output_layer_norm.bias"
        );
        assert_eq!(name(Family::DistilBert, "head.dense.weight"), "pre_classifier.weight");
        assert_eq!(name(Family::Roberta, "head.classifier.weight"), "classifier.out_proj.weight");
        assert!(aliases(Family::Bert, "embeddings.norm.gamma").contains(&"embeddings.LayerNorm.gamma".to_string()));
    }

    #[test]
    fn transposition_swaps_rows_and_columns() {
        let t = transposed(Loaded { shape: vec![2, 3], values: vec![1.0, 2.0, 3.0, 4.0, 5.0, 6.0] });
        assert_eq!((t.shape, t.values), (vec![3, 2], vec![1.0, 4.0, 2.0, 5.0, 3.0, 6.0]));
    }
}
