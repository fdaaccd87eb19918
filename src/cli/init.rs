//! `autofit init`: the two files that a project begins with, full of comments.

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::Args;

use super::Exit;
use crate::plan::text::shell_word;
use crate::report::console;

/// Writes the files that a project begins with.
#[derive(Args, Debug)]
pub struct Arguments {
    /// Folder of the project; made if it isn't there
    #[arg(value_name = "DIR", default_value = ".")]
    folder: PathBuf,
}

/// The axes of the search, as a file to edit.
const SPACE: &str = include_str!("init/space.toml");
/// The options of `probe`, as a file to edit.
const PROBE: &str = include_str!("init/probe.args");

/// Writes `space.toml` and `probe.args`; never over a file that is there.
///
/// # Errors
/// If one of them is there already (then neither is written), or the folder can't be written.
pub fn init(arguments: &Arguments) -> Result<Exit> {
    let folder = &arguments.folder;
    std::fs::create_dir_all(folder).with_context(|| format!("creating {}", folder.display()))?;
    let files = [("space.toml", SPACE), ("probe.args", PROBE)].map(|(name, text)| (folder.join(name), text));
    if let Some((path, _)) = files.iter().find(|(path, _)| path.exists()) {
        bail!(
            "{} is there already, and init writes over nothing: move it away, or name another folder",
            path.display()
        );
    }
    for (path, text) in &files {
        write_new(path, text).with_context(|| format!("writing {}", path.display()))?;
        console::say(&format!("{}\n", path.display()))?;
    }
    let inside = if folder == Path::new(".") {
        String::new()
    } else {
        format!("cd {} && ", shell_word(&folder.display().to_string()))
    };
    console::say(&format!("Edit both, then: {inside}autofit probe @probe.args\n"))?;
    Ok(Exit::Answered)
}

/// Fails if the file came into being since we looked.
fn write_new(path: &Path, text: &str) -> std::io::Result<()> {
    std::fs::File::create_new(path)?.write_all(text.as_bytes())
}
