//! Predictions for every row of a file of any length, in memory that does not grow with it.
//!
//! Rows are read a window at a time; inside a window, rows of similar length go through the model together, and the
//! results come out in the order of the file, as lines of CSV. Whoever asked for them writes them: where to, and what
//! becomes of a file that was not finished, is not this room's business.

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use burn::tensor::Device;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{evaluate, save};
use crate::data::source::{self, Columns, Example, Stream};
use crate::data::tokenize::{Encoded, Tokenizer};
use crate::model::source::ModelFiles;
use crate::model::{ModelConfig, weights};
use crate::plan::Precision;
use crate::plan::text::csv_cell;
use crate::probe::protocol::ModelSource;
pub use crate::probe::protocol::prediction::{Lines, Summary};

/// Batches in a window: enough for rows of similar length to find each other.
const WINDOW_BATCHES: usize = 16;

/// Rows in a window, unless one batch has more.
const WINDOW_ROWS: usize = 1 << 16;

/// Bytes of CSV that are told at a time. The wire takes a line of a few megabytes, and escapes can make six bytes of one.
const PIECE_BYTES: usize = 1 << 20;

/// Rows, and bytes of text, that are held before they become token ids.
const BLOCK_ROWS: usize = 256;
const BLOCK_BYTES: usize = 1 << 20;

/// What to predict.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PredictSpec {
    /// Folder of a sequence classifier, as `run` or Hugging Face saves it.
    pub model: PathBuf,
    /// CSV, TSV or JSONL file of texts.
    pub data: PathBuf,
    /// Column of the text.
    pub text: String,
    /// Column of a second text.
    pub pair: Option<String>,
    /// Rows that go through the model together.
    pub batch: usize,
    /// Where rows are truncated, in tokens; if not given, where training truncated them, else as long as the model takes.
    pub max_length: Option<usize>,
}

/// A model and a file that have been found to belong together; no tensor is held.
pub struct Prepared {
    files: ModelFiles,
    form: Form,
    tokenizer: Tokenizer,
    stream: Stream,
    /// Bytes of the file.
    size: u64,
}

/// Opens model and data.
///
/// # Errors
/// If the folder is no classifier of a known family, or the file can't be read; names the file.
pub fn prepare(spec: &PredictSpec) -> Result<Prepared> {
    ensure!(spec.batch > 0, "--batch 0: at least 1 row is needed");
    let files = ModelFiles::open(&ModelSource::Folder(spec.model.clone()))?;
    let longest = files.config.max_length();
    let max_length = spec.max_length.or(save::max_length(&files)).unwrap_or(longest);
    ensure!(
        (1..=longest).contains(&max_length),
        "--max-length {max_length}: the model takes rows of 1 to {longest} tokens"
    );
    let form = Form::of(&files)?;
    let tokenizer = Tokenizer::from_folder(&spec.model, max_length)?;
    tokenizer.check_model(files.config.vocab_size, files.config.token_types, spec.pair.is_some())?;
    let columns = Columns { text: spec.text.clone(), pair: spec.pair.clone(), label: None };
    let stream = source::stream(&spec.data, &columns)?;
    let size = std::fs::metadata(&spec.data).with_context(|| format!("can't read {}", spec.data.display()))?.len();
    Ok(Prepared { files, form, tokenizer, stream, size })
}

/// Predicts every row and hands the lines to `tell` in the order of the file.
///
/// # Errors
/// If the weights can't be loaded or have no trained head, a record is malformed, or the model gives no finite number;
/// names file and line.
pub fn predict(
    spec: &PredictSpec,
    prepared: Prepared,
    device: &Device,
    peak: &dyn Fn() -> u64,
    tell: &mut dyn FnMut(Lines),
) -> Result<Summary> {
    let Prepared { files, form, tokenizer, mut stream, size } = prepared;
    let config = &files.config;
    let (model, report) = files.load(config, 0, device)?;
    ensure!(
        report.initialised.is_empty(),
        "{} has no trained classification head (there is no {}): fine-tune it first, with `autofit run`",
        spec.model.display(),
        weights::listed(&report.initialised)
    );
    let started = Instant::now();
    let (mut rows, mut truncated) = (0, 0);
    let mut scratch = evaluate::Scratch::default();
    tell_pieces(form.header(config)?, rows, 0.0, tell);
    loop {
        let window = Window::read(&mut stream, &tokenizer, spec)?;
        if window.rows.is_empty() {
            break;
        }
        let outputs =
            evaluate::outputs(&model, config, device, &window.rows, spec.batch, Precision::Fp32, &mut scratch)?;
        check_finite(spec, config, outputs, &window.lines)?;
        truncated += window.rows.iter().filter(|row| row.truncated).count() as u64;
        let share = stream.bytes().map_or(1.0, |bytes| bytes as f64 / size.max(1) as f64).min(1.0);
        // Many classes make long lines: no more rows become text at a time than fill a piece.
        let at_a_time = (PIECE_BYTES / (24 * config.num_labels())).max(1) * config.num_labels();
        for outputs in outputs.chunks(at_a_time) {
            let csv = form.lines(config, rows, outputs)?;
            rows += (outputs.len() / config.num_labels()) as u64;
            tell_pieces(csv, rows, share, tell);
        }
    }
    let seconds = started.elapsed().as_secs_f64();
    Ok(Summary { rows, truncated, max_length: tokenizer.max_length(), seconds, peak_bytes: peak() })
}

/// Tells text in as many pieces as the wire needs.
fn tell_pieces(mut csv: String, rows: u64, share: f64, tell: &mut dyn FnMut(Lines)) {
    while csv.len() > PIECE_BYTES {
        let rest = csv.split_off(csv.floor_char_boundary(PIECE_BYTES));
        tell(Lines { csv: std::mem::replace(&mut csv, rest), rows, share });
    }
    tell(Lines { csv, rows, share });
}

/// Makes sure that the model gave numbers for every row; `lines` says where each stands in the file.
fn check_finite(spec: &PredictSpec, config: &ModelConfig, outputs: &[f32], lines: &[u64]) -> Result<()> {
    let mut rows = outputs.chunks_exact(config.num_labels()).zip(lines);
    match rows.find(|(row, _)| row.iter().any(|value| !value.is_finite())) {
        Some((_, line)) => {
            bail!("{}, line {line}: the model gives no finite number for this row", spec.data.display())
        }
        None => Ok(()),
    }
}

/// Rows that are held at a time.
#[derive(Default)]
struct Window {
    rows: Vec<Encoded>,
    /// Where each stands in the file.
    lines: Vec<u64>,
}

impl Window {
    fn read(stream: &mut Stream, tokenizer: &Tokenizer, spec: &PredictSpec) -> Result<Self> {
        let wanted = spec.batch.saturating_mul(WINDOW_BATCHES).min(WINDOW_ROWS.max(spec.batch));
        let mut window = Window::default();
        while window.rows.len() < wanted {
            let texts = block(stream, BLOCK_ROWS.min(wanted - window.rows.len()))?;
            if texts.is_empty() {
                break;
            }
            let rows = tokenizer.encode_all(&texts).with_context(|| spec.data.display().to_string())?;
            window.rows.extend(rows);
            window.lines.extend(texts.iter().map(|text| text.line));
        }
        Ok(window)
    }
}

/// The next rows' texts, not more than `wanted`, and no more once they are long.
fn block(stream: &mut Stream, wanted: usize) -> Result<Vec<Example>> {
    let (mut texts, mut bytes) = (Vec::new(), 0);
    while texts.len() < wanted && bytes < BLOCK_BYTES {
        let Some(example) = stream.next().transpose()? else { break };
        bytes += example.text.len() + example.pair.as_ref().map_or(0, String::len);
        texts.push(example);
    }
    Ok(texts)
}

/// What the outputs of a model mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    /// One class of several, by softmax.
    Classes,
    /// One number.
    Number,
}

impl Form {
    /// From `problem_type` in `config.json` where it is there, as `transformers` reads it; else one output is a number.
    fn of(files: &ModelFiles) -> Result<Self> {
        let kind = files.original.as_ref().and_then(|json| json.get("problem_type")).and_then(Value::as_str);
        let outputs = files.config.num_labels();
        match (kind, outputs) {
            (Some("multi_label_classification"), _) => {
                bail!("problem_type in config.json is \"multi_label_classification\": autofit predicts one class a row")
            }
            (_, 0) => bail!("config.json names no classes (id2label is empty)"),
            (Some("regression") | None, 1) => Ok(Form::Number),
            (Some("regression"), _) => {
                bail!("problem_type in config.json is \"regression\" with {outputs} outputs: autofit predicts one")
            }
            _ => Ok(Form::Classes),
        }
    }

    fn header(self, config: &ModelConfig) -> Result<String> {
        let names: Vec<String> = match self {
            Form::Number => vec!["row".into(), "prediction".into()],
            Form::Classes => ["row", "label", "score"]
                .map(String::from)
                .into_iter()
                .chain(config.labels.iter().map(|label| format!("prob_{label}")))
                .collect(),
        };
        csv_text(std::iter::once(names))
    }

    /// Lines of the rows behind the first `before`, from their logits, which are finite.
    fn lines(self, config: &ModelConfig, before: u64, logits: &[f32]) -> Result<String> {
        let rows = logits.chunks_exact(config.num_labels());
        csv_text((before + 1..).zip(rows).map(|(number, row)| match self {
            Form::Number => vec![number.to_string(), figure(row[0])],
            Form::Classes => {
                let probabilities = softmax(row);
                let best = (0..row.len()).fold(0, |best, i| if row[i] > row[best] { i } else { best });
                [number.to_string(), csv_cell(&config.labels[best]).into_owned(), figure(probabilities[best])]
                    .into_iter()
                    .chain(probabilities.iter().map(|&p| figure(p)))
                    .collect()
            }
        }))
    }
}

/// The shortest decimal that reads back as the same number.
fn figure(value: f32) -> String {
    format!("{value:?}")
}

fn softmax(logits: &[f32]) -> Vec<f32> {
    let largest = logits.iter().fold(f64::NEG_INFINITY, |m, &v| m.max(f64::from(v)));
    let powers: Vec<f64> = logits.iter().map(|&v| (f64::from(v) - largest).exp()).collect();
    let total: f64 = powers.iter().sum();
    powers.iter().map(|power| (power / total) as f32).collect()
}

fn csv_text(records: impl Iterator<Item = Vec<String>>) -> Result<String> {
    let mut writer = csv::Writer::from_writer(Vec::new());
    for record in records {
        writer.write_record(&record)?;
    }
    Ok(String::from_utf8(writer.into_inner().context("writing CSV in memory")?)?)
}

/// The folder of a model to predict with.
///
/// # Errors
/// If it is none.
pub fn folder(path: &Path) -> Result<PathBuf> {
    ensure!(
        path.is_dir(),
        "--model {}: there is no such folder; give the one that `autofit run` wrote, or a Hugging Face classifier's",
        path.display()
    );
    Ok(path.to_path_buf())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(json: Value) -> ModelFiles {
        let mut base = serde_json::json!({"model_type": "bert", "vocab_size": 100, "hidden_size": 16,
            "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 32});
        let add = json.as_object().cloned().unwrap_or_default();
        add.into_iter().for_each(|(key, value)| base[key] = value);
        ModelFiles {
            config: ModelConfig::from_json(&base).expect("a configuration"),
            folder: None,
            original: Some(base),
        }
    }

    #[test]
    fn one_output_is_a_number_unless_the_model_says_otherwise() {
        let one = serde_json::json!({"id2label": {"0": "x"}});
        assert_eq!(Form::of(&files(one)).expect("a form"), Form::Number);
        let said = serde_json::json!({"id2label": {"0": "x"}, "problem_type": "single_label_classification"});
        assert_eq!(Form::of(&files(said)).expect("a form"), Form::Classes);
        assert_eq!(Form::of(&files(serde_json::json!({}))).expect("a form"), Form::Classes);
        for kind in ["multi_label_classification", "regression"] {
            let error = Form::of(&files(serde_json::json!({"problem_type": kind}))).expect_err(kind);
            assert!(error.to_string().contains(kind), "{error}");
        }
    }

    #[test]
    fn labels_are_quoted_and_figures_read_back() {
        let config = files(serde_json::json!({"id2label": {"0": "a,b", "1": "say \"no\""}})).config;
        let header = Form::Classes.header(&config).expect("text");
        assert_eq!(header, "row,label,score,\"prob_a,b\",\"prob_say \"\"no\"\"\"\n");
        let lines = Form::Classes.lines(&config, 7, &[0.0, 0.0, -50.0, 50.0]).expect("text");
        assert_eq!(lines, "8,\"a,b\",0.5,0.5,0.5\n9,\"say \"\"no\"\"\",1.0,3.8e-44,1.0\n");
        let spec = PredictSpec {
            model: "m".into(),
            data: "rows.csv".into(),
            text: "text".into(),
            pair: None,
            batch: 2,
            max_length: None,
        };
        let error = check_finite(&spec, &config, &[0.0, 0.0, f32::NAN, 1.0], &[2, 9]).expect_err("not finite");
        assert!(error.to_string().starts_with("rows.csv, line 9: "), "{error}");
    }

    #[test]
    fn long_texts_come_in_pieces_that_make_the_whole() {
        let text = "é\u{1}".repeat(PIECE_BYTES);
        let mut pieces = Vec::new();
        tell_pieces(text.clone(), 3, 0.5, &mut |lines| pieces.push(lines));
        assert!(pieces.len() > 2 && pieces.iter().all(|piece| piece.csv.len() <= PIECE_BYTES && piece.rows == 3));
        assert!(pieces.iter().map(|piece| piece.csv.as_str()).collect::<String>() == text);
    }
}
