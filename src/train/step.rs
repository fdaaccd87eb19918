//! The training step: the same for a probe and for a run, so that what is measured is what runs.

use std::fmt;

use anyhow::Result;
use burn::tensor::{Device, Tensor};

use super::batch::MicroBatch;
use super::fused;
use super::gradients::GradientSum;
pub use super::loss_scale::{Lesson, LossScale};
use super::objective::Objective;
use super::optimizer::{Optimizer, OptimizerSettings};
use super::recompute::{self, Run, mix};
use super::restore;
use super::snapshot::{Opened, Parameter};
use crate::kernels::layer::Workspace;
use crate::model::{Classifier, ModelConfig};
use crate::plan::{Knobs, Precision};

/// What computes forward and backward.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Engine {
    /// Fused kernels where the device has them (the CPU), else Burn's tape.
    #[default]
    Fused,
    /// Burn's tape everywhere: what the kernels are checked against.
    Tape,
    /// The same on a device that refuses micro-batches of more tokens than this, half-way through, as accelerators do:
    /// by a panic.
    #[cfg(test)]
    Refusing(usize),
}

/// What a training step is told once.
#[derive(Clone, Debug)]
pub struct StepSettings {
    /// Precision, density and what is frozen.
    pub knobs: Knobs,
    /// What is minimised.
    pub objective: Objective,
    /// Weight decay and the like.
    pub optimizer: OptimizerSettings,
    /// Largest Euclidean norm of the whole gradient; larger ones are scaled down to it. `None` never clips.
    pub clip_norm: Option<f64>,
    /// Seed of the dropout masks; `None` switches dropout off.
    pub dropout_seed: Option<u64>,
    /// Where dynamic loss scaling starts; used in fp16 only.
    pub loss_scale: LossScale,
    /// What computes it.
    pub engine: Engine,
}

impl StepSettings {
    /// The usual fine-tuning step at these knobs: AdamW, clipping at 1, dropout on.
    pub fn new(knobs: Knobs, seed: u64) -> Self {
        StepSettings {
            knobs,
            objective: Objective::default(),
            optimizer: OptimizerSettings { kind: knobs.optimizer, ..OptimizerSettings::default() },
            clip_norm: Some(1.0),
            dropout_seed: Some(seed),
            loss_scale: LossScale::default(),
            engine: Engine::default(),
        }
    }
}

/// What one optimizer step did.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepOutcome {
    /// Mean loss over the step's rows.
    pub loss: f64,
    /// Norm of the gradient before clipping.
    pub gradient_norm: f64,
    /// Whether the update was done; not when a gradient under loss scaling was not finite.
    pub updated: bool,
}

/// A step that was refused: its loss or gradient is not finite, and no smaller loss scale would help. The parameters are
/// as they were before it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotFinite {
    /// What is not finite, for a person.
    pub what: String,
}

impl NotFinite {
    fn of(Settled { loss, gradient_norm }: Settled) -> Self {
        NotFinite {
            what: match loss.is_finite() {
                true => format!("the norm of the gradient is {gradient_norm} (the loss is {loss:.4})"),
                false => format!("the loss is {loss}"),
            },
        }
    }
}

impl fmt::Display for NotFinite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)
    }
}

impl std::error::Error for NotFinite {}

/// What [`Learner::settle`] read.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settled {
    /// Mean loss over the step's rows.
    pub loss: f64,
    /// Norm of the gradient before clipping.
    pub gradient_norm: f64,
}

/// A model under training.
#[derive(Debug)]
pub struct Learner {
    /// The parameters; `None` only while they are being updated.
    model: Option<Classifier>,
    /// Shape and arithmetic of the model.
    pub config: ModelConfig,
    /// What every step does.
    pub settings: StepSettings,
    device: Device,
    optimizer: Optimizer,
    pub(super) scaler: Option<LossScale>,
    gradients: GradientSum,
    loss: Option<Tensor<1>>,
    step: u64,
    micro: u64,
    rows: u64,
    /// The kernels' memory, from the first micro-batch of a step to the last.
    work: Workspace,
}

impl Learner {
    /// Takes a model on a device with autodiff, and gives it adapters if the knobs ask for them.
    pub fn new(model: Classifier, config: ModelConfig, settings: StepSettings, device: Device) -> Self {
        let Knobs { lora_rank, frozen_layers, .. } = settings.knobs;
        let model = match lora_rank {
            Some(rank) => {
                let seed = mix(settings.dropout_seed.unwrap_or(0), ADAPTER_SEED);
                model.with_adapters(rank, frozen_layers.unwrap_or(0), seed)
            }
            None => model,
        };
        Learner {
            model: Some(model),
            config,
            device,
            optimizer: Optimizer::new(settings.optimizer),
            scaler: (settings.knobs.precision == Precision::Fp16).then_some(settings.loss_scale),
            settings,
            gradients: GradientSum::default(),
            loss: None,
            step: 0,
            micro: 0,
            rows: 0,
            work: Workspace::default(),
        }
    }

    /// The parameters as they are now.
    pub fn model(&self) -> &Classifier {
        self.model.as_ref().unwrap_or_else(|| unreachable!("the model is only away inside `update`"))
    }

    /// The device of the parameters.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Optimizer steps done.
    pub fn steps(&self) -> u64 {
        self.step
    }

    /// Gradients accumulated since the last update.
    pub fn gradients(&self) -> &GradientSum {
        &self.gradients
    }

    /// Forward and backward of one micro-batch. `total` is the weight of all rows of the optimizer step (their
    /// number, without class weights), by which the step's loss is averaged.
    pub fn accumulate(&mut self, batch: &MicroBatch, total: f64) {
        let run = Run {
            precision: self.settings.knobs.precision,
            checkpoint_layers: self.settings.knobs.checkpoint_layers,
            frozen_layers: self.settings.knobs.frozen_layers,
            lora_rank: self.settings.knobs.lora_rank,
            dropout: self.settings.dropout_seed.map(|seed| mix(seed, self.step)),
            micro: self.micro,
            first_row: self.rows,
        };
        let scale = self.scaler.as_ref().map_or(1.0, |scaler| scaler.scale) / total;
        let mut gradients = std::mem::take(&mut self.gradients);
        let mut work = std::mem::take(&mut self.work);
        let (model, config, objective) = (self.model(), &self.config, &self.settings.objective);
        let loss = match self.settings.engine {
            Engine::Fused => {
                fused::forward_backward(model, config, batch, objective, scale, &run, &mut work, &mut gradients)
            }
            _ => None,
        };
        let loss = loss.unwrap_or_else(|| {
            recompute::forward_backward(model, config, batch, objective, scale, &run, &mut gradients)
        });
        #[cfg(test)]
        if let Engine::Refusing(tokens) = self.settings.engine {
            assert!(batch.inputs.packed.ids.len() <= tokens, "out of device memory allocating 4096 bytes");
        }
        self.gradients = gradients;
        self.work = work;
        let loss = loss * (1.0 / total);
        self.loss = Some(match self.loss.take() {
            Some(sum) => sum + loss,
            None => loss,
        });
        self.micro += 1;
        self.rows += batch.len() as u64;
    }

    /// Unscales and clips what was accumulated, and updates the parameters at this learning rate.
    ///
    /// # Errors
    /// As [`Learner::apply`].
    pub fn update(&mut self, rate: f64) -> Result<StepOutcome, NotFinite> {
        let settled = self.settle();
        self.apply(rate, settled)
    }

    /// Reads loss and gradient norm back from the device: whatever went wrong there while gradients were accumulated
    /// shows here at the latest, with the parameters still untouched.
    pub fn settle(&mut self) -> Settled {
        // The moments' first allocation should not come on top of the kernels' memory.
        self.work = Workspace::default();
        let loss = self.loss.take().map_or(f64::NAN, |sum| f64::from(sum.into_scalar::<f32>()));
        let unscale = self.scaler.as_ref().map_or(1.0, |scaler| 1.0 / scaler.scale);
        Settled { loss, gradient_norm: self.gradients.norm(self.model()) * unscale }
    }

    /// The second half of [`Learner::update`].
    ///
    /// # Errors
    /// If loss or gradient is not finite, unless a smaller loss scale may help. Such an update would make every parameter
    /// NaN, so it is not done: what was accumulated is dropped, and the step has not begun.
    pub fn apply(&mut self, rate: f64, settled: Settled) -> Result<StepOutcome, NotFinite> {
        let Settled { loss, gradient_norm } = settled;
        let unscale = self.scaler.as_ref().map_or(1.0, |scaler| 1.0 / scaler.scale);
        let finite = loss.is_finite() && gradient_norm.is_finite();
        let lesson = match &mut self.scaler {
            Some(scaler) => scaler.learn(finite),
            None if finite => Lesson::Take,
            None => Lesson::Hopeless,
        };
        if lesson == Lesson::Hopeless {
            self.forget();
            return Err(NotFinite::of(settled));
        }
        let gradients = std::mem::take(&mut self.gradients);
        if lesson == Lesson::Take
            && let Some(model) = self.model.take()
        {
            let clip = self.settings.clip_norm.map_or(1.0, |limit| clip_factor(gradient_norm, limit));
            self.model = Some(self.optimizer.step(rate, model, gradients, unscale * clip));
        }
        self.step += 1;
        self.micro = 0;
        self.rows = 0;
        Ok(StepOutcome { loss, gradient_norm, updated: lesson == Lesson::Take })
    }

    /// Makes the gradient of the word table as large as that of a step with `distinct` different token ids.
    pub fn widen_tables(&mut self, distinct: usize) {
        let mut gradients = std::mem::take(&mut self.gradients);
        gradients.widen(&self.model().embeddings.word.weight, distinct);
        self.gradients = gradients;
    }

    /// Drops what was accumulated since the last update, as if the step had not begun.
    pub fn forget(&mut self) {
        self.gradients = GradientSum::default();
        self.work = Workspace::default();
        self.loss = None;
        self.micro = 0;
        self.rows = 0;
    }

    /// The present loss scale, where one is used.
    pub fn loss_scale(&self) -> Option<LossScale> {
        self.scaler
    }

    /// What a snapshot holds of the model and its optimizer.
    pub fn parameters(&self) -> Vec<Parameter> {
        restore::parameters(self.model(), &self.optimizer)
    }

    /// Goes back to where a snapshot was taken, after `step` optimizer steps.
    ///
    /// # Errors
    /// If the snapshot is not one of this model and optimizer; nothing can be trained then.
    pub fn resume<S>(&mut self, from: &mut Opened<S>, step: usize, loss_scale: Option<LossScale>) -> Result<()> {
        let Some(model) = self.model.take() else { unreachable!("the model is only away inside `apply`") };
        self.model = Some(restore::restore(model, &mut self.optimizer, from)?);
        self.step = step as u64;
        self.scaler = self.scaler.map(|fresh| loss_scale.unwrap_or(fresh));
        self.forget();
        Ok(())
    }
}

/// Sets the seed of adapters apart from that of dropout masks.
const ADAPTER_SEED: u64 = 0x6c6f_7261;

/// The seed of dropout masks, apart from the other uses of a run's seed.
pub fn dropout_seed(seed: u64) -> u64 {
    mix(seed, 0x6d61_736b)
}

/// As PyTorch's `clip_grad_norm_`: `min(1, limit / (norm + 1e-6))`. The norm is finite: of NaN, `min` would make 1.
fn clip_factor(norm: f64, limit: f64) -> f64 {
    (limit / (norm + 1e-6)).min(1.0)
}

#[cfg(test)]
mod tests;
