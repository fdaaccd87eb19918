//! What a user says about a model of their own.

use anyhow::{Result, ensure};
use burn::tensor::Device;

use crate::plan::{Knobs, OptimizerKind, Precision};
use crate::study::search_space::{DensityAxis, MicroAxis, SearchSpace};
use crate::worker::training::Training;

/// A model that can be built at any combination of the knobs it declares, to be trained for a few steps.
///
/// The value itself holds what does not depend on the knobs: the shape of the model, and data, which lies on the host.
/// All of it is there before memory is counted.
pub trait Workload {
    /// The model under training.
    type Training: Training;

    /// A short name: the study's folder and `best.toml` carry it.
    fn name(&self) -> String;

    /// Everything that measurements depend on besides the knobs: width, depth, the size of a sample. Trials of one
    /// identity are never taken for those of another; where all of it is fields of the workload, its `Debug` text is one.
    fn identity(&self) -> String {
        String::new()
    }

    /// Which knobs the model understands. The micro-batch alone, unless this says more.
    fn axes(&self) -> Axes {
        Axes::default()
    }

    /// Builds the model, its optimizer and an empty gradient. Memory is counted, and capped, from here on.
    ///
    /// # Errors
    /// If it can't be built: the probe then counts as crashed.
    fn build(&self, setup: &Setup) -> Result<Self::Training>;
}

impl<W: Workload> Workload for &W {
    type Training = W::Training;

    fn name(&self) -> String {
        W::name(self)
    }

    fn identity(&self) -> String {
        W::identity(self)
    }

    fn axes(&self) -> Axes {
        W::axes(self)
    }

    fn build(&self, setup: &Setup) -> Result<W::Training> {
        W::build(self, setup)
    }
}

/// What a model is built for.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The combination to try. Knobs that the model did not declare stay as they are in every trial.
    pub knobs: Knobs,
    /// The device, with autodiff: parameters belong here. Inputs may be made on it, too.
    pub device: Device,
    /// Samples per optimizer step.
    pub effective_batch: usize,
    /// Seed of weights and random content: the same in every trial of a study.
    pub seed: u64,
}

/// The knobs that a model understands; those not named are not searched.
///
/// ```
/// use autofit::{Axes, Precision};
///
/// let only_micro_batch = Axes::default();
/// let more = Axes::default().precisions([Precision::Fp32, Precision::Bf16]).checkpoint_layers(12);
/// # assert_ne!(more, only_micro_batch);
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Axes {
    micro_batches: MicroAxis,
    precisions: Vec<Precision>,
    layers: usize,
    optimizers: Vec<OptimizerKind>,
}

impl Default for Axes {
    /// Every micro-batch worth trying, in 32 bits, with nothing recomputed.
    fn default() -> Self {
        Axes {
            micro_batches: MicroAxis::Auto,
            precisions: vec![Precision::Fp32],
            layers: 0,
            optimizers: vec![OptimizerKind::AdamW],
        }
    }
}

impl Axes {
    /// The model computes in any of these, by [`Knobs::precision`]. Among equals the safest is preferred.
    pub fn precisions(mut self, precisions: impl IntoIterator<Item = Precision>) -> Self {
        self.precisions = distinct(precisions);
        self
    }

    /// The model has `layers` layers of which any number, [`Knobs::checkpoint_layers`], can drop their activations and
    /// compute them again in backward. More of them must never need more memory.
    pub fn checkpoint_layers(mut self, layers: usize) -> Self {
        self.layers = layers;
        self
    }

    /// The model can be trained with any of these, by [`Knobs::optimizer`]. Another optimizer is another training:
    /// offer a choice only where each would do. Without this call the model has an optimizer of its own, and the knob
    /// says nothing.
    pub fn optimizers(mut self, optimizers: impl IntoIterator<Item = OptimizerKind>) -> Self {
        self.optimizers = distinct(optimizers);
        self
    }

    /// Only these micro-batches, in samples, each lowered to the largest part that it really leads to. Without this
    /// call all that matter are considered: `ceil(effective / k)` for every `k`.
    pub fn micro_batches(mut self, sizes: impl IntoIterator<Item = usize>) -> Self {
        self.micro_batches = MicroAxis::Sizes(distinct(sizes));
        self
    }

    /// Layers that can be recomputed, L; 0 if none.
    pub fn layers(&self) -> usize {
        self.layers
    }

    /// The same as a search space.
    pub(super) fn space(&self, name: &str) -> Result<SearchSpace> {
        let sizes = match &self.micro_batches {
            MicroAxis::Auto => &[1][..],
            MicroAxis::Sizes(sizes) => sizes,
        };
        ensure!(!sizes.is_empty(), "{name}: Axes::micro_batches was given no size");
        ensure!(
            !sizes.contains(&0),
            "{name}: Axes::micro_batches was given 0: a micro-batch holds at least one sample"
        );
        ensure!(!self.precisions.is_empty(), "{name}: Axes::precisions was given no precision");
        ensure!(!self.optimizers.is_empty(), "{name}: Axes::optimizers was given no optimizer");
        Ok(SearchSpace {
            name: name.to_string(),
            precision: self.precisions.clone(),
            micro_batch: self.micro_batches.clone(),
            checkpoint_layers: if self.layers == 0 { DensityAxis::Counts(vec![0]) } else { DensityAxis::All },
            optimizer: self.optimizers.clone(),
            frozen_layers: vec![None],
            lora_rank: vec![None],
        })
    }
}

fn distinct<T: PartialEq>(values: impl IntoIterator<Item = T>) -> Vec<T> {
    let mut kept = Vec::new();
    for value in values {
        if !kept.contains(&value) {
            kept.push(value);
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_not_offered_are_not_searched() {
        let space = Axes::default().space("mine").unwrap();
        assert_eq!(space.densities(1), [0]);
        assert_eq!((space.precision, space.optimizer), (vec![Precision::Fp32], vec![OptimizerKind::AdamW]));
        assert_eq!((space.frozen_layers, space.lora_rank), (vec![None], vec![None]));
        let all = Axes::default().checkpoint_layers(2).precisions([Precision::Bf16, Precision::Fp32, Precision::Bf16]);
        let space = all.micro_batches([8, 3, 8]).space("mine").unwrap();
        assert_eq!(space.densities(2), [0, 1, 2]);
        assert_eq!(space.precision, [Precision::Bf16, Precision::Fp32]);
        assert_eq!(space.micro_batches(8).unwrap(), [3, 8]);
    }

    #[test]
    fn an_axis_without_values_is_refused_by_name() {
        for (axes, words) in [
            (Axes::default().micro_batches([]), "micro_batches was given no size"),
            (Axes::default().micro_batches([4, 0]), "at least one sample"),
            (Axes::default().precisions([]), "precisions was given no precision"),
            (Axes::default().optimizers([]), "optimizers was given no optimizer"),
        ] {
            let error = axes.space("mine").unwrap_err().to_string();
            assert!(error.contains("mine") && error.contains(words), "{error}");
        }
    }
}
