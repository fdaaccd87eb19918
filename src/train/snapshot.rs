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
    checksum: u32,
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

    /// Writes a snapshot, then removes the oldest ones beyond those that are kept.
    ///
    /// # Errors
    /// If it can't be written whole; the ones before it are untouched then, and nothing half-written stays.
    pub fn write<S: Serialize>(&self, step: usize, state: &S, parameters: Vec<Parameter>) -> Result<Found> {
        fs::create_dir_all(&self.folder).with_context(|| format!("can't create {}", self.folder.display()))?;
        let found = self.write_beside(step, state, parameters);
        let found = found.with_context(|| format!("can't write a snapshot into {}", self.folder.display()))?;
        for old in self.list().into_iter().skip(self.keep) {
            let _ = fs::remove_file(old.path);
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
        let path = self.folder.join(format!("step-{step:08}-{checksum:08x}.safetensors"));
        // The new name itself survives a power cut from here on: an older snapshot may go.
        draft.place(&path)?;
        Ok(Found { path, step, checksum })
    }

    /// All snapshots by name, the newest first. Whether they are whole is found out when they are opened.
    pub fn list(&self) -> Vec<Found> {
        let entries = fs::read_dir(&self.folder).into_iter().flatten().flatten();
        let mut found: Vec<Found> = entries.filter_map(|entry| Found::parse(entry.path())).collect();
        found.sort_by(|a, b| b.step.cmp(&a.step).then_with(|| a.path.cmp(&b.path)));
        found
    }

    /// Opens the newest whole snapshot; `None` if there is none. `damaged` is told of each newer one that is not.
    pub fn newest<S: DeserializeOwned>(&self, mut damaged: impl FnMut(String)) -> Option<Opened<S>> {
        for found in self.list() {
            match Opened::open(found) {
                Ok(opened) => return Some(opened),
                Err(error) => damaged(format!("{error:#}")),
            }
        }
        None
    }

    /// Removes every snapshot, and the folder if nothing else is in it.
    pub fn clear(&self) {
        for found in self.list() {
            let _ = fs::remove_file(found.path);
        }
        let _ = fs::remove_file(draft_name(&self.folder.join(WRITING)));
        let _ = fs::remove_dir(&self.folder);
    }
}

impl Found {
    fn parse(path: PathBuf) -> Option<Self> {
        let name = path.file_name()?.to_str()?.strip_prefix("step-")?.strip_suffix(".safetensors")?;
        let (step, checksum) = name.split_once('-')?;
        let (step, checksum) = (step.parse().ok()?, u32::from_str_radix(checksum, 16).ok()?);
        Some(Found { path, step, checksum })
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
        let actual = checksum(&found.path).with_context(|| format!("can't read the snapshot {name}"))?;
        ensure!(actual == found.checksum, "the snapshot {name} is damaged: its checksum is {actual:08x}");
        let tensors = Checkpoint::file(&found.path)?;
        let header = tensors.note(KEY).with_context(|| format!("{name} is no snapshot of autofit"))?;
        let Version { version } = serde_json::from_str(header).with_context(|| format!("the snapshot {name}"))?;
        ensure!(
            version == VERSION,
            "the snapshot {name} is of layout {version}, this autofit reads {VERSION}: resume it with the autofit that \
             wrote it, or start anew with --overwrite"
        );
        let Header { counters, state, .. } =
            serde_json::from_str(header).with_context(|| format!("can't read the state in the snapshot {name}"))?;
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
fn checksum(path: &Path) -> Result<u32> {
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
mod tests {
    use super::*;
    use burn::tensor::{Device, Tensor};

    fn parameters(value: f32) -> Vec<Parameter> {
        let tensor = Tensor::<2>::full([3, 2], value, &Device::flex());
        let moment = (String::from("moment"), TensorView::of(tensor.clone() * 2.0));
        let memory = Exported { tensors: vec![moment], counters: [("time".to_string(), 7)].into() };
        let plain = Tensor::<1>::full([4], value, &Device::flex());
        vec![
            Parameter { path: "a.weight".into(), value: TensorView::of(tensor), memory: Some(memory) },
            Parameter { path: "a.bias".into(), value: TensorView::of(plain), memory: None },
        ]
    }

    #[test]
    fn what_was_written_comes_back_and_the_newest_are_kept() -> Result<()> {
        let folder = tempfile::tempdir()?;
        let snapshots = Snapshots::new(folder.path().join("snapshots"), 2);
        assert!(snapshots.newest::<String>(|_| ()).is_none());
        for step in [1, 2, 10] {
            snapshots.write(step, &format!("state {step}"), parameters(step as f32))?;
        }
        assert_eq!(snapshots.list().iter().map(|found| found.step).collect::<Vec<_>>(), [10, 2]);
        let mut newest = snapshots.newest::<String>(|text| panic!("{text}")).expect("a snapshot");
        assert_eq!((newest.found.step, newest.state.as_str()), (10, "state 10"));
        assert_eq!(newest.value("a.weight", &[3, 2])?, TensorData::new(vec![10f32; 6], [3, 2]));
        assert!(newest.value("a.weight", &[2, 3]).is_err());
        let memory = newest.memory("a.weight")?.expect("a memory");
        assert_eq!(memory.counters["time"], 7);
        assert_eq!(memory.tensors, [("moment".to_string(), TensorData::new(vec![20f32; 6], [3, 2]))]);
        assert!(newest.memory("a.bias")?.is_none());
        snapshots.clear();
        assert!(!snapshots.folder().exists());
        Ok(())
    }

    #[test]
    fn a_damaged_snapshot_is_named_and_the_one_before_it_is_used() -> Result<()> {
        let folder = tempfile::tempdir()?;
        let snapshots = Snapshots::new(folder.path().to_path_buf(), 3);
        let good = snapshots.write(4, &4, parameters(1.0))?;
        let bad = snapshots.write(5, &5, parameters(1.0))?;
        let whole = fs::read(&bad.path)?;
        for damage in [0, 9, whole.len() / 2, whole.len() - 1] {
            let mut bytes = whole.clone();
            bytes[damage] ^= 1;
            fs::write(&bad.path, bytes)?;
            let mut told = Vec::new();
            let newest = snapshots.newest::<u32>(|text| told.push(text)).expect("the older one");
            assert_eq!((newest.found.path, newest.state), (good.path.clone(), 4));
            assert!(told.len() == 1 && told[0].contains(&bad.path.display().to_string()), "{told:?}");
        }
        for length in [0, 7, 8, whole.len() / 3] {
            fs::write(&bad.path, &whole[..length])?;
            assert_eq!(snapshots.newest::<u32>(|_| ()).expect("the older one").state, 4);
        }
        Ok(())
    }

    #[test]
    fn without_room_nothing_half_written_stays() -> Result<()> {
        let folder = tempfile::tempdir()?;
        let place = folder.path().join("snapshots");
        fs::write(&place, "not a folder")?;
        let error = Snapshots::new(place, 1).write(1, &(), parameters(1.0)).expect_err("there is no folder");
        assert!(format!("{error:#}").contains("snapshots"));
        Ok(())
    }
}
