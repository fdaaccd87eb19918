//! `autofit estimate`: it answers at once, in words and as data.

use std::time::Instant;

use super::support::{autofit, refused, said};

#[test]
fn all_presets_in_one_table_in_under_a_second() {
    let started = Instant::now();
    let text = said(&["estimate", "--vram", "6G"]);
    // The promise is a second on an idle machine; a crowded one may take a few.
    assert!(started.elapsed().as_secs() < 10);
    for preset in ["tinybert", "minilm", "distilbert", "bert-base", "roberta-base", "bert-large", "roberta-large"] {
        assert_eq!(
            text.lines().filter(|line| line.trim_start().starts_with(&format!("{preset} "))).count(),
            1,
            "{text}"
        );
    }
    assert!(text.contains("Nothing was run") && text.contains("measured peaks of presets lay within"), "{text}");
    assert!(text.lines().all(|line| line.chars().count() <= 120), "{text}");
}

#[test]
fn one_model_in_detail_and_as_data() {
    let text = said(&["estimate", "--vram", "2G", "--model", "distilbert", "--effective-batch", "64"]);
    for optimizer in ["adamw", "adafactor", "lion", "sgd"] {
        assert_eq!(text.lines().filter(|line| line.contains(&format!(" {optimizer} "))).count(), 2, "{text}");
    }
    let json = said(&["estimate", "--vram", "2G", "--model", "distilbert", "--effective-batch", "64", "--json"]);
    let lines: Vec<serde_json::Value> = serde_json::from_str(&json).expect("JSON");
    assert_eq!(lines.len(), 24, "2 precisions, 4 optimizers, 3 densities");
    let micro = |precision: &str, layers: u64| {
        let line = lines.iter().find(|line| {
            line["precision"] == precision && line["optimizer"] == "adamw" && line["checkpoint_layers"] == layers
        });
        line.and_then(|line| line["micro_batch"].as_u64()).expect("it fits")
    };
    assert!(micro("fp32", 6) > micro("fp32", 0) && micro("bf16", 0) > micro("fp32", 0));
    assert!(lines.iter().all(|line| line["peak_bytes"].as_u64().expect("bytes") <= 2 << 30));
}

#[test]
fn nothing_fits_has_its_own_exit_code() {
    let output = autofit(&["estimate", "--vram", "50M", "--model", "tinybert"]);
    assert_eq!(output.status.code(), Some(3));
    assert!(String::from_utf8_lossy(&output.stdout).contains(" no  "));
}

#[test]
fn a_folder_works_as_well_and_mistakes_are_named() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/tiny-bert");
    assert!(said(&["estimate", "--vram", "1G", "--model", folder, "--max-length", "16"]).contains("tiny-bert"));
    assert!(refused(&["estimate", "--vram", "6G", "--model", "distilbart"], 1).contains("presets are"));
    assert!(refused(&["estimate", "--vram", "6X"], 2).contains("not a memory size"));
    assert!(refused(&["estimate", "--vram", "6G", "--max-length", "5000"], 1).contains("5000"));
    assert!(refused(&["estimate", "--vram", "6G", "--effective-batch", "0"], 2).contains("at least 1"));
}
