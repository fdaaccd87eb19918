//! A whole run: epochs of steps, evaluation, snapshots, and a saved model at the end.

use std::any::Any;
use std::panic::{self, AssertUnwindSafe};
use std::time::Instant;

use anyhow::{Context, Result};
use burn::tensor::Device;

use super::batch::MicroBatch;
use super::best::BestModels;
use super::evaluate;
pub use super::prepare::{Prepared, prepare};
use super::resume::{self, State};
use super::schedule::Schedule;
use super::snapshot::Snapshots;
use super::spec::{Start, TrainSpec};
use super::step::{self, Learner, NotFinite};
use super::{cutting, setup};
use crate::data::batch::PadTo;
use crate::data::corpus::Corpus;
use crate::data::order::{self, LastStep};
use crate::model::Classifier;
use crate::model::source::ModelFiles;
use crate::plan::{Knobs, Precision};
pub use crate::probe::protocol::training::{Ending, Event, Summary};

mod keep;

use keep::SaveOrFail;

/// The snapshots' folder inside the output folder.
pub const SNAPSHOTS: &str = "snapshots";

/// What a run needs of the process that it runs in.
pub struct Surroundings<'a> {
    /// Highest number of bytes in use so far.
    pub peak: &'a dyn Fn() -> u64,
    /// Called between two steps: where memory is kept in pools, they are kept away from the cap.
    pub between_steps: &'a dyn Fn(),
    /// Whether the run has been asked to stop.
    pub stop: &'a dyn Fn() -> bool,
    /// What a panic's payload says about memory, if it is that which ran out.
    pub refusal: &'a dyn Fn(&(dyn Any + Send)) -> Option<String>,
    /// Who listens.
    pub tell: &'a mut dyn FnMut(Event),
}

/// Trains to the end and saves the model. A run that is asked to stop saves a snapshot instead.
///
/// # Errors
/// If the weights or the snapshot to resume can't be loaded, loss or gradient stop being finite ([`NotFinite`]), or the
/// output can't be written.
pub fn train<'a>(spec: &'a TrainSpec, prepared: Prepared, device: Device, around: Surroundings<'a>) -> Result<Summary> {
    let snapshots = Snapshots::new(spec.output.join(SNAPSHOTS), spec.saving.keep);
    Run::start(spec, prepared, device, snapshots, around)?.finished()
}

struct Run<'a> {
    spec: &'a TrainSpec,
    files: ModelFiles,
    train: Corpus,
    held_out: Option<Corpus>,
    order: Vec<usize>,
    /// The epoch whose order that is.
    epoch: Option<usize>,
    scratch: evaluate::Scratch,
    learner: Learner,
    schedule: Schedule,
    state: State,
    snapshots: Snapshots,
    best: BestModels,
    saved_at: Instant,
    around: Surroundings<'a>,
}

impl<'a> Run<'a> {
    fn start(
        spec: &'a TrainSpec,
        prepared: Prepared,
        device: Device,
        snapshots: Snapshots,
        around: Surroundings<'a>,
    ) -> Result<Self> {
        let Prepared { files, config, train, held_out, fingerprint, order, scratch } = prepared;
        let best = BestModels::new(snapshots.folder().to_path_buf());
        let total_steps = setup::total_steps(spec, train.len());
        let settings = setup::settings(spec, &train.targets, config.num_labels());
        let mut state = setup::fresh(spec, fingerprint, total_steps);
        let older = match spec.start {
            Start::Fresh => {
                snapshots.clear()?;
                best.clear();
                None
            }
            Start::Resume => keep::newest(&snapshots, around.tell)?,
        };
        let learner = match older {
            Some(mut opened) => {
                resume::check(&opened.state, spec, fingerprint)?;
                state = State { spec: spec.clone(), ..opened.state.clone() };
                // The person, or a supervisor that saw memory run short, may have lowered these since.
                state.micro_batch = state.micro_batch.min(spec.knobs.micro_batch);
                state.checkpoint_layers = state.checkpoint_layers.max(spec.knobs.checkpoint_layers);
                let model = Classifier::init(&config, spec.seed, &device);
                let mut learner = Learner::new(model, config, settings, device);
                learner.resume(&mut opened, state.step, state.loss_scale)?;
                keep::best_file(&best, &mut state, &learner, around.tell)?;
                learner
            }
            None => {
                let (model, report) = files.load(&config, spec.seed, &device)?;
                report.notes().into_iter().for_each(|note| (around.tell)(Event::Note(note)));
                Learner::new(model, config, settings, device)
            }
        };
        (around.tell)(Event::Started {
            train_rows: train.len(),
            evaluation_rows: held_out.as_ref().map_or(0, Corpus::len),
            total_steps,
            done: state.step,
        });
        let schedule = setup::schedule(&spec.hyper, total_steps);
        let saved_at = Instant::now();
        let mut run = Run {
            spec,
            files,
            train,
            held_out,
            order,
            epoch: None,
            scratch,
            learner,
            schedule,
            state,
            snapshots,
            best,
            saved_at,
            around,
        };
        run.use_knobs();
        Ok(run)
    }

    fn finished(mut self) -> Result<Summary> {
        let ending = self.steps()?;
        if ending == Ending::Stopped {
            self.snapshot(SaveOrFail::Fail)?;
        } else {
            self.finish()?;
        }
        Ok(self.summary(ending))
    }

    fn steps(&mut self) -> Result<Ending> {
        let per_epoch = order::steps_per_epoch(self.train.len(), self.spec.effective_batch, LastStep::Keep);
        while self.state.step < self.state.total_steps {
            (self.around.between_steps)();
            if (self.around.stop)() {
                (self.around.tell)(Event::Note("stopping: a snapshot is saved; ask again to leave at once".into()));
                return Ok(Ending::Stopped);
            }
            let (epoch, within) = (self.state.step / per_epoch, self.state.step % per_epoch);
            if self.epoch != Some(epoch) {
                order::refill(&mut self.order, self.train.len(), self.spec.order, self.spec.seed, epoch);
                self.epoch = Some(epoch);
            }
            let rows = order::step(&self.order, self.spec.effective_batch, LastStep::Keep, within).to_vec();
            self.one_step(&rows, (self.state.step + 1) as f64 / per_epoch as f64)?;
            let (done, every) = (self.state.step, self.spec.hyper.evaluate_every);
            let last = done == self.state.total_steps;
            if last || within + 1 == per_epoch || (every > 0 && done.is_multiple_of(every)) {
                self.evaluate()?;
                if self.is_stale() {
                    return Ok(Ending::Early);
                }
            }
            if !last && self.snapshot_is_due() {
                self.snapshot(SaveOrFail::GoOn)?;
            }
        }
        Ok(Ending::Done)
    }

    fn one_step(&mut self, rows: &[usize], epoch: f64) -> Result<()> {
        let started = Instant::now();
        let total = self.learner.settings.objective.weight(&self.train.targets.select(rows));
        let settled = loop {
            match self.gradients(rows, total)? {
                Gradients::Settled(settled) => break settled,
                Gradients::Refused(reason) => self.lower(&reason)?,
            }
        };
        let loss_scale = self.learner.loss_scale().map(|scale| scale.scale);
        let rate = self.schedule.rate(self.state.step);
        let outcome = self.learner.apply(rate, settled).map_err(|refused| {
            self.advised(format!("step {}: {refused}; its update was not done", self.state.step + 1))
        })?;
        let seconds = started.elapsed().as_secs_f64();
        self.state.step += 1;
        self.state.clock.add(seconds, rows.len(), outcome.loss, self.state.total_steps);
        (self.around.tell)(Event::Step {
            step: self.state.step,
            epoch,
            loss: outcome.loss,
            rate,
            gradient_norm: outcome.gradient_norm,
            loss_scale,
            updated: outcome.updated,
            seconds,
            rows: rows.len(),
        });
        Ok(())
    }

    /// The error of a step, with what a person can do. Going on would come to the same step, so that is no advice.
    fn advised(&self, what: String) -> NotFinite {
        let precision = match self.spec.knobs.precision {
            Precision::Fp32 => "",
            _ => ", or precision fp32",
        };
        let rate = self.spec.hyper.learning_rate;
        NotFinite {
            what: format!(
                "{what}. Start anew (--overwrite) with a lower --learning-rate (it was {rate:e}){precision}, and look for \
                 rows that are out of scale"
            ),
        }
    }

    /// The gradients of a whole step. Devices that refuse memory by a panic leave the parameters untouched here, so the
    /// step can be done again; elsewhere the process ends, and whoever started it goes on from the last snapshot.
    fn gradients(&mut self, rows: &[usize], total: f64) -> Result<Gradients> {
        let parts = self.cut(rows)?;
        let attempt = panic::catch_unwind(AssertUnwindSafe(|| -> Result<step::Settled> {
            for part in &parts {
                let batch = self.micro_batch(part)?;
                self.learner.accumulate(&batch, total);
            }
            Ok(self.learner.settle())
        }));
        match attempt {
            Ok(settled) => settled.map(Gradients::Settled),
            Err(payload) => match (self.around.refusal)(payload.as_ref()) {
                Some(reason) => Ok(Gradients::Refused(reason)),
                None => panic::resume_unwind(payload),
            },
        }
    }

    /// Goes on with less memory, and starts the step anew.
    fn lower(&mut self, reason: &str) -> Result<()> {
        self.learner.forget();
        let knobs = Knobs {
            micro_batch: self.state.micro_batch,
            checkpoint_layers: self.state.checkpoint_layers,
            ..self.spec.knobs
        };
        let lower = knobs.lower(self.spec.effective_batch, self.learner.config.layers).with_context(|| {
            format!("out of memory at micro-batch 1 with every layer recomputed: nothing is left to lower ({reason})")
        })?;
        (self.state.micro_batch, self.state.checkpoint_layers) = (lower.micro_batch, lower.checkpoint_layers);
        self.use_knobs();
        (self.around.tell)(Event::Lowered {
            step: self.state.step,
            micro_batch: lower.micro_batch,
            checkpoint_layers: lower.checkpoint_layers,
            reason: reason.to_string(),
        });
        Ok(())
    }

    fn use_knobs(&mut self) {
        let knobs = &mut self.learner.settings.knobs;
        (knobs.micro_batch, knobs.checkpoint_layers) = (self.state.micro_batch, self.state.checkpoint_layers);
    }

    /// The rows of each micro-batch of a step.
    fn cut(&self, rows: &[usize]) -> Result<Vec<Vec<usize>>> {
        let lengths: Vec<usize> = rows.iter().map(|&row| self.train.rows[row].ids.len()).collect();
        let (micro, longest) = (self.state.micro_batch, self.spec.proven_length);
        let parts = cutting::micro_batches(&lengths, &self.learner.config, micro, longest)?;
        Ok(parts.into_iter().map(|part| part.into_iter().map(|i| rows[i]).collect()).collect())
    }

    fn micro_batch(&self, rows: &[usize]) -> Result<MicroBatch> {
        let encoded: Vec<_> = rows.iter().map(|&row| &self.train.rows[row]).collect();
        let targets = self.train.targets.select(rows);
        MicroBatch::new(&encoded, targets, PadTo::Longest, &self.learner.config, self.learner.device())
    }

    fn summary(self, ending: Ending) -> Summary {
        let State { step, clock, scores, best, .. } = self.state;
        let (kept_step, scores) = match best {
            Some(best) => (best.step, Some(best.scores)),
            None => (step, scores),
        };
        Summary {
            steps: step,
            ending,
            train_loss: clock.recent_loss(),
            scores,
            kept_step,
            samples_per_second: (clock.rows > 0).then(|| clock.rows as f64 / clock.seconds),
            peak_bytes: (self.around.peak)(),
        }
    }
}

/// What came of a step's micro-batches.
enum Gradients {
    /// All is accumulated.
    Settled(step::Settled),
    /// The device had not enough memory; it said this.
    Refused(String),
}

#[cfg(test)]
mod tests;
