//! What a prediction says while it goes and when it ends: plain data, for whoever listens.

use serde::{Deserialize, Serialize};

use crate::plan::float;

/// What was predicted since the last time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Lines {
    /// A piece of CSV, to be written behind the one before it: the header first, then rows. It may end inside a line.
    pub csv: String,
    /// Rows predicted so far.
    pub rows: u64,
    /// Share of the file that has been read, from 0 to 1.
    #[serde(with = "float")]
    pub share: f64,
}

/// How it ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// Rows predicted.
    pub rows: u64,
    /// Rows that were longer than the model was allowed to read.
    pub truncated: u64,
    /// Where rows were truncated, in tokens.
    pub max_length: usize,
    /// Seconds from the first row to the last.
    #[serde(with = "float")]
    pub seconds: f64,
    /// Highest number of bytes in use above what was there before the model was built.
    pub peak_bytes: u64,
}
