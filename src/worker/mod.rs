//! The child process: answers the jobs of a driver with `train`.

pub mod measure;

use std::sync::atomic::Ordering::SeqCst;

use anyhow::{Context, Result};

use crate::device::memory::Memory;
use crate::device::{meter, select};
use crate::plan::Knobs;
use crate::probe::protocol::{Job, Message, ProbeSpec, Report, Task};
use crate::probe::{serve, serve::oom_fd};
use crate::train::predict::{self, PredictSpec};
use crate::train::spec::TrainSpec;
use crate::train::trainer::{self, Event, Surroundings};

/// Serves jobs until standard input ends.
///
/// # Errors
/// If the driver went away.
pub fn run() -> Result<()> {
    meter::report_to(oom_fd());
    meter::tune();
    serve(|job, send| {
        let report = answer(job, send);
        meter::disarm();
        report.unwrap_or_else(|error| Report::Failed { error: format!("{error:#}") })
    })
}

fn answer(job: &Job, send: &mut dyn FnMut(Message)) -> Result<Report> {
    match &job.task {
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
    measure::measure(spec, &selected, job.cap_bytes, &mut |text| send(Message::Progress(text)))
}

/// What these knobs ask for and can't be had here.
fn unsupported(selected: &select::Selected, knobs: &Knobs) -> Option<Report> {
    let precision = knobs.precision;
    (!select::precisions(selected).contains(&precision))
        .then(|| Report::Unsupported { what: format!("{} does not compute in {precision}", selected.name) })
}

fn train(job: &Job, spec: &TrainSpec, send: &mut dyn FnMut(Message)) -> Result<Report> {
    let selected = select::select(&job.device)?;
    if let Some(report) = unsupported(&selected, &spec.knobs) {
        return Ok(report);
    }
    let mut tell = |event: Event| {
        // An event is plain data: turning it into JSON can't fail.
        if let Ok(event) = serde_json::to_value(event) {
            send(Message::Event(event));
        }
    };
    let prepared = trainer::prepare(spec, &mut tell)?;
    let memory = Memory::open(&selected, job.cap_bytes);
    let device = selected.device.clone().autodiff();
    let stop = serve::asked_to_stop().context("can't catch SIGTERM")?;
    let around = Surroundings {
        peak: &|| memory.peak(),
        stop: &|| stop.load(SeqCst),
        refusal: &serve::refusal,
        tell: &mut tell,
    };
    let summary = trainer::train(spec, prepared, device, around)?;
    Ok(Report::Trained(serde_json::to_value(summary)?))
}

fn predict(job: &Job, spec: &PredictSpec, send: &mut dyn FnMut(Message)) -> Result<Report> {
    let selected = select::select(&job.device)?;
    let prepared = predict::prepare(spec)?;
    let memory = Memory::open(&selected, job.cap_bytes);
    let device = selected.device.clone().autodiff();
    let summary = predict::predict(spec, prepared, &device, &|| memory.peak(), &mut |event| {
        // An event is plain data: turning it into JSON can't fail.
        if let Ok(event) = serde_json::to_value(event) {
            send(Message::Event(event));
        }
    })?;
    Ok(Report::Predicted(serde_json::to_value(summary)?))
}
