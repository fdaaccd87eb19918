//! A file of texts, ready to train on: token ids and targets.

use std::path::Path;

use anyhow::{Result, bail};

use super::labels::{self, Labels};
use super::lengths::Fingerprint;
use super::source::{self, Columns, LabelKind, TargetKind};
use super::tokenize::{Encoded, Tokenizer};

/// Targets of some rows, on the host.
#[derive(Clone, Debug, PartialEq)]
pub enum Targets {
    /// Class indices.
    Classes(Vec<usize>),
    /// Numbers to regress on.
    Values(Vec<f32>),
}

impl Targets {
    /// Rows.
    pub fn len(&self) -> usize {
        match self {
            Targets::Classes(classes) => classes.len(),
            Targets::Values(values) => values.len(),
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The targets of the rows at these positions, in this order.
    pub fn select(&self, rows: &[usize]) -> Targets {
        match self {
            Targets::Classes(classes) => Targets::Classes(rows.iter().map(|&r| classes[r]).collect()),
            Targets::Values(values) => Targets::Values(rows.iter().map(|&r| values[r]).collect()),
        }
    }

    /// Class indices, where the targets are classes.
    pub fn classes(&self) -> Option<&[usize]> {
        match self {
            Targets::Classes(classes) => Some(classes),
            Targets::Values(_) => None,
        }
    }
}

/// Where the meaning of labels comes from.
#[derive(Clone, Copy, Debug)]
pub enum LabelSource<'a> {
    /// The file itself; `model` names the classes that a model's configuration already has, whose order is kept when
    /// the file uses just these.
    Own {
        /// Names or numbers.
        kind: LabelKind,
        /// `id2label` of the model.
        model: &'a [String],
    },
    /// The classes of the training file; `None` for numbers.
    Given(Option<&'a Labels>),
}

/// Rows of a file as token ids, with their targets.
#[derive(Clone, Debug)]
pub struct Corpus {
    /// One entry a row, never padded.
    pub rows: Vec<Encoded>,
    /// As many.
    pub targets: Targets,
    /// The classes, or `None` for regression.
    pub labels: Option<Labels>,
    /// What is worth a word but no error (empty texts, say).
    pub warnings: Vec<String>,
}

impl Corpus {
    /// Reads and tokenizes a CSV, TSV or JSONL file.
    ///
    /// # Errors
    /// As [`source::read`] and [`Labels`], naming file and line.
    pub fn read(path: &Path, columns: &Columns, labels: LabelSource<'_>, tokenizer: &Tokenizer) -> Result<Corpus> {
        let kind = match labels {
            LabelSource::Own { kind, .. } => kind,
            LabelSource::Given(Some(_)) => LabelKind::Classes,
            LabelSource::Given(None) => LabelKind::Number,
        };
        let table = source::read(path, columns, kind)?;
        let labels = match (table.kind, labels) {
            (TargetKind::Absent, _) => bail!("{}: name the column of labels with --label-column", path.display()),
            (TargetKind::Numbers, _) => None,
            (TargetKind::Classes, LabelSource::Own { model, .. }) => Some(Labels::for_model(&table, model)?),
            (TargetKind::Classes, LabelSource::Given(given)) => given.cloned(),
        };
        let targets = match &labels {
            Some(labels) => Targets::Classes(labels.indices(&table)?),
            None => Targets::Values(labels::numbers(&table)?),
        };
        let rows = tokenizer.encode_all(&table.rows)?;
        Ok(Corpus { rows, targets, labels, warnings: table.warnings })
    }

    /// Rows.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Fingerprint of token ids and targets, in their order.
    pub fn fingerprint(&self) -> u64 {
        let mut print = Fingerprint::default();
        for row in &self.rows {
            print.add(row.ids.len() as u64);
            row.ids.iter().for_each(|&id| print.add(u64::from(id)));
        }
        match &self.targets {
            Targets::Classes(classes) => classes.iter().for_each(|&class| print.add(class as u64)),
            Targets::Values(values) => values.iter().for_each(|value| print.add(u64::from(value.to_bits()))),
        }
        print.value()
    }

    /// The rows at these positions, in this order.
    pub fn select(&self, rows: &[usize]) -> Corpus {
        Corpus {
            rows: rows.iter().map(|&r| self.rows[r].clone()).collect(),
            targets: self.targets.select(rows),
            labels: self.labels.clone(),
            warnings: Vec::new(),
        }
    }
}
