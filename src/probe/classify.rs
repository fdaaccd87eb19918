//! What became of a probe, from what could be seen of it. Pure: the executor gathers the evidence, this judges it.
//!
//! An out-of-memory shrinks the space that the study searches, so the rules lean the other way: [`Outcome::Oom`] needs
//! a report or an allocator's record from a worker that died of it, or a text that only a failed device allocation
//! produces. Everything doubtful is a crash, which shrinks nothing.

use std::time::Duration;

use super::oom_text::{self, Place};
use super::protocol::{Attempt, Measurement, OomRecord, Report};
use crate::plan::{ByteSize, Outcome};

mod reason;
mod signals;

pub use reason::last_words;

/// How a worker's turn ended.
#[derive(Clone, Debug, PartialEq)]
pub enum Ending {
    /// It sent its report.
    Answered,
    /// It ended by itself with this status, and without a report.
    Exited(i32),
    /// It was ended by this signal, which the driver had not sent.
    Killed(i32),
    /// It ended, but somebody else took note of how.
    Vanished,
    /// It had not reported when its time was up.
    Deadline {
        /// The time it was given.
        limit: Duration,
        /// What it was doing, where that could be seen.
        hang: Hang,
    },
    /// The user stopped it.
    Interrupted,
    /// The time for all jobs together was over.
    OutOfTime,
    /// It closed its output without a report, and lived on.
    Muted,
    /// It wrote more that is no message than is read.
    Flooded,
    /// It could not be started: the system's error.
    NotStarted(String),
}

/// What a worker that missed its deadline was doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hang {
    /// Nothing can be said: computing, or waiting.
    Unknown,
    /// It was stopped by a signal.
    Stopped,
    /// It never read its job.
    JobUnread,
}

/// Whether the kernel killed a process for want of memory during the probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KernelKills {
    /// Yes, in the control group of the worker.
    InGroup,
    /// Yes, somewhere on this machine.
    OnMachine,
    /// No.
    None,
    /// The counts can't be read.
    Unknown,
}

/// All that was seen of one probe.
#[derive(Clone, Debug)]
pub struct Evidence {
    /// How it ended.
    pub ending: Ending,
    /// Its report, if it sent a whole one.
    pub report: Option<Report>,
    /// The first line of its output that was no message, or what was left of one at the end.
    pub junk: Option<String>,
    /// What its allocator said it refused, in order.
    pub records: Vec<OomRecord>,
    /// The end of what it wrote to standard error.
    pub stderr: String,
    /// The kernel's own kills meanwhile.
    pub kernel_kills: KernelKills,
    /// Seconds from starting or asking the worker to its answer or end.
    pub wall_seconds: f64,
}

/// The parts of an attempt, before the time is added.
struct Verdict {
    outcome: Outcome,
    reason: String,
    measurement: Option<Measurement>,
    oom: Option<OomRecord>,
}

impl Verdict {
    fn new(outcome: Outcome, reason: impl Into<String>) -> Self {
        Verdict { outcome, reason: reason.into(), measurement: None, oom: None }
    }

    /// A refusal: of the device or the cap, or of the host.
    fn refused(outcome: Outcome, record: OomRecord) -> Self {
        let reason = reason::refusal(outcome, &record);
        let oom = (outcome == Outcome::Oom).then_some(record);
        Verdict { oom, ..Verdict::new(outcome, reason) }
    }
}

/// Judges the evidence.
pub fn classify(evidence: &Evidence) -> Attempt {
    let verdict = match (&evidence.ending, &evidence.report) {
        (Ending::Interrupted, _) => Verdict::new(Outcome::Interrupted, "stopped before it could report"),
        // No timeout: it had not had the time that a probe is given, and says nothing about the configuration.
        (Ending::OutOfTime, _) => Verdict::new(Outcome::Interrupted, "stopped at the end of the budget"),
        (Ending::Deadline { limit, hang }, _) => timeout(evidence, *limit, *hang),
        (_, Some(report)) => reported(evidence, report),
        (ending, None) => unreported(evidence, ending),
    };
    Attempt {
        outcome: verdict.outcome,
        reason: verdict.reason,
        measurement: verdict.measurement,
        oom: verdict.oom,
        wall_seconds: evidence.wall_seconds,
    }
}

/// The worker could still speak.
fn reported(evidence: &Evidence, report: &Report) -> Verdict {
    match report {
        Report::Measured(measured) if !(measured.loss.is_finite() && measured.parameter_sum.is_finite()) => {
            Verdict::new(
                Outcome::Nan,
                format!("loss {} and parameter sum {} are not both finite", measured.loss, measured.parameter_sum),
            )
        }
        // Refusals recorded before a good report were survived (`Vec::try_reserve`).
        Report::Measured(measured) => Verdict {
            measurement: Some(measured.clone()),
            ..Verdict::new(Outcome::Fit, format!("peak {}", ByteSize(measured.peak_bytes)))
        },
        Report::Described(_) => Verdict::new(Outcome::Fit, "described"),
        Report::Trained(_) => Verdict::new(Outcome::Fit, "trained to the end"),
        Report::Predicted(_) => Verdict::new(Outcome::Fit, "predicted to the end"),
        Report::OutOfMemory(record) => match oom_text::find(&record.text) {
            Some(found) if found.place == Place::Host => Verdict::refused(Outcome::HostOom, record.clone()),
            _ => Verdict::refused(Outcome::Oom, record.clone()),
        },
        Report::NonFinite { what } => Verdict::new(Outcome::Nan, reason::one_line(what)),
        Report::Unsupported { what } => Verdict::new(Outcome::Unsupported, reason::one_line(what)),
        Report::Failed { error } => {
            refusal(evidence, error).unwrap_or_else(|| Verdict::new(Outcome::Crash, reason::gist(error)))
        }
    }
}

/// What a worker that failed was refused, if that is known: by its allocator's last record (the one it died of), else
/// by `text`.
fn refusal(evidence: &Evidence, text: &str) -> Option<Verdict> {
    if let Some(record) = evidence.records.last() {
        let outcome = if record.cap.is_some() { Outcome::Oom } else { Outcome::HostOom };
        return Some(Verdict::refused(outcome, record.clone()));
    }
    let found = oom_text::find(text)?;
    let outcome = match found.place {
        Place::Device => Outcome::Oom,
        Place::Host => Outcome::HostOom,
    };
    Some(Verdict::refused(outcome, OomRecord { requested: found.requested, text: found.line, ..OomRecord::default() }))
}

/// The worker is gone, or out of hand, without a report.
fn unreported(evidence: &Evidence, ending: &Ending) -> Verdict {
    let said = reason::said(&evidence.stderr);
    match *ending {
        Ending::Exited(0) => Verdict::new(Outcome::Garbage, format!("ended well but sent no report{}", junk(evidence))),
        // The way in which a shell, or a container's runtime, passes on the death of its child.
        Ending::Exited(status @ 129..=159) if signals::name(status - 128).is_some() => {
            died(evidence, status - 128, &format!("exit status {status}, "))
        }
        Ending::Exited(status) => refusal(evidence, &evidence.stderr).unwrap_or_else(|| {
            Verdict::new(Outcome::Crash, format!("exit status {status}, no report{}{said}", junk(evidence)))
        }),
        Ending::Killed(signal) => died(evidence, signal, ""),
        Ending::Muted => Verdict::new(
            Outcome::Garbage,
            format!("closed its output without a report, lived on and was ended{}", junk(evidence)),
        ),
        Ending::Flooded => {
            Verdict::new(Outcome::Garbage, format!("wrote too much that is no message and was ended{}", junk(evidence)))
        }
        Ending::NotStarted(ref error) => Verdict::new(Outcome::Crash, format!("can't start the worker: {error}")),
        Ending::Answered | Ending::Vanished | Ending::Interrupted | Ending::OutOfTime | Ending::Deadline { .. } => {
            Verdict::new(Outcome::Crash, format!("ended without a report, nobody knows how{said}"))
        }
    }
}

/// Death by a signal that the driver did not send. `how` goes before the signal's name.
fn died(evidence: &Evidence, signal: i32, how: &str) -> Verdict {
    let name = signals::describe(signal);
    let said = reason::said(&evidence.stderr);
    // A record is no talk: its writer is dead, whatever killed it. Texts count only for a process that ended itself,
    // for a recovered refusal can stand in the log of one that later died of something else.
    let texts = if signal == libc::SIGABRT { evidence.stderr.as_str() } else { "" };
    if let Some(verdict) = refusal(evidence, texts) {
        return verdict;
    }
    if signal == libc::SIGKILL {
        let by = match evidence.kernel_kills {
            KernelKills::InGroup => "by the kernel: its memory group was over its limit",
            KernelKills::OnMachine => "by the kernel: the machine ran out of memory",
            KernelKills::None => "not by the kernel: by a person, or by a memory watchdog such as earlyoom",
            KernelKills::Unknown => "probably by the kernel, for want of memory",
        };
        return Verdict::new(Outcome::HostOom, format!("{how}{name}, sent {by}{said}"));
    }
    Verdict::new(Outcome::Crash, format!("{how}{name}{said}"))
}

/// The worker's time was up.
fn timeout(evidence: &Evidence, limit: Duration, hang: Hang) -> Verdict {
    let doing = match hang {
        Hang::Unknown => "",
        Hang::Stopped => ": it was stopped by a signal",
        Hang::JobUnread => ": it never read its job",
    };
    // Not an out-of-memory: a refusal that it survived need not be why it hung.
    let refused = if evidence.records.is_empty() { "" } else { ", after memory was refused to it" };
    let said = reason::said(&evidence.stderr);
    Verdict::new(Outcome::Timeout, format!("no report after {:.1} s{doing}{refused}{said}", limit.as_secs_f64()))
}

/// The first words that were no message, for a reason's end.
fn junk(evidence: &Evidence) -> String {
    match evidence.junk.as_deref().map(reason::one_line) {
        None => String::new(),
        Some(line) if line.starts_with('{') => {
            format!("; its output does not parse (cut off, or from another version of autofit?): {line}")
        }
        Some(line) => format!("; its output began with: {line}"),
    }
}

#[cfg(test)]
mod tests;
