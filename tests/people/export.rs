//! `autofit export`: the words of each tool, whole, and the notes that tell the truth about them.

use std::path::PathBuf;

use super::support::{BEST, autofit, refused, said};

/// An answer on disk, with some of its lines replaced.
fn answer(changes: &[(&str, &str)]) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("best.toml");
    let text = changes.iter().fold(BEST.to_string(), |text, (from, to)| {
        assert!(text.contains(from), "{from}");
        text.replacen(from, to, 1)
    });
    std::fs::write(&path, text).expect("written");
    (folder, path)
}

/// What is exported, without comments.
fn settings(changes: &[(&str, &str)], tool: &str) -> String {
    let (_folder, path) = answer(changes);
    let text = said(&["export", "--config", path.to_str().expect("UTF-8"), "--to", tool]);
    text.lines().filter(|line| !line.starts_with('#')).map(|line| format!("{line}\n")).collect()
}

/// The notes alone.
fn notes(changes: &[(&str, &str)], tool: &str) -> String {
    let (_folder, path) = answer(changes);
    let text = said(&["export", "--config", path.to_str().expect("UTF-8"), "--to", tool]);
    text.lines().filter(|line| line.starts_with('#')).map(|line| format!("{line}\n")).collect()
}

#[test]
fn transformers() {
    let expected = r#"from transformers import TrainingArguments

training_args = TrainingArguments(
    output_dir="out",
    per_device_train_batch_size=8,
    gradient_accumulation_steps=4,
    bf16=True,
    fp16=False,
    gradient_checkpointing=True,
    optim="adamw_torch",
    learning_rate=5e-5,
    max_grad_norm=1.0,
)
"#;
    assert_eq!(settings(&[], "hf"), expected);
    let plain = settings(&[("\"bf16\"", "\"fp32\""), ("checkpoint_layers = 3", "checkpoint_layers = 0")], "hf");
    assert!(plain.contains("bf16=False") && plain.contains("fp16=False") && plain.contains("checkpointing=False"));
    let notes = notes(&[], "hf");
    for text in ["858 MiB at the peak", "leave a margin", "recomputes 3 layers", "recomputes all", "max_length=128"] {
        assert!(notes.contains(text), "{text}: {notes}");
    }
}

#[test]
fn accelerate_and_lightning() {
    let expected = r#"from accelerate import Accelerator
from torch.utils.data import DataLoader

accelerator = Accelerator(mixed_precision="bf16", gradient_accumulation_steps=4)
loader = DataLoader(dataset, batch_size=8, shuffle=True)
"#;
    let text = settings(&[], "accelerate");
    assert_eq!(text, expected);
    assert!(settings(&[("\"bf16\"", "\"fp32\"")], "accelerate").contains("mixed_precision=\"no\""));
    let expected = r#"from lightning.pytorch import Trainer
from torch.utils.data import DataLoader

trainer = Trainer(
    accelerator="auto",
    devices=1,
    precision="bf16-mixed",
    accumulate_grad_batches=4,
    gradient_clip_val=1.0,
)
loader = DataLoader(dataset, batch_size=8, shuffle=True)
"#;
    assert_eq!(settings(&[], "lightning"), expected);
    assert!(settings(&[("\"bf16\"", "\"fp16\"")], "lightning").contains("\"16-mixed\""));
    assert!(notes(&[("\"adamw\"", "\"adafactor\"")], "lightning").contains("relative_step=False"));
}

#[test]
fn deepspeed_is_json_and_its_notes_are_talk() {
    let (_folder, path) = answer(&[("micro_batch = 8", "micro_batch = 11"), ("accumulation = 4", "accumulation = 3")]);
    let output = autofit(&["export", "--config", path.to_str().expect("UTF-8"), "--to", "deepspeed"]);
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).expect("nothing but JSON");
    assert_eq!(
        json,
        serde_json::json!({
            "train_micro_batch_size_per_gpu": 11, "gradient_accumulation_steps": 3, "train_batch_size": 33,
            "gradient_clipping": 1.0, "bf16": {"enabled": true},
            "fp16": {"enabled": false, "loss_scale": 0, "initial_scale_power": 16},
            "optimizer": {"type": "AdamW", "params": {"lr": 5e-5, "weight_decay": 0.01}}
        })
    );
    let talk = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(talk.contains("a step has 33 samples") && talk.contains("gradient_checkpointing_enable"), "{talk}");
    let none: serde_json::Value =
        serde_json::from_str(&settings(&[("\"adamw\"", "\"adafactor\"")], "deepspeed")).expect("JSON");
    assert!(none.get("optimizer").is_none());
}

#[test]
fn axolotl_and_environment() {
    let expected = "base_model: \"/models/<b>&'bert\\\"\"\nmicro_batch_size: 8\ngradient_accumulation_steps: 4\n\
                    sequence_len: 128\nbf16: true\nfp16: false\ngradient_checkpointing: true\noptimizer: sgd\n\
                    learning_rate: 5e-5\nmax_grad_norm: 1.0\nadapter: lora\nlora_r: 16\nlora_alpha: 16\n";
    let changes = [("optimizer = \"adamw\"", "optimizer = \"sgd\"\nlora_rank = 16")];
    assert_eq!(settings(&changes, "axolotl"), expected);
    assert!(notes(&changes, "axolotl").contains("momentum 0.9"));
    let expected = "AUTOFIT_MICRO_BATCH=8\nAUTOFIT_ACCUMULATION=4\nAUTOFIT_EFFECTIVE_BATCH=32\nAUTOFIT_PRECISION=bf16\n\
                    AUTOFIT_CHECKPOINT_LAYERS=3\nAUTOFIT_MAX_LENGTH=128\nAUTOFIT_OPTIMIZER=adamw\n\
                    AUTOFIT_PEAK_BYTES=900000000\n";
    assert_eq!(settings(&[], "env"), expected);
}

#[test]
fn mistakes_are_met_with_a_suggestion() {
    let (_folder, path) = answer(&[]);
    let path = path.to_str().expect("UTF-8");
    assert!(refused(&["export", "--config", path, "--to", "deepsped"], 2).contains("did you mean 'deepspeed'?"));
    assert!(
        refused(&["export", "--config", "/nowhere/best.toml", "--to", "hf"], 1).contains("autofit probe writes it")
    );
}
