//! Bounded readers of what a worker writes: its output by lines, its standard error by its tail.

use std::collections::VecDeque;

/// Longest line that is waited for, in bytes. A report of a long probe has some kilobytes.
pub(super) const MAX_LINE: usize = 16 << 20;

/// Cuts a stream into lines without ever holding more than [`MAX_LINE`] of it.
#[derive(Default)]
pub(super) struct Lines {
    buffer: Vec<u8>,
    /// Bytes at the front that were given out already.
    given: usize,
    /// Bytes, counted from the front, that are known to hold no line end.
    searched: usize,
}

/// A line longer than [`MAX_LINE`].
#[derive(Debug, PartialEq)]
pub(super) struct TooLong;

impl Lines {
    /// Adds what was read.
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.buffer.drain(..self.given);
        self.searched -= self.given;
        self.given = 0;
        self.buffer.extend_from_slice(bytes);
    }

    /// The next whole line, without its end.
    pub(super) fn next(&mut self) -> Result<Option<&[u8]>, TooLong> {
        match self.buffer[self.searched..].iter().position(|&byte| byte == b'\n') {
            Some(offset) => {
                let (start, end) = (self.given, self.searched + offset);
                self.given = end + 1;
                self.searched = end + 1;
                Ok(Some(&self.buffer[start..end]))
            }
            None => {
                self.searched = self.buffer.len();
                if self.rest().len() > MAX_LINE { Err(TooLong) } else { Ok(None) }
            }
        }
    }

    /// What has no line end yet.
    pub(super) fn rest(&self) -> &[u8] {
        &self.buffer[self.given..]
    }
}

/// The last bytes of a stream.
pub(super) struct Tail {
    bytes: VecDeque<u8>,
    keep: usize,
}

impl Tail {
    /// Keeps the last `keep` bytes.
    pub(super) fn new(keep: usize) -> Self {
        Tail { bytes: VecDeque::with_capacity(keep), keep }
    }

    /// Adds what was read.
    pub(super) fn push(&mut self, bytes: &[u8]) {
        let bytes = &bytes[bytes.len().saturating_sub(self.keep)..];
        let surplus = (self.bytes.len() + bytes.len()).saturating_sub(self.keep);
        self.bytes.drain(..surplus);
        self.bytes.extend(bytes);
    }

    /// Forgets everything: what follows is about another job.
    pub(super) fn clear(&mut self) {
        self.bytes.clear();
    }

    /// As text; what is not UTF-8, as at a cut front, is replaced.
    pub(super) fn text(&self) -> String {
        let bytes: Vec<u8> = self.bytes.iter().copied().collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn lines_are_those_of_the_whole_however_it_was_cut(
            text in "[ab\n]{0,60}",
            cuts in prop::collection::vec(0usize..8, 0..40),
        ) {
            let mut lines = Lines::default();
            let mut got = Vec::new();
            let mut rest = text.as_bytes();
            for cut in cuts.into_iter().chain([rest.len()]) {
                let (now, later) = rest.split_at(cut.min(rest.len()));
                rest = later;
                lines.push(now);
                while let Ok(Some(line)) = lines.next() {
                    got.push(String::from_utf8(line.to_vec()).unwrap());
                }
            }
            let (whole, torn) = text.rsplit_once('\n').map_or(("", text.as_str()), |(w, t)| (w, t));
            let expected: Vec<&str> = if text.contains('\n') { whole.split('\n').collect() } else { Vec::new() };
            prop_assert_eq!(got, expected);
            prop_assert_eq!(lines.rest(), torn.as_bytes());
        }

        #[test]
        fn a_tail_is_the_end_of_the_whole(parts in prop::collection::vec("[a-z]{0,12}", 0..12), keep in 1usize..20) {
            let mut tail = Tail::new(keep);
            parts.iter().for_each(|part| tail.push(part.as_bytes()));
            let whole = parts.concat();
            prop_assert_eq!(tail.text(), &whole[whole.len().saturating_sub(keep)..]);
        }
    }

    #[test]
    fn an_endless_line_is_refused() {
        let mut lines = Lines::default();
        let chunk = vec![b'x'; 1 << 20];
        for _ in 0..16 {
            lines.push(&chunk);
            assert_eq!(lines.next(), Ok(None));
        }
        lines.push(b"x");
        assert_eq!(lines.next(), Err(TooLong));
    }
}
