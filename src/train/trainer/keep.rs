//! What is kept of a run: scores, the best model, snapshots, and the model at the end.

use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context, Result};

use super::{Event, Run};
use crate::train::resume::Best;
use crate::train::snapshot::Snapshots;
use crate::train::spec::{Every, Selection};
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
            let file = best_file(&self.snapshots);
            std::fs::create_dir_all(self.snapshots.folder())
                .with_context(|| format!("can't create {}", self.snapshots.folder().display()))?;
            save::weights(self.learner.model(), &self.learner.config, &file)?;
            self.state.best = Some(Best { step, scores });
            self.state.stale = 0;
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
            Ok(found) => (self.around.tell)(Event::Saved { step: found.step }),
            Err(error) if or == SaveOrFail::Fail => return Err(error),
            Err(error) => {
                let last = self.snapshots.list().first().map(|found| found.step);
                let last = last.map_or("there is none yet".to_string(), |step| format!("the last is of step {step}"));
                (self.around.tell)(Event::Note(format!("{error:#}; training goes on without a new snapshot, {last}")));
            }
        }
        Ok(())
    }

    /// Saves the model that is kept, and removes what only an unfinished run needs.
    pub(super) fn finish(&mut self) -> Result<()> {
        self.ensure_finite()?;
        let best = best_file(&self.snapshots);
        let weights = match &self.state.best {
            Some(kept) if kept.step != self.state.step && best.is_file() => save::Weights::File(&best),
            _ => save::Weights::Of(self.learner.model()),
        };
        save::folder(weights, &self.learner.config, &self.files, &self.spec.output)?;
        let _ = std::fs::remove_file(&best);
        self.snapshots.clear();
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

/// Where the weights of the best model wait for the end.
pub(super) fn best_file(snapshots: &Snapshots) -> PathBuf {
    snapshots.folder().join("best.safetensors")
}
