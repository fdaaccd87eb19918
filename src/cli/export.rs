//! `autofit export`: the answer in the words of other training tools.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;

use super::Exit;
use crate::report::console;
use crate::report::export::{self, Target};
use crate::study::best::Best;

/// Examples under the help.
const EXAMPLES: &str = "Examples:
  autofit export --config results/distilbert-6.00GiB/best.toml --to hf
  autofit export --config results/distilbert-6.00GiB/best.toml --to deepspeed > ds_config.json
  set -a; eval \"$(autofit export --config best.toml --to env)\"; set +a";

/// Writes the answer in the words of another tool.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Arguments {
    /// The answer: best.toml as probe wrote it
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// The tool: hf, accelerate, deepspeed, lightning, axolotl or env
    #[arg(long, value_name = "TOOL")]
    to: Target,
}

/// Prints settings on standard output; notes too, or on standard error where the format has no comments.
///
/// # Errors
/// If the answer can't be read.
pub fn export(arguments: &Arguments) -> Result<Exit> {
    let export = export::export(&Best::read(&arguments.config)?, arguments.to);
    console::data(&export.text)?;
    if !export.notes_inside {
        export.notes.iter().for_each(|note| console::talk(&format!("note: {note}\n")));
    }
    Ok(Exit::Answered)
}
