//! The child process: answers the jobs of a driver with `train`.
//!
//! * [`training`]: what can be measured; [`measure`]: the one order of measuring it.
//! * [`encoder`]: the built-in encoders as that.
//! * [`refused`]: what it means that a device refuses memory.

pub mod encoder;
pub mod measure;
pub mod refused;
pub mod training;

use std::panic;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use anyhow::{Context, Result, bail};

use crate::device::memory::Memory;
use crate::device::{describe, meter, runtime, select};
use crate::plan::Knobs;
use crate::probe::protocol::{Job, Message, ProbeSpec, Report, Task};
use crate::probe::{serve, serve::oom_fd};
use crate::train::predict::{self, Lines, PredictSpec};
use crate::train::spec::TrainSpec;
use crate::train::step::NotFinite;
use crate::train::trainer::{self, Event, Surroundings};

/// Serves jobs until standard input ends.
///
/// # Errors
/// If the driver went away.
pub fn run() -> Result<()> {
    run_with(answer)
}

/// As [`run`], with jobs answered by somebody else. An error becomes a report.
///
/// A worker that answers more than one job keeps buffers of the earlier ones (packed matrices, thread pools). A run in
/// a process of its own takes them, so they count in every job: or what was certified warm would not fit cold.
///
/// # Errors
/// If the driver went away.
pub fn run_with(mut answer: impl FnMut(&Job, &mut dyn FnMut(Message)) -> Result<Report>) -> Result<()> {
    meter::report_to(oom_fd());
    meter::tune();
    runtime::configure();
    let mut first = None;
    serve(|job, send| {
        if first.is_none() {
            make_room_for_panics();
        }
        let now = meter::in_use();
        meter::inherit(now.saturating_sub(*first.get_or_insert(now)));
        PANICKED.store(false, SeqCst);
        let report = match &job.task {
            Task::Describe => {
                select::select(&job.device).and_then(|device| describe::describe(&device)).map(Report::Described)
            }
            _ => answer(job, send),
        };
        meter::disarm();
        match report {
            Ok(Report::Measured(_)) if PANICKED.load(SeqCst) => Report::Failed {
                error: "there was a panic, which lifted the cap, and the probe went on all the same".into(),
            },
            Ok(report) => report,
            Err(error) => match error.downcast_ref::<NotFinite>() {
                Some(NotFinite { what }) => Report::NonFinite { what: what.clone() },
                None => Report::Failed { error: format!("{error:#}") },
            },
        }
    })
}

/// Whether a panic lifted the cap of this job.
static PANICKED: AtomicBool = AtomicBool::new(false);

/// Lifts the cap at a panic, before anything is said about it. What a backtrace reads of the program's symbols can be
/// more than a small cap leaves, and the standard library waits for ever when memory is refused to it meanwhile.
fn make_room_for_panics() {
    let say = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        if meter::disarm() {
            PANICKED.store(true, SeqCst);
        }
        say(info);
    }));
}

fn answer(job: &Job, send: &mut dyn FnMut(Message)) -> Result<Report> {
    match &job.task {
        Task::Describe => bail!("a device is described before it comes to this"),
        Task::Probe(spec) => probe(job, spec, send),
        Task::Train(spec) => {
            let spec = serde_json::from_value(spec.clone()).context("reading the training specification")?;
            train(job, &spec, send)
        }
        Task::Predict(spec) => {
            let spec = serde_json::from_value(spec.clone()).context("reading what to predict")?;
            predict(job, &spec, send)
        }
    }
}

fn probe(job: &Job, spec: &ProbeSpec, send: &mut dyn FnMut(Message)) -> Result<Report> {
    let selected = select::select(&job.device)?;
    if let Some(report) = unsupported(&selected, &spec.knobs) {
        return Ok(report);
    }
    encoder::measure(spec, &selected, job.cap_bytes, &mut |text| send(Message::Progress(text)))
}

/// What these knobs ask for and can't be had on a device; `None` if all can.
pub fn unsupported(selected: &select::Selected, knobs: &Knobs) -> Option<Report> {
    let precision = knobs.precision;
    (!select::claims(selected, precision))
        .then(|| Report::Unsupported { what: format!("{} does not compute in {precision}", selected.name) })
}

fn train(job: &Job, spec: &TrainSpec, send: &mut dyn FnMut(Message)) -> Result<Report> {
    let selected = select::select(&job.device)?;
    if let Some(report) = unsupported(&selected, &spec.knobs) {
        return Ok(report);
    }
    let mut tell = |event: Event| send(Message::Event(event));
    let prepared = trainer::prepare(spec, &mut tell)?;
    let memory = Memory::open(&selected, job.cap_bytes)?;
    let device = selected.device.clone().autodiff();
    let stop = serve::asked_to_stop().context("can't catch SIGTERM")?;
    refused::under(memory, job.cap_bytes, |memory| {
        let around = Surroundings {
            peak: &|| memory.peak(),
            between_steps: &|| memory.tend(),
            stop: &|| stop.load(SeqCst),
            refusal: &serve::refusal,
            tell: &mut tell,
        };
        trainer::train(spec, prepared, device, around).map(Report::Trained)
    })
}

fn predict(job: &Job, spec: &PredictSpec, send: &mut dyn FnMut(Message)) -> Result<Report> {
    let selected = select::select(&job.device)?;
    let prepared = predict::prepare(spec)?;
    let memory = Memory::open(&selected, job.cap_bytes)?;
    let device = selected.device.clone().autodiff();
    let mut tell = |lines: Lines| send(Message::Lines(lines));
    refused::under(memory, job.cap_bytes, |memory| {
        predict::predict(spec, prepared, &device, &|| memory.peak(), &mut tell).map(Report::Predicted)
    })
}
