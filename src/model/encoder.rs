//! Embeddings and the encoder layer that BERT, DistilBERT and RoBERTa share, as Burn modules.
//!
//! Parameters are held by Burn's own layers; the arithmetic is written out here, since precision, dropout seeds and
//! segment-wise recomputation need a say in it. Normalisation, softmax and sums run in 32 bits whatever the
//! precision.

use burn::module::Module;
use burn::nn::{Embedding, EmbeddingConfig, Initializer, LayerNorm, LayerNormConfig, Linear, LinearConfig};
use burn::tensor::activation::{gelu, gelu_approximate, relu, softmax};
use burn::tensor::module::linear;
use burn::tensor::{Device, Tensor};

use super::adapter::Adapter;
use super::config::{Activation, ModelConfig};
use super::pass::{Inputs, PaddingMask, Pass};

/// Word, position and token-type embeddings, summed and normalised.
#[derive(Module, Debug)]
pub struct Embeddings {
    /// `[vocabulary, hidden]`.
    pub word: Embedding,
    /// `[positions, hidden]`.
    pub position: Embedding,
    /// `[token types, hidden]`; DistilBERT has none.
    pub token_type: Option<Embedding>,
    /// Over the hidden axis.
    pub norm: LayerNorm,
}

impl Embeddings {
    /// Random weights.
    pub fn init(config: &ModelConfig, device: &Device) -> Self {
        let table =
            |rows: usize| EmbeddingConfig::new(rows, config.hidden_size).with_initializer(normal(config)).init(device);
        Embeddings {
            word: table(config.vocab_size),
            position: table(config.max_positions),
            token_type: (config.token_types > 0).then(|| table(config.token_types)),
            norm: norm(config, device),
        }
    }

    /// Token ids to hidden states `[batch, length, hidden]` in the pass's precision.
    pub fn forward(&self, inputs: &Inputs, config: &ModelConfig, pass: Pass) -> Tensor<3> {
        self.normalise(self.look_up(inputs), config, pass)
    }

    /// The sum of the tables' rows, `[batch, length, hidden]` in 32 bits.
    pub fn look_up(&self, inputs: &Inputs) -> Tensor<3> {
        let sum = self.word.forward(inputs.ids.clone()) + self.position.forward(inputs.positions.clone());
        match &self.token_type {
            Some(types) => sum + types.forward(inputs.types.clone()),
            None => sum,
        }
    }

    /// LayerNorm and dropout of the looked-up sum.
    pub fn normalise(&self, sum: Tensor<3>, config: &ModelConfig, pass: Pass) -> Tensor<3> {
        let masks = pass.masks(&sum.device());
        masks.apply(pass.cast(self.norm.forward(sum)), config.hidden_dropout)
    }
}

/// One encoder layer: self-attention and feed-forward block, each followed by residual and LayerNorm.
#[derive(Module, Debug)]
pub struct EncoderLayer {
    /// `[hidden, hidden]`, as the next three.
    pub query: Linear,
    /// Keys.
    pub key: Linear,
    /// Values.
    pub value: Linear,
    /// Projection of the attended values.
    pub attention_output: Linear,
    /// After the attention block's residual.
    pub attention_norm: LayerNorm,
    /// `[hidden, intermediate]`.
    pub intermediate: Linear,
    /// `[intermediate, hidden]`.
    pub output: Linear,
    /// After the feed-forward block's residual.
    pub output_norm: LayerNorm,
    /// Beside the query projection, where adapters are trained.
    pub query_adapter: Option<Adapter>,
    /// Beside the value projection.
    pub value_adapter: Option<Adapter>,
}

impl EncoderLayer {
    /// Random weights.
    pub fn init(config: &ModelConfig, device: &Device) -> Self {
        let (hidden, wide) = (config.hidden_size, config.intermediate_size);
        EncoderLayer {
            query: dense(config, hidden, hidden, device),
            key: dense(config, hidden, hidden, device),
            value: dense(config, hidden, hidden, device),
            attention_output: dense(config, hidden, hidden, device),
            attention_norm: norm(config, device),
            intermediate: dense(config, hidden, wide, device),
            output: dense(config, wide, hidden, device),
            output_norm: norm(config, device),
            query_adapter: None,
            value_adapter: None,
        }
    }

    /// Hidden states to hidden states, both `[batch, length, hidden]` in the pass's precision.
    pub fn forward(&self, x: Tensor<3>, mask: &PaddingMask, config: &ModelConfig, pass: Pass) -> Tensor<3> {
        let masks = pass.masks(&x.device());
        let context = self.attend(&x, mask, config, pass, &masks);
        let attended = masks.apply(apply_linear(&self.attention_output, context, pass), config.hidden_dropout);
        let x = self.attention_norm.forward_in(x + attended, pass);

        let wide = activate(config.activation, apply_linear(&self.intermediate, x.clone(), pass));
        let narrow = masks.apply(apply_linear(&self.output, wide, pass), config.hidden_dropout);
        self.output_norm.forward_in(x + narrow, pass)
    }

    /// Multi-head attention up to, and not including, the output projection.
    fn attend(
        &self,
        x: &Tensor<3>,
        mask: &PaddingMask,
        config: &ModelConfig,
        pass: Pass,
        masks: &super::pass::Masks,
    ) -> Tensor<3> {
        let [batch, length, hidden] = x.dims();
        let width = hidden / config.heads;
        let split = |projection: &Linear, adapter: &Option<Adapter>| {
            let whole = apply_linear(projection, x.clone(), pass);
            let whole = match adapter {
                Some(adapter) => whole + adapter.forward(x.clone(), pass),
                None => whole,
            };
            whole.reshape([batch, length, config.heads, width]).swap_dims(1, 2)
        };
        let (query, value) = (split(&self.query, &self.query_adapter), split(&self.value, &self.value_adapter));
        let key = split(&self.key, &None);
        // Scaling the query costs a tenth of scaling the scores.
        let scores = (query * (width as f64).powf(-0.5)).matmul(key.swap_dims(2, 3));
        let weights = pass.cast(softmax(mask.apply(pass.widen(scores)), 3));
        let context = masks.apply(weights, config.attention_dropout).matmul(value);
        context.swap_dims(1, 2).reshape([batch, length, hidden])
    }
}

/// `x · W + b` with master weights brought to the pass's precision inside the tape, so that their gradients return
/// in 32 bits.
pub(super) fn apply_linear<const D: usize>(layer: &Linear, x: Tensor<D>, pass: Pass) -> Tensor<D> {
    let bias = layer.bias.as_ref().map(|bias| pass.cast(bias.val()));
    linear(x, pass.cast(layer.weight.val()), bias)
}

/// LayerNorm with 32-bit statistics and parameters, whatever the precision of its input.
trait ForwardIn {
    fn forward_in(&self, x: Tensor<3>, pass: Pass) -> Tensor<3>;
}

impl ForwardIn for LayerNorm {
    fn forward_in(&self, x: Tensor<3>, pass: Pass) -> Tensor<3> {
        pass.cast(self.forward(pass.widen(x)))
    }
}

fn activate(activation: Activation, x: Tensor<3>) -> Tensor<3> {
    match activation {
        Activation::Gelu => gelu(x),
        Activation::GeluTanh => gelu_approximate(x),
        Activation::Relu => relu(x),
    }
}

fn normal(config: &ModelConfig) -> Initializer {
    Initializer::Normal { mean: 0.0, std: config.initializer_range }
}

fn norm(config: &ModelConfig, device: &Device) -> LayerNorm {
    LayerNormConfig::new(config.hidden_size).with_epsilon(config.layer_norm_eps).init(device)
}

/// A matrix drawn from the model's normal distribution and a bias of zeros.
pub(super) fn dense(config: &ModelConfig, inputs: usize, outputs: usize, device: &Device) -> Linear {
    let mut layer = LinearConfig::new(inputs, outputs).with_bias(false).with_initializer(normal(config)).init(device);
    layer.bias = Some(Initializer::Zeros.init([outputs], device));
    layer
}
