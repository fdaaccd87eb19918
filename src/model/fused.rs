//! The encoder on Burn's CPU backend by the fused kernels: over packed tokens, without padding and without a tape.
//!
//! Parameters are read where Burn holds them. Whatever does not fit (another backend, a missing bias) gives
//! `None`, and the caller takes the generic path.

use burn::module::Param;
use burn::nn::{LayerNorm, Linear};
use burn::tensor::Tensor;

use super::adapter::Adapter;
use super::config::{Activation, ModelConfig};
use super::encoder::{Embeddings, EncoderLayer};
use super::pass::{Packed, Pass};
use super::{Classifier, head::Head};
use crate::kernels::activation::Activation as Kind;
use crate::kernels::bridge::{self, Values};
use crate::kernels::dropout::{Dropout, Masks, Site, fill_mask};
use crate::kernels::embeddings::{self, Tables, Tokens};
use crate::kernels::layer::{self, Keep, LayerShape, LayerWeights, Norm, Outputs, Rows, Storage, Workspace};
use crate::kernels::lora;
use crate::plan::Precision;

/// In what a precision keeps activations. All arithmetic is in 32 bits.
pub fn storage(precision: Precision) -> Storage {
    match precision {
        Precision::Fp32 => Storage::F32,
        Precision::Bf16 => Storage::Bf16,
        Precision::Fp16 => Storage::F16,
    }
}

/// The shape of every layer.
pub fn shape(config: &ModelConfig) -> LayerShape {
    LayerShape {
        hidden: config.hidden_size,
        heads: config.heads,
        intermediate: config.intermediate_size,
        eps: config.layer_norm_eps as f32,
        activation: match config.activation {
            Activation::Gelu => Kind::Gelu,
            Activation::GeluTanh => Kind::GeluTanh,
            Activation::Relu => Kind::Relu,
        },
    }
}

/// The dropout of one optimizer step.
pub fn dropout(config: &ModelConfig, seed: Option<u64>) -> Option<Dropout> {
    seed.map(|seed| Dropout { seed, hidden: config.hidden_dropout as f32, attention: config.attention_dropout as f32 })
}

/// Every parameter of a layer.
#[derive(Debug)]
pub struct LayerParameters {
    /// In the order of [`LayerWeights::slices`].
    own: [Values; 16],
    /// Beside the query and the value projection.
    adapters: Option<[AdapterParameters; 2]>,
}

impl LayerParameters {
    /// Reads a layer's parameters.
    pub fn of(layer: &EncoderLayer) -> Option<Self> {
        let (matrices, vectors) = parameters(layer)?;
        let mut matrices = matrices.into_iter().map(Values::of_param);
        let mut vectors = vectors.into_iter().map(Values::of_param);
        let mut all = Vec::with_capacity(16);
        for kind in ORDER {
            let next = if kind == Kinds::Matrix { matrices.next() } else { vectors.next() };
            all.push(next??);
        }
        let adapters = match (&layer.query_adapter, &layer.value_adapter) {
            (Some(query), Some(value)) => Some([AdapterParameters::of(query)?, AdapterParameters::of(value)?]),
            _ => None,
        };
        Some(LayerParameters { own: all.try_into().ok()?, adapters })
    }

    /// The layer's own parameters, adapters apart.
    pub fn own(&self) -> LayerWeights<'_> {
        LayerWeights::from_slices(self.own.each_ref().map(Values::slice))
    }

    /// The adapters beside the query and the value projection.
    pub fn adapters(&self) -> Option<[lora::Adapter<'_>; 2]> {
        self.adapters.as_ref().map(|adapters| adapters.each_ref().map(AdapterParameters::adapter))
    }

    /// What the layer computes with: adapters are merged into matrices that live as long as this.
    pub fn effective(&self, work: &mut Workspace) -> Effective<'_> {
        let own = self.own();
        let merged = self.adapters().map(|[query, value]| {
            [lora::merged(work, own.query.weight, query), lora::merged(work, own.value.weight, value)]
        });
        Effective { own, merged }
    }
}

/// The parameters that a layer computes with.
#[derive(Debug)]
pub struct Effective<'a> {
    own: LayerWeights<'a>,
    /// In the place of the query's and the value's matrix.
    merged: Option<[Vec<f32>; 2]>,
}

impl Effective<'_> {
    /// Borrowed for the kernels.
    pub fn weights(&self) -> LayerWeights<'_> {
        let mut weights = self.own;
        if let Some([query, value]) = &self.merged {
            weights.query.weight = query;
            weights.value.weight = value;
        }
        weights
    }
}

/// An adapter's matrices.
#[derive(Debug)]
struct AdapterParameters {
    down: Values,
    up: Values,
    rank: usize,
    scale: f32,
}

impl AdapterParameters {
    fn of(adapter: &Adapter) -> Option<Self> {
        Some(AdapterParameters {
            down: Values::of_param(&adapter.down.weight)?,
            up: Values::of_param(&adapter.up.weight)?,
            rank: adapter.rank(),
            scale: adapter.scale() as f32,
        })
    }

    fn adapter(&self) -> lora::Adapter<'_> {
        lora::Adapter { down: self.down.slice(), up: self.up.slice(), rank: self.rank, scale: self.scale }
    }
}

/// What a place in [`LayerWeights::slices`] holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kinds {
    /// A matrix.
    Matrix,
    /// A vector.
    Vector,
}

/// The kinds of [`LayerWeights::slices`]: four linear maps, a LayerNorm, two linear maps, a LayerNorm.
pub const ORDER: [Kinds; 16] = {
    use Kinds::{Matrix as M, Vector as V};
    [M, V, M, V, M, V, M, V, V, V, M, V, M, V, V, V]
};

type Matrices<'a> = [&'a Param<Tensor<2>>; 6];
type Vectors<'a> = [&'a Param<Tensor<1>>; 10];

/// A layer's matrices and vectors, each in the order of [`LayerWeights::slices`]; `None` where one is missing.
pub fn parameters(layer: &EncoderLayer) -> Option<(Matrices<'_>, Vectors<'_>)> {
    let l = layer;
    let bias = |linear: &'_ Linear| linear.bias.is_some();
    let linears = [&l.query, &l.key, &l.value, &l.attention_output, &l.intermediate, &l.output];
    if !linears.iter().all(|linear| bias(linear)) {
        return None;
    }
    let [q, k, v, a, i, o] = linears;
    let vectors = [
        q.bias.as_ref()?,
        k.bias.as_ref()?,
        v.bias.as_ref()?,
        a.bias.as_ref()?,
        &l.attention_norm.gamma,
        l.attention_norm.beta.as_ref()?,
        i.bias.as_ref()?,
        o.bias.as_ref()?,
        &l.output_norm.gamma,
        l.output_norm.beta.as_ref()?,
    ];
    Some((linears.map(|linear| &linear.weight), vectors))
}

/// Scale and shift of a LayerNorm.
#[derive(Debug)]
pub struct NormParameters {
    gamma: Values,
    beta: Values,
}

impl NormParameters {
    /// Reads a LayerNorm's parameters.
    pub fn of(norm: &LayerNorm) -> Option<Self> {
        Some(NormParameters { gamma: Values::of_param(&norm.gamma)?, beta: Values::of_param(norm.beta.as_ref()?)? })
    }

    /// Borrowed for the kernels.
    pub fn norm(&self) -> Norm<'_> {
        Norm { gamma: self.gamma.slice(), beta: self.beta.slice() }
    }
}

/// The embeddings' parameters.
#[derive(Debug)]
pub struct EmbeddingParameters {
    word: Values,
    position: Values,
    token_type: Option<Values>,
    norm: NormParameters,
    eps: f32,
}

impl EmbeddingParameters {
    /// Reads the embeddings' parameters.
    pub fn of(part: &Embeddings, config: &ModelConfig) -> Option<Self> {
        Some(EmbeddingParameters {
            word: Values::of_param(&part.word.weight)?,
            position: Values::of_param(&part.position.weight)?,
            token_type: match &part.token_type {
                Some(types) => Some(Values::of_param(&types.weight)?),
                None => None,
            },
            norm: NormParameters::of(&part.norm)?,
            eps: config.layer_norm_eps as f32,
        })
    }

    /// Borrowed for the kernels.
    pub fn tables(&self) -> Tables<'_> {
        Tables {
            word: self.word.slice(),
            position: self.position.slice(),
            token_type: self.token_type.as_ref().map(Values::slice),
            norm: self.norm.norm(),
            eps: self.eps,
        }
    }
}

/// The tokens of a micro-batch for the kernels; `ids` number its rows in the optimizer step.
pub fn tokens<'a>(packed: &'a Packed, ids: &'a [u64]) -> Tokens<'a> {
    Tokens {
        ids: &packed.ids,
        positions: &packed.positions,
        types: &packed.types,
        rows: Rows { offsets: &packed.offsets, ids },
    }
}

/// Whether every row has a first token for the head to look at.
pub fn has_first_tokens(packed: &Packed) -> bool {
    packed.offsets.len() > 1 && packed.offsets.is_sorted_by(|a, b| a < b)
}

/// Of which tokens a layer gives the output: the head looks at each row's first token and nothing else.
pub fn outputs(number: usize, layers: usize) -> Outputs {
    if number + 1 == layers { Outputs::First } else { Outputs::All }
}

/// Head with dropout masks that depend on the rows' numbers in the step alone. `hidden` is `[rows, 1, d]` in 32 bits.
pub fn head(head: &Head, hidden: Tensor<3>, config: &ModelConfig, seed: Option<u64>, rows: &[u64]) -> Tensor<2> {
    let pass = Pass::evaluation(Precision::Fp32);
    head.forward_with(hidden, config, pass, |site, x, p| {
        let Some(seed) = seed.filter(|_| p > 0.0) else { return x };
        let masks = Masks::new(seed, usize::MAX, Site::Other(site), p as f32);
        let width = x.dims()[1];
        let mut factors = vec![0.0; rows.len() * width];
        for (&row, factors) in rows.iter().zip(factors.chunks_exact_mut(width)) {
            fill_mask(masks.row(row, 0), factors);
        }
        let factors: Tensor<2> = bridge::tensor(factors, [rows.len(), width], &x.device());
        let factors = if x.is_autodiff() { factors.autodiff() } else { factors };
        x * factors
    })
}

/// Logits `[rows, classes]` in 32 bits, without dropout.
pub fn evaluate(model: &Classifier, config: &ModelConfig, packed: &Packed, precision: Precision) -> Option<Tensor<2>> {
    if model.layers.is_empty() || !has_first_tokens(packed) {
        return None;
    }
    let device = model.head.dense.weight.val().device();
    let ids: Vec<u64> = (0..packed.offsets.len() as u64 - 1).collect();
    let tokens = tokens(packed, &ids);
    let parameters = EmbeddingParameters::of(&model.embeddings, config)?;
    let mut hidden = embeddings::forward(&parameters.tables(), &tokens, None);
    let (mut work, shape) = (Workspace::default(), shape(config));
    for (number, part) in model.layers.iter().enumerate() {
        let parameters = LayerParameters::of(part)?;
        let outputs = outputs(number, model.layers.len());
        let storage = storage(precision);
        let pass = layer::Pass { rows: tokens.rows, layer: number, dropout: None, outputs, storage };
        let effective = parameters.effective(&mut work);
        hidden = layer::forward(&mut work, &shape, &effective.weights(), &pass, &hidden, Keep::Nothing).0;
    }
    let first = bridge::tensor(hidden, [ids.len(), 1, config.hidden_size], &device);
    Some(head(&model.head, first, config, None, &ids))
}
