//! Training: the one step that probes measure and runs repeat, and what surrounds it.
//!
//! * [`step`]: micro-batches accumulate, then one update ([`step::Learner`]);
//! * [`recompute`]: forward and backward of one micro-batch, segment by segment, with chosen layers recomputed;
//! * `fused`: the same on the CPU, by kernels of our own;
//! * [`gradients`], [`loss_scale`], [`optimizer`], [`schedule`], [`objective`]: the parts of a step.

pub mod batch;
pub mod best;
pub mod cutting;
pub mod evaluate;
pub mod finite;
mod fused;
pub mod gradients;
pub mod loss_scale;
pub mod metrics;
pub mod objective;
pub mod optimizer;
pub mod predict;
pub mod prepare;
pub mod recompute;
pub mod restore;
pub mod resume;
pub mod save;
pub mod schedule;
mod setup;
pub mod snapshot;
pub mod spec;
pub mod step;
pub mod trainer;

pub use step::Learner;
