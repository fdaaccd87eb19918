//! One probe: a few real training steps at the worst shapes, then timed ones at typical shapes.
//!
//! Order matters for the peak. The first step has one micro-batch and creates the optimizer's state; the second
//! holds the fullest moment of all: weights, optimizer state and whole gradients while another micro-batch goes
//! through forward and backward. Anything less would certify too low a peak.

use std::time::Instant;

use anyhow::{Context, Result};
use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::Tensor;

use crate::data::batch::PadTo;
use crate::data::corpus::Targets;
use crate::data::synthetic;
use crate::data::tokenize::Encoded;
use crate::device::memory::Memory;
use crate::device::select::Selected;
use crate::model::source::ModelFiles;
use crate::model::{Classifier, ModelConfig};
use crate::probe::protocol::{Measurement, ProbeSpec, Report};
use crate::train::Learner;
use crate::train::batch::MicroBatch;
use crate::train::cutting;
use crate::train::evaluate;
use crate::train::step::StepSettings;

/// Any rate above zero: a probe's updates must be real ones.
const LEARNING_RATE: f64 = 1e-5;

/// Measures one trial.
///
/// # Errors
/// If the model can't be read. Running out of memory ends the process (CPU) or comes as a panic (accelerators).
pub fn measure(spec: &ProbeSpec, selected: &Selected, cap: Option<u64>, say: &mut dyn FnMut(String)) -> Result<Report> {
    let started = Instant::now();
    let files = ModelFiles::open(&spec.model)?;
    let labels = (0..spec.num_labels.max(1)).map(|i| format!("LABEL_{i}")).collect();
    let config = files.config.clone().with_labels(labels);
    let rows = Rows::new(spec, &config)?;
    let memory = Memory::open(selected, cap);
    say("building the model".into());
    let device = selected.device.clone().autodiff();
    let (model, _) = files.load(&config, spec.seed, &device).context("loading the model")?;
    let learner = Learner::new(model, config, StepSettings::new(spec.knobs, spec.seed), device);
    let setup_seconds = started.elapsed().as_secs_f64();
    Probe { spec, learner, rows, memory, out: Measurement { setup_seconds, ..Measurement::default() } }.run(say)
}

/// The rows of a probe: random token ids of the lengths that training will meet.
struct Rows {
    longest: Vec<Encoded>,
    typical: Vec<Encoded>,
}

impl Rows {
    fn new(spec: &ProbeSpec, config: &ModelConfig) -> Result<Self> {
        let rows = |count: usize, length: usize, seed: u64| {
            synthetic::rows(count, length, config.vocab_size, config.num_labels(), seed).map(|(rows, _)| rows)
        };
        let typical: Result<Vec<Encoded>> = (0u64..)
            .zip(&spec.shapes.typical)
            .map(|(number, &length)| rows(1, length, spec.seed + number).map(|mut row| row.swap_remove(0)))
            .collect();
        Ok(Rows { longest: rows(spec.knobs.micro_batch, spec.shapes.longest, spec.seed)?, typical: typical? })
    }
}

struct Probe<'a> {
    spec: &'a ProbeSpec,
    learner: Learner,
    rows: Rows,
    memory: Memory,
    out: Measurement,
}

impl Probe<'_> {
    fn run(mut self, say: &mut dyn FnMut(String)) -> Result<Report> {
        let effort = self.spec.effort;
        self.out.layers = self.learner.config.layers;
        self.out.weight_bytes = self.memory.live();
        say(format!("two optimizer steps at length {}", self.spec.shapes.longest));
        self.worst_case()?;
        say("timing".into());
        match self.spec.shapes.typical.is_empty() {
            true => self.time_longest()?,
            false => self.time_typical()?,
        }
        if effort.evaluate {
            say("an evaluation batch".into());
            self.evaluate()?;
        }
        self.out.peak_bytes = self.out.peak_bytes.max(self.memory.peak());
        self.verdict()
    }

    /// Two optimizer steps at the longest rows, the second with accumulation if the trial has any.
    fn worst_case(&mut self) -> Result<()> {
        let rows = std::mem::take(&mut self.rows.longest);
        let before = self.memory.live();
        self.micro(&rows)?;
        self.learner.widen_tables(self.distinct());
        self.out.gradient_bytes = self.memory.live().saturating_sub(before);
        self.update();
        self.out.optimizer_bytes = self.memory.live().saturating_sub(before);
        for _ in 0..if self.accumulates() { 2 } else { 1 } {
            let seconds = self.micro(&rows)?;
            // Where every row is this long, these are already micro-batches worth timing: the first step warmed up.
            if self.spec.shapes.typical.is_empty() {
                self.out.micro_seconds.push(seconds);
            }
            self.learner.widen_tables(self.distinct());
        }
        let seconds = self.update();
        self.out.optimizer_seconds.push(seconds);
        self.rows.longest = rows;
        Ok(())
    }

    /// More of the same until the effort is spent.
    fn time_longest(&mut self) -> Result<()> {
        let rows = std::mem::take(&mut self.rows.longest);
        let started = Instant::now();
        while self.wants_more(started) {
            let seconds = self.pass(&rows)?;
            self.out.micro_seconds.push(seconds);
        }
        self.finish_step();
        self.rows.longest = rows;
        Ok(())
    }

    /// Micro-batches cut from whole optimizer steps as a run would cut them.
    ///
    /// Few of them are timed, spread over all lengths; each stands for the time of its whole step in proportion to
    /// the arithmetic in it, and is reported as that time divided by the micro-batches of a step.
    fn time_typical(&mut self) -> Result<()> {
        let effective = self.spec.effective_batch.min(self.rows.typical.len());
        let steps: Vec<Vec<Encoded>> = self.rows.typical.chunks(effective).map(<[_]>::to_vec).collect();
        let count = self.spec.knobs.accumulation(self.spec.effective_batch) as f64;
        let started = Instant::now();
        let mut warm = 0;
        'steps: for step in steps.iter().filter(|step| step.len() == effective).cycle() {
            let parts = self.cut(step)?;
            let whole: f64 = parts.iter().map(|part| self.work(part)).sum();
            for part in spread(parts) {
                if !self.wants_more(started) {
                    break 'steps;
                }
                let seconds = self.pass(&part)?;
                if warm < self.spec.effort.warmup {
                    warm += 1;
                } else {
                    self.out.micro_seconds.push(seconds * whole / self.work(&part) / count);
                }
            }
        }
        self.finish_step();
        Ok(())
    }

    /// A step's rows, cut as a run cuts them.
    fn cut(&self, rows: &[Encoded]) -> Result<Vec<Vec<Encoded>>> {
        let lengths: Vec<usize> = rows.iter().map(|row| row.ids.len()).collect();
        let (micro, longest) = (self.spec.knobs.micro_batch, self.spec.shapes.longest);
        let parts = cutting::micro_batches(&lengths, &self.learner.config, micro, longest)?;
        Ok(parts.into_iter().map(|part| part.into_iter().map(|i| rows[i].clone()).collect()).collect())
    }

    /// Different token ids that a step may have. These micro-batches repeat the same few; a run's do not.
    fn distinct(&self) -> usize {
        let all = self.spec.effective_batch * self.spec.shapes.longest;
        self.spec.shapes.distinct.map_or(all, |bound| bound.min(all))
    }

    fn accumulates(&self) -> bool {
        self.spec.knobs.accumulation(self.spec.effective_batch) > 1
    }

    /// A timed micro-batch. Without accumulation it is a whole step: gradients that lived on into the next one would
    /// raise the peak above that of any run.
    fn pass(&mut self, rows: &[Encoded]) -> Result<f64> {
        let seconds = self.micro(rows)?;
        if !self.accumulates() {
            self.finish_step();
        }
        Ok(seconds)
    }

    /// The update that ends a step, if anything was accumulated.
    fn finish_step(&mut self) {
        if !self.learner.gradients().is_empty() {
            let seconds = self.update();
            self.out.optimizer_seconds.push(seconds);
        }
    }

    fn wants_more(&self, started: Instant) -> bool {
        let (effort, timed) = (self.spec.effort, self.out.micro_seconds.len());
        timed < effort.min_timed || (timed < effort.max_timed && started.elapsed().as_secs_f64() < effort.seconds)
    }

    /// Floating-point operations of some rows padded together, up to a factor.
    fn work(&self, rows: &[Encoded]) -> f64 {
        let config = &self.learner.config;
        let length = rows.iter().map(|row| row.ids.len()).max().unwrap_or(0);
        let matrices = 4 * config.hidden_size + 2 * config.intermediate_size;
        (rows.len() * length * (matrices + 2 * length)) as f64
    }

    fn batch(&self, rows: &[Encoded]) -> Result<MicroBatch> {
        let targets = match self.learner.config.num_labels() {
            1 => Targets::Values((0..rows.len()).map(|i| i as f32 / rows.len() as f32).collect()),
            labels => Targets::Classes((0..rows.len()).map(|i| i % labels).collect()),
        };
        let rows: Vec<&Encoded> = rows.iter().collect();
        MicroBatch::new(&rows, targets, PadTo::Longest, &self.learner.config, self.learner.device())
    }

    /// Forward and backward of one micro-batch; waits until the device is done.
    fn micro(&mut self, rows: &[Encoded]) -> Result<f64> {
        let batch = self.batch(rows)?;
        let started = Instant::now();
        self.learner.accumulate(&batch, self.spec.effective_batch as f64);
        self.wait();
        Ok(started.elapsed().as_secs_f64())
    }

    /// One optimizer step; waits until the device is done.
    fn update(&mut self) -> f64 {
        let started = Instant::now();
        self.out.loss = self.learner.update(LEARNING_RATE).loss;
        self.wait();
        started.elapsed().as_secs_f64()
    }

    /// A failure to wait is not reported here: it shows when results are read back.
    fn wait(&self) {
        let _ = self.learner.device().sync();
    }

    fn evaluate(&mut self) -> Result<()> {
        self.out.peak_bytes = self.memory.peak();
        self.memory.reset_peak();
        let batch = self.batch(&self.rows.longest)?;
        let model = self.learner.model();
        let logits = evaluate::logits(model, &self.learner.config, &batch.inputs, self.spec.knobs.precision);
        drop(logits.into_data());
        self.out.evaluation_peak_bytes = Some(self.memory.peak());
        Ok(())
    }

    /// Reads back something that depends on every update: only then is it known that all work was done.
    fn verdict(mut self) -> Result<Report> {
        self.out.parameter_sum = parameter_sum(self.learner.model());
        if !self.out.loss.is_finite() {
            return Ok(Report::NonFinite { what: format!("the loss was {}", self.out.loss) });
        }
        if !self.out.parameter_sum.is_finite() {
            return Ok(Report::NonFinite { what: "the updated parameters held NaN or infinity".into() });
        }
        Ok(Report::Measured(self.out))
    }
}

/// The parts in an order in which any few in front are of all lengths: by length, then visited with a stride near the
/// golden ratio.
fn spread(mut parts: Vec<Vec<Encoded>>) -> Vec<Vec<Encoded>> {
    parts.sort_by_key(|part| part.iter().map(|row| row.ids.len()).max());
    let count = parts.len();
    let stride = (1..=count).rev().find(|s| *s as f64 <= 0.618 * count as f64 && gcd(*s, count) == 1).unwrap_or(1);
    (0..count).map(|i| std::mem::take(&mut parts[(count / 2 + i * stride) % count])).collect()
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// The sum over all parameters.
fn parameter_sum(model: &Classifier) -> f64 {
    struct Sum(Option<Tensor<1>>);
    impl ModuleVisitor for Sum {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let sum = param.val().without_autodiff().sum();
            self.0 = Some(match self.0.take() {
                Some(total) => total + sum,
                None => sum,
            });
        }
    }
    let mut visitor = Sum(None);
    model.visit(&mut visitor);
    visitor.0.map_or(f64::NAN, |sum| f64::from(sum.into_scalar::<f32>()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_is_visited_once_and_the_middle_first() {
        let row = |length: usize| Encoded { ids: vec![0; length], type_ids: vec![0; length], truncated: false };
        for count in 1..40 {
            let parts: Vec<Vec<Encoded>> = (0..count).map(|n| vec![row(n + 1)]).collect();
            let lengths: Vec<usize> = spread(parts).iter().map(|part| part[0].ids.len()).collect();
            assert_eq!(lengths[0], count / 2 + 1);
            let mut sorted = lengths.clone();
            sorted.sort_unstable();
            assert_eq!(sorted, (1..=count).collect::<Vec<_>>());
        }
    }
}
