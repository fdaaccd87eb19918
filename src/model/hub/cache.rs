//! The folder layout that Hugging Face clients share, so that what one has downloaded, the others find:
//!
//! ```text
//! models--owner--name/refs/main                     the commit that a branch was at
//!                     snapshots/<commit>/config.json → ../../blobs/<etag>
//!                     blobs/<etag>                  content, under the hash that the hub gives it
//!                     blobs/<etag>.incomplete       what a download has so far
//!                     .no_exist/<commit>/vocab.txt  the repository has no such file
//! .locks/models--owner--name/<etag>.lock            held by whoever writes that blob
//! ```
//!
//! A blob gets its name only when it is whole. See "Understand caching" in the documentation of `huggingface_hub`.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::name::is_commit;
use super::{Need, TOKENIZER_FILES, Watch};
use crate::model::checkpoint::Checkpoint;
use crate::plan::files;

/// What the cache has of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// All that the repository has of what is needed.
    Whole,
    /// What can't be done without; whether the repository has more is unknown.
    Usable,
    /// Too little.
    Missing,
}

/// The part of the cache that belongs to one repository.
#[derive(Debug)]
pub(super) struct Store {
    folder: PathBuf,
    locks: PathBuf,
}

impl Store {
    pub(super) fn new(cache: &Path, id: &str) -> Self {
        let name = format!("models--{}", id.replace('/', "--"));
        Store { folder: cache.join(&name), locks: cache.join(".locks").join(name) }
    }

    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// The commit that a revision stands for, as far as it is known here.
    pub(super) fn commit(&self, revision: &str) -> Option<String> {
        if is_commit(revision) {
            return Some(revision.to_string());
        }
        let text = fs::read_to_string(self.folder.join("refs").join(revision)).ok()?;
        Some(text.trim().to_string()).filter(|commit| is_commit(commit))
    }

    pub(super) fn snapshot(&self, commit: &str) -> PathBuf {
        self.folder.join("snapshots").join(commit)
    }

    pub(super) fn blob(&self, etag: &str) -> PathBuf {
        self.folder.join("blobs").join(etag)
    }

    pub(super) fn partial(&self, etag: &str) -> PathBuf {
        self.folder.join("blobs").join(format!("{etag}.incomplete"))
    }

    pub(super) fn state(&self, commit: &str, need: Need) -> State {
        let snapshot = self.snapshot(commit);
        if !is_model(&snapshot, need) {
            return State::Missing;
        }
        let settled = |name: &&str| snapshot.join(name).is_file() || self.absent(commit, name).is_file();
        match need {
            Need::Weights if !TOKENIZER_FILES.iter().all(settled) => State::Usable,
            _ => State::Whole,
        }
    }

    /// Makes a blob a file of a snapshot.
    pub(super) fn link(&self, commit: &str, name: &str, etag: &str) -> Result<()> {
        let file = self.snapshot(commit).join(name);
        let beside = beside(&file);
        fs::create_dir_all(self.snapshot(commit)).with_context(|| format!("can't write {}", file.display()))?;
        match std::os::unix::fs::symlink(Path::new("../../blobs").join(etag), &beside) {
            Ok(()) => fs::rename(&beside, &file).with_context(|| format!("can't write {}", file.display())),
            // A file system without links gets a copy, as huggingface_hub does it.
            Err(_) => files::copy_whole(&self.blob(etag), &file),
        }
    }

    /// Remembers that the repository has no such file.
    pub(super) fn mark_absent(&self, commit: &str, name: &str) -> Result<()> {
        write(&self.absent(commit, name), "")
    }

    /// Remembers the commit of a revision.
    pub(super) fn set_commit(&self, revision: &str, commit: &str) -> Result<()> {
        match is_commit(revision) {
            true => Ok(()),
            false => write(&self.folder.join("refs").join(revision), commit),
        }
    }

    /// Waits until no other program writes this blob; the lock is held until the file is dropped.
    pub(super) fn lock(&self, etag: &str, watch: &mut dyn Watch) -> Result<File> {
        let path = self.locks.join(format!("{etag}.lock"));
        let open = || -> io::Result<File> {
            fs::create_dir_all(&self.locks)?;
            fs::create_dir_all(self.folder.join("blobs"))?;
            File::options().create(true).append(true).open(&path)
        };
        let file = open().with_context(|| {
            format!("can't write into {}: set HF_HOME to a folder that you may write to", self.folder.display())
        })?;
        if file.try_lock().is_err() {
            watch.line(&format!("waiting for another program that downloads into {}", self.folder.display()));
            file.lock().with_context(|| format!("waiting for {}", path.display()))?;
        }
        Ok(file)
    }

    fn absent(&self, commit: &str, name: &str) -> PathBuf {
        self.folder.join(".no_exist").join(commit).join(name)
    }
}

/// Whether a folder holds what is needed of a model: files that can be read, weights as long as their headers say.
pub fn is_model(folder: &Path, need: Need) -> bool {
    let config = fs::read(folder.join("config.json"))
        .is_ok_and(|text| serde_json::from_slice::<serde_json::Value>(&text).is_ok_and(|config| config.is_object()));
    config && (need == Need::Config || Checkpoint::open(folder).is_ok())
}

/// A name for a link beside `path` that nobody else takes: a cache may be shared by threads, and by containers whose process ids
/// are the same.
fn beside(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!(".{name}.{:016x}", rand::random::<u64>()))
}

/// Writes a small file and the folders that it is in.
fn write(path: &Path, text: &str) -> Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).with_context(|| format!("can't write {}", path.display()))?;
    }
    files::write_whole(path, text)
}
