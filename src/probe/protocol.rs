//! What driver and worker say to each other: serde types only, the one place where the two chains of rooms meet.
//!
//! The driver writes [`Job`]s to the worker's standard input, one JSON line each, and closes it when no more will
//! come. For each job the worker answers on standard output with JSON lines: any number of [`Message::Progress`],
//! [`Message::Event`] and [`Message::Lines`], then exactly one [`Message::Report`]. A worker that is sent a second job before it was
//! closed is a warm worker. Standard error is talk: the driver keeps its tail for explanations.
//!
//! * [`training`]: what a training run says; [`prediction`]: what a prediction says.
//!
//! Floats that are not finite are strings here (see [`float`]): JSON would make null of them.
//!
//! One answer cannot travel that way: on the CPU a refused allocation aborts the process, so the capped allocator
//! writes an [`OomRecord`] in its fixed text form to the descriptor named by [`OOM_FD_VAR`] before it refuses.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::plan::{Knobs, Outcome, Precision, float};

pub mod prediction;
pub mod training;

/// Version of these types; a worker refuses a job of another version.
pub const PROTOCOL: u32 = 2;

/// Environment variable that tells the worker on which descriptor to write its [`OomRecord`].
pub const OOM_FD_VAR: &str = "AUTOFIT_OOM_FD";

/// Where a model comes from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ModelSource {
    /// A built-in shape with random weights, by its usual name (`distilbert`, `bert-base`, …).
    Preset(String),
    /// A Hugging Face folder: `config.json`, `model.safetensors`, `tokenizer.json`.
    Folder(PathBuf),
    /// A model that only the program which asks can build, by the name it gave (see [`crate::library`]).
    Program(String),
}

/// Everything that a worker is asked to do.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Job {
    /// Must equal [`PROTOCOL`].
    pub protocol: u32,
    /// Device name: `cpu`, `cuda:0`, …
    pub device: String,
    /// Bytes that the workload may use; `None` means no cap.
    pub cap_bytes: Option<u64>,
    /// What to do.
    pub task: Task,
}

/// What a worker can do with a model.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Task {
    /// Say what the device is and what it can do.
    Describe,
    /// Measure one trial.
    Probe(ProbeSpec),
    /// Train to the end. The specification is the training room's own type, passed through as JSON.
    Train(serde_json::Value),
    /// Predict every row of a file. The specification is the training room's own type, passed through as JSON.
    Predict(serde_json::Value),
}

/// One trial to measure.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ProbeSpec {
    /// The model to fine-tune.
    pub model: ModelSource,
    /// Classes of the head.
    pub num_labels: usize,
    /// The combination to try.
    pub knobs: Knobs,
    /// Samples per optimizer step.
    pub effective_batch: usize,
    /// The shapes that training will meet.
    pub shapes: Shapes,
    /// How long to measure.
    pub effort: Effort,
    /// Seed of weights, token ids and dropout.
    pub seed: u64,
}

/// Row lengths, in tokens after truncation: memory is measured on the longest, speed on the typical ones.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shapes {
    /// Length of the longest row of the data: the padded length of the worst micro-batch.
    pub longest: usize,
    /// Lengths of rows in the order in which training would draw them; empty when every row is `longest`.
    pub typical: Vec<usize>,
    /// Upper bound of the different token ids in one optimizer step: what the gradient of the word table holds.
    #[serde(default)]
    pub distinct: Option<usize>,
    /// Token ids of some rows of the data, the longest first, to make the rows of the probe from; without data there are
    /// none, and ids are drawn at random.
    #[serde(default)]
    pub rows: Vec<Vec<u32>>,
}

/// How long a probe measures.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Effort {
    /// Micro-batches run and not timed. Memory needs two optimizer steps, which are run in any case.
    pub warmup: usize,
    /// Micro-batches timed at least.
    pub min_timed: usize,
    /// Micro-batches timed at most.
    pub max_timed: usize,
    /// Stop timing after this many seconds once `min_timed` is reached.
    pub seconds: f64,
    /// Run an evaluation batch too, as the run will: part of certifying the answer.
    pub evaluate: bool,
}

/// One line from the worker.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Message {
    /// What the worker is doing now, for a person to read.
    Progress(String),
    /// What a training run says while it goes.
    Event(training::Event),
    /// What a prediction found so far.
    Lines(prediction::Lines),
    /// The last line.
    Report(Report),
}

/// How a worker that could still speak ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Report {
    /// The probe ran to its end and everything it read back was finite.
    Measured(Measurement),
    /// The device refused memory and said so softly (accelerators; the CPU dies with an [`OomRecord`]).
    OutOfMemory(OomRecord),
    /// Loss, gradient or updated parameters were NaN or infinite.
    NonFinite {
        /// What was not finite, and when.
        what: String,
    },
    /// The device can't do what the knobs ask (a precision, usually).
    Unsupported {
        /// What can't be done.
        what: String,
    },
    /// Anything else that went wrong, as a message for the user.
    Failed {
        /// The error with its causes.
        error: String,
    },
    /// What the device is.
    Described(DeviceDescription),
    /// A training run ended well.
    Trained(training::Summary),
    /// Every row was predicted.
    Predicted(prediction::Summary),
}

/// What a device says of itself; what it does not say is absent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceDescription {
    /// Its name in full: `cuda:0`.
    pub name: String,
    /// The maker's name for it.
    pub title: Option<String>,
    /// Bytes of memory.
    pub total_bytes: Option<u64>,
    /// Bytes that nobody uses.
    pub free_bytes: Option<u64>,
    /// The driver's version.
    pub driver: Option<String>,
    /// Compute capability, as in `8.6`.
    pub capability: Option<String>,
    /// Precisions in which it computed what it should.
    pub precisions: Vec<Precision>,
    /// Devices of this kind, itself among them.
    pub siblings: usize,
    /// What is worth a word.
    pub notes: Vec<String>,
}

/// What holds the cap.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CapHold {
    /// The process's own allocator, to the byte.
    Allocator,
    /// The card, made as small as the cap by memory that is held back: its driver refuses.
    Ballast,
    /// The bytes that the pools reserved are compared with the cap after every pass.
    Reserve,
}

impl CapHold {
    /// The word used in files.
    pub fn name(self) -> &'static str {
        match self {
            CapHold::Allocator => "allocator",
            CapHold::Ballast => "ballast",
            CapHold::Reserve => "reserve",
        }
    }
}

impl std::str::FromStr for CapHold {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let all = [CapHold::Allocator, CapHold::Ballast, CapHold::Reserve];
        all.into_iter().find(|hold| hold.name() == text).ok_or_else(|| format!("unknown way to hold a cap '{text}'"))
    }
}

/// What a probe measured. Bytes are counted above what the process held before the model was built.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Measurement {
    /// Highest number of bytes held against the cap: on the CPU those in use; on a device those that its pools reserved,
    /// with what the runtime's context takes.
    pub peak_bytes: u64,
    /// Highest number of bytes in use that was seen, context included, where that differs from those reserved.
    #[serde(default)]
    pub in_use_peak_bytes: Option<u64>,
    /// What the runtime's context takes, where it could be told.
    #[serde(default)]
    pub context_bytes: Option<u64>,
    /// What held the cap.
    #[serde(default)]
    pub cap_hold: Option<CapHold>,
    /// Bytes of weights.
    pub weight_bytes: u64,
    /// Bytes of gradients when all are held.
    pub gradient_bytes: u64,
    /// Bytes of optimizer state.
    pub optimizer_bytes: u64,
    /// Seconds of each timed micro-batch of `micro_batch` samples at typical lengths: forward, backward, accumulate.
    #[serde(with = "float::list")]
    pub micro_seconds: Vec<f64>,
    /// Seconds of each timed optimizer step: unscale, clip, update.
    #[serde(with = "float::list")]
    pub optimizer_seconds: Vec<f64>,
    /// Loss of the last micro-batch: proof that the work was done.
    #[serde(with = "float")]
    pub loss: f64,
    /// Sum over all updated parameters: proof that every update was done.
    #[serde(with = "float")]
    pub parameter_sum: f64,
    /// Bytes in use at the peak of the evaluation batch, where one was asked for.
    pub evaluation_peak_bytes: Option<u64>,
    /// Encoder layers of the model, L.
    pub layers: usize,
    /// Seconds from the worker's start to the first step: loading, initialising.
    #[serde(with = "float")]
    pub setup_seconds: f64,
}

/// A refused allocation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OomRecord {
    /// Bytes that were asked for, where known.
    pub requested: Option<u64>,
    /// Bytes in use at that moment, where known.
    pub live: Option<u64>,
    /// The cap that would have been exceeded, where it was the cap that refused.
    pub cap: Option<u64>,
    /// What the device or the operating system said, where it said anything.
    pub text: String,
}

/// What became of one probe, as the driver sees it: the one thing that the executor gives and the study takes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Attempt {
    /// In one word.
    pub outcome: Outcome,
    /// In one line, for a person: what was refused, which signal, the last words on standard error.
    pub reason: String,
    /// What was measured; present exactly when the outcome is [`Outcome::Fit`].
    pub measurement: Option<Measurement>,
    /// The refusal; present when the outcome is [`Outcome::Oom`] and the worker could still say what was refused.
    pub oom: Option<OomRecord>,
    /// Seconds from starting (or asking) the worker to its answer.
    #[serde(with = "float")]
    pub wall_seconds: f64,
}

#[cfg(test)]
mod tests;
