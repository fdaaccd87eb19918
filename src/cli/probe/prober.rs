//! Probes by worker processes, and what a person is told meanwhile.

use std::cell::RefCell;
use std::time::Instant;

use anyhow::Result;

use super::Arguments;
use crate::cli::talk::Talk;
use crate::cli::workload::Workload;
use crate::probe::protocol::{Attempt, Job, Message, PROTOCOL, ProbeSpec, Task};
use crate::probe::{Executor, LocalProcess};
use crate::report::terminal;
use crate::study::answer::Answer;
use crate::study::driver::{Observer, Prober};
use crate::study::row::Derived;
use crate::study::trial::{Request, Trial};

/// Probes by worker processes.
pub(super) struct Worker<'a, 't> {
    pub executor: LocalProcess,
    pub device: String,
    pub workload: Workload,
    pub arguments: &'a Arguments,
    pub talk: &'a RefCell<&'t mut Talk>,
    pub cap_bytes: Option<u64>,
    /// The end of the standard error of the last probe's worker.
    pub words: String,
}

impl Prober for Worker<'_, '_> {
    fn probe(&mut self, request: &Request) -> Result<Attempt> {
        let spec = ProbeSpec {
            model: self.workload.source.clone(),
            num_labels: self.workload.num_labels,
            knobs: request.knobs,
            effective_batch: self.arguments.effective_batch,
            shapes: self.workload.shapes.clone(),
            effort: request.effort,
            seed: self.arguments.seed,
        };
        let cap_bytes = self.cap_bytes;
        let job = Job { protocol: PROTOCOL, device: self.device.clone(), cap_bytes, task: Task::Probe(spec) };
        let (talk, started) = (self.talk, Instant::now());
        let finished = self.executor.run(&job, self.arguments.deadline, &mut |message| {
            if let Message::Progress(text) = message {
                let seconds = started.elapsed().as_secs();
                talk.borrow_mut().now(&format!("  {} · {text} · {seconds} s", request.knobs));
            }
        });
        self.words = finished.stderr;
        Ok(finished.attempt)
    }

    fn last_words(&self) -> &str {
        &self.words
    }
}

/// Tells a person how it goes.
pub(super) struct Teller<'a, 't> {
    pub talk: &'a RefCell<&'t mut Talk>,
    pub effective_batch: usize,
    pub layers: usize,
    pub best: Option<f64>,
}

impl Observer for Teller<'_, '_> {
    fn asked(&mut self, number: usize, request: &Request, expected_seconds: Option<f64>) {
        let text = terminal::asked(number, request, expected_seconds, self.effective_batch, self.layers);
        self.talk.borrow_mut().line(&text);
    }

    fn told(&mut self, trial: &Trial, derived: &Derived) {
        self.talk.borrow_mut().line(&terminal::told(trial, derived));
    }

    fn best(&mut self, answer: &Answer) {
        let speed = answer.score.samples_per_second;
        if self.best.is_none_or(|best| (speed / best - 1.0).abs() > 1e-3) {
            self.best = Some(speed);
            let configuration = terminal::configuration(&answer.knobs, self.effective_batch, self.layers);
            self.talk.borrow_mut().line(&format!("     best so far: {configuration}, {speed:.2} samples/s"));
        }
    }
}
