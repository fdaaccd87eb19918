//! A trained model as a Hugging Face folder.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use crate::model::hub::TOKENIZER_FILES;
use crate::model::source::ModelFiles;
use crate::model::{Classifier, ModelConfig, weights};
use crate::plan::files;

/// Where training truncated rows, in tokens: a key of our own in `config.json`. Not `model_max_length` of the tokenizer's
/// settings, which stay as they came: to others that is what the model takes.
const MAX_LENGTH: &str = "autofit_max_length";

/// Where the training that saved a model truncated its rows, in tokens, if that was a run of autofit.
pub fn max_length(files: &ModelFiles) -> Option<usize> {
    let kept = files.original.as_ref()?.get(MAX_LENGTH)?.as_u64()?;
    usize::try_from(kept).ok().filter(|length| (1..=files.config.max_length()).contains(length))
}

/// Writes `config.json` with the labels and where rows were truncated, `model.safetensors` and the tokenizer's files. Each is written beside its
/// place and renamed, the weights last: a folder with weights is a whole one. The output may be the model's own folder,
/// by whatever name: its tokenizer's files stay as they are then.
///
/// # Errors
/// If the folder can't be written.
pub fn folder(
    weights: Weights<'_>,
    config: &ModelConfig,
    model_files: &ModelFiles,
    max_length: usize,
    output: &Path,
) -> Result<()> {
    fs::create_dir_all(output).with_context(|| format!("can't create {}", output.display()))?;
    if let Some(source) = &model_files.folder {
        for name in TOKENIZER_FILES {
            let from = source.join(name);
            if from.is_file() {
                files::copy_whole(&from, &output.join(name))?;
            }
        }
    }
    let mut json = config.to_json(model_files.original.as_ref());
    json[MAX_LENGTH] = max_length.into();
    let json = serde_json::to_string_pretty(&json)?;
    files::write_whole(&output.join("config.json"), &(json + "\n"))?;
    let place = output.join("model.safetensors");
    match weights {
        Weights::Of(model) => self::weights(model, config, &place),
        Weights::File(file) => files::link_whole(file, &place),
    }
}

/// Where a folder's weights come from.
pub enum Weights<'a> {
    /// A model in memory.
    Of(&'a Classifier),
    /// A file that was written before, and stays.
    File(&'a Path),
}

/// Writes a model's weights as Hugging Face names them: whole or not at all.
///
/// # Errors
/// If the file can't be written.
pub fn weights(model: &Classifier, config: &ModelConfig, path: &Path) -> Result<()> {
    files::replace(path, |path| weights::save(model, config, path))
}
