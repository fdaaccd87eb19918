//! Which device, what it can do, and how its memory is counted and capped.
//!
//! * [`meter`]: the worker's global allocator; counts live and peak bytes and holds a cap (CPU).

pub mod memory;
pub mod meter;
pub mod select;
