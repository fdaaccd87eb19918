//! Hugging Face checkpoints as Burn modules.
//!
//! * [`config`], [`presets`]: shapes, without tensors;
//! * [`encoder`], [`head`]: the modules, cut into the segments that recomputation needs;
//! * [`fused`]: the same arithmetic by fused kernels, on Burn's CPU backend;
//! * [`adapter`]: low-rank adapters beside the projections;
//! * [`pass`]: precision, dropout masks and padding of one forward pass;
//! * [`source`]: presets and folders;
//! * [`weights`]: tensor names and files, in and out;
//! * [`views`]: parameters as bytes, without a second copy;
//! * [`hub`]: folders by name, from the Hugging Face hub.

pub mod adapter;
pub mod checkpoint;
pub mod config;
pub mod content;
pub mod encoder;
pub mod fused;
pub mod head;
pub mod hub;
pub mod pass;
pub mod presets;
pub mod source;
pub mod views;
pub mod weights;

use burn::module::Module;
use burn::tensor::{Device, Tensor};

pub use config::{Family, ModelConfig};
use encoder::{Embeddings, EncoderLayer};
use head::Head;
use pass::{Inputs, Pass};

/// Version of Burn, as Cargo.toml pins it.
pub const BURN_VERSION: &str = "0.22.1";

/// An encoder with a classification head: the parameters, in segments.
#[derive(Module, Debug)]
pub struct Classifier {
    /// First segment.
    pub embeddings: Embeddings,
    /// L segments.
    pub layers: Vec<EncoderLayer>,
    /// Last segment.
    pub head: Head,
}

impl Classifier {
    /// Random weights drawn from `seed`, on `device` (with autodiff if the device has it).
    pub fn init(config: &ModelConfig, seed: u64, device: &Device) -> Self {
        device.seed(seed);
        weights::with_stable_ids(Self::lazy(config, device))
    }

    /// A model whose parameters have shapes and no values: no memory is held until one is asked for.
    fn outline(config: &ModelConfig) -> Self {
        Self::lazy(config, &Device::flex())
    }

    fn lazy(config: &ModelConfig, device: &Device) -> Self {
        Classifier {
            embeddings: Embeddings::init(config, device),
            layers: (0..config.layers).map(|_| EncoderLayer::init(config, device)).collect(),
            head: Head::init(config, device),
        }
    }

    /// Logits `[batch, classes]` in 32 bits, every segment in one go.
    ///
    /// Without a tape and without dropout, the CPU backend takes its fused kernels.
    pub fn forward(&self, inputs: &Inputs, config: &ModelConfig, pass: Pass) -> Tensor<2> {
        if pass.dropout.is_none()
            && !self.head.dense.weight.val().is_autodiff()
            && let Some(logits) = fused::evaluate(self, config, &inputs.packed, pass.precision)
        {
            return logits;
        }
        let mut hidden = self.embeddings.forward(inputs, config, pass);
        for layer in &self.layers {
            hidden = layer.forward(hidden, &inputs.mask, config, pass);
        }
        self.head.forward(hidden, config, pass)
    }
}
