//! When nothing fits: what the smallest configuration needs, and which single change would help.

use serde::Serialize;

use super::evidence::Evidence;
use super::memory_model::StaticBytes;
use super::problem::{Branch, Grid, Problem, SizeHint};
use super::trial::Trial;
use crate::plan::{Knobs, OptimizerKind, Outcome, Precision};

/// A change must leave this share of the cap free, by the model, before it is suggested.
const MARGIN: f64 = 0.05;

/// One change that would fit, according to the model.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Cure {
    /// What to change, as a person would do it.
    pub change: String,
    /// Expected peak in bytes.
    pub peak_bytes: u64,
}

/// Why nothing fits.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Shortfall {
    /// The configuration that needs least; it was probed and ran out of memory.
    pub smallest: Knobs,
    /// Number of the trial that showed it.
    pub trial: usize,
    /// Bytes that the workload may use, where capped.
    pub cap_bytes: Option<u64>,
    /// Expected peak of the smallest configuration in bytes: above the cap.
    pub needed_bytes: u64,
    /// Bytes of weights.
    pub weight_bytes: u64,
    /// Bytes of gradients.
    pub gradient_bytes: u64,
    /// Bytes of optimizer state.
    pub optimizer_bytes: u64,
    /// Bytes of activations and what else the peak holds.
    pub activation_bytes: u64,
    /// Changes that would fit, the gentlest first.
    pub cures: Vec<Cure>,
}

impl Shortfall {
    /// Explains the smallest of the configurations that ran out of memory. `None` if none did.
    pub(super) fn new(problem: &Problem, grid: &Grid, trials: &[Trial], evidence: &Evidence) -> Option<Shortfall> {
        let smallest = trials
            .iter()
            .filter(|trial| trial.attempt.outcome == Outcome::Oom)
            .filter(|trial| trial.knobs == grid.smallest(Branch::of(&trial.knobs)))
            .min_by(|a, b| evidence.memory.peak(&a.knobs).mean.total_cmp(&evidence.memory.peak(&b.knobs).mean))?;
        let knobs = smallest.knobs;
        let oom = smallest.attempt.oom.as_ref();
        let refused = oom.and_then(|oom| oom.live?.checked_add(oom.requested?));
        let cap = problem.cap_bytes.or(refused);
        let least = refused.max(problem.cap_bytes.map(|cap| cap + 1)).unwrap_or(0);
        let needed_bytes = (evidence.memory.peak(&knobs).mean as u64).max(least);
        let StaticBytes { weights, gradients, optimizer } = problem.size.static_bytes(Branch::of(&knobs));
        let static_bytes = (weights + gradients + optimizer) as u64;
        let cures = match cap {
            Some(cap) => cures(problem, evidence, knobs, needed_bytes as f64, (1.0 - MARGIN) * cap as f64),
            None => Vec::new(),
        };
        Some(Shortfall {
            smallest: knobs,
            trial: smallest.number,
            cap_bytes: problem.cap_bytes,
            needed_bytes: needed_bytes.max(static_bytes),
            weight_bytes: weights as u64,
            gradient_bytes: gradients as u64,
            optimizer_bytes: optimizer as u64,
            activation_bytes: needed_bytes.saturating_sub(static_bytes),
            cures,
        })
    }
}

/// Single changes after which the model expects a peak of at most `limit` bytes.
fn cures(problem: &Problem, evidence: &Evidence, knobs: Knobs, needed: f64, limit: f64) -> Vec<Cure> {
    let size = problem.size;
    // The model's own guess for another shape is scaled by how wrong it was about this one.
    let guess = |size: &SizeHint, knobs: &Knobs| {
        let kept = size.layers.saturating_sub(knobs.checkpoint_layers).max(1) as f64;
        let [m0, a0, a1, a2] = size.memory_guess(Branch::of(knobs));
        m0 + knobs.micro_batch as f64 * (a0 + kept * a1 + knobs.checkpoint_layers as f64 * a2)
    };
    let wrong = needed / guess(&size, &knobs);
    let learned = |other: &Knobs| evidence.memory.peak(other).mean * (needed / evidence.memory.peak(&knobs).mean);
    let mut found = Vec::new();
    let mut offer = |change: String, peak: f64| {
        let fits = peak <= limit;
        if fits {
            found.push(Cure { change, peak_bytes: peak as u64 });
        }
        fits
    };
    if knobs.micro_batch > 1 {
        offer("micro-batch 1".into(), learned(&Knobs { micro_batch: 1, ..knobs }));
    }
    if knobs.checkpoint_layers < size.layers {
        let full = Knobs { checkpoint_layers: size.layers, ..knobs };
        offer(format!("recompute all {} layers (checkpoint_layers = \"full\")", size.layers), learned(&full));
    }
    if knobs.precision == Precision::Fp32 {
        offer("precision bf16".into(), learned(&Knobs { precision: Precision::Bf16, ..knobs }));
    }
    let shorter = std::iter::successors(Some(size.length.next_power_of_two() / 2), |length| Some(length / 2));
    for length in shorter.take_while(|&length| length >= 16).filter(|&length| length < size.length) {
        if offer(format!("rows of at most {length} tokens"), wrong * guess(&SizeHint { length, ..size }, &knobs)) {
            break;
        }
    }
    for optimizer in [OptimizerKind::Lion, OptimizerKind::Sgd, OptimizerKind::Adafactor] {
        if optimizer != knobs.optimizer {
            offer(format!("optimizer {optimizer}"), learned(&Knobs { optimizer, ..knobs }));
        }
    }
    if knobs.frozen_layers.is_none() && knobs.lora_rank.is_none() {
        let half = size.layers.div_ceil(2);
        offer(
            format!("freeze the embeddings and {half} layers"),
            learned(&Knobs { frozen_layers: Some(half), ..knobs }),
        );
        offer("adapters of rank 8".into(), learned(&Knobs { lora_rank: Some(8), ..knobs }));
    }
    for (name, smaller) in &problem.smaller {
        let layers = knobs.checkpoint_layers.min(smaller.layers);
        let there = Knobs {
            checkpoint_layers: if knobs.checkpoint_layers == size.layers { smaller.layers } else { layers },
            ..knobs
        };
        offer(format!("the smaller model {name}"), wrong * guess(smaller, &there));
    }
    found
}
