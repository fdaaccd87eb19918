//! What the trials so far say: which configurations are known to fit or not, how fast each is, and the two models.
//!
//! Everything is computed afresh from the list of trials, so that a study resumed from its journal continues exactly
//! as it would have.

use std::collections::{BTreeMap, BTreeSet};

use super::memory_model::{MemoryEvidence, MemoryModel};
use super::problem::{Branch, Grid, Problem, part_counts};
use super::speed_model::{SpeedEvidence, SpeedModel};
use super::trial::{Purpose, Trial};
use crate::plan::{Knobs, Outcome};
use crate::probe::protocol::Measurement;

/// Throughputs this close, relative, count as equal: below it lies what a warm machine or a full disk cache does.
pub const TIE: f64 = 0.02;
/// Failures in a row (a crash, a timeout, …) after which a configuration is given up.
pub const MAX_FAILURES: usize = 2;
/// Relative standard deviation of one timing, believed as firmly as `NOISE_WEIGHT` timings would be.
const NOISE: f64 = 0.03;
const NOISE_WEIGHT: f64 = 4.0;
/// Relative standard deviation between two probes of the same configuration that more timings don't average out.
const DRIFT: f64 = 0.008;
/// A timing beyond this multiple of the median is an interruption by something else and counts as no more than that.
const HICCUP: f64 = 3.0;

/// Everything known about one configuration.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// Seconds of every timed micro-batch, over all probes.
    pub micro_seconds: Vec<f64>,
    /// Highest peak of all probes, in bytes.
    pub peak_bytes: u64,
    /// Highest peak of evaluation batches, in bytes.
    pub evaluation_peak_bytes: Option<u64>,
    /// The last measurement.
    pub measurement: Option<Measurement>,
    /// Number of the last trial that fit.
    pub fit: Option<usize>,
    /// Probes that fit.
    pub fits: usize,
    /// Number of the first trial that ran out of memory.
    pub oom: Option<usize>,
    /// Number of the trial that certified it.
    pub certified: Option<usize>,
    /// Probes of purpose [`Purpose::Settle`].
    pub settles: usize,
    /// Failures in a row that say nothing about memory.
    pub failures: usize,
}

/// Measured speed of one configuration that fits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Score {
    /// The configuration.
    pub knobs: Knobs,
    /// Seconds of one optimizer step at the effective batch.
    pub step_seconds: f64,
    /// Samples per second of an effective batch.
    pub samples_per_second: f64,
    /// Relative standard deviation of both.
    pub spread: f64,
    /// Highest measured peak, in bytes.
    pub peak_bytes: u64,
}

impl Score {
    /// Ends of the 95 % interval of samples per second.
    pub fn interval(&self) -> (f64, f64) {
        let factor = (1.96 * self.spread).exp();
        (self.samples_per_second / factor, self.samples_per_second * factor)
    }
}

/// Whether a configuration fits, and the trial that says so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Known {
    /// It, or one that needs less, ran out of memory.
    Oom(usize),
    /// It was measured.
    Fit(usize),
    /// One that needs more was measured.
    ImpliedFit(usize),
    /// No trial says.
    Nothing,
}

/// The fastest, and the one to choose.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Standing {
    /// The fastest measured.
    pub leader: Score,
    /// The safest of those as fast within noise: the lowest peak in the safest precision.
    pub pick: Score,
}

/// What the trials say.
#[derive(Clone, Debug)]
pub struct Evidence {
    effective: usize,
    tallies: BTreeMap<Knobs, Tally>,
    /// Branches that the device can't do.
    pub unsupported: BTreeSet<Branch>,
    /// Branches already recorded as pruned.
    pub pruned: BTreeSet<Branch>,
    /// Peak memory.
    pub memory: MemoryModel,
    /// Speed.
    pub speed: SpeedModel,
    noise: f64,
    /// Mean seconds that a probe spends outside the training loop.
    pub setup_seconds: f64,
}

impl Evidence {
    /// Learns from the trials.
    pub fn new(problem: &Problem, grid: &Grid, trials: &[Trial]) -> Evidence {
        let mut tallies: BTreeMap<Knobs, Tally> = BTreeMap::new();
        let (mut unsupported, mut pruned) = (BTreeSet::new(), BTreeSet::new());
        let mut refused: Vec<(Knobs, Option<f64>)> = Vec::new();
        let mut optimizer: BTreeMap<Branch, Vec<f64>> = BTreeMap::new();
        let mut setups = Vec::new();
        for trial in trials {
            // One that was interrupted was not looked at: it must be asked for again as if for the first time.
            if trial.attempt.outcome == Outcome::Interrupted {
                continue;
            }
            let branch = Branch::of(&trial.knobs);
            let tally = tallies.entry(trial.knobs).or_default();
            match (trial.attempt.outcome, &trial.attempt.measurement) {
                (Outcome::Fit, Some(measured)) => {
                    tally.add(trial, measured);
                    optimizer.entry(branch).or_default().extend(usable(&measured.optimizer_seconds));
                    setups.push(measured.setup_seconds);
                }
                (Outcome::Oom, _) => {
                    tally.oom.get_or_insert(trial.number);
                    tally.failures = 0;
                    let oom = trial.attempt.oom.as_ref();
                    let bound = oom.and_then(|oom| Some(oom.live?.saturating_add(oom.requested?) as f64));
                    refused.push((trial.knobs, bound));
                }
                (Outcome::Unsupported, _) => drop(unsupported.insert(branch)),
                (Outcome::Pruned, _) => drop(pruned.insert(branch)),
                // Fit without a measurement can't be told from a crash.
                _ => tally.failures += 1,
            }
        }
        let noise = pooled_noise(trials);
        let in_grid = |knobs: &Knobs| grid.branches.contains(&Branch::of(knobs));
        let fits = || tallies.iter().filter(|(knobs, tally)| tally.fits > 0 && in_grid(knobs));
        let mut statics: BTreeMap<Branch, f64> = BTreeMap::new();
        for (knobs, measured) in fits().filter_map(|(knobs, tally)| Some((knobs, tally.measurement.as_ref()?))) {
            let bytes = measured.weight_bytes + measured.gradient_bytes + measured.optimizer_bytes;
            if bytes > 0 {
                statics.insert(Branch::of(knobs), bytes as f64);
            }
        }
        let memory = MemoryModel::fit(
            problem,
            &MemoryEvidence {
                peaks: fits().map(|(knobs, tally)| (*knobs, tally.peak_bytes as f64)).collect(),
                refused,
                statics: statics.into_iter().collect(),
            },
        );
        let timed = fits().filter_map(|(knobs, tally)| {
            let mean = robust_mean(&tally.micro_seconds)?;
            Some((*knobs, mean, tally.spread(noise)))
        });
        let optimizer = optimizer.into_iter().filter_map(|(branch, seconds)| Some((branch, robust_mean(&seconds)?)));
        let speed = SpeedModel::fit(problem, &SpeedEvidence { micro: timed.collect(), optimizer: optimizer.collect() });
        let setup_seconds = setups.iter().sum::<f64>() / setups.len().max(1) as f64;
        let effective = problem.effective_batch;
        Evidence { effective, tallies, unsupported, pruned, memory, speed, noise, setup_seconds }
    }

    /// What is known about one configuration, if it was ever asked for.
    pub fn tally(&self, knobs: &Knobs) -> Option<&Tally> {
        self.tallies.get(knobs)
    }

    /// Every configuration that was asked for.
    pub fn tallies(&self) -> impl Iterator<Item = (&Knobs, &Tally)> {
        self.tallies.iter()
    }

    /// Whether a configuration fits. Memory grows with the micro-batch and shrinks with the density, so an OOM speaks
    /// for everything larger, and a fit for everything smaller; where they contradict each other the OOM counts.
    pub fn known(&self, knobs: &Knobs) -> Known {
        let same = |other: &Knobs| Branch::of(other) == Branch::of(knobs);
        let needs_less = |other: &Knobs| {
            other.micro_batch <= knobs.micro_batch && other.checkpoint_layers >= knobs.checkpoint_layers
        };
        let needs_more = |other: &Knobs| {
            other.micro_batch >= knobs.micro_batch && other.checkpoint_layers <= knobs.checkpoint_layers
        };
        let related = || self.tallies.iter().filter(|(other, _)| same(other));
        if let Some(trial) = related().filter(|(other, _)| needs_less(other)).find_map(|(_, tally)| tally.oom) {
            return Known::Oom(trial);
        }
        if let Some(trial) = self.tallies.get(knobs).and_then(|tally| tally.fit) {
            return Known::Fit(trial);
        }
        match related().filter(|(other, tally)| needs_more(other) && tally.oom.is_none()).find_map(|(_, t)| t.fit) {
            Some(trial) => Known::ImpliedFit(trial),
            None => Known::Nothing,
        }
    }

    /// Whether a configuration failed too often to be asked for again.
    pub fn given_up(&self, knobs: &Knobs) -> bool {
        self.tallies.get(knobs).is_some_and(|tally| tally.failures >= MAX_FAILURES)
    }

    /// Seconds of one optimizer step at the effective batch, from timings of its largest micro-batch: never run k passes
    /// to learn what one teaches. `None` without usable timings.
    pub fn step_seconds(&self, knobs: &Knobs, micro_seconds: &[f64]) -> Option<f64> {
        let usable: Vec<f64> = usable(micro_seconds).collect();
        let pass = robust_mean(&usable)?;
        let (largest, smaller) = part_counts(self.effective, knobs.micro_batch);
        let passes = pass * (largest as f64 + smaller as f64 * self.speed.smaller_part(knobs));
        Some(passes + self.speed.optimizer(Branch::of(knobs)).map_or(0.0, |update| update.mean))
    }

    /// Measured speed of a configuration that is known to fit and may be the answer.
    pub fn score(&self, knobs: &Knobs) -> Option<Score> {
        let tally = self.tallies.get(knobs)?;
        if tally.fits == 0 || self.given_up(knobs) || matches!(self.known(knobs), Known::Oom(_)) {
            return None;
        }
        let step_seconds = self.step_seconds(knobs, &tally.micro_seconds)?;
        Some(Score {
            knobs: *knobs,
            step_seconds,
            samples_per_second: self.effective as f64 / step_seconds,
            spread: tally.spread(self.noise),
            peak_bytes: tally.peak_bytes.max(tally.evaluation_peak_bytes.unwrap_or(0)),
        })
    }

    /// Every configuration that may be the answer.
    pub fn scores(&self) -> Vec<Score> {
        self.tallies.keys().filter_map(|knobs| self.score(knobs)).collect()
    }

    /// The fastest and the one to choose; `None` while nothing fits.
    pub fn standing(&self) -> Option<Standing> {
        let scores = self.scores();
        let leader = *scores.iter().max_by(|a, b| a.samples_per_second.total_cmp(&b.samples_per_second))?;
        let pick = scores
            .into_iter()
            .filter(|score| tied(score, &leader))
            .min_by_key(|score| (score.knobs.precision, score.peak_bytes, score.knobs))?;
        Some(Standing { leader, pick })
    }
}

/// Whether a configuration is as fast as the leader, within noise.
pub fn tied(score: &Score, leader: &Score) -> bool {
    close(score, leader) || score.interval().1 >= leader.interval().0
}

/// Whether a configuration is as fast as the leader whatever the noise.
fn close(score: &Score, leader: &Score) -> bool {
    score.samples_per_second >= (1.0 - TIE) * leader.samples_per_second
}

impl Tally {
    fn add(&mut self, trial: &Trial, measured: &Measurement) {
        self.micro_seconds.extend(usable(&measured.micro_seconds));
        self.peak_bytes = self.peak_bytes.max(measured.peak_bytes);
        self.evaluation_peak_bytes = self.evaluation_peak_bytes.max(measured.evaluation_peak_bytes);
        self.measurement = Some(measured.clone());
        self.fit = Some(trial.number);
        self.fits += 1;
        self.failures = 0;
        match trial.purpose {
            Purpose::Settle => self.settles += 1,
            Purpose::Certify => self.certified = Some(trial.number),
            _ => {}
        }
    }

    /// Relative standard deviation of the mean of `micro_seconds`: its own scatter, drawn towards that of all trials.
    fn spread(&self, noise: f64) -> f64 {
        let count = self.micro_seconds.len().max(1) as f64;
        let own = scatter(&self.micro_seconds);
        let variance = (NOISE_WEIGHT * noise * noise + own) / (NOISE_WEIGHT + count - 1.0);
        (variance / count + DRIFT * DRIFT / self.fits.max(1) as f64).sqrt()
    }
}

/// Timings that can be one: finite and above zero.
fn usable(seconds: &[f64]) -> impl Iterator<Item = f64> {
    seconds.iter().copied().filter(|s| s.is_finite() && *s > 0.0)
}

/// The mean, interruptions cut down; `None` for no timings. Not the median: rows differ in length, and a step takes the
/// sum over all of them.
fn robust_mean(seconds: &[f64]) -> Option<f64> {
    let limit = HICCUP * median(seconds)?;
    Some(seconds.iter().map(|s| s.min(limit)).sum::<f64>() / seconds.len() as f64)
}

fn median(seconds: &[f64]) -> Option<f64> {
    let mut sorted = seconds.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get((sorted.len().max(1) - 1) / 2).copied()
}

/// Sum of squared relative deviations from the mean.
fn scatter(seconds: &[f64]) -> f64 {
    let (Some(mean), Some(middle)) = (robust_mean(seconds), median(seconds)) else { return 0.0 };
    seconds.iter().map(|s| (s.min(HICCUP * middle) / mean - 1.0).powi(2)).sum()
}

/// Relative standard deviation of one timing, from the scatter within every probe.
fn pooled_noise(trials: &[Trial]) -> f64 {
    let (mut sum, mut freedom) = (NOISE_WEIGHT * NOISE * NOISE, NOISE_WEIGHT);
    for measured in trials.iter().filter_map(|trial| trial.attempt.measurement.as_ref()) {
        let seconds: Vec<f64> = usable(&measured.micro_seconds).collect();
        sum += scatter(&seconds);
        freedom += seconds.len().max(1) as f64 - 1.0;
    }
    (sum / freedom).sqrt()
}
