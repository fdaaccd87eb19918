//! Training: the one step that probes measure and runs repeat, and what surrounds it.
//!
//! * [`step`]: micro-batches accumulate, then one update ([`step::Learner`]);
//! * [`recompute`]: forward and backward of one micro-batch, segment by segment, with chosen layers recomputed;
//! * [`gradients`], [`optimizer`], [`schedule`], [`objective`]: the parts of a step.

pub mod batch;
pub mod gradients;
pub mod objective;
pub mod optimizer;
pub mod recompute;
pub mod schedule;
pub mod step;

pub use step::Learner;
