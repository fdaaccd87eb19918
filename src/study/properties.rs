//! What the sampler and the driver must keep on any device, tried on many synthetic ones.

use std::cell::Cell;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Result;
use proptest::prelude::*;

use super::answer::{Neighbour, Verdict};
use super::best::{Best, Data, Model, Setting};
use super::driver::{self, Limits, Observer, Prober};
use super::evidence::Known;
use super::identity::Identity;
use super::journal::Journal;
use super::problem::Problem;
use super::row::Derived;
use super::sampler::{Ask, Sampler, exploration_limit};
use super::synthetic::{Device, Kind, PLAIN, step};
use super::trial::{Purpose, Request, Trial};
use crate::plan::{Outcome, Precision};
use crate::probe::protocol::{Attempt, ModelSource};

/// Probes that a study without failures may take: for every branch a few pilots and what exploring allows, which grows
/// with the logarithm of its size; then settling, certifying and neighbours.
fn most_probes(device: &Device) -> usize {
    device.grid.branches.len() * (4 + exploration_limit(&device.grid)) + 12
}

fn probes(trials: &[Trial]) -> usize {
    trials.iter().filter(|trial| trial.purpose != Purpose::Prune).count()
}

fn kinds() -> impl Strategy<Value = Kind> {
    let effective = prop::sample::select(vec![1, 2, 8, 24, 32, 33, 64, 100]);
    (effective, 0.0..0.12, 0.0..0.06, 0.0..0.05, 1.02..60.0f64).prop_map(
        |(effective, bump, speed_bump, noise, overhead)| Kind {
            effective,
            bump,
            speed_bump,
            noise,
            failure: 0.0,
            overhead,
        },
    )
}

/// Every probe asked for something that could still fit: nothing known to run out of memory, nothing that needs more.
fn asks_no_known_oom(device: &Device, trials: &[Trial]) {
    let sampler = Sampler::new(device.problem.clone()).unwrap();
    for (index, trial) in trials.iter().enumerate().filter(|(_, trial)| trial.purpose != Purpose::Prune) {
        let before = sampler.evidence(&trials[..index]).known(&trial.knobs);
        assert!(!matches!(before, Known::Oom(_)), "trial {} asks for a known OOM: {}", trial.number, trial.knobs);
    }
}

/// A neighbour's recorded outcome is the true one.
fn is_true(device: &Device, neighbour: &Neighbour) {
    match (neighbour.knobs, neighbour.outcome) {
        (None, outcome) => assert_eq!(outcome, None),
        (Some(knobs), Some(Outcome::Oom)) => assert!(!device.fits(&knobs), "{neighbour:?}"),
        (Some(knobs), Some(Outcome::Fit)) => assert!(device.fits(&knobs), "{neighbour:?}"),
        other => panic!("the neighbour's outcome is not known: {other:?}"),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn the_boundary_is_exact(seed in any::<u64>(), kind in kinds()) {
        let device = Device::draw(seed, kind);
        let (trials, verdict) = device.study();
        asks_no_known_oom(&device, &trials);
        prop_assert!(probes(&trials) <= most_probes(&device), "{} probes", probes(&trials));
        match verdict {
            Verdict::Found(answer) => {
                prop_assert!(device.fits(&answer.knobs));
                prop_assert!(answer.certified && answer.evaluation_peak_bytes.is_some());
                prop_assert_eq!(answer.score.peak_bytes, device.peak(&answer.knobs) as u64);
                is_true(&device, &answer.larger_micro);
                is_true(&device, &answer.lower_density);
                prop_assert_eq!(answer.larger_micro.knobs, device.grid.larger_micro(&answer.knobs));
                prop_assert_eq!(answer.larger_micro.knobs.is_none(), answer.knobs.micro_batch == kind.effective);
                prop_assert_eq!(answer.lower_density.knobs.is_none(), answer.knobs.checkpoint_layers == 0);
                // A larger micro-batch that fits was really measured.
                let fits = answer.larger_micro.outcome == Some(Outcome::Fit);
                prop_assert_eq!(fits, answer.larger_micro.samples_per_second.is_some());
            }
            Verdict::NothingFits(shortfall) => {
                prop_assert_eq!(device.fastest(), None);
                let by_trial = &trials[shortfall.trial - 1];
                prop_assert_eq!(by_trial.knobs, shortfall.smallest);
                prop_assert_eq!(by_trial.attempt.outcome, Outcome::Oom);
                prop_assert!(shortfall.needed_bytes > device.problem.cap_bytes.unwrap());
            }
            Verdict::Failed { .. } => {
                // Every precision was refused.
                prop_assert!(trials.iter().all(|trial| trial.attempt.outcome == Outcome::Unsupported));
            }
            other => prop_assert!(false, "{:?}", other),
        }
    }

    #[test]
    fn failures_are_survived(seed in any::<u64>(), kind in kinds(), failure in 0.05..0.6) {
        let device = Device::draw(seed, Kind { failure, ..kind });
        let (trials, verdict) = device.study();
        asks_no_known_oom(&device, &trials);
        prop_assert!(probes(&trials) <= 2 * most_probes(&device), "{} probes", probes(&trials));
        if let Verdict::Found(answer) = &verdict {
            prop_assert!(device.fits(&answer.knobs));
        }
        // Only an OOM of every smallest configuration says that nothing fits.
        if let Verdict::NothingFits(_) = &verdict {
            prop_assert_eq!(device.fastest(), None);
        }
    }

    #[test]
    fn any_prefix_of_the_journal_continues_identically(seed in any::<u64>(), kind in kinds(), failure in 0.0..0.2) {
        let device = Device::draw(seed, Kind { failure, ..kind });
        let (trials, verdict) = device.study();
        let folder = tempfile::tempdir().unwrap();
        let mut journal = Journal::open(folder.path(), &identity(), false).unwrap();
        let sampler = Sampler::new(device.problem.clone()).unwrap();
        for trial in &trials {
            let read = Journal::read(folder.path()).unwrap();
            match sampler.next(&read) {
                Ask::Probe(request) | Ask::Prune(request) => {
                    prop_assert_eq!((request.knobs, request.purpose), (trial.knobs, trial.purpose));
                }
                Ask::Done(verdict) => prop_assert!(false, "{:?}", verdict),
            }
            journal.append(trial.clone(), &Derived::default()).unwrap();
        }
        prop_assert_eq!(sampler.next(&Journal::read(folder.path()).unwrap()), Ask::Done(verdict));
    }
}

/// What many studies come to.
#[derive(Debug, Default)]
struct Summary {
    found: usize,
    probes: usize,
    most_probes: usize,
    seconds: f64,
    /// True speed of the answer as a share of the best possible, the worst first.
    share: Vec<f64>,
}

impl Summary {
    fn mean_probes(&self) -> f64 {
        self.probes as f64 / self.found as f64
    }

    fn mean_seconds(&self) -> f64 {
        self.seconds / self.found as f64
    }

    /// Share of the studies whose answer has at least 97 % of the best possible speed.
    fn good(&self) -> f64 {
        self.share.iter().filter(|share| **share >= 0.97).count() as f64 / self.found as f64
    }
}

fn survey(name: &str, kind: Kind) -> Summary {
    let mut summary = Summary::default();
    for seed in 0..120 {
        let device = Device::draw(seed, kind);
        let (trials, verdict) = device.study();
        if let (Verdict::Found(answer), Some(best)) = (&verdict, device.fastest()) {
            summary.found += 1;
            summary.probes += probes(&trials);
            summary.most_probes = summary.most_probes.max(probes(&trials));
            summary.seconds += trials.iter().map(|trial| trial.attempt.wall_seconds).sum::<f64>();
            summary.share.push(device.speed(&answer.knobs) / device.speed(&best));
        }
    }
    summary.share.sort_by(f64::total_cmp);
    let at = |share: f64| summary.share[(share * summary.found as f64) as usize];
    println!(
        "{name:12} {} found, {:.1} probes (most {}), {:.0} s; share of the best speed: worst {:.3}, 5 % {:.3}, median {:.3}; \
         {:.1} % have 0.97",
        summary.found,
        summary.mean_probes(),
        summary.most_probes,
        summary.mean_seconds(),
        at(0.0),
        at(0.05),
        at(0.5),
        100.0 * summary.good()
    );
    summary
}

#[test]
fn few_probes_and_little_regret() {
    for (name, kind, probes, good) in [
        ("plain", PLAIN, 8.0, 0.95),
        ("no overhead", Kind { overhead: 1.05, ..PLAIN }, 8.0, 0.95),
        ("overhead", Kind { overhead: 100.0, ..PLAIN }, 8.0, 0.95),
        ("bumpy", Kind { bump: 0.12, speed_bump: 0.06, ..PLAIN }, 8.5, 0.9),
        ("noisy", Kind { noise: 0.08, ..PLAIN }, 10.0, 0.75),
        ("failing", Kind { failure: 0.1, ..PLAIN }, 9.0, 0.9),
    ] {
        let summary = survey(name, kind);
        assert!(summary.found >= 100 && summary.mean_probes() <= probes && summary.good() >= good, "{name}");
    }
}

#[test]
fn the_cost_grows_far_slower_than_the_batch() {
    let small = survey("batch 8", Kind { effective: 8, ..PLAIN });
    let large = survey("batch 512", Kind { effective: 512, ..PLAIN });
    // 64 times the batch: less than twice the probes, and less than an eighth of 64 times the seconds.
    assert!(large.mean_probes() < 2.0 * small.mean_probes());
    assert!(large.mean_seconds() < 8.0 * small.mean_seconds());
}

#[test]
fn without_a_binding_cap_it_ends_soon() {
    for seed in 0..60 {
        let mut device = Device::draw(seed, Kind { overhead: 1.05, ..PLAIN });
        device.problem.cap_bytes = (seed % 2 == 0).then_some(1 << 40);
        let (trials, verdict) = device.study();
        let Verdict::Found(answer) = verdict else { continue };
        assert_eq!(answer.knobs.checkpoint_layers, 0);
        assert!(probes(&trials) <= 12, "device {seed}: {} probes", probes(&trials));
    }
}

#[test]
fn a_precision_that_cannot_be_had_is_asked_for_once() {
    let mut seen = 0;
    for seed in 0..60 {
        let (trials, _) = Device::draw(seed, PLAIN).study();
        for precision in Precision::ALL {
            let own = || trials.iter().filter(|trial| trial.knobs.precision == precision);
            if own().any(|trial| trial.attempt.outcome == Outcome::Unsupported) {
                assert_eq!(own().count(), 1, "device {seed}");
                seen += 1;
            }
        }
    }
    assert!(seen > 0);
}

fn identity() -> Identity {
    Identity {
        model: "synthetic".into(),
        num_labels: 2,
        longest: 128,
        lengths_digest: String::new(),
        max_length: 128,
        effective_batch: 32,
        device: "formulas".into(),
        cap_bytes: None,
        space_digest: String::new(),
        seed: 0,
        version: "0".into(),
    }
}

/// Probes a synthetic device, counts seconds, and may interrupt.
struct Bench<'a> {
    device: &'a Device,
    number: usize,
    seconds: &'a Cell<f64>,
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
        self.seconds.set(self.seconds.get() + attempt.wall_seconds);
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

    fn best(&mut self, answer: &super::answer::Answer) {
        self.best.push(answer.certified);
    }
}

fn run(device: &Device, folder: &Path, budget: Option<f64>, interrupt: Option<usize>) -> (Verdict, f64, Notes) {
    let (seconds, flag) = (Cell::new(0.0), AtomicBool::new(false));
    let mut journal = Journal::open(folder, &identity(), false).unwrap();
    let mut notes = Notes::default();
    // Noise depends on the number of the probe, so that a resumed study sees what an undisturbed one would.
    let number = journal.trials().iter().filter(|t| t.attempt.outcome != Outcome::Interrupted).count();
    let mut bench = Bench { device, number, seconds: &seconds, interrupt: interrupt.map(|number| (number, &flag)) };
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
    for at in 0..4 {
        let folder = tempfile::tempdir().unwrap();
        let (verdict, ..) = run(&device, folder.path(), None, Some(at));
        let Verdict::Interrupted { best } = verdict else { panic!("{verdict:?}") };
        let fits = Journal::read(folder.path()).unwrap().iter().any(|t| t.attempt.outcome == Outcome::Fit);
        assert_eq!(best.is_some(), fits);
        let (resumed, ..) = run(&device, folder.path(), None, None);
        assert_eq!(resumed.answer().unwrap().knobs, whole.knobs);
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
        // The last probe may take longer than the model expected, but not by much.
        assert!(seconds <= 0.9 * needed + 5.0, "device {seed}: {seconds} of {needed} s");
        assert!(!matches!(verdict, Verdict::Interrupted { .. }));
        certified += usize::from(verdict.answer().is_some_and(|answer| answer.certified));
        let (none, seconds, _) = run(&device, tempfile::tempdir().unwrap().path(), Some(0.0), None);
        assert_eq!((none, seconds), (Verdict::OutOfTime { best: None }, 0.0));
    }
    assert!(certified >= 30, "{certified} of 40 certified");
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
            model: Model { source, num_labels: 3 },
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
    for (from, to, what) in [("micro_batch", "mikro_batch", "micro_batch"), ("fp", "fq", "precision"), ("[config]", "[", "TOML")]
    {
        std::fs::write(&path, text.replacen(from, to, 1).replacen("bf16", "fq16", usize::from(from == "fp"))).unwrap();
        let error = format!("{:#}", Best::read(&path).unwrap_err());
        assert!(error.contains("best.toml") && error.contains(what), "{error}");
    }
    assert!(format!("{:#}", Best::read(Path::new("none/best.toml")).unwrap_err()).contains("none/best.toml"));
}

#[test]
fn when_nothing_fits_it_says_what_would() {
    let device = Device::draw(3, PLAIN);
    let least = device.grid.branches.iter().map(|&branch| device.peak(&device.grid.smallest(branch)));
    let cap = 0.9 * least.fold(f64::MAX, f64::min);
    let mut device = device;
    device.problem = Problem { cap_bytes: Some(cap as u64), ..device.problem.clone() };
    let tiny = super::problem::SizeHint { parameters: 14_000_000, hidden: 312, layers: 4, ..device.problem.size };
    device.problem.smaller = vec![("tinybert".into(), tiny)];
    let (trials, verdict) = device.study();
    let Verdict::NothingFits(shortfall) = verdict else { panic!("{verdict:?}") };
    assert!(probes(&trials) <= 3 * device.grid.branches.len());
    assert!(shortfall.needed_bytes > cap as u64);
    let parts = shortfall.weight_bytes + shortfall.gradient_bytes + shortfall.optimizer_bytes + shortfall.activation_bytes;
    assert!(parts.abs_diff(shortfall.needed_bytes) < 1 << 20, "{shortfall:?}");
    let cures: Vec<&str> = shortfall.cures.iter().map(|cure| cure.change.as_str()).collect();
    assert!(cures.contains(&"the smaller model tinybert") && cures.contains(&"optimizer sgd"), "{cures:?}");
    assert!(!cures.iter().any(|cure| cure.contains("recompute")), "everything is recomputed already: {cures:?}");
    assert!(shortfall.cures.iter().all(|cure| cure.peak_bytes < cap as u64));
}

#[test]
fn a_model_that_never_starts_is_no_shortfall() {
    let device = Device::draw(1, Kind { failure: 1.0, ..PLAIN });
    let (trials, verdict) = device.study();
    let Verdict::Failed { reason } = verdict else { panic!("{verdict:?}") };
    assert!(reason.contains("no probe succeeded"), "{reason}");
    assert!(trials.len() <= 8, "{} probes", trials.len());
    let mut trials = Vec::new();
    assert!(step(&device, &Sampler::new(device.problem.clone()).unwrap(), &mut trials).is_none());
    assert_eq!(trials.len(), 1);
}

#[test]
fn zz_trace() {
    for seed in [13, 1, 2, 5] {
        let mut device = Device::draw(seed, Kind { overhead: 1.05, ..PLAIN });
        device.problem.cap_bytes = (seed % 2 == 0).then_some(1 << 40);
        let (trials, verdict) = device.study();
        let sampler = Sampler::new(device.problem.clone()).unwrap();
        println!("== {seed} best {:?}", device.fastest());
        for (i, t) in trials.iter().enumerate() {
            let why = match sampler.next(&trials[..i]) { Ask::Probe(r) | Ask::Prune(r) => r.why, _ => String::new() };
            println!("{:2} {:9} {} {} | true speed {:.3} meas {:?} | {why}", t.number, t.purpose, t.knobs, t.attempt.outcome, device.speed(&t.knobs),
               sampler.evidence(&trials[..=i]).score(&t.knobs).map(|s| (s.samples_per_second, s.spread)));
        }
        println!("{:?}", verdict.answer().map(|a| a.knobs));
    }
}
