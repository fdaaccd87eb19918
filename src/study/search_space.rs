//! The axes of a search, as written in `search-spaces/*.toml`: which precisions, micro-batches, checkpoint densities
//! and, where asked for, optimizers, frozen layers and adapter ranks.
//!
//! The file is read by hand rather than by derive: serde's untagged enums answer a typing error with "did not match
//! any variant", and these files are written by people.

use std::path::Path;

use anyhow::{Context, Result, anyhow, bail, ensure};
use toml::Table;

use super::suggest;
use crate::plan::{Knobs, OptimizerKind, Precision, bounds, partition};

mod axis;

use axis::Axis;

/// The spaces that come with autofit: name and text.
const NAMED: [(&str, &str); 6] = [
    ("default", include_str!("../../search-spaces/default.toml")),
    ("fp32", include_str!("../../search-spaces/fp32.toml")),
    ("quick", include_str!("../../search-spaces/quick.toml")),
    ("mixed", include_str!("../../search-spaces/mixed.toml")),
    ("memory", include_str!("../../search-spaces/memory.toml")),
    ("adapters", include_str!("../../search-spaces/adapters.toml")),
];

/// The keys of a search-space file.
const KEYS: [&str; 6] = ["precision", "micro_batch", "checkpoint_layers", "optimizer", "frozen_layers", "lora_rank"];

/// Which micro-batch sizes to consider.
#[derive(Clone, Debug, PartialEq)]
pub enum MicroAxis {
    /// Every size that matters: see [`partition::candidates`].
    Auto,
    /// These sizes, each lowered to the largest part that it really leads to.
    Sizes(Vec<usize>),
}

/// Which checkpoint densities to consider.
#[derive(Clone, Debug, PartialEq)]
pub enum DensityAxis {
    /// Every count from 0 to L.
    All,
    /// These counts of layers.
    Counts(Vec<usize>),
    /// These shares of the layers, rounded to whole layers.
    Shares(Vec<f64>),
}

/// A number of encoder layers, outright or as a share of those that a model has.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Layers {
    /// As many, or all of a model that has fewer.
    Count(usize),
    /// This share, from 0 to 1, rounded to whole layers.
    Share(f64),
}

impl Layers {
    /// How many that are of a model's `layers`.
    pub fn of(self, layers: usize) -> usize {
        match self {
            Layers::Count(count) => count.min(layers),
            Layers::Share(share) => (share * layers as f64).round() as usize,
        }
    }
}

/// A search space.
#[derive(Clone, Debug, PartialEq)]
pub struct SearchSpace {
    /// Its name, or the path it was read from.
    pub name: String,
    /// Precisions, none twice.
    pub precision: Vec<Precision>,
    /// Micro-batch sizes.
    pub micro_batch: MicroAxis,
    /// Checkpoint densities.
    pub checkpoint_layers: DensityAxis,
    /// Optimizers.
    pub optimizer: Vec<OptimizerKind>,
    /// Lowest layers that are not trained, with the embeddings; `None` trains everything.
    pub frozen_layers: Vec<Option<Layers>>,
    /// Ranks of low-rank adapters; `None` uses no adapters.
    pub lora_rank: Vec<Option<usize>>,
}

impl SearchSpace {
    /// Names of the spaces that come with autofit.
    pub fn names() -> impl Iterator<Item = &'static str> {
        NAMED.iter().map(|(name, _)| *name)
    }

    /// Leaves out precisions in which a device does not compute; those that were left out.
    ///
    /// # Errors
    /// If none is left.
    pub fn keep_precisions(&mut self, computed: &[Precision]) -> Result<Vec<Precision>> {
        let (kept, missing): (Vec<_>, Vec<_>) =
            self.precision.iter().partition(|precision| computed.contains(precision));
        ensure!(!kept.is_empty(), "the device computes in none of the precisions of search space '{}'", self.name);
        self.precision = kept;
        Ok(missing)
    }

    /// A space by name, by path when `which` ends in `.toml` or has a slash, or written out when it is in braces:
    /// `{ micro_batch = [4, 8] }`.
    ///
    /// # Errors
    /// For an unknown name (with the nearest one and the list), an unreadable file, or what is no search space.
    pub fn load(which: &str) -> Result<SearchSpace> {
        if which.starts_with('{') {
            return SearchSpace::written_out(which);
        }
        if let Some((name, text)) = NAMED.iter().find(|(name, _)| *name == which) {
            return SearchSpace::parse(name, text);
        }
        if which.ends_with(".toml") || which.contains('/') {
            let text = std::fs::read_to_string(Path::new(which)).with_context(|| format!("search space {which}"))?;
            return SearchSpace::parse(which, &text);
        }
        let list = SearchSpace::names().collect::<Vec<_>>().join(", ");
        let meant = suggest::hint(which, SearchSpace::names());
        bail!("unknown search space '{which}'{meant}: use one of {list}, or the path of a .toml file")
    }

    fn written_out(text: &str) -> Result<SearchSpace> {
        let name = "given in braces";
        let line: Table = format!("space = {text}").parse().with_context(|| format!("search space {name}"))?;
        match line.get("space") {
            Some(toml::Value::Table(axes)) if line.len() == 1 => SearchSpace::parse(name, &axes.to_string()),
            _ => bail!("search space {name}: expected axes in braces, as in {{ micro_batch = [4, 8] }}"),
        }
    }

    /// The space of one combination alone, written out in braces: what [`SearchSpace::load`] takes.
    pub fn only(knobs: &Knobs) -> String {
        let Knobs { precision, micro_batch, checkpoint_layers, optimizer, frozen_layers, lora_rank } = *knobs;
        let space = SearchSpace {
            name: String::new(),
            precision: vec![precision],
            micro_batch: MicroAxis::Sizes(vec![micro_batch]),
            checkpoint_layers: DensityAxis::Counts(vec![checkpoint_layers]),
            optimizer: vec![optimizer],
            frozen_layers: vec![frozen_layers.map(Layers::Count)],
            lora_rank: vec![lora_rank],
        };
        format!("{{ {} }}", space.to_toml().trim_end().replace('\n', ", "))
    }

    /// Reads a space from TOML. `name` is used in errors and in the record.
    ///
    /// # Errors
    /// For broken TOML, an unknown key or word (with the nearest known one), an empty axis, or a value out of range.
    pub fn parse(name: &str, text: &str) -> Result<SearchSpace> {
        let read = || -> Result<SearchSpace> {
            let table: Table = text.parse()?;
            for key in table.keys() {
                if !KEYS.contains(&key.as_str()) {
                    let meant = suggest::hint(key, KEYS);
                    bail!("unknown key '{key}'{meant}: the keys are {}", KEYS.join(", "));
                }
            }
            let at = |key: &'static str| Axis { key, value: table.get(key) };
            Ok(SearchSpace {
                name: name.to_string(),
                precision: at("precision").words(&[Precision::Fp32, Precision::Bf16])?,
                micro_batch: at("micro_batch").micro()?,
                checkpoint_layers: at("checkpoint_layers").density()?,
                optimizer: at("optimizer").words(&[OptimizerKind::AdamW])?,
                frozen_layers: at("frozen_layers").layers()?,
                lora_rank: at("lora_rank").counts(1..=bounds::RANK)?,
            })
        };
        read().with_context(|| format!("search space {name}"))
    }

    /// The space as TOML, without comments: what `space.toml` holds, and what the study's identity is made from.
    pub fn to_toml(&self) -> String {
        let words = |words: Vec<String>| format!("[{}]", words.join(", "));
        let quoted = |word: &dyn std::fmt::Display| format!("\"{word}\"");
        let none = || quoted(&"none");
        let frozen = self.frozen_layers.iter().map(|layers| match layers {
            None => none(),
            Some(Layers::Count(count)) => count.to_string(),
            Some(Layers::Share(share)) => format!("{share:?}"),
        });
        let ranks = self.lora_rank.iter().map(|rank| rank.map_or_else(none, |rank| rank.to_string()));
        let micro = match &self.micro_batch {
            MicroAxis::Auto => quoted(&"auto"),
            MicroAxis::Sizes(sizes) => words(sizes.iter().map(usize::to_string).collect()),
        };
        let density = match &self.checkpoint_layers {
            DensityAxis::All => quoted(&"all"),
            DensityAxis::Counts(counts) => words(counts.iter().map(usize::to_string).collect()),
            DensityAxis::Shares(shares) => words(shares.iter().map(|share| format!("{share:?}")).collect()),
        };
        let precision = words(self.precision.iter().map(|p| quoted(p)).collect());
        let optimizer = words(self.optimizer.iter().map(|o| quoted(o)).collect());
        let values = [precision, micro, density, optimizer, words(frozen.collect()), words(ranks.collect())];
        KEYS.iter().zip(values).map(|(key, value)| format!("{key} = {value}\n")).collect()
    }

    /// Micro-batch sizes for an effective batch, smallest first.
    ///
    /// # Errors
    /// If the effective batch is zero, or beyond all measure.
    pub fn micro_batches(&self, effective: usize) -> Result<Vec<usize>> {
        bounds::within(effective, 1..=bounds::BATCH)
            .map_err(|error| anyhow!("an effective batch of {effective} samples can't be trained: {error}"))?;
        let mut sizes = match &self.micro_batch {
            MicroAxis::Auto => partition::candidates(effective),
            MicroAxis::Sizes(sizes) => sizes.iter().map(|&size| partition::largest_part(effective, size)).collect(),
        };
        sizes.sort_unstable();
        sizes.dedup();
        Ok(sizes)
    }

    /// Checkpoint densities for a model of `layers` encoder layers, smallest first.
    pub fn densities(&self, layers: usize) -> Vec<usize> {
        let mut counts: Vec<usize> = match &self.checkpoint_layers {
            DensityAxis::All => (0..=layers).collect(),
            DensityAxis::Counts(counts) => counts.iter().map(|&count| Layers::Count(count).of(layers)).collect(),
            DensityAxis::Shares(shares) => shares.iter().map(|&share| Layers::Share(share).of(layers)).collect(),
        };
        counts.sort_unstable();
        counts.dedup();
        counts
    }

    /// Counts of frozen layers for a model of `layers` encoder layers, in the order of the file, none twice.
    pub fn frozen(&self, layers: usize) -> Vec<Option<usize>> {
        let mut counts: Vec<Option<usize>> = Vec::new();
        for count in self.frozen_layers.iter().map(|frozen| frozen.map(|frozen| frozen.of(layers))) {
            if !counts.contains(&count) {
                counts.push(count);
            }
        }
        counts
    }

    /// What is worth a word to someone whose model has `layers` encoder layers: counts that were meant for a deeper one.
    pub fn notes(&self, layers: usize) -> Vec<String> {
        let density = match &self.checkpoint_layers {
            DensityAxis::Counts(counts) => counts.as_slice(),
            DensityAxis::All | DensityAxis::Shares(_) => &[],
        };
        let frozen = self.frozen_layers.iter().filter_map(|frozen| match frozen {
            Some(Layers::Count(count)) => Some(("frozen_layers", *count)),
            Some(Layers::Share(_)) | None => None,
        });
        let counts = density.iter().map(|&count| ("checkpoint_layers", count)).chain(frozen);
        let name = &self.name;
        counts
            .filter(|(_, count)| *count > layers)
            .map(|(key, count)| {
                format!("search space {name}: {key} = {count}, taken as the {layers} that the model has")
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(text: &str) -> String {
        format!("{:#}", SearchSpace::parse("test.toml", text).unwrap_err())
    }

    #[test]
    fn every_named_space_reads_and_round_trips() {
        for name in SearchSpace::names() {
            let space = SearchSpace::load(name).unwrap();
            assert_eq!(SearchSpace::parse(name, &space.to_toml()).unwrap(), space, "{name}");
            assert!(!space.densities(6).is_empty());
        }
        let default = SearchSpace::load("default").unwrap();
        assert_eq!(default.precision, [Precision::Fp32, Precision::Bf16]);
        assert_eq!(default.micro_batches(32).unwrap(), [1, 2, 3, 4, 5, 6, 7, 8, 11, 16, 32]);
        assert_eq!(default.densities(6).len(), 7);
        assert_eq!((default.frozen_layers, default.lora_rank), (vec![None], vec![None]));
    }

    #[test]
    fn every_form_of_an_axis() {
        let read = |text: &str| SearchSpace::parse("t", text).unwrap();
        let space = read("checkpoint_layers = [0.0, 0.5, 1.0]\nmicro_batch = [12, 8, 64]\nlora_rank = [\"none\", 8]");
        assert_eq!(space.densities(12), [0, 6, 12]);
        assert_eq!(space.micro_batches(32).unwrap(), [8, 11, 32]);
        assert_eq!(space.lora_rank, [None, Some(8)]);
        assert_eq!(read("checkpoint_layers = \"full\"").densities(4), [4]);
        assert_eq!(read("checkpoint_layers = \"none\"").densities(4), [0]);
        assert_eq!(read("checkpoint_layers = [3, 0]").densities(4), [0, 3]);
        assert_eq!(read("checkpoint_layers = \"half\"").densities(7), [4]);
        let frozen = read("frozen_layers = [\"none\", 0, 0.25, \"half\", \"all\", 1]");
        assert_eq!(frozen.frozen(12), [None, Some(0), Some(3), Some(6), Some(12), Some(1)]);
        assert_eq!(frozen.frozen(2), [None, Some(0), Some(1), Some(2)], "none twice");
        assert!(SearchSpace::parse("t", &frozen.to_toml()).unwrap() == frozen && frozen.notes(2).is_empty());
        assert!(read("").micro_batches(0).is_err());
        assert!(SearchSpace::parse("t", &space.to_toml()).unwrap() == space);
    }

    #[test]
    fn a_space_may_be_written_out_in_braces() {
        let space = SearchSpace::load("{ micro_batch = [4, 8], precision = [\"bf16\"] }").unwrap();
        assert_eq!((space.micro_batches(8).unwrap(), space.precision), (vec![4, 8], vec![Precision::Bf16]));
        let knobs = Knobs { frozen_layers: Some(2), lora_rank: Some(8), ..Knobs::new(Precision::Fp16, 3, 1) };
        let only = SearchSpace::only(&knobs);
        assert!(!only.contains('\n'), "{only}");
        let space = SearchSpace::load(&only).unwrap();
        assert_eq!((space.micro_batches(8).unwrap(), space.densities(6)), (vec![3], vec![1]));
        assert_eq!((space.frozen(6), space.lora_rank), (vec![Some(2)], vec![Some(8)]));
        for (text, word) in [("{", "given in braces"), ("{}\nx = 1", "in braces"), ("{ micro = [1] }", "micro_batch")] {
            let error = format!("{:#}", SearchSpace::load(text).unwrap_err());
            assert!(error.contains(word), "{text}: {error}");
        }
    }

    #[test]
    fn what_was_meant_for_a_deeper_model_is_cut_and_said() {
        let text = "checkpoint_layers = [0, 3, 7]\nfrozen_layers = [\"none\", 2, 9, \"all\"]";
        let space = SearchSpace::parse("mine.toml", text).unwrap();
        assert_eq!((space.densities(3), space.frozen(3)), (vec![0, 3], vec![None, Some(2), Some(3)]));
        let said = space.notes(3);
        assert_eq!(said.len(), 2, "{said:?}");
        assert_eq!(said[0], "search space mine.toml: checkpoint_layers = 7, taken as the 3 that the model has");
        assert!(said[1].contains("frozen_layers = 9"), "{said:?}");
        assert!(space.notes(9).is_empty());
    }

    #[test]
    fn errors_name_the_key_and_what_was_meant() {
        assert!(error("precison = [\"fp32\"]").contains("unknown key 'precison' (did you mean 'precision'?)"));
        assert!(error("precison = 1").starts_with("search space test.toml"));
        assert!(error("precision = [\"fp23\"]").contains("precision: unknown precision 'fp23'"));
        assert!(error("precision = []").contains("empty"));
        assert!(error("precision = [\"fp32\", \"fp32\"]").contains("twice"));
        assert!(error("precision = \"fp32\"").contains("expected a list"));
        assert!(error("micro_batch = [0]").contains("from 1 up"));
        assert!(error("micro_batch = \"big\"").contains("auto"));
        assert!(error("checkpoint_layers = [0, 0.5]").contains("either counts"));
        assert!(error("checkpoint_layers = [1.5]").contains("between 0.0 and 1.0"));
        assert!(error("checkpoint_layers = \"ful\"").contains("did you mean 'full'?"));
        assert!(error("checkpoint_layers = []").contains("empty"));
        assert!(error("lora_rank = [0]").contains("from 1 up"));
        assert!(error("frozen_layers = [\"haf\"]").contains("unknown word 'haf' (did you mean 'half'?)"));
        assert!(error("frozen_layers = [1.5]").contains("frozen_layers: a share lies between 0.0 and 1.0"));
        assert!(error("frozen_layers = [0.5, \"half\"]").contains("twice"));
        assert!(error("lora_rank = [\"half\"]").contains("unknown word"));
        assert!(error("x = ").contains("test.toml"));
        let unknown = format!("{:#}", SearchSpace::load("defualt").unwrap_err());
        assert!(unknown.contains("did you mean 'default'?") && unknown.contains("adapters"), "{unknown}");
        assert!(SearchSpace::load("./missing.toml").is_err());
    }
}
