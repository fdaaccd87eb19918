//! Reading one axis of a search-space file, with errors that name its key.

use std::ops::RangeInclusive;

use anyhow::{Result, anyhow, bail, ensure};
use toml::Value;

use super::super::suggest;
use super::{DensityAxis, Layers, MicroAxis};
use crate::plan::bounds;

/// One axis of the file while it is read.
pub(super) struct Axis<'a> {
    pub(super) key: &'static str,
    pub(super) value: Option<&'a Value>,
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
    pub(super) fn words<T: std::str::FromStr<Err = String> + Copy + PartialEq>(&self, default: &[T]) -> Result<Vec<T>> {
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
    pub(super) fn micro(&self) -> Result<MicroAxis> {
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

    /// `"all"`, `"none"`, `"half"`, `"full"`, a list of counts, or a list of shares.
    pub(super) fn density(&self) -> Result<DensityAxis> {
        let list = match self.value {
            None => return Ok(DensityAxis::All),
            Some(Value::String(word)) => match word.as_str() {
                "all" => return Ok(DensityAxis::All),
                "none" => return Ok(DensityAxis::Counts(vec![0])),
                "half" => return Ok(DensityAxis::Shares(vec![0.5])),
                "full" => return Ok(DensityAxis::Shares(vec![1.0])),
                _ => {
                    let meant = suggest::hint(word, ["all", "none", "half", "full"]);
                    bail!("checkpoint_layers: unknown word '{word}'{meant}: use all, none, half, full or a list")
                }
            },
            Some(_) => self.list()?.into_iter().flatten(),
        };
        let values: Vec<&Value> = list.collect();
        if values.iter().all(|value| value.is_float()) {
            let shares = values.iter().filter_map(|value| value.as_float());
            return Ok(DensityAxis::Shares(shares.map(|share| self.share(share)).collect::<Result<_>>()?));
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
    pub(super) fn counts(&self, range: RangeInclusive<usize>) -> Result<Vec<Option<usize>>> {
        self.optional(&["none"], |value| self.count(value, range.clone()))
    }

    /// A list of counts, of shares, or of the words `"half"` and `"all"`, in which `"none"` switches the axis off.
    pub(super) fn layers(&self) -> Result<Vec<Option<Layers>>> {
        self.optional(&["none", "half", "all"], |value| match value {
            Value::String(word) => Ok(Layers::Share(if word == "half" { 0.5 } else { 1.0 })),
            Value::Float(share) => Ok(Layers::Share(self.share(*share)?)),
            number => Ok(Layers::Count(self.count(number, 0..=bounds::LAYERS)?)),
        })
    }

    /// A list of values, none of them twice, in which `"none"` switches the axis off. Of words only those are let
    /// through to `item` that are known.
    fn optional<T: PartialEq>(&self, words: &[&str], item: impl Fn(&Value) -> Result<T>) -> Result<Vec<Option<T>>> {
        let Some(list) = self.list()? else { return Ok(vec![None]) };
        let mut read = Vec::new();
        for value in list {
            let item = match value.as_str() {
                Some("none") => None,
                Some(word) if !words.contains(&word) => {
                    let meant = suggest::hint(word, words.iter().copied());
                    let known = words.iter().map(|word| format!("\"{word}\"")).collect::<Vec<_>>().join(", ");
                    bail!("{}: unknown word '{word}'{meant}: use {known} or a number", self.key)
                }
                _ => Some(item(value)?),
            };
            ensure!(!read.contains(&item), "{}: {value} is there twice", self.key);
            read.push(item);
        }
        Ok(read)
    }

    /// A share of the layers.
    fn share(&self, share: f64) -> Result<f64> {
        ensure!((0.0..=1.0).contains(&share), "{}: a share lies between 0.0 and 1.0, not {share}", self.key);
        Ok(share)
    }
}
