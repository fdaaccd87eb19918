//! The steps of the sampler's order of business, each a look at the trials that may end in a request.

use super::answer::{Answer, Verdict};
use super::evidence::{Evidence, Known, MAX_FAILURES, Standing, TIE};
use super::problem::{Branch, Grid, Problem};
use super::regression::{normal_cdf, normal_pdf};
use super::sampler::Ask;
use super::shortfall::Shortfall;
use super::trial::{Purpose, Request, Trial};
use crate::plan::{Knobs, Outcome};
use crate::probe::protocol::{Attempt, Effort};

/// Exploring ends when no trial promises more than this, relative and weighed with its probability to fit; a trial that
/// costs four times what the leader's did must promise twice as much.
const LEAST_GAIN: f64 = 0.003;
/// What a trial must promise to gain on the answer before it counts as a gain: a little less than what counts as equal.
const LEAST_LEAD: f64 = 0.015;
/// A trial less likely to fit than this isn't explored, whatever it promises: long shots add up.
const LEAST_CHANCE: f64 = 0.1;
/// A pilot should fit: this probably, by the guess from the model's shape.
const PILOT_FITS: f64 = 0.8;
/// Pilots stay cheap: at most this many samples.
const PILOT_MICRO: usize = 8;
/// Optimism, in standard deviations, with which a branch that still can't win is pruned.
const OPTIMISM: f64 = 2.0;
/// A configuration less likely to fit than this is no reason to look at a branch.
const HOPE: f64 = 0.02;
/// A lead, one standard deviation of its noise added, that is small enough to give away for a safer configuration.
const SETTLED: f64 = 0.03;
/// Times that one configuration is measured again to settle a ranking, and all together.
const SETTLES: usize = 2;
const SETTLES_IN_ALL: usize = 4;
/// Certifications after which the best certified configuration is the answer, even if noise has moved the order.
const CERTIFICATIONS: usize = 3;

/// One look at the trials.
pub(super) struct View<'a> {
    pub problem: &'a Problem,
    pub grid: &'a Grid,
    pub trials: &'a [Trial],
    pub evidence: Evidence,
}

impl View<'_> {
    pub fn answer(&self, knobs: Knobs) -> Option<Answer> {
        Answer::new(self.problem, self.grid, self.trials, &self.evidence, self.evidence.score(&knobs)?)
    }

    pub fn best_certified(&self) -> Option<Answer> {
        let certified = self.evidence.tallies().filter(|(_, tally)| tally.certified.is_some());
        let scores = certified.filter_map(|(knobs, _)| self.evidence.score(knobs));
        let best = scores.max_by(|a, b| a.samples_per_second.total_cmp(&b.samples_per_second))?;
        self.answer(best.knobs)
    }

    /// The last trial again, if it failed for a reason that may pass.
    pub fn retry(&self) -> Option<Request> {
        let ran = |trial: &&Trial| !matches!(trial.attempt.outcome, Outcome::Pruned | Outcome::Interrupted);
        let last = self.trials.iter().rev().find(ran)?;
        let failures = self.evidence.tally(&last.knobs)?.failures;
        let failed = !matches!(last.attempt.outcome, Outcome::Fit | Outcome::Oom | Outcome::Unsupported);
        let again = failed && (1..MAX_FAILURES).contains(&failures);
        again.then(|| Request::new(last.purpose, last.knobs, format!("once more after {}", last.attempt.outcome)))
    }

    /// Whether a branch is still worth a probe: the device can do it, and it doesn't fail whatever is asked.
    fn alive(&self, branch: Branch) -> bool {
        let own = || self.evidence.tallies().filter(|(knobs, _)| Branch::of(knobs) == branch);
        let hopeless = own().filter(|(knobs, _)| self.evidence.given_up(knobs)).count() >= 2;
        !self.evidence.unsupported.contains(&branch) && (!hopeless || own().any(|(_, tally)| tally.fits > 0))
    }

    /// Configurations of a branch that may be asked for and never were measured.
    fn open(&self, branch: Branch) -> impl Iterator<Item = Knobs> + '_ {
        self.grid
            .configurations(branch)
            .filter(|knobs| matches!(self.evidence.known(knobs), Known::Nothing | Known::ImpliedFit(_)))
            .filter(|knobs| !self.evidence.given_up(knobs))
    }

    /// Probability that a configuration fits.
    fn fits(&self, knobs: &Knobs) -> f64 {
        match self.evidence.known(knobs) {
            Known::Oom(_) => 0.0,
            Known::Fit(_) | Known::ImpliedFit(_) => 1.0,
            Known::Nothing => self.evidence.memory.fits(knobs),
        }
    }

    /// Mean and standard deviation of ln(samples per second).
    fn log_speed(&self, knobs: &Knobs) -> Option<(f64, f64)> {
        let step = self.evidence.speed.step(knobs)?;
        Some(((self.problem.effective_batch as f64 / step.mean).ln(), step.sd / step.mean))
    }

    /// While nothing fits: branch by branch, a pilot, one smaller step, the smallest configuration.
    pub fn first_fit(&self) -> Ask {
        for &branch in self.grid.branches.iter().filter(|&&branch| self.alive(branch)) {
            let tried =
                self.evidence.tallies().filter(|(knobs, t)| Branch::of(knobs) == branch && t.oom.is_some()).count();
            let pilot = match tried {
                0 | 1 => self.pilot(branch),
                _ => self.open(branch).find(|knobs| *knobs == self.grid.smallest(branch)),
            };
            // A configuration that crashes is passed over; what is left of the branch may still be tried.
            let least =
                || self.open(branch).min_by_key(|knobs| (knobs.micro_batch, usize::MAX - knobs.checkpoint_layers));
            if let Some(knobs) = pilot.or_else(least) {
                let why = match tried {
                    0 => format!("a first look at {branch}"),
                    _ => "smaller, after running out of memory".to_string(),
                };
                return Ask::Probe(Request::new(Purpose::Pilot, knobs, why));
            }
        }
        Ask::Done(Box::new(self.nothing()))
    }

    /// A cheap configuration of a branch that should fit: the least recomputation, then the largest small micro-batch;
    /// the smallest configuration when none is likely to fit.
    fn pilot(&self, branch: Branch) -> Option<Knobs> {
        let limit = (self.problem.effective_batch / 16).clamp(2, PILOT_MICRO);
        let limit = self.grid.micros.iter().copied().filter(|&m| m <= limit).max().unwrap_or(self.grid.micros[0]);
        let likely = self.open(branch).filter(|knobs| knobs.micro_batch <= limit && self.fits(knobs) >= PILOT_FITS);
        let cheapest = likely.min_by_key(|knobs| (knobs.checkpoint_layers, usize::MAX - knobs.micro_batch));
        cheapest.or_else(|| self.open(branch).find(|knobs| *knobs == self.grid.smallest(branch)))
    }

    /// The end when nothing fits: a shortfall only if the smallest configuration of every branch that the device can do
    /// ran out of memory.
    fn nothing(&self) -> Verdict {
        let too_large = |branch: &Branch| matches!(self.evidence.known(&self.grid.smallest(*branch)), Known::Oom(_));
        let mut possible = self.grid.branches.iter().filter(|branch| !self.evidence.unsupported.contains(branch));
        if possible.all(too_large)
            && let Some(shortfall) = Shortfall::new(self.problem, self.grid, self.trials, &self.evidence)
        {
            return Verdict::NothingFits(shortfall);
        }
        let silent = |outcome| matches!(outcome, Outcome::Oom | Outcome::Pruned | Outcome::Interrupted | Outcome::Fit);
        let failed = self.trials.iter().rev().find(|trial| !silent(trial.attempt.outcome));
        let reason = failed.map_or("no configuration is left to probe".to_string(), |trial| {
            let Attempt { outcome, reason, .. } = &trial.attempt;
            format!("no probe succeeded; trial {} ({outcome}): {reason}", trial.number)
        });
        Verdict::Failed { reason }
    }

    /// What a configuration of a branch must beat, as ln(samples per second), to become the answer: it must lead by
    /// enough not to count as equal, unless its precision is safer; then being equal is enough.
    fn target(&self, standing: &Standing, branch: Branch) -> f64 {
        let Standing { leader, pick } = standing;
        let fastest = leader.samples_per_second.ln();
        if branch.precision < pick.knobs.precision {
            return fastest + (1.0 - TIE).ln();
        }
        fastest.max(pick.samples_per_second.ln() + LEAST_LEAD)
    }

    /// Looks once at every branch that could win, and records every one that could not.
    pub fn branches(&self, standing: &Standing) -> Option<Ask> {
        let winners = [Branch::of(&standing.leader.knobs), Branch::of(&standing.pick.knobs)];
        for &branch in self.grid.branches.iter().filter(|branch| !winners.contains(branch)) {
            if !self.alive(branch) || self.evidence.pruned.contains(&branch) {
                continue;
            }
            let optimistic = self.open(branch).filter(|knobs| self.fits(knobs) >= HOPE).filter_map(|knobs| {
                let (mean, sd) = self.log_speed(&knobs)?;
                Some((mean + OPTIMISM * sd, knobs))
            });
            let best = optimistic.max_by(|a, b| a.0.total_cmp(&b.0));
            match best {
                Some((most, knobs)) if most <= self.target(standing, branch) => {
                    let leader = standing.leader.samples_per_second;
                    let why =
                        format!("{branch}: {:.3} samples/s at best, {leader:.3} are measured already", most.exp());
                    return Some(Ask::Prune(Request::new(Purpose::Prune, knobs, why)));
                }
                Some(_) if self.evidence.tallies().all(|(knobs, _)| Branch::of(knobs) != branch) => {
                    let why = format!("a first look at {branch}");
                    let pilot = self.pilot(branch)?;
                    return Some(Ask::Probe(Request::new(Purpose::Pilot, pilot, why)));
                }
                _ => {}
            }
        }
        None
    }

    /// The trial with the greatest expected gain for its cost, if one promises enough.
    pub fn explore(&self, standing: &Standing) -> Option<Request> {
        let seconds =
            |knobs: &Knobs| self.probe_seconds(knobs, &Purpose::Explore.effort(knobs.micro_batch)).unwrap_or(1.0);
        let usual = seconds(&standing.leader.knobs);
        let mut best: Option<(f64, Request)> = None;
        for &branch in self.grid.branches.iter().filter(|&&branch| self.alive(branch) && self.may_explore(branch)) {
            let target = self.target(standing, branch);
            for knobs in self.open(branch) {
                let Some((mean, sd)) = self.log_speed(&knobs) else { continue };
                let (fits, gain) = (self.fits(&knobs), expected_gain(mean - target, sd));
                let cost = seconds(&knobs) / usual;
                if fits < LEAST_CHANCE || fits * gain < LEAST_GAIN * cost.sqrt().max(1.0) {
                    continue;
                }
                let worth = fits * gain / cost;
                if best.as_ref().is_none_or(|(most, _)| worth > *most) {
                    let percent = 100.0 * ((mean - target).exp() - 1.0);
                    let why = format!("{percent:+.1} % expected, {:.0} % likely to fit", 100.0 * fits);
                    best = Some((worth, Request::new(Purpose::Explore, knobs, why)));
                }
            }
        }
        best.map(|(_, request)| request)
    }

    /// Seconds of a probe: loading, two optimizer steps for the memory, then what is timed.
    pub fn probe_seconds(&self, knobs: &Knobs, effort: &Effort) -> Option<f64> {
        let pass = self.evidence.speed.micro(knobs)?.mean;
        let timed =
            (effort.seconds / pass).clamp(effort.min_timed as f64, effort.max_timed.max(effort.min_timed) as f64);
        Some(self.evidence.setup_seconds + ((2 + effort.warmup) as f64 + timed) * pass)
    }

    /// Exploring a branch costs at most a number of probes that grows with the logarithm of its size.
    fn may_explore(&self, branch: Branch) -> bool {
        let explored = |trial: &&Trial| {
            let whole = trial.attempt.outcome != Outcome::Interrupted;
            trial.purpose == Purpose::Explore && Branch::of(&trial.knobs) == branch && whole
        };
        self.trials.iter().filter(explored).count() < exploration_limit(self.grid)
    }

    /// The less certain of two leaders, again and longer, when only noise makes them equal.
    pub fn settle(&self, standing: &Standing) -> Option<Request> {
        let Standing { leader, pick } = standing;
        // What choosing the safer of the two may cost: the lead measured, and what noise may hide.
        let lead = (leader.samples_per_second / pick.samples_per_second).ln();
        if pick.knobs == leader.knobs || lead + leader.spread.hypot(pick.spread) <= SETTLED {
            return None;
        }
        let settles = |knobs: &Knobs| self.evidence.tally(knobs).map_or(0, |tally| tally.settles);
        let total: usize = self.evidence.tallies().map(|(_, tally)| tally.settles).sum();
        let mut pair = [leader, pick];
        pair.sort_by(|a, b| b.spread.total_cmp(&a.spread));
        let least_sure = pair.into_iter().find(|score| settles(&score.knobs) < SETTLES)?;
        let why = format!("again and longer: a lead of {:.1} % is within the noise", 100.0 * lead);
        (total < SETTLES_IN_ALL).then(|| Request::new(Purpose::Settle, least_sure.knobs, why))
    }

    /// The neighbours of the answer that no trial has spoken about.
    pub fn neighbours(&self, standing: &Standing) -> Option<Request> {
        let own = &standing.pick.knobs;
        let ask = |knobs: Knobs, why: &str| {
            (!self.evidence.given_up(&knobs)).then(|| Request::new(Purpose::Neighbour, knobs, why.to_string()))
        };
        let micro = self
            .grid
            .larger_micro(own)
            .filter(|knobs| matches!(self.evidence.known(knobs), Known::Nothing | Known::ImpliedFit(_)));
        let density = self.grid.lower_density(own).filter(|knobs| self.evidence.known(knobs) == Known::Nothing);
        micro
            .and_then(|knobs| ask(knobs, "the next larger micro-batch: does it fit, is it faster?"))
            .or_else(|| density.and_then(|knobs| ask(knobs, "one step less recomputed: does it fit?")))
    }

    /// A longer probe of the answer together with an evaluation batch.
    pub fn certify(&self, standing: &Standing) -> Option<Request> {
        let certified = self.evidence.tally(&standing.pick.knobs)?.certified.is_some();
        let why = "longer, with an evaluation batch, before it is called the answer".to_string();
        (!certified && self.certifications() < CERTIFICATIONS)
            .then(|| Request::new(Purpose::Certify, standing.pick.knobs, why))
    }

    /// Configurations that passed certification.
    fn certifications(&self) -> usize {
        self.evidence.tallies().filter(|(_, tally)| tally.certified.is_some()).count()
    }

    /// The answer, once it is certified and its neighbours are known.
    pub fn finished(&self, standing: &Standing) -> Option<Answer> {
        let certified = self.evidence.tally(&standing.pick.knobs)?.certified.is_some();
        if !certified || self.neighbours(standing).is_some() {
            return None;
        }
        self.answer(standing.pick.knobs)
    }

    /// The answer when nothing more will be asked: the best certified, or what was measured.
    pub fn give_in(&self, standing: &Standing) -> Ask {
        let answer = self.best_certified().or_else(|| self.answer(standing.pick.knobs));
        Ask::Done(Box::new(answer.map_or_else(|| self.nothing(), Verdict::Found)))
    }
}

/// Explored configurations of one branch: a few, and one for each halving of either axis.
pub fn exploration_limit(grid: &Grid) -> usize {
    let halvings = |count: usize| count.next_power_of_two().ilog2() as usize;
    3 + halvings(grid.micros.len()) + halvings(grid.densities.len())
}

/// Expected improvement `E[max(x, 0)]` for `x ~ N(mean, sd²)` (Jones, Schonlau & Welch 1998, eq. 15).
fn expected_gain(mean: f64, sd: f64) -> f64 {
    if sd <= 0.0 {
        return mean.max(0.0);
    }
    let z = mean / sd;
    mean * normal_cdf(z) + sd * normal_pdf(z)
}
