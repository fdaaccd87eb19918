//! A trial as a row of `trials.csv`. An unknown value is a blank cell, never a zero; floats are written so that they
//! read back to the same bits.

use std::str::FromStr;

use anyhow::{Context, Result, anyhow};
use csv::StringRecord;

use super::trial::{Purpose, Trial};
use crate::plan::bounds::{BATCH, LAYERS, RANK, within};
use crate::plan::text::csv_cell;
use crate::plan::{Knobs, OptimizerKind, Outcome, Precision};
use crate::probe::protocol::{Attempt, CapHold, Measurement, OomRecord};

/// The columns: first what a person wants, then all that a replay needs.
pub const COLUMNS: [&str; 33] = [
    "trial",
    "precision",
    "micro_batch",
    "accumulation",
    "checkpoint_layers",
    "outcome",
    "peak_bytes",
    "step_seconds",
    "samples_per_second",
    "wall_seconds",
    "reason",
    "purpose",
    "optimizer",
    "frozen_layers",
    "lora_rank",
    "weight_bytes",
    "gradient_bytes",
    "optimizer_bytes",
    "evaluation_peak_bytes",
    "layers",
    "loss",
    "parameter_sum",
    "setup_seconds",
    "micro_seconds",
    "optimizer_seconds",
    "oom_requested",
    "oom_live",
    "oom_cap",
    "oom_text",
    "unix_seconds",
    "in_use_peak_bytes",
    "context_bytes",
    "cap_hold",
];

/// Columns that a file must begin with.
pub const LEADING: usize = 11;

/// What is derived from a trial and the models when it is recorded; never read back.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Derived {
    /// Forward/backward passes per optimizer step.
    pub accumulation: usize,
    /// Seconds of one optimizer step at the effective batch, where measured.
    pub step_seconds: Option<f64>,
    /// Samples per second of an effective batch, where measured.
    pub samples_per_second: Option<f64>,
}

/// Text in one line, so that a line of the file is a row.
pub fn one_line(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// What a worker said, as a cell that no spreadsheet takes for a formula. [`said`] reads it back.
fn words(text: &str) -> String {
    let line = one_line(text);
    if line.starts_with('\'') { format!("'{line}") } else { csv_cell(&line).into_owned() }
}

/// What a worker said.
fn said(cell: &str) -> &str {
    match cell.strip_prefix('\'') {
        Some(rest) if words(rest) == cell => rest,
        _ => cell,
    }
}

fn cell<T: ToString>(value: Option<T>) -> String {
    value.map(|value| value.to_string()).unwrap_or_default()
}

fn list(values: &[f64]) -> String {
    values.iter().map(f64::to_string).collect::<Vec<_>>().join(" ")
}

/// The cells of a row, in the order of [`COLUMNS`].
pub fn write(trial: &Trial, derived: &Derived) -> Vec<String> {
    let Trial { number, knobs, purpose, attempt, unix_seconds } = trial;
    let (measured, oom) = (attempt.measurement.as_ref(), attempt.oom.as_ref());
    vec![
        number.to_string(),
        knobs.precision.to_string(),
        knobs.micro_batch.to_string(),
        derived.accumulation.to_string(),
        knobs.checkpoint_layers.to_string(),
        attempt.outcome.to_string(),
        cell(measured.map(|m| m.peak_bytes)),
        cell(derived.step_seconds),
        cell(derived.samples_per_second),
        attempt.wall_seconds.to_string(),
        words(&attempt.reason),
        purpose.to_string(),
        knobs.optimizer.to_string(),
        cell(knobs.frozen_layers),
        cell(knobs.lora_rank),
        cell(measured.map(|m| m.weight_bytes)),
        cell(measured.map(|m| m.gradient_bytes)),
        cell(measured.map(|m| m.optimizer_bytes)),
        cell(measured.and_then(|m| m.evaluation_peak_bytes)),
        cell(measured.map(|m| m.layers)),
        cell(measured.map(|m| m.loss)),
        cell(measured.map(|m| m.parameter_sum)),
        cell(measured.map(|m| m.setup_seconds)),
        measured.map(|m| list(&m.micro_seconds)).unwrap_or_default(),
        measured.map(|m| list(&m.optimizer_seconds)).unwrap_or_default(),
        cell(oom.and_then(|oom| oom.requested)),
        cell(oom.and_then(|oom| oom.live)),
        cell(oom.and_then(|oom| oom.cap)),
        oom.map(|oom| words(&oom.text)).unwrap_or_default(),
        unix_seconds.to_string(),
        cell(measured.and_then(|m| m.in_use_peak_bytes)),
        cell(measured.and_then(|m| m.context_bytes)),
        cell(measured.and_then(|m| m.cap_hold).map(CapHold::name)),
    ]
}

/// A row with the names of its columns.
struct Row<'a> {
    header: &'a StringRecord,
    record: &'a StringRecord,
}

impl Row<'_> {
    fn text(&self, column: &str) -> Result<&str> {
        let index = self.header.iter().position(|name| name == column);
        index.and_then(|index| self.record.get(index)).ok_or_else(|| anyhow!("there is no column '{column}'"))
    }

    fn maybe<T: FromStr<Err: std::fmt::Display>>(&self, column: &str) -> Result<Option<T>> {
        let text = self.text(column)?;
        if text.is_empty() {
            return Ok(None);
        }
        text.parse().map(Some).map_err(|error| anyhow!("column '{column}', '{text}': {error}"))
    }

    /// A cell of a column that older files lack.
    fn newer<T: FromStr<Err: std::fmt::Display>>(&self, column: &str) -> Result<Option<T>> {
        if self.header.iter().any(|name| name == column) { self.maybe(column) } else { Ok(None) }
    }

    fn get<T: FromStr<Err: std::fmt::Display>>(&self, column: &str) -> Result<T> {
        self.maybe(column)?.ok_or_else(|| anyhow!("column '{column}' is blank"))
    }

    fn list(&self, column: &str) -> Result<Vec<f64>> {
        let numbers = self.text(column)?.split_whitespace().map(str::parse);
        numbers.collect::<Result<_, _>>().with_context(|| format!("column '{column}'"))
    }

    fn measurement(&self) -> Result<Measurement> {
        Ok(Measurement {
            peak_bytes: self.get("peak_bytes")?,
            weight_bytes: self.get("weight_bytes")?,
            gradient_bytes: self.get("gradient_bytes")?,
            optimizer_bytes: self.get("optimizer_bytes")?,
            micro_seconds: self.list("micro_seconds")?,
            optimizer_seconds: self.list("optimizer_seconds")?,
            loss: self.get("loss")?,
            parameter_sum: self.get("parameter_sum")?,
            evaluation_peak_bytes: self.maybe("evaluation_peak_bytes")?,
            in_use_peak_bytes: self.newer("in_use_peak_bytes")?,
            context_bytes: self.newer("context_bytes")?,
            cap_hold: self.newer("cap_hold")?,
            layers: self.get("layers")?,
            setup_seconds: self.get("setup_seconds")?,
        })
    }
}

/// Reads a row back.
///
/// # Errors
/// If a cell is missing or can't be read; the caller adds file and line.
pub fn read(header: &StringRecord, record: &StringRecord) -> Result<Trial> {
    let row = Row { header, record };
    let outcome: Outcome = row.get("outcome")?;
    let knobs = Knobs {
        precision: row.get::<Precision>("precision")?,
        micro_batch: row.get("micro_batch")?,
        checkpoint_layers: row.get("checkpoint_layers")?,
        optimizer: row.get::<OptimizerKind>("optimizer")?,
        frozen_layers: row.maybe("frozen_layers")?,
        lora_rank: row.maybe("lora_rank")?,
    };
    for (column, value, range) in [
        ("micro_batch", knobs.micro_batch, 1..=BATCH),
        ("checkpoint_layers", knobs.checkpoint_layers, 0..=LAYERS),
        ("frozen_layers", knobs.frozen_layers.unwrap_or(0), 0..=LAYERS),
        ("lora_rank", knobs.lora_rank.unwrap_or(1), 1..=RANK),
    ] {
        within(value, range).map_err(|error| anyhow!("column '{column}', '{value}': {error}"))?;
    }
    let oom = OomRecord {
        requested: row.maybe("oom_requested")?,
        live: row.maybe("oom_live")?,
        cap: row.maybe("oom_cap")?,
        text: said(row.text("oom_text")?).to_string(),
    };
    let attempt = Attempt {
        outcome,
        reason: said(row.text("reason")?).to_string(),
        measurement: (outcome == Outcome::Fit).then(|| row.measurement()).transpose()?,
        oom: (outcome == Outcome::Oom && oom != OomRecord::default()).then_some(oom),
        wall_seconds: row.get("wall_seconds")?,
    };
    let (number, unix_seconds) = (row.get("trial")?, row.get("unix_seconds")?);
    Ok(Trial { number, knobs, purpose: row.get::<Purpose>("purpose")?, attempt, unix_seconds })
}
