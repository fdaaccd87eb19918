//! The worker's side of the boundary: a loop that reads jobs, has them done, and always answers.
//!
//! Standard output belongs to the protocol. It is moved to a private descriptor at the start, and what anybody prints
//! goes to standard error, where it can't be taken for a message. A handler may panic: the panic's text becomes the
//! answer. A worker ends when its input does, and at once when nobody is left to read its output.

use std::any::Any;
use std::fs::File;
use std::io::{self, BufRead, Read, Write};
use std::os::fd::{AsFd, RawFd};
use std::panic::{self, AssertUnwindSafe};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread;

use anyhow::{Context, Result, bail};

use super::oom_text::{self, Place};
use super::os;
use super::protocol::{Job, Measurement, Message, OOM_FD_VAR, OomRecord, PROTOCOL, Report};

/// Longest job that is read, in bytes.
const MAX_JOB: u64 = 64 << 20;
/// Panics that are remembered for one job.
const MAX_PANICS: usize = 8;

/// Texts of the panics of this job, in any thread, in order. An accelerator's errors often surface as a panic in its
/// own thread, of which the thread that waits for it learns no more than that a channel was closed.
static PANICS: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Serves jobs from standard input until it ends. Call it once, first thing in the worker, before anything is printed.
///
/// `handler` is given the job and a function that sends progress and events, and returns the report.
///
/// # Errors
/// If the standard streams can't be set up, or the driver's end was closed while something was to be said.
pub fn serve(handler: impl FnMut(&Job, &mut dyn FnMut(Message)) -> Report) -> Result<()> {
    let output = os::take_stdout().context("can't take over standard output")?;
    // A terminal's Ctrl-C is the driver's business.
    os::ignore(libc::SIGINT);
    volunteer_for_the_oom_killer();
    let watched = output.try_clone().context("can't duplicate standard output")?;
    thread::spawn(move || {
        os::wait_for_hangup(watched.as_fd());
        os::exit_now(1);
    });
    remember_panics();
    serve_on(io::stdin().lock(), File::from(output), handler)
}

/// Catches SIGTERM, and returns the flag that it raises: a worker that has something to save is given the driver's grace
/// time for it. Without this call SIGTERM ends the process.
///
/// # Errors
/// If the system refuses a handler.
pub fn asked_to_stop() -> io::Result<&'static AtomicBool> {
    extern "C" fn raise(_signal: libc::c_int) {
        ASKED_TO_STOP.store(true, SeqCst);
    }
    ASKED_TO_STOP.store(false, SeqCst);
    os::handle(libc::SIGTERM, raise)?;
    Ok(&ASKED_TO_STOP)
}

/// Raised by SIGTERM once [`asked_to_stop`] was called.
static ASKED_TO_STOP: AtomicBool = AtomicBool::new(false);

/// What a caught panic says about the device's memory, if it is that which ran out: in its own words, or in those of the
/// panics in other threads that led to it.
pub fn refusal(payload: &(dyn Any + Send)) -> Option<String> {
    refusal_in(&payload_text(payload))
}

/// As [`refusal`], of an error's text.
pub fn refusal_in(text: &str) -> Option<String> {
    let mut texts: Vec<String> = vec![text.to_owned()];
    texts.extend(panics().iter().cloned());
    let found = oom_text::find(&texts.join("\n")).filter(|found| found.place == Place::Device)?;
    // It was dealt with: the next panic is judged by its own words.
    panics().clear();
    Some(found.line)
}

/// The descriptor for the allocator's records: the one that the driver opened, or standard error where it did not get
/// here (behind `ssh`).
pub fn oom_fd() -> RawFd {
    let named = std::env::var(OOM_FD_VAR).ok().and_then(|text| text.parse().ok());
    named.filter(|&fd: &RawFd| fd > libc::STDERR_FILENO && os::is_open(fd)).unwrap_or(libc::STDERR_FILENO)
}

/// When the machine runs out of memory, the worker should go, not the driver that knows what to make of it. Best
/// effort: raising one's own score needs no rights, but the file may be absent.
fn volunteer_for_the_oom_killer() {
    let _ = std::fs::write("/proc/self/oom_score_adj", "500");
}

/// The loop itself, on any streams.
fn serve_on(
    mut input: impl BufRead,
    mut output: impl Write,
    mut handler: impl FnMut(&Job, &mut dyn FnMut(Message)) -> Report,
) -> Result<()> {
    loop {
        let mut line = Vec::new();
        let read = input.by_ref().take(MAX_JOB).read_until(b'\n', &mut line).context("can't read the next job")?;
        if read == 0 {
            return Ok(());
        }
        if line.trim_ascii().is_empty() {
            continue;
        }
        let report = match parse(&line) {
            Ok(job) => answer(&job, &mut output, &mut handler)?,
            Err(error) => Report::Failed { error: format!("{error:#}") },
        };
        send(&mut output, &Message::Report(report))?;
    }
}

/// Reads a job. The version is looked at first: the rest may be unreadable just because it is another.
fn parse(line: &[u8]) -> Result<Job> {
    let value: serde_json::Value = serde_json::from_slice(line).context("the job is not JSON")?;
    match value.get("protocol").and_then(serde_json::Value::as_u64) {
        Some(version) if version == u64::from(PROTOCOL) => {}
        Some(version) => {
            bail!("the job is of protocol {version}, this worker speaks {PROTOCOL}: use the same autofit on both sides")
        }
        None => bail!("the job names no protocol version"),
    }
    serde_json::from_value(value).context("the job does not parse")
}

/// Has one job done, whatever the handler does.
fn answer(
    job: &Job,
    output: &mut impl Write,
    handler: &mut impl FnMut(&Job, &mut dyn FnMut(Message)) -> Report,
) -> Result<Report> {
    panics().clear();
    let mut sent = Ok(());
    let mut emit = |message: Message| {
        // The report is what the handler returns: a second one would end the job twice.
        if sent.is_ok() && !matches!(message, Message::Report(_)) {
            sent = send(output, &message);
        }
    };
    // Nothing that a panic may have left half done is used again: the handler is only called for another job if the
    // driver trusts this worker with one, which it does after a good report alone.
    let report = match panic::catch_unwind(AssertUnwindSafe(|| handler(job, &mut emit))) {
        Ok(Report::Measured(measured)) => finite(measured),
        Ok(Report::Failed { error }) => explained(error),
        Ok(report) => report,
        Err(payload) => explained(format!("panicked: {}", payload_text(payload.as_ref()))),
    };
    sent?;
    Ok(report)
}

/// A measurement that holds what is not finite is none.
fn finite(measured: Measurement) -> Report {
    let times = measured.micro_seconds.iter().chain(&measured.optimizer_seconds);
    let what = if !measured.loss.is_finite() {
        format!("the loss is {}", measured.loss)
    } else if !measured.parameter_sum.is_finite() {
        format!("the sum over the updated parameters is {}", measured.parameter_sum)
    } else if let Some(time) = times.chain([&measured.setup_seconds]).find(|time| !time.is_finite()) {
        return Report::Failed { error: format!("a measured time is {time} s") };
    } else {
        return Report::Measured(measured);
    };
    Report::NonFinite { what }
}

/// A failure, together with the panics of other threads that led to it; out of memory if that is what they say.
fn explained(error: String) -> Report {
    let mut whole = error;
    for panic in panics().drain(..) {
        if !whole.contains(&panic) {
            whole.push_str("\nbefore that: ");
            whole.push_str(&panic);
        }
    }
    match oom_text::find(&whole) {
        Some(found) if found.place == Place::Device => {
            Report::OutOfMemory(OomRecord { requested: found.requested, text: found.line, ..OomRecord::default() })
        }
        // The host's memory, too, is told from the text: by the driver.
        _ => Report::Failed { error: whole },
    }
}

/// Keeps the texts of panics, besides what the present hook does (it prints them).
fn remember_panics() {
    let print = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        let text = payload_text(info.payload());
        let mut panics = panics();
        if panics.len() < MAX_PANICS {
            panics.push(text);
        }
        drop(panics);
        print(info);
    }));
}

fn panics() -> std::sync::MutexGuard<'static, Vec<String>> {
    PANICS.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn payload_text(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| payload.downcast_ref::<String>().cloned()).unwrap_or_else(|| "a panic without words".to_owned())
}

fn send(output: &mut impl Write, message: &Message) -> Result<()> {
    let mut line = serde_json::to_vec(message).context("can't write a message as JSON")?;
    line.push(b'\n');
    output.write_all(&line).and_then(|()| output.flush()).context("the driver no longer listens")
}

#[cfg(test)]
mod tests;
