//! Which device, what it can do, and how its memory is counted and capped.
//!
//! * [`select`]: names to devices; [`describe`]: what a device says of itself, and in which precisions it computes.
//! * [`runtime`]: settings of the accelerators' runtime.
//! * [`memory`]: the account of one workload, whatever the device.
//! * [`meter`]: the worker's global allocator; counts live and peak bytes and holds a cap (CPU).
//! * [`pool`]: the account on a device whose runtime keeps memory in pools; [`brake`]: what stops it at the cap;
//!   [`ballast`]: memory held back, so that a card refuses where a smaller one would.

pub mod ballast;
pub mod brake;
#[cfg(feature = "cuda")]
pub mod cuda;
pub mod describe;
pub mod memory;
pub mod meter;
pub mod pool;
pub mod runtime;
pub mod select;
