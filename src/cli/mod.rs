//! The command line: one file per subcommand.

mod argument_file;
mod devices;
mod estimate;
mod export;
mod init;
mod models;
mod number;
mod options;
mod per_class;
mod predict;
mod probe;
mod report;
mod run;
mod shell;
mod show;
mod study;
mod talk;
mod time;
mod workload;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

use crate::report::console;
use crate::worker;

/// How a command ended, as far as the exit code tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// Answered.
    Answered,
    /// Nothing fits into the given memory.
    NothingFits,
    /// Stopped by the user.
    Interrupted,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        ExitCode::from(match exit {
            Exit::Answered => 0,
            Exit::NothingFits => 3,
            Exit::Interrupted => 130,
        })
    }
}

/// What every command says at the end of its help.
const EXIT_CODES: &str = "Exit codes: 0 answered, 1 failed, 2 wrong usage, 3 nothing fits, 130 interrupted.";

#[derive(Parser)]
#[command(name = "autofit", version, about, after_help = EXIT_CODES, propagate_version = true)]
/// Finds the fastest way to fine-tune a transformer inside a given amount of GPU memory, and then does it.
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Find the fastest configuration that fits, by short real training steps
    Probe(Box<probe::Arguments>),
    /// Fine-tune with a configuration that `probe` found
    Run(Box<run::Arguments>),
    /// Predict every row of a file with a trained model
    Predict(predict::Arguments),
    /// Say what fits without running anything: which model can be fine-tuned in this memory?
    Estimate(estimate::Arguments),
    /// Say what happened in a study's trials, or in one of them
    Show(show::Arguments),
    /// Write a study as one HTML page with plots
    Report(report::Arguments),
    /// Write the answer as settings of another training tool
    Export(export::Arguments),
    /// Write a commented search space and option file to begin a project with
    Init(init::Arguments),
    /// List the devices that work can be done on
    Devices(devices::Arguments),
    /// Print completions for a shell
    Completions(shell::CompletionArguments),
    /// Print the manual page
    Man(shell::ManArguments),
    /// The child process in which probes and runs live
    #[command(name = "__worker", hide = true)]
    Worker,
}

/// Runs the command that the arguments name; an error becomes one message on standard error and exit code 1.
pub fn main() -> ExitCode {
    match argument_file::expand(std::env::args_os()).and_then(|arguments| dispatch(Cli::parse_from(arguments).command))
    {
        Ok(exit) => exit.into(),
        Err(error) => {
            console::talk(&format!("error: {error:#}\n"));
            ExitCode::from(1)
        }
    }
}

fn dispatch(command: Command) -> Result<Exit> {
    match command {
        Command::Probe(arguments) => probe::probe(&arguments),
        Command::Run(arguments) => run::run(&arguments),
        Command::Predict(arguments) => predict::predict(&arguments),
        Command::Estimate(arguments) => estimate::estimate(&arguments),
        Command::Show(arguments) => show::show(&arguments),
        Command::Report(arguments) => report::report(&arguments),
        Command::Export(arguments) => export::export(&arguments),
        Command::Init(arguments) => init::init(&arguments),
        Command::Completions(arguments) => shell::completions(&arguments),
        Command::Man(arguments) => shell::man(&arguments),
        Command::Devices(arguments) => devices::devices(&arguments),
        Command::Worker => worker::run().map(|()| Exit::Answered),
    }
}
