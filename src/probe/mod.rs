//! The process boundary: every trial lives in a worker process of its own.

pub mod protocol;
