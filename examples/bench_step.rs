//! One training step, measured: `cargo run --release --example bench_step -- distilbert 8 128 fp32 0`.
//!
//! Arguments: model preset, micro-batch, tokens a row, precision, recomputed layers, then optionally accumulation (1),
//! engine (`fused` or `tape`) and timed steps (5). Prints one line of JSON: samples per second (median step), the counted
//! peak of bytes in two steps, and where the time of a step went.

use std::time::Instant;

use anyhow::{Context, Result, bail};
use autofit::data::batch::PadTo;
use autofit::data::corpus::Targets;
use autofit::data::synthetic;
use autofit::device::meter::{self, Meter};
use autofit::model::{Classifier, presets};
use autofit::plan::{Knobs, Precision};
use autofit::train::Learner;
use autofit::train::batch::MicroBatch;
use autofit::train::step::{Engine, StepSettings};
use burn::tensor::Device;

#[global_allocator]
static METER: Meter = Meter::new();

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let word = |i: usize, default: &str| arguments.get(i).map_or(default, String::as_str).to_string();
    let number = |i: usize, default: &str| word(i, default).parse::<usize>().context("a whole number was expected");
    let (name, batch, length) = (word(0, "distilbert"), number(1, "8")?, number(2, "128")?);
    let precision = match word(3, "fp32").as_str() {
        "fp32" => Precision::Fp32,
        "bf16" => Precision::Bf16,
        "fp16" => Precision::Fp16,
        other => bail!("unknown precision {other}: fp32, bf16 or fp16"),
    };
    let (density, accumulation, steps) = (number(4, "0")?, number(5, "1")?, number(7, "5")?);
    let engine = if word(6, "fused") == "tape" { Engine::Tape } else { Engine::Fused };

    meter::tune();
    meter::arm(None);
    let config = presets::config(&name).with_context(|| format!("no preset is called {name}"))?;
    let device = Device::flex().autodiff();
    let model = Classifier::init(&config, 1, &device);
    let settings = StepSettings { engine, ..StepSettings::new(Knobs::new(precision, batch, density), 1) };
    let mut learner = Learner::new(model, config, settings, device);
    let (rows, labels) = synthetic::rows(batch, length, learner.config.vocab_size, 2, 1)?;
    let rows: Vec<_> = rows.iter().collect();
    let (mut whole, mut updates, mut loss) = (Vec::new(), Vec::new(), 0.0);
    for step in 0..steps + 2 {
        if step == 1 {
            // Moments exist from the first step on.
            meter::reset_peak();
        }
        let started = Instant::now();
        for _ in 0..accumulation {
            let targets = Targets::Classes(labels.clone());
            let part = MicroBatch::new(&rows, targets, PadTo::Longest, &learner.config, learner.device())?;
            learner.accumulate(&part, (batch * accumulation) as f64);
        }
        let update = Instant::now();
        loss = learner.update(1e-5)?.loss;
        if step >= 2 {
            whole.push(started.elapsed().as_secs_f64());
            updates.push(update.elapsed().as_secs_f64());
        }
    }
    let (seconds, update) = (median(&mut whole), median(&mut updates));
    let line = serde_json::json!({
        "model": name, "batch": batch, "seq": length, "precision": precision.name(), "recomputed": density,
        "accumulation": accumulation, "engine": format!("{engine:?}"), "step_s": seconds, "update_s": update,
        "sps": (batch * accumulation) as f64 / seconds, "peak_mib": meter::peak() as f64 / f64::from(1 << 20),
        "live_mib": meter::live() as f64 / f64::from(1 << 20), "loss": loss,
    });
    println!("{line}");
    Ok(())
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}
