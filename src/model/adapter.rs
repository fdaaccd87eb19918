//! Low-rank adapters (LoRA; Hu et al. 2021, arXiv:2106.09685): `x·W` becomes `x·W + α/r · (x·A)·B` with `W` left as it
//! is.
//!
//! As `peft` has it for BERT, DistilBERT and RoBERTa: on the query and value projections of every layer, `A` drawn from
//! Kaiming's uniform distribution, `B` zero, no dropout of their own. The head is trained as a whole; of the encoder,
//! nothing else is. A saved model has its adapters merged into the projections.

use burn::module::Module;
use burn::nn::{Initializer, Linear, LinearConfig};
use burn::tensor::{Device, Tensor};

use super::encoder::{EncoderLayer, apply_linear};
use super::pass::Pass;
use super::{Classifier, weights};
use crate::plan::LORA_ALPHA;

/// The two small matrices beside a projection.
#[derive(Module, Debug)]
pub struct Adapter {
    /// A, `[inputs, rank]`.
    pub down: Linear,
    /// B, `[rank, outputs]`.
    pub up: Linear,
}

impl Adapter {
    /// An adapter that changes nothing yet.
    fn init(projection: &Linear, rank: usize, device: &Device) -> Self {
        let [inputs, outputs] = projection.weight.val().dims();
        // PyTorch's kaiming_uniform_ with a = √5, as peft calls it: bounds of 1 / √inputs.
        let bound = (inputs as f64).powf(-0.5);
        let linear = |inputs: usize, outputs: usize, initializer: Initializer| {
            LinearConfig::new(inputs, outputs).with_bias(false).with_initializer(initializer).init(device)
        };
        Adapter {
            down: linear(inputs, rank, Initializer::Uniform { min: -bound, max: bound }),
            up: linear(rank, outputs, Initializer::Zeros),
        }
    }

    /// r.
    pub fn rank(&self) -> usize {
        self.up.weight.val().dims()[0]
    }

    /// α / r.
    pub fn scale(&self) -> f64 {
        LORA_ALPHA / self.rank() as f64
    }

    /// What is added to the projection of `x`.
    pub(super) fn forward<const D: usize>(&self, x: Tensor<D>, pass: Pass) -> Tensor<D> {
        apply_linear(&self.up, apply_linear(&self.down, x, pass), pass) * self.scale()
    }

    /// What is added to the projection's matrix, `[inputs, outputs]`.
    pub(super) fn product(&self) -> Tensor<2> {
        let plain = |linear: &Linear| linear.weight.val().without_autodiff();
        plain(&self.down).matmul(plain(&self.up)) * self.scale()
    }
}

impl EncoderLayer {
    fn with_adapters(self, rank: usize, device: &Device) -> Self {
        let (query, value) = (Adapter::init(&self.query, rank, device), Adapter::init(&self.value, rank, device));
        EncoderLayer { query_adapter: Some(query), value_adapter: Some(value), ..self }
    }
}

impl Classifier {
    /// Freezes embeddings and encoder and puts adapters beside the projections of all layers but the lowest `frozen`.
    /// A model that has adapters keeps them.
    pub fn with_adapters(self, rank: usize, frozen: usize, seed: u64) -> Self {
        if self.layers.iter().any(|layer| layer.query_adapter.is_some()) {
            return self;
        }
        let device = self.head.dense.weight.val().device();
        device.seed(seed);
        let layers = self.layers.into_iter().map(Module::no_grad).enumerate();
        let layers = layers.map(|(number, layer)| match number {
            number if number < frozen => layer,
            _ => layer.with_adapters(rank, &device),
        });
        let model = Classifier { embeddings: self.embeddings.no_grad(), layers: layers.collect(), head: self.head };
        weights::with_stable_ids(model)
    }
}
