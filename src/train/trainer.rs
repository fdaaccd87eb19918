//! A whole run: epochs of steps, evaluation, and a saved model at the end.

use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use burn::tensor::Device;
use serde::{Deserialize, Serialize};

use super::batch::MicroBatch;
use super::evaluate::{self, Scores};
use super::objective::Objective;
use super::optimizer::OptimizerSettings;
use super::schedule::Schedule;
use super::spec::{DataSpec, Duration, Evaluation, Hyper, TrainSpec};
use super::step::{Learner, StepSettings};
use super::{cutting, save, step};
use crate::data::corpus::{Corpus, LabelSource, Targets};
use crate::data::order::{self, LastStep};
use crate::data::source::{Columns, LabelKind};
use crate::data::tokenize::Tokenizer;
use crate::data::{batch::PadTo, split};
use crate::model::ModelConfig;
use crate::model::source::ModelFiles;

/// What a run reports while it goes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Event {
    /// Something a person should know.
    Note(String),
    /// Data and model are ready.
    Started {
        /// Rows trained on.
        train_rows: usize,
        /// Rows held out.
        evaluation_rows: usize,
        /// Optimizer steps to do.
        total_steps: usize,
    },
    /// An optimizer step was done.
    Step {
        /// Steps done.
        step: usize,
        /// Mean loss over the step's rows.
        loss: f64,
        /// Learning rate of the step.
        rate: f64,
        /// Gradient norm before clipping.
        gradient_norm: f64,
        /// Seconds that the step took.
        seconds: f64,
        /// Rows in the step.
        rows: usize,
    },
    /// The held-out rows were scored.
    Evaluated {
        /// Steps done.
        step: usize,
        /// How well.
        scores: Scores,
    },
}

/// How a run ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// Optimizer steps done.
    pub steps: usize,
    /// Mean loss over the last tenth of the steps.
    pub train_loss: f64,
    /// The last scores, where rows were held out.
    pub scores: Option<Scores>,
    /// Rows trained on per second of training, evaluation aside.
    pub samples_per_second: f64,
    /// Highest number of bytes in use above what was there before the model was built.
    pub peak_bytes: u64,
}

/// The rows of a run, tokenized and split.
pub struct Prepared {
    files: ModelFiles,
    config: ModelConfig,
    train: Corpus,
    held_out: Option<Corpus>,
}

/// Reads and tokenizes the data of a run. Done before memory is counted: rows live on the host.
///
/// # Errors
/// If the model folder or a data file can't be used; names the file and line.
pub fn prepare(spec: &TrainSpec, tell: &mut dyn FnMut(Event)) -> Result<Prepared> {
    let files = ModelFiles::open(&spec.model)?;
    let Some(folder) = &files.folder else {
        bail!(
            "a preset has no tokenizer and no weights to start from: give --model the folder of a pretrained model \
             (config.json, model.safetensors, tokenizer.json)"
        )
    };
    ensure!(
        spec.max_length <= files.config.max_length(),
        "--max-length {} is more than the {} positions of the model",
        spec.max_length,
        files.config.max_length()
    );
    let tokenizer = Tokenizer::from_folder(folder, spec.max_length)?;
    tokenizer.check_vocab(files.config.vocab_size)?;
    let all = read(&spec.data, &files.config, &tokenizer)?;
    all.warnings.iter().for_each(|warning| tell(Event::Note(warning.clone())));
    let config = match &all.labels {
        Some(labels) => files.config.clone().with_labels(labels.names().to_vec()),
        None => files.config.clone().with_labels(vec!["LABEL_0".into()]),
    };
    let (train, held_out) = hold_out(spec, all, &tokenizer)?;
    ensure!(!train.is_empty(), "{} leaves no rows to train on", spec.data.train.display());
    Ok(Prepared { files, config, train, held_out })
}

fn read(data: &DataSpec, config: &ModelConfig, tokenizer: &Tokenizer) -> Result<Corpus> {
    let kind = match data.regression {
        None => LabelKind::Auto,
        Some(true) => LabelKind::Number,
        Some(false) => LabelKind::Classes,
    };
    Corpus::read(&data.train, &columns(data), LabelSource::Own { kind, model: &config.labels }, tokenizer)
}

fn columns(data: &DataSpec) -> Columns {
    Columns { text: data.text.clone(), pair: data.pair.clone(), label: Some(data.label.clone()) }
}

fn hold_out(spec: &TrainSpec, all: Corpus, tokenizer: &Tokenizer) -> Result<(Corpus, Option<Corpus>)> {
    match &spec.data.evaluation {
        Evaluation::File(path) => {
            let labels = LabelSource::Given(all.labels.as_ref());
            let held_out = Corpus::read(path, &columns(&spec.data), labels, tokenizer)?;
            Ok((all, Some(held_out)))
        }
        Evaluation::Fraction(fraction) if *fraction == 0.0 => Ok((all, None)),
        Evaluation::Fraction(fraction) => {
            let (train, held_out) = split::split(all.len(), *fraction, spec.seed, all.targets.classes())
                .with_context(|| format!("--eval-fraction {fraction}"))?;
            Ok((all.select(&train), Some(all.select(&held_out))))
        }
    }
}

/// Trains to the end and saves the model.
///
/// # Errors
/// If the weights can't be loaded, the loss stops being finite, or the output can't be written.
pub fn train(
    spec: &TrainSpec,
    prepared: Prepared,
    device: Device,
    peak: &dyn Fn() -> u64,
    tell: &mut dyn FnMut(Event),
) -> Result<Summary> {
    let Prepared { files, config, train, held_out } = prepared;
    let (model, report) = files.load(&config, spec.seed, &device)?;
    for note in report.notes() {
        tell(Event::Note(note));
    }
    let settings = settings(spec, &train.targets, config.num_labels());
    let total_steps = total_steps(spec, train.len());
    tell(Event::Started {
        train_rows: train.len(),
        evaluation_rows: held_out.as_ref().map_or(0, Corpus::len),
        total_steps,
    });
    let learner = Learner::new(model, config, settings, device);
    let schedule = schedule(&spec.hyper, total_steps);
    let mut run = Run { spec, train, held_out, learner, schedule, total_steps, clock: Clock::default(), scores: None };
    run.steps(tell)?;
    save::folder(run.learner.model(), &run.learner.config, &files, &spec.output)?;
    Ok(Summary {
        steps: total_steps,
        train_loss: run.clock.recent_loss(),
        scores: run.scores,
        samples_per_second: run.clock.rows as f64 / run.clock.seconds,
        peak_bytes: peak(),
    })
}

fn settings(spec: &TrainSpec, targets: &Targets, classes: usize) -> StepSettings {
    let hyper = &spec.hyper;
    StepSettings {
        objective: Objective {
            label_smoothing: hyper.label_smoothing,
            class_weights: if hyper.balance_classes { balanced(targets, classes) } else { Vec::new() },
        },
        optimizer: OptimizerSettings { kind: spec.knobs.optimizer, weight_decay: hyper.weight_decay },
        clip_norm: (hyper.clip_norm > 0.0).then_some(hyper.clip_norm),
        ..StepSettings::new(spec.knobs, step::dropout_seed(spec.seed))
    }
}

/// `rows / (classes · rows of the class)`, as scikit-learn's "balanced".
fn balanced(targets: &Targets, classes: usize) -> Vec<f32> {
    let Some(indices) = targets.classes() else { return Vec::new() };
    let mut counts = vec![0usize; classes];
    indices.iter().for_each(|&class| counts[class] += 1);
    counts.iter().map(|&count| indices.len() as f32 / (classes as f32 * count.max(1) as f32)).collect()
}

fn total_steps(spec: &TrainSpec, rows: usize) -> usize {
    let epoch = order::steps_per_epoch(rows, spec.effective_batch, LastStep::Keep);
    match spec.duration {
        Duration::Steps(steps) => steps,
        Duration::Epochs(epochs) => ((epoch as f64 * epochs).round() as usize).max(1),
    }
}

fn schedule(hyper: &Hyper, total_steps: usize) -> Schedule {
    let warmup_steps = (hyper.warmup * total_steps as f64).ceil() as usize;
    Schedule { peak: hyper.learning_rate, warmup_steps, total_steps, decay: hyper.decay }
}

/// Time and loss so far.
#[derive(Default)]
struct Clock {
    seconds: f64,
    rows: usize,
    losses: Vec<f64>,
}

impl Clock {
    fn recent_loss(&self) -> f64 {
        let recent = &self.losses[self.losses.len() - self.losses.len().div_ceil(10)..];
        recent.iter().sum::<f64>() / recent.len() as f64
    }
}

struct Run<'a> {
    spec: &'a TrainSpec,
    train: Corpus,
    held_out: Option<Corpus>,
    learner: Learner,
    schedule: Schedule,
    total_steps: usize,
    clock: Clock,
    scores: Option<Scores>,
}

impl Run<'_> {
    fn steps(&mut self, tell: &mut dyn FnMut(Event)) -> Result<()> {
        let per_epoch = order::steps_per_epoch(self.train.len(), self.spec.effective_batch, LastStep::Keep);
        let mut order = Vec::new();
        for step in 0..self.total_steps {
            let (epoch, within) = (step / per_epoch, step % per_epoch);
            if within == 0 || order.is_empty() {
                order = order::epoch_order(self.train.len(), self.spec.seed, epoch);
            }
            let rows = order::step(&order, self.spec.effective_batch, LastStep::Keep, within);
            self.one_step(step, rows, tell)?;
            let every = self.spec.hyper.evaluate_every;
            let last = step + 1 == self.total_steps;
            if last || within + 1 == per_epoch || (every > 0 && (step + 1).is_multiple_of(every)) {
                self.evaluate(step + 1, tell)?;
            }
        }
        Ok(())
    }

    fn one_step(&mut self, step: usize, rows: &[usize], tell: &mut dyn FnMut(Event)) -> Result<()> {
        let started = Instant::now();
        let total = self.learner.settings.objective.weight(&self.train.targets.select(rows));
        for part in self.cut(rows)? {
            let batch = self.micro_batch(&part)?;
            self.learner.accumulate(&batch, total);
        }
        let rate = self.schedule.rate(step);
        let outcome = self.learner.update(rate);
        let seconds = started.elapsed().as_secs_f64();
        ensure!(
            outcome.loss.is_finite() || !outcome.updated,
            "the loss became {} at step {}: lower --learning-rate (it was {:e}), or use precision fp32",
            outcome.loss,
            step + 1,
            self.spec.hyper.learning_rate
        );
        self.clock.seconds += seconds;
        self.clock.rows += rows.len();
        self.clock.losses.push(outcome.loss);
        let gradient_norm = outcome.gradient_norm;
        tell(Event::Step { step: step + 1, loss: outcome.loss, rate, gradient_norm, seconds, rows: rows.len() });
        Ok(())
    }

    /// The rows of each micro-batch of a step.
    fn cut(&self, rows: &[usize]) -> Result<Vec<Vec<usize>>> {
        let lengths: Vec<usize> = rows.iter().map(|&row| self.train.rows[row].ids.len()).collect();
        let spec = self.spec;
        let parts = cutting::micro_batches(&lengths, &self.learner.config, spec.knobs.micro_batch, spec.proven_length)?;
        Ok(parts.into_iter().map(|part| part.into_iter().map(|i| rows[i]).collect()).collect())
    }

    fn micro_batch(&self, rows: &[usize]) -> Result<MicroBatch> {
        let encoded: Vec<_> = rows.iter().map(|&row| &self.train.rows[row]).collect();
        let targets = self.train.targets.select(rows);
        MicroBatch::new(&encoded, targets, PadTo::Longest, &self.learner.config, self.learner.device())
    }

    fn evaluate(&mut self, step: usize, tell: &mut dyn FnMut(Event)) -> Result<()> {
        let Some(held_out) = &self.held_out else { return Ok(()) };
        let scores = evaluate::score(&self.learner, held_out, self.spec.knobs.micro_batch)?;
        tell(Event::Evaluated { step, scores: scores.clone() });
        self.scores = Some(scores);
        Ok(())
    }
}
