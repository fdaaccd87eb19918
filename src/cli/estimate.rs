//! `autofit estimate`: what fits, without running anything.

use anyhow::{Result, ensure};
use clap::Args;

use super::options::RevisionOption;
use super::talk::Talk;
use super::workload::{DEFAULT_LENGTH, size_of};
use super::{Exit, models, number};
use crate::model::hub::Need;
use crate::model::presets;
use crate::model::source::ModelFiles;
use crate::plan::{ByteSize, bounds};
use crate::report::console;
use crate::report::outlook::{Candidate, Line, Question, footnote};

/// Examples under the help.
const EXAMPLES: &str = "Examples:
  autofit estimate --vram 6G
  autofit estimate --vram 6G --model bert-base --max-length 256
  autofit estimate --vram 6G --model FacebookAI/roberta-base
  autofit estimate --vram 12G --model ./my-bert --json";

/// Estimates what fits, without running anything.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Arguments {
    /// Folder of a Hugging Face model, a preset, a repository of the hub (owner/name), or all presets
    #[arg(long, value_name = "NAME|DIR|all", default_value = "all")]
    model: String,
    #[command(flatten)]
    revision: RevisionOption,
    /// Memory that training may use, as in 6G, 500M, 1.5GiB (G means GiB)
    #[arg(long, value_name = "SIZE")]
    vram: ByteSize,
    /// Longest row in tokens [default: 128, or what the model takes if that is less]
    #[arg(long, value_name = "N", value_parser = number::count::<1, { bounds::TOKENS }>)]
    max_length: Option<usize>,
    /// Samples per optimizer step
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = number::count::<1, { bounds::BATCH }>)]
    effective_batch: usize,
    /// Classes of the head
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = number::count::<1, { bounds::LABELS }>)]
    labels: usize,
    /// Say nothing on standard error but errors
    #[arg(long, short)]
    quiet: bool,
    /// Print every line as JSON on standard output
    #[arg(long)]
    json: bool,
}

/// Prints what fits. Exit code 3 where nothing does.
///
/// # Errors
/// If the model is unknown, or takes no rows of this length.
pub fn estimate(arguments: &Arguments) -> Result<Exit> {
    let candidates = candidates(arguments)?;
    let question = Question { cap: arguments.vram.0, effective_batch: arguments.effective_batch };
    let lines: Vec<Line> = candidates.iter().flat_map(|candidate| question.lines(candidate)).collect();
    match (arguments.json, arguments.model.as_str(), candidates.as_slice()) {
        (true, ..) => console::data(&format!("{}\n", serde_json::to_string_pretty(&lines)?))?,
        (false, name, [candidate]) if name != "all" => {
            console::say(&(question.detail(candidate) + &footnote(true)))?;
        }
        (false, _, many) => console::say(&(question.overview(many) + &footnote(false)))?,
    }
    let fits = lines.iter().any(|line| line.micro_batch.is_some());
    Ok(if fits { Exit::Answered } else { Exit::NothingFits })
}

fn candidates(arguments: &Arguments) -> Result<Vec<Candidate>> {
    if arguments.model == "all" && !std::path::Path::new("all").is_dir() {
        let length = arguments.max_length.unwrap_or(DEFAULT_LENGTH);
        let known = presets::names().filter_map(|name| Some((name, presets::config(name)?)));
        let fitting: Vec<Candidate> = known
            .filter(|(_, config)| (1..=config.max_length()).contains(&length))
            .map(|(name, config)| Candidate { name: name.into(), size: size_of(&config, arguments.labels, length) })
            .collect();
        ensure!(!fitting.is_empty(), "--max-length {length}: no preset takes rows of that many tokens");
        return Ok(fitting);
    }
    let mut talk = Talk::new(arguments.quiet);
    // The shape is all that is asked for: no weights are downloaded.
    let model = models::find(&arguments.model, arguments.revision.revision.as_deref(), Need::Config, &mut talk)?;
    drop(talk);
    let config = ModelFiles::open(&model.source)?.config;
    let length = arguments.max_length.unwrap_or(DEFAULT_LENGTH.min(config.max_length()));
    ensure!(
        (1..=config.max_length()).contains(&length),
        "--max-length {length}: the model takes rows of 1 to {} tokens",
        config.max_length()
    );
    let size = size_of(&config, arguments.labels, length);
    Ok(vec![Candidate { name: arguments.model.clone(), size }])
}
