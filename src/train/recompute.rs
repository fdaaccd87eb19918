//! Forward and backward of one micro-batch, segment by segment.
//!
//! The model is a chain of segments: embeddings, L layers, head. Each has a tape of its own that starts at a detached
//! boundary, so that backward can walk the chain from the end, free each tape as it goes, and hand finished gradients
//! over at once. The lowest r layers keep no tape at all: only their input stays, and they run again in backward.
//! (The lowest, because their tapes would live longest; the embeddings always run again, since looking up costs next
//! to nothing.) Dropout masks come from a seed per segment, so a second run repeats the first exactly.

use burn::module::Module;
use burn::tensor::Tensor;

use super::batch::MicroBatch;
use super::gradients::GradientSum;
use super::objective::Objective;
use crate::model::encoder::EncoderLayer;
use crate::model::pass::Pass;
use crate::model::{Classifier, ModelConfig};
use crate::plan::Precision;

/// How one micro-batch is run.
#[derive(Clone, Copy, Debug)]
pub struct Run {
    /// Precision of forward and backward.
    pub precision: Precision,
    /// Layers, from the lowest, that are run again in backward instead of keeping their activations.
    pub checkpoint_layers: usize,
    /// `Some(k)`: the embeddings and the lowest k layers are not trained.
    pub frozen_layers: Option<usize>,
    /// `Some(rank)`: of the encoder, only adapters are trained.
    pub lora_rank: Option<usize>,
    /// Seed of the optimizer step's dropout masks; `None` switches dropout off.
    pub dropout: Option<u64>,
    /// Number of the micro-batch in its optimizer step.
    pub micro: u64,
    /// Rows of the optimizer step that came before this micro-batch.
    pub first_row: u64,
}

/// Segment numbers: 0 for the embeddings, 1 to L for the layers, L + 1 for the head.
const EMBEDDINGS: usize = 0;

impl Run {
    fn pass(&self, segment: usize) -> Pass {
        Pass { precision: self.precision, dropout: self.dropout.map(|seed| mix(mix(seed, self.micro), segment as u64)) }
    }

    pub(super) fn trains_embeddings(&self) -> bool {
        self.frozen_layers.is_none() && self.lora_rank.is_none()
    }

    /// Layers below this one are not trained.
    pub(super) fn first_trained(&self) -> usize {
        self.frozen_layers.unwrap_or(0)
    }
}

/// What a layer leaves behind for backward.
#[allow(clippy::large_enum_variant)] // One a layer: the difference is a few hundred bytes in all.
enum Kept {
    /// Its input: the layer runs again.
    Input(Tensor<3>),
    /// Its tape, from the boundary to the output.
    Tape(Taped),
}

/// A layer that ran with a tape from its detached input.
struct Taped {
    input: Tensor<3>,
    output: Tensor<3>,
}

/// Runs one micro-batch forward and backward, adds its gradients to `sum` and returns the sum of its rows' losses.
///
/// The gradients are those of `scale ×` that sum: the caller chooses the scale so that all micro-batches of a step
/// together give the gradient of the step's mean loss.
pub fn forward_backward(
    model: &Classifier,
    config: &ModelConfig,
    batch: &MicroBatch,
    objective: &Objective,
    scale: f64,
    run: &Run,
    sum: &mut GradientSum,
) -> Tensor<1> {
    let first = run.first_trained();
    let mut hidden = model.embeddings.valid().forward(&batch.inputs, config, run.pass(EMBEDDINGS));
    let mut kept = Vec::with_capacity(model.layers.len());
    for (number, layer) in model.layers.iter().enumerate() {
        let pass = run.pass(number + 1);
        if number < first {
            hidden = layer.valid().forward(hidden, &batch.inputs.mask, config, pass);
        } else if number < run.checkpoint_layers {
            let output = layer.valid().forward(hidden.clone(), &batch.inputs.mask, config, pass);
            kept.push(Kept::Input(hidden));
            hidden = output;
        } else {
            let taped = Taped::run(layer, hidden, batch, config, pass);
            hidden = taped.output.clone().without_autodiff();
            kept.push(Kept::Tape(taped));
        }
    }
    let (loss, mut upstream) = head(model, config, batch, objective, scale, run, hidden, sum);
    for (number, layer) in model.layers.iter().enumerate().skip(first).rev() {
        let taped = match kept.pop() {
            Some(Kept::Tape(taped)) => taped,
            Some(Kept::Input(input)) => Taped::run(layer, input, batch, config, run.pass(number + 1)),
            None => unreachable!("every trained layer left something"),
        };
        upstream = taped.backward(upstream, layer, sum);
    }
    if run.trains_embeddings() {
        embeddings(model, config, batch, run, upstream, sum);
    }
    loss
}

impl Taped {
    fn run(layer: &EncoderLayer, input: Tensor<3>, batch: &MicroBatch, config: &ModelConfig, pass: Pass) -> Self {
        let input = input.autodiff().require_grad();
        let output = layer.forward(input.clone(), &batch.inputs.mask, config, pass);
        Taped { input, output }
    }

    /// Consumes the tape; the gradient of the input is the upstream gradient of the layer below.
    fn backward(self, upstream: Tensor<3>, layer: &EncoderLayer, sum: &mut GradientSum) -> Tensor<3> {
        let mut tape = (self.output * upstream.autodiff()).sum().backward();
        sum.absorb(&mut tape, layer);
        input_gradient(&self.input, &mut tape)
    }
}

/// The gradient of a boundary; zero where nothing depended on it.
fn input_gradient(input: &Tensor<3>, tape: &mut burn::tensor::Gradients) -> Tensor<3> {
    input.grad_remove(tape).unwrap_or_else(|| input.clone().without_autodiff().zeros_like())
}

/// Head and loss, forward and backward: `(loss, gradient of the hidden states)`.
#[allow(clippy::too_many_arguments)]
fn head(
    model: &Classifier,
    config: &ModelConfig,
    batch: &MicroBatch,
    objective: &Objective,
    scale: f64,
    run: &Run,
    hidden: Tensor<3>,
    sum: &mut GradientSum,
) -> (Tensor<1>, Tensor<3>) {
    let hidden = hidden.autodiff().require_grad();
    let logits = model.head.forward(hidden.clone(), config, run.pass(model.layers.len() + 1));
    let loss = objective.loss_sum(logits, &batch.targets);
    let mut tape = (loss.clone() * scale).backward();
    sum.absorb(&mut tape, &model.head);
    (loss.without_autodiff(), input_gradient(&hidden, &mut tape))
}

/// Backward of the embeddings: through dropout and LayerNorm by tape, into the tables by scattering.
fn embeddings(
    model: &Classifier,
    config: &ModelConfig,
    batch: &MicroBatch,
    run: &Run,
    upstream: Tensor<3>,
    sum: &mut GradientSum,
) {
    let part = &model.embeddings;
    let looked_up = part.valid().look_up(&batch.inputs).autodiff().require_grad();
    let output = part.normalise(looked_up.clone(), config, run.pass(EMBEDDINGS));
    let mut tape = (output * upstream.autodiff()).sum().backward();
    sum.absorb(&mut tape, &part.norm);
    let [rows, length, width] = looked_up.dims();
    let gradient: Tensor<2> = input_gradient(&looked_up, &mut tape).reshape([rows * length, width]);
    drop(tape);
    let flat = |ids: &Tensor<2, burn::tensor::Int>| ids.clone().reshape([rows * length]);
    sum.scatter(&part.position.weight, flat(&batch.inputs.positions), gradient.clone());
    if let Some(types) = &part.token_type {
        sum.scatter(&types.weight, flat(&batch.inputs.types), gradient.clone());
    }
    sum.scatter(&part.word.weight, flat(&batch.inputs.ids), gradient);
}

/// A well-spread seed from a seed and a number (SplitMix64's finaliser, Steele, Lea and Flood 2014).
pub fn mix(seed: u64, number: u64) -> u64 {
    let mut z = seed.wrapping_add(number.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
