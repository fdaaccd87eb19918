//! Who runs a job: a worker process on this machine, or behind a user's command.
//!
//! [`LocalProcess`] gives each job to a process of its own ([`Workers::Fresh`]), or keeps a process for as long as
//! everything fits in it ([`Workers::Warm`]): what an out-of-memory leaves behind in a runtime's pools must not be held
//! against the next trial.

use std::env;
use std::ffi::OsString;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::classify::{Ending, Evidence, KernelKills, classify};
use super::kernel_kills::Count;
use super::protocol::{Attempt, Job, Message, Report, Task};
use super::template;
use super::worker::{Heard, Listener, Stop, Worker};
use crate::plan::Outcome;

/// Something that runs jobs. The study's scheduler is tested with a fake.
pub trait Executor {
    /// Runs `job` to its end or to `deadline` (counted from the call; `Duration::MAX` for none), and hands every
    /// message to `on_message` as it comes, the report included. Never fails: what goes wrong is an outcome.
    fn run(&mut self, job: &Job, deadline: Duration, on_message: &mut dyn FnMut(&Message)) -> Finished;
}

/// A job that has ended.
#[derive(Clone, Debug)]
pub struct Finished {
    /// What became of it.
    pub attempt: Attempt,
    /// The worker's report, if it sent one: a training's summary is only here. An interrupted or late worker may have
    /// sent one in its grace time; the outcome does not change by it.
    pub report: Option<Report>,
    /// The end of its standard error.
    pub stderr: String,
}

/// How long a worker process is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Workers {
    /// One process for each job.
    Fresh,
    /// The same process for up to `max_jobs` jobs, as long as each of them fits and nothing about it is odd. It is
    /// reused for the same device and precision only, since default dtypes lock at first use.
    ///
    /// A job that a reused worker did not survive, or called out of memory, is given to a fresh one before the answer
    /// counts: what earlier jobs left behind may have been to blame. That job may take two deadlines.
    Warm {
        /// At least 1.
        max_jobs: usize,
    },
}

impl Workers {
    /// Kept while all fits, for a number of jobs that still bounds what a leak could add up to.
    pub const WARM: Workers = Workers::Warm { max_jobs: 16 };
}

/// Runs jobs in worker processes.
///
/// Each worker is the leader of a process group, which ends with it, with this value, with the thread that called
/// [`run`](Executor::run), and with this process, however that ends. The environment is passed on untouched.
pub struct LocalProcess {
    program: OsString,
    arguments: Vec<OsString>,
    environment: Vec<(OsString, OsString)>,
    workers: Workers,
    interrupt: &'static AtomicBool,
    until: Option<Instant>,
    grace: Duration,
    exit_patience: Duration,
    warm: Option<Warm>,
}

/// A worker that waits for another job.
struct Warm {
    worker: Worker,
    jobs: usize,
    /// What it may be reused for.
    kind: Kind,
}

/// Device, and precision of a probe.
type Kind = (String, Option<crate::plan::Precision>);

/// Never raised: for those who have no interrupt flag.
static NEVER: AtomicBool = AtomicBool::new(false);

/// The hidden subcommand that makes this program a worker.
pub const WORKER_SUBCOMMAND: &str = "__worker";

impl LocalProcess {
    /// Workers are started as `program arguments…`; fresh for each job, not to be interrupted.
    pub fn new(program: impl Into<OsString>, arguments: impl IntoIterator<Item = impl Into<OsString>>) -> Self {
        LocalProcess {
            program: program.into(),
            arguments: arguments.into_iter().map(Into::into).collect(),
            environment: Vec::new(),
            workers: Workers::Fresh,
            interrupt: &NEVER,
            until: None,
            grace: Duration::from_millis(800),
            exit_patience: Duration::from_secs(5),
            warm: None,
        }
    }

    /// This very program, as `__worker`.
    ///
    /// # Errors
    /// If the system doesn't say where the program lies.
    pub fn this_program() -> Result<Self> {
        Ok(LocalProcess::new(this_executable()?, [WORKER_SUBCOMMAND]))
    }

    /// This program as `__worker`, behind a user's command such as `ssh box '{worker}'`: see [`template`].
    ///
    /// # Errors
    /// If the template can't be cut into words or has no `{worker}`.
    pub fn behind(command: &str) -> Result<Self> {
        let worker = [this_executable()?, WORKER_SUBCOMMAND.into()];
        let mut words = template::expand(command, &worker)?.into_iter();
        let program = words.next().context("the command template is empty")?;
        Ok(LocalProcess::new(program, words))
    }

    /// Adds a variable to the workers' environment, such as `RAYON_NUM_THREADS`.
    pub fn env(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.environment.push((name.into(), value.into()));
        self
    }

    /// How long a process is kept.
    pub fn workers(mut self, workers: Workers) -> Self {
        self.workers = workers;
        self
    }

    /// A flag, such as [`interrupt::install`](super::interrupt::install) gives, that ends the running job when raised.
    pub fn interrupt(mut self, flag: &'static AtomicBool) -> Self {
        self.interrupt = flag;
        self
    }

    /// The end of what the jobs are a part of, such as the budget of a search: a job that runs then is ended as by the
    /// interrupt flag, and later ones are not begun.
    pub fn until(mut self, end: Option<Instant>) -> Self {
        self.until = end;
        self
    }

    /// Time from SIGTERM to SIGKILL for a worker that is late or interrupted; 0.8 s unless set. A training that saves
    /// a snapshot at SIGTERM needs more.
    pub fn grace(mut self, grace: Duration) -> Self {
        self.grace = grace;
        self
    }

    /// Time that a worker may take to leave once it has reported; 5 s unless set.
    pub fn exit_patience(mut self, patience: Duration) -> Self {
        self.exit_patience = patience;
        self
    }

    /// One job in one worker; whether that worker had run others.
    fn attempt(&mut self, job: &Job, deadline: Duration, listener: Listener<'_>) -> (Finished, bool) {
        let asked = Instant::now();
        let line = match serde_json::to_vec(job) {
            Ok(mut line) => {
                line.push(b'\n');
                line
            }
            Err(error) => return (not_started(format!("the job can't be written as JSON: {error}"), asked), false),
        };
        let (mut worker, jobs) = match self.take_warm(job) {
            Some(warm) => (warm.worker, warm.jobs),
            None => match Worker::start(&self.program, &self.arguments, &self.environment) {
                Ok(worker) => (worker, 0),
                Err(error) => {
                    let what = format!("{}: {error}", self.program.display());
                    return (not_started(what, asked), false);
                }
            },
        };
        let kills = Count::now();
        let (own, shared) = (asked.checked_add(deadline), self.until);
        let over_first = shared.is_some_and(|shared| own.is_none_or(|own| shared < own));
        let mut heard = worker.ask(&line, if over_first { shared } else { own }, self.interrupt, listener);
        let wall_seconds = asked.elapsed().as_secs_f64();
        let records = worker.refusals();
        if self.may_keep(&heard, jobs + 1) && records.is_empty() && worker.is_idle() {
            let evidence = evidence(Ending::Answered, heard, &mut worker, KernelKills::None, wall_seconds);
            self.warm = Some(Warm { worker, jobs: jobs + 1, kind: kind(job) });
            return (finish(evidence), jobs > 0);
        }
        match heard.stop {
            Stop::Reported => worker.dismiss(self.exit_patience, self.interrupt, &mut heard, self.grace),
            Stop::Ended | Stop::Muted | Stop::Flooded => worker.stop(Duration::ZERO, &mut heard, listener),
            Stop::Deadline(_) | Stop::Interrupted => worker.stop(self.grace, &mut heard, listener),
        }
        let ending = match heard.stop {
            Stop::Deadline(_) if over_first => Ending::OutOfTime,
            stop => self.ending(stop, worker.status(), deadline),
        };
        let evidence = evidence(ending, heard, &mut worker, kills.since(), wall_seconds);
        (finish(evidence), jobs > 0)
    }

    /// The waiting worker, if it may have this job. If not, it is let go.
    fn take_warm(&mut self, job: &Job) -> Option<Warm> {
        let mut warm = self.warm.take()?;
        let mine = warm.worker.started_by() == thread::current().id();
        if mine && warm.kind == kind(job) && warm.worker.is_idle() {
            return Some(warm);
        }
        self.let_go(warm.worker);
        None
    }

    fn let_go(&self, mut worker: Worker) {
        worker.dismiss(self.exit_patience, self.interrupt, &mut Heard::default(), self.grace);
    }

    fn may_keep(&self, heard: &Heard, jobs: usize) -> bool {
        let measured = matches!(&heard.report, Some(Report::Measured(m)) if m.loss.is_finite());
        let plain = heard.stop == Stop::Reported && heard.junk.is_none() && !heard.surplus;
        measured && plain && matches!(self.workers, Workers::Warm { max_jobs } if jobs < max_jobs)
    }

    /// Why no job may be begun any more, if so.
    fn stopped(&self) -> Option<Ending> {
        if self.interrupt.load(SeqCst) {
            return Some(Ending::Interrupted);
        }
        self.until.is_some_and(|end| Instant::now() >= end).then_some(Ending::OutOfTime)
    }

    fn ending(&self, stop: Stop, status: Option<ExitStatus>, limit: Duration) -> Ending {
        match stop {
            Stop::Reported => Ending::Answered,
            // Whoever stops a whole session signals driver and worker alike; which of them is seen first is chance.
            Stop::Ended if status.is_none_or(|status| !status.success()) && self.interrupt.load(SeqCst) => {
                Ending::Interrupted
            }
            Stop::Ended => match status.map(|status| (status.code(), status.signal())) {
                Some((Some(code), _)) => Ending::Exited(code),
                Some((None, Some(signal))) => Ending::Killed(signal),
                Some((None, None)) | None => Ending::Vanished,
            },
            Stop::Deadline(hang) => Ending::Deadline { limit, hang },
            Stop::Interrupted => Ending::Interrupted,
            Stop::Muted => Ending::Muted,
            Stop::Flooded => Ending::Flooded,
        }
    }
}

impl Executor for LocalProcess {
    fn run(&mut self, job: &Job, deadline: Duration, on_message: &mut dyn FnMut(&Message)) -> Finished {
        let asked = Instant::now();
        if let Some(ending) = self.stopped() {
            return finish(bare(ending, asked));
        }
        let (finished, reused) = self.attempt(job, deadline, on_message);
        let doubtful =
            matches!(finished.attempt.outcome, Outcome::Oom | Outcome::HostOom | Outcome::Crash | Outcome::Garbage);
        if !(reused && doubtful) {
            return finished;
        }
        // Without time to ask a fresh worker there is no answer: an out-of-memory that another job may be to blame for
        // would shrink the search for good.
        match self.stopped() {
            Some(ending) => finish(bare(ending, asked)),
            None => self.attempt(job, deadline, on_message).0,
        }
    }
}

impl Drop for LocalProcess {
    fn drop(&mut self) {
        if let Some(warm) = self.warm.take() {
            self.let_go(warm.worker);
        }
    }
}

fn this_executable() -> Result<OsString> {
    let path = env::current_exe().context("the system does not say where this program lies")?;
    Ok(path.into())
}

fn kind(job: &Job) -> Kind {
    let precision = match &job.task {
        Task::Probe(spec) => Some(spec.knobs.precision),
        Task::Describe | Task::Train(_) | Task::Predict(_) => None,
    };
    (job.device.clone(), precision)
}

fn not_started(error: String, asked: Instant) -> Finished {
    finish(bare(Ending::NotStarted(error), asked))
}

/// Evidence of a worker that never was.
fn bare(ending: Ending, asked: Instant) -> Evidence {
    Evidence {
        ending,
        report: None,
        junk: None,
        records: Vec::new(),
        stderr: String::new(),
        kernel_kills: KernelKills::None,
        wall_seconds: asked.elapsed().as_secs_f64(),
    }
}

fn evidence(
    ending: Ending,
    heard: Heard,
    worker: &mut Worker,
    kernel_kills: KernelKills,
    wall_seconds: f64,
) -> Evidence {
    Evidence {
        ending,
        report: heard.report,
        junk: heard.junk.or_else(|| worker.torn_line()),
        records: worker.refusals(),
        stderr: worker.stderr(),
        kernel_kills,
        wall_seconds,
    }
}

fn finish(evidence: Evidence) -> Finished {
    Finished { attempt: classify(&evidence), report: evidence.report, stderr: evidence.stderr }
}
