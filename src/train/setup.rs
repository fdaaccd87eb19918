//! What a specification means for a run: how many steps, at which rate, with which objective.

use super::objective::Objective;
use super::optimizer::OptimizerSettings;
use super::resume::{Clock, State};
use super::schedule::Schedule;
use super::spec::{Duration, Hyper, TrainSpec};
use super::step::{self, StepSettings};
use crate::data::corpus::Targets;
use crate::data::order::{self, LastStep};

/// A run before its first step.
pub(super) fn fresh(spec: &TrainSpec, rows: u64, total_steps: usize) -> State {
    State {
        spec: spec.clone(),
        rows,
        total_steps,
        step: 0,
        loss_scale: None,
        clock: Clock::default(),
        scores: None,
        best: None,
        stale: 0,
        micro_batch: spec.knobs.micro_batch,
        checkpoint_layers: spec.knobs.checkpoint_layers,
    }
}

/// How its steps are run.
pub(super) fn settings(spec: &TrainSpec, targets: &Targets, classes: usize) -> StepSettings {
    let hyper = &spec.hyper;
    StepSettings {
        objective: Objective {
            label_smoothing: hyper.label_smoothing,
            class_weights: if hyper.balance_classes { balanced(targets, classes) } else { Vec::new() },
        },
        optimizer: OptimizerSettings { kind: spec.knobs.optimizer, weight_decay: hyper.weight_decay },
        clip_norm: (hyper.clip_norm > 0.0).then_some(hyper.clip_norm),
        ..StepSettings::new(spec.knobs, step::dropout_seed(spec.seed))
    }
}

/// `rows / (classes · rows of the class)`, as scikit-learn's "balanced".
fn balanced(targets: &Targets, classes: usize) -> Vec<f32> {
    let Some(indices) = targets.classes() else { return Vec::new() };
    let mut counts = vec![0usize; classes];
    indices.iter().for_each(|&class| counts[class] += 1);
    counts.iter().map(|&count| indices.len() as f32 / (classes as f32 * count.max(1) as f32)).collect()
}

/// Its optimizer steps over so many rows.
pub(super) fn total_steps(spec: &TrainSpec, rows: usize) -> usize {
    let epoch = order::steps_per_epoch(rows, spec.effective_batch, LastStep::Keep);
    match spec.duration {
        Duration::Steps(steps) => steps,
        Duration::Epochs(epochs) => ((epoch as f64 * epochs).round() as usize).max(1),
    }
}

/// Its learning rate.
pub(super) fn schedule(hyper: &Hyper, total_steps: usize) -> Schedule {
    let warmup_steps = (hyper.warmup * total_steps as f64).ceil() as usize;
    Schedule { peak: hyper.learning_rate, warmup_steps, total_steps, decay: hyper.decay }
}
