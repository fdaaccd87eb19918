//! The classification head: first token's hidden state → dense → nonlinearity → classifier.

use burn::module::Module;
use burn::nn::Linear;
use burn::tensor::activation::{relu, tanh};
use burn::tensor::{Device, Tensor};

use super::config::{Family, ModelConfig};
use super::encoder::{apply_linear, dense};
use super::pass::Pass;

/// BERT's pooler and classifier, DistilBERT's pre-classifier and classifier, RoBERTa's dense and projection: two
/// matrices with a family's own nonlinearity and dropout between them.
#[derive(Module, Debug)]
pub struct Head {
    /// `[hidden, hidden]`.
    pub dense: Linear,
    /// `[hidden, classes]`.
    pub classifier: Linear,
}

impl Head {
    /// Random weights.
    pub fn init(config: &ModelConfig, device: &Device) -> Self {
        Head {
            dense: dense(config, config.hidden_size, config.hidden_size, device),
            classifier: dense(config, config.hidden_size, config.num_labels(), device),
        }
    }

    /// Hidden states `[batch, length, hidden]` to logits `[batch, classes]` in 32 bits.
    pub fn forward(&self, hidden: Tensor<3>, config: &ModelConfig, pass: Pass) -> Tensor<2> {
        let masks = pass.masks(&hidden.device());
        self.forward_with(hidden, config, pass, |_, x, p| masks.apply(x, p))
    }

    /// As [`Head::forward`], with dropout by `drop(place, x, p)`; the two places are 0 and 1.
    pub fn forward_with(
        &self,
        hidden: Tensor<3>,
        config: &ModelConfig,
        pass: Pass,
        drop: impl Fn(u32, Tensor<2>, f64) -> Tensor<2>,
    ) -> Tensor<2> {
        let first: Tensor<2> = hidden.narrow(1, 0, 1).squeeze_dim(1);
        let first = match config.family {
            Family::Roberta => drop(0, first, config.head_dropout),
            Family::Bert | Family::DistilBert => first,
        };
        let pooled = apply_linear(&self.dense, first, pass);
        let pooled = match config.family {
            Family::DistilBert => relu(pooled),
            Family::Bert | Family::Roberta => tanh(pooled),
        };
        let pooled = drop(1, pooled, config.head_dropout);
        pass.widen(apply_linear(&self.classifier, pooled, pass))
    }
}
