//! The search as a user sets it up.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use anyhow::{Result, anyhow, bail};

use super::role::{self, Role};
use super::search;
use super::workload::Workload;
use crate::plan::ByteSize;
use crate::probe::Workers;
use crate::study::answer::Answer;
use crate::study::driver::Observer;

/// Begins to set up a search for the fastest way to train a workload inside a given amount of memory.
pub fn tune<W: Workload>(workload: W) -> Tune<W> {
    Tune {
        workload,
        cap: None,
        effective_batch: 32,
        folder: None,
        trials: Trials::Resume,
        device: "auto".into(),
        seed: 42,
        budget: None,
        deadline: Duration::from_secs(600),
        workers: Workers::WARM,
        arguments: std::env::args_os().skip(1).collect(),
        interrupt: None,
        voice: Voice::Silent,
    }
}

/// A search, set up step by step and begun by [`run`](Tune::run). All but the memory has a default.
pub struct Tune<W> {
    pub(super) workload: W,
    pub(super) cap: Option<u64>,
    pub(super) effective_batch: usize,
    pub(super) folder: Option<PathBuf>,
    pub(super) trials: Trials,
    pub(super) device: String,
    pub(super) seed: u64,
    pub(super) budget: Option<Duration>,
    pub(super) deadline: Duration,
    pub(super) workers: Workers,
    pub(super) arguments: Vec<OsString>,
    pub(super) interrupt: Option<&'static AtomicBool>,
    pub(super) voice: Voice,
}

/// What becomes of the trials of an earlier run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Trials {
    Resume,
    Forget,
}

/// Who is told how it goes.
pub(super) enum Voice {
    Silent,
    Stderr,
    Listener(Box<dyn Observer>),
}

impl<W: Workload> Tune<W> {
    /// Memory that training may use, as people write it: `600M`, `6G`, `1.5GiB` (G means GiB).
    ///
    /// # Errors
    /// If the text is no memory size.
    pub fn vram(self, size: &str) -> Result<Self> {
        let ByteSize(bytes) = size.parse::<ByteSize>().map_err(|error| anyhow!(error))?;
        Ok(self.vram_bytes(bytes))
    }

    /// Memory that training may use, in bytes.
    pub fn vram_bytes(mut self, bytes: u64) -> Self {
        self.cap = Some(bytes);
        self
    }

    /// Samples per optimizer step, 32 unless set. The search never changes it, and with it the gradient.
    pub fn effective_batch(mut self, samples: usize) -> Self {
        self.effective_batch = samples;
        self
    }

    /// Folder of the study, `results/` with name and memory unless set: `trials.csv` with every trial, `best.toml` with
    /// the answer, `survey.toml` with the first look, and `study.toml`, which says whose they are.
    pub fn results(mut self, folder: impl Into<PathBuf>) -> Self {
        self.folder = Some(folder.into());
        self
    }

    /// Forgets the trials of an earlier run in the same folder. Otherwise they are gone on from: a search that was
    /// stopped repeats nothing.
    pub fn fresh(mut self) -> Self {
        self.trials = Trials::Forget;
        self
    }

    /// The device, by its name: `auto` (the default: an accelerator if this build has one), `cpu`, `cuda:0`, …
    pub fn device(mut self, name: impl Into<String>) -> Self {
        self.device = name.into();
        self
    }

    /// What [`Setup::seed`](super::Setup::seed) will be; 42 unless set.
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// Ends in this time, with the best so far. Without it the search takes as long as it takes.
    pub fn budget(mut self, time: Duration) -> Self {
        self.budget = Some(time);
        self
    }

    /// Longest time for one probe, 10 minutes unless set. One that takes longer is ended and recorded as a timeout.
    pub fn deadline(mut self, time: Duration) -> Self {
        self.deadline = time;
        self
    }

    /// A new process for every probe. Otherwise one is kept as long as all that it measures fits, which saves the time
    /// of starting the program; a model that leaves memory behind when it is dropped needs this.
    pub fn fresh_workers(mut self) -> Self {
        self.workers = Workers::Fresh;
        self
    }

    /// Arguments of the workers; those of this process unless set. With them the program must come to this same
    /// [`run`](Tune::run), or to [`serve`](Tune::serve).
    pub fn worker_arguments(mut self, arguments: impl IntoIterator<Item = impl Into<OsString>>) -> Self {
        self.arguments = arguments.into_iter().map(Into::into).collect();
        self
    }

    /// A flag that stops the search when it is raised, for a program that handles signals itself. Without it, SIGINT,
    /// SIGTERM and SIGHUP are caught while the search runs: the first stops it in good order, the second at once.
    /// Afterwards they end the process, as they did before.
    pub fn interrupt(mut self, flag: &'static AtomicBool) -> Self {
        self.interrupt = Some(flag);
        self
    }

    /// Tells on standard error what is tried, why, and what became of it.
    pub fn narrate(mut self) -> Self {
        self.voice = Voice::Stderr;
        self
    }

    /// Tells this observer instead.
    pub fn observe(mut self, observer: impl Observer + 'static) -> Self {
        self.voice = Voice::Listener(Box::new(observer));
        self
    }

    /// In a worker of this workload: measures what the driver asks for, then ends the process. Anywhere else: nothing.
    ///
    /// [`run`](Tune::run) does this by itself. A program with several workloads calls it for each of them before the
    /// first `run`.
    pub fn serve(&self) {
        if role::role(&self.workload) == Role::Worker {
            role::serve(&self.workload)
        }
    }

    /// Searches and returns the answer: the fastest configuration that fits. `best.toml` in the study's folder says the
    /// same. Where the budget ended first it is the best so far, and may not be certified.
    ///
    /// In a worker this never returns (see [`serve`](Tune::serve)).
    ///
    /// # Errors
    /// * A [`NoAnswer`](super::NoAnswer) if nothing fits, every probe fails, or the search was stopped.
    /// * If no memory was given, an axis has no values, the device is unknown, or the study's folder can't be used.
    /// * If memory is to be counted by the program's allocator (on the CPU) and it did not declare autofit's: the
    ///   message has the line to add.
    pub fn run(self) -> Result<Answer> {
        match role::role(&self.workload) {
            Role::Driver => search::run(self),
            Role::Worker => role::serve(&self.workload),
            Role::WorkerOfAnother(name) => bail!(
                "this process is a worker for '{name}', but came to `run` of '{}' first: where a program has several \
                 workloads (or one of several identities), call `serve` for each before the first `run`",
                self.workload.name()
            ),
        }
    }
}
