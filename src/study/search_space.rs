//! The axes of a search, as written in `search-spaces/*.toml`: which precisions, micro-batches, checkpoint densities
//! and, where asked for, optimizers, frozen layers and adapter ranks.
//!
//! The file is read by hand rather than by derive: serde's untagged enums answer a typing error with "did not match
//! any variant", and these files are written by people.

use std::ops::RangeInclusive;
use std::path::Path;

use anyhow::{Context, Result, anyhow, bail, ensure};
use toml::{Table, Value};

use super::suggest;
use crate::plan::{OptimizerKind, Precision, bounds, partition};

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
    /// Counts of frozen layers; `None` trains everything.
    pub frozen_layers: Vec<Option<usize>>,
    /// Ranks of low-rank adapters; `None` uses no adapters.
    pub lora_rank: Vec<Option<usize>>,
}

impl SearchSpace {
    /// Names of the spaces that come with autofit.
    pub fn names() -> impl Iterator<Item = &'static str> {
        NAMED.iter().map(|(name, _)| *name)
    }

    /// A space by name, or by path when `which` ends in `.toml` or has a slash.
    ///
    /// # Errors
    /// For an unknown name (with the nearest one and the list), an unreadable file, or a file that is no search space.
    pub fn load(which: &str) -> Result<SearchSpace> {
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
                frozen_layers: at("frozen_layers").optional(0..=bounds::LAYERS)?,
                lora_rank: at("lora_rank").optional(1..=bounds::RANK)?,
            })
        };
        read().with_context(|| format!("search space {name}"))
    }

    /// The space as TOML, without comments: what `space.toml` holds, and what the study's identity is made from.
    pub fn to_toml(&self) -> String {
        let words = |words: Vec<String>| format!("[{}]", words.join(", "));
        let quoted = |word: &dyn std::fmt::Display| format!("\"{word}\"");
        let optional = |axis: &[Option<usize>]| {
            words(axis.iter().map(|v| v.map_or_else(|| quoted(&"none"), |count| count.to_string())).collect())
        };
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
        let values = [precision, micro, density, optimizer, optional(&self.frozen_layers), optional(&self.lora_rank)];
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
    ///
    /// # Errors
    /// If the space names more layers than the model has.
    pub fn densities(&self, layers: usize) -> Result<Vec<usize>> {
        let mut counts: Vec<usize> = match &self.checkpoint_layers {
            DensityAxis::All => (0..=layers).collect(),
            DensityAxis::Counts(counts) => counts.clone(),
            DensityAxis::Shares(shares) => shares.iter().map(|s| (s * layers as f64).round() as usize).collect(),
        };
        counts.sort_unstable();
        counts.dedup();
        if let Some(count) = counts.iter().find(|&&count| count > layers) {
            bail!("search space {}: checkpoint_layers = {count}, but the model has {layers} layers", self.name);
        }
        Ok(counts)
    }
}

/// One axis of the file while it is read.
struct Axis<'a> {
    key: &'static str,
    value: Option<&'a Value>,
}

impl Axis<'_> {
    /// The list that the axis is written as; `Ok(None)` when the key is missing.
    fn list(&self) -> Result<Option<&Vec<Value>>> {
        let Some(value) = self.value else { return Ok(None) };
        let list = value.as_array().ok_or_else(|| anyhow!("{}: expected a list, found {value}", self.key))?;
        ensure!(!list.is_empty(), "{}: an empty list leaves nothing to search", self.key);
        Ok(Some(list))
    }

    /// A list of words such as precisions.
    fn words<T: std::str::FromStr<Err = String> + Copy + PartialEq>(&self, default: &[T]) -> Result<Vec<T>> {
        let Some(list) = self.list()? else { return Ok(default.to_vec()) };
        let mut read = Vec::new();
        for value in list {
            let word = value.as_str().ok_or_else(|| anyhow!("{}: expected a word, found {value}", self.key))?;
            let item = word.parse::<T>().map_err(|error| anyhow!("{}: {error}", self.key))?;
            ensure!(!read.contains(&item), "{}: '{word}' is there twice", self.key);
            read.push(item);
        }
        Ok(read)
    }

    /// One number.
    fn count(&self, value: &Value, range: RangeInclusive<usize>) -> Result<usize> {
        let number = value.as_integer().and_then(|number| usize::try_from(number).ok());
        number.filter(|number| range.contains(number)).ok_or_else(|| {
            let (least, most) = (range.start(), range.end());
            anyhow!("{}: expected a whole number from {least} up to {most}, found {value}", self.key)
        })
    }

    /// `"auto"` or a list of sizes.
    fn micro(&self) -> Result<MicroAxis> {
        match self.value {
            None => Ok(MicroAxis::Auto),
            Some(Value::String(word)) if word == "auto" => Ok(MicroAxis::Auto),
            Some(Value::Array(_)) => {
                let list = self.list()?.into_iter().flatten();
                Ok(MicroAxis::Sizes(list.map(|value| self.count(value, 1..=bounds::BATCH)).collect::<Result<_>>()?))
            }
            Some(other) => bail!("micro_batch: expected \"auto\" or a list of sizes, found {other}"),
        }
    }

    /// `"all"`, `"none"`, `"full"`, a list of counts, or a list of shares.
    fn density(&self) -> Result<DensityAxis> {
        let list = match self.value {
            None => return Ok(DensityAxis::All),
            Some(Value::String(word)) => match word.as_str() {
                "all" => return Ok(DensityAxis::All),
                "none" => return Ok(DensityAxis::Counts(vec![0])),
                "full" => return Ok(DensityAxis::Shares(vec![1.0])),
                _ => {
                    let meant = suggest::hint(word, ["all", "none", "full"]);
                    bail!("checkpoint_layers: unknown word '{word}'{meant}: use all, none, full or a list")
                }
            },
            Some(_) => self.list()?.into_iter().flatten(),
        };
        let values: Vec<&Value> = list.collect();
        if values.iter().all(|value| value.is_float()) {
            let share = |value: &&Value| {
                let share = value.as_float().unwrap_or(f64::NAN);
                ensure!(
                    (0.0..=1.0).contains(&share),
                    "checkpoint_layers: a share lies between 0.0 and 1.0, not {share}"
                );
                Ok(share)
            };
            return Ok(DensityAxis::Shares(values.iter().map(share).collect::<Result<_>>()?));
        }
        ensure!(
            values.iter().all(|value| value.is_integer()),
            "checkpoint_layers: write either counts of layers (0, 3, 6) or shares of them (0.0, 0.5, 1.0)"
        );
        Ok(DensityAxis::Counts(
            values.into_iter().map(|value| self.count(value, 0..=bounds::LAYERS)).collect::<Result<_>>()?,
        ))
    }

    /// A list of counts, in which `"none"` switches the axis off.
    fn optional(&self, range: RangeInclusive<usize>) -> Result<Vec<Option<usize>>> {
        let Some(list) = self.list()? else { return Ok(vec![None]) };
        let mut read = Vec::new();
        for value in list {
            let item = match value {
                Value::String(word) if word == "none" => None,
                Value::String(word) => bail!("{}: unknown word '{word}': use \"none\" or a number", self.key),
                number => Some(self.count(number, range.clone())?),
            };
            ensure!(!read.contains(&item), "{}: {value} is there twice", self.key);
            read.push(item);
        }
        Ok(read)
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
            assert!(!space.densities(6).unwrap().is_empty());
        }
        let default = SearchSpace::load("default").unwrap();
        assert_eq!(default.precision, [Precision::Fp32, Precision::Bf16]);
        assert_eq!(default.micro_batches(32).unwrap(), [1, 2, 3, 4, 5, 6, 7, 8, 11, 16, 32]);
        assert_eq!(default.densities(6).unwrap().len(), 7);
        assert_eq!((default.frozen_layers, default.lora_rank), (vec![None], vec![None]));
    }

    #[test]
    fn every_form_of_an_axis() {
        let read = |text: &str| SearchSpace::parse("t", text).unwrap();
        let space = read("checkpoint_layers = [0.0, 0.5, 1.0]\nmicro_batch = [12, 8, 64]\nlora_rank = [\"none\", 8]");
        assert_eq!(space.densities(12).unwrap(), [0, 6, 12]);
        assert_eq!(space.micro_batches(32).unwrap(), [8, 11, 32]);
        assert_eq!(space.lora_rank, [None, Some(8)]);
        assert_eq!(read("checkpoint_layers = \"full\"").densities(4).unwrap(), [4]);
        assert_eq!(read("checkpoint_layers = \"none\"").densities(4).unwrap(), [0]);
        assert_eq!(read("checkpoint_layers = [3, 0]").densities(4).unwrap(), [0, 3]);
        assert!(read("checkpoint_layers = [7]").densities(4).is_err());
        assert!(read("").micro_batches(0).is_err());
        assert!(SearchSpace::parse("t", &space.to_toml()).unwrap() == space);
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
        assert!(error("frozen_layers = [\"all\"]").contains("unknown word"));
        assert!(error("x = ").contains("test.toml"));
        let unknown = format!("{:#}", SearchSpace::load("defualt").unwrap_err());
        assert!(unknown.contains("did you mean 'default'?") && unknown.contains("adapters"), "{unknown}");
        assert!(SearchSpace::load("./missing.toml").is_err());
    }
}
