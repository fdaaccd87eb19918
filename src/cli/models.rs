//! `--model` and `--revision`: a folder, a preset or a repository of the Hugging Face hub, as files on this machine.

use anyhow::{Context, Result};

use super::talk::Talk;
use crate::model::hub::{self, Name, Need, Settings, Snapshot, Watch};
use crate::model::source::{self, Meant};
use crate::probe::protocol::ModelSource;
use crate::study::best;

/// A model that is here.
#[derive(Clone, Debug)]
pub struct Model {
    /// Where its files are, if it has any.
    pub source: ModelSource,
    /// The repository that the files are from, for a model by name.
    pub origin: Option<(Name, Snapshot)>,
}

impl Model {
    /// What tells this model from others, wherever its files are.
    pub fn identity(&self) -> String {
        match (&self.source, &self.origin) {
            (_, Some((_, snapshot))) => snapshot.to_string(),
            (ModelSource::Preset(name) | ModelSource::Program(name), None) => name.clone(),
            (ModelSource::Folder(folder), None) => {
                std::path::absolute(folder).unwrap_or(folder.clone()).display().to_string()
            }
        }
    }
}

/// Finds what a person means by `--model` and `--revision`; a repository is downloaded where the cache hasn't got it.
///
/// # Errors
/// If there is no such model, or it can't be had.
pub fn find(text: &str, revision: Option<&str>, need: Need, talk: &mut Talk) -> Result<Model> {
    match source::parse(text, revision)? {
        Meant::Local(source) => Ok(Model { source, origin: None }),
        Meant::Named(name) => {
            let snapshot = hub::fetch(&name, need, &Settings::from_env()?, talk)?;
            talk.line(&format!("{} at commit {}", snapshot.repository, &snapshot.commit[..8]));
            Ok(Model { source: ModelSource::Folder(snapshot.folder.clone()), origin: Some((name, snapshot)) })
        }
    }
}

/// Finds the model of an answer again. One from the hub is downloaded once more where its folder is gone, as on
/// another machine: at the same commit.
///
/// # Errors
/// If it can't be had.
pub fn again(model: &best::Model, need: Need, talk: &mut Talk) -> Result<ModelSource> {
    match (&model.source, &model.repository) {
        (ModelSource::Folder(folder), Some(repository)) if !hub::is_model(folder, need) => {
            let found = find(repository, model.revision.as_deref(), need, talk);
            Ok(found.with_context(|| format!("{} is gone", folder.display()))?.source)
        }
        (source, _) => Ok(source.clone()),
    }
}

impl Watch for Talk {
    fn line(&mut self, text: &str) {
        Talk::line(self, text);
    }

    fn now(&mut self, text: &str) {
        Talk::now(self, text);
    }
}
