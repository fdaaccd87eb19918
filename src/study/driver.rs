//! Ask → probe → record → tell, until the answer is known, time is up, or the user interrupts.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::Result;

use super::answer::{Answer, Verdict};
use super::journal::Journal;
use super::problem::Problem;
use super::row::Derived;
use super::sampler::{Ask, Sampler};
use super::trial::{Request, Trial};
use crate::plan::Outcome;
use crate::probe::protocol::Attempt;

/// Whoever can measure a trial: the probe room behind it, or a device made of formulas in tests.
pub trait Prober {
    /// Measures one trial. Whatever becomes of it is an outcome.
    ///
    /// # Errors
    /// Only when probing itself is impossible (no worker can be started at all): the study then ends.
    fn probe(&mut self, request: &Request) -> Result<Attempt>;

    /// The end of what the worker of the last probe wrote to standard error.
    fn last_words(&self) -> &str {
        ""
    }
}

/// Whoever wants to know how it goes. Every method may be left out.
pub trait Observer {
    /// A probe starts. `expected_seconds` is known once something was timed.
    fn asked(&mut self, _number: usize, _request: &Request, _expected_seconds: Option<f64>) {}
    /// A trial was recorded.
    fn told(&mut self, _trial: &Trial, _derived: &Derived) {}
    /// The best so far has changed; it may not be certified yet.
    fn best(&mut self, _answer: &Answer) {}
}

/// Nobody wants to know.
impl Observer for () {}

/// When to stop.
pub struct Limits<'a> {
    /// Time for the whole of this run; `None`: as long as it takes. Whoever probes ends what is running then, as
    /// [`Outcome::Interrupted`].
    pub budget: Option<Duration>,
    /// Set by the signal handler.
    pub interrupted: &'a AtomicBool,
    /// Time since the run began.
    pub elapsed: &'a dyn Fn() -> Duration,
}

/// Runs, or resumes, a study to its end. Trials already in the journal are replayed, not repeated.
///
/// # Errors
/// If the space doesn't suit the problem, if the journal can't be written, or if probing is impossible.
pub fn run(
    problem: Problem,
    journal: &mut Journal,
    prober: &mut dyn Prober,
    observer: &mut dyn Observer,
    limits: &Limits,
) -> Result<Verdict> {
    let sampler = Sampler::new(problem)?;
    let mut best: Option<Answer> = None;
    loop {
        let trials = journal.trials();
        let now = sampler.best(trials);
        if let Some(answer) = now.filter(|answer| best.as_ref() != Some(answer)) {
            observer.best(&answer);
            best = Some(answer);
        }
        if limits.interrupted.load(Ordering::SeqCst) {
            return Ok(Verdict::Interrupted { best });
        }
        let (request, attempt) = match sampler.next(trials) {
            Ask::Done(verdict) => return Ok(*verdict),
            Ask::Prune(request) => {
                let attempt = pruned(&request);
                (request, attempt)
            }
            Ask::Probe(request) => {
                let Some(request) = in_time(&sampler, trials, request, limits) else {
                    return Ok(Verdict::OutOfTime { best });
                };
                observer.asked(trials.len() + 1, &request, sampler.expected_seconds(trials, &request));
                let attempt = prober.probe(&request)?;
                (request, attempt)
            }
        };
        let failed = attempt.outcome.is_failure();
        record(&sampler, journal, observer, request, attempt)?;
        if failed {
            journal.keep_words(prober.last_words())?;
        }
    }
}

/// What can still be probed within the budget: the request; or the certification of the best, when after the request
/// there would be no time for it; or nothing.
fn in_time(sampler: &Sampler, trials: &[Trial], request: Request, limits: &Limits) -> Option<Request> {
    let Some(budget) = limits.budget else { return Some(request) };
    let left = budget.saturating_sub((limits.elapsed)()).as_secs_f64();
    let seconds = |request: &Request| sampler.expected_seconds(trials, request).unwrap_or(0.0);
    let certify = sampler.certify_now(trials);
    let reserve = certify.as_ref().map_or(0.0, &seconds);
    if left > 0.0 && seconds(&request) + reserve <= left {
        return Some(request);
    }
    certify.filter(|certify| left > 0.0 && seconds(certify) <= left)
}

/// The outcome of a trial that is not run.
fn pruned(request: &Request) -> Attempt {
    Attempt { outcome: Outcome::Pruned, reason: request.why.clone(), measurement: None, oom: None, wall_seconds: 0.0 }
}

/// Appends the trial to the journal, then tells the person.
fn record(
    sampler: &Sampler,
    journal: &mut Journal,
    observer: &mut dyn Observer,
    request: Request,
    attempt: Attempt,
) -> Result<()> {
    let unix_seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let Request { knobs, purpose, .. } = request;
    let trial = Trial { number: journal.trials().len() + 1, knobs, purpose, attempt, unix_seconds };
    let mut trials = journal.trials().to_vec();
    trials.push(trial.clone());
    let derived = sampler.derive(&trials, &trial);
    journal.append(trial.clone(), &derived)?;
    observer.told(&trial, &derived);
    Ok(())
}
