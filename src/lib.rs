//! autofit finds the fastest way to fine-tune a transformer inside a given amount of device memory, and then does it.

#![warn(missing_docs, clippy::unwrap_used, clippy::expect_used)]

pub mod cli;
pub mod data;
pub mod device;
pub mod kernels;
pub mod library;
pub mod model;
pub mod plan;
pub mod probe;
pub mod report;
pub mod study;
pub mod train;
pub mod worker;

pub use device::meter::Meter;
pub use library::{Axes, NoAnswer, Setup, Tune, Workload, is_worker, tune};
pub use plan::{Knobs, OptimizerKind, Precision};
pub use study::answer::Answer;
pub use worker::training::{Evaluation, Timed, Timing, Training, parameter_sum};

pub use anyhow::{Error, Result};
pub use burn;
