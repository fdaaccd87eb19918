//! The knobs of one trial: what may be turned without changing what is learned.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::partition;

/// Numeric precision of the forward and backward passes.
///
/// Master weights, gradients and optimizer state stay in 32 bits whatever the precision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Precision {
    /// 32-bit floats throughout: the reference.
    Fp32,
    /// bfloat16 compute and activations: half the bytes, fp32's range, no loss scaling.
    Bf16,
    /// IEEE half precision compute and activations: needs dynamic loss scaling.
    Fp16,
}

impl Precision {
    /// Every precision, the safest first.
    pub const ALL: [Precision; 3] = [Precision::Fp32, Precision::Bf16, Precision::Fp16];

    /// The name used on the command line and in every file.
    pub fn name(self) -> &'static str {
        match self {
            Precision::Fp32 => "fp32",
            Precision::Bf16 => "bf16",
            Precision::Fp16 => "fp16",
        }
    }
}

impl fmt::Display for Precision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Precision {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Precision::ALL
            .into_iter()
            .find(|p| p.name() == text)
            .ok_or_else(|| format!("unknown precision '{text}': use fp32, bf16 or fp16"))
    }
}

/// The update rule, which decides the bytes of optimizer state per parameter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OptimizerKind {
    /// Adam with decoupled weight decay: two moments, 8 bytes a parameter.
    #[default]
    AdamW,
    /// Factored second moments: a few bytes a row and column.
    Adafactor,
    /// Sign of an interpolated momentum: one moment, 4 bytes a parameter.
    Lion,
    /// Stochastic gradient descent with momentum: one moment, 4 bytes a parameter.
    Sgd,
}

impl OptimizerKind {
    /// Every optimizer, the usual one first.
    pub const ALL: [OptimizerKind; 4] =
        [OptimizerKind::AdamW, OptimizerKind::Adafactor, OptimizerKind::Lion, OptimizerKind::Sgd];

    /// The name used on the command line and in every file.
    pub fn name(self) -> &'static str {
        match self {
            OptimizerKind::AdamW => "adamw",
            OptimizerKind::Adafactor => "adafactor",
            OptimizerKind::Lion => "lion",
            OptimizerKind::Sgd => "sgd",
        }
    }
}

impl fmt::Display for OptimizerKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for OptimizerKind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        OptimizerKind::ALL
            .into_iter()
            .find(|o| o.name() == text)
            .ok_or_else(|| format!("unknown optimizer '{text}': use adamw, adafactor, lion or sgd"))
    }
}

/// α of low-rank adapters, whose product is scaled by `α / rank`. What most recipes for encoders take; `peft` itself
/// starts from 8, so exports name it.
pub const LORA_ALPHA: f64 = 16.0;

/// One combination of knobs. The effective batch is not among them: it is the user's, and the search never changes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Knobs {
    /// Precision of forward and backward.
    pub precision: Precision,
    /// Samples in the largest forward/backward pass.
    pub micro_batch: usize,
    /// Checkpoint density r of L: encoder layers whose activations are dropped and recomputed in backward.
    pub checkpoint_layers: usize,
    /// The update rule.
    #[serde(default)]
    pub optimizer: OptimizerKind,
    /// `Some(k)`: the embeddings and the lowest k encoder layers are not trained. `None`: everything is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub frozen_layers: Option<usize>,
    /// `Some(rank)`: only the head, and low-rank adapters on the query and value projections, are trained. With
    /// [`Knobs::frozen_layers`] the lowest layers have no adapters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lora_rank: Option<usize>,
}

impl Knobs {
    /// Plain full fine-tuning with AdamW.
    pub fn new(precision: Precision, micro_batch: usize, checkpoint_layers: usize) -> Self {
        Knobs {
            precision,
            micro_batch,
            checkpoint_layers,
            optimizer: OptimizerKind::AdamW,
            frozen_layers: None,
            lora_rank: None,
        }
    }

    /// Forward/backward passes per optimizer step: `ceil(effective / micro)`.
    pub fn accumulation(&self, effective_batch: usize) -> usize {
        partition::accumulation(effective_batch, self.micro_batch)
    }
}

impl Knobs {
    /// The next combination that takes less memory for the same gradient: a smaller micro-batch, and at 1 sample a
    /// quarter more of all `layers` recomputed. `None` where nothing is left.
    pub fn lower(&self, effective_batch: usize, layers: usize) -> Option<Knobs> {
        let sizes = partition::candidates(effective_batch);
        if let Some(&micro_batch) = sizes.iter().find(|&&size| size < self.micro_batch) {
            return Some(Knobs { micro_batch, ..*self });
        }
        let checkpoint_layers = (self.checkpoint_layers + layers.div_ceil(4)).min(layers);
        (checkpoint_layers > self.checkpoint_layers).then_some(Knobs { checkpoint_layers, ..*self })
    }
}

impl fmt::Display for Knobs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} micro-batch {} checkpoint {}", self.precision, self.micro_batch, self.checkpoint_layers)?;
        if self.optimizer != OptimizerKind::AdamW {
            write!(f, " {}", self.optimizer)?;
        }
        if let Some(layers) = self.frozen_layers {
            write!(f, " frozen {layers}")?;
        }
        if let Some(rank) = self.lora_rank {
            write!(f, " lora {rank}")?;
        }
        Ok(())
    }
}
