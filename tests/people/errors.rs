//! Whatever is wrong with a model or with data is said before the first trial, once, and with what to do.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;

use tempfile::TempDir;

use super::support::{BEST, autofit};

/// A folder of models, whole and broken, and of data, whole and broken.
struct Matrix {
    folder: TempDir,
}

/// Data with what is wrong with it; the first is whole.
const DATA: [(&str, &str); 13] = [
    ("good.csv", "text,label\nthe film was good,yes\nthe film was bad,no\ngood,yes\nbad,no\n"),
    ("empty.csv", ""),
    ("header.csv", "text,label\n"),
    ("one-label.csv", "text,label\ngood,yes\nfine,yes\n"),
    ("no-label.csv", "text,class\ngood,yes\nbad,no\n"),
    ("no-text.csv", "words,label\ngood,yes\nbad,no\n"),
    ("blank-label.csv", "text,label\ngood,yes\nbad,\n"),
    ("ragged.csv", "text,label\ngood,yes,more\nbad,no\n"),
    ("quote.csv", "text,label\n\"good,yes\nbad,no\n"),
    ("latin.csv", "text,label\nca\u{fffd},yes\nbad,no\n"),
    ("good.jsonl", "{\"text\": \"good\", \"label\": \"yes\"}\n{\"text\": \"bad\", \"label\": \"no\"}\n"),
    ("torn.jsonl", "{\"text\": \"good\", \"label\": \"yes\"}\n{\"text\": \"bad\", \"lab\n"),
    ("words.txt", "good\nbad\n"),
];

impl Matrix {
    fn new() -> Self {
        let matrix = Matrix { folder: tempfile::tempdir().expect("a folder") };
        for (name, text) in DATA {
            // 0xE7 alone, as in Latin-1, is no UTF-8.
            let bytes = text.split('\u{fffd}').map(str::as_bytes).collect::<Vec<_>>().join(&0xE7);
            fs::write(matrix.path(name), bytes).expect("written");
        }
        let space = "precision = [\"fp32\"]\nmicro_batch = [2]\ncheckpoint_layers = \"none\"\n";
        fs::write(matrix.path("one.toml"), space).expect("written");
        let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
        for parent in [fixtures.clone(), fixtures.join("variants")] {
            for folder in fs::read_dir(parent).expect("fixtures").map(|entry| entry.expect("an entry").path()) {
                if folder.join("config.json").exists() {
                    let name = folder.file_name().expect("a name").to_string_lossy().into_owned();
                    matrix.copy(&folder, &name);
                    // Variants have no tokenizer of their own: with tiny-bert's each of them is whole.
                    if !folder.join("tokenizer.json").exists() {
                        matrix.copy(&folder, &format!("{name}-whole"));
                        let tokenizer = fixtures.join("tiny-bert/tokenizer.json");
                        fs::copy(tokenizer, matrix.path(&format!("{name}-whole/tokenizer.json"))).expect("copied");
                    }
                }
            }
        }
        matrix.break_models(&fixtures);
        matrix
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn copy(&self, from: &Path, to: &str) {
        fs::create_dir(self.path(to)).expect("a folder");
        for file in fs::read_dir(from).expect("a folder").map(|entry| entry.expect("an entry")) {
            fs::copy(file.path(), self.path(to).join(file.file_name())).expect("copied");
        }
    }

    /// tiny-bert with one thing wrong in each copy.
    fn break_models(&self, fixtures: &Path) {
        let broken = |name: &str| {
            self.copy(&fixtures.join("tiny-bert"), name);
            self.path(name)
        };
        fs::remove_file(broken("no-config").join("config.json")).expect("removed");
        fs::remove_file(broken("no-weights").join("model.safetensors")).expect("removed");
        let pickled = broken("pickled");
        fs::rename(pickled.join("model.safetensors"), pickled.join("pytorch_model.bin")).expect("renamed");
        let torn = broken("torn").join("model.safetensors");
        let bytes = fs::read(&torn).expect("weights");
        fs::write(&torn, &bytes[..bytes.len() - 9]).expect("written");
        fs::write(broken("no-safetensors").join("model.safetensors"), "<html>").expect("written");
        fs::write(broken("no-json").join("config.json"), "{").expect("written");
        fs::write(broken("no-tokenizer").join("tokenizer.json"), "{}").expect("written");
        for (name, from, to) in [
            ("wider", "\"intermediate_size\": 64", "\"intermediate_size\": 65"),
            ("unknown", "\"model_type\": \"bert\"", "\"model_type\": \"bart\""),
            ("small-vocabulary", "\"vocab_size\": 120", "\"vocab_size\": 60"),
        ] {
            let config = broken(name).join("config.json");
            let text = fs::read_to_string(&config).expect("a configuration");
            assert!(text.contains(from), "{from}: {text}");
            fs::write(config, text.replace(from, to)).expect("written");
        }
        fs::create_dir(self.path("nothing")).expect("a folder");
    }

    fn models(&self) -> Vec<String> {
        let entries = fs::read_dir(self.folder.path()).expect("a folder").map(|entry| entry.expect("an entry"));
        let folders = entries.filter(|entry| entry.path().is_dir());
        let mut names: Vec<String> = folders.map(|folder| folder.file_name().into_string().expect("UTF-8")).collect();
        names.sort();
        names
    }

    /// What `probe` says of a model with data: the error, or nothing where it answered. A study must have been refused
    /// before its first trial, or have ended with an answer.
    fn probe(&self, model: &str, data: &str) -> Option<String> {
        let out = tempfile::tempdir().expect("a folder");
        let at = |name: &str| self.path(name).to_str().expect("UTF-8").to_string();
        let (model_at, data_at, space) = (at(model), at(data), at("one.toml"));
        let study = out.path().join("study");
        let mut arguments = vec!["probe", "--model", &model_at, "--vram", "64M", "--max-length", "12"];
        arguments.extend(["--effective-batch", "4", "--space", &space, "--out", study.to_str().expect("UTF-8")]);
        if !data.is_empty() {
            arguments.extend(["--data", &data_at]);
        }
        let output = autofit(&arguments);
        let trials = fs::read_to_string(study.join("trials.csv")).unwrap_or_default();
        let error = error_of(&output);
        match &error {
            None => assert!(!trials.contains(",crash,"), "{model}, {data}: {trials}"),
            Some(said) => assert_eq!(trials.lines().nth(1), None, "{model}, {data}: refused after a trial: {said}"),
        }
        error
    }

    /// What `predict` and `run` say of a model with data; `answer` is a study that has one.
    fn others(&self, answer: &str, model: &str, data: &str) -> impl Iterator<Item = (String, String)> {
        let at = |name: &str| self.path(name).to_str().expect("UTF-8").to_string();
        let (model_at, data_at, out) = (at(model), at(data), tempfile::tempdir().expect("a folder"));
        let out = out.path().join("model").to_str().expect("UTF-8").to_string();
        let predict = autofit(&["predict", "--model", &model_at, "--data", &data_at]);
        let run = ["run", "--config", answer, "--model", &model_at, "--data", &data_at, "--output", &out];
        let run = autofit(&[&run[..], &["--steps", "1", "--eval-fraction", "0"]].concat());
        let said = [("predict", error_of(&predict)), ("run", error_of(&run))];
        let what = format!("{model}, {data}");
        said.into_iter().filter_map(move |(command, error)| Some((format!("{command}, {what}"), error?)))
    }
}

/// What a command that ended with exit code 1 says, without `error: `; nothing where it ended well.
fn error_of(output: &Output) -> Option<String> {
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    match output.status.code() {
        Some(0) => None,
        code => {
            assert_eq!(code, Some(1), "{said}");
            let error = said.lines().rev().find_map(|line| line.strip_prefix("error: "));
            Some(error.unwrap_or_else(|| panic!("no error in {said}")).to_string())
        }
    }
}

/// What a message says more than once: a part of its chain of causes, or four words in a row.
fn said_twice(message: &str) -> Option<String> {
    let parts: Vec<&str> = message.split(": ").filter(|part| part.contains(' ')).collect();
    let again = parts
        .iter()
        .enumerate()
        .find(|(at, part)| parts.iter().enumerate().any(|(other, whole)| other != *at && whole.contains(*part)));
    if let Some((_, part)) = again {
        return Some(part.to_string());
    }
    let words: Vec<&str> = message.split_whitespace().map(|word| word.trim_matches([':', ',', ';', '.'])).collect();
    let rows: Vec<&[&str]> = words.windows(4).collect();
    let twice = rows.iter().enumerate().find(|(at, row)| rows[..*at].contains(row));
    twice.map(|(_, row)| row.join(" "))
}

#[test]
fn the_check_finds_what_is_said_twice() {
    let before = "no probe succeeded: no probe succeeded; trial 4 (crash): rows can't carry 2000 labels";
    assert_eq!(said_twice(before).as_deref(), Some("no probe succeeded"));
    assert_eq!(
        said_twice("can't read a.csv, since b.csv: can't read a.csv, since it").as_deref(),
        Some("can't read a.csv since")
    );
    assert_eq!(said_twice("can't read a.csv: no such file, or another kind of file"), None);
}

#[test]
fn every_error_comes_before_the_first_trial_and_says_nothing_twice() {
    let matrix = Matrix::new();
    let whole = ["tiny-bert", "tiny-distilbert", "tiny-roberta", "fp16-whole", "sharded-whole", "legacy-whole"];
    let mut refused = Vec::new();
    let answer = matrix.path("best.toml");
    let best = BEST.replace("bf16", "fp32").replace("max_length = 128", "max_length = 12");
    fs::write(&answer, best.replace("micro_batch = 8\naccumulation = 4", "micro_batch = 2\naccumulation = 2"))
        .expect("written");
    let answer = answer.to_str().expect("UTF-8");
    for model in matrix.models() {
        for data in ["", "good.csv"] {
            let error = matrix.probe(&model, data);
            if whole.contains(&model.as_str()) {
                assert_eq!(error, None, "{model}, {data}");
            }
            refused.extend(error.map(|error| (format!("{model}, {data}"), error)));
        }
        refused.extend(matrix.others(answer, &model, "good.csv"));
    }
    for (data, _) in &DATA[1..] {
        let error = matrix.probe("tiny-bert", data);
        assert_eq!(error.is_none(), *data == "good.jsonl", "{data}: {error:?}");
        refused.extend(error.map(|error| (format!("tiny-bert, {data}"), error)));
        refused.extend(matrix.others(answer, "tiny-bert", data));
    }
    assert!(refused.len() > 75, "{refused:#?}");
    for (what, error) in &refused {
        assert_eq!(said_twice(error), None, "{what}: {error}");
    }
}

#[test]
fn more_classes_than_words_are_no_reason_to_fail() {
    let matrix = Matrix::new();
    let rows: String = (0..2_000).map(|row| format!("the film was good,class {row}\n")).collect();
    fs::write(matrix.path("many.csv"), format!("text,label\n{rows}")).expect("written");
    assert_eq!(matrix.probe("tiny-bert", "many.csv"), None);
}
