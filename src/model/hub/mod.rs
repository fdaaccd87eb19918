//! Models by name: a repository of the Hugging Face hub becomes a folder in the cache that all its clients share.
//!
//! * `name`: how a repository is called, `owner/name@revision`;
//! * `settings`: endpoint, cache, token and offline mode, from the environment;
//! * `cache`: the layout of the cache;
//! * `web`: requests, redirects, patience;
//! * `transfer`: one file, resumed and checked;
//! * `failure`: what went wrong, and what to do next.
//!
//! What is in the cache is used without asking the hub: a study that is resumed, and the training after it, see the
//! weights that were probed, with a network or without.
//!
//! Why not the crate `hf-hub`: version 0.5, the last one with a blocking client, sends the token to whatever host a
//! redirect names (tried with two local servers), looks neither at size nor at hash of what has arrived, and drops
//! `Retry-After`; none of that can be configured. Version 1.0 can't resume a download, and brings an async runtime and
//! 284 crates. So ureq speaks HTTP and TLS, and the rest is here.

mod cache;
mod failure;
mod name;
mod settings;
mod transfer;
mod web;

use std::fmt::{self, Display};
use std::path::PathBuf;

use anyhow::{Context, Result, bail, ensure};

pub use cache::is_model;
use cache::{State, Store};
pub use failure::Failure;
pub use name::Name;
pub use settings::{Access, Endpoint, Settings, Token};
use transfer::{Meter, Transfer};
use web::{Listing, Remote, Web, patiently};

use super::checkpoint;
use crate::plan::ByteSize;

/// Files of a tokenizer, whichever a model has.
pub const TOKENIZER_FILES: [&str; 7] = [
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "vocab.txt",
    "vocab.json",
    "merges.txt",
    "added_tokens.json",
];

const CONFIG: &str = "config.json";
const WEIGHTS: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

/// How much of a model is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// Its shape: `config.json`.
    Config,
    /// Weights and tokenizer too.
    Weights,
}

/// Who is told how a download goes.
pub trait Watch {
    /// A line that stays.
    fn line(&mut self, text: &str);
    /// What is going on right now.
    fn now(&mut self, text: &str);
}

/// A repository at one commit, as a folder on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// `owner/name`.
    pub repository: String,
    /// 40 hexadecimal digits.
    pub commit: String,
    /// A Hugging Face folder.
    pub folder: PathBuf,
}

impl Display for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.repository, self.commit)
    }
}

/// Finds a repository in the cache, or downloads what is needed of it.
///
/// # Errors
/// If the hub can't be reached, refuses, or has no such model, or the cache can't be written: with what to do next.
pub fn fetch(name: &Name, need: Need, settings: &Settings, watch: &mut dyn Watch) -> Result<Snapshot> {
    let store = Store::new(&settings.cache, name.id());
    let snapshot =
        |commit: String| Snapshot { repository: name.id().to_string(), folder: store.snapshot(&commit), commit };
    let known = store.commit(name.revision()).map(|commit| (store.state(&commit, need), commit));
    let fallback = match known {
        Some((State::Whole, commit)) => return Ok(snapshot(commit)),
        Some((State::Usable, commit)) => Some(commit),
        _ => None,
    };
    if settings.access == Access::Offline {
        return fallback.map(snapshot).with_context(|| {
            format!(
                "HF_HUB_OFFLINE is set, and {name} is not in the cache ({}). Unset it, or {}",
                store.folder().display(),
                failure::by_hand(name, settings)
            )
        });
    }
    match download(name, need, settings, &store, watch) {
        Ok(commit) => Ok(snapshot(commit)),
        Err(error) => match (error.downcast::<Failure>(), fallback) {
            (Ok(failure @ (Failure::Unreachable(_) | Failure::Broken(_) | Failure::Server(_))), Some(commit)) => {
                watch.line(&format!("note: {failure}: using what is in the cache of {name}"));
                Ok(snapshot(commit))
            }
            (Ok(failure), _) => Err(failure.explain(name, settings)),
            (Err(other), _) => Err(other),
        },
    }
}

/// Brings everything into the cache, the weights last, and answers with the commit.
fn download(name: &Name, need: Need, settings: &Settings, store: &Store, watch: &mut dyn Watch) -> Result<String> {
    let web = Web::new(settings);
    watch.now(&format!("asking {} for {name}", settings.endpoint.url()));
    let listing = patiently(watch, || web.listing(name))?;
    let commit = listing.sha.as_str();
    let transfer = Transfer { web: &web, store, name, commit };
    let describe = |file: &str, watch: &mut dyn Watch| patiently(watch, || web.describe(name, commit, file));
    let mut files: Vec<Remote> = Vec::new();
    for file in wanted(&listing, name, need, settings)? {
        files.push(describe(file, watch)?);
    }
    if files.iter().any(|file| file.name == INDEX) {
        // Only its content says which shards there are.
        bring(&transfer, &files, watch)?;
        for shard in checkpoint::shard_names(&store.snapshot(commit).join(INDEX))? {
            ensure!(listing.has(&shard), "{INDEX} of {name} names {shard}, which is not in the repository");
            files.push(describe(&shard, watch)?);
        }
    }
    bring(&transfer, &files, watch)?;
    if need == Need::Weights {
        for file in TOKENIZER_FILES.iter().filter(|file| !listing.has(file)) {
            store.mark_absent(commit, file)?;
        }
    }
    store.set_commit(name.revision(), commit)?;
    if need == Need::Weights {
        checkpoint::Checkpoint::open(&store.snapshot(commit))?;
    }
    Ok(listing.sha)
}

/// Downloads those files that are not in the cache, and makes all of them files of the snapshot.
fn bring(transfer: &Transfer<'_>, files: &[Remote], watch: &mut dyn Watch) -> Result<()> {
    let missing: Vec<&Remote> = files.iter().filter(|file| !transfer.is_here(file)).collect();
    let total = missing.iter().map(|file| file.size).sum();
    if !missing.is_empty() {
        let (name, folder) = (transfer.name, transfer.store.folder().display());
        let count = match missing.len() {
            1 => "1 file".to_string(),
            n => format!("{n} files"),
        };
        watch.line(&format!("downloading {name} ({count}, {}) into {folder}", ByteSize(total)));
    }
    let mut meter = Meter::new(watch, total);
    for file in files {
        transfer.bring(file, &mut meter)?;
        keep(transfer, file)?;
    }
    meter.finish();
    Ok(())
}

/// Makes content that is in the cache a file of the snapshot.
fn keep(transfer: &Transfer<'_>, file: &Remote) -> Result<()> {
    transfer.store.link(transfer.commit, &file.name, &file.etag)?;
    if file.name == CONFIG {
        // It comes first: nobody should wait for gigabytes of weights to be told that the model is of another kind.
        super::ModelConfig::from_file(&transfer.store.snapshot(transfer.commit).join(CONFIG))
            .with_context(|| format!("{} is no model that autofit knows", transfer.name))?;
    }
    Ok(())
}

/// The files to ask for, weights last.
fn wanted(listing: &Listing, name: &Name, need: Need, settings: &Settings) -> Result<Vec<&'static str>> {
    let page = || format!("{}/{}", settings.endpoint.url(), name.id());
    ensure!(
        listing.has(CONFIG),
        "{name} has no {CONFIG}: it is no model that transformers could load. Look at {} for one that is",
        page()
    );
    if need == Need::Config {
        return Ok(vec![CONFIG]);
    }
    let weights = match (listing.has(WEIGHTS), listing.has(INDEX)) {
        (true, _) => WEIGHTS,
        (false, true) => INDEX,
        (false, false) => bail!("{}", no_safetensors(listing, name, &page())),
    };
    let tokenizer = TOKENIZER_FILES.into_iter().filter(|file| listing.has(file));
    Ok([CONFIG].into_iter().chain(tokenizer).chain([weights]).collect())
}

fn no_safetensors(listing: &Listing, name: &Name, page: &str) -> String {
    let pickle =
        |file: &&str| !file.contains('/') && [".bin", ".pt", ".pth", ".ckpt"].iter().any(|e| file.ends_with(e));
    let (id, revision) = (name.id(), name.revision());
    match listing.names().find(pickle) {
        Some(file) => format!(
            "{name} has its weights only as {file}, a pickle that can run code when it is read. Many such repositories \
             have a pull request with safetensors: look at {page}/discussions and give --revision refs/pr/N. Or convert \
             it once, if you trust it, with Python and transformers: from transformers import AutoModel, AutoTokenizer; \
             AutoModel.from_pretrained(\"{id}\", revision=\"{revision}\").save_pretrained(\"converted\", \
             safe_serialization=True); AutoTokenizer.from_pretrained(\"{id}\", \
             revision=\"{revision}\").save_pretrained(\"converted\"); then give --model ./converted"
        ),
        None => format!("{name} has neither {WEIGHTS} nor {INDEX}: look at {page} for a repository that has"),
    }
}

/// What a person has to get by hand.
fn wanted_words() -> String {
    format!("{CONFIG}, {WEIGHTS} (or {INDEX} and the shards it names), {} and its companions", TOKENIZER_FILES[0])
}
