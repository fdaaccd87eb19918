//! `autofit show`: what happened in a study's trials, or in one of them.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use clap::Args;

use super::Exit;
use super::probe::place::ARGUMENTS;
use super::study::StudyOption;
use crate::plan::text::shell_word;
use crate::report::sheet::Sheet;
use crate::report::{console, story};
use crate::study::journal::Journal;
use crate::study::search_space::SearchSpace;

/// Examples under the help.
const EXAMPLES: &str = "Examples:
  autofit show results/distilbert-6.00GiB
  autofit show results/distilbert-6.00GiB 7";

/// Shows what happened in a study's trials, or in one of them.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Arguments {
    /// A study, finished or not: its folder, or best.toml in it; and the number of a trial
    #[arg(value_names = ["STUDY", "TRIAL"], num_args = 1..=2, required_unless_present = "config")]
    words: Vec<PathBuf>,
    /// The study as an option; --study is another name of it
    #[arg(long, visible_alias = "study", value_name = "STUDY")]
    config: Option<PathBuf>,
}

impl Arguments {
    /// The study, and the trial that was asked for.
    fn study(&self) -> Result<(PathBuf, Option<usize>)> {
        let mut words = self.words.iter();
        let study = self.config.as_ref().or_else(|| words.next()).context("name a study")?;
        let trial = words.next().map(|word| {
            let text = word.display().to_string();
            text.parse().with_context(|| format!("'{text}' is no number of a trial: as in autofit show STUDY 7"))
        });
        ensure!(words.next().is_none(), "one study and one trial: leave the argument or --config away");
        Ok((StudyOption::at(study.clone()).folder(), trial.transpose()?))
    }
}

/// Prints it.
///
/// # Errors
/// If the study can't be read, or has no such trial.
pub fn show(arguments: &Arguments) -> Result<Exit> {
    let (folder, number) = arguments.study()?;
    let sheet = Sheet::read(&folder)?;
    let Some(number) = number else {
        console::say(&story::list(&sheet))?;
        return Ok(Exit::Answered);
    };
    let row = sheet.rows.iter().find(|row| row.trial.number == number);
    let row = row.with_context(|| match sheet.rows.len() {
        0 => format!("{} has no trials yet", folder.display()),
        last => format!("{} has no trial {number}: its trials are 1 to {last}", folder.display()),
    })?;
    let words = Journal::words(&folder, number)?;
    let place = words.as_ref().map(|(path, words)| (path.display().to_string(), words.as_str()));
    let words = place.as_ref().map(|(path, words)| (path.as_str(), *words));
    console::say(&story::trial(&sheet, row, &alone(&folder, &row.trial.knobs, number), words))?;
    Ok(Exit::Answered)
}

/// The command that probes a trial's configuration and nothing else.
fn alone(folder: &Path, knobs: &crate::plan::Knobs, number: usize) -> String {
    let space = shell_word(&SearchSpace::only(knobs));
    let word = |path: PathBuf| shell_word(&path.display().to_string());
    let out = word(folder.join(format!("trial-{number}")));
    let options = folder.join(ARGUMENTS);
    match options.is_file() {
        true => format!("autofit probe @{} --fresh-workers --space {space} --out {out}", word(options)),
        false => format!("the command that began the study, with --fresh-workers --space {space} --out {out}"),
    }
}
