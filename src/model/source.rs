//! Where a model comes from: a preset without files, a Hugging Face folder, or a repository that becomes one.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use burn::tensor::Device;
use serde_json::Value;

use super::checkpoint::Checkpoint;
use super::hub::Name;
use super::weights::{self, LoadReport};
use super::{Classifier, ModelConfig, presets};
use crate::probe::protocol::ModelSource;

/// A model that has been found but not loaded: no tensor is held.
#[derive(Clone, Debug)]
pub struct ModelFiles {
    /// Shape and arithmetic, with the labels that the files name.
    pub config: ModelConfig,
    /// The folder, unless the model is a preset.
    pub folder: Option<PathBuf>,
    /// `config.json` as it was read, for keys that autofit passes through.
    pub original: Option<Value>,
}

impl ModelFiles {
    /// Reads the configuration of a preset or folder.
    ///
    /// # Errors
    /// If the preset is unknown, or the folder has no valid `config.json`.
    pub fn open(source: &ModelSource) -> Result<Self> {
        match source {
            ModelSource::Preset(name) => match presets::config(name) {
                Some(config) => Ok(ModelFiles { config, folder: None, original: None }),
                None => bail!("there is no preset '{name}': {}", known_presets()),
            },
            ModelSource::Program(name) => {
                bail!("'{name}' is a model of the program that probed it: only that program can build it")
            }
            ModelSource::Folder(folder) => {
                let file = folder.join("config.json");
                let config = ModelConfig::from_file(&file)?;
                let text = std::fs::read_to_string(&file).with_context(|| format!("can't read {}", file.display()))?;
                let original = serde_json::from_str(&text).ok();
                Ok(ModelFiles { config, folder: Some(folder.clone()), original })
            }
        }
    }

    /// The model on `device`, with the weights of the folder (a preset's are random).
    ///
    /// # Errors
    /// If the folder's weights are not those of its `config.json`.
    pub fn load(&self, config: &ModelConfig, seed: u64, device: &Device) -> Result<(Classifier, LoadReport)> {
        let model = Classifier::init(config, seed, device);
        match &self.folder {
            None => Ok((model, LoadReport::default())),
            Some(folder) => weights::load(model, config, &mut Checkpoint::open(folder)?),
        }
    }
}

/// What a person can mean by a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Meant {
    /// Something that is here.
    Local(ModelSource),
    /// A repository of the hub.
    Named(Name),
}

/// Turns what a person typed into a source: an existing folder, else a preset's name, else a repository's.
///
/// # Errors
/// If it is none of them, with the presets there are, or a revision is given for what has none.
pub fn parse(text: &str, revision: Option<&str>) -> Result<Meant> {
    let path = Path::new(text);
    let local = if path.is_dir() {
        Some(ModelSource::Folder(path.to_path_buf()))
    } else if path.is_file() {
        bail!("--model {text} is a file: give the folder that holds config.json and model.safetensors");
    } else {
        presets::config(text).map(|_| ModelSource::Preset(text.to_string()))
    };
    match (local, revision) {
        (Some(source), None) => Ok(Meant::Local(source)),
        (Some(_), Some(_)) => bail!("--model {text} is here and has no revisions: leave --revision away"),
        (None, _) => match Name::parse(text, revision)? {
            Some(name) => Ok(Meant::Named(name)),
            None => bail!(
                "--model {text}: there is no such folder and no such preset, and it has not the form of a Hugging Face \
                 repository (owner/name); {}",
                known_presets()
            ),
        },
    }
}

fn known_presets() -> String {
    format!("presets are {}", presets::names().collect::<Vec<_>>().join(", "))
}
