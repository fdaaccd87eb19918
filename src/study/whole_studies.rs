//! The driver and the answer's file, tried on synthetic devices.

use std::cell::Cell;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Result;

use super::answer::{Answer, Verdict};
use super::best::{Best, Data, Model, Setting};
use super::driver::{self, Limits, Observer, Prober};
use super::journal::Journal;
use super::row::Derived;
use super::synthetic::{Device, Kind, PLAIN, identity};
use super::trial::{Request, Trial};
use crate::plan::Outcome;
use crate::probe::protocol::{Attempt, ModelSource};

/// Probes a synthetic device, counts seconds, and may interrupt.
struct Bench<'a> {
    device: &'a Device,
    number: usize,
    seconds: &'a Cell<f64>,
    budget: Option<f64>,
    interrupt: Option<(usize, &'a AtomicBool)>,
}

impl Prober for Bench<'_> {
    fn probe(&mut self, request: &Request) -> Result<Attempt> {
        let attempt = self.device.probe(request, self.number);
        self.number += 1;
        if let Some((_, flag)) = self.interrupt.filter(|(number, _)| number + 1 == self.number) {
            flag.store(true, Ordering::SeqCst);
            let reason = "interrupted".to_string();
            return Ok(Attempt { outcome: Outcome::Interrupted, reason, measurement: None, oom: None, ..attempt });
        }
        let end = self.seconds.get() + attempt.wall_seconds;
        if let Some(budget) = self.budget.filter(|&budget| end > budget) {
            self.seconds.set(budget);
            self.number -= 1;
            let reason = "stopped at the end of the budget".to_string();
            return Ok(Attempt { outcome: Outcome::Interrupted, reason, measurement: None, oom: None, ..attempt });
        }
        self.seconds.set(end);
        Ok(attempt)
    }
}

/// Keeps trial numbers for the bench, and every preliminary answer.
#[derive(Default)]
struct Notes {
    told: usize,
    best: Vec<bool>,
}

impl Observer for Notes {
    fn told(&mut self, _trial: &Trial, _derived: &Derived) {
        self.told += 1;
    }

    fn best(&mut self, answer: &Answer) {
        self.best.push(answer.certified);
    }
}

fn run(device: &Device, folder: &Path, budget: Option<f64>, interrupt: Option<usize>) -> (Verdict, f64, Notes) {
    let (seconds, flag) = (Cell::new(0.0), AtomicBool::new(false));
    let mut journal = Journal::open(folder, &identity(), false).unwrap();
    let mut notes = Notes::default();
    // Noise depends on the number of the probe, so that a resumed study sees what an undisturbed one would.
    let ran = |trial: &&Trial| !matches!(trial.attempt.outcome, Outcome::Interrupted | Outcome::Pruned);
    let number = journal.trials().iter().filter(ran).count();
    let interrupt = interrupt.map(|number| (number, &flag));
    let mut bench = Bench { device, number, seconds: &seconds, budget, interrupt };
    let limits = Limits {
        budget: budget.map(Duration::from_secs_f64),
        interrupted: &flag,
        elapsed: &|| Duration::from_secs_f64(seconds.get()),
    };
    let verdict = driver::run(device.problem.clone(), &mut journal, &mut bench, &mut notes, &limits).unwrap();
    (verdict, seconds.get(), notes)
}

/// A device on which studies find something.
fn good_device(from: u64) -> Device {
    let draw = |seed| Device::draw(seed, Kind { noise: 0.0, ..PLAIN });
    (from..).map(draw).find(|device| device.fastest().is_some() && device.study().0.len() > 7).unwrap()
}

#[test]
fn the_driver_records_and_finds() {
    let device = good_device(0);
    let folder = tempfile::tempdir().unwrap();
    let (verdict, seconds, notes) = run(&device, folder.path(), None, None);
    let trials = Journal::read(folder.path()).unwrap();
    let Verdict::Found(answer) = &verdict else { panic!("{verdict:?}") };
    assert!(answer.certified && seconds > 0.0);
    assert_eq!(notes.told, trials.len());
    assert_eq!((notes.best.first(), notes.best.last()), (Some(&false), Some(&true)));
    // A finished study that is started again ends at once with the same answer.
    let (again, seconds, _) = run(&device, folder.path(), None, None);
    assert_eq!((again, seconds), (verdict, 0.0));
}

#[test]
fn interrupted_anywhere_it_keeps_the_best_and_goes_on() {
    let device = good_device(100);
    let folder = tempfile::tempdir().unwrap();
    let (whole, ..) = run(&device, folder.path(), None, None);
    let Some(whole) = whole.answer().cloned() else { panic!() };
    let asked = |folder: &Path| -> Vec<(usize, Trial)> {
        let trials = Journal::read(folder).unwrap().into_iter();
        let whole = trials.filter(|trial| trial.attempt.outcome != Outcome::Interrupted).enumerate();
        whole.map(|(number, trial)| (number, Trial { number, unix_seconds: 0, ..trial })).collect()
    };
    let undisturbed = asked(folder.path());
    let probes = undisturbed.iter().filter(|(_, trial)| trial.attempt.outcome != Outcome::Pruned).count();
    for at in 0..probes {
        let folder = tempfile::tempdir().unwrap();
        let (verdict, ..) = run(&device, folder.path(), None, Some(at));
        let Verdict::Interrupted { best } = verdict else { panic!("{verdict:?}") };
        let fits = Journal::read(folder.path()).unwrap().iter().any(|t| t.attempt.outcome == Outcome::Fit);
        assert_eq!(best.is_some(), fits);
        let (resumed, ..) = run(&device, folder.path(), None, None);
        assert_eq!(resumed.answer().unwrap().knobs, whole.knobs);
        assert_eq!(asked(folder.path()), undisturbed, "interrupted at probe {at}, it goes on as if it never had been");
    }
}

#[test]
fn the_budget_is_kept_and_the_best_is_certified_in_time() {
    let mut certified = 0;
    for seed in 0..40 {
        let device = good_device(seed);
        let needed = device.study().0.iter().map(|trial| trial.attempt.wall_seconds).sum::<f64>();
        let folder = tempfile::tempdir().unwrap();
        let (verdict, seconds, _) = run(&device, folder.path(), Some(0.7 * needed), None);
        assert!(seconds <= 0.7 * needed, "device {seed}: {seconds} of {needed} s");
        assert!(!matches!(verdict, Verdict::Interrupted { .. }));
        certified += usize::from(verdict.answer().is_some_and(|answer| answer.certified));
        let (none, seconds, _) = run(&device, tempfile::tempdir().unwrap().path(), Some(0.0), None);
        assert_eq!((none, seconds), (Verdict::OutOfTime { best: None }, 0.0));
    }
    assert!(certified >= 30, "{certified} of 40 certified");
}

#[test]
fn what_the_end_of_the_budget_cuts_off_is_asked_for_again() {
    let device = good_device(7);
    let folder = tempfile::tempdir().unwrap();
    // No probe is that short, and before the first nobody knows how long it will be.
    let (verdict, seconds, _) = run(&device, folder.path(), Some(1.0), None);
    assert_eq!((verdict, seconds), (Verdict::OutOfTime { best: None }, 1.0));
    let (resumed, ..) = run(&device, folder.path(), None, None);
    assert_eq!(resumed.answer().map(|answer| answer.knobs), device.study().1.answer().map(|answer| answer.knobs));
    let trials = Journal::read(folder.path()).unwrap();
    let outcomes = [trials[0].attempt.outcome, trials[1].attempt.outcome];
    assert_eq!((trials[0].knobs, trials[0].purpose), (trials[1].knobs, trials[1].purpose));
    assert_eq!(outcomes, [Outcome::Interrupted, Outcome::Fit]);
}

#[test]
fn the_answer_reads_back_and_errors_name_file_and_key() {
    let device = good_device(0);
    let (trials, verdict) = device.study();
    let answer = verdict.answer().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("best.toml");
    for (source, data) in [
        (ModelSource::Preset("distilbert".into()), None),
        (
            ModelSource::Folder("models/mine".into()),
            Some(Data { file: "rows.csv".into(), columns: vec!["text".into(), "label".into()], longest: 99, rows: 7 }),
        ),
    ] {
        let setting = Setting {
            model: Model { source, repository: None, revision: None, num_labels: 3 },
            data,
            device: "cpu".into(),
            seed: 42,
            autofit: "0.1.0".into(),
            framework: "none 1.0".into(),
            unix_seconds: 1_735_689_599,
        };
        let best = Best::new(&device.problem, &trials, answer, setting);
        best.write(&path).unwrap();
        assert_eq!(Best::read(&path).unwrap(), best);
        assert_eq!(best.config.knobs(), answer.knobs);
        assert_eq!(best.study.created, "2024-12-31T23:59:59Z");
    }
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, format!("{text}\n[later]\nkey = 1\n")).unwrap();
    assert!(Best::read(&path).is_ok(), "a newer file can be read");
    for (from, to, what) in
        [("micro_batch", "mikro_batch", "micro_batch"), ("fp", "fq", "precision"), ("[config]", "[", "TOML")]
    {
        std::fs::write(&path, text.replacen(from, to, 1).replacen("bf16", "fq16", usize::from(from == "fp"))).unwrap();
        let error = format!("{:#}", Best::read(&path).unwrap_err());
        assert!(error.contains("best.toml") && error.contains(what), "{error}");
    }
    assert!(format!("{:#}", Best::read(Path::new("none/best.toml")).unwrap_err()).contains("none/best.toml"));
}
