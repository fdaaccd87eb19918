//! The process boundary: every trial lives in a worker process of its own.
//!
//! * [`protocol`]: what driver and worker say to each other, serde types only.
//! * Driver: [`executor`] starts workers (here, or through a [`template`]) and waits, always in bounded time;
//!   [`classify`] turns what it saw into an [`Attempt`](protocol::Attempt); [`interrupt`] catches Ctrl-C.
//! * Worker: [`mod@serve`] is its loop.
//! * Both: [`oom_text`] is the one table of out-of-memory texts, [`oom_record`] reads the allocator's own record.
//!
//! Whatever becomes of the driver, `kill -9` included, no worker outlives it: the kernel kills the worker when the
//! thread that started it ends (Linux), a guard process kills the worker's group when the driver's end of a pipe
//! closes (any Unix), and the worker itself leaves when nobody is left to read its output (through `ssh`, too).

pub mod classify;
pub mod device_text;
pub mod devices;
pub mod executor;
mod guard;
pub mod interrupt;
mod kernel_kills;
mod lines;
pub mod oom_record;
pub mod oom_text;
mod os;
pub mod protocol;
pub mod serve;
pub mod template;
mod worker;

pub use executor::{Executor, Finished, LocalProcess, Workers};
pub use serve::serve;
