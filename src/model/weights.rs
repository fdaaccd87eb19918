//! Weights in and out: our parameter paths against Hugging Face's tensor names.
//!
//! A linear layer is stored `[outputs, inputs]` by PyTorch and `[inputs, outputs]` by Burn, so matrices of linear
//! layers are transposed on the way; embeddings are not.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result};
use burn::module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId};
use burn::tensor::Tensor;

use super::Classifier;
use super::adapter::Adapter;
use super::config::{Family, ModelConfig};
use super::views::{self, TensorView, Trail};

mod load;

pub use load::{LoadReport, check, load};

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

/// Names for a message, the first dozen of them.
pub fn listed(names: &[String]) -> String {
    const SHOWN: usize = 12;
    let head = names.iter().take(SHOWN).cloned().collect::<Vec<_>>().join(", ");
    if names.len() > SHOWN { format!("{head} and {} more", names.len() - SHOWN) } else { head }
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
}
