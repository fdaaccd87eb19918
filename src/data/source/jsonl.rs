//! JSON Lines: one object a line, as Hugging Face's `datasets` and `jq -c` write them. Blank lines are skipped.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use serde_json::{Map, Value};

use super::bytes::{self, Checked};
use super::columns::{Columns, Wanted, missing};
use super::{Example, at};
use crate::data::suggest;

/// The records of one open file.
#[derive(Debug)]
pub(super) struct JsonLines {
    path: PathBuf,
    reader: BufReader<Checked<File>>,
    columns: Columns,
    buffer: String,
    line: u64,
    any: bool,
}

impl JsonLines {
    /// Opens the file.
    ///
    /// # Errors
    /// If that can't be done. Keys are looked up record by record.
    pub fn open(path: &Path, columns: Columns) -> Result<Self> {
        let reader = BufReader::new(bytes::open(path)?);
        Ok(JsonLines { path: path.to_path_buf(), reader, columns, buffer: String::new(), line: 0, any: false })
    }

    /// Bytes of the file read so far.
    pub fn bytes(&self) -> u64 {
        self.reader.get_ref().bytes()
    }

    /// The next record; `None` at the end.
    ///
    /// # Errors
    /// If the line is no object, lacks a key, or a value is of the wrong type or (a label) empty.
    pub fn next_example(&mut self) -> Result<Option<Example>> {
        loop {
            self.buffer.clear();
            let count = self.reader.read_line(&mut self.buffer).map_err(|e| bytes::explain(&self.path, &e))?;
            if count == 0 {
                if !self.any {
                    bail!("{} is empty: one JSON object a line is needed", self.path.display());
                }
                return Ok(None);
            }
            self.line += 1;
            if !self.buffer.trim().is_empty() {
                break;
            }
        }
        self.any = true;
        let object = self.object()?;
        let example = || -> Result<Example, String> {
            Ok(Example {
                text: text(&object, self.columns.wanted_text())?,
                pair: self.columns.wanted_pair().map(|wanted| text(&object, wanted)).transpose()?,
                label: self.columns.wanted_label().map(|wanted| label(&object, wanted)).transpose()?,
                line: self.line,
            })
        };
        example().map(Some).map_err(|what| at(&self.path, self.line, what))
    }

    fn object(&self) -> Result<Map<String, Value>> {
        let what = match serde_json::from_str(&self.buffer) {
            Ok(Value::Object(object)) => return Ok(object),
            Ok(Value::Array(_)) => format!("a JSON array where an object is needed: {FLATTEN}"),
            Ok(other) => format!("{} where an object is needed, as in {{\"{}\": …}}", kind(&other), self.columns.text),
            Err(error) if error.is_eof() => format!("the JSON value does not end on its line: {FLATTEN}"),
            Err(error) => {
                // The parser sees one line at a time and calls each of them line 1.
                let text = error.to_string();
                let text = text.split(" at line ").next().unwrap_or_default();
                format!("not valid JSON at column {}: {text}", error.column())
            }
        };
        Err(at(&self.path, self.line, what))
    }
}

/// What to do with JSON that is not one object a line.
const FLATTEN: &str = "write one object a line (`jq -c '.[]'` does it to an array, `jq -c .` to objects)";

fn get<'a>(object: &'a Map<String, Value>, wanted: Wanted<'_>) -> Result<&'a Value, String> {
    object.get(wanted.name).ok_or_else(|| {
        let keys: Vec<&str> = object.keys().map(String::as_str).collect();
        missing(wanted, "key", &keys)
    })
}

fn text(object: &Map<String, Value>, wanted: Wanted<'_>) -> Result<String, String> {
    match get(object, wanted)? {
        Value::String(text) => Ok(text.clone()),
        other => Err(format!(
            "{} is {}, not a string: correct it, or name another key with {}",
            suggest::quote(wanted.name),
            kind(other),
            wanted.flag
        )),
    }
}

/// A label as text: strings without surrounding blanks, numbers in their shortest form, `true` and `false`.
fn label(object: &Map<String, Value>, wanted: Wanted<'_>) -> Result<String, String> {
    let name = suggest::quote(wanted.name);
    match get(object, wanted)? {
        Value::String(label) if label.trim().is_empty() => {
            Err(format!("the label {name} is empty: fill it in or drop the record"))
        }
        Value::String(label) => Ok(label.trim().to_string()),
        Value::Number(number) => Ok(number.to_string()),
        Value::Bool(truth) => Ok(truth.to_string()),
        other => Err(format!(
            "the label {name} is {}: a string, a number or a boolean is needed (the key is named by {})",
            kind(other),
            wanted.flag
        )),
    }
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}
