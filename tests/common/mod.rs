//! What several test binaries share.
#![allow(dead_code)]

use std::collections::BTreeMap;
use std::io::Write;
use std::path::PathBuf;

use autofit::model::{Classifier, ModelConfig, weights};
use autofit::train::gradients::GradientSum;
use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::{Device, Tensor, TensorData};

/// A real model or data set from the folder that `AUTOFIT_ASSETS` names, or a loud word that the test is skipped.
pub fn asset(name: &str) -> Option<PathBuf> {
    let found =
        std::env::var_os("AUTOFIT_ASSETS").map(|folder| PathBuf::from(folder).join(name)).filter(|p| p.exists());
    if found.is_none() {
        let what = format!("{name} is not there; set AUTOFIT_ASSETS to the folder that scripts/fetch-assets filled");
        // Past the harness, which shows what a test prints only if it fails.
        let _ = writeln!(std::io::stderr(), "SKIPPED: {what}");
    }
    found
}

/// The CPU, with gradients.
pub fn device() -> Device {
    Device::flex().autodiff()
}

/// A small model of one family, whose weights are large enough that nothing is lost in noise.
pub fn tiny_config(family: &str) -> ModelConfig {
    let json = match family {
        "distilbert" => serde_json::json!({"model_type": "distilbert", "vocab_size": 50, "dim": 24, "n_layers": 3,
            "n_heads": 3, "hidden_dim": 40, "max_position_embeddings": 32, "initializer_range": 0.3}),
        "roberta" => serde_json::json!({"model_type": "roberta", "vocab_size": 50, "hidden_size": 24,
            "num_hidden_layers": 3, "num_attention_heads": 3, "intermediate_size": 40, "max_position_embeddings": 34,
            "initializer_range": 0.3}),
        _ => serde_json::json!({"model_type": "bert", "vocab_size": 50, "hidden_size": 24, "num_hidden_layers": 3,
            "num_attention_heads": 3, "intermediate_size": 40, "max_position_embeddings": 32,
            "initializer_range": 0.3}),
    };
    ModelConfig::from_json(&json).expect("a valid configuration").with_labels(vec!["a".into(), "b".into(), "c".into()])
}

/// The model with adapters of which no matrix is zero: a fresh adapter's B is, and with it the gradient of A.
pub fn adapted(model: Classifier, rank: usize, frozen: usize) -> Classifier {
    let mut model = model.with_adapters(rank, frozen, 11);
    for (number, layer) in model.layers.iter_mut().enumerate() {
        for (which, adapter) in [&mut layer.query_adapter, &mut layer.value_adapter].into_iter().enumerate() {
            let Some(adapter) = adapter else { continue };
            let [rows, columns] = adapter.up.weight.val().dims();
            let value = |i: usize| ((i * 7 + number * 3 + which + 1) as f32).sin() / 20.0;
            let data = TensorData::new((0..rows * columns).map(value).collect::<Vec<f32>>(), [rows, columns]);
            let up = adapter.up.weight.clone();
            adapter.up.weight = up.map(|old| Tensor::from_data(data.clone(), &old.device()).require_grad());
        }
    }
    model
}

/// Every parameter of a model by its Hugging Face name, in Hugging Face's layout.
pub fn parameters(model: &Classifier, config: &ModelConfig) -> BTreeMap<String, Vec<f32>> {
    struct Collect<'a> {
        path: Vec<String>,
        config: &'a ModelConfig,
        found: BTreeMap<String, Vec<f32>>,
    }
    impl ModuleVisitor for Collect<'_> {
        fn enter_module(&mut self, name: &str, _: &str) {
            self.path.push(name.into());
        }
        fn exit_module(&mut self, _: &str, _: &str) {
            self.path.pop();
        }
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let path = self.path.join(".");
            let value = param.val().without_autodiff();
            self.found.insert(weights::hf_name(self.config.family, &path), in_hf_layout(&path, value));
        }
    }
    let mut visitor = Collect { path: vec![], config, found: BTreeMap::new() };
    model.visit(&mut visitor);
    visitor.found
}

/// Every gradient that has arrived, by Hugging Face name and in its layout.
pub fn gradients(model: &Classifier, config: &ModelConfig, sum: &GradientSum) -> BTreeMap<String, Vec<f32>> {
    struct Collect<'a> {
        path: Vec<String>,
        config: &'a ModelConfig,
        sum: &'a GradientSum,
        found: BTreeMap<String, Vec<f32>>,
    }
    impl ModuleVisitor for Collect<'_> {
        fn enter_module(&mut self, name: &str, _: &str) {
            self.path.push(name.into());
        }
        fn exit_module(&mut self, _: &str, _: &str) {
            self.path.pop();
        }
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let path = self.path.join(".");
            if let Some(gradient) = self.sum.get::<D>(param.id) {
                self.found.insert(weights::hf_name(self.config.family, &path), in_hf_layout(&path, gradient));
            }
        }
    }
    let mut visitor = Collect { path: vec![], config, sum, found: BTreeMap::new() };
    model.visit(&mut visitor);
    visitor.found
}

fn in_hf_layout<const D: usize>(path: &str, value: Tensor<D>) -> Vec<f32> {
    let linear = D == 2 && path.ends_with(".weight") && !path.starts_with("embeddings.");
    let value = if linear { value.transpose() } else { value };
    value.into_data().iter::<f32>().collect()
}

/// Largest difference of two sets of tensors, all of finite numbers, relative to the largest value of each tensor. The gradient of a
/// key's bias is zero by symmetry, hence nothing but rounding: it is held against the largest value of all.
pub fn worst_relative(a: &BTreeMap<String, Vec<f32>>, b: &BTreeMap<String, Vec<f32>>) -> (f64, String) {
    assert_eq!(a.keys().collect::<Vec<_>>(), b.keys().collect::<Vec<_>>());
    for (name, value) in a.iter().chain(b).flat_map(|(name, values)| values.iter().map(move |value| (name, value))) {
        assert!(value.is_finite(), "{name} holds {value}");
    }
    let largest = |values: &[f32]| values.iter().fold(0f64, |m, &v| m.max(f64::from(v.abs())));
    let overall = a.values().chain(b.values()).fold(0f64, |m, values| m.max(largest(values)));
    let mut worst = (0.0, String::new());
    for (name, x) in a {
        let y = &b[name];
        assert_eq!(x.len(), y.len(), "{name}");
        let by_symmetry_zero = name.ends_with("key.bias") || name.ends_with("k_lin.bias");
        let scale = if by_symmetry_zero { overall } else { largest(x).max(largest(y)).max(1e-12) };
        let difference = x.iter().zip(y).fold(0f64, |m, (&p, &q)| m.max(f64::from((p - q).abs())));
        if difference / scale > worst.0 {
            worst = (difference / scale, name.clone());
        }
    }
    worst
}

/// Norm of the difference of two sets of tensors, relative to the norm of the first.
pub fn relative_norm(a: &BTreeMap<String, Vec<f32>>, b: &BTreeMap<String, Vec<f32>>) -> f64 {
    let sizes = |tensors: &BTreeMap<String, Vec<f32>>| -> Vec<(String, usize)> {
        tensors.iter().map(|(name, values)| (name.clone(), values.len())).collect()
    };
    assert_eq!(sizes(a), sizes(b));
    let square = |x: f32| f64::from(x) * f64::from(x);
    let pairs = || a.iter().flat_map(|(name, x)| x.iter().zip(&b[name]));
    (pairs().map(|(&x, &y)| square(x - y)).sum::<f64>() / pairs().map(|(&x, _)| square(x)).sum::<f64>()).sqrt()
}
