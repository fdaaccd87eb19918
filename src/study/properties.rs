//! What the sampler must keep on any device, tried on many synthetic ones.

use proptest::prelude::*;

use super::answer::{Neighbour, Verdict};
use super::evidence::Known;
use super::journal::Journal;
use super::moves::exploration_limit;
use super::problem::{Problem, SizeHint};
use super::row::Derived;
use super::sampler::{Ask, Sampler};
use super::synthetic::{Device, Kind, PLAIN, identity, step};
use super::trial::{Purpose, Trial};
use crate::plan::{Outcome, Precision};

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
            space: "default",
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
    #![proptest_config(ProptestConfig::with_cases(48))]

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
        prop_assert_eq!(sampler.next(&Journal::read(folder.path()).unwrap()), Ask::Done(Box::new(verdict)));
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

fn survey(name: &str, kind: Kind, studies: u64) -> Summary {
    let mut summary = Summary::default();
    for seed in 0..studies {
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
        let summary = survey(name, kind, 80);
        assert!(summary.found >= 70 && summary.mean_probes() <= probes && summary.good() >= good, "{name}");
    }
}

#[test]
fn the_cost_grows_far_slower_than_the_batch() {
    let small = survey("batch 8", Kind { effective: 8, ..PLAIN }, 80);
    let large = survey("batch 512", Kind { effective: 512, ..PLAIN }, 80);
    // 64 times the batch: less than twice the probes, and less than an eighth of 64 times the seconds.
    assert!(large.mean_probes() < 2.0 * small.mean_probes());
    assert!(large.mean_seconds() < 8.0 * small.mean_seconds());
}

#[test]
fn without_a_binding_cap_it_ends_soon() {
    let (mut count, mut total) = (0, 0);
    for seed in 0..60 {
        let mut device = Device::draw(seed, Kind { overhead: 1.05, ..PLAIN });
        device.problem.cap_bytes = (seed % 2 == 0).then_some(1 << 40);
        let (trials, verdict) = device.study();
        let Verdict::Found(answer) = verdict else { continue };
        assert_eq!(answer.knobs.checkpoint_layers, 0, "device {seed}");
        count += 1;
        total += probes(&trials);
    }
    let mean = total as f64 / count as f64;
    println!("nothing binds: {mean:.1} probes");
    assert!(count >= 40 && mean <= 7.5, "{mean} probes");
}

#[test]
fn an_answer_that_fails_its_certification_is_not_the_answer() {
    let mut refused = 0;
    for seed in 0..60 {
        let mut device = Device::draw(seed, PLAIN);
        device.evaluation = 1.03;
        let (trials, verdict) = device.study();
        asks_no_known_oom(&device, &trials);
        refused += usize::from(
            trials.iter().any(|trial| trial.purpose == Purpose::Certify && trial.attempt.outcome == Outcome::Oom),
        );
        if let Verdict::Found(answer) = verdict {
            assert!(answer.certified && answer.score.peak_bytes <= device.problem.cap_bytes.unwrap(), "device {seed}");
            assert_eq!(answer.evaluation_peak_bytes, Some(answer.score.peak_bytes), "device {seed}");
        }
    }
    assert!(refused >= 5, "only {refused} certifications ran out of memory");
}

#[test]
fn larger_spaces_cost_a_probe_or_two_for_each_branch() {
    for (space, branches) in [("fp32", 2u64), ("quick", 2), ("mixed", 3), ("memory", 8), ("adapters", 12)] {
        let summary = survey(space, Kind { space, ..PLAIN }, 150 / branches);
        assert!(summary.mean_probes() <= 5.0 + 2.0 * branches as f64 && summary.good() >= 0.9, "{space}");
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

#[test]
fn when_nothing_fits_it_says_what_would() {
    let device = Device::draw(3, PLAIN);
    let least = device.grid.branches.iter().map(|&branch| device.peak(&device.grid.smallest(branch)));
    let cap = 0.9 * least.fold(f64::MAX, f64::min);
    let mut device = device;
    device.problem = Problem { cap_bytes: Some(cap as u64), ..device.problem.clone() };
    let tiny = SizeHint { parameters: 14_000_000, hidden: 312, layers: 4, ..device.problem.size };
    device.problem.smaller = vec![("tinybert".into(), tiny)];
    let (trials, verdict) = device.study();
    let Verdict::NothingFits(shortfall) = verdict else { panic!("{verdict:?}") };
    assert!(probes(&trials) <= 3 * device.grid.branches.len());
    assert!(shortfall.needed_bytes > cap as u64);
    let parts =
        shortfall.weight_bytes + shortfall.gradient_bytes + shortfall.optimizer_bytes + shortfall.activation_bytes;
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
