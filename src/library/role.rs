//! Whether this process searches or is one of the workers of a search: the worker's side of the library.

use std::time::Instant;

use anyhow::{Result, bail};

use super::workload::{Setup, Workload};
use crate::device::select;
use crate::probe::protocol::{Job, Message, Report, Task};
use crate::report::console;
use crate::study::stamp;
use crate::worker;
use crate::worker::measure::{self, Question};
use crate::worker::training::Training;

/// Environment variable by which a driver marks its workers; holds the [`mark`] of the workload they serve.
pub(super) const MARK_VAR: &str = "AUTOFIT_WORKER_OF";

/// Whether this process was started by a driver to measure, not to search: for programs that have something to say on
/// standard output, or something costly to prepare, before [`run`](super::Tune::run).
pub fn is_worker() -> bool {
    std::env::var_os(MARK_VAR).is_some()
}

/// Tells workloads apart: a program may have several.
pub(super) fn mark(workload: &impl Workload) -> String {
    let name = workload.name();
    format!("{} {}", stamp::digest(&format!("{name}\n{}", workload.identity())), name.replace('\0', ""))
}

/// What this process is to a workload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// It may search.
    Driver,
    /// It measures this workload.
    Worker,
    /// It measures another workload, of this name.
    WorkerOfAnother(String),
}

/// The role that the environment gives to this process.
pub(super) fn role(workload: &impl Workload) -> Role {
    std::env::var(MARK_VAR).map_or(Role::Driver, |found| assigned(&found, workload))
}

fn assigned(found: &str, workload: &impl Workload) -> Role {
    if found == mark(workload) {
        return Role::Worker;
    }
    Role::WorkerOfAnother(found.split_once(' ').map_or(found, |(_, name)| name).to_string())
}

/// Serves probes until the driver closes standard input, then ends the process.
pub(super) fn serve(workload: &impl Workload) -> ! {
    let code = match worker::run_with(|job, send| probe(workload, job, send)) {
        Ok(()) => 0,
        Err(error) => {
            console::talk(&format!("error: {error:#}\n"));
            1
        }
    };
    std::process::exit(code)
}

fn probe(workload: &impl Workload, job: &Job, send: &mut dyn FnMut(Message)) -> Result<Report> {
    let Task::Probe(spec) = &job.task else { bail!("a program's own model is only probed here, not trained") };
    let selected = select::select(&job.device)?;
    if let Some(report) = worker::unsupported(&selected, &spec.knobs) {
        return Ok(report);
    }
    let question = Question {
        knobs: spec.knobs,
        effective_batch: spec.effective_batch,
        effort: spec.effort,
        layers: workload.axes().layers(),
        cap: job.cap_bytes,
        started: Instant::now(),
    };
    measure::measure(question, &selected, &mut |text| send(Message::Progress(text)), |device| {
        let (device, effective_batch) = (device.clone(), spec.effective_batch);
        let training = workload.build(&Setup { knobs: spec.knobs, device, effective_batch, seed: spec.seed })?;
        // Burn makes parameters when they are first asked for: without this they would be counted as gradient.
        training.parameter_sum()?;
        Ok(training)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::library::tests::Nothing;

    #[test]
    fn a_worker_serves_its_own_workload_only() {
        let (mine, wider) = (Nothing { width: 1 }, Nothing { width: 2 });
        assert_eq!(assigned(&mark(&mine), &mine), Role::Worker);
        assert_eq!(assigned(&mark(&wider), &mine), Role::WorkerOfAnother("nothing at all".into()));
        assert_eq!(role(&mine), Role::Driver);
        assert!(!is_worker());
    }
}
