//! `autofit completions` and `autofit man`: what shells and `man` want to know, made from the options themselves.

use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::{Args, Command, CommandFactory};
use clap_complete::Shell;

use super::{Cli, Exit};
use crate::report::console;

/// Where completions go.
const PLACES: &str = "Examples:
  autofit completions bash > ~/.local/share/bash-completion/completions/autofit
  autofit completions zsh > \"${fpath[1]}/_autofit\"
  autofit completions fish > ~/.config/fish/completions/autofit.fish";

/// Prints completions for a shell.
#[derive(Args, Debug)]
#[command(after_help = PLACES)]
pub struct CompletionArguments {
    /// The shell
    shell: Shell,
}

/// Prints the manual.
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  autofit man | man -l -\n  autofit man --dir ~/.local/share/man/man1")]
pub struct ManArguments {
    /// Write a page for each command into this folder, instead of the main page to standard output
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

/// Prints completions on standard output.
pub fn completions(arguments: &CompletionArguments) -> Result<Exit> {
    let mut command = Cli::command();
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, &mut command, "autofit", &mut script);
    console::data(&String::from_utf8(script)?)?;
    Ok(Exit::Answered)
}

/// Prints the main page, or writes every page.
///
/// # Errors
/// If the folder can't be written.
pub fn man(arguments: &ManArguments) -> Result<Exit> {
    let command = Cli::command();
    let Some(folder) = &arguments.dir else {
        console::data(&String::from_utf8(page(command)?)?)?;
        return Ok(Exit::Answered);
    };
    std::fs::create_dir_all(folder).with_context(|| format!("creating {}", folder.display()))?;
    clap_mangen::generate_to(command, folder).with_context(|| format!("writing into {}", folder.display()))?;
    console::say(&format!("{}\n", folder.join("autofit.1").display()))?;
    Ok(Exit::Answered)
}

fn page(command: Command) -> Result<Vec<u8>> {
    let mut out = Vec::new();
    clap_mangen::Man::new(command).render(&mut out)?;
    Ok(out)
}
