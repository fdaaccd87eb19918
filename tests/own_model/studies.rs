//! What becomes of users' programs.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use autofit::study::best::Best;
use autofit::study::journal::Journal;
use autofit::study::trial::Trial;
use tempfile::TempDir;

use crate::ROLE;
use crate::ledger::{self, CAP};

type Test = (&'static str, fn());

pub const TESTS: [Test; 10] = [
    ("the_example_answers_and_repeats_nothing", the_example_answers_and_repeats_nothing),
    ("probes_tell_the_truth_about_bytes", probes_tell_the_truth_about_bytes),
    ("nothing_fits_with_what_would_be_needed", nothing_fits_with_what_would_be_needed),
    ("a_broken_workload_is_told_in_its_own_words", a_broken_workload_is_told_in_its_own_words),
    ("a_panic_under_the_cap_is_a_crash_and_no_hang", a_panic_under_the_cap_is_a_crash_and_no_hang),
    ("a_first_look_that_gives_nan_is_taken_with_more_samples", a_first_look_that_gives_nan_is_taken_with_more_samples),
    ("an_interrupted_search_goes_on", an_interrupted_search_goes_on),
    ("two_workloads_in_one_program", two_workloads_in_one_program),
    ("another_identity_is_another_study", another_identity_is_another_study),
    ("commands_know_such_a_study", commands_know_such_a_study),
];

fn command(folder: &TempDir, role: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(arguments).current_dir(folder.path()).env(ROLE, role);
    command
}

fn run(folder: &TempDir, role: &str, arguments: &[&str]) -> Output {
    command(folder, role, arguments).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[track_caller]
fn answers(output: &Output) -> String {
    assert!(output.status.success(), "{}", text(&output.stderr));
    let said = text(&output.stdout);
    assert!(said.starts_with("Fastest that fits: "), "{said}");
    said
}

#[track_caller]
fn fails(output: &Output, words: &[&str]) {
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    words.iter().for_each(|word| assert!(said.contains(word), "{word} is not in: {said}"));
}

fn trials(folder: &Path) -> Vec<Trial> {
    Journal::read(folder).unwrap()
}

fn the_example_answers_and_repeats_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let said = answers(&run(&folder, "example", &["4.5M"]));
    assert!(!said.contains("recompute") && !said.contains("NOT certified"), "{said}");
    let study = folder.path().join("results/own-model");
    let best = Best::read(&study.join("best.toml")).unwrap();
    assert!(said.contains(&format!("micro-batches of {}", best.config.micro_batch)), "{said}");
    assert!(best.measured.peak_bytes <= 9 << 19 && best.measured.evaluation_peak_bytes > Some(0));
    assert!(["oom", "fit"].contains(&best.neighbour.outcome.as_str()), "{:?}", best.neighbour);
    let known = fs::read(study.join("trials.csv")).unwrap();
    assert_eq!(answers(&run(&folder, "example", &["4.5M"])), said);
    assert!(fs::read(study.join("trials.csv")).unwrap() == known, "a resumed study repeats nothing");
}

fn probes_tell_the_truth_about_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let said = answers(&run(&folder, "ledger", &[]));
    // Progress texts, a log line, the meter's own rounding: nothing of the size of a layer.
    let slack = 64 << 10;
    let trials = trials(&folder.path().join("study"));
    let (mut fits, mut refusals) = (0, 0);
    for trial in &trials {
        let knobs = trial.knobs;
        let needed = ledger::peak(knobs.precision.name(), knobs.micro_batch, knobs.checkpoint_layers);
        match (trial.attempt.outcome.name(), &trial.attempt.measurement) {
            ("fit", Some(measured)) => {
                let peak = measured.peak_bytes as usize;
                assert!(peak.abs_diff(needed) < slack && peak <= CAP, "{knobs}: {peak}, not {needed}");
                let near = |bytes: u64, of: usize| (bytes as usize).abs_diff(of) < slack;
                assert!(near(measured.weight_bytes, ledger::WEIGHTS), "{measured:?}");
                assert!(near(measured.gradient_bytes, ledger::WEIGHTS), "{measured:?}");
                assert!(near(measured.optimizer_bytes, 2 * ledger::WEIGHTS), "{measured:?}");
                assert_eq!((measured.layers, measured.parameter_sum), (ledger::LAYERS, ledger::WEIGHTS as f64));
                fits += 1;
            }
            ("oom", _) => {
                assert!(needed + slack > CAP, "{knobs} needs {needed}");
                refusals += 1;
            }
            ("pruned", _) => {}
            _ => panic!("{trial:?}"),
        }
    }
    assert!(fits > 0 && refusals > 0, "the cap binds: {trials:?}");
    assert!(said.contains("of 5.75 MiB") && said.contains("fewer layers recomputed"), "{said}");
    // Every axis was looked at, and one process served several probes.
    let log = fs::read_to_string(folder.path().join("builds.txt")).unwrap();
    let words = ["bf16", "fp32", "checkpoint 0", " 7 8 "];
    words.iter().for_each(|word| assert!(log.contains(word), "{word}: {log}"));
    let workers: BTreeSet<&str> = log.lines().filter_map(|line| line.split(' ').next()).collect();
    assert!(workers.len() < log.lines().count(), "{log}");
}

fn nothing_fits_with_what_would_be_needed() {
    let folder = tempfile::tempdir().unwrap();
    let output = run(&folder, "small", &[]);
    // Four times the weights, and one sample in 32 bits with every layer recomputed.
    let words = ["Nothing fits into 2.00 MiB", "needs about 4.", "weights 1.0", "optimizer state 2.0"];
    fails(&output, &words);
    assert!(!text(&output.stderr).contains("This would fit"), "cures are for encoders");
    assert!(!folder.path().join("study/best.toml").exists());
}

fn a_broken_workload_is_told_in_its_own_words() {
    for (role, words) in [
        ("panics", &["the ledger is torn", "fp32 micro-batch 1 checkpoint 4"][..]),
        ("hangs", &["timeout", "no report after 0.3 s"]),
        ("hides", &["ended well but sent no report", "does it come to `run`?"]),
    ] {
        let folder = tempfile::tempdir().unwrap();
        fails(&run(&folder, role, &[]), words);
        assert!(trials(&folder.path().join("study")).is_empty(), "{role}: it is no trial");
    }
}

fn a_panic_under_the_cap_is_a_crash_and_no_hang() {
    let folder = tempfile::tempdir().unwrap();
    // Only a single sample works: that is the answer, and all else a crash in its own words.
    let output = command(&folder, "panics late", &[]).env("RUST_BACKTRACE", "1").output().unwrap();
    answers(&output);
    let trials = trials(&folder.path().join("study"));
    let crashed: Vec<_> = trials.iter().filter(|trial| trial.attempt.outcome.name() == "crash").collect();
    assert!(!crashed.is_empty(), "{trials:?}");
    for trial in crashed {
        assert!(trial.attempt.reason.contains("a page is missing"), "{trial:?}");
    }
    assert!(trials.iter().all(|trial| trial.attempt.outcome.name() != "timeout"), "{trials:?}");
}

fn a_first_look_that_gives_nan_is_taken_with_more_samples() {
    let folder = tempfile::tempdir().unwrap();
    answers(&run(&folder, "needs two", &[]));
    let survey = fs::read_to_string(folder.path().join("study/survey.toml")).unwrap();
    assert!(survey.contains("micro_batch = 2"), "{survey}");
}

/// Ends with the test, whatever becomes of it.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn an_interrupted_search_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let study = folder.path().join("study");
    let mut driver = Running(command(&folder, "slow", &[]).stderr(Stdio::null()).spawn().unwrap());
    let started = Instant::now();
    while !study.join("trials.csv").exists() || trials(&study).len() < 2 {
        assert!(started.elapsed() < Duration::from_secs(120), "two trials never came");
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(Command::new("kill").args(["-TERM", &driver.0.id().to_string()]).status().unwrap().success());
    assert_eq!(driver.0.wait().unwrap().code(), Some(1), "the first signal ends the search, not the process");
    let log = fs::read_to_string(folder.path().join("builds.txt")).unwrap();
    for worker in log.lines().filter_map(|line| line.split(' ').next()) {
        assert!(!Path::new("/proc").join(worker).exists(), "worker {worker} outlived its driver");
    }
    let before: Vec<Trial> = trials(&study);
    let last = before.last().unwrap();
    assert!(before.len() >= 2 && ["fit", "oom", "interrupted"].contains(&last.attempt.outcome.name()), "{last:?}");
    let output = run(&folder, "slow", &[]);
    answers(&output);
    let said = text(&output.stderr);
    assert!(!said.contains("a first look at ledger"), "the first look was kept: {said}");
    assert_eq!(trials(&study)[..before.len()], before);
}

fn two_workloads_in_one_program() {
    let folder = tempfile::tempdir().unwrap();
    answers(&run(&folder, "both", &[]));
    for (study, name) in [("study", "first"), ("second", "second")] {
        let best = Best::read(&folder.path().join(study).join("best.toml")).unwrap();
        assert_eq!(best.study.model, name);
    }
    // Without `serve` the second search's workers come to the first one's `run`.
    let folder = tempfile::tempdir().unwrap();
    fails(&run(&folder, "both at once", &[]), &["worker for 'second'", "call `serve` for each"]);
}

fn another_identity_is_another_study() {
    let folder = tempfile::tempdir().unwrap();
    answers(&run(&folder, "ledger", &[]));
    fails(&run(&folder, "slow", &[]), &["belongs to another study", "pause: 10ms", "`.fresh()`", "`.results(folder)`"]);
}

fn commands_know_such_a_study() {
    let folder = tempfile::tempdir().unwrap();
    answers(&run(&folder, "ledger", &[]));
    let autofit = |arguments: &[&str]| {
        Command::new(env!("CARGO_BIN_EXE_autofit")).args(arguments).current_dir(folder.path()).output().unwrap()
    };
    let report = autofit(&["report", "study"]);
    assert!(report.status.success(), "{}", text(&report.stderr));
    let page = fs::read_to_string(folder.path().join("study/report.html")).unwrap();
    assert!(page.contains("ledger") && !page.contains("autofit run"), "only its own program can train it");
    let trained = autofit(&["run", "--config", "study/best.toml", "--data", "none.csv", "--model", "."]);
    fails(&trained, &["study/best.toml", "ledger", "train with that program"]);
}
