//! How a study ends: the answer with its neighbours, or why there is none.

use super::evidence::{Evidence, Known, Score};
use super::memory_model::MemoryCoefficients;
use super::problem::{Branch, Grid, Problem};
use super::shortfall::Shortfall;
use super::speed_model::SpeedCoefficients;
use super::trial::Trial;
use crate::plan::{ByteSize, Knobs, Outcome};
use crate::probe::protocol::Measurement;

/// The rule by which equals are told apart, as written into the answer.
pub const TIE_RULE: &str = "speeds within 2 %, or whose 95 % intervals overlap, count as equal; \
                            among equals full precision goes first, then the lower peak";

/// How a study ended.
#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    /// The answer, certified unless its certification could not be had.
    Found(Answer),
    /// Even the smallest configuration ran out of memory.
    NothingFits(Shortfall),
    /// Probes failed for reasons that have nothing to do with memory.
    Failed {
        /// What happened, with the last words of the probes.
        reason: String,
    },
    /// The time budget ended first.
    OutOfTime {
        /// The best so far.
        best: Option<Answer>,
    },
    /// The user interrupted.
    Interrupted {
        /// The best so far.
        best: Option<Answer>,
    },
}

impl Verdict {
    /// The answer, whole or preliminary, if there is one.
    pub fn answer(&self) -> Option<&Answer> {
        match self {
            Verdict::Found(answer) => Some(answer),
            Verdict::OutOfTime { best } | Verdict::Interrupted { best } => best.as_ref(),
            Verdict::NothingFits(_) | Verdict::Failed { .. } => None,
        }
    }
}

/// What lies next to the answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Neighbour {
    /// The configuration; `None` when the search space ends here.
    pub knobs: Option<Knobs>,
    /// What became of it; `None` when there is none, or when it wasn't probed (the reason says which).
    pub outcome: Option<Outcome>,
    /// Its speed, where it fits and was measured.
    pub samples_per_second: Option<f64>,
    /// In one line.
    pub reason: String,
}

/// A configuration with everything that was measured about it.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    /// The configuration.
    pub knobs: Knobs,
    /// Forward/backward passes per optimizer step.
    pub accumulation: usize,
    /// Samples per optimizer step.
    pub effective_batch: usize,
    /// Bytes that the workload may use; `None` where there was no cap.
    pub cap_bytes: Option<u64>,
    /// Speed and peak, pooled over all its probes.
    pub score: Score,
    /// Its last measurement.
    pub measurement: Measurement,
    /// Highest peak of an evaluation batch, where one ran.
    pub evaluation_peak_bytes: Option<u64>,
    /// Whether it passed the longer probe with an evaluation batch.
    pub certified: bool,
    /// The same at the next larger micro-batch.
    pub larger_micro: Neighbour,
    /// The same with fewer layers recomputed.
    pub lower_density: Neighbour,
    /// Memory of its branch.
    pub memory: MemoryCoefficients,
    /// Speed of its branch.
    pub speed: SpeedCoefficients,
}

impl Answer {
    /// Bytes at the peak beyond weights, gradients and optimizer state.
    pub fn activation_bytes(&self) -> u64 {
        let Measurement { weight_bytes, gradient_bytes, optimizer_bytes, .. } = self.measurement;
        self.score.peak_bytes.saturating_sub(weight_bytes + gradient_bytes + optimizer_bytes)
    }

    /// The answer for a measured configuration.
    pub(super) fn new(
        problem: &Problem,
        grid: &Grid,
        trials: &[Trial],
        evidence: &Evidence,
        score: Score,
    ) -> Option<Answer> {
        let tally = evidence.tally(&score.knobs)?;
        let branch = Branch::of(&score.knobs);
        let look = |knobs: Option<Knobs>, none: String| neighbour(trials, evidence, &score, knobs, none);
        let micro_ends = if score.knobs.micro_batch >= problem.effective_batch {
            format!("micro-batch {} is the whole effective batch", score.knobs.micro_batch)
        } else {
            format!("the search space has no micro-batch above {}", score.knobs.micro_batch)
        };
        let density_ends = match score.knobs.checkpoint_layers {
            0 => "no layer is recomputed".to_string(),
            r => format!("the search space has no density below {r} layers"),
        };
        Some(Answer {
            knobs: score.knobs,
            accumulation: score.knobs.accumulation(problem.effective_batch),
            effective_batch: problem.effective_batch,
            cap_bytes: problem.cap_bytes,
            score,
            measurement: tally.measurement.clone()?,
            evaluation_peak_bytes: tally.evaluation_peak_bytes,
            certified: tally.certified.is_some(),
            larger_micro: look(grid.larger_micro(&score.knobs), micro_ends),
            lower_density: look(grid.lower_density(&score.knobs), density_ends),
            memory: evidence.memory.coefficients(branch),
            speed: evidence.speed.coefficients(branch)?,
        })
    }
}

/// What is known about a neighbour of the configuration scored `own`.
fn neighbour(trials: &[Trial], evidence: &Evidence, own: &Score, knobs: Option<Knobs>, none: String) -> Neighbour {
    let Some(knobs) = knobs else {
        return Neighbour { knobs: None, outcome: None, samples_per_second: None, reason: none };
    };
    let by = |number: usize| trials.iter().find(|trial| trial.number == number);
    let mut speed = None;
    let (outcome, reason) = match evidence.known(&knobs) {
        Known::Oom(number) => match by(number) {
            Some(trial) if trial.knobs == knobs => {
                (Some(Outcome::Oom), format!("trial {number}: {}", trial.attempt.reason))
            }
            Some(trial) => {
                let Knobs { micro_batch, checkpoint_layers, .. } = trial.knobs;
                let less =
                    format!("micro-batch {micro_batch} with {checkpoint_layers} layers recomputed needs no more");
                (Some(Outcome::Oom), format!("{less} and ran out of memory (trial {number})"))
            }
            None => (Some(Outcome::Oom), format!("trial {number}")),
        },
        Known::Fit(number) => {
            speed = evidence.score(&knobs).map(|score| score.samples_per_second);
            let peak = evidence.tally(&knobs).map_or(0, |tally| tally.peak_bytes);
            let change = speed.map_or(0.0, |speed| 100.0 * (speed / own.samples_per_second - 1.0));
            let against = if change.abs() < 0.05 { "as fast as".into() } else { format!("{change:+.1} % against") };
            (Some(Outcome::Fit), format!("trial {number}: fits at a peak of {}, {against} the answer", ByteSize(peak)))
        }
        Known::ImpliedFit(number) => (Some(Outcome::Fit), format!("trial {number} needs more and fits")),
        Known::Nothing => {
            match trials.iter().rev().find(|t| t.knobs == knobs && t.attempt.outcome != Outcome::Pruned) {
                Some(trial) => {
                    (Some(trial.attempt.outcome), format!("trial {}: {}", trial.number, trial.attempt.reason))
                }
                None => (None, "not probed: the study ended first".to_string()),
            }
        }
    };
    Neighbour { knobs: Some(knobs), outcome, samples_per_second: speed, reason }
}
