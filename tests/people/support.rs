//! Studies on disk as `probe` would have left them, and a way to call the program.

use std::path::Path;
use std::process::{Command, Output};

use autofit::plan::{Knobs, Outcome, Precision};
use autofit::probe::protocol::{Attempt, Measurement, OomRecord};
use autofit::study::identity::Identity;
use autofit::study::journal::Journal;
use autofit::study::row::Derived;
use autofit::study::trial::{Purpose, Trial};

/// Runs the program.
pub fn autofit(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_autofit")).args(arguments).output().expect("the program starts")
}

/// Standard output of a call that must succeed.
pub fn said(arguments: &[&str]) -> String {
    let output = autofit(arguments);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {error}");
    String::from_utf8(output.stdout).expect("UTF-8")
}

/// Standard error of a call that must fail with this exit code.
pub fn refused(arguments: &[&str], code: i32) -> String {
    let output = autofit(arguments);
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {}", String::from_utf8_lossy(&output.stdout));
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// What the trials of a study say it is.
pub fn identity(cap: u64) -> Identity {
    Identity {
        model: "/models/<b>&'bert\"".into(),
        config_digest: None,
        weights_digest: None,
        rows_digest: None,
        num_labels: 2,
        longest: 128,
        lengths_digest: "0".into(),
        max_length: 128,
        effective_batch: 32,
        device: "cpu".into(),
        cap_bytes: Some(cap),
        space_digest: "0".into(),
        seed: 1,
        version: "0.1.0".into(),
    }
}

/// A trial without a number.
pub fn trial(precision: Precision, micro: usize, layers: usize, outcome: Outcome, megabytes: u64) -> Trial {
    let measurement = Measurement {
        peak_bytes: megabytes << 20,
        weight_bytes: 100 << 20,
        gradient_bytes: 100 << 20,
        optimizer_bytes: 200 << 20,
        micro_seconds: vec![0.5],
        optimizer_seconds: vec![0.1],
        layers: 6,
        ..Measurement::default()
    };
    let oom =
        OomRecord { requested: Some(megabytes << 19), live: Some(megabytes << 19), cap: None, text: String::new() };
    Trial {
        number: 0,
        knobs: Knobs::new(precision, micro, layers),
        purpose: if outcome == Outcome::Pruned { Purpose::Prune } else { Purpose::Explore },
        attempt: Attempt {
            outcome,
            reason: format!("<script>alert('{outcome}')</script> & \u{7}more"),
            measurement: (outcome == Outcome::Fit).then_some(measurement),
            oom: (outcome == Outcome::Oom).then_some(oom),
            wall_seconds: 3.5,
        },
        unix_seconds: 1_700_000_000,
    }
}

/// Writes `study.toml` and `trials.csv`; those that fit get a speed that grows with their number.
pub fn study(folder: &Path, cap: u64, trials: Vec<Trial>) {
    let mut journal = Journal::open(folder, &identity(cap), true).expect("a journal");
    for (at, mut trial) in trials.into_iter().enumerate() {
        trial.number = at + 1;
        let fits = trial.attempt.outcome == Outcome::Fit;
        let derived = Derived {
            accumulation: trial.knobs.accumulation(32),
            step_seconds: fits.then_some(32.0 / (at + 1) as f64),
            samples_per_second: fits.then_some((at + 1) as f64),
        };
        journal.append(trial, &derived).expect("appended");
    }
}

/// An answer as `probe` writes it.
pub const BEST: &str = r#"
[config]
micro_batch = 8
accumulation = 4
effective_batch = 32
precision = "bf16"
checkpoint_layers = 3
max_length = 128
optimizer = "adamw"

[measured]
peak_bytes = 900000000
cap_bytes = 1000000000
margin_bytes = 100000000
samples_per_second = 5.0
samples_per_second_low = 4.8
samples_per_second_high = 5.2
step_seconds = 6.4
weight_bytes = 104857600
gradient_bytes = 104857600
optimizer_bytes = 209715200
activation_bytes = 480569600
certified = true

[neighbour]
micro_batch = 11
checkpoint_layers = 3
outcome = "oom"
reason = "trial 2: refused <9> MiB"

[density_neighbour]
micro_batch = 8
checkpoint_layers = 2
outcome = "fit"
samples_per_second = 4.9
reason = "trial 3: fits"

[model]
folder = "/models/<b>&'bert\""
num_labels = 2

[study]
model = "/models/<b>&'bert\""
device = "cpu"
seed = 1
autofit = "0.1.0"
framework = "burn 0.22.1"
space = "default"
probes = 5
probe_seconds = 17.5
tie_rule = "none"
created = "2026-01-01T00:00:00Z"

[memory_model]
m0 = 419430400.0
a0 = 10000000.0
a1 = 12000000.0
a2 = 400000.0

[speed_model]
t0 = 0.01
u0 = 0.0
t1 = 0.1
t2 = 0.03
optimizer = 0.1
"#;
