//! What a training run is told: everything that decides its outcome, as plain data.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::schedule::Decay;
use crate::data::order::RowOrder;
use crate::plan::Knobs;
use crate::probe::protocol::ModelSource;

/// A training run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TrainSpec {
    /// The model to start from.
    pub model: ModelSource,
    /// Rows to train and to evaluate on.
    pub data: DataSpec,
    /// How a step is run.
    pub knobs: Knobs,
    /// Samples per optimizer step.
    pub effective_batch: usize,
    /// Longest row in tokens; longer ones are truncated.
    pub max_length: usize,
    /// Length, in tokens, of the longest row at which `knobs` were proven to fit.
    pub proven_length: usize,
    /// When to stop.
    pub duration: Duration,
    /// The usual hyperparameters.
    pub hyper: Hyper,
    /// The order of the rows in an epoch.
    #[serde(default)]
    pub order: RowOrder,
    /// Seed of the split, the order of rows, the head's weights and dropout.
    pub seed: u64,
    /// Where the model goes.
    pub output: PathBuf,
    /// When snapshots are written.
    pub saving: Saving,
    /// Which model is kept in the end.
    pub selection: Selection,
    /// Where to begin.
    pub start: Start,
}

/// When snapshots are written, beside the end of a run that is asked to stop.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Saving {
    /// How often.
    pub every: Every,
    /// How many of them are kept.
    pub keep: usize,
}

impl Default for Saving {
    /// Work of a few minutes is what a person can stand to lose.
    fn default() -> Self {
        Saving { every: Every::Minutes(5.0), keep: 2 }
    }
}

/// How often something is done.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Every {
    /// After so many optimizer steps.
    Steps(usize),
    /// After so many minutes, at the end of a step.
    Minutes(f64),
    /// Never.
    Never,
}

/// Which model is kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Selection {
    /// The one after the last step.
    #[default]
    Last,
    /// The one with the best score on the held-out rows.
    Best {
        /// End the run after so many evaluations without a better score.
        patience: Option<usize>,
    },
}

/// Where a run begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Start {
    /// At the pretrained model; older snapshots are removed.
    #[default]
    Fresh,
    /// At the newest whole snapshot; at the pretrained model if there is none.
    Resume,
}

/// Where rows come from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DataSpec {
    /// File to train on.
    pub train: PathBuf,
    /// What to evaluate on.
    pub evaluation: Evaluation,
    /// Column of the text.
    pub text: String,
    /// Column of a second text.
    pub pair: Option<String>,
    /// Column of the label.
    pub label: String,
    /// Whether labels are numbers to regress on; decided by the file if not given.
    pub regression: Option<bool>,
}

/// Held-out rows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Evaluation {
    /// A file of their own.
    File(PathBuf),
    /// A share of the training file, drawn evenly from every class; 0 for none.
    Fraction(f64),
}

/// How long to train.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Duration {
    /// Times through the data.
    Epochs(f64),
    /// Optimizer steps.
    Steps(usize),
}

/// Hyperparameters that the search leaves alone.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Hyper {
    /// Peak learning rate.
    pub learning_rate: f64,
    /// What it does after warm-up.
    pub decay: Decay,
    /// Share of all steps over which it rises.
    pub warmup: f64,
    /// Decoupled weight decay, not on biases and LayerNorm.
    pub weight_decay: f64,
    /// Largest gradient norm; 0 never clips.
    pub clip_norm: f64,
    /// Share of the target probability spread over all classes.
    pub label_smoothing: f64,
    /// Weight classes by the inverse of their frequency.
    pub balance_classes: bool,
    /// Evaluate every so many optimizer steps, besides the end of each epoch; 0 for never.
    pub evaluate_every: usize,
}

impl Default for Hyper {
    /// BERT's customary fine-tuning values.
    fn default() -> Self {
        Hyper {
            learning_rate: 5e-5,
            decay: Decay::Linear,
            warmup: 0.06,
            weight_decay: 0.01,
            clip_norm: 1.0,
            label_smoothing: 0.0,
            balance_classes: false,
            evaluate_every: 0,
        }
    }
}

#[cfg(test)]
impl TrainSpec {
    /// Six steps of a tiny model on `train.csv` in a folder, into `model` there: for tests.
    pub fn tiny(folder: &std::path::Path) -> Self {
        let model = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/tiny-bert");
        TrainSpec {
            model: ModelSource::Folder(model),
            data: DataSpec {
                train: folder.join("train.csv"),
                evaluation: Evaluation::Fraction(0.0),
                text: "text".into(),
                pair: None,
                label: "label".into(),
                regression: None,
            },
            knobs: Knobs::new(crate::plan::Precision::Fp32, 8, 0),
            effective_batch: 8,
            max_length: 24,
            proven_length: 24,
            duration: Duration::Steps(6),
            hyper: Hyper { learning_rate: 1e-3, ..Hyper::default() },
            order: RowOrder::Shuffled,
            seed: 7,
            output: folder.join("model"),
            saving: Saving { every: Every::Never, keep: 1 },
            selection: Selection::Last,
            start: Start::Fresh,
        }
    }
}
