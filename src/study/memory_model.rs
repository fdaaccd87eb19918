//! Peak memory as a function of the knobs: `M0 + micro · (A0 + kept · A1 + r · A2)`.
//!
//! `M0` are weights, gradients and optimizer state; `A1` the activations of one layer that keeps them; `A2` the
//! boundary that a recomputed layer keeps; `A0` what embeddings and head keep, and what backward holds for a moment.
//! `kept = max(L − r, 1)`: while a layer is recomputed its activations are live, so the last one saves nothing.
//! The model proposes; it never decides what fits.

use serde::{Deserialize, Serialize};

use super::problem::{Branch, Problem, SizeHint};
use super::regression::{Observation, Point, Posterior, Prediction, Prior, normal_cdf, normal_pdf};
use crate::plan::{Knobs, OptimizerKind, Precision};
use crate::probe::protocol::Measurement;

/// Beliefs about M0, A0, A1, A2 relative to [`SizeHint`]'s guess. Optimizers share all but M0; precisions less.
const PRIOR: Prior<4> =
    Prior { sd: [0.2, 1.0, 0.6, 1.0], likeness: [0.6, 0.97, 0.85, 0.7], bump: 0.025, reach: [1.0, 0.4] };

/// Noise of a measured peak, relative: allocators repeat themselves closely.
const PEAK_NOISE: f64 = 0.003;
/// How far a peak never measured may lie from any smooth curve, relative: allocators round up.
const ROUNDING: f64 = 0.01;
/// How far M0 may lie from the sum of weights, gradients and optimizer state: temporaries, copies in half precision.
const STATIC_NOISE: f64 = 0.08;

/// Bytes of the fixed part of a workload.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StaticBytes {
    /// Weights, with copies in half precision.
    pub weights: f64,
    /// Gradients of trained parameters.
    pub gradients: f64,
    /// Optimizer state of trained parameters.
    pub optimizer: f64,
}

impl StaticBytes {
    /// The sum.
    pub fn total(&self) -> f64 {
        self.weights + self.gradients + self.optimizer
    }
}

impl SizeHint {
    /// The size of a model whose inside is not known, from one measured probe: a shape for which the guesses below
    /// give the bytes of that probe. Of such a size only the guesses mean anything; it knows no rows that could be
    /// shorter, and no part of it can be frozen.
    ///
    /// `layers` are those that can be recomputed; 1 where none can.
    pub fn measured(layers: usize, knobs: &Knobs, measured: &Measurement) -> SizeHint {
        let blank =
            SizeHint { parameters: 1, hidden: 1, layers, intermediate: 0, heads: 0, vocab: 0, positions: 0, length: 1 };
        let branch = Branch::of(knobs);
        let fixed = measured.weight_bytes + measured.gradient_bytes + measured.optimizer_bytes;
        let parameters = (fixed as f64 / blank.static_bytes(branch).total()).round().max(1.0) as u64;
        let [_, a0, a1, a2] = blank.memory_guess(branch);
        let (micro, r) = (knobs.micro_batch as f64, knobs.checkpoint_layers as f64);
        let kept = layers.saturating_sub(knobs.checkpoint_layers).max(1) as f64;
        // All three grow with the width alone.
        let activations = measured.peak_bytes.saturating_sub(fixed) as f64;
        let hidden = (activations / (micro * (a0 + kept * a1 + r * a2))).round().max(1.0) as usize;
        SizeHint { parameters, hidden, ..blank }
    }

    /// Parameters of one encoder layer: four attention projections and two of the feed-forward block.
    fn layer_parameters(&self) -> f64 {
        let (h, i) = (self.hidden as f64, self.intermediate as f64);
        4.0 * h * h + 2.0 * h * i + 9.0 * h + i
    }

    /// Parameters that a branch trains.
    pub fn trained_parameters(&self, branch: Branch) -> f64 {
        let (all, h, layers) = (self.parameters as f64, self.hidden as f64, self.layers as f64);
        if let Some(rank) = branch.lora_rank {
            let adapted = layers - branch.frozen_layers.unwrap_or(0) as f64;
            // Two matrices beside each of two projections, and the head.
            return adapted * 2.0 * 2.0 * h * rank as f64 + h * h;
        }
        match branch.frozen_layers {
            None => all,
            Some(k) => (all - (self.vocab + self.positions) as f64 * h - k as f64 * self.layer_parameters()).max(h * h),
        }
    }

    /// Bytes of weights, gradients and optimizer state, all in 32 bits.
    pub fn static_bytes(&self, branch: Branch) -> StaticBytes {
        let trained = self.trained_parameters(branch);
        let state = match branch.optimizer {
            OptimizerKind::AdamW => 8.0,
            OptimizerKind::Lion | OptimizerKind::Sgd => 4.0,
            OptimizerKind::Adafactor => 0.05,
        };
        StaticBytes { weights: 4.0 * self.parameters as f64, gradients: 4.0 * trained, optimizer: state * trained }
    }

    /// Guesses for M0, A0, A1, A2 in bytes. Activations of a layer are counted as in Korthikanti et al. 2022,
    /// "Reducing Activation Recomputation in Large Transformer Models", eq. 1: 34·s·h + 5·a·s² bytes in half precision.
    pub fn memory_guess(&self, branch: Branch) -> [f64; 4] {
        let (n, h, i, a) = (self.length as f64, self.hidden as f64, self.intermediate as f64, self.heads as f64);
        let bytes = if branch.precision == Precision::Fp32 { 4.0 } else { 2.2 };
        let layer = bytes * (n * (9.0 * h + 2.0 * i) + 2.5 * a * n * n);
        let boundary = bytes * n * h;
        // Frozen layers below keep nothing, so a layer costs less on average.
        let live = 1.0 - branch.frozen_layers.unwrap_or(0) as f64 / (self.layers + 1) as f64;
        [self.static_bytes(branch).total(), 0.5 * layer + 3.0 * boundary, live * layer, live * boundary]
    }
}

/// What the model learns from.
#[derive(Clone, Debug, Default)]
pub struct MemoryEvidence {
    /// Peaks of configurations that fit.
    pub peaks: Vec<(Knobs, f64)>,
    /// Configurations that didn't fit, each with the bytes known to be too little, where known.
    pub refused: Vec<(Knobs, Option<f64>)>,
    /// Bytes of weights, gradients and optimizer state, one measurement for each branch that has one.
    pub statics: Vec<(Branch, f64)>,
}

/// Peak memory, learned.
#[derive(Clone, Debug)]
pub struct MemoryModel {
    size: SizeHint,
    cap: Option<f64>,
    posterior: Posterior<4>,
}

/// The coefficients of one branch, in bytes: `peak = m0 + micro · (a0 + max(L − r, 1) · a1 + r · a2)`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct MemoryCoefficients {
    /// Weights, gradients, optimizer state.
    pub m0: f64,
    /// Per sample: embeddings, head, what backward holds for a moment.
    pub a0: f64,
    /// Per sample and layer that keeps its activations.
    pub a1: f64,
    /// Per sample and recomputed layer.
    pub a2: f64,
}

impl MemoryCoefficients {
    /// Expected peak in bytes.
    pub fn peak(&self, layers: usize, micro: usize, checkpoint_layers: usize) -> f64 {
        let kept = layers.saturating_sub(checkpoint_layers).max(1) as f64;
        self.m0 + micro as f64 * (self.a0 + kept * self.a1 + checkpoint_layers as f64 * self.a2)
    }
}

impl MemoryModel {
    /// Learns from what was measured and refused.
    pub fn fit(problem: &Problem, evidence: &MemoryEvidence) -> Self {
        let size = problem.size;
        let mut observations: Vec<Observation<4>> = Vec::new();
        for &(branch, bytes) in &evidence.statics {
            let mut point = Point { branch, features: size.memory_guess(branch), place: None };
            point.features[1..].fill(0.0);
            observations.push(Observation { point, value: bytes, noise: STATIC_NOISE * bytes });
        }
        for (knobs, peak) in &evidence.peaks {
            observations.push(Observation { point: point(&size, knobs), value: *peak, noise: PEAK_NOISE * peak });
        }
        let cap = problem.cap_bytes.map(|cap| cap as f64).or_else(|| {
            // Without a cap of ours the device refused: the least that it refused is the best guess at what it has.
            evidence.refused.iter().filter_map(|(_, bound)| *bound).reduce(f64::min)
        });
        let mut posterior = Posterior::fit(PRIOR, observations.clone());
        for (knobs, bound) in &evidence.refused {
            let bounds = problem.cap_bytes.map(|cap| cap as f64).into_iter().chain(*bound);
            let Some(least) = bounds.reduce(f64::max) else { continue };
            let there = point(&size, knobs);
            if let Some(observation) = above(posterior.predict(&there), there, least) {
                observations.push(observation);
                posterior = Posterior::fit(PRIOR, observations.clone());
            }
        }
        MemoryModel { size, cap, posterior }
    }

    /// Expected peak in bytes.
    pub fn peak(&self, knobs: &Knobs) -> Prediction {
        let Prediction { mean, sd } = self.posterior.predict(&point(&self.size, knobs));
        Prediction { mean: mean.max(0.5 * self.size.static_bytes(Branch::of(knobs)).total()), sd }
    }

    /// Probability that a configuration fits.
    pub fn fits(&self, knobs: &Knobs) -> f64 {
        let Some(cap) = self.cap else { return 1.0 };
        let Prediction { mean, sd } = self.peak(knobs);
        normal_cdf((cap - mean) / sd.hypot(ROUNDING * mean))
    }

    /// The expected coefficients of a branch, none below zero.
    pub fn coefficients(&self, branch: Branch) -> MemoryCoefficients {
        let guess = self.size.memory_guess(branch);
        let alone = |j: usize| {
            let mut features = [0.0; 4];
            features[j] = guess[j];
            self.posterior.predict(&Point { branch, features, place: None }).mean.max(0.0)
        };
        MemoryCoefficients { m0: alone(0), a0: alone(1), a1: alone(2), a2: alone(3) }
    }
}

/// What an OOM teaches: the peak lies above `least`. The truncated normal distribution is replaced by the observation
/// that would have led to its mean and variance (assumed-density filtering; Minka 2001, section 3.2). `None` where the
/// model knew already.
fn above(before: Prediction, point: Point<4>, least: f64) -> Option<Observation<4>> {
    let sd = before.sd.hypot(ROUNDING * before.mean);
    let z = (least - before.mean) / sd;
    let beyond = normal_cdf(-z);
    // The ratio of two numbers that vanish together, by its asymptote.
    let hazard = if beyond > 1e-6 { normal_pdf(z) / beyond } else { z + 1.0 / z };
    let shrink = (hazard * (hazard - z)).clamp(0.0, 0.99);
    if shrink < 0.02 {
        return None;
    }
    let precision = shrink / ((1.0 - shrink) * sd * sd);
    // after / variance(after) = before / variance(before) + value · precision, solved for the value.
    let after = before.mean + sd * hazard;
    let value = (after / ((1.0 - shrink) * sd * sd) - before.mean / (sd * sd)) / precision;
    Some(Observation { point, value, noise: precision.sqrt().recip() })
}

/// Features of a configuration.
fn point(size: &SizeHint, knobs: &Knobs) -> Point<4> {
    let branch = Branch::of(knobs);
    let [m0, a0, a1, a2] = size.memory_guess(branch);
    let (micro, r) = (knobs.micro_batch as f64, knobs.checkpoint_layers as f64);
    let kept = size.layers.saturating_sub(knobs.checkpoint_layers).max(1) as f64;
    let place = Some([micro.ln(), r / size.layers as f64]);
    Point { branch, features: [m0, micro * a0, micro * kept * a1, micro * r * a2], place }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_measured_size_guesses_what_was_measured() {
        let all = OptimizerKind::ALL.into_iter().flat_map(|optimizer| Precision::ALL.map(|p| (optimizer, p)));
        for (optimizer, precision) in all {
            for (layers, micro, r) in [(1, 1, 0), (12, 1, 12), (12, 4, 3), (6, 32, 6)] {
                let knobs = Knobs { optimizer, ..Knobs::new(precision, micro, r) };
                let measured = Measurement {
                    peak_bytes: 900 << 20,
                    weight_bytes: 100 << 20,
                    gradient_bytes: 90 << 20,
                    optimizer_bytes: 210 << 20,
                    ..Measurement::default()
                };
                let [m0, a0, a1, a2] = SizeHint::measured(layers, &knobs, &measured).memory_guess(Branch::of(&knobs));
                let guess = MemoryCoefficients { m0, a0, a1, a2 };
                assert!((m0 / f64::from(400 << 20) - 1.0).abs() < 1e-3, "{knobs}: {m0}");
                let peak = guess.peak(layers, micro, r);
                assert!((peak / f64::from(900 << 20) - 1.0).abs() < 1e-3, "{knobs}: {peak}");
            }
        }
        // Without activations, or anything at all, every guess stays above zero: models divide by it.
        let nothing = SizeHint::measured(1, &Knobs::new(Precision::Fp32, 1, 0), &Measurement::default());
        assert!(nothing.memory_guess(Branch::of(&Knobs::new(Precision::Fp32, 1, 0))).iter().all(|&guess| guess > 0.0));
    }
}
