//! `autofit predict` from outside: the numbers, the order, the memory, and what is left behind when it fails.

mod common;

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use autofit::data::batch::PadTo;
use autofit::data::corpus::Targets;
use autofit::data::tokenize::Tokenizer;
use autofit::model::source::ModelFiles;
use autofit::model::{Classifier, ModelConfig};
use autofit::plan::Precision;
use autofit::probe::protocol::{Job, ModelSource, PROTOCOL, Report, Task};
use autofit::probe::{Executor, LocalProcess};
use autofit::train::batch::MicroBatch;
use autofit::train::predict::{PredictSpec, Summary};
use autofit::train::{evaluate, save};
use common::device;
use tempfile::TempDir;

fn model(family: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(family)
}

fn predict(folder: &Path, model: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_autofit"));
    command.current_dir(folder).arg("predict").arg("--model").arg(model).args(arguments).output().expect("starts")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Texts of many lengths, in no order, one of them empty and one with quotes and line breaks.
fn texts(count: usize) -> Vec<String> {
    let words = ["the", "film", "was", "good", "bad", "and", "not"];
    let sentence = |i: usize| -> String {
        (0..(i * 7) % 23).map(|k| words[(i + k * k) % words.len()]).collect::<Vec<_>>().join(" ")
    };
    let mut texts: Vec<String> = (0..count).map(sentence).collect();
    texts[1] = "good, \"very\ngood\"".into();
    texts
}

fn csv(path: &Path, header: &[&str], rows: impl Iterator<Item = Vec<String>>) {
    let mut writer = csv::Writer::from_path(path).expect("a file");
    writer.write_record(header).expect("written");
    rows.for_each(|row| writer.write_record(&row).expect("written"));
    writer.flush().expect("written");
}

fn one_column(path: &Path, count: usize) -> Vec<String> {
    let texts = texts(count);
    csv(path, &["text"], texts.iter().map(|text| vec![text.clone()]));
    texts
}

/// The table that was written: header and rows.
fn table(csv: &[u8]) -> (Vec<String>, Vec<Vec<String>>) {
    let mut reader = csv::Reader::from_reader(csv);
    let header = reader.headers().expect("a header").iter().map(String::from).collect();
    (header, reader.records().map(|row| row.expect("a row").iter().map(String::from).collect()).collect())
}

/// Logits of each row by itself.
fn logits(folder: &Path, rows: &[(String, Option<String>)]) -> (ModelConfig, Vec<Vec<f32>>) {
    let files = ModelFiles::open(&ModelSource::Folder(folder.into())).expect("a model");
    let (model, _) = files.load(&files.config, 1, &device()).expect("weights");
    let tokenizer = Tokenizer::from_folder(folder, files.config.max_length()).expect("a tokenizer");
    let one = |(text, pair): &(String, Option<String>)| {
        let row = tokenizer.encode(text, pair.as_deref()).expect("encoded");
        let batch = MicroBatch::new(&[&row], Targets::Values(vec![0.0]), PadTo::Longest, &files.config, &device());
        let logits = evaluate::logits(&model, &files.config, &batch.expect("fits").inputs, Precision::Fp32);
        logits.into_data().iter::<f32>().collect()
    };
    let all = rows.iter().map(one).collect();
    (files.config, all)
}

fn assert_probabilities(config: &ModelConfig, expected: &[Vec<f32>], written: &[u8]) {
    let (header, rows) = table(written);
    let names: Vec<String> = config.labels.iter().map(|label| format!("prob_{label}")).collect();
    assert_eq!(header[..3], ["row", "label", "score"]);
    assert_eq!(header[3..], names);
    assert_eq!(rows.len(), expected.len());
    for (number, (row, logits)) in rows.iter().zip(expected).enumerate() {
        assert_eq!(row[0], (number + 1).to_string());
        let largest = logits.iter().copied().max_by(f32::total_cmp).expect("logits");
        let powers: Vec<f32> = logits.iter().map(|v| (v - largest).exp()).collect();
        let total: f32 = powers.iter().sum();
        let probabilities: Vec<f32> = row[3..].iter().map(|p| p.parse().expect("a number")).collect();
        assert_eq!(probabilities.len(), powers.len());
        for (p, power) in probabilities.iter().zip(&powers) {
            assert!((p - power / total).abs() < 1e-5, "row {}: {p} is not {}", number + 1, power / total);
        }
        let best = probabilities.iter().copied().max_by(f32::total_cmp).expect("probabilities");
        assert_eq!(row[2].parse::<f32>().expect("a number"), best);
        let label = config.labels.iter().position(|label| *label == row[1]).expect("a label of the model");
        assert_eq!(probabilities[label], best);
    }
}

#[test]
fn every_row_gets_the_models_probabilities_in_the_order_of_the_file() {
    for family in ["tiny-bert", "tiny-distilbert", "tiny-roberta"] {
        let folder = tempfile::tempdir().expect("a folder");
        let rows: Vec<_> =
            one_column(&folder.path().join("in.csv"), 150).into_iter().map(|text| (text, None)).collect();
        let (config, expected) = logits(&model(family), &rows);
        // Windows of 48 rows: the last of four is not full.
        let arguments = ["--data", "in.csv", "--output", "out.csv", "--batch", "3"];
        let output = predict(folder.path(), &model(family), &arguments);
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        assert_eq!(text(&output.stdout), "");
        assert!(text(&output.stderr).contains("Predicted 150 rows"), "{}", text(&output.stderr));
        let written = std::fs::read(folder.path().join("out.csv")).expect("out.csv");
        assert_probabilities(&config, &expected, &written);
        assert_eq!(std::fs::read_dir(folder.path()).expect("the folder").count(), 2, "something was left behind");
        let piped = predict(folder.path(), &model(family), &["--data", "in.csv", "--batch", "3", "--quiet"]);
        assert!(piped.stdout == written, "{family}: standard output differs from the file");
        assert_eq!(text(&piped.stderr), "");
    }
}

#[test]
fn pairs_come_from_any_format() {
    let folder = tempfile::tempdir().expect("a folder");
    let (first, second) = (texts(40), texts(60).split_off(20));
    let pairs = || first.iter().zip(&second);
    csv(&folder.path().join("in.csv"), &["id", "b", "a"], pairs().map(|(a, b)| vec!["7".into(), b.clone(), a.clone()]));
    let lines: String = pairs().map(|(a, b)| format!("{}\n", serde_json::json!({"a": a, "b": b, "id": 7}))).collect();
    std::fs::write(folder.path().join("in.jsonl"), lines).expect("written");
    let rows: Vec<_> = pairs().map(|(a, b)| (a.clone(), Some(b.clone()))).collect();
    let (config, expected) = logits(&model("tiny-bert"), &rows);
    for data in ["in.csv", "in.jsonl"] {
        let arguments = ["--data", data, "--text-column", "a", "--text-pair-column", "b"];
        let output = predict(folder.path(), &model("tiny-bert"), &arguments);
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        assert_probabilities(&config, &expected, &output.stdout);
    }
}

/// A folder with a model of one output.
fn regressor() -> TempDir {
    with_labels(vec!["LABEL_0".into()])
}

/// A folder with a model of these classes.
fn with_labels(labels: Vec<String>) -> TempDir {
    let saved = tempfile::tempdir().expect("a folder");
    let files = ModelFiles::open(&ModelSource::Folder(model("tiny-distilbert"))).expect("a model");
    let config = files.config.clone().with_labels(labels);
    let model = Classifier::init(&config, 3, &device());
    save::folder(save::Weights::Of(&model), &config, &files, 40, saved.path()).expect("saved");
    saved
}

#[test]
fn a_regression_gives_numbers() {
    let (folder, saved) = (tempfile::tempdir().expect("a folder"), regressor());
    let rows: Vec<_> = one_column(&folder.path().join("in.csv"), 30).into_iter().map(|text| (text, None)).collect();
    let output = predict(folder.path(), saved.path(), &["--data", "in.csv"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let (header, lines) = table(&output.stdout);
    assert_eq!(header, ["row", "prediction"]);
    let (_, expected) = logits(saved.path(), &rows);
    assert_eq!(lines.len(), expected.len());
    for (line, expected) in lines.iter().zip(&expected) {
        let value: f32 = line[1].parse().expect("a number");
        assert!((value - expected[0]).abs() < 1e-5, "{value} is not {}", expected[0]);
    }
}

#[test]
fn many_classes_and_large_batches_are_more_than_one_line_of_the_wire() {
    let folder = tempfile::tempdir().expect("a folder");
    let rows: Vec<_> = one_column(&folder.path().join("in.csv"), 1100).into_iter().map(|text| (text, None)).collect();
    // About 20 MB of CSV in one window, and a label that must not become a formula.
    let labels = (0..1500).map(|i| format!("=HYPERLINK(\"{i}\")")).collect();
    let saved = with_labels(labels);
    let output = predict(folder.path(), saved.path(), &["--data", "in.csv", "--batch", "1024"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert!(output.stdout.len() > 16 << 20, "{} bytes", output.stdout.len());
    let (header, lines) = table(&output.stdout);
    assert_eq!((header.len(), lines.len()), (1503, rows.len()));
    let (config, expected) = logits(saved.path(), &rows[..20]);
    for (number, (line, logits)) in lines.iter().zip(&expected).enumerate() {
        let best = (0..logits.len()).fold(0, |best, i| if logits[i] > logits[best] { i } else { best });
        assert_eq!(line[0], (number + 1).to_string());
        assert_eq!(line[1], format!("'{}", config.labels[best]));
    }
    assert!(lines.iter().all(|line| line.len() == 1503 && line[1].starts_with("'=")));
}

/// Predicts in a worker, as the command does, and returns what it counted.
fn counted(data: &Path) -> Summary {
    let spec = PredictSpec {
        model: model("tiny-bert"),
        data: data.into(),
        text: "text".into(),
        pair: None,
        batch: 4,
        max_length: None,
    };
    let task = Task::Predict(serde_json::to_value(&spec).expect("JSON"));
    let job = Job { protocol: PROTOCOL, device: "cpu".into(), cap_bytes: None, task };
    let mut worker = LocalProcess::new(env!("CARGO_BIN_EXE_autofit"), ["__worker"]);
    let finished = worker.run(&job, Duration::MAX, &mut |_| {});
    match finished.report {
        Some(Report::Predicted(summary)) => summary,
        other => panic!("{other:?}: {}", finished.stderr),
    }
}

#[test]
fn a_hundred_times_the_rows_take_the_same_memory() {
    let folder = tempfile::tempdir().expect("a folder");
    let (short, long) = (folder.path().join("short.csv"), folder.path().join("long.csv"));
    one_column(&short, 200);
    one_column(&long, 20_000);
    let (short, long_peak) = (counted(&short), counted(&long));
    assert_eq!((short.rows, long_peak.rows), (200, 20_000));
    // A window of texts differs by a few kilobytes from another; 20,000 rows of token ids alone would be 1 MB.
    let allowed = short.peak_bytes + (64 << 10);
    assert!(long_peak.peak_bytes <= allowed, "{} and {}", short.peak_bytes, long_peak.peak_bytes);
    let (cap, data) = (format!("{allowed}B"), long.to_str().expect("UTF-8"));
    let arguments = ["--data", data, "--batch", "4", "--vram", &cap, "--output", "out.csv"];
    let output = predict(folder.path(), &model("tiny-bert"), &arguments);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert_eq!(table(&std::fs::read(folder.path().join("out.csv")).expect("out.csv")).1.len(), 20_000);
    // Under too small a cap it says so, and leaves nothing.
    let arguments = ["--data", data, "--batch", "4", "--vram", "50K", "--output", "none.csv"];
    let output = predict(folder.path(), &model("tiny-bert"), &arguments);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("--vram"), "{}", text(&output.stderr));
    assert_eq!(std::fs::read_dir(folder.path()).expect("the folder").count(), 3);
}

#[test]
fn mistakes_name_file_and_line_and_leave_nothing_behind() {
    let folder = tempfile::tempdir().expect("a folder");
    let here = |name: &str| folder.path().join(name);
    one_column(&here("good.csv"), 20);
    let torn: String = (0..90).map(|i| if i == 70 { "a,b\n".into() } else { format!("good {i}\n") }).collect();
    std::fs::write(here("torn.csv"), format!("text\n{torn}")).expect("written");
    std::fs::write(here("headless.csv"), "").expect("written");
    std::fs::write(here("old.csv"), "mine\n").expect("written");
    std::fs::hard_link(here("good.csv"), here("hard.csv")).expect("a link");
    let (bert, own) = (model("tiny-bert"), folder.path().to_path_buf());
    for name in ["config.json", "model.safetensors", "tokenizer.json"] {
        std::fs::copy(bert.join(name), here(name)).expect("copied");
    }
    let files = || std::fs::read_dir(folder.path()).expect("the folder").count();
    let before = files();
    for (model, arguments, words) in [
        (&bert, &["--data", "torn.csv", "--output", "out.csv", "--batch", "2"][..], &["torn.csv", "line 72"][..]),
        (&bert, &["--data", "none.csv", "--output", "out.csv"], &["none.csv", "no such file"]),
        (&bert, &["--data", "headless.csv", "--output", "out.csv"], &["headless.csv", "header"]),
        (&bert, &["--data", "good.csv", "--text-column", "txt"], &["txt", "--text-column"]),
        (&bert, &["--data", "good.csv", "--output", "old.csv"], &["old.csv", "--overwrite"]),
        (&bert, &["--data", "good.csv", "--output", "good.csv", "--overwrite"], &["good.csv", "is read"]),
        (&bert, &["--data", "good.csv", "--output", "./hard.csv", "--overwrite"], &["hard.csv", "is read"]),
        (&own, &["--data", "good.csv", "--output", "config.json", "--overwrite"], &["a file of the model"]),
        (&bert, &["--data", "good.csv", "--output", "."], &["regular file"]),
        (&bert, &["--data", "good.csv", "--output", "/dev/null", "--overwrite"], &["regular file"]),
        (&bert, &["--data", "good.csv", "--output", "gone/out.csv"], &["gone"]),
        (&bert, &["--data", "good.csv", "--max-length", "41"], &["--max-length 41", "40"]),
        (&here("nowhere"), &["--data", "good.csv"], &["nowhere", "no such folder"]),
        (&model("variants/bare"), &["--data", "good.csv"], &["tokenizer.json"]),
    ] {
        let output = predict(folder.path(), model, arguments);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {said}");
        words.iter().for_each(|word| assert!(said.contains(word), "{arguments:?} lacks {word}: {said}"));
        assert!(!said.contains("panicked"), "{said}");
        assert_eq!(files(), before, "{arguments:?} left something behind");
    }
    assert_eq!(std::fs::read_to_string(here("old.csv")).expect("old.csv"), "mine\n");
    let output = predict(folder.path(), &bert, &["--data", "good.csv", "--output", "old.csv", "--overwrite"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert_eq!(table(&std::fs::read(here("old.csv")).expect("old.csv")).1.len(), 20);
}

#[test]
fn a_model_without_a_trained_head_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    one_column(&folder.path().join("in.csv"), 5);
    let bare = folder.path().join("bare");
    std::fs::create_dir(&bare).expect("a folder");
    for (from, name) in
        [("variants/bare", "config.json"), ("variants/bare", "model.safetensors"), ("tiny-bert", "tokenizer.json")]
    {
        std::fs::copy(model(from).join(name), bare.join(name)).expect("copied");
    }
    let output = predict(folder.path(), &bare, &["--data", "in.csv"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("no trained classification head"), "{}", text(&output.stderr));
}

#[test]
fn an_interrupt_leaves_nothing_under_the_final_name() {
    let folder = tempfile::tempdir().expect("a folder");
    one_column(&folder.path().join("in.csv"), 400_000);
    let mut child = Command::new(env!("CARGO_BIN_EXE_autofit"))
        .current_dir(folder.path())
        .args(["predict", "--data", "in.csv", "--output", "out.csv", "--quiet", "--model"])
        .arg(model("tiny-bert"))
        .stdin(Stdio::null())
        .spawn()
        .expect("starts");
    let partial = folder.path().join(".out.csv.partial");
    while !std::fs::metadata(&partial).is_ok_and(|file| file.len() > 0) {
        assert!(child.try_wait().expect("a status").is_none(), "it ended before it could be interrupted");
        std::thread::sleep(Duration::from_millis(5));
    }
    let signalled = Command::new("kill").args(["-INT", &child.id().to_string()]).status().expect("kill starts");
    assert!(signalled.success());
    assert_eq!(child.wait().expect("a status").code(), Some(130));
    let left: Vec<_> =
        std::fs::read_dir(folder.path()).expect("the folder").map(|e| e.expect("an entry").file_name()).collect();
    assert_eq!(left, ["in.csv"]);
}

#[test]
fn rows_are_cut_where_training_cut_them_unless_told_otherwise() {
    let folder = tempfile::tempdir().expect("a folder");
    let trained = folder.path().join("trained");
    std::fs::create_dir(&trained).expect("a folder");
    for name in ["config.json", "model.safetensors", "tokenizer.json"] {
        std::fs::copy(model("tiny-bert").join(name), trained.join(name)).expect("copied");
    }
    let config = std::fs::read_to_string(trained.join("config.json")).expect("a configuration");
    let keep = |length: usize| {
        let kept = config.replacen('{', &format!("{{ \"autofit_max_length\": {length},"), 1);
        std::fs::write(trained.join("config.json"), kept).expect("written");
    };
    one_column(&folder.path().join("rows.csv"), 40);
    let run = |more: &[&str]| {
        let output = predict(folder.path(), &trained, &[&["--data", "rows.csv"], more].concat());
        assert!(output.status.success(), "{}", text(&output.stderr));
        (text(&output.stdout), text(&output.stderr))
    };
    let (whole, said) = run(&[]);
    assert!(!said.contains("as in training"), "nothing is known of its training: {said}");
    let (cut, _) = run(&["--max-length", "6"]);
    assert_ne!(cut, whole);
    keep(6);
    let (as_trained, said) = run(&[]);
    assert_eq!(as_trained, cut);
    assert!(said.contains("rows are cut at 6 tokens, as in training (--max-length"), "{said}");
    assert!(said.contains("were cut to 6 tokens"), "{said}");
    let (told, said) = run(&["--max-length", "40"]);
    assert_eq!((told, said.contains("as in training")), (whole.clone(), false));
    // More than the model takes, as somebody may write: as if it were not there.
    keep(4_000);
    assert_eq!(run(&[]).0, whole);
}
