//! What can be measured: a model under training, of which only the steps of training are known.

use anyhow::Result;

pub use crate::train::finite::parameter_sum;

/// A model under training at fixed knobs: what a probe measures.
///
/// The order of calls is that of training: [`accumulate`](Training::accumulate) once for each micro-batch of an
/// optimizer step, then [`update`](Training::update). Every method may panic or fail: a probe that does has crashed,
/// or run out of memory if that is what the text says. On the CPU a refused allocation ends the worker by itself.
pub trait Training {
    /// A micro-batch on the device, inputs with targets.
    type Batch;

    /// A micro-batch of `samples` samples of the *worst* shape that training will meet: the longest rows, the largest
    /// images. Made afresh for every pass and not timed; its bytes count. Random content will do.
    ///
    /// # Errors
    /// If it can't be made.
    fn worst(&mut self, samples: usize) -> Result<Self::Batch>;

    /// Forward and backward of one micro-batch; its gradient is added to what was accumulated since the last update.
    /// `share` is the part that this micro-batch is of its optimizer step: samples divided by the effective batch. A
    /// mean loss times `share`, summed over the step, is the mean over the step.
    ///
    /// It may return before the device is done: whoever measures waits.
    ///
    /// # Errors
    /// If it can't be computed.
    fn accumulate(&mut self, batch: &Self::Batch, share: f64) -> Result<()>;

    /// Ends an optimizer step: updates the parameters from the accumulated gradient, and forgets that. Returns the
    /// step's loss, read back from the device.
    ///
    /// # Errors
    /// If it can't be computed or read.
    fn update(&mut self) -> Result<f64>;

    /// A number that depends on every updated parameter, read back from the device: only then is it known that all
    /// work was done. [`parameter_sum`] is one.
    ///
    /// # Errors
    /// If it can't be read.
    fn parameter_sum(&self) -> Result<f64>;

    /// A forward pass without a tape, as evaluation does it: part of certifying the answer.
    ///
    /// # Errors
    /// If it can't be computed.
    fn evaluate(&mut self, _batch: &Self::Batch) -> Result<Evaluation> {
        Ok(Evaluation::Absent)
    }

    /// On which micro-batches speed is measured.
    fn timing(&self) -> Timing {
        Timing::Worst
    }

    /// The next micro-batch to time, where [`Timing::Typical`] was said; called over and over.
    ///
    /// # Errors
    /// If it can't be made.
    fn typical(&mut self) -> Result<Timed<Self::Batch>> {
        anyhow::bail!("a training that says Timing::Typical has to give typical micro-batches")
    }

    /// Brings the accumulated gradient to the size that it has at the end of a step, where it grows with what the
    /// step has seen (sparse gradients of tables). Called after micro-batches whose content repeats itself.
    fn fill_gradient(&mut self) {}
}

/// Whether there was anything to evaluate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Evaluation {
    /// A batch was evaluated.
    Done,
    /// This training does not evaluate.
    Absent,
}

/// On which micro-batches speed is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Timing {
    /// On the worst: every sample is of the same size.
    Worst,
    /// On typical ones: samples differ in size.
    Typical,
}

/// A micro-batch to time.
#[derive(Clone, Debug)]
pub struct Timed<Batch> {
    /// The micro-batch.
    pub batch: Batch,
    /// Its samples.
    pub samples: usize,
    /// The time of its whole step, divided by the number of micro-batches of a step, in units of its own time: 1 where
    /// all parts of a step are alike.
    pub weight: f64,
}
