//! Forward and backward of one micro-batch on Burn's CPU backend, by the fused kernels.
//!
//! The same walk over segments as [`super::recompute`], with three differences: tokens are packed, so padding costs
//! nothing; what a layer leaves behind contains its output, so no input is kept besides; and dropout masks depend on
//! the row's number in the optimizer step, not on the micro-batch, so they too are the same however a step is cut.
//!
//! The top layer computes the first tokens' outputs alone, since the head looks at nothing else, and always keeps its
//! tape: backward begins with it, so running it again would save nothing.

use burn::module::Param;
use burn::tensor::Tensor;

use super::batch::MicroBatch;
use super::gradients::GradientSum;
use super::objective::Objective;
use super::recompute::Run;
use crate::kernels::backward::{LayerGradients, NormGradient, Sinks, backward_into};
use crate::kernels::bridge::{self, Values, ValuesMut};
use crate::kernels::embeddings;
use crate::kernels::layer::{self, Keep, Pass, Saved, Workspace};
use crate::kernels::lora::{self, AdapterSink};
use crate::model::adapter::Adapter;
use crate::model::encoder::EncoderLayer;
use crate::model::fused::{self, EmbeddingParameters, Kinds, LayerParameters, ORDER};
use crate::model::{Classifier, ModelConfig};

/// As [`super::recompute::forward_backward`]; `None`, with nothing done, where the fused kernels can't do it.
#[allow(clippy::too_many_arguments)]
pub(super) fn forward_backward(
    model: &Classifier,
    config: &ModelConfig,
    batch: &MicroBatch,
    objective: &Objective,
    scale: f64,
    run: &Run,
    work: &mut Workspace,
    sum: &mut GradientSum,
) -> Option<Tensor<1>> {
    let layers = model.layers.iter().map(LayerParameters::of).collect::<Option<Vec<_>>>()?;
    let embeddings = EmbeddingParameters::of(&model.embeddings, config)?;
    if layers.is_empty() || !fused::has_first_tokens(&batch.inputs.packed) {
        return None;
    }
    let mut step = Step { model, config, batch, run, rows: run.row_numbers(batch), layers, embeddings, work };
    let (first, kept) = step.forward();
    let (loss, upstream) = step.head(first, objective, scale, sum);
    step.backward(kept, upstream, sum);
    Some(loss)
}

struct Step<'a> {
    model: &'a Classifier,
    config: &'a ModelConfig,
    batch: &'a MicroBatch,
    run: &'a Run,
    /// Numbers of the rows in the optimizer step.
    rows: Vec<u64>,
    layers: Vec<LayerParameters>,
    embeddings: EmbeddingParameters,
    work: &'a mut Workspace,
}

impl Step<'_> {
    fn tokens(&self) -> embeddings::Tokens<'_> {
        fused::tokens(&self.batch.inputs.packed, &self.rows)
    }

    fn embed(&self) -> Vec<f32> {
        let dropout = fused::dropout(self.config, self.run.dropout);
        embeddings::forward(&self.embeddings.tables(), &self.tokens(), dropout)
    }

    fn layer(&mut self, number: usize, x: &[f32], keep: Keep) -> (Vec<f32>, Option<Saved>) {
        let rows = fused::tokens(&self.batch.inputs.packed, &self.rows).rows;
        let pass = self.pass(number, rows);
        let shape = fused::shape(self.config);
        let effective = self.layers[number].effective(self.work);
        layer::forward(self.work, &shape, &effective.weights(), &pass, x, keep)
    }

    fn pass<'a>(&self, number: usize, rows: layer::Rows<'a>) -> Pass<'a> {
        Pass {
            rows,
            layer: number,
            dropout: fused::dropout(self.config, self.run.dropout),
            outputs: fused::outputs(number, self.layers.len()),
            storage: fused::storage(self.run.precision),
        }
    }

    /// The rows' first tokens behind the last layer, `[rows, 1, d]`, and what the layers left, from the one below the
    /// first trained one (if there is one) to the top.
    fn forward(&mut self) -> (Tensor<3>, Vec<Saved>) {
        let (first, count) = (self.run.first_trained(), self.layers.len());
        let mut hidden = self.embed();
        let mut kept = Vec::with_capacity(count);
        for number in 0..count {
            let keep = match number {
                n if n + 1 < first => Keep::Nothing,
                n if n < first => Keep::Output,
                n if n < self.run.checkpoint_layers && n + 1 < count => Keep::Output,
                _ => Keep::Tape,
            };
            let (output, saved) = self.layer(number, &hidden, keep);
            hidden = output;
            kept.extend(saved);
        }
        let device = self.model.head.dense.weight.val().device();
        (bridge::tensor(hidden, [self.rows.len(), 1, self.config.hidden_size], &device), kept)
    }

    /// Head and loss, forward and backward: `(loss, gradient of the last layer's output)`, `[rows, d]`.
    fn head(
        &self,
        first: Tensor<3>,
        objective: &Objective,
        scale: f64,
        sum: &mut GradientSum,
    ) -> (Tensor<1>, Vec<f32>) {
        let first = first.autodiff().require_grad();
        let logits = fused::head(&self.model.head, first.clone(), self.config, self.run.dropout, &self.rows);
        let loss = objective.loss_sum(logits, &self.batch.targets);
        let mut tape = (loss.clone() * scale).backward();
        sum.absorb(&mut tape, &self.model.head);
        let upstream = match first.grad_remove(&mut tape).and_then(Values::of) {
            Some(gradient) => gradient.slice().to_vec(),
            None => vec![0.0; self.rows.len() * self.config.hidden_size],
        };
        (loss.without_autodiff(), upstream)
    }

    fn backward(&mut self, mut kept: Vec<Saved>, mut upstream: Vec<f32>, sum: &mut GradientSum) {
        for number in (self.run.first_trained()..self.layers.len()).rev() {
            let Some(saved) = kept.pop() else { unreachable!("every trained layer left something") };
            let input = match kept.last() {
                Some(below) => below.output(self.layers[number - 1].own().output_norm),
                None => self.embed(),
            };
            let tape = if saved.is_tape() {
                saved
            } else {
                drop(saved);
                match self.layer(number, &input, Keep::Tape).1 {
                    Some(tape) => tape,
                    None => unreachable!("a tape was asked for"),
                }
            };
            let rows = fused::tokens(&self.batch.inputs.packed, &self.rows).rows;
            let pass = self.pass(number, rows);
            let (shape, parameters) = (fused::shape(self.config), &self.layers[number]);
            let effective = parameters.effective(self.work);
            let mut places = Places::open(&self.model.layers[number], sum);
            let sinks = places.sinks(parameters.adapters());
            backward_into(self.work, &shape, &effective.weights(), &pass, &input, tape, &mut upstream, sinks);
            places.close(&self.model.layers[number], sum);
        }
        if self.run.trains_embeddings() {
            self.embeddings_backward(upstream, sum);
        }
    }

    fn embeddings_backward(&self, mut upstream: Vec<f32>, sum: &mut GradientSum) {
        let part = &self.model.embeddings;
        let Some(beta) = &part.norm.beta else { unreachable!("found when the parameters were read") };
        let mut places = [sum.open(&part.norm.gamma), sum.open(beta)];
        let [gamma, shift] = places.each_mut().map(ValuesMut::slice_mut);
        let dropout = fused::dropout(self.config, self.run.dropout);
        let norm = NormGradient { gamma, beta: shift };
        embeddings::backward(&self.embeddings.tables(), &self.tokens(), dropout, &mut upstream, norm);
        let [gamma, shift] = places;
        sum.close(&part.norm.gamma, gamma);
        sum.close(beta, shift);
        let packed = &self.batch.inputs.packed;
        sum.add_rows(&part.position.weight, &packed.positions, &upstream);
        if let Some(types) = &part.token_type {
            sum.add_rows(&types.weight, &packed.types, &upstream);
        }
        sum.add_rows(&part.word.weight, &packed.ids, &upstream);
    }
}

impl Run {
    fn row_numbers(&self, batch: &MicroBatch) -> Vec<u64> {
        match batch.inputs.packed.rows.as_slice() {
            [] => (0..batch.len() as u64).map(|row| self.first_row + row).collect(),
            numbers => numbers.to_vec(),
        }
    }
}

/// The gradients of a layer's trained parameters so far, taken out of the sum to be added to.
enum Places {
    /// Of all parameters, in the order of the kernels.
    Whole(Box<[ValuesMut; 16]>),
    /// Of A and B beside the query, and beside the value.
    Adapters(Box<[[ValuesMut; 2]; 2]>),
}

impl Places {
    fn open(layer: &EncoderLayer, sum: &mut GradientSum) -> Self {
        if let Some(adapters) = adapters(layer) {
            return Places::Adapters(Box::new(adapters.map(|a| [sum.open(&a.down.weight), sum.open(&a.up.weight)])));
        }
        let (matrices, vectors) = parameters(layer);
        let (mut matrices, mut vectors) = (matrices.into_iter(), vectors.into_iter());
        Places::Whole(Box::new(ORDER.map(|kind| match kind {
            Kinds::Matrix => sum.open(next(&mut matrices)),
            Kinds::Vector => sum.open(next(&mut vectors)),
        })))
    }

    /// Borrowed for the kernels; `values` are the adapters' own.
    fn sinks<'a>(&'a mut self, values: Option<[lora::Adapter<'a>; 2]>) -> Sinks<'a> {
        match (self, values) {
            (Places::Adapters(places), Some(values)) => {
                let [query, value] = places.as_mut();
                let sink = |adapter: lora::Adapter<'a>, [down, up]: &'a mut [ValuesMut; 2]| {
                    Some(AdapterSink { adapter, down: down.slice_mut(), up: up.slice_mut() })
                };
                Sinks { own: LayerGradients::default(), query: sink(values[0], query), value: sink(values[1], value) }
            }
            (Places::Whole(places), _) => {
                let places = places.each_mut().map(|place| Some(place.slice_mut()));
                Sinks { own: LayerGradients::from_places(places), ..Sinks::default() }
            }
            (Places::Adapters(_), None) => unreachable!("a layer's adapters were read with its parameters"),
        }
    }

    fn close(self, layer: &EncoderLayer, sum: &mut GradientSum) {
        let places = match self {
            Places::Whole(places) => places,
            Places::Adapters(places) => {
                for (adapter, [down, up]) in adapters(layer).into_iter().flatten().zip(*places) {
                    sum.close(&adapter.down.weight, down);
                    sum.close(&adapter.up.weight, up);
                }
                return;
            }
        };
        let (matrices, vectors) = parameters(layer);
        let (mut matrices, mut vectors) = (matrices.into_iter(), vectors.into_iter());
        for (kind, values) in ORDER.into_iter().zip(*places) {
            match kind {
                Kinds::Matrix => sum.close(next(&mut matrices), values),
                Kinds::Vector => sum.close(next(&mut vectors), values),
            }
        }
    }
}

/// The adapters beside the query and the value projection.
fn adapters(layer: &EncoderLayer) -> Option<[&Adapter; 2]> {
    Some([layer.query_adapter.as_ref()?, layer.value_adapter.as_ref()?])
}

fn parameters(layer: &EncoderLayer) -> ([&Param<Tensor<2>>; 6], [&Param<Tensor<1>>; 10]) {
    fused::parameters(layer).unwrap_or_else(|| unreachable!("found when the parameters were read"))
}

fn next<T>(items: &mut impl Iterator<Item = T>) -> T {
    items.next().unwrap_or_else(|| unreachable!("ORDER has as many of each kind"))
}
