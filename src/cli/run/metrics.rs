//! What a run measured, step by step: `metrics.csv` for spreadsheets and scripts, event files for TensorBoard.

use std::fs::{self, File, OpenOptions};
use std::io::ErrorKind;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};

use super::{METRICS, TENSORBOARD};
use crate::plan::files;
use crate::report::tensorboard::EventFile;
use crate::train::evaluate::{Quality, Scores};
use crate::train::trainer::Event;

const HEADER: [&str; 12] = [
    "step",
    "epoch",
    "loss",
    "learning_rate",
    "gradient_norm",
    "loss_scale",
    "samples_per_second",
    "eval_loss",
    "eval_accuracy",
    "eval_macro_f1",
    "eval_pearson",
    "eval_spearman",
];

/// Both logs of a run.
pub struct Metrics {
    csv: csv::Writer<File>,
    board: EventFile<File>,
    epoch: f64,
}

impl Metrics {
    /// Opens the logs in a run's folder. Steps after `done`, which an earlier process did and no snapshot holds, are
    /// taken out: they will be done again.
    ///
    /// # Errors
    /// If a file can't be written.
    pub fn open(output: &Path, done: usize) -> Result<Self> {
        let path = output.join(METRICS);
        let board = output.join(TENSORBOARD);
        fs::create_dir_all(&board).with_context(|| format!("can't create {}", board.display()))?;
        cut(&path, done).with_context(|| format!("can't write {}", path.display()))?;
        let file = OpenOptions::new().append(true).create(true).open(&path);
        let file = file.with_context(|| format!("can't write {}", path.display()))?;
        let mut csv = csv::WriterBuilder::new().has_headers(false).from_writer(file);
        if done == 0 {
            csv.write_record(HEADER)?;
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        // A restarted worker's file must not take the place of the one before it, however soon it comes.
        static FILES: AtomicUsize = AtomicUsize::new(0);
        let pid = std::process::id();
        let file = loop {
            let number = FILES.fetch_add(1, Relaxed);
            let name = board.join(format!("events.out.tfevents.{}.autofit.{pid}.{number}", now.as_secs()));
            match File::create_new(&name) {
                // Containers that share a folder may share process ids, too.
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                file => break file.with_context(|| format!("can't write {}", name.display()))?,
            }
        };
        Ok(Metrics { csv, board: EventFile::new(file)?, epoch: 0.0 })
    }

    /// Writes down a step or an evaluation.
    ///
    /// # Errors
    /// If a file can't be written.
    pub fn add(&mut self, event: &Event) -> Result<()> {
        match event {
            Event::Step { step, epoch, loss, rate, gradient_norm, loss_scale, seconds, rows, .. } => {
                self.epoch = *epoch;
                let speed = *rows as f64 / seconds.max(1e-9);
                let scale = loss_scale.map(|scale| ("train/loss_scale", scale));
                let values = [
                    ("train/loss", *loss),
                    ("train/learning_rate", *rate),
                    ("train/gradient_norm", *gradient_norm),
                    ("train/samples_per_second", speed),
                ];
                let values: Vec<(&str, f64)> = values.into_iter().chain(scale).collect();
                self.board.scalars(*step, &values)?;
                let known = [Some(*epoch), Some(*loss), Some(*rate), Some(*gradient_norm), *loss_scale, Some(speed)];
                self.row(*step, known.into_iter().chain([None; 5]))
            }
            Event::Evaluated { step, scores } => {
                let values = evaluation(scores);
                let known: Vec<(&str, f64)> = values.iter().filter_map(|(name, v)| Some((*name, (*v)?))).collect();
                self.board.scalars(*step, &known)?;
                let epoch = Some(self.epoch);
                self.row(*step, [epoch].into_iter().chain([None; 5]).chain(values.map(|(_, value)| value)))
            }
            _ => Ok(()),
        }
    }

    fn row(&mut self, step: usize, values: impl Iterator<Item = Option<f64>>) -> Result<()> {
        let cell = |value: Option<f64>| value.map_or(String::new(), |value| value.to_string());
        self.csv.write_record([step.to_string()].into_iter().chain(values.map(cell)))?;
        self.csv.flush()?;
        Ok(())
    }
}

fn evaluation(scores: &Scores) -> [(&'static str, Option<f64>); 5] {
    let [accuracy, macro_f1, pearson, spearman] = match &scores.quality {
        Quality::Classification(q) => [Some(q.accuracy), Some(q.macro_f1), None, None],
        Quality::Regression(q) => [None, None, Some(q.pearson), Some(q.spearman)],
    };
    [
        ("eval/loss", Some(scores.loss)),
        ("eval/accuracy", accuracy),
        ("eval/macro_f1", macro_f1),
        ("eval/pearson", pearson),
        ("eval/spearman", spearman),
    ]
}

/// Leaves the rows up to step `done` in a metrics file; removes it if that is 0. A last line that was cut off goes, too.
fn cut(path: &Path, done: usize) -> Result<()> {
    if done == 0 || !path.exists() {
        return match fs::remove_file(path) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(error.into()),
            _ => Ok(()),
        };
    }
    let text = fs::read_to_string(path)?;
    let kept = text.split_inclusive('\n').enumerate().filter(|(number, line)| {
        let step = line.split(',').next().and_then(|cell| cell.parse::<usize>().ok());
        line.ends_with('\n') && (*number == 0 || step.is_some_and(|step| step <= done))
    });
    let kept: String = kept.map(|(_, line)| line).collect();
    files::write_whole(path, &kept)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(step: usize) -> Event {
        Event::Step {
            step,
            epoch: 0.5,
            loss: 0.25,
            rate: 1e-5,
            gradient_norm: 2.0,
            loss_scale: None,
            updated: true,
            seconds: 0.5,
            rows: 8,
        }
    }

    #[test]
    fn steps_that_will_be_done_again_are_taken_out() -> Result<()> {
        let folder = tempfile::tempdir()?;
        let mut metrics = Metrics::open(folder.path(), 0)?;
        for number in 1..=4 {
            metrics.add(&step(number))?;
        }
        drop(metrics);
        let path = folder.path().join(METRICS);
        let mut text = fs::read_to_string(&path)?;
        text += "5,0.1";
        fs::write(&path, text)?;
        let mut metrics = Metrics::open(folder.path(), 2)?;
        metrics.add(&step(3))?;
        drop(metrics);
        let text = fs::read_to_string(&path)?;
        let steps: Vec<&str> = text.lines().filter_map(|line| line.split(',').next()).collect();
        assert_eq!(steps, ["step", "1", "2", "3"]);
        assert_eq!(text.lines().nth(1), Some("1,0.5,0.25,0.00001,2,,16,,,,,"));
        assert_eq!(fs::read_dir(folder.path().join(TENSORBOARD))?.count(), 2);
        Ok(())
    }
}
