//! The built-in encoders as something that can be measured: the training step of `train` on rows of the data, or of
//! random token ids where there is none, as long as those that training will meet.

use std::time::Instant;

use anyhow::{Context, Result};
use burn::tensor::Device;

use super::measure::{self, Question};
use super::training::{Evaluation, Timed, Timing, Training, parameter_sum};
use crate::data::batch::PadTo;
use crate::data::corpus::Targets;
use crate::data::synthetic;
use crate::data::tokenize::Encoded;
use crate::device::select::Selected;
use crate::model::ModelConfig;
use crate::model::source::ModelFiles;
use crate::probe::protocol::{ProbeSpec, Report};
use crate::train::Learner;
use crate::train::batch::MicroBatch;
use crate::train::cutting;
use crate::train::evaluate;
use crate::train::step::{LossScale, StepSettings};

/// Any rate above zero: a probe's updates must be real ones.
const LEARNING_RATE: f64 = 1e-5;

/// Measures one trial of an encoder.
///
/// # Errors
/// If the model can't be read. Running out of memory ends the process (CPU) or comes as a panic (accelerators).
pub fn measure(spec: &ProbeSpec, selected: &Selected, cap: Option<u64>, say: &mut dyn FnMut(String)) -> Result<Report> {
    let started = Instant::now();
    let files = ModelFiles::open(&spec.model)?;
    let labels = (0..spec.num_labels.max(1)).map(|i| format!("LABEL_{i}")).collect();
    let config = files.config.clone().with_labels(labels);
    // Rows lie on the host, where a run has them too: they are made before memory is counted.
    let rows = Rows::new(spec, &config)?;
    let ProbeSpec { knobs, effective_batch, effort, .. } = *spec;
    let question = Question { knobs, effective_batch, effort, layers: config.layers, cap, started };
    measure::measure(question, selected, say, |device: &Device| {
        let (model, _) = files.load(&config, spec.seed, device).context("loading the model")?;
        // An update that loss scaling skips would leave the optimizer's memory out.
        let settings = StepSettings { loss_scale: LossScale::LOWEST, ..StepSettings::new(spec.knobs, spec.seed) };
        let learner = Learner::new(model, config, settings, device.clone());
        Ok(Encoder { spec, learner, rows })
    })
}

/// The rows of a probe, of the lengths that training will meet.
struct Rows {
    longest: Vec<Encoded>,
    typical: Vec<Encoded>,
    /// Optimizer steps of typical rows that were cut so far.
    steps: usize,
    /// What is left of the step that was cut last, each part with its weight.
    parts: std::vec::IntoIter<(Vec<Encoded>, f64)>,
}

impl Rows {
    fn new(spec: &ProbeSpec, config: &ModelConfig) -> Result<Self> {
        let shapes = &spec.shapes;
        let micro = spec.knobs.micro_batch;
        let (longest, typical) = match shapes.rows.first() {
            Some(_) => (longest_of(&shapes.rows, micro, shapes.longest), cut_from(&shapes.rows, &shapes.typical)),
            None => {
                // One class, whatever the head has: what a row says plays no part, and any vocabulary can say it.
                let rows = |count: usize, length: usize, seed: u64| {
                    synthetic::rows(count, length, config.vocab_size, 1, seed).map(|(rows, _)| rows)
                };
                let typical: Result<Vec<Encoded>> = (0u64..)
                    .zip(&shapes.typical)
                    .map(|(number, &length)| rows(1, length, spec.seed + number).map(|mut row| row.swap_remove(0)))
                    .collect();
                (rows(micro, shapes.longest, spec.seed)?, typical?)
            }
        };
        Ok(Rows { longest, typical, steps: 0, parts: Vec::new().into_iter() })
    }
}

/// `count` rows of `length` tokens: those of the data that are as long, again and again. A run may meet as many of them
/// in one micro-batch as it has, and other data more.
fn longest_of(rows: &[Vec<u32>], count: usize, length: usize) -> Vec<Encoded> {
    let whole = rows.iter().filter(|ids| ids.len() == length).cycle().map(|ids| row(ids.clone()));
    let mut longest: Vec<Encoded> = whole.take(count).collect();
    // Whoever asks for longer rows than it sends any of gets them from what it did send.
    longest.extend(cut_from(rows, &vec![length; count - longest.len()]));
    longest
}

/// Rows of these lengths, from the token ids of the data one after another: a step then has about as many different ones
/// as a step of a run.
fn cut_from(rows: &[Vec<u32>], lengths: &[usize]) -> Vec<Encoded> {
    let mut ids = rows.iter().flatten().copied().cycle();
    lengths.iter().map(|&length| row(ids.by_ref().take(length).collect())).collect()
}

fn row(ids: Vec<u32>) -> Encoded {
    Encoded { type_ids: vec![0; ids.len()], ids, truncated: false }
}

struct Encoder<'a> {
    spec: &'a ProbeSpec,
    learner: Learner,
    rows: Rows,
}

impl Encoder<'_> {
    fn batch(&self, rows: &[Encoded]) -> Result<MicroBatch> {
        let targets = match self.learner.config.num_labels() {
            1 => Targets::Values((0..rows.len()).map(|i| i as f32 / rows.len() as f32).collect()),
            labels => Targets::Classes((0..rows.len()).map(|i| i % labels).collect()),
        };
        let rows: Vec<&Encoded> = rows.iter().collect();
        MicroBatch::new(&rows, targets, PadTo::Longest, &self.learner.config, self.learner.device())
    }

    /// The next step of typical rows, cut as a run cuts it.
    ///
    /// Few of its parts are timed, spread over all lengths; each stands for the time of its whole step in proportion
    /// to the arithmetic in it.
    fn cut_next_step(&mut self) -> Result<()> {
        let effective = self.spec.effective_batch.min(self.rows.typical.len());
        let count = self.spec.knobs.accumulation(self.spec.effective_batch) as f64;
        let at = self.rows.steps % (self.rows.typical.len() / effective) * effective;
        let parts = self.cut(&self.rows.typical[at..at + effective])?;
        let whole: f64 = parts.iter().map(|part| self.work(part)).sum();
        let weigh = |part: Vec<Encoded>| {
            let weight = whole / self.work(&part) / count;
            (part, weight)
        };
        let weighed: Vec<(Vec<Encoded>, f64)> = spread(parts).into_iter().map(weigh).collect();
        self.rows.parts = weighed.into_iter();
        self.rows.steps += 1;
        Ok(())
    }

    /// A step's rows, cut as a run cuts them.
    fn cut(&self, rows: &[Encoded]) -> Result<Vec<Vec<Encoded>>> {
        let lengths: Vec<usize> = rows.iter().map(|row| row.ids.len()).collect();
        let (micro, longest) = (self.spec.knobs.micro_batch, self.spec.shapes.longest);
        let parts = cutting::micro_batches(&lengths, &self.learner.config, micro, longest)?;
        Ok(parts.into_iter().map(|part| part.into_iter().map(|i| rows[i].clone()).collect()).collect())
    }

    /// Floating-point operations of some rows padded together, up to a factor.
    fn work(&self, rows: &[Encoded]) -> f64 {
        let config = &self.learner.config;
        let length = rows.iter().map(|row| row.ids.len()).max().unwrap_or(0);
        let matrices = 4 * config.hidden_size + 2 * config.intermediate_size;
        (rows.len() * length * (matrices + 2 * length)) as f64
    }

    /// Different token ids that a step may have. These micro-batches repeat the same few; a run's do not.
    fn distinct(&self) -> usize {
        let all = self.spec.effective_batch * self.spec.shapes.longest;
        self.spec.shapes.distinct.map_or(all, |bound| bound.min(all))
    }
}

impl Training for Encoder<'_> {
    type Batch = MicroBatch;

    fn worst(&mut self, samples: usize) -> Result<MicroBatch> {
        self.batch(&self.rows.longest[..samples])
    }

    /// The learner divides by the weight of the whole step itself.
    fn accumulate(&mut self, batch: &MicroBatch, _share: f64) -> Result<()> {
        self.learner.accumulate(batch, self.spec.effective_batch as f64);
        Ok(())
    }

    fn update(&mut self) -> Result<f64> {
        Ok(self.learner.update(LEARNING_RATE)?.loss)
    }

    fn parameter_sum(&self) -> Result<f64> {
        parameter_sum(self.learner.model())
    }

    fn evaluate(&mut self, batch: &MicroBatch) -> Result<Evaluation> {
        let precision = self.spec.knobs.precision;
        let logits = evaluate::logits(self.learner.model(), &self.learner.config, &batch.inputs, precision);
        drop(logits.into_data());
        Ok(Evaluation::Done)
    }

    fn timing(&self) -> Timing {
        if self.spec.shapes.typical.is_empty() { Timing::Worst } else { Timing::Typical }
    }

    fn typical(&mut self) -> Result<Timed<MicroBatch>> {
        let (part, weight) = loop {
            match self.rows.parts.next() {
                Some(part) => break part,
                None => self.cut_next_step()?,
            }
        };
        Ok(Timed { batch: self.batch(&part)?, samples: part.len(), weight })
    }

    fn fill_gradient(&mut self) {
        self.learner.widen_tables(self.distinct());
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::presets;
    use crate::plan::{Knobs, Precision};
    use crate::probe::protocol::{Effort, ModelSource, Shapes};

    fn spec(num_labels: usize, rows: Vec<Vec<u32>>) -> ProbeSpec {
        ProbeSpec {
            model: ModelSource::Preset("none".into()),
            num_labels,
            knobs: Knobs::new(Precision::Fp32, 5, 0),
            effective_batch: 5,
            shapes: Shapes { longest: 4, typical: vec![2, 3, 4, 1], distinct: None, rows },
            effort: Effort { warmup: 0, min_timed: 1, max_timed: 1, seconds: 0.0, evaluate: false },
            seed: 1,
        }
    }

    #[test]
    fn rows_of_the_data_are_probed_where_there_are_any() {
        let config = presets::config("tinybert").unwrap();
        let ids = |rows: &[Encoded]| rows.iter().map(|row| row.ids.clone()).collect::<Vec<_>>();
        let rows = vec![vec![1, 2, 3, 4], vec![5, 6, 7, 8], vec![9, 10, 11]];
        let made = Rows::new(&spec(3, rows), &config).unwrap();
        let (a, b) = (vec![1, 2, 3, 4], vec![5, 6, 7, 8]);
        assert_eq!(ids(&made.longest), [a.clone(), b.clone(), a.clone(), b, a]);
        assert_eq!(ids(&made.typical), [vec![1, 2], vec![3, 4, 5], vec![6, 7, 8, 9], vec![10]]);
        // Shorter than what is asked for: as long all the same.
        let made = Rows::new(&spec(3, vec![vec![7, 8]]), &config).unwrap();
        assert!(made.longest.len() == 5 && made.longest.iter().all(|row| row.ids == [7, 8, 7, 8]));
        assert!(made.longest.iter().all(|row| row.type_ids.len() == 4));
    }

    #[test]
    fn random_rows_carry_any_number_of_classes_on_any_vocabulary() {
        for (labels, vocab) in [(2_000, 120), (1, 1), (7, 6)] {
            let config = ModelConfig { vocab_size: vocab, ..presets::config("tinybert").unwrap() };
            let made = Rows::new(&spec(labels, Vec::new()), &config).unwrap();
            let all = made.longest.iter().chain(&made.typical);
            assert_eq!(all.clone().map(|row| row.ids.len()).collect::<Vec<_>>(), [4, 4, 4, 4, 4, 2, 3, 4, 1]);
            assert!(all.flat_map(|row| &row.ids).all(|&id| (id as usize) < vocab), "{labels} labels, {vocab} words");
        }
    }

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
