//! `@file` on the command line: options from a file, one a line, so that a project can keep them.

use std::ffi::OsString;
use std::path::Path;

use anyhow::{Context, Result};

/// Replaces every argument `@path` by the options in that file. A value that begins with an at sign is written with two
/// (`@@name`), or behind an equals sign (`--text-column=@name`); inside such a file it is written as it is.
///
/// # Errors
/// If a file can't be read.
pub fn expand(arguments: impl Iterator<Item = OsString>) -> Result<Vec<OsString>> {
    let mut out = Vec::new();
    for argument in arguments {
        match argument.to_str().and_then(|text| text.strip_prefix('@')).filter(|path| !path.is_empty()) {
            Some(escaped) if escaped.starts_with('@') => out.push(escaped.into()),
            Some(path) => {
                let text = std::fs::read_to_string(Path::new(path)).with_context(|| {
                    format!(
                        "reading options from {path} (@{path} stands for the options in that file; a value that begins \
                         with @ is written @@{path})"
                    )
                })?;
                out.extend(parse(&text).map(OsString::from));
            }
            None => out.push(argument),
        }
    }
    Ok(out)
}

/// One option a line, its value behind the first space; blank lines and lines that begin with `#` are skipped.
fn parse(text: &str) -> impl Iterator<Item = &str> {
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines.flat_map(|line| match line.split_once(char::is_whitespace) {
        Some((option, value)) if option.starts_with('-') => vec![option, value.trim()],
        _ => vec![line],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_option_a_line() {
        let text = "# comment\n\n--data my file.csv\n  --quiet  \npositional with spaces\n--vram\t6G\r\n";
        let words: Vec<&str> = parse(text).collect();
        assert_eq!(words, ["--data", "my file.csv", "--quiet", "positional with spaces", "--vram", "6G"]);
        let plain = ["autofit", "@", "x@y"].map(OsString::from);
        assert_eq!(expand(plain.clone().into_iter()).expect("nothing to read"), plain);
        assert!(expand(["@/nowhere".into()].into_iter()).is_err());
        let escaped = ["--text-column", "@@text", "@@@x", "--label-column=@label", "@@"].map(OsString::from);
        let words = expand(escaped.into_iter()).expect("nothing to read");
        assert_eq!(words, ["--text-column", "@text", "@@x", "--label-column=@label", "@"]);
    }
}
