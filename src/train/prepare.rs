//! Everything of a run that lives on the host: rows as token ids, the split, and buffers whose size the rows decide.
//! It is read before memory is counted.

use anyhow::{Context, Result, bail, ensure};

use super::evaluate;
use super::spec::{DataSpec, Evaluation, TrainSpec};
use crate::data::corpus::{Corpus, LabelSource};
use crate::data::source::{Columns, LabelKind};
use crate::data::split;
use crate::data::tokenize::Tokenizer;
use crate::model::ModelConfig;
use crate::model::source::ModelFiles;
use crate::probe::protocol::training::Event;

/// The rows of a run, tokenized and split.
pub struct Prepared {
    /// The model's files.
    pub files: ModelFiles,
    /// The model's shape, with the data's labels.
    pub config: ModelConfig,
    /// Rows to train on.
    pub train: Corpus,
    /// Rows to evaluate on.
    pub held_out: Option<Corpus>,
    /// Fingerprint of the rows to train on: a snapshot of other rows is refused.
    pub fingerprint: u64,
    /// The order of an epoch, refilled in place.
    pub(super) order: Vec<usize>,
    /// Buffers of evaluation.
    pub(super) scratch: evaluate::Scratch,
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
    tokenizer.check_model(files.config.vocab_size, files.config.token_types, spec.data.pair.is_some())?;
    let all = read(&spec.data, &files.config, &tokenizer)?;
    all.warnings.iter().for_each(|warning| tell(Event::Note(warning.clone())));
    let config = match &all.labels {
        Some(labels) => files.config.clone().with_labels(labels.names().to_vec()),
        None => files.config.clone().with_labels(vec!["LABEL_0".into()]),
    };
    let (train, held_out) = hold_out(spec, all, &tokenizer)?;
    ensure!(!train.is_empty(), "{} leaves no rows to train on", spec.data.train.display());
    let scratch = evaluate::Scratch::new(held_out.as_ref().map_or(0, Corpus::len), config.num_labels());
    let (fingerprint, order) = (train.fingerprint(), Vec::with_capacity(train.len()));
    Ok(Prepared { files, config, train, held_out, fingerprint, order, scratch })
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
