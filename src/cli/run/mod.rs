//! `autofit run`: trains with the configuration that `probe` found.

mod metrics;
mod progress;
mod spec;
mod supervise;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use progress::{Progress, in_words};
pub use spec::rehearse;

use super::devices;
use super::options::{DataOptions, RevisionOption, TrainOptions};
use super::study::StudyOption;
use super::talk::Talk;
use super::{Exit, number, probe};
use crate::plan::ByteSize;
use crate::probe::protocol::DeviceDescription;
use crate::probe::{LocalProcess, interrupt};
use crate::report::console;
use crate::study::best::Best;
use crate::train::spec::TrainSpec;
use crate::train::trainer::{Ending, Summary};

/// Steps and scores of a run, in its folder.
const METRICS: &str = "metrics.csv";
/// Event files of a run, in its folder.
const TENSORBOARD: &str = "tensorboard";
/// How long a run that is asked to stop may take for the step that it is in and a snapshot. Whoever can't wait asks
/// twice.
const GRACE: Duration = Duration::from_secs(300);

/// Examples under the help.
const EXAMPLES: &str = "Examples:
  autofit run results/my-bert-train-6.00GiB --data train.csv
  autofit run --config best.toml --data train.csv --eval-data test.csv --epochs 2 --output my-model";

/// Fine-tunes with a configuration that `probe` found.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Arguments {
    #[command(flatten)]
    study: StudyOption,
    /// Folder of the pretrained model, or a repository of the hub (owner/name) [default: the one that was probed]
    #[arg(long, value_name = "NAME|DIR")]
    model: Option<String>,
    #[command(flatten)]
    revision: RevisionOption,
    #[command(flatten)]
    data: DataOptions,
    #[command(flatten)]
    train: TrainOptions,
    /// Leave the embeddings and the lowest N layers as they are, or just the embeddings [default: as it was probed]
    #[arg(long, value_name = "N|embeddings", value_parser = spec::frozen)]
    freeze_layers: Option<usize>,
    /// Device [default: the one that was probed]
    #[arg(long, value_name = "NAME")]
    device: Option<String>,
    /// Seed of the split, the order of rows, the head's weights and dropout [default: the probe's]
    #[arg(long, value_name = "N", value_parser = number::seed)]
    seed: Option<u64>,
    /// Say nothing on standard error but errors
    #[arg(long, short)]
    quiet: bool,
}

/// What to train, whether it comes from a file or straight from a probe.
pub struct Request {
    best: Best,
    config: PathBuf,
    model: Option<String>,
    revision: Option<String>,
    data: DataOptions,
    train: TrainOptions,
    freeze_layers: Option<usize>,
    device: Option<String>,
    seed: Option<u64>,
    quiet: bool,
    conclusion: Conclusion,
}

impl Request {
    /// Training with the answer of a probe that has just ended.
    pub fn after_probe(probe: &probe::Arguments, best: Best, config: PathBuf) -> Self {
        let (train, data) = (probe.train.clone(), probe.data.clone());
        let (model, revision, freeze_layers, device, seed) = (None, None, None, None, None);
        let conclusion = if probe.json { Conclusion::Talk } else { Conclusion::Data };
        let quiet = probe.quiet;
        Request { best, config, model, revision, data, train, freeze_layers, device, seed, quiet, conclusion }
    }
}

/// Where a run's conclusion goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Conclusion {
    /// To standard output: it is the command's answer.
    Data,
    /// To standard error: standard output has its answer already, for a program.
    Talk,
}

/// Reads the configuration and trains.
///
/// # Errors
/// If the configuration, the model or the data can't be used, or training fails.
pub fn run(arguments: &Arguments) -> Result<Exit> {
    train(&Request {
        best: arguments.study.answer()?,
        config: arguments.study.best()?,
        model: arguments.model.clone(),
        revision: arguments.revision.revision.clone(),
        data: arguments.data.clone(),
        train: arguments.train.clone(),
        freeze_layers: arguments.freeze_layers,
        device: arguments.device.clone(),
        seed: arguments.seed,
        quiet: arguments.quiet,
        conclusion: Conclusion::Data,
    })
}

/// Trains in a worker process, in another one if that dies, and tells how it goes.
///
/// # Errors
/// As [`run`].
pub fn train(request: &Request) -> Result<Exit> {
    let spec = spec::spec(request)?;
    let interrupted = interrupt::install().context("can't catch Ctrl-C")?;
    let mut executor = LocalProcess::this_program()?.interrupt(interrupted).grace(GRACE);
    let device = request.device.as_deref().unwrap_or(&request.best.study.device);
    let device = devices::choose(device, None)?.description;
    let mut talk = Talk::new(request.quiet);
    let cap_bytes = cap(&request.best, &device, &mut talk);
    let mut progress = Progress::new(talk, spec.output.clone());
    match supervise::supervise(&mut executor, &device.name, cap_bytes, &spec, &mut progress)? {
        Some(summary) if summary.ending != Ending::Stopped => {
            let words = conclusion(&summary, &spec, cap_bytes);
            match request.conclusion {
                Conclusion::Data => {
                    drop(progress);
                    console::say(&words)?;
                }
                Conclusion::Talk => progress.talk.line(words.trim_end()),
            }
            Ok(Exit::Answered)
        }
        stopped => {
            let saved = stopped.map_or(String::new(), |summary| format!(" after step {}", summary.steps));
            progress
                .talk
                .line(&format!("stopped{saved}; the same command with --resume goes on from the last snapshot"));
            Ok(Exit::Interrupted)
        }
    }
}

/// Bytes that the run may use: those that were proven, or what is left of them where other programs came since.
fn cap(best: &Best, device: &DeviceDescription, talk: &mut Talk) -> Option<u64> {
    let proven = best.measured.cap_bytes?;
    // On the CPU what counts as free is a guess, and the machine may swap.
    let (Some(free), Some(_)) = (device.free_bytes, device.total_bytes) else { return Some(proven) };
    if free < best.measured.peak_bytes {
        talk.line(&format!(
            "note: {} were needed in the probe, and {} are free on {} now: other programs use the rest. If memory runs \
             short, the run goes on with smaller micro-batches",
            ByteSize(best.measured.peak_bytes),
            ByteSize(free),
            device.name
        ));
    }
    Some(proven.min(free))
}

fn conclusion(summary: &Summary, spec: &TrainSpec, cap: Option<u64>) -> String {
    let early = if summary.ending == Ending::Early { ", ended early: the score no longer improved" } else { "" };
    let speed = summary.samples_per_second.map_or(String::new(), |speed| format!(" at {speed:.1} samples/s"));
    let loss = summary.train_loss.map_or(String::new(), |loss| format!(", last loss {loss:.4}"));
    let mut out = format!("Trained {} steps{speed}{loss}{early}\n", summary.steps);
    if summary.kept_step != summary.steps {
        out += &format!("  kept     the model of step {}, the best on the held-out rows\n", summary.kept_step);
    }
    if let Some(scores) = &summary.scores {
        out += &format!("  held out {}\n", in_words(scores));
        out += &super::per_class::table(scores);
    }
    let cap = cap.map_or(String::new(), |cap| format!(" of {}", ByteSize(cap)));
    out += &format!("  memory   {}{cap} at the peak\n", ByteSize(summary.peak_bytes));
    out + &format!("  model    {}\n", spec.output.display())
}
