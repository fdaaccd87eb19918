//! What is kept of a run: scores, the best model, snapshots, and the model at the end.

use std::path::PathBuf;
use std::time::Instant;

use anyhow::Result;

use super::{Event, Run};
use crate::train::best::BestModels;
use crate::train::resume::{Best, State};
use crate::train::snapshot::{Newest, Opened, Snapshots};
use crate::train::spec::{Every, Selection};
use crate::train::step::Learner;
use crate::train::{evaluate, finite, save};

/// What to do about a snapshot that can't be written.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum SaveOrFail {
    /// Say so and go on: the run itself is fine.
    GoOn,
    /// It was the point of stopping.
    Fail,
}

impl Run<'_> {
    pub(super) fn evaluate(&mut self) -> Result<()> {
        let Some(held_out) = &self.held_out else { return Ok(()) };
        let scores = evaluate::score(&self.learner, held_out, self.state.micro_batch, &mut self.scratch)?;
        let step = self.state.step;
        (self.around.tell)(Event::Evaluated { step, scores: scores.clone() });
        self.state.scores = Some(scores.clone());
        if self.spec.selection == Selection::Last {
            return Ok(());
        }
        let better = self.state.best.as_ref().is_none_or(|best| scores.better_than(&best.scores));
        if better {
            self.ensure_finite()?;
            self.best.write(self.learner.model(), &self.learner.config, step)?;
            self.state.best = Some(Best { step, scores });
            self.state.stale = 0;
            self.prune_best();
        } else {
            self.state.stale += 1;
        }
        Ok(())
    }

    pub(super) fn is_stale(&self) -> bool {
        match self.spec.selection {
            Selection::Best { patience: Some(patience) } => self.state.stale >= patience,
            _ => false,
        }
    }

    pub(super) fn snapshot_is_due(&self) -> bool {
        match self.spec.saving.every {
            Every::Steps(steps) => self.state.step.is_multiple_of(steps.max(1)),
            Every::Minutes(minutes) => self.saved_at.elapsed().as_secs_f64() >= 60.0 * minutes,
            Every::Never => false,
        }
    }

    pub(super) fn snapshot(&mut self, or: SaveOrFail) -> Result<()> {
        self.ensure_finite()?;
        self.state.loss_scale = self.learner.loss_scale();
        let written = self.snapshots.write(self.state.step, &self.state, self.learner.parameters());
        self.saved_at = Instant::now();
        match written {
            Ok(found) => {
                self.prune_best();
                (self.around.tell)(Event::Saved { step: found.step });
            }
            Err(error) if or == SaveOrFail::Fail => return Err(error),
            Err(error) => {
                let last = self.snapshots.list().first().map(|found| found.step);
                let last = last.map_or("there is none yet".to_string(), |step| format!("the last is of step {step}"));
                (self.around.tell)(Event::Note(format!("{error:#}; training goes on without a new snapshot, {last}")));
            }
        }
        Ok(())
    }

    fn prune_best(&self) {
        let snapshots: Vec<usize> = self.snapshots.list().iter().map(|found| found.step).collect();
        self.best.prune(self.state.best.as_ref().map(|best| best.step), &snapshots);
    }

    /// Saves the model that is kept, and removes what only an unfinished run needs.
    pub(super) fn finish(&mut self) -> Result<()> {
        self.ensure_finite()?;
        let best = best_file(&self.best, &mut self.state, &self.learner, self.around.tell)?;
        let weights = best.as_deref().map_or(save::Weights::Of(self.learner.model()), save::Weights::File);
        save::folder(weights, &self.learner.config, &self.files, self.spec.max_length, &self.spec.output)?;
        // The snapshots first: one that is left by a kill in between still finds its best model.
        if let Err(error) = self.snapshots.clear() {
            (self.around.tell)(Event::Note(format!("{error:#}; the model is saved, so remove it yourself")));
        }
        self.best.clear();
        Ok(())
    }

    /// Nothing is kept of a model whose last update, with finite gradients at a rate far too high, left no numbers.
    fn ensure_finite(&self) -> Result<()> {
        let sum = finite::parameter_sum(self.learner.model())?;
        if sum.is_finite() {
            return Ok(());
        }
        let what = format!("the sum over the parameters is {sum} after step {}", self.state.step);
        Err(self.advised(what).into())
    }
}

/// The newest whole snapshot, if there is one. Of each that is not whole the person is told, and what is done instead.
pub(super) fn newest(snapshots: &Snapshots, tell: &mut dyn FnMut(Event)) -> Result<Option<Opened<State>>> {
    let Newest { opened, damaged } = snapshots.newest::<State>()?;
    let instead = match &opened {
        Some(older) => format!("the one of step {} is used", older.found.step),
        None => "there is none before it that is whole, so training starts anew".to_string(),
    };
    damaged.into_iter().for_each(|text| tell(Event::Note(format!("{text}; {instead}"))));
    Ok(opened)
}

/// The file of the best model so far, if there is any. Where it is gone or damaged that model is forgotten, so that no
/// other one is given out under its scores.
pub(super) fn best_file(
    files: &BestModels,
    state: &mut State,
    learner: &Learner,
    tell: &mut dyn FnMut(Event),
) -> Result<Option<PathBuf>> {
    let Some(Best { step, .. }) = state.best else { return Ok(None) };
    match files.find(step) {
        Ok(path) => Ok(Some(path)),
        // It is the one in memory.
        Err(_) if step == state.step => {
            files.write(learner.model(), &learner.config, step)?;
            files.find(step).map(Some)
        }
        Err(error) => {
            tell(Event::Note(format!(
                "{error:#}; it is lost, and of the models after it the best, or else the last, is kept"
            )));
            state.best = None;
            Ok(None)
        }
    }
}
