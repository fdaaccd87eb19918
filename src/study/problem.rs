//! What is to be solved, and the grid of configurations that it spans.

use std::fmt;

use anyhow::{Result, ensure};

use super::search_space::SearchSpace;
use crate::plan::{Knobs, OptimizerKind, Precision, partition};

/// The shape of a model and of its rows: enough to guess bytes and work before anything was measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SizeHint {
    /// Trainable parameters of the whole model.
    pub parameters: u64,
    /// Width of the encoder.
    pub hidden: usize,
    /// Encoder layers, L.
    pub layers: usize,
    /// Width of the feed-forward block.
    pub intermediate: usize,
    /// Attention heads.
    pub heads: usize,
    /// Rows of the word embedding.
    pub vocab: usize,
    /// Rows of the position embedding.
    pub positions: usize,
    /// Tokens of the longest row after truncation.
    pub length: usize,
}

/// One search.
#[derive(Clone, Debug)]
pub struct Problem {
    /// Samples per optimizer step; the search never changes it.
    pub effective_batch: usize,
    /// Where rows are truncated, in tokens. Only recorded.
    pub max_length: usize,
    /// Bytes that the workload may use; `None`: whatever the device has.
    pub cap_bytes: Option<u64>,
    /// The axes.
    pub space: SearchSpace,
    /// The model and its rows.
    pub size: SizeHint,
    /// Smaller models by name, to be suggested when nothing fits.
    pub smaller: Vec<(String, SizeHint)>,
}

/// Everything but micro-batch and density: one branch has one set of memory and speed coefficients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Branch {
    /// Precision of forward and backward.
    pub precision: Precision,
    /// The update rule.
    pub optimizer: OptimizerKind,
    /// See [`Knobs::frozen_layers`].
    pub frozen_layers: Option<usize>,
    /// See [`Knobs::lora_rank`].
    pub lora_rank: Option<usize>,
}

impl Branch {
    /// The branch that a combination belongs to.
    pub fn of(knobs: &Knobs) -> Branch {
        let Knobs { precision, optimizer, frozen_layers, lora_rank, .. } = *knobs;
        Branch { precision, optimizer, frozen_layers, lora_rank }
    }

    /// The combination of this branch at a micro-batch and density.
    pub fn knobs(self, micro_batch: usize, checkpoint_layers: usize) -> Knobs {
        let Branch { precision, optimizer, frozen_layers, lora_rank } = self;
        Knobs { precision, micro_batch, checkpoint_layers, optimizer, frozen_layers, lora_rank }
    }
}

impl fmt::Display for Branch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.precision)?;
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

/// The configurations of a problem: branches × micro-batches × densities.
#[derive(Clone, Debug)]
pub struct Grid {
    /// Branches in the order of the search space.
    pub branches: Vec<Branch>,
    /// Micro-batch sizes, smallest first; never empty.
    pub micros: Vec<usize>,
    /// Checkpoint densities, smallest first; never empty.
    pub densities: Vec<usize>,
}

impl Grid {
    /// The grid of a problem.
    ///
    /// # Errors
    /// If the model has no layers or the effective batch no samples.
    pub fn new(problem: &Problem) -> Result<Grid> {
        let (space, layers) = (&problem.space, problem.size.layers);
        ensure!(layers > 0, "a model without encoder layers has nothing to search");
        let micros = space.micro_batches(problem.effective_batch)?;
        let (densities, frozen) = (space.densities(layers), space.frozen(layers));
        let mut branches = Vec::new();
        for &precision in &space.precision {
            for &optimizer in &space.optimizer {
                for &frozen_layers in &frozen {
                    for &lora_rank in &space.lora_rank {
                        branches.push(Branch { precision, optimizer, frozen_layers, lora_rank });
                    }
                }
            }
        }
        Ok(Grid { branches, micros, densities })
    }

    /// Every combination of one branch.
    pub fn configurations(&self, branch: Branch) -> impl Iterator<Item = Knobs> {
        self.micros.iter().flat_map(move |&m| self.densities.iter().map(move |&r| branch.knobs(m, r)))
    }

    /// The combination of a branch that needs the least memory.
    pub fn smallest(&self, branch: Branch) -> Knobs {
        branch.knobs(self.micros[0], self.densities[self.densities.len() - 1])
    }

    /// The same combination at the next larger micro-batch, if there is one.
    pub fn larger_micro(&self, knobs: &Knobs) -> Option<Knobs> {
        let micro_batch = self.micros.iter().copied().find(|&m| m > knobs.micro_batch)?;
        Some(Knobs { micro_batch, ..*knobs })
    }

    /// The same combination at the next lower density, if there is one.
    pub fn lower_density(&self, knobs: &Knobs) -> Option<Knobs> {
        let checkpoint_layers = self.densities.iter().rev().copied().find(|&r| r < knobs.checkpoint_layers)?;
        Some(Knobs { checkpoint_layers, ..*knobs })
    }
}

/// The micro-batches of one optimizer step: how many of the largest size, and how many one sample smaller.
pub(super) fn part_counts(effective: usize, micro: usize) -> (usize, usize) {
    let count = partition::accumulation(effective, micro);
    match effective.checked_rem(count) {
        None | Some(0) => (count, 0),
        Some(larger) => (larger, count - larger),
    }
}
