//! CSV, TSV and JSONL files → [`Example`]s.
//!
//! [`stream`] yields one example at a time in constant memory, for prediction; [`read`] collects them all and decides
//! what the labels are, for training. Every complaint about the content names the file and the line on which the
//! record starts.

mod bytes;
mod columns;
mod delimited;
mod jsonl;

use std::path::{Path, PathBuf};

use anyhow::{Result, anyhow, bail};

pub use columns::Columns;
use delimited::Delimited;
use jsonl::JsonLines;

/// How labels are to be understood.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LabelKind {
    /// Numbers, if every label is a finite number and at least one has a fraction (`3.8`); classes otherwise.
    #[default]
    Auto,
    /// Names of classes, whatever they look like.
    Classes,
    /// Targets of a regression: every label must be a finite number.
    Number,
}

/// What the labels of a [`Table`] turned out to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TargetKind {
    /// No label column was asked for.
    Absent,
    /// Names of classes.
    Classes,
    /// Finite numbers.
    Numbers,
}

/// One record of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Example {
    /// The text, or the first of two. May be empty.
    pub text: String,
    /// The second text, where a column for it was named. May be empty.
    pub pair: Option<String>,
    /// The label as written, without surrounding blanks; never empty. Present where a column for it was named.
    pub label: Option<String>,
    /// The line on which the record starts, from 1.
    pub line: u64,
}

/// All records of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    /// The file.
    pub path: PathBuf,
    /// At least one record, in the order of the file.
    pub rows: Vec<Example>,
    /// What the labels are.
    pub kind: TargetKind,
    /// What the user should know although it stops nothing, one sentence each.
    pub warnings: Vec<String>,
}

/// The formats, told apart by the file's extension.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    Delimited(u8),
    JsonLines,
}

impl Format {
    fn of(path: &Path) -> Result<Self> {
        let extension = path.extension().and_then(|e| e.to_str()).unwrap_or_default().to_ascii_lowercase();
        match extension.as_str() {
            "csv" => Ok(Format::Delimited(b',')),
            "tsv" | "tab" => Ok(Format::Delimited(b'\t')),
            "jsonl" | "ndjson" | "json" => Ok(Format::JsonLines),
            "gz" | "bz2" | "xz" | "zst" | "zip" => bail!("{} is compressed: unpack it first", path.display()),
            _ => bail!(
                "can't tell the format of {} from its name: \
                 .csv, .tsv or .tab (with a header line), .jsonl, .ndjson or .json (one object a line) are understood",
                path.display()
            ),
        }
    }
}

/// Examples one at a time. After an error it yields nothing more.
#[derive(Debug)]
pub struct Stream(Records);

#[derive(Debug)]
enum Records {
    Delimited(Box<Delimited>),
    JsonLines(Box<JsonLines>),
    Done,
}

/// Opens `path` for reading one example at a time, in memory that does not grow with the file.
///
/// # Errors
/// If the file can't be opened or is a directory, its extension names no known format, or its header lacks a column.
pub fn stream(path: &Path, columns: &Columns) -> Result<Stream> {
    if path.is_dir() {
        bail!("{} is a directory: name one .csv, .tsv or .jsonl file in it", path.display());
    }
    let records = match Format::of(path)? {
        Format::Delimited(separator) => {
            Records::Delimited(Box::new(Delimited::open(path, columns.clone(), separator)?))
        }
        Format::JsonLines => Records::JsonLines(Box::new(JsonLines::open(path, columns.clone())?)),
    };
    Ok(Stream(records))
}

impl Stream {
    /// Bytes of the file read so far, for telling how far a reader has come; `None` once all was read.
    pub fn bytes(&self) -> Option<u64> {
        match &self.0 {
            Records::Delimited(records) => Some(records.bytes()),
            Records::JsonLines(records) => Some(records.bytes()),
            Records::Done => None,
        }
    }
}

impl Iterator for Stream {
    /// The error names file, line and what to do.
    type Item = Result<Example>;

    fn next(&mut self) -> Option<Self::Item> {
        let next = match &mut self.0 {
            Records::Delimited(records) => records.next_example(),
            Records::JsonLines(records) => records.next_example(),
            Records::Done => return None,
        };
        if !matches!(next, Ok(Some(_))) {
            self.0 = Records::Done;
        }
        next.transpose()
    }
}

/// Reads all of `path`.
///
/// # Errors
/// As [`stream`]; if any record is malformed or its label empty; if there is no record at all; and, where labels are
/// numbers, if one is not finite.
pub fn read(path: &Path, columns: &Columns, kind: LabelKind) -> Result<Table> {
    let rows = stream(path, columns)?.collect::<Result<Vec<Example>>>()?;
    if rows.is_empty() {
        bail!("{} has no records: one for each text is needed", path.display());
    }
    let kind = target_kind(path, columns, &rows, kind)?;
    let warnings = warnings(path, columns, &rows);
    Ok(Table { path: path.to_path_buf(), rows, kind, warnings })
}

/// The number that a label spells, if it is finite in 32 bits, in which targets are held.
pub(super) fn number(label: &str) -> Option<f32> {
    label.parse::<f32>().ok().filter(|number| number.is_finite())
}

fn target_kind(path: &Path, columns: &Columns, rows: &[Example], kind: LabelKind) -> Result<TargetKind> {
    if columns.label.is_none() {
        return Ok(TargetKind::Absent);
    }
    let labels = || rows.iter().filter_map(|row| row.label.as_deref().map(|label| (row.line, label)));
    match kind {
        LabelKind::Classes => Ok(TargetKind::Classes),
        LabelKind::Number => match labels().find(|(_, label)| number(label).is_none()) {
            None => Ok(TargetKind::Numbers),
            Some((line, label)) => Err(at(
                path,
                line,
                format!(
                    "the label {} is not a finite number, which regression needs: correct it, or train on classes",
                    super::suggest::quote(label)
                ),
            )),
        },
        LabelKind::Auto => {
            let fractional = |label: &str| number(label).is_some_and(|number| number.fract() != 0.0);
            let numbers = labels().all(|(_, label)| number(label).is_some());
            let regression = numbers && labels().any(|(_, label)| fractional(label));
            Ok(if regression { TargetKind::Numbers } else { TargetKind::Classes })
        }
    }
}

fn warnings(path: &Path, columns: &Columns, rows: &[Example]) -> Vec<String> {
    let mut warnings = Vec::new();
    let mut warn = |column: &str, empty: &dyn Fn(&Example) -> bool| {
        let lines: Vec<u64> = rows.iter().filter(|row| empty(row)).map(|row| row.line).collect();
        if let Some(first) = lines.first() {
            warnings.push(format!(
                "{}: {} of {} records have an empty \"{column}\" (the first on line {first})",
                path.display(),
                lines.len(),
                rows.len()
            ));
        }
    };
    warn(&columns.text, &|row| row.text.trim().is_empty());
    if let Some(pair) = &columns.pair {
        warn(pair, &|row| row.pair.as_ref().is_some_and(|text| text.trim().is_empty()));
    }
    warnings
}

/// An error about one record.
pub(super) fn at(path: &Path, line: u64, what: impl std::fmt::Display) -> anyhow::Error {
    anyhow!("{}, line {line}: {what}", path.display())
}

#[cfg(test)]
mod tests;
