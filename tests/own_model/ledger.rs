//! A "model" without a tensor: it takes exactly the bytes that it should, and exactly the time.

use std::fs::OpenOptions;
use std::io::Write;
use std::thread::sleep;
use std::time::Duration;

use autofit::{Answer, Axes, Evaluation, Precision, Result, Setup, Timed, Timing, Training, Tune, Workload};

/// Bytes of weights, of the gradient, and of each of two moments.
pub const WEIGHTS: usize = 1 << 20;
/// Bytes that a sample's layer keeps in 32 bits.
pub const LAYER: usize = 128 << 10;
/// Layers.
pub const LAYERS: usize = 4;

/// Bytes at the peak: everything fixed, and the activations of a micro-batch.
pub fn peak(precision: &str, micro: usize, recomputed: usize) -> usize {
    let kept = (LAYERS - recomputed).max(1) * LAYER + recomputed * LAYER / 8;
    4 * WEIGHTS + micro * kept / if precision == "bf16" { 2 } else { 1 }
}

/// How the program behaves.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Mood {
    Plain,
    Panics,
    /// Panics in its second micro-batch, where the cap leaves no room for what a backtrace needs.
    PanicsLate,
    Hangs,
    /// Gives NaN for a single sample, as a normalisation over the batch does.
    NeedsTwo,
}

#[derive(Debug)]
pub struct Ledger {
    name: &'static str,
    pause: Duration,
    mood: Mood,
}

impl Workload for Ledger {
    type Training = Book;

    fn name(&self) -> String {
        self.name.into()
    }

    fn identity(&self) -> String {
        format!("{self:?}")
    }

    fn axes(&self) -> Axes {
        match self.mood {
            Mood::NeedsTwo => Axes::default(),
            _ => Axes::default().precisions([Precision::Fp32, Precision::Bf16]).checkpoint_layers(LAYERS),
        }
    }

    fn build(&self, setup: &Setup) -> Result<Book> {
        let knobs = setup.knobs;
        let mut log = OpenOptions::new().create(true).append(true).open("builds.txt")?;
        writeln!(log, "{} {} {} {}", std::process::id(), setup.seed, setup.effective_batch, knobs)?;
        match self.mood {
            Mood::Panics => panic!("the ledger is torn"),
            Mood::Hangs => sleep(Duration::from_secs(3600)),
            Mood::Plain | Mood::PanicsLate | Mood::NeedsTwo => {}
        }
        let activations = peak(knobs.precision.name(), knobs.micro_batch, knobs.checkpoint_layers) - 4 * WEIGHTS;
        let again = 1.0 + 0.3 * knobs.checkpoint_layers as f64 / LAYERS as f64;
        let pass = self.pause.mul_f64(4.0 + knobs.micro_batch as f64 * again);
        let loss = if self.mood == Mood::NeedsTwo && knobs.micro_batch == 1 { f64::NAN } else { 1.0 };
        let (gradient, moments) = (Vec::new(), Vec::new());
        let (weights, samples) = (vec![1; WEIGHTS], knobs.micro_batch);
        let torn = self.mood == Mood::PanicsLate && knobs.micro_batch > 1;
        Ok(Book { weights, gradient, moments, activations, pass, samples, loss, torn, share: 0.0 })
    }
}

pub struct Book {
    weights: Vec<u8>,
    gradient: Vec<u8>,
    moments: Vec<u8>,
    activations: usize,
    pass: Duration,
    samples: usize,
    loss: f64,
    torn: bool,
    share: f64,
}

impl Training for Book {
    /// Samples.
    type Batch = usize;

    fn worst(&mut self, samples: usize) -> Result<usize> {
        assert_eq!(samples, self.samples);
        Ok(samples)
    }

    fn accumulate(&mut self, samples: &usize, share: f64) -> Result<()> {
        assert_eq!(*samples, self.samples);
        self.gradient.resize(WEIGHTS, 1);
        let tape = vec![1u8; self.activations];
        assert!(!self.torn || self.moments.is_empty(), "a page is missing");
        sleep(self.pass);
        self.share += share * f64::from(std::hint::black_box(&tape)[0]);
        Ok(())
    }

    fn update(&mut self) -> Result<f64> {
        assert!(self.share > 0.0, "an update follows a gradient");
        self.moments.resize(2 * WEIGHTS, 1);
        self.gradient = Vec::new();
        self.share = 0.0;
        Ok(self.loss)
    }

    fn parameter_sum(&self) -> Result<f64> {
        Ok(self.weights.iter().map(|&weight| f64::from(weight)).sum())
    }

    fn evaluate(&mut self, _batch: &usize) -> Result<Evaluation> {
        drop(vec![1u8; self.activations / 2]);
        Ok(Evaluation::Done)
    }

    fn timing(&self) -> Timing {
        Timing::Typical
    }

    fn typical(&mut self) -> Result<Timed<usize>> {
        Ok(Timed { batch: self.samples, samples: self.samples, weight: 1.0 })
    }
}

fn search(name: &'static str, pause: Duration, mood: Mood) -> Result<Tune<Ledger>> {
    let search = autofit::tune(Ledger { name, pause, mood }).vram_bytes(CAP as u64).effective_batch(8);
    Ok(search.results("study").device("cpu").seed(7).deadline(Duration::from_secs(60)))
}

/// Between what eight samples need in 16 bits with one layer recomputed and with none; in 32 bits with three and with two.
pub const CAP: usize = 4 * WEIGHTS + (7 << 18);

/// Users' programs, by name.
pub fn program(role: &str) -> Result<()> {
    let brief = Duration::from_micros(250);
    let say = |answer: &Answer| println!("{answer}");
    match role {
        "ledger" => say(&search("ledger", brief, Mood::Plain)?.run()?),
        "slow" => say(&search("ledger", brief * 40, Mood::Plain)?.narrate().run()?),
        "small" => say(&search("ledger", brief, Mood::Plain)?.vram("2M")?.run()?),
        "panics" => say(&search("ledger", brief, Mood::Panics)?.run()?),
        "panics late" => say(&search("ledger", brief, Mood::PanicsLate)?.run()?),
        "hangs" => say(&search("ledger", brief, Mood::Hangs)?.deadline(Duration::from_millis(300)).run()?),
        "needs two" => say(&search("pair", brief, Mood::NeedsTwo)?.run()?),
        "hides" if autofit::is_worker() => {}
        "hides" => say(&search("ledger", brief, Mood::Plain)?.run()?),
        "both" | "both at once" => {
            let first = search("first", brief, Mood::Plain)?;
            let second = search("second", brief, Mood::Plain)?.results("second");
            if role == "both" {
                first.serve();
                second.serve();
            }
            first.run()?;
            say(&second.run()?);
        }
        other => anyhow::bail!("no such program: {other}"),
    }
    Ok(())
}
