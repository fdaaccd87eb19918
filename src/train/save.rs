//! A trained model as a Hugging Face folder.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use crate::model::source::ModelFiles;
use crate::model::{Classifier, ModelConfig, weights};

/// Files of a tokenizer that are handed on as they are.
const TOKENIZER_FILES: [&str; 7] = [
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "vocab.txt",
    "vocab.json",
    "merges.txt",
    "added_tokens.json",
];

/// Writes `config.json` with the labels, `model.safetensors` and the tokenizer's files. Each is written beside its
/// place and renamed, the weights last: a folder with weights is a whole one.
///
/// # Errors
/// If the folder can't be written.
pub fn folder(weights: Weights<'_>, config: &ModelConfig, files: &ModelFiles, output: &Path) -> Result<()> {
    fs::create_dir_all(output).with_context(|| format!("can't create {}", output.display()))?;
    if let Some(source) = &files.folder {
        for name in TOKENIZER_FILES {
            let from = source.join(name);
            if from.is_file() && source != output {
                fs::copy(&from, output.join(name)).with_context(|| format!("can't copy {}", from.display()))?;
            }
        }
    }
    let json = serde_json::to_string_pretty(&config.to_json(files.original.as_ref()))?;
    in_place(&output.join("config.json"), |path| fs::write(path, json + "\n").map_err(Into::into))?;
    let place = output.join("model.safetensors");
    match weights {
        Weights::Of(model) => self::weights(model, config, &place),
        Weights::File(file) => fs::rename(file, &place).with_context(|| format!("can't write {}", place.display())),
    }
}

/// Where a folder's weights come from.
pub enum Weights<'a> {
    /// A model in memory.
    Of(&'a Classifier),
    /// A file that [`weights()`] wrote on the same file system; it is moved.
    File(&'a Path),
}

/// Writes a model's weights as Hugging Face names them: whole or not at all.
///
/// # Errors
/// If the file can't be written.
pub fn weights(model: &Classifier, config: &ModelConfig, path: &Path) -> Result<()> {
    in_place(path, |path| weights::save(model, config, path))
}

/// Writes beside `path`, and renames what was written (and synced, where it matters).
fn in_place(path: &Path, write: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
    let beside = path.with_extension("partial");
    let whole = || -> Result<()> {
        write(&beside)?;
        fs::rename(&beside, path)?;
        Ok(())
    };
    whole().map_err(|error| {
        let _ = fs::remove_file(&beside);
        error.context(format!("can't write {}", path.display()))
    })
}
