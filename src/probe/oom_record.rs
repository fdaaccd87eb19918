//! Reads the one line in which the worker's allocator says what it refused.
//!
//! ```text
//! autofit-oom requested=<bytes> live=<bytes> cap=<bytes>
//! ```
//!
//! `cap` is absent when the system refused, not the cap. The line usually comes through the descriptor named by
//! [`OOM_FD_VAR`](super::protocol::OOM_FD_VAR), and through standard error where that can't be inherited (`ssh`).

use super::protocol::OomRecord;

/// First word of a record.
const PREFIX: &str = "autofit-oom ";

/// All records in `bytes`, in the order in which they were written. Anything else in between is skipped, and so is a
/// record that was cut off.
pub fn find(bytes: &[u8]) -> Vec<OomRecord> {
    let text = String::from_utf8_lossy(bytes);
    let whole = match text.rfind('\n') {
        Some(end) => &text[..end],
        None => "",
    };
    whole.lines().filter_map(parse).collect()
}

/// One record, without its line end.
pub fn parse(line: &str) -> Option<OomRecord> {
    // Standard error is shared: another thread's words may stand before the record, without a line end.
    let fields = &line[line.find(PREFIX)? + PREFIX.len()..];
    let mut record = OomRecord::default();
    for field in fields.split_whitespace() {
        let (name, value) = field.split_once('=')?;
        let value = Some(value.parse().ok()?);
        match name {
            "requested" => record.requested = value,
            "live" => record.live = value,
            "cap" => record.cap = value,
            _ => return None,
        }
    }
    (record.requested.is_some() && record.live.is_some()).then_some(record)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(requested: u64, live: u64, cap: Option<u64>) -> OomRecord {
        OomRecord { requested: Some(requested), live: Some(live), cap, text: String::new() }
    }

    #[test]
    fn reads_both_forms() {
        assert_eq!(parse("autofit-oom requested=4096 live=100 cap=2048"), Some(record(4096, 100, Some(2048))));
        assert_eq!(parse("autofit-oom requested=1 live=0"), Some(record(1, 0, None)));
    }

    #[test]
    fn refuses_what_is_no_record() {
        for line in [
            "",
            "autofit-oom ",
            "autofit-oom requested=4096",
            "autofit-oom requested=-1 live=0",
            "autofit-oom requested=1 live=0 cap=",
            "autofit-oom requested=1 live=0 cap=x",
            "autofit-oom requested=1 live=0 colour=3",
            "autofit-oom requested=99999999999999999999 live=0",
            "oom requested=1 live=0",
        ] {
            assert_eq!(parse(line), None, "{line}");
        }
    }

    #[test]
    fn finds_records_among_other_words_and_drops_a_torn_one() {
        let text = b"loading\nautofit-oom requested=7 live=1 cap=5\n\xff\xfe thread 'a'autofit-oom requested=8 live=2\nautofit-oom requested=9 live=3 cap=1";
        assert_eq!(find(text), [record(7, 1, Some(5)), record(8, 2, None)]);
    }
}
