//! Forward passes without gradients, and how good they were.

use anyhow::Result;
use burn::module::Module;
use burn::tensor::{Device, Tensor};

use super::batch::MicroBatch;
use super::metrics;
use super::step::Learner;
use crate::data::batch::PadTo;
use crate::data::corpus::{Corpus, Targets};
use crate::data::tokenize::Encoded;
use crate::model::pass::{Inputs, Pass};
use crate::model::{Classifier, ModelConfig};
use crate::plan::Precision;
pub use crate::probe::protocol::training::{Quality, Scores};

/// Logits `[rows, classes]` in 32 bits, without dropout and without a tape.
pub fn logits(model: &Classifier, config: &ModelConfig, inputs: &Inputs, precision: Precision) -> Tensor<2> {
    model.valid().forward(inputs, config, Pass::evaluation(precision))
}

/// Buffers that evaluation needs for every row that it scores. They live on the host, and a run makes them before memory
/// is counted: their size is the data's, not the configuration's.
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

/// Logits of rows, `[rows, classes]` row-major, computed `batch` rows at a time. Rows of similar length go together,
/// so that little is padded.
///
/// # Errors
/// If a row does not fit the model.
pub fn outputs<'a>(
    model: &Classifier,
    config: &ModelConfig,
    device: &Device,
    rows: &[Encoded],
    batch: usize,
    precision: Precision,
    scratch: &'a mut Scratch,
) -> Result<&'a [f32]> {
    let Scratch { by_length, outputs } = scratch;
    by_length.clear();
    by_length.extend(0..rows.len());
    // Unstable: a stable sort would take a buffer of its own.
    by_length.sort_unstable_by_key(|&row| (rows[row].ids.len(), row));
    let width = config.num_labels();
    outputs.resize(rows.len() * width, 0.0);
    for numbers in by_length.chunks(batch.max(1)) {
        let encoded: Vec<_> = numbers.iter().map(|&row| &rows[row]).collect();
        // Nothing is held against these targets.
        let targets = Targets::Values(vec![0.0; numbers.len()]);
        let micro = MicroBatch::new(&encoded, targets, PadTo::Longest, config, device)?;
        let values: Vec<f32> = logits(model, config, &micro.inputs, precision).into_data().iter::<f32>().collect();
        for (&row, values) in numbers.iter().zip(values.chunks_exact(width)) {
            outputs[row * width..][..width].copy_from_slice(values);
        }
    }
    Ok(outputs)
}

/// Scores a model on rows, `batch` at a time.
///
/// # Errors
/// If a row does not fit the model.
pub fn score(learner: &Learner, corpus: &Corpus, batch: usize, scratch: &mut Scratch) -> Result<Scores> {
    let (config, precision) = (&learner.config, learner.settings.knobs.precision);
    let outputs = outputs(learner.model(), config, learner.device(), &corpus.rows, batch, precision, scratch)?;
    let (rows, labels) = (corpus.len(), config.labels.clone());
    Ok(match &corpus.targets {
        Targets::Classes(classes) => {
            let (loss, quality) = metrics::classification(outputs, config.num_labels(), classes);
            Scores { rows, loss, quality: Quality::Classification(quality), labels }
        }
        Targets::Values(values) => {
            let (loss, quality) = metrics::regression(outputs, values);
            Scores { rows, loss, quality: Quality::Regression(quality), labels }
        }
    })
}
