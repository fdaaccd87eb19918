//! Forward passes without gradients, and how good they were.

use anyhow::Result;
use burn::module::Module;
use burn::tensor::Tensor;
use serde::{Deserialize, Serialize};

use super::batch::MicroBatch;
use super::metrics;
use super::step::Learner;
use crate::data::batch::PadTo;
use crate::data::corpus::{Corpus, Targets};
use crate::model::pass::{Inputs, Pass};
use crate::model::{Classifier, ModelConfig};
use crate::plan::Precision;

/// Logits `[rows, classes]` in 32 bits, without dropout and without a tape.
pub fn logits(model: &Classifier, config: &ModelConfig, inputs: &Inputs, precision: Precision) -> Tensor<2> {
    model.valid().forward(inputs, config, Pass::evaluation(precision))
}

/// How well a model did on held-out rows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Scores {
    /// Rows scored.
    pub rows: usize,
    /// Mean loss, without smoothing and class weights.
    pub loss: f64,
    /// What the targets allow to be said.
    pub quality: Quality,
}

/// Quality by kind of target.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Quality {
    /// Classes.
    Classification(metrics::Classification),
    /// Numbers.
    Regression(metrics::Regression),
}

impl Scores {
    /// The one number to compare runs by, higher is better: accuracy, or Pearson's correlation.
    pub fn headline(&self) -> f64 {
        match &self.quality {
            Quality::Classification(scores) => scores.accuracy,
            Quality::Regression(scores) => scores.pearson,
        }
    }
}

/// Buffers that evaluation needs for every row that it scores. They live on the host and are made before memory is
/// counted: their size is the data's, not the configuration's.
#[derive(Debug, Default)]
pub struct Scratch {
    by_length: Vec<usize>,
    outputs: Vec<f32>,
}

impl Scratch {
    /// For so many rows and outputs of the head.
    pub fn new(rows: usize, width: usize) -> Self {
        Scratch { by_length: Vec::with_capacity(rows), outputs: vec![0.0; rows * width] }
    }
}

/// Scores a model on rows, `batch` at a time. Rows of similar length go together, so that little is padded.
///
/// # Errors
/// If a row does not fit the model.
pub fn score(learner: &Learner, corpus: &Corpus, batch: usize, scratch: &mut Scratch) -> Result<Scores> {
    let Scratch { by_length, outputs } = scratch;
    by_length.clear();
    by_length.extend(0..corpus.len());
    // Unstable: a stable sort would take a buffer of its own.
    by_length.sort_unstable_by_key(|&row| (corpus.rows[row].ids.len(), row));
    let width = learner.config.num_labels();
    outputs.resize(corpus.len() * width, 0.0);
    for rows in by_length.chunks(batch.max(1)) {
        let encoded: Vec<_> = rows.iter().map(|&row| &corpus.rows[row]).collect();
        let targets = corpus.targets.select(rows);
        let micro = MicroBatch::new(&encoded, targets, PadTo::Longest, &learner.config, learner.device())?;
        let logits = logits(learner.model(), &learner.config, &micro.inputs, learner.settings.knobs.precision);
        let values: Vec<f32> = logits.into_data().iter::<f32>().collect();
        for (&row, values) in rows.iter().zip(values.chunks_exact(width)) {
            outputs[row * width..][..width].copy_from_slice(values);
        }
    }
    Ok(match &corpus.targets {
        Targets::Classes(classes) => {
            let (loss, quality) = metrics::classification(outputs, width, classes);
            Scores { rows: corpus.len(), loss, quality: Quality::Classification(quality) }
        }
        Targets::Values(values) => {
            let (loss, quality) = metrics::regression(outputs, values);
            Scores { rows: corpus.len(), loss, quality: Quality::Regression(quality) }
        }
    })
}
