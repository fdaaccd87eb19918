//! What is to be trained, found out without a tensor: shapes of the model and of its rows.

use anyhow::{Context, Result, ensure};

use super::options::DataOptions;
use crate::data::corpus::{Corpus, LabelSource};
use crate::data::lengths::{self, Survey};
use crate::data::order;
use crate::data::source::{Columns, LabelKind};
use crate::data::tokenize::{Encoded, Tokenizer};
use crate::model::ModelConfig;
use crate::model::source::ModelFiles;
use crate::probe::protocol::{ModelSource, Shapes};
use crate::study::problem::SizeHint;

/// Optimizer steps of typical lengths that a probe is told about.
const TYPICAL_STEPS: usize = 16;

/// Tokens of rows that a probe is told about: about as many as a step of 256 rows of the usual lengths has, and 100 KB of
/// a job's line.
const SAMPLE_TOKENS: usize = 1 << 14;

/// A model with the rows that it will see.
#[derive(Clone, Debug)]
pub struct Workload {
    /// Where the model comes from.
    pub source: ModelSource,
    /// Its shape.
    pub config: ModelConfig,
    /// Outputs of the head.
    pub num_labels: usize,
    /// Where rows are truncated.
    pub max_length: usize,
    /// What a probe is told about the rows.
    pub shapes: Shapes,
    /// The rows' lengths, where there are rows.
    pub survey: Option<Survey>,
    /// Fingerprint of token ids and targets, where there are rows.
    pub fingerprint: Option<u64>,
    /// What is worth a word.
    pub notes: Vec<String>,
}

/// Where rows are truncated if nothing else is asked for.
pub const DEFAULT_LENGTH: usize = 128;

/// Outputs of the head where there is no data to count classes in.
const DEFAULT_LABELS: usize = 2;

impl Workload {
    /// Surveys a model and its data.
    ///
    /// # Errors
    /// If the model or the data can't be used, or rows may be longer than the model has positions.
    pub fn new(
        source: ModelSource,
        data: &DataOptions,
        max_length: Option<usize>,
        effective_batch: usize,
        seed: u64,
    ) -> Result<Self> {
        let files = ModelFiles::open(&source)?;
        let max_length = max_length.unwrap_or(DEFAULT_LENGTH.min(files.config.max_length()));
        ensure!(
            (1..=files.config.max_length()).contains(&max_length),
            "--max-length {max_length}: the model takes rows of 1 to {} tokens",
            files.config.max_length()
        );
        let mut workload = Workload {
            source,
            num_labels: DEFAULT_LABELS,
            max_length,
            shapes: Shapes { longest: max_length, typical: Vec::new(), distinct: None, rows: Vec::new() },
            survey: None,
            fingerprint: None,
            notes: Vec::new(),
            config: files.config.clone(),
        };
        if data.data.is_some() {
            workload.read(&files, data, effective_batch, seed)?;
        }
        Ok(workload)
    }

    fn read(&mut self, files: &ModelFiles, data: &DataOptions, effective_batch: usize, seed: u64) -> Result<()> {
        let Some(path) = &data.data else { return Ok(()) };
        let folder = files.folder.as_ref().context(
            "--data needs the model's tokenizer to know how long its rows are, and a preset has none: give --model the \
             folder of a pretrained model (config.json, model.safetensors, tokenizer.json), or leave --data away to \
             probe with synthetic rows",
        )?;
        let tokenizer = Tokenizer::from_folder(folder, self.max_length)?;
        let pair = data.text_pair_column.is_some();
        tokenizer.check_model(files.config.vocab_size, files.config.token_types, pair)?;
        let columns = Columns { text: data.text(), pair: data.text_pair_column.clone(), label: Some(data.label()) };
        let kind = if data.regression { LabelKind::Number } else { LabelKind::Auto };
        let labels = LabelSource::Own { kind, model: &files.config.labels };
        let corpus = Corpus::read(path, &columns, labels, &tokenizer)?;
        let survey = Survey::of(&corpus.rows);
        let order = order::epoch_order(corpus.len(), seed, 0);
        let typical: Vec<usize> =
            order.iter().take(effective_batch * TYPICAL_STEPS).map(|&row| survey.lengths[row]).collect();
        let even = typical.iter().all(|&length| length == survey.longest);
        self.num_labels = corpus.labels.as_ref().map_or(1, |labels| labels.len());
        self.shapes = Shapes {
            longest: survey.longest,
            typical: if even { Vec::new() } else { typical },
            distinct: Some(lengths::distinct_ids(&corpus.rows, effective_batch)),
            rows: sample(&corpus.rows, &order, survey.longest),
        };
        self.fingerprint = Some(corpus.fingerprint());
        self.notes = corpus.warnings;
        self.survey = Some(survey);
        Ok(())
    }

    /// The size of the model with its rows.
    pub fn size(&self) -> SizeHint {
        size_of(&self.config, self.num_labels, self.shapes.longest)
    }
}

/// Rows that stand for all: one of the longest, then others as training would draw them.
fn sample(rows: &[Encoded], order: &[usize], longest: usize) -> Vec<Vec<u32>> {
    let first = rows.iter().filter(|row| row.ids.len() == longest).take(1);
    let mut tokens = 0;
    let others = order.iter().map(|&row| &rows[row]).take_while(|row| {
        tokens += row.ids.len();
        tokens <= SAMPLE_TOKENS
    });
    first.chain(others).map(|row| row.ids.clone()).collect()
}

/// The size of any model at rows of `length` tokens.
pub fn size_of(config: &ModelConfig, num_labels: usize, length: usize) -> SizeHint {
    SizeHint {
        parameters: config.parameters(num_labels),
        hidden: config.hidden_size,
        layers: config.layers,
        intermediate: config.intermediate_size,
        heads: config.heads,
        vocab: config.vocab_size,
        positions: config.max_positions,
        length,
    }
}
