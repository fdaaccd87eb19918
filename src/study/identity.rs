//! What makes two studies the same one: `study.toml`. A journal may only be continued by the study that began it.

use std::path::Path;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use super::search_space::SearchSpace;
use super::stamp;
use crate::plan::files;
use crate::probe::protocol::Shapes;

/// Everything that its measurements depend on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// Preset or folder of the model, or `owner/name@commit`. Of a model with files only a name: it may have moved, or
    /// another may lie in its place, so the digests tell.
    pub model: String,
    /// Digest of the model's `config.json`, where it has files.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub config_digest: Option<String>,
    /// Digest of the model's weights, where it has files.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weights_digest: Option<String>,
    /// Digest of the rows' token ids and labels, where there are rows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rows_digest: Option<String>,
    /// Classes of the head.
    pub num_labels: usize,
    /// Tokens of the longest row after truncation.
    pub longest: usize,
    /// Digest of the typical row lengths.
    pub lengths_digest: String,
    /// Where rows are truncated, in tokens.
    pub max_length: usize,
    /// Samples per optimizer step.
    pub effective_batch: usize,
    /// Device name.
    pub device: String,
    /// Bytes that the workload may use.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cap_bytes: Option<u64>,
    /// Digest of the search space.
    pub space_digest: String,
    /// Seed of weights, token ids and dropout.
    pub seed: u64,
    /// Version of autofit.
    pub version: String,
}

impl Identity {
    /// Digest of typical row lengths, for [`Identity::lengths_digest`].
    pub fn lengths(shapes: &Shapes) -> String {
        stamp::digest(&shapes.typical.iter().map(|length| format!("{length} ")).collect::<String>())
    }

    /// Digest of a search space, for [`Identity::space_digest`]: its axes, not its name or comments.
    pub fn space(space: &SearchSpace) -> String {
        stamp::digest(&space.to_toml())
    }

    /// Writes `study.toml`.
    ///
    /// # Errors
    /// If it can't be written.
    pub fn write(&self, path: &Path) -> Result<()> {
        let head = "# Which study the trials beside this file belong to. Written by autofit.\n";
        files::write_whole(path, &format!("{head}{}", toml::to_string(self)?))
    }

    /// Makes sure that the study in the folder is this one.
    ///
    /// # Errors
    /// If the file can't be read, or says otherwise: then with every key that differs, both values, and what to do.
    pub fn check(&self, path: &Path) -> Result<()> {
        let text = std::fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
        let theirs: toml::Table = text.parse().with_context(|| format!("{} is no study.toml", path.display()))?;
        let ours = toml::Table::try_from(self)?;
        // What two models with files are called does not matter, what is in the files does.
        let named =
            |key: &str| key != "model" || [&ours, &theirs].iter().any(|table| !table.contains_key("weights_digest"));
        let keys = ours.keys().chain(theirs.keys().filter(|key| !ours.contains_key(*key)));
        let show = |table: &toml::Table, key: &str| table.get(key).map_or("none".to_string(), ToString::to_string);
        let differing = keys.filter(|key| ours.get(*key) != theirs.get(*key) && named(key));
        let list: Vec<String> = differing
            .map(|key| match content(key) {
                Some(words) => format!("{words} ({} there, {} now)", show(&theirs, key), show(&ours, key)),
                None => format!("{key} was {} there and is {} now", show(&theirs, key), show(&ours, key)),
            })
            .collect();
        if list.is_empty() {
            return Ok(());
        }
        bail!(
            "{} belongs to another study: {}. Its trials are as they were: use another folder (--out) to keep them, or \
             begin anew in this one (--fresh), which forgets them",
            path.display(),
            list.join("; ")
        )
    }
}

/// What it means that a digest differs.
fn content(key: &str) -> Option<&'static str> {
    match key {
        "config_digest" => Some("the model's config.json is another one"),
        "weights_digest" => Some("the model's weights are others"),
        "rows_digest" => Some("the rows, or the tokens and classes they come to, are others"),
        "lengths_digest" => Some("the rows have other lengths"),
        "space_digest" => Some("the search space has other axes"),
        _ => None,
    }
}
