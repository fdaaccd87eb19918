//! Decides which trial comes next. Pure ask and tell: the answer depends on the problem and the list of trials alone,
//! so a study replayed from any part of its journal continues identically.
//!
//! The order of business:
//! 1. again, if the last probe failed for a reason that may pass (once);
//! 2. a first fit: a cheap pilot, then smaller and smaller down to the smallest configuration of a branch;
//! 3. a pilot for every further branch that could win, a row that says why for every one that could not;
//! 4. the trial with the greatest expected gain for its cost, until none promises enough;
//! 5. leaders whose order is a matter of noise, again and longer;
//! 6. the neighbours of the answer;
//! 7. its certification.

use anyhow::Result;

use super::answer::{Answer, Verdict};
use super::evidence::Evidence;
use super::moves::View;
use super::problem::{Grid, Problem};
use super::row::Derived;
use super::trial::{Request, Trial};

/// What should happen next.
#[derive(Clone, Debug, PartialEq)]
pub enum Ask {
    /// Probe this.
    Probe(Request),
    /// Record this as pruned: the branch can't win, `why` says so.
    Prune(Request),
    /// The study has ended.
    Done(Box<Verdict>),
}

/// Decides which trial comes next.
#[derive(Clone, Debug)]
pub struct Sampler {
    problem: Problem,
    grid: Grid,
}

impl Sampler {
    /// A sampler for a problem.
    ///
    /// # Errors
    /// If the space doesn't suit the model or the effective batch.
    pub fn new(problem: Problem) -> Result<Sampler> {
        let grid = Grid::new(&problem)?;
        Ok(Sampler { problem, grid })
    }

    /// The problem.
    pub fn problem(&self) -> &Problem {
        &self.problem
    }

    /// Its configurations.
    pub fn grid(&self) -> &Grid {
        &self.grid
    }

    /// What the trials say.
    pub fn evidence(&self, trials: &[Trial]) -> Evidence {
        Evidence::new(&self.problem, &self.grid, trials)
    }

    fn view<'a>(&'a self, trials: &'a [Trial]) -> View<'a> {
        View { problem: &self.problem, grid: &self.grid, trials, evidence: self.evidence(trials) }
    }

    /// What should happen next.
    pub fn next(&self, trials: &[Trial]) -> Ask {
        let view = self.view(trials);
        if let Some(request) = view.retry() {
            return Ask::Probe(request);
        }
        let Some(standing) = view.evidence.standing() else { return view.first_fit() };
        if let Some(answer) = view.finished(&standing) {
            return Ask::Done(Box::new(Verdict::Found(answer)));
        }
        view.branches(&standing)
            .or_else(|| view.explore(&standing).map(Ask::Probe))
            .or_else(|| view.settle(&standing).map(Ask::Probe))
            .or_else(|| view.neighbours(&standing).map(Ask::Probe))
            .or_else(|| view.certify(&standing).map(Ask::Probe))
            .unwrap_or_else(|| view.give_in(&standing))
    }

    /// The best so far: the best certified, or else the best measured.
    pub fn best(&self, trials: &[Trial]) -> Option<Answer> {
        let view = self.view(trials);
        view.best_certified().or_else(|| view.answer(view.evidence.standing()?.pick.knobs))
    }

    /// What follows from one of the trials: passes, and speed of an effective batch where it was timed.
    pub fn derive(&self, trials: &[Trial], trial: &Trial) -> Derived {
        let effective = self.problem.effective_batch;
        let measured = trial.attempt.measurement.as_ref();
        let step_seconds =
            measured.and_then(|measured| self.evidence(trials).step_seconds(&trial.knobs, &measured.micro_seconds));
        Derived {
            accumulation: trial.knobs.accumulation(effective),
            step_seconds,
            samples_per_second: step_seconds.map(|seconds| effective as f64 / seconds),
        }
    }

    /// Seconds that a probe will take, by the model; `None` while nothing was timed.
    pub fn expected_seconds(&self, trials: &[Trial], request: &Request) -> Option<f64> {
        self.view(trials).probe_seconds(&request.knobs, &request.effort)
    }

    /// The certification of the best so far, for when time is nearly up. `None` if it is certified or there is none.
    pub fn certify_now(&self, trials: &[Trial]) -> Option<Request> {
        let view = self.view(trials);
        if view.best_certified().is_some() {
            return None;
        }
        view.certify(&view.evidence.standing()?)
    }
}
