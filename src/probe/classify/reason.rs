//! Reasons in one line, for a person.

use crate::plan::{ByteSize, Outcome};
use crate::probe::device_text;
use crate::probe::protocol::OomRecord;

/// Longest text of another program that goes into a reason, in characters.
const MAX_QUOTE: usize = 240;

/// `text` in one line, without control characters (a worker's words must not steer the terminal), and not too long.
pub(super) fn one_line(text: &str) -> String {
    let mut line = String::new();
    let parts = text.split(|c: char| c.is_whitespace() || c.is_control()).filter(|part| !part.is_empty());
    for part in parts {
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(part);
        if line.len() > 4 * MAX_QUOTE {
            break;
        }
    }
    match line.char_indices().nth(MAX_QUOTE) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line,
    }
}

/// An error's text for a person: what its words mean where they are a driver's, else its first line and its root cause.
/// Runtimes tell the whole chain, of which only the two ends matter, and the end is what a cut would lose.
pub(super) fn gist(text: &str) -> String {
    if let Some(meaning) = device_text::meaning(text) {
        return meaning.to_string();
    }
    let Some((head, causes)) = text.split_once("Caused by:") else { return one_line(text) };
    let root = causes.rsplit("Caused by:").next().unwrap_or_default();
    let root = root.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default();
    match (one_line(head), one_line(root)) {
        (head, root) if root.is_empty() => head,
        (head, root) => format!("{}: {root}", head.trim_end_matches(':')),
    }
}

/// What was refused, by whom.
pub(super) fn refusal(outcome: Outcome, record: &OomRecord) -> String {
    let size = |bytes: Option<u64>| bytes.map(|bytes| ByteSize(bytes).to_string());
    let what = size(record.requested).unwrap_or_else(|| "memory".to_owned());
    let by = match (outcome, record.cap) {
        (Outcome::HostOom, _) => "the machine".to_owned(),
        (_, Some(cap)) => format!("the cap of {}", ByteSize(cap)),
        (_, None) => "the device".to_owned(),
    };
    let live = size(record.live).map_or_else(String::new, |live| format!(" with {live} in use"));
    let text = match one_line(&record.text) {
        text if text.is_empty() => String::new(),
        text => format!(": {text}"),
    };
    format!("{what} refused by {by}{live}{text}")
}

/// The last words on standard error, for a reason's end; nothing if there were none.
pub(super) fn said(stderr: &str) -> String {
    last_words(stderr).map_or_else(String::new, |words| format!("; it said: {words}"))
}

/// The line of `stderr` that says most: the message of the last panic, else the last line that is not part of a
/// backtrace.
pub fn last_words(stderr: &str) -> Option<String> {
    let lines: Vec<&str> = stderr.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let panic = lines.iter().rposition(|line| line.starts_with("thread '") && line.contains(" panicked at "));
    if let Some(message) = panic.and_then(|at| lines.get(at + 1)) {
        return Some(one_line(message));
    }
    let telling = |line: &&&str| {
        let frame = line.split_once(':').is_some_and(|(number, _)| number.parse::<u32>().is_ok());
        let place = line.starts_with("at ");
        !(frame || place || line.starts_with("note: ") || line.starts_with("stack backtrace:"))
    };
    let words = lines.iter().rev().find(telling).or(lines.last())?;
    Some(one_line(words)).filter(|words| !words.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_is_one_line_and_harmless() {
        assert_eq!(one_line("  a\n\tb\r\n\x1b[31mred\x07 "), "a b [31mred");
        let long = one_line(&"é".repeat(1000));
        assert_eq!(long.chars().count(), MAX_QUOTE + 1);
        assert!(long.ends_with('…'));
    }

    #[test]
    fn last_words_are_those_of_the_panic() {
        let stderr = "loading\nthread 'main' (7) panicked at src/a.rs:1:2:\nindex out of bounds\nnote: run with `RUST_BACKTRACE=1`\nlater\n";
        assert_eq!(last_words(stderr).as_deref(), Some("index out of bounds"));
    }

    #[test]
    fn last_words_skip_the_backtrace() {
        let stderr = "Error: no such file\nstack backtrace:\n   0: std::backtrace\n             at /rustc/x\nnote: more with full\n";
        assert_eq!(last_words(stderr).as_deref(), Some("Error: no such file"));
        assert_eq!(last_words(" \n\n"), None);
        assert_eq!(last_words("note: only this").as_deref(), Some("note: only this"));
    }

    #[test]
    fn of_a_chain_of_causes_both_ends_are_told() {
        let text = "reading the loss: An error happened\nCaused by:\n  Several at once\nCaused by:\n  compiling 'x': no such function\nNo backtrace available";
        assert_eq!(gist(text), "reading the loss: An error happened: compiling 'x': no such function");
        assert_eq!(gist("plain\nwords"), "plain words");
        assert!(gist("DriverError(CUDA_ERROR_LAUNCH_FAILED)").starts_with("a kernel failed on the card"));
    }

    #[test]
    fn refusals_read_well() {
        let record =
            OomRecord { requested: Some(4 << 20), live: Some(1 << 30), cap: Some(1 << 30), text: String::new() };
        assert_eq!(refusal(Outcome::Oom, &record), "4.00 MiB refused by the cap of 1.00 GiB with 1.00 GiB in use");
        let record = OomRecord { text: "CUDA_ERROR_OUT_OF_MEMORY".into(), ..OomRecord::default() };
        assert_eq!(refusal(Outcome::Oom, &record), "memory refused by the device: CUDA_ERROR_OUT_OF_MEMORY");
        let record = OomRecord { requested: Some(12), live: Some(0), ..OomRecord::default() };
        assert_eq!(refusal(Outcome::HostOom, &record), "12 B refused by the machine with 0 B in use");
    }
}
