//! `autofit estimate`: what fits, without running anything.

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use clap::Args;

use super::options::RevisionOption;
use super::study::StudyOption;
use super::talk::Talk;
use super::workload::{DEFAULT_LENGTH, size_of};
use super::{Exit, models, number};
use crate::model::hub::Need;
use crate::model::presets;
use crate::model::source::ModelFiles;
use crate::plan::{ByteSize, bounds};
use crate::report::console;
use crate::report::outlook::{Candidate, Line, Question, footnote};
use crate::study::best::Best;

/// Examples under the help.
const EXAMPLES: &str = "Examples:
  autofit estimate --vram 6G
  autofit estimate --vram 6G --model bert-base --max-length 256
  autofit estimate --vram 6G --model FacebookAI/roberta-base
  autofit estimate --vram 12G --model ./my-bert --json
  autofit estimate results/my-bert-train-6.00GiB --vram 4G";

/// Estimates what fits, without running anything.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Arguments {
    /// A study, its folder or best.toml in it: its model, rows, batch and memory are what is estimated, where no option
    /// says otherwise
    #[arg(value_name = "STUDY")]
    study: Option<PathBuf>,
    /// The same as an option; --study is another name of it
    #[arg(long, visible_alias = "study", value_name = "STUDY", conflicts_with = "study")]
    config: Option<PathBuf>,
    /// Folder of a Hugging Face model, a preset, a repository of the hub (owner/name), or all presets [default: all]
    #[arg(long, value_name = "NAME|DIR|all")]
    model: Option<String>,
    #[command(flatten)]
    revision: RevisionOption,
    /// Memory that training may use, as in 6G, 500M, 1.5GiB (G means GiB)
    #[arg(long, value_name = "SIZE", required_unless_present_any = ["study", "config"])]
    vram: Option<ByteSize>,
    /// Longest row in tokens [default: 128, or what the model takes if that is less]
    #[arg(long, value_name = "N", value_parser = number::count::<1, { bounds::TOKENS }>)]
    max_length: Option<usize>,
    /// Samples per optimizer step [default: 32]
    #[arg(long, value_name = "N", value_parser = number::count::<1, { bounds::BATCH }>)]
    effective_batch: Option<usize>,
    /// Classes of the head [default: 2]
    #[arg(long, value_name = "N", value_parser = number::count::<1, { bounds::LABELS }>)]
    labels: Option<usize>,
    /// Say nothing on standard error but errors
    #[arg(long, short)]
    quiet: bool,
    /// Print every line as JSON on standard output
    #[arg(long)]
    json: bool,
}

/// What is to be estimated, with what a study says in the place of options that were not given.
struct Asked {
    /// One model, or all presets.
    model: Option<Candidate>,
    cap: u64,
    length: usize,
    effective_batch: usize,
    labels: usize,
}

/// Prints what fits. Exit code 3 where nothing does.
///
/// # Errors
/// If the study has no answer, the model is unknown, or takes no rows of this length.
pub fn estimate(arguments: &Arguments) -> Result<Exit> {
    let asked = asked(arguments)?;
    let question = Question { cap: asked.cap, effective_batch: asked.effective_batch };
    let candidates = match &asked.model {
        Some(candidate) => vec![candidate.clone()],
        None => presets(&asked)?,
    };
    let lines: Vec<Line> = candidates.iter().flat_map(|candidate| question.lines(candidate)).collect();
    match (arguments.json, &asked.model) {
        (true, _) => console::data(&format!("{}\n", serde_json::to_string_pretty(&lines)?))?,
        (false, Some(candidate)) => console::say(&(question.detail(candidate) + &footnote(true)))?,
        (false, None) => console::say(&(question.overview(&candidates) + &footnote(false)))?,
    }
    let fits = lines.iter().any(|line| line.micro_batch.is_some());
    Ok(if fits { Exit::Answered } else { Exit::NothingFits })
}

fn asked(arguments: &Arguments) -> Result<Asked> {
    let best = match arguments.study.clone().or(arguments.config.clone()) {
        Some(study) => Some(StudyOption::at(study).answer()?),
        None => None,
    };
    let longest = |best: &Best| best.data.as_ref().map_or(best.config.max_length, |data| data.longest);
    let length = arguments.max_length.or(best.as_ref().map(longest));
    let cap = arguments.vram.map(|vram| vram.0).or(best.as_ref().and_then(|best| best.measured.cap_bytes));
    let mut asked = Asked {
        model: None,
        cap: cap.context("the study had no cap: give --vram, as in --vram 6G")?,
        length: length.unwrap_or(DEFAULT_LENGTH),
        effective_batch: arguments.effective_batch.or(best.as_ref().map(|b| b.config.effective_batch)).unwrap_or(32),
        labels: arguments.labels.or(best.as_ref().map(|best| best.model.num_labels)).unwrap_or(2),
    };
    let mut talk = Talk::new(arguments.quiet);
    // The shape is all that is asked for: no weights are downloaded.
    let (name, source) = match (&arguments.model, &best) {
        (Some(name), _) if name == "all" && !std::path::Path::new("all").is_dir() => return Ok(asked),
        (None, None) => return Ok(asked),
        (Some(name), _) => {
            let revision = arguments.revision.revision.as_deref();
            (name.clone(), models::find(name, revision, Need::Config, &mut talk)?.source)
        }
        (None, Some(best)) => (best.study.model.clone(), models::again(&best.model, Need::Config, &mut talk)?),
    };
    let config = ModelFiles::open(&source)?.config;
    asked.length = length.unwrap_or(DEFAULT_LENGTH.min(config.max_length()));
    ensure!(
        (1..=config.max_length()).contains(&asked.length),
        "--max-length {}: the model takes rows of 1 to {} tokens",
        asked.length,
        config.max_length()
    );
    asked.model = Some(Candidate { name, size: size_of(&config, asked.labels, asked.length) });
    Ok(asked)
}

fn presets(asked: &Asked) -> Result<Vec<Candidate>> {
    let known = presets::names().filter_map(|name| Some((name, presets::config(name)?)));
    let fitting: Vec<Candidate> = known
        .filter(|(_, config)| (1..=config.max_length()).contains(&asked.length))
        .map(|(name, config)| Candidate { name: name.into(), size: size_of(&config, asked.labels, asked.length) })
        .collect();
    ensure!(!fitting.is_empty(), "--max-length {}: no preset takes rows of that many tokens", asked.length);
    Ok(fitting)
}
