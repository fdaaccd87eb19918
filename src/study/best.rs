//! `best.toml`: the answer as a file, which `autofit run` trains with and a person can read.

mod check;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use super::answer::{Answer, Neighbour, TIE_RULE};
use super::memory_model::MemoryCoefficients;
use super::problem::Problem;
use super::speed_model::SpeedCoefficients;
use super::stamp;
use super::trial::{Purpose, Trial};
use crate::plan::{Knobs, OptimizerKind, Precision, files};
use crate::probe::protocol::{CapHold, ModelSource};

/// The answer of a study. Unknown keys are ignored, so that a newer file can be read.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Best {
    /// The combination.
    pub config: Config,
    /// What was measured.
    pub measured: Measured,
    /// The same at the next larger micro-batch.
    pub neighbour: NeighbourTable,
    /// The same with fewer layers recomputed.
    pub density_neighbour: NeighbourTable,
    /// The model.
    pub model: Model,
    /// The data, where the study was given any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data: Option<Data>,
    /// Where the answer comes from.
    pub study: Study,
    /// Peak memory in bytes: `m0 + micro · (a0 + max(L − r, 1) · a1 + r · a2)`.
    pub memory_model: MemoryCoefficients,
    /// Seconds of a micro-batch: `t0 + r · u0 + micro · (t1 + r · t2)`.
    pub speed_model: SpeedCoefficients,
}

/// Table `[config]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Config {
    /// Samples in the largest forward/backward pass.
    pub micro_batch: usize,
    /// Forward/backward passes per optimizer step.
    pub accumulation: usize,
    /// Samples per optimizer step.
    pub effective_batch: usize,
    /// Precision of forward and backward.
    pub precision: Precision,
    /// Encoder layers recomputed in backward.
    pub checkpoint_layers: usize,
    /// Where rows are truncated, in tokens.
    pub max_length: usize,
    /// The update rule.
    pub optimizer: OptimizerKind,
    /// See [`Knobs::frozen_layers`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub frozen_layers: Option<usize>,
    /// See [`Knobs::lora_rank`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lora_rank: Option<usize>,
}

impl Config {
    /// The combination of knobs.
    pub fn knobs(&self) -> Knobs {
        let Config { precision, micro_batch, checkpoint_layers, optimizer, frozen_layers, lora_rank, .. } = *self;
        Knobs { precision, micro_batch, checkpoint_layers, optimizer, frozen_layers, lora_rank }
    }
}

/// Table `[measured]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// Highest peak of all probes, as it counts against the cap: bytes in use on the CPU, bytes that the pools reserved
    /// and the context's on a device.
    pub peak_bytes: u64,
    /// The highest number of bytes in use that was seen, where memory is kept in pools.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub in_use_peak_bytes: Option<u64>,
    /// Bytes that the runtime's context takes, part of both peaks, where it could be told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context_bytes: Option<u64>,
    /// What held the cap while it was measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cap_hold: Option<CapHold>,
    /// Bytes that the workload may use, where capped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cap_bytes: Option<u64>,
    /// What the peak leaves of the cap.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub margin_bytes: Option<u64>,
    /// Samples per second of an effective batch.
    pub samples_per_second: f64,
    /// Lower end of its 95 % interval.
    pub samples_per_second_low: f64,
    /// Upper end of its 95 % interval.
    pub samples_per_second_high: f64,
    /// Seconds of one optimizer step.
    pub step_seconds: f64,
    /// Bytes of weights.
    pub weight_bytes: u64,
    /// Bytes of gradients.
    pub gradient_bytes: u64,
    /// Bytes of optimizer state.
    pub optimizer_bytes: u64,
    /// What the peak holds beyond these.
    pub activation_bytes: u64,
    /// Peak of an evaluation batch, where one ran.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub evaluation_peak_bytes: Option<u64>,
    /// Whether it passed the longer probe with an evaluation batch.
    pub certified: bool,
}

/// Tables `[neighbour]` and `[density_neighbour]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NeighbourTable {
    /// Its micro-batch, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub micro_batch: Option<usize>,
    /// Its density, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint_layers: Option<usize>,
    /// An [`Outcome`](crate::plan::Outcome); `none` if there is no such neighbour, `unknown` if the study ended first.
    pub outcome: String,
    /// Its speed, where it fits and was measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub samples_per_second: Option<f64>,
    /// In one line.
    pub reason: String,
}

impl From<&Neighbour> for NeighbourTable {
    fn from(neighbour: &Neighbour) -> Self {
        let outcome = match (neighbour.knobs, neighbour.outcome) {
            (None, _) => "none".to_string(),
            (Some(_), None) => "unknown".to_string(),
            (Some(_), Some(outcome)) => outcome.to_string(),
        };
        NeighbourTable {
            micro_batch: neighbour.knobs.map(|knobs| knobs.micro_batch),
            checkpoint_layers: neighbour.knobs.map(|knobs| knobs.checkpoint_layers),
            outcome,
            samples_per_second: neighbour.samples_per_second,
            reason: neighbour.reason.clone(),
        }
    }
}

/// Table `[model]`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Model {
    /// `preset = "…"`, `folder = "…"` or `program = "…"`.
    #[serde(flatten)]
    pub source: ModelSource,
    /// `owner/name` of the Hugging Face repository that the folder is a copy of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repository: Option<String>,
    /// Its commit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<String>,
    /// Classes of the head; 1 for a program's own model, whose outputs are its own business.
    pub num_labels: usize,
}

/// Table `[data]`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Data {
    /// The file.
    pub file: PathBuf,
    /// The columns used, text first.
    pub columns: Vec<String>,
    /// Tokens of the longest row after truncation.
    pub longest: usize,
    /// Rows of the file.
    pub rows: usize,
}

/// Table `[study]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Study {
    /// Preset, folder or repository of the model, for a person.
    pub model: String,
    /// Device name.
    pub device: String,
    /// Seed of weights, token ids and dropout.
    pub seed: u64,
    /// Version of autofit.
    pub autofit: String,
    /// Name and version of the tensor framework.
    pub framework: String,
    /// The search space.
    pub space: String,
    /// Probes run, pruned trials not counted.
    pub probes: usize,
    /// Seconds that they took.
    pub probe_seconds: f64,
    /// How equals are told apart.
    pub tie_rule: String,
    /// When the answer was written, RFC 3339.
    pub created: String,
}

/// What the caller knows and the search doesn't.
#[derive(Clone, Debug)]
pub struct Setting {
    /// The model.
    pub model: Model,
    /// The data, where the study was given any.
    pub data: Option<Data>,
    /// Device name.
    pub device: String,
    /// Seed of weights, token ids and dropout.
    pub seed: u64,
    /// Version of autofit.
    pub autofit: String,
    /// Name and version of the tensor framework.
    pub framework: String,
    /// Now, in seconds since 1970.
    pub unix_seconds: u64,
}

impl Best {
    /// The file for an answer.
    pub fn new(problem: &Problem, trials: &[Trial], answer: &Answer, setting: Setting) -> Best {
        let Knobs { precision, micro_batch, checkpoint_layers, optimizer, frozen_layers, lora_rank } = answer.knobs;
        let score = &answer.score;
        let (low, high) = score.interval();
        let model = match (&setting.model.source, &setting.model.repository) {
            (_, Some(repository)) => repository.clone(),
            (ModelSource::Preset(name) | ModelSource::Program(name), None) => name.clone(),
            (ModelSource::Folder(path), None) => path.display().to_string(),
        };
        let probes = || trials.iter().filter(|trial| trial.purpose != Purpose::Prune);
        Best {
            config: Config {
                micro_batch,
                accumulation: answer.accumulation,
                effective_batch: problem.effective_batch,
                precision,
                checkpoint_layers,
                max_length: problem.max_length,
                optimizer,
                frozen_layers,
                lora_rank,
            },
            measured: Measured {
                peak_bytes: score.peak_bytes,
                in_use_peak_bytes: answer.measurement.in_use_peak_bytes,
                context_bytes: answer.measurement.context_bytes,
                cap_hold: answer.measurement.cap_hold,
                cap_bytes: problem.cap_bytes,
                margin_bytes: problem.cap_bytes.map(|cap| cap.saturating_sub(score.peak_bytes)),
                samples_per_second: score.samples_per_second,
                samples_per_second_low: low,
                samples_per_second_high: high,
                step_seconds: score.step_seconds,
                weight_bytes: answer.measurement.weight_bytes,
                gradient_bytes: answer.measurement.gradient_bytes,
                optimizer_bytes: answer.measurement.optimizer_bytes,
                activation_bytes: answer.activation_bytes(),
                evaluation_peak_bytes: answer.evaluation_peak_bytes,
                certified: answer.certified,
            },
            neighbour: (&answer.larger_micro).into(),
            density_neighbour: (&answer.lower_density).into(),
            model: setting.model,
            data: setting.data,
            study: Study {
                model,
                device: setting.device,
                seed: setting.seed,
                autofit: setting.autofit,
                framework: setting.framework,
                space: problem.space.name.clone(),
                probes: probes().count(),
                probe_seconds: probes().map(|trial| trial.attempt.wall_seconds).sum(),
                tie_rule: TIE_RULE.into(),
                created: stamp::rfc3339(setting.unix_seconds),
            },
            memory_model: answer.memory,
            speed_model: answer.speed,
        }
    }

    /// Writes the file; a crash at any moment leaves the old one or the new one.
    ///
    /// # Errors
    /// If the folder can't be written.
    pub fn write(&self, path: &Path) -> Result<()> {
        let train = match &self.model.source {
            ModelSource::Program(name) => format!("the program that has the model {name}"),
            _ => "autofit run --config".into(),
        };
        let head = format!("# The fastest measured configuration that fits. Written by autofit; train with: {train}\n");
        files::write_whole(path, &format!("{head}\n{}", toml::to_string(self).context("writing the answer")?))
    }

    /// Reads the file.
    ///
    /// # Errors
    /// If it can't be read, a key is missing or has the wrong type, or a number can't be: the message names file and key.
    pub fn read(path: &Path) -> Result<Best> {
        let text = std::fs::read_to_string(path).with_context(|| {
            format!("reading {}: autofit probe writes it when it has found what fits", path.display())
        })?;
        let read = || -> Result<Best> {
            let best: Best = toml::from_str(&text)?;
            check::numbers(&best)?;
            Ok(best)
        };
        read().with_context(|| format!("{} is not an answer that autofit wrote", path.display()))
    }
}
