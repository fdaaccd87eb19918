//! A user's command around the worker: `ssh box {worker}`, `systemd-run --scope -p MemoryMax=8G {worker}`.
//!
//! The text is cut into words here and started without a shell, so nothing in it is expanded or run: no variables, no
//! `*`, no `;`. The rules are those of a POSIX shell, reduced to quoting:
//!
//! * blanks separate words; `'…'` is taken as it stands; a backslash outside quotes makes the next character plain;
//! * in `"…"` a backslash does so before `"` and `\` only.
//!
//! `{worker}` is the worker's command. Standing alone and unquoted it becomes several words, one per argument. Quoted,
//! or as a part of a word, it becomes text quoted for a shell, since whoever receives it must be going to cut it up
//! again: `ssh box '{worker}'` and `bash -c 'ulimit -v 8000000; exec {worker}'` survive blanks in a path, `ssh box
//! {worker}` (which `ssh` joins with blanks) does not.

use std::ffi::OsString;

use anyhow::{Context, Result, bail, ensure};

/// What stands for the worker's command.
pub const PLACEHOLDER: &str = "{worker}";

/// One word of a command line.
#[derive(Debug, PartialEq, Eq)]
struct Word {
    text: String,
    /// Whether any part of it was quoted.
    quoted: bool,
}

/// The program and its arguments for `template`, where `worker` is the worker's own program and arguments.
///
/// # Errors
/// If a quote is left open, the template is empty, `{worker}` is missing, or the worker's path is not UTF-8 where it
/// must be quoted.
pub fn expand(template: &str, worker: &[OsString]) -> Result<Vec<OsString>> {
    let words = split(template).with_context(|| format!("in the command template `{template}`"))?;
    ensure!(
        words.iter().any(|word| word.text.contains(PLACEHOLDER)),
        "the command template `{template}` does not say where the worker goes: write {PLACEHOLDER}, as in `nice {PLACEHOLDER}`"
    );
    let mut arguments = Vec::new();
    for word in words {
        if word.text == PLACEHOLDER && !word.quoted {
            arguments.extend(worker.iter().cloned());
        } else if word.text.contains(PLACEHOLDER) {
            arguments.push(word.text.replace(PLACEHOLDER, &quote_all(worker)?).into());
        } else {
            arguments.push(word.text.into());
        }
    }
    Ok(arguments)
}

/// The words of `text`, by the rules above.
fn split(text: &str) -> Result<Vec<Word>> {
    let mut words = Vec::new();
    let mut word: Option<Word> = None;
    let mut characters = text.chars();
    while let Some(c) = characters.next() {
        if c.is_whitespace() {
            words.extend(word.take());
            continue;
        }
        let word = word.get_or_insert(Word { text: String::new(), quoted: false });
        match c {
            '\'' => {
                word.quoted = true;
                loop {
                    match characters.next().context("a ' is never closed")? {
                        '\'' => break,
                        c => word.text.push(c),
                    }
                }
            }
            '"' => {
                word.quoted = true;
                loop {
                    match characters.next().context("a \" is never closed")? {
                        '"' => break,
                        '\\' => match characters.next().context("a \" is never closed")? {
                            c @ ('"' | '\\') => word.text.push(c),
                            c => word.text.extend(['\\', c]),
                        },
                        c => word.text.push(c),
                    }
                }
            }
            '\\' => {
                word.quoted = true;
                word.text.push(characters.next().context("nothing follows the last \\")?);
            }
            c => word.text.push(c),
        }
    }
    words.extend(word);
    Ok(words)
}

/// `words` as one text that a POSIX shell cuts into the same words again.
fn quote_all(words: &[OsString]) -> Result<String> {
    let mut quoted = Vec::new();
    for word in words {
        let Some(text) = word.to_str() else {
            bail!("{} is not UTF-8: use {PLACEHOLDER} unquoted and as a word of its own", word.display());
        };
        let plain = |c: char| c.is_ascii_alphanumeric() || "_-./+:=@%,".contains(c);
        if !text.is_empty() && text.chars().all(plain) {
            quoted.push(text.to_owned());
        } else {
            quoted.push(format!("'{}'", text.replace('\'', r"'\''")));
        }
    }
    Ok(quoted.join(" "))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn texts(template: &str) -> Vec<String> {
        split(template).unwrap().into_iter().map(|word| word.text).collect()
    }

    fn expanded(template: &str, worker: &[&str]) -> Vec<String> {
        let worker: Vec<OsString> = worker.iter().map(OsString::from).collect();
        expand(template, &worker).unwrap().into_iter().map(|w| w.into_string().unwrap()).collect()
    }

    #[test]
    fn cuts_words_as_a_shell_would_quote_them() {
        assert_eq!(texts("  ssh   box\t{worker}\n"), ["ssh", "box", "{worker}"]);
        assert_eq!(texts(r#"a'b c'd "e \" f \\ \n" '' "" \ x"#), ["ab cd", r#"e " f \ \n"#, "", "", " x"]);
        assert_eq!(texts(r"'it'\''s' $HOME * ; | ~"), ["it's", "$HOME", "*", ";", "|", "~"]);
        assert!(texts("   ").is_empty());
    }

    #[test]
    fn refuses_what_is_not_closed_or_not_there() {
        for (template, complaint) in [
            ("ssh 'box {worker}", "' is never closed"),
            ("ssh \"box {worker}", "\" is never closed"),
            ("{worker} \\", "nothing follows"),
            ("ssh box", "{worker}"),
            ("", "{worker}"),
        ] {
            let error = format!("{:#}", expand(template, &["w".into()]).unwrap_err());
            assert!(error.contains(complaint), "{error}");
        }
    }

    #[test]
    fn the_worker_alone_is_words_and_inside_a_word_is_quoted_text() {
        let worker = ["/a b/it's", "__worker"];
        assert_eq!(expanded("nice {worker} -x", &worker), ["nice", "/a b/it's", "__worker", "-x"]);
        assert_eq!(expanded("ssh box '{worker}'", &worker), ["ssh", "box", r"'/a b/it'\''s' __worker"]);
        assert_eq!(expanded("sh -c 'exec {worker}'", &worker), ["sh", "-c", r"exec '/a b/it'\''s' __worker"]);
        assert_eq!(expanded("docker -f '{{.ID}}' {worker}", &["w"]), ["docker", "-f", "{{.ID}}", "w"]);
    }

    proptest! {
        #[test]
        fn quoting_and_splitting_are_inverse(words in prop::collection::vec("[ -~\n\u{e9}]{0,12}", 1..6)) {
            let given: Vec<OsString> = words.iter().map(OsString::from).collect();
            prop_assert_eq!(texts(&quote_all(&given).unwrap()), words);
        }

        #[test]
        fn splitting_never_panics(text in "\\PC{0,40}") {
            let _ = split(&text);
        }
    }
}
