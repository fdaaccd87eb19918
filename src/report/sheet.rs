//! What a report shows: a study's files, read and put in order. Knows studies that are unfinished or found nothing.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use csv::ReaderBuilder;

use crate::plan::{Knobs, Outcome, Precision};
use crate::study::best::Best;
use crate::study::identity::Identity;
use crate::study::journal::{BEST, Journal, STUDY, TRIALS};
use crate::study::trial::{Purpose, Trial};

/// A study as it lies on the disk.
#[derive(Clone, Debug)]
pub struct Sheet {
    /// Where it lies.
    pub folder: PathBuf,
    /// Every trial, in the order in which they were run.
    pub rows: Vec<Row>,
    /// The answer, if there is one.
    pub best: Option<Best>,
    /// Whose trials these are, if `study.toml` is there.
    pub identity: Option<Identity>,
}

/// A trial with what was derived from it.
#[derive(Clone, Debug)]
pub struct Row {
    /// The trial.
    pub trial: Trial,
    /// Forward/backward passes per optimizer step.
    pub accumulation: Option<usize>,
    /// Seconds of one optimizer step, where measured.
    pub step_seconds: Option<f64>,
    /// Samples per second of an effective batch, where measured.
    pub samples_per_second: Option<f64>,
}

impl Row {
    /// Bytes at the peak, where the trial fit.
    pub fn peak(&self) -> Option<u64> {
        self.trial.attempt.measurement.as_ref().map(|m| m.peak_bytes)
    }

    /// The bytes that are known to be too little, where the trial ran out of memory.
    pub fn refused(&self, cap: Option<u64>) -> Option<u64> {
        if self.trial.attempt.outcome != Outcome::Oom {
            return None;
        }
        let oom = self.trial.attempt.oom.as_ref();
        let asked = oom.and_then(|oom| oom.live?.checked_add(oom.requested?));
        asked.max(cap).or(oom.and_then(|oom| oom.cap))
    }

    /// Whether a probe was run at all.
    pub fn ran(&self) -> bool {
        self.trial.attempt.outcome != Outcome::Pruned && self.trial.purpose != Purpose::Prune
    }
}

impl Sheet {
    /// Reads a study's folder. A study may still be running: nothing is locked or changed.
    ///
    /// # Errors
    /// If there is no journal, or one of its files is damaged.
    pub fn read(folder: &Path) -> Result<Sheet> {
        ensure!(folder.is_dir(), "{} is no folder: give the folder that autofit probe wrote", folder.display());
        let trials = Journal::read(folder)?;
        let derived = derived(&folder.join(TRIALS))?;
        let rows = trials
            .into_iter()
            .enumerate()
            .map(|(at, trial)| {
                let (accumulation, step_seconds, samples_per_second) = derived.get(at).copied().unwrap_or_default();
                Row { trial, accumulation, step_seconds, samples_per_second }
            })
            .collect();
        let best = folder.join(BEST);
        let best = if best.exists() { Some(Best::read(&best)?) } else { None };
        let study = folder.join(STUDY);
        let identity = match std::fs::read_to_string(&study) {
            Ok(text) => Some(toml::from_str(&text).with_context(|| format!("{} is damaged", study.display()))?),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
            Err(error) => return Err(error).with_context(|| format!("reading {}", study.display())),
        };
        Ok(Sheet { folder: folder.to_path_buf(), rows, best, identity })
    }

    /// Bytes that the workload may use.
    pub fn cap(&self) -> Option<u64> {
        let own = self.identity.as_ref().and_then(|identity| identity.cap_bytes);
        own.or_else(|| self.best.as_ref().and_then(|best| best.measured.cap_bytes))
    }

    /// Samples per optimizer step.
    pub fn effective_batch(&self) -> Option<usize> {
        let own = self.identity.as_ref().map(|identity| identity.effective_batch);
        own.or_else(|| self.best.as_ref().map(|best| best.config.effective_batch))
    }

    /// Name of the model.
    pub fn model(&self) -> String {
        let own = self.identity.as_ref().map(|identity| identity.model.clone());
        let full = own.or_else(|| self.best.as_ref().map(|best| best.study.model.clone()));
        let full = full.unwrap_or_else(|| "a model".into());
        Path::new(&full).file_name().map_or(full.clone(), |name| name.to_string_lossy().into_owned())
    }

    /// Encoder layers: known once something has fit.
    pub fn layers(&self) -> Option<usize> {
        self.rows.iter().find_map(|row| Some(row.trial.attempt.measurement.as_ref()?.layers)).filter(|&l| l > 0)
    }

    /// Encoder layers, or the most that any trial recomputed.
    pub fn layers_or_guess(&self) -> usize {
        let most = self.rows.iter().map(|row| row.trial.knobs.checkpoint_layers).max();
        self.layers().or(most).unwrap_or(0)
    }

    /// The combination of the answer.
    pub fn winner(&self) -> Option<Knobs> {
        self.best.as_ref().map(|best| best.config.knobs())
    }

    /// The probe that speaks for every combination that was run, in the order in which they were: see [`speaking`].
    pub fn latest(&self) -> Vec<&Row> {
        let ran = self.rows.iter().filter(|row| row.ran());
        speaking(ran, |row| &row.trial)
    }

    /// Samples per second of a combination over all its probes, by their mean step time; the answer's is as the study
    /// pooled it.
    pub fn speed(&self, knobs: &Knobs) -> Option<f64> {
        if let Some(best) = self.best.as_ref().filter(|best| best.config.knobs() == *knobs) {
            return Some(best.measured.samples_per_second);
        }
        let own = self.rows.iter().filter(|row| row.trial.knobs == *knobs);
        let speeds: Vec<f64> = own.filter_map(|row| row.samples_per_second).filter(|s| *s > 0.0).collect();
        let seconds: f64 = speeds.iter().map(|speed| 1.0 / speed).sum();
        (!speeds.is_empty()).then(|| speeds.len() as f64 / seconds)
    }

    /// Every trial: the answer's first, then by speed, then what did not fit in the order of its trial.
    pub fn ranked(&self) -> Vec<&Row> {
        let winner = self.winner();
        let mut rows: Vec<&Row> = self.rows.iter().collect();
        let key = |row: &Row| {
            let fits = row.trial.attempt.outcome == Outcome::Fit;
            (Some(row.trial.knobs) != winner, !fits, !row.ran())
        };
        rows.sort_by(|a, b| {
            let speed = |row: &Row| row.samples_per_second.filter(|s| s.is_finite()).unwrap_or(-1.0);
            key(a).cmp(&key(b)).then(speed(b).total_cmp(&speed(a))).then(a.trial.number.cmp(&b.trial.number))
        });
        rows
    }

    /// What someone would do without a tuner: full precision, nothing recomputed, the largest micro-batch that fits.
    pub fn naive(&self) -> Option<&Row> {
        let plain = |row: &&Row| {
            let knobs = &row.trial.knobs;
            knobs.precision == Precision::Fp32 && knobs.checkpoint_layers == 0 && row.samples_per_second.is_some()
        };
        self.latest().into_iter().filter(plain).max_by_key(|row| row.trial.knobs.micro_batch)
    }

    /// The fastest combination that fit: the best so far where there is no answer.
    pub fn fastest(&self) -> Option<&Row> {
        let fit = |row: &&Row| row.trial.attempt.outcome == Outcome::Fit && row.samples_per_second.is_some();
        let speed = |row: &Row| row.samples_per_second.unwrap_or(0.0);
        self.latest().into_iter().filter(fit).max_by(|a, b| speed(a).total_cmp(&speed(b)))
    }
}

/// Of several probes of one combination the one that speaks for it: the last, which is the longest, of those that say
/// whether it fits. What failed for another reason, or was interrupted, speaks only where nothing else does.
pub fn speaking<'a, T>(rows: impl Iterator<Item = &'a T>, trial: impl Fn(&T) -> &Trial) -> Vec<&'a T> {
    let tells = |row: &T| matches!(trial(row).attempt.outcome, Outcome::Fit | Outcome::Oom);
    let mut spoken: Vec<&T> = Vec::new();
    for row in rows {
        match spoken.iter_mut().find(|other| trial(other).knobs == trial(row).knobs) {
            Some(other) if tells(row) || !tells(other) => *other = row,
            Some(_) => {}
            None => spoken.push(row),
        }
    }
    spoken.sort_by_key(|row| trial(row).number);
    spoken
}

/// Accumulation, seconds of a step and samples per second.
type DerivedCells = (Option<usize>, Option<f64>, Option<f64>);

/// The derived columns of `trials.csv`, which a replay has no use for. Blank and broken cells are unknown.
fn derived(path: &Path) -> Result<Vec<DerivedCells>> {
    let mut reader = ReaderBuilder::new().flexible(true).from_path(path)?;
    let header = reader.headers()?.clone();
    let column = |name: &str| header.iter().position(|cell| cell == name);
    let (accumulation, seconds, speed) = (column("accumulation"), column("step_seconds"), column("samples_per_second"));
    let mut out = Vec::new();
    for record in reader.byte_records() {
        let record = record.with_context(|| format!("reading {}", path.display()))?;
        let cell = |at: Option<usize>| at.and_then(|at| std::str::from_utf8(record.get(at)?).ok());
        let number = |at| cell(at).and_then(|text| text.parse::<f64>().ok()).filter(|v| v.is_finite());
        out.push((cell(accumulation).and_then(|text| text.parse().ok()), number(seconds), number(speed)));
    }
    Ok(out)
}
