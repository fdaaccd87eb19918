//! CSV and TSV with a header line, as RFC 4180, spreadsheets and pandas write them: a field that holds separators,
//! line breaks or quotes stands in quotes, and its own quotes are doubled.
//!
//! TSV is quoted the same way, which is how pandas and Hugging Face's `datasets` read it by default.

use std::fs::File;
use std::path::{Path, PathBuf};

use anyhow::{Result, anyhow, bail};
use csv::{Reader, ReaderBuilder, StringRecord};

use super::bytes::{self, Checked, LineStart};
use super::columns::{Columns, Positions};
use super::{Example, at};
use crate::data::suggest;

/// The records of one open file.
#[derive(Debug)]
pub(super) struct Delimited {
    path: PathBuf,
    reader: Reader<Checked<File>>,
    columns: Columns,
    positions: Positions,
    record: StringRecord,
}

impl Delimited {
    /// Opens the file and reads its header.
    ///
    /// # Errors
    /// If there is none, or it lacks a column.
    pub fn open(path: &Path, columns: Columns, separator: u8) -> Result<Self> {
        let mut reader = ReaderBuilder::new()
            .delimiter(separator)
            // The header is read as a record, and lengths are checked here, so that errors can name true lines.
            .has_headers(false)
            .flexible(true)
            .from_reader(bytes::open(path)?);
        let mut record = StringRecord::new();
        let Some(start) = read_record(path, &mut reader, &mut record)? else {
            bail!("{} is empty: a header line with the names of the columns is needed", path.display());
        };
        let positions = Positions::find(path, start.line, &record, &columns)?;
        Ok(Delimited { path: path.to_path_buf(), reader, columns, positions, record })
    }

    /// Bytes of the file read so far.
    pub fn bytes(&self) -> u64 {
        self.reader.get_ref().bytes()
    }

    /// The next record; `None` at the end.
    ///
    /// # Errors
    /// If it can't be read, has not as many fields as the header, or an empty label.
    pub fn next_example(&mut self) -> Result<Option<Example>> {
        let Some(start) = read_record(&self.path, &mut self.reader, &mut self.record)? else {
            return Ok(None);
        };
        self.check_shape(start)?;
        let field = |index: usize| self.record.get(index).unwrap_or_default();
        let label = match (self.positions.label, &self.columns.label) {
            (Some(index), Some(name)) => match field(index).trim() {
                "" => {
                    let name = suggest::quote(name);
                    let what = format!("the label in column {name} is empty: fill it in or drop the record");
                    return Err(at(&self.path, start.line, what));
                }
                label => Some(label.to_string()),
            },
            _ => None,
        };
        Ok(Some(Example {
            text: field(self.positions.text).to_string(),
            pair: self.positions.pair.map(|index| field(index).to_string()),
            label,
            line: start.line,
        }))
    }

    /// As many fields as the header has, and quotes that pair up.
    fn check_shape(&mut self, start: LineStart) -> Result<()> {
        let (found, expected) = (self.record.len(), self.positions.count);
        let spans_lines = self.record.iter().any(|field| field.contains(['\n', '\r']));
        if spans_lines {
            // A quote that is never closed swallows the records behind it, often without a wrong number of fields.
            let end = self.reader.position().byte();
            let bytes = self.reader.get_mut();
            let next = bytes.line_from(end);
            let quotes = next.map_or_else(|| bytes.quotes(), |next| next.quotes) - start.quotes;
            let last_line = next.map_or_else(|| bytes.last_line(), |next| next.line - 1);
            if found != expected || !quotes.is_multiple_of(2) {
                return Err(at(
                    &self.path,
                    start.line,
                    format!(
                        "the record that starts here runs to line {last_line} and has {} where the header has \
                         {expected}; its {quotes} quotation marks do not seem to pair up: close the one that opens \
                         the text, and double (\"\") those that belong to it",
                        fields(found)
                    ),
                ));
            }
        }
        if found != expected {
            let what = format!(
                "{} where the header has {expected}: put a text that holds separators, line breaks or quotes in quotes",
                fields(found)
            );
            return Err(at(&self.path, start.line, what));
        }
        Ok(())
    }
}

fn fields(count: usize) -> String {
    if count == 1 { "1 field".to_string() } else { format!("{count} fields") }
}

/// Reads a record and says where it starts; `None` at the end of the file.
fn read_record(
    path: &Path,
    reader: &mut Reader<Checked<File>>,
    record: &mut StringRecord,
) -> Result<Option<LineStart>> {
    let offset = reader.position().byte();
    match reader.read_record(record) {
        Ok(false) => Ok(None),
        // The parser's own line numbers lag behind after `\r\n` and blank lines; those of the bytes don't.
        Ok(true) => match reader.get_mut().line_from(offset) {
            Some(start) => Ok(Some(start)),
            None => bail!("{}: the record at byte {offset} is on no line", path.display()),
        },
        Err(error) => Err(match error.kind() {
            csv::ErrorKind::Io(io) => bytes::explain(path, io),
            _ => anyhow!("can't read {}: {error}", path.display()),
        }),
    }
}
