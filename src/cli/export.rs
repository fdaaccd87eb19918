//! `autofit export`: the answer in the words of other training tools.

use anyhow::Result;
use clap::Args;

use super::Exit;
use super::study::StudyOption;
use crate::report::console;
use crate::report::export::{self, Target};

/// Examples under the help.
const EXAMPLES: &str = "Examples:
  autofit export results/distilbert-6.00GiB --to hf
  autofit export results/distilbert-6.00GiB/best.toml --to deepspeed > ds_config.json
  set -a; eval \"$(autofit export --config best.toml --to env)\"; set +a";

/// Writes the answer in the words of another tool.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Arguments {
    #[command(flatten)]
    study: StudyOption,
    /// The tool: hf, accelerate, deepspeed, lightning, axolotl or env
    #[arg(long, value_name = "TOOL")]
    to: Target,
}

/// Prints settings on standard output; notes too, or on standard error where the format has no comments.
///
/// # Errors
/// If the answer can't be read.
pub fn export(arguments: &Arguments) -> Result<Exit> {
    let export = export::export(&arguments.study.answer()?, arguments.to);
    console::data(&export.text)?;
    if !export.notes_inside {
        export.notes.iter().for_each(|note| console::talk(&format!("note: {note}\n")));
    }
    Ok(Exit::Answered)
}
