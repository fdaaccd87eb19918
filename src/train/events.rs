//! What a run says while it goes and when it ends: plain data, for whoever listens.

use serde::{Deserialize, Serialize};

use super::evaluate::Scores;

/// What a run reports while it goes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Event {
    /// Something a person should know.
    Note(String),
    /// Data and model are ready.
    Started {
        /// Rows trained on.
        train_rows: usize,
        /// Rows held out.
        evaluation_rows: usize,
        /// Optimizer steps to do in all.
        total_steps: usize,
        /// Steps done by an earlier process, from whose snapshot this one goes on.
        done: usize,
    },
    /// An optimizer step was done.
    Step {
        /// Steps done.
        step: usize,
        /// Times through the data so far.
        epoch: f64,
        /// Mean loss over the step's rows.
        loss: f64,
        /// Learning rate of the step.
        rate: f64,
        /// Gradient norm before clipping.
        gradient_norm: f64,
        /// What the loss was multiplied by in fp16; `None` in other precisions.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        loss_scale: Option<f64>,
        /// Whether the update was done; not when a scaled gradient overflowed.
        updated: bool,
        /// Seconds that the step took.
        seconds: f64,
        /// Rows in the step.
        rows: usize,
    },
    /// The held-out rows were scored.
    Evaluated {
        /// Steps done.
        step: usize,
        /// How well.
        scores: Scores,
    },
    /// A snapshot was written.
    Saved {
        /// Steps done.
        step: usize,
    },
    /// Memory ran short in the middle of a step, which was done again with less.
    Lowered {
        /// Steps done.
        step: usize,
        /// The micro-batch from now on.
        micro_batch: usize,
        /// Layers recomputed from now on.
        checkpoint_layers: usize,
        /// What the device said.
        reason: String,
    },
}

/// How a run ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// Optimizer steps done.
    pub steps: usize,
    /// Why it ended.
    pub ending: Ending,
    /// Mean loss over the last tenth of the steps.
    pub train_loss: f64,
    /// The scores of the model that was kept, where rows were held out.
    pub scores: Option<Scores>,
    /// Step of the model that was kept.
    pub kept_step: usize,
    /// Rows trained on per second of training, evaluation aside.
    pub samples_per_second: f64,
    /// Highest number of bytes in use above what was there before the model was built.
    pub peak_bytes: u64,
}

/// Why a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ending {
    /// All steps were done.
    Done,
    /// The held-out score had not improved for as long as was asked for.
    Early,
    /// It was asked to stop; a snapshot is there to go on from.
    Stopped,
}
