//! What a training run says while it goes and when it ends: plain data, for whoever listens.

use serde::{Deserialize, Serialize};

use crate::plan::float;

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
        #[serde(with = "float")]
        epoch: f64,
        /// Mean loss over the step's rows.
        #[serde(with = "float")]
        loss: f64,
        /// Learning rate of the step.
        #[serde(with = "float")]
        rate: f64,
        /// Gradient norm before clipping.
        #[serde(with = "float")]
        gradient_norm: f64,
        /// What the loss was multiplied by in fp16; `None` in other precisions.
        #[serde(default, skip_serializing_if = "Option::is_none", with = "float::maybe")]
        loss_scale: Option<f64>,
        /// Whether the update was done; not when a scaled gradient overflowed.
        updated: bool,
        /// Seconds that the step took.
        #[serde(with = "float")]
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
    /// Mean loss over the last tenth of the steps; `None` before the first step.
    #[serde(with = "float::maybe")]
    pub train_loss: Option<f64>,
    /// The scores of the model that was kept, where rows were held out.
    pub scores: Option<Scores>,
    /// Step of the model that was kept.
    pub kept_step: usize,
    /// Rows trained on per second of training, evaluation aside; `None` before the first step.
    #[serde(with = "float::maybe")]
    pub samples_per_second: Option<f64>,
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

/// How well a model did on held-out rows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Scores {
    /// Rows scored.
    pub rows: usize,
    /// Mean loss, without smoothing and class weights.
    #[serde(with = "float")]
    pub loss: f64,
    /// What the targets allow to be said.
    pub quality: Quality,
    /// Names of the classes by index; one name for a regression.
    #[serde(default)]
    pub labels: Vec<String>,
}

/// Quality by kind of target.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Quality {
    /// Classes.
    Classification(Classification),
    /// Numbers.
    Regression(Regression),
}

impl Scores {
    /// The one number to compare runs by, higher is better: accuracy, or Pearson's correlation.
    pub fn headline(&self) -> f64 {
        match &self.quality {
            Quality::Classification(scores) => scores.accuracy,
            Quality::Regression(scores) => scores.pearson,
        }
    }

    /// Whether the headline is higher than that of others. Scores of outputs that are not numbers say nothing: they are
    /// never better, and any that do are better than they.
    pub fn better_than(&self, other: &Scores) -> bool {
        let rank = |scores: &Scores| match scores.headline() {
            headline if scores.loss.is_nan() || headline.is_nan() => f64::NEG_INFINITY,
            headline => headline,
        };
        rank(self) > rank(other)
    }
}

/// Scores of a classifier. All but the counts are shares from 0 to 1.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Classification {
    /// Share of rows whose largest logit is that of their class.
    pub accuracy: f64,
    /// Mean of the classes' F1 over all classes that occur among targets or predictions.
    pub macro_f1: f64,
    /// F1 of every class; 0 for one that is never predicted rightly.
    pub f1: Vec<f64>,
    /// Share of the rows predicted as a class that are of it; 0 for one that is never predicted.
    #[serde(default)]
    pub precision: Vec<f64>,
    /// Share of the rows of a class that are predicted as it; 0 for one that has none.
    #[serde(default)]
    pub recall: Vec<f64>,
    /// Rows of each class.
    #[serde(default)]
    pub support: Vec<usize>,
    /// `confusion[target][prediction]`: rows. Left empty above 100 classes.
    pub confusion: Vec<Vec<usize>>,
}

/// Scores of a regression.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Regression {
    /// Pearson's correlation; 0 where either side is constant.
    #[serde(with = "float")]
    pub pearson: f64,
    /// Spearman's rank correlation, ties at their mean rank; 0 where either side is constant.
    #[serde(with = "float")]
    pub spearman: f64,
}
