//! What a snapshot says of a run beside its tensors, and whether it is one of this run.

use anyhow::{Result, bail, ensure};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::evaluate::Scores;
use super::spec::TrainSpec;
use super::step::LossScale;
use crate::plan::float;

/// A run between two steps.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct State {
    /// What the run was told.
    pub spec: TrainSpec,
    /// Fingerprint of its rows.
    pub rows: u64,
    /// Optimizer steps in all.
    pub total_steps: usize,
    /// Optimizer steps done.
    pub step: usize,
    /// The loss scale, in fp16.
    pub loss_scale: Option<LossScale>,
    /// Time and loss so far.
    pub clock: Clock,
    /// The last scores.
    pub scores: Option<Scores>,
    /// The best scores, where the best model is kept.
    pub best: Option<Best>,
    /// Evaluations since then.
    pub stale: usize,
    /// The micro-batch in use: lowered where memory ran short.
    pub micro_batch: usize,
    /// The layers recomputed: more where memory ran short.
    pub checkpoint_layers: usize,
}

/// The best model so far.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Best {
    /// Its step.
    pub step: usize,
    /// How good it was.
    pub scores: Scores,
}

/// Time and loss so far.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Clock {
    /// Seconds of training, evaluation aside.
    #[serde(with = "float")]
    pub seconds: f64,
    /// Rows trained on.
    pub rows: usize,
    /// Losses of the last steps: as many as [`Clock::recent_loss`] looks at. A step that fp16 skipped may have one that is
    /// not finite.
    #[serde(with = "float::list")]
    pub losses: Vec<f64>,
}

impl Clock {
    /// Takes note of a step.
    pub fn add(&mut self, seconds: f64, rows: usize, loss: f64, total_steps: usize) {
        self.seconds += seconds;
        self.rows += rows;
        if self.losses.len() >= total_steps.div_ceil(10).max(1) {
            self.losses.remove(0);
        }
        self.losses.push(loss);
    }

    /// Mean loss over those of the last tenth of the steps that have a finite one; `None` if none has.
    pub fn recent_loss(&self) -> Option<f64> {
        let finite = || self.losses.iter().filter(|loss| loss.is_finite());
        (finite().count() > 0).then(|| finite().sum::<f64>() / finite().count() as f64)
    }
}

/// What may be different when a run goes on: nothing that changes what is learned.
const FREE: [&str; 10] = [
    "model",
    "data.train",
    "data.evaluation",
    "knobs.micro_batch",
    "knobs.checkpoint_layers",
    "proven_length",
    "output",
    "saving",
    "start",
    "hyper.evaluate_every",
];

/// Makes sure that a snapshot is one of this run.
///
/// # Errors
/// If rows or settings differ, naming those that do.
pub fn check(state: &State, spec: &TrainSpec, rows: u64) -> Result<()> {
    let mut differences = Vec::new();
    // Through text, as the other came: a number that was read back may differ in its last digit.
    let now: Value = serde_json::from_str(&serde_json::to_string(spec)?)?;
    compare("", &serde_json::to_value(&state.spec)?, &now, &mut differences);
    if !differences.is_empty() {
        bail!(
            "the run to resume had other settings: {}. Use the same ones, or start anew with --overwrite",
            differences.join(", ")
        );
    }
    ensure!(
        state.rows == rows,
        "the rows to train on are not those of the run to resume: use the same data, or start anew with --overwrite"
    );
    Ok(())
}

fn compare(at: &str, old: &Value, new: &Value, differences: &mut Vec<String>) {
    if FREE.contains(&at) || old == new {
        return;
    }
    match (old, new) {
        (Value::Object(a), Value::Object(b)) => {
            let keys: std::collections::BTreeSet<&String> = a.keys().chain(b.keys()).collect();
            for key in keys {
                let path = if at.is_empty() { key.clone() } else { format!("{at}.{key}") };
                compare(&path, a.get(key).unwrap_or(&Value::Null), b.get(key).unwrap_or(&Value::Null), differences);
            }
        }
        _ => differences.push(format!("{at} was {old} and is {new}")),
    }
}
