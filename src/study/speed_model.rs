//! Seconds of a micro-batch as a function of the knobs: `t0 + r · u0 + micro · (t1 + r · t2)`, and of an optimizer step.
//!
//! `t0` is what a pass costs whatever its size (launching kernels), `u0` the same for one recomputed layer. Beforehand
//! only proportions are guessed: a recomputed layer runs its forward once more, a third of what it costs otherwise.
//! The scale comes from the first measurement, for a branch not yet measured from the branch most like it.

use serde::{Deserialize, Serialize};

use super::problem::{Branch, Problem, SizeHint, part_counts};
use super::regression::{Observation, Point, Posterior, Prediction, Prior, expected};
use crate::plan::Knobs;

/// Beliefs about t0, t1, t2, u0 relative to the guess. Optimizers share the passes; precisions share proportions only.
const PRIOR: Prior<4> =
    Prior { sd: [0.8, 0.4, 0.4, 0.5], likeness: [0.6, 0.99, 0.9, 0.8], bump: 0.02, reach: [1.2, 0.5] };

/// Hypotheses about t0 in units of the time of one sample: from a CPU, busy with the first sample already, to an
/// accelerator that waits for its kernels to be launched. All are kept, weighed by how well they explain the timings.
const OVERHEADS: [f64; 5] = [0.05, 0.4, 2.0, 8.0, 32.0];
/// Standard deviation of ln(scale) of a branch that is as unlike any measured one as can be.
const SCALE_SPREAD: f64 = 0.7;
/// How far an optimizer step that was never measured may lie from its guess, relative.
const OPTIMIZER_SPREAD: f64 = 0.5;
/// Guess for one optimizer step in units of the time of one sample, all parameters trained.
const OPTIMIZER_SHARE: f64 = 0.3;

/// What the model learns from.
#[derive(Clone, Debug, Default)]
pub struct SpeedEvidence {
    /// Mean seconds of a micro-batch, with the relative standard deviation of that mean.
    pub micro: Vec<(Knobs, f64, f64)>,
    /// Mean seconds of an optimizer step, one for each branch that has one.
    pub optimizer: Vec<(Branch, f64)>,
}

/// Speed, learned.
#[derive(Clone, Debug)]
pub struct SpeedModel {
    size: SizeHint,
    effective: usize,
    optimizer: Vec<(Branch, f64)>,
    hypotheses: Vec<Hypothesis>,
}

/// What the timings say if the overhead is this.
#[derive(Clone, Debug)]
struct Hypothesis {
    overhead: f64,
    /// Probability of the hypothesis, given the timings.
    weight: f64,
    /// Measured branches with seconds of one sample.
    scales: Vec<(Branch, f64)>,
    posterior: Posterior<4>,
}

/// The coefficients of one branch, in seconds: a micro-batch takes `t0 + r · u0 + micro · (t1 + r · t2)`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct SpeedCoefficients {
    /// Per pass.
    pub t0: f64,
    /// Per sample.
    pub t1: f64,
    /// Per sample and recomputed layer.
    pub t2: f64,
    /// Per pass and recomputed layer.
    pub u0: f64,
    /// Per optimizer step.
    pub optimizer: f64,
}

impl SpeedModel {
    /// Learns from what was timed.
    pub fn fit(problem: &Problem, evidence: &SpeedEvidence) -> Self {
        let size = problem.size;
        let mut hypotheses = OVERHEADS.map(|overhead| Hypothesis::fit(&size, evidence, overhead)).to_vec();
        let most = hypotheses.iter().map(|h| h.posterior.log_likelihood()).fold(f64::NEG_INFINITY, f64::max);
        for hypothesis in &mut hypotheses {
            hypothesis.weight = (hypothesis.posterior.log_likelihood() - most).exp();
        }
        let total: f64 = hypotheses.iter().map(|h| h.weight).sum();
        hypotheses.iter_mut().for_each(|h| h.weight /= total);
        let optimizer = evidence.optimizer.clone();
        SpeedModel { size, effective: problem.effective_batch, optimizer, hypotheses }
    }

    /// Mean and standard deviation over all hypotheses; `None` while nothing was timed at all.
    fn mixture(&self, predict: impl Fn(&Hypothesis) -> Option<Prediction>) -> Option<Prediction> {
        let parts: Option<Vec<(f64, Prediction)>> =
            self.hypotheses.iter().map(|h| Some((h.weight, predict(h)?))).collect();
        let parts = parts?;
        let mean: f64 = parts.iter().map(|(weight, p)| weight * p.mean).sum();
        let variance: f64 = parts.iter().map(|(weight, p)| weight * (p.sd.powi(2) + (p.mean - mean).powi(2))).sum();
        Some(Prediction { mean, sd: variance.sqrt() })
    }

    /// Expected seconds of one micro-batch of `micro` samples; `None` while nothing was timed at all.
    pub fn micro(&self, knobs: &Knobs) -> Option<Prediction> {
        self.mixture(|hypothesis| hypothesis.micro(&self.size, knobs))
    }

    /// Expected seconds of one optimizer step; `None` while nothing was timed at all.
    pub fn optimizer(&self, branch: Branch) -> Option<Prediction> {
        if let Some((_, seconds)) = self.optimizer.iter().find(|(own, _)| *own == branch) {
            return Some(Prediction { mean: *seconds, sd: 0.0 });
        }
        let trained = |branch| self.size.trained_parameters(branch);
        let like = |other: Branch| PRIOR.likeness(branch, other);
        let mean = match self.optimizer.iter().max_by(|a, b| like(a.0).total_cmp(&like(b.0))) {
            Some((other, seconds)) => seconds * trained(branch) / trained(*other),
            None => {
                let sample = self.mixture(|h| Some(Prediction { mean: h.scale(branch)?.0, sd: 0.0 }))?.mean;
                sample * OPTIMIZER_SHARE * trained(branch) / self.size.parameters as f64
            }
        };
        Some(Prediction { mean, sd: OPTIMIZER_SPREAD * mean })
    }

    /// Expected seconds of a whole optimizer step at the effective batch; `None` while nothing was timed at all.
    pub fn step(&self, knobs: &Knobs) -> Option<Prediction> {
        let (largest, smaller) = part_counts(self.effective, knobs.micro_batch);
        let (pass, update) = (self.micro(knobs)?, self.optimizer(Branch::of(knobs))?);
        let passes = largest as f64 + smaller as f64 * self.smaller_part(knobs);
        // Errors of equal passes are one error, so they add up.
        Some(Prediction { mean: passes * pass.mean + update.mean, sd: (passes * pass.sd).hypot(update.sd) })
    }

    /// Time of a pass with one sample less, relative to the pass at `knobs`.
    pub fn smaller_part(&self, knobs: &Knobs) -> f64 {
        let less = Knobs { micro_batch: knobs.micro_batch.saturating_sub(1), ..*knobs };
        if less.micro_batch == 0 {
            return 0.0;
        }
        let proportional = less.micro_batch as f64 / knobs.micro_batch as f64;
        match (self.micro(&less), self.micro(knobs)) {
            (Some(less), Some(whole)) => (less.mean / whole.mean).clamp(proportional, 1.0),
            _ => proportional,
        }
    }

    /// The expected coefficients of a branch; `None` while nothing was timed at all.
    pub fn coefficients(&self, branch: Branch) -> Option<SpeedCoefficients> {
        let alone = |j: usize| {
            let part = self.mixture(|hypothesis| {
                let mut features = [0.0; 4];
                features[j] = hypothesis.guess(&self.size, branch, hypothesis.scale(branch)?.0)[j];
                Some(hypothesis.posterior.predict(&Point { branch, features, place: None }))
            });
            part.map_or(0.0, |part| part.mean.max(0.0))
        };
        let optimizer = self.optimizer(branch)?.mean;
        Some(SpeedCoefficients { t0: alone(0), t1: alone(1), t2: alone(2), u0: alone(3), optimizer })
    }
}

impl Hypothesis {
    fn fit(size: &SizeHint, evidence: &SpeedEvidence, overhead: f64) -> Hypothesis {
        let blank = Posterior::fit(PRIOR, Vec::new());
        let mut hypothesis = Hypothesis { overhead, weight: 1.0, scales: Vec::new(), posterior: blank };
        let mut branches: Vec<Branch> = evidence.micro.iter().map(|(knobs, ..)| Branch::of(knobs)).collect();
        branches.sort_unstable();
        branches.dedup();
        for branch in branches {
            let own = evidence.micro.iter().filter(|(knobs, ..)| Branch::of(knobs) == branch);
            let unit = |knobs: &Knobs| expected(&hypothesis.point(size, knobs, 1.0));
            let logs: Vec<f64> = own.map(|(knobs, seconds, _)| (seconds / unit(knobs)).ln()).collect();
            let scale = (logs.iter().sum::<f64>() / logs.len() as f64).exp();
            hypothesis.scales.push((branch, scale));
        }
        let observations = evidence.micro.iter().filter_map(|(knobs, seconds, relative)| {
            let (scale, _) = hypothesis.scale(Branch::of(knobs))?;
            let point = hypothesis.point(size, knobs, scale);
            Some(Observation { point, value: *seconds, noise: relative * seconds })
        });
        hypothesis.posterior = Posterior::fit(PRIOR, observations.collect());
        hypothesis
    }

    /// Seconds of one sample in a branch, and the spread of its logarithm; `None` while nothing was timed.
    fn scale(&self, branch: Branch) -> Option<(f64, f64)> {
        let like = |other: Branch| PRIOR.likeness(branch, other);
        let &(nearest, scale) = self.scales.iter().max_by(|a, b| like(a.0).total_cmp(&like(b.0)))?;
        Some((scale, SCALE_SPREAD * (1.0 - like(nearest).powi(2)).sqrt()))
    }

    fn micro(&self, size: &SizeHint, knobs: &Knobs) -> Option<Prediction> {
        let (scale, spread) = self.scale(Branch::of(knobs))?;
        let there = self.point(size, knobs, scale);
        let Prediction { mean, sd } = self.posterior.predict(&there);
        // Straight lines may cross zero far from where they were measured; time doesn't.
        let mean = mean.max(0.1 * expected(&there));
        Some(Prediction { mean, sd: sd.hypot(spread * mean) })
    }

    /// Guesses for t0, t1, t2, u0 where one sample takes `scale` seconds.
    fn guess(&self, size: &SizeHint, branch: Branch, scale: f64) -> [f64; 4] {
        let layer = 1.0 / (3.0 * size.layers as f64);
        // Forward is a third of the work; backward of frozen layers isn't done at all.
        let frozen = branch.frozen_layers.unwrap_or(0) as f64 * 2.0 * layer;
        let adapters = if branch.lora_rank.is_some() { 0.8 } else { 1.0 };
        let sample = scale * (1.0 - frozen) * adapters;
        [self.overhead * sample, sample, sample * layer, self.overhead * sample * layer]
    }

    /// Features of a configuration.
    fn point(&self, size: &SizeHint, knobs: &Knobs, scale: f64) -> Point<4> {
        let branch = Branch::of(knobs);
        let [t0, t1, t2, u0] = self.guess(size, branch, scale);
        let (micro, r) = (knobs.micro_batch as f64, knobs.checkpoint_layers as f64);
        let place = Some([micro.ln(), r / size.layers as f64]);
        Point { branch, features: [t0, micro * t1, micro * r * t2, r * u0], place }
    }
}
