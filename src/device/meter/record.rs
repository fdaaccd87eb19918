//! The record of a refusal: one line, put together on the stack and written in one call. Nothing here allocates.

use std::os::fd::RawFd;

/// Room for the words and three numbers of 20 digits.
const CAPACITY: usize = 128;

/// A line under construction. What does not fit is dropped; nothing that is put in exceeds [`CAPACITY`].
struct Line {
    bytes: [u8; CAPACITY],
    length: usize,
}

impl Line {
    fn text(&mut self, text: &[u8]) {
        for &byte in text {
            if let Some(slot) = self.bytes.get_mut(self.length) {
                *slot = byte;
                self.length += 1;
            }
        }
    }

    fn number(&mut self, mut value: u64) {
        let mut digits = [0u8; 20];
        let mut first = digits.len();
        loop {
            first -= 1;
            digits[first] = b'0' + (value % 10) as u8;
            value /= 10;
            if value == 0 {
                break;
            }
        }
        self.text(&digits[first..]);
    }
}

fn line(requested: u64, live: u64, cap: Option<u64>) -> Line {
    let mut line = Line { bytes: [0; CAPACITY], length: 0 };
    line.text(b"autofit-oom requested=");
    line.number(requested);
    line.text(b" live=");
    line.number(live);
    if let Some(cap) = cap {
        line.text(b" cap=");
        line.number(cap);
    }
    line.text(b"\n");
    line
}

/// Writes the record to `fd`. A failure is ignored: there is nobody to tell, and the refusal itself still happens.
pub(super) fn write(fd: RawFd, requested: u64, live: u64, cap: Option<u64>) {
    let line = line(requested, live, cap);
    // SAFETY: the pointer and length describe initialised bytes of `line`, which outlives the call. A descriptor that
    // is not open makes `write` fail and nothing else. Short enough (below PIPE_BUF) to be written whole.
    unsafe { libc::write(fd, line.bytes.as_ptr().cast(), line.length) };
}

#[cfg(test)]
mod tests {
    use super::line;

    fn text(requested: u64, live: u64, cap: Option<u64>) -> String {
        let line = line(requested, live, cap);
        String::from_utf8_lossy(&line.bytes[..line.length]).into_owned()
    }

    #[test]
    fn reads_as_documented() {
        assert_eq!(text(4096, 100, Some(2048)), "autofit-oom requested=4096 live=100 cap=2048\n");
        assert_eq!(text(0, 0, None), "autofit-oom requested=0 live=0\n");
    }

    #[test]
    fn the_largest_numbers_fit() {
        let max = u64::MAX;
        assert_eq!(text(max, max, Some(max)), format!("autofit-oom requested={max} live={max} cap={max}\n"));
    }
}
