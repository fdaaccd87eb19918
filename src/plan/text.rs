//! Foreign text for a person to see. Names come out of files that others wrote: none may steer a terminal, end a
//! comment, hide what stands after it or become a command.

use std::borrow::Cow;
use std::fmt::Write;

/// The text with everything written out (`\u{1b}`) that a terminal acts on or doesn't show: control characters, marks
/// that turn the direction of writing, invisible ones. Line breaks and tabs stay.
pub fn printable(text: &str) -> Cow<'_, str> {
    written_out(text, |c| is_hidden(c) && !matches!(c, '\n' | '\t'))
}

/// The same in one line: line breaks and tabs are written out, too (`\n`).
pub fn one_line(text: &str) -> Cow<'_, str> {
    written_out(text, is_hidden)
}

fn written_out(text: &str, hidden: impl Fn(char) -> bool) -> Cow<'_, str> {
    if !text.chars().any(&hidden) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        match hidden(c) {
            true => out.extend(c.escape_default()),
            false => out.push(c),
        }
    }
    Cow::Owned(out)
}

/// Whether a person wouldn't see this character where it stands. The joiners U+200C and U+200D belong to letters of
/// several scripts and stay.
pub fn is_hidden(c: char) -> bool {
    c.is_control()
        || matches!(c,
            '\u{ad}' | '\u{200b}' | '\u{200e}' | '\u{200f}' | '\u{61c}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}'
            | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{fffe}' | '\u{ffff}' | '\u{e0000}'..='\u{e007f}')
}

/// A cell of CSV that no spreadsheet takes for a formula: what begins like one gets an apostrophe in front, as is
/// customary (OWASP, "CSV injection"). Numbers may begin with a sign.
pub fn csv_cell(text: &str) -> Cow<'_, str> {
    let formula = text.starts_with(['=', '+', '-', '@', '\t', '\r', '\n', '＝', '＋', '－', '＠']);
    let number = || text.parse::<f64>().is_ok_and(f64::is_finite);
    if formula && !number() { Cow::Owned(format!("'{text}")) } else { Cow::Borrowed(text) }
}

/// One word of a POSIX shell.
pub fn shell_word(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+=:,@%".contains(c);
    if !text.is_empty() && text.chars().all(plain) { text.into() } else { format!("'{}'", text.replace('\'', "'\\''")) }
}

/// A double-quoted scalar of YAML. JSON's strings won't do: YAML takes `\u` escapes by single UTF-16 units, refuses
/// control characters and breaks lines at some characters that JSON leaves as they are.
pub fn yaml_string(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            // Writing to a string can't fail.
            c if is_hidden(c) => drop(write!(out, "\\U{:08X}", u32::from(c))),
            c => out.push(c),
        }
    }
    out + "\""
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_reaches_a_terminal_but_letters() {
        assert_eq!(printable("a\u{1b}[2J\rb\nc\td"), "a\\u{1b}[2J\\rb\nc\td");
        assert_eq!(
            one_line("cpu\ntouch x #\u{85}\u{2028}é 文 \u{202e}"),
            "cpu\\ntouch x #\\u{85}\\u{2028}é 文 \\u{202e}"
        );
        assert!(matches!(one_line("plain, ünd 'quoted'"), Cow::Borrowed(_)));
    }

    #[test]
    fn words_for_the_shell() {
        assert_eq!(shell_word("results/a-b/best.toml"), "results/a-b/best.toml");
        assert_eq!(shell_word("my file's"), "'my file'\\''s'");
        assert_eq!((shell_word(""), shell_word("$(x)")), ("''".into(), "'$(x)'".into()));
    }

    #[test]
    fn cells_are_no_formulas() {
        for formula in ["=1+1", "+cmd|' /C calc'!A0", "-2+3", "@SUM(1)", "\t=1", "\r=1", "\n=1", "＝1", "-inf", "-"] {
            assert_eq!(csv_cell(formula), format!("'{formula}"));
        }
        for plain in ["-1", "+1.5", "-2.5e-3", "good", "a=b", "", "'quoted'"] {
            assert_eq!(csv_cell(plain), plain);
        }
    }

    #[test]
    fn strings_of_yaml() {
        assert_eq!(yaml_string("a\"b\\c\n\u{85}é"), "\"a\\\"b\\\\c\\U0000000A\\U00000085é\"");
    }
}
