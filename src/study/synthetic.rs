//! A device that exists only as formulas, with bumps, noise, crashes and precisions it can't do; and what a
//! look at every configuration would find on it.

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::answer::Verdict;
use super::identity::Identity;
use super::problem::{Branch, Grid, Problem, SizeHint, part_counts};
use super::sampler::{Ask, Sampler};
use super::search_space::SearchSpace;
use super::trial::{Request, Trial};
use crate::plan::{Knobs, Outcome, Precision};
use crate::probe::protocol::{Attempt, Measurement, OomRecord};

/// DistilBERT with rows of 128 tokens.
pub const DISTILBERT: SizeHint = SizeHint {
    parameters: 66_955_010,
    hidden: 768,
    layers: 6,
    intermediate: 3_072,
    heads: 12,
    vocab: 30_522,
    positions: 512,
    length: 128,
};

/// What one branch of the device really does.
#[derive(Clone, Debug)]
struct Truth {
    memory: [f64; 4],
    seconds: [f64; 4],
    optimizer: f64,
    supported: bool,
}

/// The device.
#[derive(Clone, Debug)]
pub struct Device {
    pub problem: Problem,
    pub grid: Grid,
    truths: Vec<(Branch, Truth)>,
    bump: f64,
    speed_bump: f64,
    noise: f64,
    failure: f64,
    /// Peak of an evaluation batch, relative to that of training.
    pub evaluation: f64,
    seed: u64,
}

/// A number in [0, 1) that depends on its arguments alone.
fn hash(seed: u64, values: &[usize]) -> f64 {
    let mut state = seed ^ 0x9E37_79B9_7F4A_7C15;
    for &value in values {
        state = (state ^ value as u64).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        state ^= state >> 31;
    }
    (state.wrapping_mul(0x94D0_49BB_1331_11EB) >> 11) as f64 / (1u64 << 53) as f64
}

/// What kind of devices to draw.
#[derive(Clone, Copy, Debug)]
pub struct Kind {
    pub effective: usize,
    pub bump: f64,
    pub speed_bump: f64,
    pub noise: f64,
    pub failure: f64,
    /// Largest cost of a pass whatever its size, in units of the time of one sample.
    pub overhead: f64,
    /// Name of the search space.
    pub space: &'static str,
}

pub const PLAIN: Kind =
    Kind { space: "default", effective: 32, bump: 0.04, speed_bump: 0.01, noise: 0.02, failure: 0.0, overhead: 20.0 };

impl Device {
    /// A device drawn at random, its cap anywhere from below the smallest peak to above the largest.
    pub fn draw(seed: u64, kind: Kind) -> Device {
        let mut rng = StdRng::seed_from_u64(seed);
        let layers = [4, 6, 12][rng.random_range(0..3)];
        let size = SizeHint { layers, ..DISTILBERT };
        let space = SearchSpace::load(kind.space).unwrap();
        let problem =
            Problem { effective_batch: kind.effective, max_length: 128, cap_bytes: None, space, size, smaller: vec![] };
        let grid = Grid::new(&problem).unwrap();
        let about = |rng: &mut StdRng, factor: f64| factor.powf(rng.random_range(-1.0..1.0));
        let shared = [about(&mut rng, 1.15), about(&mut rng, 2.5), about(&mut rng, 2.0), about(&mut rng, 2.0)];
        let sample = 0.01 * about(&mut rng, 10.0);
        let overhead = kind.overhead.powf(rng.random_range(0.0..1.0)) - 1.0;
        // A precision has its own kernels; optimizer, frozen layers and adapters change sums, not kernels.
        let mut kernels = |precision: Precision| {
            let memory: [f64; 4] = std::array::from_fn(|j| about(&mut rng, if j == 0 { 1.1 } else { 1.3 }));
            let faster = if precision == Precision::Fp32 { 1.0 } else { about(&mut rng, 3.0) };
            (memory, sample * faster, about(&mut rng, 1.3), about(&mut rng, 3.0), rng.random_bool(0.9))
        };
        let kernels = Precision::ALL.map(&mut kernels);
        let truths = grid.branches.iter().map(|&branch| {
            let (memory, sample, again, update, supported) = kernels[branch.precision as usize];
            let guess = size.memory_guess(branch);
            let memory = std::array::from_fn(|j| guess[j] * shared[j] * memory[j]);
            let share = size.trained_parameters(branch) / size.parameters as f64;
            let sample = sample * (0.5 + 0.5 * share);
            let second = sample * again / (3.0 * layers as f64);
            let seconds = [overhead * sample, sample, second, overhead * second];
            (branch, Truth { memory, seconds, optimizer: sample * update * share, supported })
        });
        let truths: Vec<(Branch, Truth)> = truths.collect();
        let Kind { bump, speed_bump, noise, failure, .. } = kind;
        let mut device = Device { problem, grid, truths, bump, speed_bump, noise, failure, evaluation: 0.6, seed };
        let peaks: Vec<f64> = device.all().map(|knobs| device.peak(&knobs)).collect();
        let (least, most) = (peaks.iter().copied().fold(f64::MAX, f64::min), peaks.iter().copied().fold(0.0, f64::max));
        let cap = 0.95 * least * (1.15 * most / (0.95 * least)).powf(rng.random_range(0.0..1.0));
        device.problem.cap_bytes = Some(cap as u64);
        device
    }

    fn all(&self) -> impl Iterator<Item = Knobs> + '_ {
        self.grid.branches.iter().flat_map(|&branch| self.grid.configurations(branch))
    }

    fn truth(&self, knobs: &Knobs) -> &Truth {
        &self.truths.iter().find(|(branch, _)| *branch == Branch::of(knobs)).unwrap().1
    }

    /// Peak without monotony: the formula times a bump.
    fn raw_peak(&self, knobs: &Knobs) -> f64 {
        let [m0, a0, a1, a2] = self.truth(knobs).memory;
        let (m, r) = (knobs.micro_batch as f64, knobs.checkpoint_layers as f64);
        let kept = (self.problem.size.layers - knobs.checkpoint_layers).max(1) as f64;
        let place = [knobs.precision as usize, knobs.micro_batch, knobs.checkpoint_layers];
        // An optimizer step has temporaries of its own, which small micro-batches don't reach.
        let passes = m0 + m * (a0 + kept * a1 + r * a2);
        passes.max(1.05 * m0) * (1.0 + self.bump * hash(self.seed, &place))
    }

    /// True peak: never less than that of a smaller micro-batch or of a higher density.
    pub fn peak(&self, knobs: &Knobs) -> f64 {
        let smaller = self.grid.configurations(Branch::of(knobs)).filter(|other| {
            other.micro_batch <= knobs.micro_batch && other.checkpoint_layers >= knobs.checkpoint_layers
        });
        smaller.map(|other| self.raw_peak(&other)).fold(0.0, f64::max)
    }

    pub fn fits(&self, knobs: &Knobs) -> bool {
        self.truth(knobs).supported && self.peak(knobs) <= self.problem.cap_bytes.map_or(f64::MAX, |cap| cap as f64)
    }

    fn pass(&self, knobs: &Knobs, micro: usize) -> f64 {
        let [t0, t1, t2, u0] = self.truth(knobs).seconds;
        let (m, r) = (micro as f64, knobs.checkpoint_layers as f64);
        let bump = self.speed_bump * (hash(self.seed, &[7, knobs.precision as usize, micro]) - 0.5);
        (t0 + r * u0 + m * (t1 + r * t2)) * (1.0 + bump)
    }

    /// True samples per second of an effective batch.
    pub fn speed(&self, knobs: &Knobs) -> f64 {
        let (largest, smaller) = part_counts(self.problem.effective_batch, knobs.micro_batch);
        let passes = largest as f64 * self.pass(knobs, knobs.micro_batch)
            + smaller as f64 * self.pass(knobs, knobs.micro_batch.saturating_sub(1));
        self.problem.effective_batch as f64 / (passes + self.truth(knobs).optimizer)
    }

    /// The fastest that fits, by looking at every configuration.
    pub fn fastest(&self) -> Option<Knobs> {
        self.all().filter(|knobs| self.fits(knobs)).max_by(|a, b| self.speed(a).total_cmp(&self.speed(b)))
    }

    /// What a probe would find. Depends on the request and the trial's number alone.
    pub fn probe(&self, request: &Request, number: usize) -> Attempt {
        let knobs = &request.knobs;
        let mut rng = StdRng::seed_from_u64(self.seed ^ (number as u64) << 32);
        let attempt =
            |outcome| Attempt { outcome, reason: outcome.to_string(), measurement: None, oom: None, wall_seconds: 1.0 };
        if !self.truth(knobs).supported {
            return attempt(Outcome::Unsupported);
        }
        if rng.random_bool(self.failure) {
            let failures = [Outcome::Crash, Outcome::Timeout, Outcome::Nan, Outcome::HostOom, Outcome::Garbage];
            return attempt(failures[rng.random_range(0..failures.len())]);
        }
        let cap = self.problem.cap_bytes;
        let peak = self.peak(knobs) * if request.effort.evaluate { self.evaluation.max(1.0) } else { 1.0 };
        if peak > cap.map_or(f64::MAX, |cap| cap as f64) {
            // Refused somewhere on the way to the peak.
            let (peak, limit) = (peak as u64, cap.unwrap_or(0));
            let live = limit - (limit / 50).min(peak - limit);
            let requested = limit - live + ((peak - limit) as f64 * rng.random_range(0.0..1.0)) as u64;
            let oom = OomRecord { requested: Some(requested), live: Some(live), cap, text: String::new() };
            return Attempt { oom: Some(oom), ..attempt(Outcome::Oom) };
        }
        let [m0, ..] = self.truth(knobs).memory;
        let noisy =
            |rng: &mut StdRng, seconds: f64| seconds * (1.0 + self.noise * (rng.random_range(0.0..2.0) - 1.0) * 1.7);
        let pass = self.pass(knobs, knobs.micro_batch);
        let timed =
            ((request.effort.seconds / pass) as usize).clamp(request.effort.min_timed, request.effort.max_timed);
        let measurement = Measurement {
            peak_bytes: self.peak(knobs) as u64,
            weight_bytes: (m0 / 4.0) as u64,
            gradient_bytes: (m0 / 4.0) as u64,
            optimizer_bytes: (m0 / 2.0) as u64,
            micro_seconds: (0..timed).map(|_| noisy(&mut rng, pass)).collect(),
            optimizer_seconds: (0..2).map(|_| noisy(&mut rng, self.truth(knobs).optimizer)).collect(),
            loss: 0.7,
            parameter_sum: 1.0,
            evaluation_peak_bytes: request.effort.evaluate.then_some((self.evaluation * self.peak(knobs)) as u64),
            layers: self.problem.size.layers,
            setup_seconds: 2.0,
            ..Measurement::default()
        };
        let wall_seconds = 2.0 + pass * (3 + timed) as f64;
        Attempt { measurement: Some(measurement), wall_seconds, ..attempt(Outcome::Fit) }
    }

    /// Runs a whole study.
    pub fn study(&self) -> (Vec<Trial>, Verdict) {
        let sampler = Sampler::new(self.problem.clone()).unwrap();
        let mut trials = Vec::new();
        loop {
            match step(self, &sampler, &mut trials) {
                Some(verdict) => return (trials, verdict),
                None => assert!(trials.len() < 400, "endless study on device {}", self.seed),
            }
        }
    }
}

/// Asks once and appends the trial; the verdict when done.
pub fn step(device: &Device, sampler: &Sampler, trials: &mut Vec<Trial>) -> Option<Verdict> {
    let number = trials.len() + 1;
    let (request, attempt) = match sampler.next(trials) {
        Ask::Done(verdict) => return Some(*verdict),
        Ask::Probe(request) => {
            let attempt = device.probe(&request, number);
            (request, attempt)
        }
        Ask::Prune(request) => {
            let reason = request.why.clone();
            let attempt = Attempt { outcome: Outcome::Pruned, reason, measurement: None, oom: None, wall_seconds: 0.0 };
            (request, attempt)
        }
    };
    trials.push(Trial { number, knobs: request.knobs, purpose: request.purpose, attempt, unix_seconds: 0 });
    None
}

/// An identity for journals of synthetic studies.
pub fn identity() -> Identity {
    Identity {
        model: "synthetic".into(),
        config_digest: None,
        weights_digest: None,
        rows_digest: None,
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
