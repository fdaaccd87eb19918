//! `autofit run`: trains with the configuration that `probe` found.

use std::path::{Path, PathBuf};
use std::time::Duration as Time;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;

use super::Exit;
use super::options::{DataOptions, TrainOptions};
use super::talk::Talk;
use crate::model::source;
use crate::plan::{ByteSize, Outcome};
use crate::probe::protocol::{Job, Message, ModelSource, PROTOCOL, Report, Task};
use crate::probe::{Executor, LocalProcess, interrupt};
use crate::study::best::Best;
use crate::train::evaluate::{Quality, Scores};
use crate::train::spec::{DataSpec, Duration, Evaluation, Hyper, TrainSpec};
use crate::train::trainer::{Event, Summary};

/// Examples under the help.
const EXAMPLES: &str = "Examples:
  autofit run --config results/my-bert-train-6.00GiB/best.toml --data train.csv
  autofit run --config best.toml --data train.csv --eval-data test.csv --epochs 2 --output my-model";

/// Fine-tunes with a configuration that `probe` found.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Arguments {
    /// best.toml as `probe` wrote it
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// Folder of the pretrained model [default: the one that was probed]
    #[arg(long, value_name = "DIR")]
    model: Option<PathBuf>,
    #[command(flatten)]
    data: DataOptions,
    #[command(flatten)]
    train: TrainOptions,
    /// Device [default: the one that was probed]
    #[arg(long, value_name = "NAME")]
    device: Option<String>,
    /// Seed of the split, the order of rows, the head's weights and dropout [default: the probe's]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Say nothing on standard error but errors
    #[arg(long, short)]
    quiet: bool,
}

/// What to train, whether it comes from a file or straight from a probe.
pub struct Request {
    best: Best,
    config: PathBuf,
    model: Option<PathBuf>,
    data: DataOptions,
    train: TrainOptions,
    device: Option<String>,
    seed: Option<u64>,
    quiet: bool,
}

impl Request {
    /// Training with the answer of a probe that has just ended.
    pub fn after_probe(train: &TrainOptions, data: &DataOptions, best: Best, config: PathBuf) -> Self {
        let (train, data) = (train.clone(), data.clone());
        Request { best, config, model: None, data, train, device: None, seed: None, quiet: false }
    }
}

/// Reads the configuration and trains.
///
/// # Errors
/// If the configuration, the model or the data can't be used, or training fails.
pub fn run(arguments: &Arguments) -> Result<Exit> {
    train(&Request {
        best: Best::read(&arguments.config)?,
        config: arguments.config.clone(),
        model: arguments.model.clone(),
        data: arguments.data.clone(),
        train: arguments.train.clone(),
        device: arguments.device.clone(),
        seed: arguments.seed,
        quiet: arguments.quiet,
    })
}

/// Trains in a worker process and tells how it goes.
///
/// # Errors
/// As [`run`].
pub fn train(request: &Request) -> Result<Exit> {
    let spec = spec(request)?;
    let interrupted = interrupt::install().context("can't catch Ctrl-C")?;
    let mut executor = LocalProcess::this_program()?.interrupt(interrupted);
    let device = request.device.clone().unwrap_or_else(|| request.best.study.device.clone());
    let cap_bytes = request.best.measured.cap_bytes;
    let job = Job { protocol: PROTOCOL, device, cap_bytes, task: Task::Train(serde_json::to_value(&spec)?) };
    let mut progress = Progress { talk: Talk::new(request.quiet), total: 0, said: 0, seconds: 0.0, rows: 0 };
    let finished = executor.run(&job, Time::MAX, &mut |message| progress.hear(message));
    drop(progress);
    match (finished.attempt.outcome, finished.report) {
        (Outcome::Interrupted, _) => Ok(Exit::Interrupted),
        (_, Some(Report::Trained(summary))) => {
            let summary: Summary = serde_json::from_value(summary).context("reading the summary of the run")?;
            print!("{}", conclusion(&summary, &spec, cap_bytes));
            Ok(Exit::Answered)
        }
        (outcome, _) => bail!("training ended with {outcome}: {}", finished.attempt.reason),
    }
}

fn spec(request: &Request) -> Result<TrainSpec> {
    let Request { best, train, data, .. } = request;
    let model = match (&request.model, &best.model.source) {
        (_, ModelSource::Program(name)) => bail!(
            "{} was found by a program of your own for its model {name}: train with that program, at these knobs",
            request.config.display()
        ),
        (Some(folder), _) => source::parse(&folder.display().to_string())?,
        (None, ModelSource::Folder(folder)) => ModelSource::Folder(folder.clone()),
        (None, ModelSource::Preset(name)) => bail!(
            "{} was found for the preset {name}, which has no weights and no tokenizer: give --model the folder of a \
             pretrained model of that shape",
            request.config.display()
        ),
    };
    let (known, columns) = match &best.data {
        Some(known) => (Some(known.file.clone()), known.columns.as_slice()),
        None => (None, &[][..]),
    };
    let file = data.data.clone().or(known).context("give --data, the file to train on")?;
    let output =
        train.output.clone().unwrap_or_else(|| request.config.parent().unwrap_or(Path::new(".")).join("model"));
    refuse_full(&output, train.overwrite)?;
    let text = data.text_column.clone().or(columns.first().cloned()).unwrap_or_else(|| data.text());
    let label = data.label_column.clone().or(columns.last().cloned()).unwrap_or_else(|| data.label());
    let pair = data.text_pair_column.clone().or((columns.len() == 3).then(|| columns[1].clone()));
    Ok(TrainSpec {
        model,
        data: DataSpec {
            train: file,
            evaluation: match (&train.eval_data, train.eval_fraction) {
                (Some(file), _) => Evaluation::File(file.clone()),
                (None, fraction) => Evaluation::Fraction(fraction.unwrap_or(0.1)),
            },
            text,
            pair,
            label,
            regression: data.regression.then_some(true),
        },
        knobs: best.config.knobs(),
        effective_batch: best.config.effective_batch,
        max_length: best.config.max_length,
        proven_length: best.data.as_ref().map_or(best.config.max_length, |data| data.longest),
        duration: match (train.steps, train.epochs) {
            (Some(steps), _) => Duration::Steps(steps),
            (None, epochs) => Duration::Epochs(epochs.unwrap_or(3.0)),
        },
        hyper: hyper(train)?,
        seed: request.seed.unwrap_or(best.study.seed),
        output,
    })
}

fn hyper(train: &TrainOptions) -> Result<Hyper> {
    let share = |flag: &str, value: f64| -> Result<f64> {
        ensure!((0.0..1.0).contains(&value), "{flag} {value}: a share from 0 up to (not including) 1 is needed");
        Ok(value)
    };
    ensure!(
        train.learning_rate > 0.0 && train.learning_rate.is_finite(),
        "--learning-rate {}: a number above 0 is needed",
        train.learning_rate
    );
    ensure!(train.weight_decay >= 0.0, "--weight-decay {}: 0 or more is needed", train.weight_decay);
    ensure!(train.clip_norm >= 0.0, "--clip-norm {}: 0 or more is needed", train.clip_norm);
    ensure!(train.epochs.is_none_or(|e| e > 0.0 && e.is_finite()), "--epochs: a number above 0 is needed");
    ensure!(train.steps != Some(0), "--steps 0: at least 1 is needed");
    Ok(Hyper {
        learning_rate: train.learning_rate,
        decay: train.schedule,
        warmup: share("--warmup", train.warmup)?,
        weight_decay: train.weight_decay,
        clip_norm: train.clip_norm,
        label_smoothing: share("--label-smoothing", train.label_smoothing)?,
        balance_classes: train.balance_classes,
        evaluate_every: train.evaluate_every,
    })
}

/// A trained model is hours of work: it is never overwritten by accident.
fn refuse_full(output: &Path, overwrite: bool) -> Result<()> {
    let full = std::fs::read_dir(output).is_ok_and(|mut entries| entries.next().is_some());
    ensure!(
        overwrite || !full,
        "{} is not empty: choose another folder with --output, or allow to overwrite it with --overwrite",
        output.display()
    );
    Ok(())
}

/// What a person sees of a run.
struct Progress {
    talk: Talk,
    total: usize,
    /// Tenths of the run of which a plain line has told.
    said: usize,
    seconds: f64,
    rows: usize,
}

impl Progress {
    fn hear(&mut self, message: &Message) {
        match message {
            Message::Progress(text) => self.talk.now(text),
            Message::Event(event) => {
                if let Ok(event) = serde_json::from_value::<Event>(event.clone()) {
                    self.tell(&event);
                }
            }
            Message::Report(_) => {}
        }
    }

    fn tell(&mut self, event: &Event) {
        match event {
            Event::Note(note) => self.talk.line(&format!("note: {note}")),
            Event::Started { train_rows, evaluation_rows, total_steps } => {
                self.total = *total_steps;
                self.talk.line(&format!(
                    "training on {train_rows} rows, {evaluation_rows} held out, {total_steps} optimizer steps"
                ));
            }
            Event::Step { step, loss, rate, seconds, rows, .. } => {
                self.seconds += seconds;
                self.rows += rows;
                let speed = self.rows as f64 / self.seconds.max(1e-9);
                let left = self.seconds / *step as f64 * self.total.saturating_sub(*step) as f64;
                let text = format!(
                    "step {step}/{} · loss {loss:.4} · learning rate {rate:.2e} · {speed:.1} samples/s · {} left",
                    self.total,
                    clock(left)
                );
                let tenth = step * 10 / self.total.max(1);
                if tenth > self.said && !self.talk.is_live() {
                    self.said = tenth;
                    self.talk.line(&text);
                } else {
                    self.talk.now(&text);
                }
            }
            Event::Evaluated { step, scores } => {
                self.talk.line(&format!("step {step}/{}: {}", self.total, in_words(scores)));
            }
        }
    }
}

/// `1:05:09`, `5:09`.
fn clock(seconds: f64) -> String {
    let s = seconds.round() as u64;
    match s / 3600 {
        0 => format!("{}:{:02}", s / 60, s % 60),
        h => format!("{h}:{:02}:{:02}", s / 60 % 60, s % 60),
    }
}

fn in_words(scores: &Scores) -> String {
    let quality = match &scores.quality {
        Quality::Classification(q) => format!("accuracy {:.4}, macro F1 {:.4}", q.accuracy, q.macro_f1),
        Quality::Regression(q) => format!("Pearson {:.4}, Spearman {:.4}", q.pearson, q.spearman),
    };
    format!("loss {:.4}, {quality} on {} held-out rows", scores.loss, scores.rows)
}

fn conclusion(summary: &Summary, spec: &TrainSpec, cap: Option<u64>) -> String {
    let mut out = format!(
        "Trained {} steps at {:.1} samples/s, last loss {:.4}\n",
        summary.steps, summary.samples_per_second, summary.train_loss
    );
    if let Some(scores) = &summary.scores {
        out += &format!("  held out {}\n", in_words(scores));
    }
    let cap = cap.map_or(String::new(), |cap| format!(" of {}", ByteSize(cap)));
    out += &format!("  memory   {}{cap} at the peak\n", ByteSize(summary.peak_bytes));
    out + &format!("  model    {}\n", spec.output.display())
}
