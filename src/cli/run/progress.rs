//! What a person sees of a run while it goes, and what is written down of it.

use std::path::PathBuf;

use super::metrics::Metrics;
use crate::cli::talk::Talk;
use crate::cli::time::clock;
use crate::probe::protocol::Message;
use crate::train::evaluate::{Quality, Scores};
use crate::train::trainer::Event;

/// Listens to the workers of one run.
pub struct Progress {
    /// For whoever else has something to say.
    pub talk: Talk,
    /// Whether a worker has come so far that the folder holds this run, and no earlier one.
    pub started: bool,
    /// Optimizer steps done by the present worker, or by the one whose snapshot it took over.
    pub step: usize,
    /// The last lowering that a worker did by itself: micro-batch and recomputed layers.
    pub lowered: Option<(usize, usize)>,
    output: PathBuf,
    metrics: Option<Metrics>,
    total: usize,
    /// Tenths of the run of which a plain line has told.
    said: usize,
    /// Steps that the present worker has done, with their seconds and rows.
    own: (usize, f64, usize),
}

impl Progress {
    /// Progress of a run that writes into a folder.
    pub fn new(talk: Talk, output: PathBuf) -> Self {
        Progress {
            talk,
            started: false,
            step: 0,
            lowered: None,
            output,
            metrics: None,
            total: 0,
            said: 0,
            own: (0, 0.0, 0),
        }
    }

    /// Takes in one message of a worker.
    pub fn hear(&mut self, message: &Message) {
        match message {
            Message::Progress(text) => self.talk.now(text),
            Message::Event(event) => {
                self.tell(event);
                self.write_down(event);
            }
            Message::Lines(_) | Message::Report(_) => {}
        }
    }

    fn tell(&mut self, event: &Event) {
        match event {
            Event::Note(note) => self.talk.line(&format!("note: {note}")),
            Event::Started { train_rows, evaluation_rows, total_steps, done } => {
                self.started = true;
                (self.total, self.step, self.own) = (*total_steps, *done, (0, 0.0, 0));
                let from = if *done > 0 { format!(", going on after step {done}") } else { String::new() };
                self.talk.line(&format!(
                    "training on {train_rows} rows, {evaluation_rows} held out, {total_steps} optimizer steps{from}"
                ));
            }
            Event::Step { step, loss, rate, seconds, rows, updated, .. } => {
                self.step = *step;
                self.own = (self.own.0 + 1, self.own.1 + seconds, self.own.2 + rows);
                let skipped = if *updated { "" } else { " · skipped, the scaled gradient overflowed" };
                self.say_step(&format!("loss {loss:.4} · learning rate {rate:.2e}{skipped}"));
            }
            Event::Evaluated { step, scores } => {
                self.talk.line(&format!("step {step}/{}: {}", self.total, in_words(scores)));
            }
            Event::Saved { .. } => {}
            Event::Lowered { step, micro_batch, checkpoint_layers, reason } => {
                self.lowered = Some((*micro_batch, *checkpoint_layers));
                self.talk.line(&format!(
                    "step {}/{}: out of memory ({reason}); the step is done again with {}",
                    step + 1,
                    self.total,
                    knobs_in_words(*micro_batch, *checkpoint_layers)
                ));
            }
        }
    }

    fn say_step(&mut self, what: &str) {
        let (steps, seconds, rows) = self.own;
        let speed = rows as f64 / seconds.max(1e-9);
        let left = seconds / steps as f64 * self.total.saturating_sub(self.step) as f64;
        let text = format!("step {}/{} · {what} · {speed:.1} samples/s · {} left", self.step, self.total, clock(left));
        let tenth = self.step * 10 / self.total.max(1);
        if tenth > self.said && !self.talk.is_live() {
            self.said = tenth;
            self.talk.line(&text);
        } else {
            self.talk.now(&text);
        }
    }

    /// A run is not stopped by a metrics file that can't be written; the person is told once.
    fn write_down(&mut self, event: &Event) {
        let written = match (event, &mut self.metrics) {
            (Event::Started { done, .. }, _) => Metrics::open(&self.output, *done).map(|new| self.metrics = Some(new)),
            (_, Some(metrics)) => metrics.add(event),
            (_, None) => Ok(()),
        };
        if let Err(error) = written {
            self.metrics = None;
            self.talk.line(&format!("note: metrics are no longer written: {error:#}"));
        }
    }
}

/// `micro-batch 4 and 2 layers recomputed`.
pub fn knobs_in_words(micro_batch: usize, checkpoint_layers: usize) -> String {
    match checkpoint_layers {
        0 => format!("micro-batch {micro_batch}"),
        layers => format!("micro-batch {micro_batch} and {layers} layers recomputed"),
    }
}

/// Scores in one line.
pub fn in_words(scores: &Scores) -> String {
    let quality = match &scores.quality {
        Quality::Classification(q) => format!("accuracy {:.4}, macro F1 {:.4}", q.accuracy, q.macro_f1),
        Quality::Regression(q) => format!("Pearson {:.4}, Spearman {:.4}", q.pearson, q.spearman),
    };
    format!("loss {:.4}, {quality} on {} held-out rows", scores.loss, scores.rows)
}
