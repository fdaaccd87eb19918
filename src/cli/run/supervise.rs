//! A run outlives its worker: out of memory, or a crash after progress, starts another one from the last snapshot.

use std::time::Duration;

use anyhow::{Result, bail};

use super::progress::{Progress, knobs_in_words};
use crate::cli::workload;
use crate::model::source::ModelFiles;
use crate::plan::{ByteSize, Knobs, Outcome};
use crate::probe::Executor;
use crate::probe::protocol::{Job, PROTOCOL, Report, Task};
use crate::study::problem::Branch;
use crate::train::spec::{Start, TrainSpec};
use crate::train::trainer::Summary;

/// Has a run done by as many workers as it takes. `None` if the user stopped it before it could save anything.
///
/// Each worker that ran out of memory is followed by one with less to hold, so there can't be more of them than there
/// are configurations below the first; one that crashed is followed by another only if it had come further than the one
/// before.
///
/// # Errors
/// If training fails, or runs out of memory with nothing left to lower.
pub fn supervise(
    executor: &mut impl Executor,
    device: &str,
    cap_bytes: Option<u64>,
    spec: &TrainSpec,
    progress: &mut Progress,
) -> Result<Option<Summary>> {
    let mut spec = spec.clone();
    let layers = ModelFiles::open(&spec.model)?.config.layers;
    let mut crashed_at = None;
    loop {
        let task = Task::Train(serde_json::to_value(&spec)?);
        let job = Job { protocol: PROTOCOL, device: device.to_string(), cap_bytes, task };
        let finished = executor.run(&job, Duration::MAX, &mut |message| progress.hear(message));
        let reason = finished.attempt.reason;
        match (finished.attempt.outcome, finished.report) {
            (_, Some(Report::Trained(summary))) => return Ok(Some(summary)),
            (_, Some(Report::NonFinite { what })) => bail!("{what}"),
            (Outcome::Interrupted, _) => return Ok(None),
            (outcome @ (Outcome::Oom | Outcome::HostOom), _) => {
                spec.knobs = lowered(&spec.knobs, progress.lowered.take());
                let Some(lower) = spec.knobs.lower(spec.effective_batch, layers) else {
                    bail!("{}", nothing_left(&spec, outcome, cap_bytes, &reason)?)
                };
                spec.knobs = lower;
                progress.talk.line(&format!(
                    "out of memory after step {} ({reason}); going on from the last snapshot with {}. Probe again to \
                     find what is fastest now",
                    progress.step,
                    knobs_in_words(lower.micro_batch, lower.checkpoint_layers)
                ));
            }
            (Outcome::Crash | Outcome::Garbage, None) if crashed_at.is_none_or(|step| progress.step > step) => {
                crashed_at = Some(progress.step);
                let after = progress.step;
                progress.talk.line(&format!("the worker died after step {after} ({reason}); starting another one"));
            }
            (outcome, _) => bail!("training ended with {outcome}: {reason}"),
        }
        // A worker that is told to start anew removes an earlier run's snapshots before it says that it has started: one
        // that died before may have left them.
        if progress.started {
            spec.start = Start::Resume;
        }
    }
}

/// The knobs that a worker was using when it died: those it was given, or what it had lowered them to by itself.
fn lowered(given: &Knobs, by_itself: Option<(usize, usize)>) -> Knobs {
    match by_itself {
        Some((micro_batch, checkpoint_layers)) => Knobs { micro_batch, checkpoint_layers, ..*given },
        None => *given,
    }
}

/// Why a run can't be done at all, and what would help.
fn nothing_left(spec: &TrainSpec, outcome: Outcome, cap_bytes: Option<u64>, reason: &str) -> Result<String> {
    let config = ModelFiles::open(&spec.model)?.config;
    let bytes =
        workload::size_of(&config, config.num_labels(), spec.proven_length).static_bytes(Branch::of(&spec.knobs));
    let size = |bytes: f64| ByteSize(bytes as u64);
    let memory = match (outcome, cap_bytes) {
        (Outcome::Oom, Some(cap)) => format!("the cap is {}", ByteSize(cap)),
        _ => "the machine itself ran short: end other programs".to_string(),
    };
    Ok(format!(
        "out of memory with one row at a time and every layer recomputed ({reason}). Weights take {}, gradients {}, the \
         optimizer's memory {}; {memory}. Give more memory, shorter rows (--max-length), another optimizer (probe with \
         --space memory) or a smaller model",
        size(bytes.weights),
        size(bytes.gradients),
        size(bytes.optimizer),
    ))
}

#[cfg(test)]
mod tests;
