//! Standard output and standard error of a command. Whoever reads may go away at any time, as `head` does: that is no
//! error and no reason to stop.

use std::io::{self, ErrorKind, Write, stderr, stdout};

use anyhow::{Context, Result};

use crate::plan::text;

/// Words for a person on standard output; what names of others hold beside letters is written out.
///
/// # Errors
/// If standard output can't be written, as on a full disk.
pub fn say(words: &str) -> Result<()> {
    data(&text::printable(words))
}

/// Data for a program on standard output, as it is.
///
/// # Errors
/// If standard output can't be written, as on a full disk.
pub fn data(content: &str) -> Result<()> {
    piece(content).map(drop)
}

/// Whether somebody reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reader {
    /// As far as can be known.
    There,
    /// What comes next need not be made.
    Gone,
}

/// A piece of data on standard output that more follows.
///
/// # Errors
/// As [`data`].
pub fn piece(content: &str) -> Result<Reader> {
    match write(&mut stdout().lock(), content) {
        Ok(()) => Ok(Reader::There),
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(Reader::Gone),
        Err(error) => Err(error).context("can't write to standard output"),
    }
}

/// Words for a person on standard error. Where nobody can hear them, there is nobody to tell either.
pub fn talk(words: &str) {
    let _ = write(&mut stderr().lock(), &text::printable(words));
}

/// The same with what steers a terminal, for whoever made it.
pub fn steer(content: &str) {
    let _ = write(&mut stderr().lock(), content);
}

fn write(out: &mut impl Write, content: &str) -> io::Result<()> {
    out.write_all(content.as_bytes()).and_then(|()| out.flush())
}
