//! Snapshots of a run: everything that the next step depends on, in one file each.
//!
//! A snapshot is a safetensors file. Tensors are the parameters (`model.<path>`) and what the optimizer remembers of
//! them (`optimizer.<path>.<name>`); the rest is JSON in its header. The order of rows, the dropout masks and the
//! learning rate are functions of seed and step, so a step's number is all that is needed of them.
//!
//! The file is written beside its place, synced, read back for its checksum, and renamed to
//! `step-<step>-<crc32>.safetensors`: a name of that form belongs to a whole file, and damage done later is found when
//! it is read. Tensors go to disk without a copy in memory where the CPU backend holds them.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use burn::tensor::TensorData;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::optimizer::state::{Exported, Imported};
use crate::model::checkpoint::Checkpoint;
use crate::model::views::{self, TensorView};
use crate::plan::files::{Draft, draft_name};

/// Version of the layout; others are refused.
const VERSION: u32 = 1;

/// What a snapshot is called before its checksum is known.
const WRITING: &str = "writing";

/// What to do about a snapshot that is whole, and of another version.
const OTHER: &str = "resume it with the autofit that wrote it, or start anew with --overwrite";

/// What snapshots' names begin with; the step follows.
const KIND: &str = "step";

/// The header's key of [`Header`].
const KEY: &str = "autofit";

/// A folder of snapshots, the newest few of which are kept.
#[derive(Clone, Debug)]
pub struct Snapshots {
    folder: PathBuf,
    keep: usize,
}

/// One snapshot's file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Where it is.
    pub path: PathBuf,
    /// Optimizer steps done.
    pub step: usize,
    pub(super) checksum: u32,
}

/// A parameter with what the optimizer remembers of it.
pub struct Parameter {
    /// Its path in the model.
    pub path: String,
    /// Its value.
    pub value: TensorView,
    /// `None` before its first update.
    pub memory: Option<Exported>,
}

#[derive(Serialize, Deserialize)]
struct Header<S> {
    version: u32,
    /// The optimizer's counters, by parameter.
    counters: BTreeMap<String, BTreeMap<String, u64>>,
    state: S,
}

impl Snapshots {
    /// Snapshots in `folder`, of which the newest `keep` stay (at least one).
    pub fn new(folder: PathBuf, keep: usize) -> Self {
        Snapshots { folder, keep: keep.max(1) }
    }

    /// Where they are.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Writes a snapshot, then removes the oldest ones beyond those that are kept. Others of this step, or of a later one,
    /// go too: a run that writes this one has gone on below them, because they are damaged.
    ///
    /// # Errors
    /// If it can't be written whole; the ones before it are untouched then, and nothing half-written stays.
    pub fn write<S: Serialize>(&self, step: usize, state: &S, parameters: Vec<Parameter>) -> Result<Found> {
        fs::create_dir_all(&self.folder).with_context(|| format!("can't create {}", self.folder.display()))?;
        let found = self.write_beside(step, state, parameters);
        let found = found.with_context(|| format!("can't write a snapshot into {}", self.folder.display()))?;
        let (older, passed): (Vec<Found>, Vec<Found>) =
            self.list().into_iter().filter(|other| *other != found).partition(|other| other.step < step);
        for gone in passed.into_iter().chain(older.into_iter().skip(self.keep - 1)) {
            let _ = fs::remove_file(gone.path);
        }
        Ok(found)
    }

    fn write_beside<S: Serialize>(&self, step: usize, state: &S, parameters: Vec<Parameter>) -> Result<Found> {
        let mut counters = BTreeMap::new();
        let mut tensors: Vec<(String, TensorView)> = Vec::new();
        for Parameter { path, value, memory } in parameters {
            if let Some(memory) = memory {
                let named = memory.tensors.into_iter();
                tensors.extend(named.map(|(name, view)| (format!("optimizer.{path}.{name}"), view)));
                counters.insert(path.clone(), memory.counters);
            }
            tensors.push((format!("model.{path}"), value));
        }
        let header = serde_json::to_string(&Header { version: VERSION, counters, state })?;
        let draft = Draft::beside(&self.folder.join(WRITING))?;
        views::write(draft.path(), &tensors, &[(KEY.to_string(), header)].into())?;
        let checksum = checksum(draft.path())?;
        let path = self.folder.join(file_name(KIND, step, checksum));
        // The new name itself survives a power cut from here on: an older snapshot may go.
        draft.place(&path)?;
        Ok(Found { path, step, checksum })
    }

    /// All snapshots by name, the newest first. Whether they are whole is found out when they are opened.
    pub fn list(&self) -> Vec<Found> {
        list(&self.folder, KIND)
    }

    /// Looks for the newest whole snapshot, and opens it.
    ///
    /// # Errors
    /// If it is whole, and not one that this version can read: what another autofit can go on from is not passed over.
    pub fn newest<S: DeserializeOwned>(&self) -> Result<Newest<S>> {
        let mut damaged = Vec::new();
        for found in self.list() {
            match found.check() {
                Ok(()) => return Ok(Newest { opened: Some(Opened::open(found)?), damaged }),
                Err(error) => damaged.push(format!("{error:#}")),
            }
        }
        Ok(Newest { opened: None, damaged })
    }

    /// Removes every snapshot, and the folder if nothing else is in it.
    ///
    /// # Errors
    /// If a snapshot can't be removed: a run that is started anew must not be taken for the one before it.
    pub fn clear(&self) -> Result<()> {
        for Found { path, .. } in self.list() {
            fs::remove_file(&path).with_context(|| format!("can't remove the snapshot {}", path.display()))?;
        }
        let _ = fs::remove_file(draft_name(&self.folder.join(WRITING)));
        let _ = fs::remove_dir(&self.folder);
        Ok(())
    }
}

/// What [`Snapshots::newest`] found.
#[derive(Debug)]
pub struct Newest<S> {
    /// The newest whole one; `None` if there is none.
    pub opened: Option<Opened<S>>,
    /// What is wrong with each newer one.
    pub damaged: Vec<String>,
}

/// The name of a whole file of some kind.
pub(super) fn file_name(kind: &str, step: usize, checksum: u32) -> String {
    format!("{kind}-{step:08}-{checksum:08x}.safetensors")
}

/// The files of some kind in a folder, the newest first.
pub(super) fn list(folder: &Path, kind: &str) -> Vec<Found> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut found: Vec<Found> = entries.filter_map(|entry| Found::parse(entry.path(), kind)).collect();
    found.sort_by(|a, b| b.step.cmp(&a.step).then_with(|| a.path.cmp(&b.path)));
    found
}

impl Found {
    fn parse(path: PathBuf, kind: &str) -> Option<Self> {
        let name = path.file_name()?.to_str()?.strip_prefix(kind)?.strip_prefix('-')?.strip_suffix(".safetensors")?;
        let (step, checksum) = name.split_once('-')?;
        let (step, checksum) = (step.parse().ok()?, u32::from_str_radix(checksum, 16).ok()?);
        Some(Found { path, step, checksum })
    }

    /// Makes sure that it still is what was written.
    fn check(&self) -> Result<()> {
        let name = self.path.display();
        let actual = checksum(&self.path).with_context(|| format!("can't read the snapshot {name}"))?;
        ensure!(actual == self.checksum, "the snapshot {name} is damaged: its checksum is {actual:08x}");
        Ok(())
    }
}

/// A whole snapshot, to be read from.
#[derive(Debug)]
pub struct Opened<S> {
    /// Its file.
    pub found: Found,
    /// What was given to [`Snapshots::write`].
    pub state: S,
    counters: BTreeMap<String, BTreeMap<String, u64>>,
    tensors: Checkpoint,
}

impl<S: DeserializeOwned> Opened<S> {
    fn open(found: Found) -> Result<Self> {
        let name = found.path.display();
        let tensors = Checkpoint::file(&found.path)?;
        let header = tensors.note(KEY).with_context(|| format!("{name} is no snapshot of autofit"))?;
        let Version { version } = serde_json::from_str(header).with_context(|| format!("the snapshot {name}"))?;
        ensure!(
            version == VERSION,
            "the snapshot {name} is of layout {version}, this autofit reads {VERSION}: {OTHER}"
        );
        let Header { counters, state, .. } = serde_json::from_str(header)
            .with_context(|| format!("can't read the state in the snapshot {name}: {OTHER}"))?;
        Ok(Opened { found, state, counters, tensors })
    }
}

#[derive(Deserialize)]
struct Version {
    version: u32,
}

impl<S> Opened<S> {
    /// The value of a parameter.
    ///
    /// # Errors
    /// If it is not there with this shape, or can't be read.
    pub fn value(&mut self, path: &str, shape: &[usize]) -> Result<TensorData> {
        let data = self.tensor(&format!("model.{path}"))?;
        let stored = data.shape().to_vec();
        ensure!(
            stored == shape,
            "{}: {path} has shape {stored:?}, the model needs {shape:?}",
            self.found.path.display()
        );
        Ok(data)
    }

    /// What the optimizer remembered of a parameter; `None` where it had not been updated.
    ///
    /// # Errors
    /// If it can't be read.
    pub fn memory(&mut self, path: &str) -> Result<Option<Imported>> {
        let Some(counters) = self.counters.remove(path) else { return Ok(None) };
        let prefix = format!("optimizer.{path}.");
        let names: Vec<String> =
            self.tensors.names().filter(|name| name.starts_with(&prefix)).map(str::to_string).collect();
        let mut memory = Imported { counters, tensors: Vec::new() };
        for name in names {
            memory.tensors.push((name[prefix.len()..].to_string(), self.tensor(&name)?));
        }
        Ok(Some(memory))
    }

    fn tensor(&mut self, name: &str) -> Result<TensorData> {
        let loaded = self.tensors.read(name)?;
        Ok(TensorData::new(loaded.values, loaded.shape))
    }
}

/// CRC-32 (IEEE) of a whole file.
pub(super) fn checksum(path: &Path) -> Result<u32> {
    let mut file = File::open(path)?;
    let mut hasher = crc32fast::Hasher::new();
    let mut piece = [0u8; 1 << 13];
    loop {
        match file.read(&mut piece)? {
            0 => return Ok(hasher.finalize()),
            count => hasher.update(&piece[..count]),
        }
    }
}

#[cfg(test)]
mod tests;
