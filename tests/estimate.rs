//! The estimate against real probes: fails when a kernel has changed what a step holds and the table in
//! `study::estimate` was not measured anew (`scripts/calibrate-estimate.py`).

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use autofit::model::presets;
use autofit::plan::{Knobs, OptimizerKind, Precision};
use autofit::probe::protocol::{Effort, Job, ModelSource, PROTOCOL, ProbeSpec, Shapes, Task};
use autofit::probe::{Executor, LocalProcess, Workers};
use autofit::study::estimate::{self, ERROR};
use autofit::study::problem::SizeHint;

/// Set by nobody: these probes are not interrupted.
static NEVER: AtomicBool = AtomicBool::new(false);

/// Peak of a real probe on the CPU.
fn measured(executor: &mut LocalProcess, preset: &str, knobs: Knobs, effective_batch: usize, longest: usize) -> f64 {
    let spec = ProbeSpec {
        model: ModelSource::Preset(preset.into()),
        num_labels: 2,
        knobs,
        effective_batch,
        shapes: Shapes { longest, typical: vec![], distinct: None, rows: vec![] },
        effort: Effort { warmup: 0, min_timed: 1, max_timed: 1, seconds: 0.0, evaluate: false },
        seed: 1,
    };
    let job = Job { protocol: PROTOCOL, device: "cpu".into(), cap_bytes: None, task: Task::Probe(spec) };
    let finished = executor.run(&job, Duration::from_secs(600), &mut |_| {});
    let measurement = finished.attempt.measurement.unwrap_or_else(|| panic!("{knobs}: {}", finished.attempt.reason));
    measurement.peak_bytes as f64
}

fn estimated(preset: &str, knobs: &Knobs, effective_batch: usize, length: usize) -> f64 {
    let config = presets::config(preset).expect("a preset");
    let size = SizeHint {
        parameters: config.parameters(2),
        hidden: config.hidden_size,
        layers: config.layers,
        intermediate: config.intermediate_size,
        heads: config.heads,
        vocab: config.vocab_size,
        positions: config.max_positions,
        length,
    };
    estimate::peak(&size, knobs, effective_batch)
}

#[test]
fn estimates_agree_with_real_probes() {
    let worker = LocalProcess::new(env!("CARGO_BIN_EXE_autofit"), ["__worker"]);
    let mut executor = worker.interrupt(&NEVER).workers(Workers::Fresh);
    let mut report = String::new();
    let mut errors = Vec::new();
    // Micro-batch, density, optimizer, effective batch, length: each of the moments that can be the peak.
    let cases = [
        (Precision::Fp32, 6, 0, OptimizerKind::AdamW, 12, 64),
        (Precision::Fp32, 2, 2, OptimizerKind::AdamW, 4, 256),
        (Precision::Fp32, 6, 4, OptimizerKind::AdamW, 12, 96),
        (Precision::Fp32, 8, 0, OptimizerKind::AdamW, 8, 64),
        (Precision::Bf16, 6, 0, OptimizerKind::AdamW, 12, 64),
        (Precision::Bf16, 6, 2, OptimizerKind::AdamW, 12, 96),
        (Precision::Fp32, 1, 0, OptimizerKind::AdamW, 2, 32),
        (Precision::Fp32, 1, 0, OptimizerKind::Adafactor, 2, 32),
        (Precision::Fp32, 1, 0, OptimizerKind::Lion, 2, 32),
        (Precision::Fp32, 1, 0, OptimizerKind::Sgd, 2, 32),
    ];
    for (precision, micro, layers, optimizer, effective, length) in cases {
        let knobs = Knobs { optimizer, ..Knobs::new(precision, micro, layers) };
        let real = measured(&mut executor, "tinybert", knobs, effective, length);
        let error = estimated("tinybert", &knobs, effective, length) / real - 1.0;
        errors.push(error);
        report += &format!("\n{knobs}, {optimizer}, effective {effective}, length {length}: {:+.2} %", 100.0 * error);
    }
    assert!(errors.iter().all(|error| error.abs() <= ERROR), "the table of study::estimate has grown old: {report}");
}
