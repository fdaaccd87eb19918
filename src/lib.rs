//! autofit finds the fastest way to train a model inside a given amount of memory.
//!
//! It runs a few real training steps of one configuration after another, each in a process that may not use more memory
//! than was allowed, learns from every one that fits and every one that does not, and answers with a micro-batch (and
//! precision, and recomputed layers, where the model has a choice) that was *measured* to fit. The effective batch, and
//! with it the gradient, stays what was asked for.
//!
//! The program `autofit` does this for BERT, DistilBERT and RoBERTa, and trains them with the answer. This library does
//! it for any model in [Burn](burn).
//!
//! # A model of your own
//!
//! Three things are asked for: a [`Workload`], which builds the model for a combination of knobs; a [`Training`], which is
//! the model with its optimizer and makes one micro-batch, one update; and, on the CPU, autofit's allocator, which counts.
//!
//! ```no_run
//! use autofit::{Result, Setup, Training, Workload, burn};
//! use burn::nn::{Linear, LinearConfig, loss::{MseLoss, Reduction}};
//! use burn::optim::{AdamWConfig, GradientsAccumulator, GradientsParams, ModuleOptimizer};
//! use burn::tensor::{Device, Distribution, Tensor};
//!
//! struct Mine;
//!
//! struct Run {
//!     model: Option<Linear>,
//!     optimizer: ModuleOptimizer,
//!     gradients: GradientsAccumulator<Linear>,
//!     loss: f64,
//!     device: Device,
//! }
//!
//! impl Workload for Mine {
//!     type Training = Run;
//!
//!     fn name(&self) -> String {
//!         "mine".into()
//!     }
//!
//!     fn build(&self, setup: &Setup) -> Result<Run> {
//!         let model = Some(LinearConfig::new(4096, 1024).init(&setup.device));
//!         let (optimizer, gradients) = (AdamWConfig::new().init(), GradientsAccumulator::new());
//!         Ok(Run { model, optimizer, gradients, loss: 0.0, device: setup.device.clone() })
//!     }
//! }
//!
//! impl Training for Run {
//!     type Batch = (Tensor<2>, Tensor<2>);
//!
//!     fn worst(&mut self, samples: usize) -> Result<Self::Batch> {
//!         let random = |width| Tensor::random([samples, width], Distribution::Default, &self.device);
//!         Ok((random(4096), random(1024)))
//!     }
//!
//!     fn accumulate(&mut self, (inputs, targets): &Self::Batch, share: f64) -> Result<()> {
//!         let Some(model) = &self.model else { return Ok(()) };
//!         let loss = MseLoss::new().forward(model.forward(inputs.clone()), targets.clone(), Reduction::Mean) * share;
//!         self.loss += f64::from(loss.clone().try_into_scalar::<f32>()?);
//!         self.gradients.accumulate(model, GradientsParams::from_grads(loss.backward(), model));
//!         Ok(())
//!     }
//!
//!     fn update(&mut self) -> Result<f64> {
//!         let gradients = self.gradients.grads();
//!         self.model = self.model.take().map(|model| self.optimizer.step(1e-3, model, gradients));
//!         Ok(std::mem::take(&mut self.loss))
//!     }
//!
//!     fn parameter_sum(&self) -> Result<f64> {
//!         self.model.as_ref().map_or(Ok(f64::NAN), autofit::parameter_sum)
//!     }
//! }
//!
//! #[global_allocator]
//! static METER: autofit::Meter = autofit::Meter::new();
//!
//! fn main() -> Result<()> {
//!     let answer = autofit::tune(Mine).vram("600M")?.effective_batch(32).results("results/mine").run()?;
//!     println!("{answer}");
//!     println!("micro-batches of {}, {} a step", answer.knobs.micro_batch, answer.accumulation);
//!     Ok(())
//! }
//! ```
//!
//! Such a program is its own worker: [`Tune::run`] starts it again, with the same arguments, for every process in which
//! it measures, and there serves probes instead of searching. What stands before `run` therefore happens in workers,
//! too; [`is_worker`] tells. What was loaded by then, a data set for example, is not counted as memory of training.
//!
//! [`Tune`] has what else can be set: a time budget, the device, a narrator, an observer. A search that is stopped, by
//! Ctrl-C or `kill -9`, goes on where it was when the program is started again. A model with layers that can be
//! recomputed, or with a choice of precision, says so by [`Workload::axes`]; knobs that a model does not offer are not
//! searched. Where samples differ in size, [`Training::timing`] and [`Training::typical`] give speed what
//! [`Training::worst`] gives memory.
//!
//! # Words
//!
//! | word | meaning |
//! |---|---|
//! | trial | one combination of knobs and what became of it: the record, a row of `trials.csv` |
//! | probe | the short training that measures a trial |
//! | worker | the child process in which a probe, or a training run, lives |
//! | study | one search: its space, its trials, its answer |
//! | effective batch | samples per optimizer step, fixed by the user; the search never changes it |
//! | micro-batch | samples per forward/backward; accumulation is `ceil(effective / micro)`, the parts as equal as they can be |
//! | checkpoint density | layers whose activations are dropped and recomputed in backward: r of L |
//! | cap | the bytes that training may use |
//! | fit, out of memory | outcomes. Running out of memory is information, never an error |
//!
//! # The flow
//!
//! 1. The sampler proposes the next trial, by models of memory and speed fitted to all trials so far ([`study`]).
//! 2. The executor asks a worker, or starts one: a job as a JSON line on its standard input.
//! 3. The worker sets the cap, builds the model and makes two optimizer steps at the worst shapes: the second holds the
//!    fullest moment of all. Then it times more of them, reads back a loss and a number that depends on every updated
//!    parameter, and reports peak bytes and seconds.
//! 4. The driver makes an outcome of the report, or of the way in which the worker died, and syncs it to the disk.
//! 5. The winner is run once more, longer and with an evaluation batch; its neighbours are tried, too. `best.toml` says
//!    what became of all three.
//!
//! # Memory on the CPU
//!
//! Device memory is the heap there, so [`Meter`] counts what this process asks of its allocator, to the byte, and refuses
//! what would go beyond the cap. Code that calls `malloc` itself is not seen. Without the allocator a search on the CPU
//! is refused, by an error that has the line to add.
//!
//! # What is public
//!
//! What this page lists. The other rooms of the crate are hidden: they serve the program and its tests, and change without
//! notice. The version of [`burn`] is part of the interface, hence re-exported: a program's own dependency on it must be
//! the same one.

#![warn(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::print_stdout, clippy::print_stderr)]

#[doc(hidden)]
pub mod cli;
#[doc(hidden)]
pub mod data;
#[doc(hidden)]
pub mod device;
#[doc(hidden)]
pub mod kernels;
#[doc(hidden)]
pub mod library;
#[doc(hidden)]
pub mod model;
pub mod plan;
#[doc(hidden)]
pub mod probe;
#[doc(hidden)]
pub mod report;
pub mod study;
#[doc(hidden)]
pub mod train;
#[doc(hidden)]
pub mod worker;

#[doc(inline)]
pub use device::meter::Meter;
#[doc(inline)]
pub use library::{Axes, NoAnswer, Setup, Tune, Workload, is_worker, tune};
pub use plan::{Knobs, OptimizerKind, Precision};
pub use study::answer::Answer;
#[doc(inline)]
pub use worker::training::{Evaluation, Timed, Timing, Training, parameter_sum};

pub use anyhow::{Error, Result};
pub use burn;
