//! Which columns hold what, and where they are in a file.

use std::path::Path;

use anyhow::Result;

use super::at;
use crate::data::suggest;

/// Names of the columns (CSV, TSV) or keys (JSONL) to read; all others are ignored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Columns {
    /// The text, or the first of two: `--text-column`.
    pub text: String,
    /// The second text, for pairs: `--text-pair-column`.
    pub pair: Option<String>,
    /// The label: `--label-column`. `None` for prediction.
    pub label: Option<String>,
}

impl Default for Columns {
    /// `text` and `label`.
    fn default() -> Self {
        Columns { text: "text".into(), pair: None, label: Some("label".into()) }
    }
}

/// A column that is wanted, with the flag that names it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted<'a> {
    pub name: &'a str,
    pub flag: &'static str,
}

impl Columns {
    pub(super) fn wanted_text(&self) -> Wanted<'_> {
        Wanted { name: &self.text, flag: "--text-column" }
    }

    pub(super) fn wanted_pair(&self) -> Option<Wanted<'_>> {
        self.pair.as_deref().map(|name| Wanted { name, flag: "--text-pair-column" })
    }

    pub(super) fn wanted_label(&self) -> Option<Wanted<'_>> {
        self.label.as_deref().map(|name| Wanted { name, flag: "--label-column" })
    }
}

/// Positions of the wanted columns in a header.
#[derive(Clone, Copy, Debug)]
pub(super) struct Positions {
    pub text: usize,
    pub pair: Option<usize>,
    pub label: Option<usize>,
    /// Columns in all.
    pub count: usize,
}

impl Positions {
    /// Finds the wanted columns in the header found on `line`.
    ///
    /// # Errors
    /// If one is missing, or is there twice.
    pub fn find(path: &Path, line: u64, header: &csv::StringRecord, columns: &Columns) -> Result<Self> {
        let find = |wanted: Wanted<'_>| -> Result<usize> {
            let mut hits = header.iter().enumerate().filter(|(_, name)| *name == wanted.name).map(|(i, _)| i);
            match (hits.next(), hits.next()) {
                (Some(index), None) => Ok(index),
                (None, _) => Err(at(path, line, missing(wanted, "column", &header.iter().collect::<Vec<_>>()))),
                (Some(first), Some(second)) => {
                    let name = suggest::quote(wanted.name);
                    let (first, second) = (first + 1, second + 1);
                    let what = format!("columns {first} and {second} are both called {name}: rename the other one");
                    Err(at(path, line, what))
                }
            }
        };
        Ok(Positions {
            text: find(columns.wanted_text())?,
            pair: columns.wanted_pair().map(find).transpose()?,
            label: columns.wanted_label().map(find).transpose()?,
            count: header.len(),
        })
    }
}

/// What to say when a wanted column (or key) is not among `present`.
pub(super) fn missing(wanted: Wanted<'_>, what: &str, present: &[&str]) -> String {
    let name = suggest::quote(wanted.name);
    if present.is_empty() {
        return format!("there is no {what} {name}, nor any other");
    }
    let advice = match suggest::nearest(wanted.name, present.iter().copied()) {
        Some(near) => format!("did you mean {} {}?", wanted.flag, suggest::quote(near)),
        None => format!("name the right one with {}", wanted.flag),
    };
    format!("there is no {what} {name} among {}: {advice}", suggest::list(present, 20))
}
