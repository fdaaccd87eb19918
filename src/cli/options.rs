//! Options that several commands share.

use std::path::PathBuf;

use clap::Args;

use super::{number, time};
use crate::plan::bounds;
use crate::train::spec::Every;

/// Where rows come from.
#[derive(Args, Clone, Debug)]
pub struct DataOptions {
    /// CSV (with a header), TSV or JSONL file to train on
    #[arg(long, value_name = "FILE")]
    pub data: Option<PathBuf>,
    /// Column of the text [default: text]
    #[arg(long, value_name = "COLUMN")]
    pub text_column: Option<String>,
    /// Column of a second text, for pairs
    #[arg(long, value_name = "COLUMN")]
    pub text_pair_column: Option<String>,
    /// Column of the label [default: label]
    #[arg(long, value_name = "COLUMN")]
    pub label_column: Option<String>,
    /// The labels are numbers to predict, not classes
    #[arg(long)]
    pub regression: bool,
}

impl DataOptions {
    /// Column of the text.
    pub fn text(&self) -> String {
        self.text_column.clone().unwrap_or_else(|| "text".into())
    }

    /// Column of the label.
    pub fn label(&self) -> String {
        self.label_column.clone().unwrap_or_else(|| "label".into())
    }
}

/// Which revision of a repository.
#[derive(Args, Clone, Debug)]
pub struct RevisionOption {
    /// Branch, tag or commit, for a model by name; the same as --model owner/name@REVISION [default: main]
    #[arg(long, value_name = "REVISION", requires = "model")]
    pub revision: Option<String>,
}

/// Hyperparameters of training.
#[derive(Args, Clone, Debug)]
pub struct TrainOptions {
    /// File to evaluate on
    #[arg(long, value_name = "FILE", conflicts_with = "eval_fraction")]
    pub eval_data: Option<PathBuf>,
    /// Share of the data to hold out for evaluation, drawn evenly from every class; 0 for none [default: 0.1]
    #[arg(long, value_name = "SHARE", value_parser = number::share)]
    pub eval_fraction: Option<f64>,
    /// Times through the data [default: 3]
    #[arg(long, value_name = "N", conflicts_with = "steps", value_parser = number::epochs)]
    pub epochs: Option<f64>,
    /// Optimizer steps
    #[arg(long, value_name = "N", value_parser = number::count::<1, { bounds::STEPS }>)]
    pub steps: Option<usize>,
    /// Peak learning rate
    #[arg(long, value_name = "X", default_value_t = 5e-5, value_parser = number::positive)]
    pub learning_rate: f64,
    /// What the learning rate does after warm-up: linear, cosine or constant
    #[arg(long, value_name = "NAME", default_value_t = crate::train::schedule::Decay::Linear)]
    pub schedule: crate::train::schedule::Decay,
    /// Share of all steps over which the learning rate rises from 0
    #[arg(long, value_name = "SHARE", default_value_t = 0.06, value_parser = number::share)]
    pub warmup: f64,
    /// Decoupled weight decay (not on biases and LayerNorm)
    #[arg(long, value_name = "X", default_value_t = 0.01, value_parser = number::not_negative)]
    pub weight_decay: f64,
    /// Largest norm of the gradient; 0 never clips
    #[arg(long, value_name = "X", default_value_t = 1.0, value_parser = number::not_negative)]
    pub clip_norm: f64,
    /// Share of the target probability that is spread over all classes
    #[arg(long, value_name = "SHARE", default_value_t = 0.0, value_parser = number::share)]
    pub label_smoothing: f64,
    /// Weight classes by the inverse of their frequency
    #[arg(long)]
    pub balance_classes: bool,
    /// Train on the rows in the order of the file, in every epoch
    #[arg(long)]
    pub no_shuffle: bool,
    /// Evaluate every N optimizer steps, besides the end of each epoch
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = number::count::<0, { bounds::STEPS }>)]
    pub evaluate_every: usize,
    /// Keep the model with the best score on the held-out rows, instead of the last one
    #[arg(long)]
    pub keep_best: bool,
    /// Stop after N evaluations without a better score; implies --keep-best
    #[arg(long, value_name = "N", value_parser = number::count::<1, { bounds::STEPS }>)]
    pub patience: Option<usize>,
    /// Write a snapshot to resume from every so often: a number of optimizer steps, a time as in 5m, or never
    #[arg(long, value_name = "STEPS|TIME", default_value = "5m", value_parser = every)]
    pub snapshot_every: Every,
    /// Snapshots that are kept
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = number::count::<1, { bounds::STEPS }>)]
    pub keep_snapshots: usize,
    /// Go on from the newest snapshot in the output folder
    #[arg(long, conflicts_with = "overwrite")]
    pub resume: bool,
    /// Folder for the trained model [default: the configuration's folder + /model]
    #[arg(long, value_name = "DIR")]
    pub output: Option<PathBuf>,
    /// Write into the output folder even if it is not empty
    #[arg(long)]
    pub overwrite: bool,
}

/// `100`, `5m`, `never`.
fn every(text: &str) -> Result<Every, String> {
    if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
        return match number::count::<0, { bounds::STEPS }>(text)? {
            0 => Err("0 steps: write never for no snapshots".into()),
            steps => Ok(Every::Steps(steps)),
        };
    }
    match text {
        "never" => Ok(Every::Never),
        _ => match time::duration(text) {
            Ok(time) => Ok(Every::Minutes(time.as_secs_f64() / 60.0)),
            Err(_) => Err(format!("'{text}' is neither a number of steps (100), nor a time (5m), nor never")),
        },
    }
}
