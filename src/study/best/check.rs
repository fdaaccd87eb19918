//! Numbers of a `best.toml` that somebody may have written by hand, or damaged: each is named that can't be.

use std::fmt::Display;
use std::ops::RangeInclusive;

use anyhow::{Result, anyhow};

use super::{Best, NeighbourTable};
use crate::plan::bounds::{BATCH, BYTES, LABELS, LAYERS, RANK, SEED, TOKENS, within};

/// Holds every number of an answer within its bounds.
///
/// # Errors
/// Names the first key whose number lies outside.
pub(super) fn numbers(best: &Best) -> Result<()> {
    config(best)?;
    measured(best)?;
    for (table, neighbour) in [("neighbour", &best.neighbour), ("density_neighbour", &best.density_neighbour)] {
        self::neighbour(table, neighbour)?;
    }
    let most = usize::MAX >> 1;
    number("model.num_labels", best.model.num_labels, 1..=LABELS)?;
    if let Some(data) = &best.data {
        number("data.longest", data.longest, 1..=TOKENS)?;
        number("data.rows", data.rows, 0..=most)?;
    }
    number("study.seed", best.study.seed, 0..=SEED)?;
    number("study.probes", best.study.probes, 0..=most)?;
    not_negative("study.probe_seconds", best.study.probe_seconds)?;
    coefficients(best)
}

fn config(best: &Best) -> Result<()> {
    let config = &best.config;
    number("config.micro_batch", config.micro_batch, 1..=BATCH)?;
    number("config.accumulation", config.accumulation, 1..=BATCH)?;
    number("config.effective_batch", config.effective_batch, 1..=BATCH)?;
    number("config.checkpoint_layers", config.checkpoint_layers, 0..=LAYERS)?;
    number("config.max_length", config.max_length, 1..=TOKENS)?;
    if let Some(frozen) = config.frozen_layers {
        number("config.frozen_layers", frozen, 0..=LAYERS)?;
    }
    if let Some(rank) = config.lora_rank {
        number("config.lora_rank", rank, 1..=RANK)?;
    }
    Ok(())
}

fn measured(best: &Best) -> Result<()> {
    let measured = &best.measured;
    for (key, bytes) in [
        ("peak_bytes", Some(measured.peak_bytes)),
        ("margin_bytes", measured.margin_bytes),
        ("weight_bytes", Some(measured.weight_bytes)),
        ("gradient_bytes", Some(measured.gradient_bytes)),
        ("optimizer_bytes", Some(measured.optimizer_bytes)),
        ("activation_bytes", Some(measured.activation_bytes)),
        ("evaluation_peak_bytes", measured.evaluation_peak_bytes),
    ] {
        number(&format!("measured.{key}"), bytes.unwrap_or(0), 0..=BYTES)?;
    }
    if let Some(cap) = measured.cap_bytes {
        number("measured.cap_bytes", cap, 1..=BYTES)?;
    }
    for (key, value) in [
        ("samples_per_second", measured.samples_per_second),
        ("samples_per_second_low", measured.samples_per_second_low),
        ("samples_per_second_high", measured.samples_per_second_high),
        ("step_seconds", measured.step_seconds),
    ] {
        not_negative(&format!("measured.{key}"), value)?;
    }
    Ok(())
}

fn neighbour(table: &str, neighbour: &NeighbourTable) -> Result<()> {
    number(&format!("{table}.micro_batch"), neighbour.micro_batch.unwrap_or(1), 1..=BATCH)?;
    number(&format!("{table}.checkpoint_layers"), neighbour.checkpoint_layers.unwrap_or(0), 0..=LAYERS)?;
    not_negative(&format!("{table}.samples_per_second"), neighbour.samples_per_second.unwrap_or(0.0))
}

/// Fits may have any sign.
fn coefficients(best: &Best) -> Result<()> {
    let (memory, speed) = (&best.memory_model, &best.speed_model);
    for (key, value) in [
        ("memory_model.m0", memory.m0),
        ("memory_model.a0", memory.a0),
        ("memory_model.a1", memory.a1),
        ("memory_model.a2", memory.a2),
        ("speed_model.t0", speed.t0),
        ("speed_model.u0", speed.u0),
        ("speed_model.t1", speed.t1),
        ("speed_model.t2", speed.t2),
        ("speed_model.optimizer", speed.optimizer),
    ] {
        number(key, value, f64::MIN..=f64::MAX).map_err(|_| anyhow!("{key} = {value}: a finite number is needed"))?;
    }
    Ok(())
}

fn not_negative(key: &str, value: f64) -> Result<()> {
    number(key, value, 0.0..=f64::MAX).map_err(|_| anyhow!("{key} = {value}: a finite number from 0 up is needed"))
}

fn number<T: PartialOrd + Copy + Display>(key: &str, value: T, range: RangeInclusive<T>) -> Result<()> {
    within(value, range).map(drop).map_err(|error| anyhow!("{key} = {value}: {error}"))
}
