//! One probe: a few real training steps at the worst shapes, then timed ones at typical shapes.
//!
//! Order matters for the peak. The first step has one micro-batch and creates the optimizer's state; the second
//! holds the fullest moment of all: weights, optimizer state and whole gradients while another micro-batch goes
//! through forward and backward. Anything less would certify too low a peak.

use std::time::Instant;

use anyhow::Result;
use burn::tensor::Device;

use super::refused;
use super::training::{Evaluation, Timing, Training};
use crate::device::memory::Memory;
use crate::device::select::Selected;
use crate::plan::Knobs;
use crate::probe::protocol::{Effort, Measurement, Report};

/// What is asked of one probe, whatever is trained.
#[derive(Clone, Copy, Debug)]
pub struct Question {
    /// The combination to try.
    pub knobs: Knobs,
    /// Samples per optimizer step.
    pub effective_batch: usize,
    /// How long to measure.
    pub effort: Effort,
    /// Layers of the model, L; 0 where it knows no checkpointing.
    pub layers: usize,
    /// Bytes that the workload may use; `None` means no cap.
    pub cap: Option<u64>,
    /// When the probe began.
    pub started: Instant,
}

/// Measures one trial: sets the cap, has the model built on the device (with autodiff) and trains it for a few steps.
///
/// # Errors
/// If the model can't be built or a step fails. Running out of memory ends the process (CPU) or comes as an error or a
/// panic that says so (accelerators).
pub fn measure<T: Training>(
    question: Question,
    selected: &Selected,
    say: &mut dyn FnMut(String),
    build: impl FnOnce(&Device) -> Result<T>,
) -> Result<Report> {
    say("setting up the device".into());
    let memory = Memory::open(selected, question.cap)?;
    refused::under(memory, question.cap, |memory| {
        let inherited = memory.live();
        say("building the model".into());
        let device = selected.device.clone().autodiff();
        let training = build(&device)?;
        let out = Measurement {
            setup_seconds: question.started.elapsed().as_secs_f64(),
            weight_bytes: memory.live().saturating_sub(inherited),
            layers: question.layers,
            context_bytes: memory.context_bytes(),
            cap_hold: question.cap.map(|_| memory.hold()),
            ..Measurement::default()
        };
        Probe { question, training, device, memory, pending: 0, out }.run(say)
    })
}

struct Probe<'a, T> {
    question: Question,
    training: T,
    device: Device,
    memory: &'a Memory,
    /// Micro-batches accumulated since the last update.
    pending: usize,
    out: Measurement,
}

impl<T: Training> Probe<'_, T> {
    fn run(mut self, say: &mut dyn FnMut(String)) -> Result<Report> {
        say("two optimizer steps of the largest samples".into());
        self.worst_case()?;
        self.out.in_use_peak_bytes = self.memory.in_use_peak();
        self.memory.stop_sampling();
        say("timing".into());
        match self.training.timing() {
            Timing::Worst => self.time_worst()?,
            Timing::Typical => self.time_typical()?,
        }
        if self.question.effort.evaluate {
            say("an evaluation batch".into());
            self.evaluate()?;
        }
        self.out.peak_bytes = self.out.peak_bytes.max(self.memory.peak());
        self.verdict()
    }

    /// Two optimizer steps at the worst shape, the second with accumulation if the trial has any.
    fn worst_case(&mut self) -> Result<()> {
        let before = self.memory.live();
        self.worst()?;
        self.training.fill_gradient();
        self.out.gradient_bytes = self.memory.live().saturating_sub(before);
        self.update()?;
        self.out.optimizer_bytes = self.memory.live().saturating_sub(before);
        for _ in 0..if self.accumulates() { 2 } else { 1 } {
            let seconds = self.worst()?;
            // Where every sample is this large, these are already micro-batches worth timing: the first step warmed up.
            if self.training.timing() == Timing::Worst {
                self.out.micro_seconds.push(seconds);
            }
            self.training.fill_gradient();
        }
        let seconds = self.update()?;
        self.out.optimizer_seconds.push(seconds);
        Ok(())
    }

    /// More of the same until the effort is spent.
    fn time_worst(&mut self) -> Result<()> {
        let started = Instant::now();
        while self.wants_more(started) {
            let seconds = self.worst()?;
            self.end_pass()?;
            self.out.micro_seconds.push(seconds);
        }
        self.finish_step()
    }

    /// Micro-batches of the sizes that a run would meet.
    fn time_typical(&mut self) -> Result<()> {
        let started = Instant::now();
        let mut warm = 0;
        while self.wants_more(started) {
            let timed = self.training.typical()?;
            let seconds = self.pass(timed.batch, timed.samples)?;
            self.end_pass()?;
            if warm < self.question.effort.warmup {
                warm += 1;
            } else {
                self.out.micro_seconds.push(seconds * timed.weight);
            }
        }
        self.finish_step()
    }

    fn accumulates(&self) -> bool {
        self.question.knobs.accumulation(self.question.effective_batch) > 1
    }

    fn wants_more(&self, started: Instant) -> bool {
        let (effort, timed) = (self.question.effort, self.out.micro_seconds.len());
        timed < effort.min_timed || (timed < effort.max_timed && started.elapsed().as_secs_f64() < effort.seconds)
    }

    /// The seconds of a micro-batch of the worst shape.
    fn worst(&mut self) -> Result<f64> {
        let samples = self.question.knobs.micro_batch;
        let batch = self.training.worst(samples)?;
        self.pass(batch, samples)
    }

    /// Forward and backward of one micro-batch; waits until the device is done.
    fn pass(&mut self, batch: T::Batch, samples: usize) -> Result<f64> {
        let share = samples as f64 / self.question.effective_batch as f64;
        let started = Instant::now();
        self.training.accumulate(&batch, share)?;
        self.pending += 1;
        self.wait();
        let seconds = started.elapsed().as_secs_f64();
        self.memory.check()?;
        Ok(seconds)
    }

    /// What follows a timed micro-batch. Without accumulation it is a whole step: gradients that lived on into the
    /// next one would raise the peak above that of any run.
    fn end_pass(&mut self) -> Result<()> {
        if self.accumulates() { Ok(()) } else { self.finish_step() }
    }

    /// The update that ends a step, if anything was accumulated.
    fn finish_step(&mut self) -> Result<()> {
        if self.pending > 0 {
            let seconds = self.update()?;
            self.out.optimizer_seconds.push(seconds);
        }
        Ok(())
    }

    /// One optimizer step; waits until the device is done.
    fn update(&mut self) -> Result<f64> {
        let started = Instant::now();
        self.out.loss = self.training.update()?;
        self.pending = 0;
        self.wait();
        let seconds = started.elapsed().as_secs_f64();
        self.memory.check()?;
        Ok(seconds)
    }

    /// A failure to wait is not reported here: it shows when results are read back.
    fn wait(&self) {
        let _ = self.device.sync();
    }

    fn evaluate(&mut self) -> Result<()> {
        self.out.peak_bytes = self.memory.peak();
        self.memory.reset_peak();
        let batch = self.training.worst(self.question.knobs.micro_batch)?;
        let evaluated = self.training.evaluate(&batch)?;
        self.memory.check()?;
        if evaluated == Evaluation::Done {
            self.out.evaluation_peak_bytes = Some(self.memory.peak());
        }
        Ok(())
    }

    /// Reads back something that depends on every update: only then is it known that all work was done.
    fn verdict(mut self) -> Result<Report> {
        self.out.parameter_sum = self.training.parameter_sum()?;
        if !self.out.loss.is_finite() {
            return Ok(Report::NonFinite { what: format!("the loss was {}", self.out.loss) });
        }
        if !self.out.parameter_sum.is_finite() {
            return Ok(Report::NonFinite { what: "the updated parameters held NaN or infinity".into() });
        }
        Ok(Report::Measured(self.out))
    }
}
