//! The bytes of a text file, checked while they are read: UTF-8, without byte-order mark, every line known by number.
//!
//! Both formats read through [`Checked`], so an encoding error names its line and byte whatever the format, and
//! costs no second pass. The alternative, letting each parser complain, gives a byte offset inside a field.

use std::collections::VecDeque;
use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use anyhow::{Result, anyhow};

/// Bytes asked from the file at a time.
const CHUNK: usize = 1 << 16;

/// Opens a data file for checked reading.
///
/// # Errors
/// If it does not exist or may not be read.
pub fn open(path: &Path) -> Result<Checked<File>> {
    let file = File::open(path).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => anyhow!("can't open {}: there is no such file", path.display()),
        io::ErrorKind::PermissionDenied => anyhow!("can't open {}: you may not read it (chmod +r)", path.display()),
        _ => anyhow!("can't open {}: {error}", path.display()),
    })?;
    Ok(Checked::new(file))
}

/// The error of a read through [`Checked`], with the file's name: what was wrong with the bytes, or with the disk.
pub fn explain(path: &Path, error: &io::Error) -> anyhow::Error {
    match error.get_ref().and_then(|inner| inner.downcast_ref::<NotText>()) {
        Some(not_text) => anyhow!("{}{not_text}", path.display()),
        None => anyhow!("can't read {}: {error}", path.display()),
    }
}

/// Bytes that are no UTF-8 text, and where.
#[derive(Debug, PartialEq, Eq)]
pub struct NotText {
    /// Line, from 1.
    line: u64,
    /// Byte in that line, from 1.
    column: u64,
    what: String,
}

impl fmt::Display for NotText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, ", line {}, byte {}: {}", self.line, self.column, self.what)
    }
}

impl std::error::Error for NotText {}

/// Where a line with something on it starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LineStart {
    /// Bytes handed out before it.
    offset: u64,
    /// Its number, from 1.
    pub line: u64,
    /// Quotation marks before it: an odd number since a record began means that a quote is still open.
    pub quotes: u64,
}

/// A reader that passes on valid UTF-8 and remembers where lines start. Lines end with `\n`, `\r\n` or `\r`.
#[derive(Debug)]
pub struct Checked<R> {
    inner: R,
    chunk: usize,
    buffer: Vec<u8>,
    /// Bytes of `buffer` already handed out; up to `valid` may still be.
    given: usize,
    valid: usize,
    broken: Option<NotText>,
    at_start: bool,
    at_end: bool,
    cursor: Cursor,
    starts: VecDeque<LineStart>,
}

/// How far the scan for lines has come.
#[derive(Debug)]
struct Cursor {
    offset: u64,
    line: u64,
    line_begin: u64,
    quotes: u64,
    blank: bool,
    after_return: bool,
}

impl<R: Read> Checked<R> {
    /// Wraps any reader.
    pub fn new(inner: R) -> Self {
        Self::with_chunk(inner, CHUNK)
    }

    /// `chunk`: bytes asked for at a time; at least 4, so that every chunk completes a character.
    fn with_chunk(inner: R, chunk: usize) -> Self {
        Checked {
            inner,
            chunk,
            buffer: Vec::with_capacity(chunk + 4),
            given: 0,
            valid: 0,
            broken: None,
            at_start: true,
            at_end: false,
            cursor: Cursor { offset: 0, line: 1, line_begin: 0, quotes: 0, blank: true, after_return: false },
            starts: VecDeque::new(),
        }
    }

    /// The first line with something on it that starts at `offset` or later; forgets the lines before it.
    /// Offsets must not decrease from call to call.
    pub fn line_from(&mut self, offset: u64) -> Option<LineStart> {
        while self.starts.front().is_some_and(|start| start.offset < offset) {
            self.starts.pop_front();
        }
        self.starts.front().copied()
    }

    /// Number of the last line read so far, from 1.
    pub fn last_line(&self) -> u64 {
        // A file that ends with a line break has no line behind it.
        self.cursor.line - u64::from(self.cursor.blank && self.cursor.line > 1)
    }

    /// Bytes read so far.
    pub fn bytes(&self) -> u64 {
        self.cursor.offset
    }

    /// Quotation marks read so far.
    pub fn quotes(&self) -> u64 {
        self.cursor.quotes
    }

    /// Reads the next chunk, behind the bytes of a character that the last one cut in two.
    fn fill(&mut self) -> io::Result<()> {
        self.buffer.drain(..self.given);
        self.given = 0;
        let mut chunk = self.inner.by_ref().take(self.chunk as u64);
        self.at_end = chunk.read_to_end(&mut self.buffer)? < self.chunk;
        if std::mem::take(&mut self.at_start) {
            self.skip_mark();
        }
        self.validate();
        self.cursor.scan(&self.buffer[..self.valid], &mut self.starts);
        if let Some(broken) = &mut self.broken {
            broken.line = self.cursor.line;
            broken.column = self.cursor.offset - self.cursor.line_begin + 1;
        }
        Ok(())
    }

    /// Drops the mark that some editors put before UTF-8, and recognises those of UTF-16.
    fn skip_mark(&mut self) {
        if self.buffer.starts_with(b"\xEF\xBB\xBF") {
            self.buffer.drain(..3);
        } else if self.buffer.starts_with(b"\xFF\xFE") || self.buffer.starts_with(b"\xFE\xFF") {
            let what = "this is UTF-16, as some spreadsheets save it: save it as UTF-8, \
                        or convert it with `iconv -f UTF-16 -t UTF-8`";
            self.broken = Some(NotText { line: 0, column: 0, what: what.to_string() });
        }
    }

    /// Finds how much of the buffer may be handed out.
    fn validate(&mut self) {
        if self.broken.is_some() {
            self.valid = 0;
            return;
        }
        let Err(error) = std::str::from_utf8(&self.buffer) else {
            self.valid = self.buffer.len();
            return;
        };
        self.valid = error.valid_up_to();
        if error.error_len().is_some() || self.at_end {
            let what = format!(
                "byte 0x{:02X} is not UTF-8: convert the file, perhaps with `iconv -f WINDOWS-1252 -t UTF-8`",
                self.buffer[self.valid]
            );
            self.broken = Some(NotText { line: 0, column: 0, what });
        }
    }
}

impl Cursor {
    fn scan(&mut self, bytes: &[u8], starts: &mut VecDeque<LineStart>) {
        for &byte in bytes {
            let ends_return = self.after_return && byte == b'\n';
            self.after_return = byte == b'\r';
            match byte {
                b'\n' if ends_return => self.line_begin = self.offset + 1,
                b'\n' | b'\r' => {
                    self.line += 1;
                    self.line_begin = self.offset + 1;
                    self.blank = true;
                }
                _ => {
                    if self.blank {
                        self.blank = false;
                        starts.push_back(LineStart { offset: self.offset, line: self.line, quotes: self.quotes });
                    }
                    self.quotes += u64::from(byte == b'"');
                }
            }
            self.offset += 1;
        }
    }
}

impl<R: Read> Read for Checked<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if self.given == self.valid && !out.is_empty() {
            if let Some(broken) = self.broken.take() {
                // Stays at its end afterwards: whoever reads on after the error gets nothing.
                self.at_end = true;
                self.buffer.clear();
                (self.given, self.valid) = (0, 0);
                return Err(io::Error::new(io::ErrorKind::InvalidData, broken));
            }
            if !self.at_end {
                self.fill()?;
                if self.valid == 0 && self.broken.is_some() {
                    return self.read(out);
                }
            }
        }
        let count = out.len().min(self.valid - self.given);
        out[..count].copy_from_slice(&self.buffer[self.given..self.given + count]);
        self.given += count;
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read_all(bytes: &[u8], chunk: usize) -> (Vec<u8>, Option<String>, Vec<(u64, u64)>) {
        let mut reader = Checked::with_chunk(bytes, chunk);
        let mut out = Vec::new();
        let error = reader.read_to_end(&mut out).err().map(|e| e.to_string());
        (out, error, reader.starts.iter().map(|s| (s.offset, s.line)).collect())
    }

    #[test]
    fn names_line_and_byte_of_what_is_not_utf8() {
        let (out, error, _) = read_all(b"ab\r\n\xC3\xA9 caf\xE9\nrest", 4);
        assert_eq!(out, b"ab\r\n\xC3\xA9 caf");
        let error = error.expect("latin-1");
        assert!(error.starts_with(", line 2, byte 7: byte 0xE9 is not UTF-8"), "{error}");
        let cut_off = read_all(b"x\n\xE2\x82", 100).1.expect("half a character at the end");
        assert!(cut_off.starts_with(", line 2, byte 1: byte 0xE2"), "{cut_off}");
    }

    #[test]
    fn marks_are_dropped_or_explained() {
        assert_eq!(read_all(b"\xEF\xBB\xBFtext", 4).0, b"text");
        assert_eq!(read_all(b"\xEF\xBB\xBF", 4).0, b"");
        assert!(read_all(b"\xFF\xFEt\0", 4).1.expect("utf-16").contains("UTF-16"));
        assert_eq!(read_all(b"", 4), (vec![], None, vec![]));
    }

    #[test]
    fn every_line_break_counts_once() {
        let (_, _, starts) = read_all(b"a\nb\r\nc\rd\n\n\r\ne", 4);
        assert_eq!(starts, [(0, 1), (2, 2), (5, 3), (7, 4), (12, 7)]);
    }

    proptest! {
        #[test]
        fn valid_text_passes_unchanged(text in "[a-zé€😀\r\n\"]{0,60}", chunk in 4usize..12) {
            let (out, error, starts) = read_all(text.as_bytes(), chunk);
            prop_assert_eq!(error, None);
            prop_assert_eq!(out, text.as_bytes());
            let plain = text.replace("\r\n", "\n").replace('\r', "\n");
            let lines: Vec<u64> = plain.split('\n').zip(1..).filter(|(l, _)| !l.is_empty()).map(|(_, n)| n).collect();
            prop_assert_eq!(starts.iter().map(|s| s.1).collect::<Vec<_>>(), lines);
        }

        #[test]
        fn never_passes_what_is_not_utf8(bytes in proptest::collection::vec(any::<u8>(), 0..40), chunk in 4usize..12) {
            let (out, error, _) = read_all(&bytes, chunk);
            prop_assert!(std::str::from_utf8(&out).is_ok());
            if !bytes.starts_with(b"\xEF\xBB\xBF") {
                prop_assert_eq!(error.is_none(), std::str::from_utf8(&bytes).is_ok());
            }
        }
    }
}
