//! autofit finds the fastest way to fine-tune a transformer inside a given amount of device memory, and then does it.

#![warn(missing_docs, clippy::unwrap_used, clippy::expect_used)]

pub mod cli;
pub mod data;
pub mod device;
pub mod kernels;
pub mod model;
pub mod plan;
pub mod probe;
pub mod report;
pub mod study;
pub mod train;
pub mod worker;
