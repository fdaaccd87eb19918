//! What happened in one trial, and a list of them all, as plain text.

use std::fmt::Write;

use super::sheet::{Row, Sheet};
use super::terminal;
use crate::plan::text::one_line;
use crate::plan::{ByteSize, Outcome};
use crate::study::stamp;
use crate::study::trial::Purpose;

/// Lines of a worker's standard error that are shown.
const LINES: usize = 20;

/// Every trial in a line or two: what was tried, and what became of it.
pub fn list(sheet: &Sheet) -> String {
    let mut out = format!("{}: {} trials\n", one_line(&sheet.model()), sheet.rows.len());
    for row in &sheet.rows {
        let trial = &row.trial;
        let speed = row.samples_per_second.map_or(String::new(), |speed| format!(" · {speed:.2} samples/s"));
        let peak = row.peak().map_or(String::new(), |peak| format!(" · {} at the peak", ByteSize(peak)));
        let outcome = trial.attempt.outcome;
        let _ = writeln!(out, "{:>4}  {outcome:<11}  {}{peak}{speed}", trial.number, configuration(sheet, row));
        if row.peak().is_none() {
            let _ = writeln!(out, "{:19}{}", "", one_line(&trial.attempt.reason));
        }
    }
    out
}

/// One trial. `alone` is the command that repeats it, or why there is none; `words` is what its worker wrote to standard
/// error, and where that is kept.
pub fn trial(sheet: &Sheet, row: &Row, alone: &str, words: Option<(&str, &str)>) -> String {
    let (trial, attempt) = (&row.trial, &row.trial.attempt);
    let mut out = format!("Trial {} of {}: {}\n", trial.number, sheet.rows.len(), configuration(sheet, row));
    let mut line = |name: &str, text: String| {
        let _ = writeln!(out, "  {name:<8} {text}");
    };
    line("outcome", attempt.outcome.to_string());
    line("reason", one_line(&attempt.reason).into_owned());
    line("purpose", format!("{}: {}", trial.purpose, purpose(trial.purpose)));
    if let Some(measured) = &attempt.measurement {
        let cap = sheet.cap().map_or(String::new(), |cap| format!(" of {}", ByteSize(cap)));
        let parts = format!(
            "weights {} · gradients {} · optimizer {}",
            ByteSize(measured.weight_bytes),
            ByteSize(measured.gradient_bytes),
            ByteSize(measured.optimizer_bytes)
        );
        line("memory", format!("{}{cap} at the peak; {parts}", ByteSize(measured.peak_bytes)));
        if let (Some(speed), Some(step)) = (row.samples_per_second, row.step_seconds) {
            let timed = measured.micro_seconds.len();
            line("speed", format!("{speed:.2} samples/s, {step:.3} s an optimizer step, {timed} micro-batches timed"));
        }
        line("loss", format!("{:.4}", measured.loss));
    }
    if let Some(oom) = &attempt.oom {
        let bytes = |value: Option<u64>| value.map_or("unknown".to_string(), |bytes| ByteSize(bytes).to_string());
        line("refused", format!("{} more, with {} in use", bytes(oom.requested), bytes(oom.live)));
    }
    line("took", format!("{:.1} s, ended {}", attempt.wall_seconds, stamp::rfc3339(trial.unix_seconds)));
    let others: Vec<String> = sheet
        .rows
        .iter()
        .filter(|other| other.trial.knobs == trial.knobs && other.trial.number != trial.number)
        .map(|other| format!("{} ({})", other.trial.number, other.trial.attempt.outcome))
        .collect();
    if !others.is_empty() {
        line("also", format!("trials of the same configuration: {}", others.join(", ")));
    }
    if attempt.outcome != Outcome::Pruned {
        line("alone", alone.to_string());
    }
    if let Some((place, words)) = words {
        let lines: Vec<&str> = words.lines().collect();
        let _ = writeln!(out, "  The last words of its worker ({}):", one_line(place));
        for words in &lines[lines.len().saturating_sub(LINES)..] {
            let _ = writeln!(out, "    {}", one_line(words));
        }
    }
    out
}

fn configuration(sheet: &Sheet, row: &Row) -> String {
    let knobs = &row.trial.knobs;
    terminal::configuration(knobs, sheet.effective_batch().unwrap_or(knobs.micro_batch), sheet.layers_or_guess())
}

/// Why a trial of this purpose is run.
fn purpose(purpose: Purpose) -> &'static str {
    match purpose {
        Purpose::Pilot => "a cheap first look at a precision, optimizer or choice of trained parameters",
        Purpose::Explore => "it promised the greatest gain for its cost",
        Purpose::Settle => "again and longer, since two were as fast within noise",
        Purpose::Neighbour => "next to the answer, to show where the boundary runs",
        Purpose::Certify => "longer, with an evaluation batch, before it may be called the answer",
        Purpose::Prune => "not run: it could not have won",
    }
}
