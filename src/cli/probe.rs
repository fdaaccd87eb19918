//! `autofit probe`: finds the fastest configuration that fits.

pub(super) mod place;
mod prober;

use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use prober::{Teller, Worker};

use super::Exit;
use super::devices;
use super::models::{self, Model};
use super::number;
use super::options::{DataOptions, RevisionOption, TrainOptions};
use super::run;
use super::talk::Talk;
use super::time;
use super::workload::{self, Workload};
use crate::model::hub::Need;
use crate::model::presets;
use crate::plan::text::shell_word;
use crate::plan::{ByteSize, bounds, files};
use crate::probe::devices::Chosen;
use crate::probe::protocol::{DeviceDescription, ModelSource};
use crate::probe::{LocalProcess, Workers, interrupt};
use crate::report::console;
use crate::report::terminal::{self, Row};
use crate::study::answer::{Answer, Verdict};
use crate::study::best::{self, Best, Data, Setting};
use crate::study::driver::{self, Limits};
use crate::study::journal::{BEST, Journal, STUDY, TRIALS};
use crate::study::problem::Problem;
use crate::study::search_space::SearchSpace;

/// Examples under the help.
const EXAMPLES: &str = "Examples:
  autofit probe --model distilbert --vram 6G
  autofit probe --model ./my-bert --vram 6G --data train.csv --max-length 256
  autofit probe --model sentence-transformers/all-MiniLM-L6-v2 --vram 6G --data train.csv
  autofit probe --model ./my-bert --vram 6G --data train.csv --then-run --epochs 3";

/// Finds the fastest configuration that fits.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Arguments {
    /// Folder of a Hugging Face model; or a repository of the hub, owner/name, which is downloaded; or a preset:
    /// tinybert, minilm, distilbert, bert-base, roberta-base, bert-large, roberta-large (random weights of the true
    /// shape)
    #[arg(long, value_name = "NAME|DIR")]
    model: String,
    #[command(flatten)]
    revision: RevisionOption,
    /// Memory that training may use, as in 6G, 500M, 1.5GiB (G means GiB) [default: 90 % of what is free]
    #[arg(long, value_name = "SIZE")]
    vram: Option<ByteSize>,
    #[command(flatten)]
    pub(super) data: DataOptions,
    /// Longest row in tokens; longer ones are truncated [default: 128, or what the model takes if that is less]
    #[arg(long, value_name = "N", value_parser = number::count::<1, { bounds::TOKENS }>)]
    max_length: Option<usize>,
    /// Samples per optimizer step: the search never changes it
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = number::count::<1, { bounds::BATCH }>)]
    pub(super) effective_batch: usize,
    /// Search space: a name, a TOML file, or its axes in braces
    #[arg(long, value_name = "NAME|FILE|{AXES}", default_value = "default")]
    space: String,
    /// Device: auto, cpu, cuda:N, rocm:N or vulkan:N
    #[arg(long, value_name = "NAME", default_value = "auto")]
    device: String,
    /// Seed of weights, token ids, the order of rows and dropout
    #[arg(long, value_name = "N", default_value_t = 42, value_parser = number::seed)]
    pub(super) seed: u64,
    /// Folder of the study [default: results/ + model, data and memory]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Stop in time with the best so far, as in 90s, 5m, 1h
    #[arg(long, value_name = "TIME", value_parser = time::duration)]
    budget: Option<Duration>,
    /// Longest time for one probe
    #[arg(long, value_name = "TIME", default_value = "10m", value_parser = time::duration)]
    deadline: Duration,
    /// Forget the trials of an earlier study in the same folder
    #[arg(long)]
    fresh: bool,
    /// A new process for every probe, instead of keeping one while trials fit
    #[arg(long)]
    fresh_workers: bool,
    /// Start workers by a command, with {worker} in the place of the worker's own command line
    #[arg(long, value_name = "COMMAND")]
    launcher: Option<String>,
    /// Train with the answer at once; takes the options of `run`
    #[arg(long)]
    then_run: bool,
    #[command(flatten)]
    pub(super) train: TrainOptions,
    /// Say nothing on standard error but errors
    #[arg(long, short)]
    pub(super) quiet: bool,
    /// Print best.toml's content as JSON on standard output, and nothing else there; where nothing fits, an object
    /// nothing_fits that says what is missing
    #[arg(long)]
    pub(super) json: bool,
}

/// Searches, prints the answer and writes `best.toml`.
///
/// # Errors
/// If the model, the data, the space or the study's folder can't be used, or probing is impossible.
pub fn probe(arguments: &Arguments) -> Result<Exit> {
    let mut talk = Talk::new(arguments.quiet);
    // Before signals are caught: Ctrl-C ends a download at once, and the next one goes on from there.
    let model = models::find(&arguments.model, arguments.revision.revision.as_deref(), Need::Weights, &mut talk)?;
    let interrupted = interrupt::install().context("can't catch Ctrl-C")?;
    let mut study = Study::prepare(arguments, model, interrupted, &mut talk)?;
    if arguments.then_run {
        study.rehearse(&mut talk)?;
    }
    let verdict = study.search(&mut talk)?;
    study.conclude(&verdict, talk)
}

/// A study about to run.
struct Study<'a> {
    arguments: &'a Arguments,
    interrupted: &'static AtomicBool,
    model: Model,
    workload: Workload,
    device: String,
    problem: Problem,
    journal: Journal,
}

impl<'a> Study<'a> {
    fn prepare(
        arguments: &'a Arguments,
        model: Model,
        interrupted: &'static AtomicBool,
        talk: &mut Talk,
    ) -> Result<Self> {
        let Chosen { description: device, passed_over } =
            devices::choose(&arguments.device, arguments.launcher.as_deref())?;
        passed_over.iter().for_each(|why| talk.line(&format!("note: {why}")));
        let mut space = SearchSpace::load(&arguments.space)?;
        let missing = space.keep_precisions(&device.precisions)?;
        missing.iter().for_each(|precision| {
            talk.line(&format!("note: {precision} is left out: {} does not compute in it", device.name));
        });
        let cap = cap(arguments, &device, talk)?;
        if arguments.data.data.is_some() {
            talk.now("reading and tokenizing the data");
        }
        let workload = Workload::new(
            model.source.clone(),
            &arguments.data,
            arguments.max_length,
            arguments.effective_batch,
            arguments.seed,
        )?;
        greet(arguments, &device, &workload, cap, talk);
        space.notes(workload.config.layers).iter().for_each(|note| talk.line(&format!("note: {note}")));
        let problem = Problem {
            effective_batch: arguments.effective_batch,
            max_length: workload.max_length,
            cap_bytes: Some(cap),
            size: workload.size(),
            smaller: smaller_presets(&workload),
            space,
        };
        let identity = place::identity(arguments, &model, &device.name, &workload, &problem)?;
        let folder = arguments.out.clone().unwrap_or_else(|| place::default_folder(arguments, &model, cap));
        if let Some(data) = &arguments.data.data {
            let taken =
                [TRIALS, STUDY, BEST, place::ARGUMENTS].iter().any(|name| files::is_same(data, &folder.join(name)));
            ensure!(!taken, "--data {} is a file of the study in {}", data.display(), folder.display());
        }
        let journal = Journal::open(&folder, &identity, arguments.fresh)?;
        place::write_arguments(&folder, arguments, &model, &device.name, &workload, cap)?;
        if !journal.trials().is_empty() {
            talk.line(&format!("resuming {}: {} trials are known", folder.display(), journal.trials().len()));
        }
        Ok(Study { arguments, interrupted, model, workload, device: device.name, problem, journal })
    }

    /// What can be known of the run before the search is known before it: nobody should wait for hours to be told that
    /// a folder is not empty.
    fn rehearse(&self, talk: &mut Talk) -> Result<()> {
        talk.now("checking what is to be trained then");
        let Workload { source, max_length, .. } = &self.workload;
        let best = self.journal.folder().join(BEST);
        run::rehearse(self.arguments, source, *max_length, &best).context("--then-run")
    }

    fn search(&mut self, talk: &mut Talk) -> Result<Verdict> {
        let started = Instant::now();
        let budget = self.arguments.budget;
        let mut executor = match &self.arguments.launcher {
            Some(command) => LocalProcess::behind(command)?,
            None => LocalProcess::this_program()?,
        }
        .interrupt(self.interrupted)
        .until(budget.and_then(|budget| started.checked_add(budget)));
        if !self.arguments.fresh_workers {
            executor = executor.workers(Workers::WARM);
        }
        let talk = std::cell::RefCell::new(talk);
        let layers = self.workload.config.layers;
        let mut prober = Worker {
            executor,
            device: self.device.clone(),
            workload: self.workload.clone(),
            arguments: self.arguments,
            talk: &talk,
            cap_bytes: self.problem.cap_bytes,
            words: String::new(),
        };
        let effective_batch = self.problem.effective_batch;
        let mut observer = Teller { talk: &talk, effective_batch, layers, best: None };
        let clock = move || started.elapsed();
        let limits = Limits { budget, interrupted: self.interrupted, elapsed: &clock };
        driver::run(self.problem.clone(), &mut self.journal, &mut prober, &mut observer, &limits)
    }

    fn conclude(&self, verdict: &Verdict, mut talk: Talk) -> Result<Exit> {
        let layers = self.workload.config.layers;
        let effective = self.problem.effective_batch;
        let written = match verdict.answer() {
            Some(answer) => Some(self.write(answer)?),
            None => None,
        };
        self.print_table(verdict, &mut talk)?;
        if let (Some(answer), false) = (verdict.answer(), self.arguments.json) {
            console::say(&terminal::answer(answer, self.problem.cap_bytes, effective, layers))?;
        }
        if let (Some((best, path)), true) = (&written, self.arguments.json) {
            console::data(&format!("{}\n", serde_json::to_string_pretty(best)?))?;
            talk.line(&format!("written to {}", path.display()));
        }
        if let (Some((_, path)), false) = (&written, self.arguments.json) {
            console::say(&format!("  written  {}\n", path.display()))?;
            if !self.arguments.then_run {
                console::say(&format!("  train    {}\n", next_command(self.arguments, path)))?;
            }
        }
        match verdict {
            Verdict::Found(_) => match (self.arguments.then_run, written) {
                (true, Some((best, path))) => {
                    drop(talk);
                    run::train(&run::Request::after_probe(self.arguments, best, path))
                }
                _ => Ok(Exit::Answered),
            },
            Verdict::NothingFits(shortfall) => {
                let words = terminal::shortfall(shortfall, effective, layers);
                if self.arguments.json {
                    let json = serde_json::json!({ "nothing_fits": shortfall });
                    console::data(&format!("{json:#}\n"))?;
                    talk.line(words.trim_end());
                } else {
                    console::say(&words)?;
                }
                Ok(Exit::NothingFits)
            }
            Verdict::Failed { reason } => {
                let folder = shell_word(&self.journal.folder().display().to_string());
                bail!("{reason} (autofit show {folder} has more)")
            }
            Verdict::OutOfTime { best: Some(_) } => Ok(Exit::Answered),
            Verdict::OutOfTime { best: None } => bail!(
                "--budget was over before anything was known to fit: the same command goes on where it stopped, with as \
                 much time again"
            ),
            Verdict::Interrupted { .. } => {
                talk.line("interrupted; the same command goes on where it stopped");
                Ok(Exit::Interrupted)
            }
        }
    }

    fn print_table(&self, verdict: &Verdict, talk: &mut Talk) -> Result<()> {
        let sampler = crate::study::sampler::Sampler::new(self.problem.clone())?;
        let trials = self.journal.trials();
        let rows: Vec<Row<'_>> = trials
            .iter()
            .map(|trial| Row { trial, samples_per_second: sampler.derive(trials, trial).samples_per_second })
            .collect();
        let winner = verdict.answer().map(|answer| answer.knobs);
        let (effective, layers) = (self.problem.effective_batch, self.workload.config.layers);
        let text = terminal::table(&rows, winner.as_ref(), effective, layers);
        match self.arguments.json {
            true => talk.line(&text),
            false => console::say(&format!("\n{text}\n"))?,
        }
        Ok(())
    }

    fn write(&self, answer: &Answer) -> Result<(Best, PathBuf)> {
        let data = self.arguments.data.data.as_ref().zip(self.workload.survey.as_ref()).map(|(file, survey)| {
            let options = &self.arguments.data;
            let pair = options.text_pair_column.clone();
            Data {
                file: std::path::absolute(file).unwrap_or_else(|_| file.clone()),
                columns: std::iter::once(options.text()).chain(pair).chain([options.label()]).collect(),
                longest: survey.longest,
                rows: survey.lengths.len(),
            }
        });
        let source = match &self.workload.source {
            ModelSource::Folder(folder) => ModelSource::Folder(std::path::absolute(folder)?),
            preset => preset.clone(),
        };
        let setting = Setting {
            model: best::Model {
                source,
                repository: self.model.origin.as_ref().map(|(_, snapshot)| snapshot.repository.clone()),
                revision: self.model.origin.as_ref().map(|(_, snapshot)| snapshot.commit.clone()),
                num_labels: self.workload.num_labels,
            },
            data,
            device: self.device.clone(),
            seed: self.arguments.seed,
            autofit: env!("CARGO_PKG_VERSION").into(),
            framework: format!("burn {}", crate::model::BURN_VERSION),
            unix_seconds: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()),
        };
        let best = Best::new(&self.problem, self.journal.trials(), answer, setting);
        let path = self.journal.folder().join(BEST);
        best.write(&path)?;
        Ok((best, path))
    }
}

/// The command that trains with the answer.
fn next_command(arguments: &Arguments, path: &std::path::Path) -> String {
    let word = |path: &std::path::Path| shell_word(&path.display().to_string());
    match &arguments.data.data {
        Some(data) => format!("autofit run --config {} --data {}", word(path), word(data)),
        None => format!("autofit run --config {} --model DIR --data FILE.csv", word(path)),
    }
}

/// Bytes that the workload may use.
fn cap(arguments: &Arguments, device: &DeviceDescription, talk: &mut Talk) -> Result<u64> {
    let free = device.free_bytes;
    if let (Some(vram), Some(free), Some(total)) = (arguments.vram, free, device.total_bytes) {
        let name = &device.name;
        ensure!(vram.0 <= total, "--vram {vram}: {name} has {} in all: give less", ByteSize(total));
        ensure!(
            vram.0 <= free,
            "--vram {vram}: of the {} that {name} has, {} are free: other programs use the rest (nvidia-smi names them). \
             End them, or give --vram {} or less",
            ByteSize(total),
            ByteSize(free),
            ByteSize(free >> 20 << 20)
        );
    }
    match (arguments.vram, free) {
        (Some(vram), free) => {
            if let Some(free) = free.filter(|&free| free < vram.0) {
                talk.line(&format!(
                    "note: only {} of memory are free here, less than --vram {vram}: probes near the cap may fail for \
                     that reason",
                    ByteSize(free)
                ));
            }
            Ok(vram.0)
        }
        (None, Some(free)) => {
            let cap = free / 10 * 9;
            talk.line(&format!("--vram was not given: using 90 % of what is free, {}", ByteSize(cap)));
            Ok(cap)
        }
        (None, None) => bail!("{} does not say how much memory is free: give --vram, as in --vram 6G", device.name),
    }
}

fn greet(arguments: &Arguments, device: &DeviceDescription, workload: &Workload, cap: u64, talk: &mut Talk) {
    talk.line(&format!(
        "{}: {} layers, {:.1} million parameters · cap {} · effective batch {} · on {} ({})",
        arguments.model,
        workload.config.layers,
        workload.config.parameters(workload.num_labels) as f64 / 1e6,
        ByteSize(cap),
        arguments.effective_batch,
        device.name,
        devices::in_words(device)
    ));
    match &workload.survey {
        Some(survey) => talk.line(&format!(
            "{} rows, {} labels · tokens a row: {} in the middle, {} at most{}",
            survey.lengths.len(),
            workload.num_labels,
            survey.percentile(50.0),
            survey.longest,
            match survey.truncated {
                0 => String::new(),
                n => format!(" ({n} rows truncated)"),
            }
        )),
        None => talk.line(&format!("synthetic rows of {} tokens (give --data for your own)", workload.max_length)),
    }
    workload.notes.iter().for_each(|note| talk.line(&format!("note: {note}")));
}

fn smaller_presets(workload: &Workload) -> Vec<(String, crate::study::problem::SizeHint)> {
    let own = workload.config.parameters(workload.num_labels);
    presets::names()
        .filter_map(|name| Some((name, presets::config(name)?)))
        .filter(|(_, config)| config.parameters(workload.num_labels) < own)
        .map(|(name, config)| {
            (name.to_string(), workload::size_of(&config, workload.num_labels, workload.shapes.longest))
        })
        .collect()
}
