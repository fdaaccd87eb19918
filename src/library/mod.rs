//! autofit for any Burn model: a user's own program searches, and is its own probe worker.
//!
//! * [`workload`]: what a user says about a model ([`Workload`]), and which knobs it has ([`Axes`]).
//! * [`mod@tune`]: the search, set up and run ([`Tune`]).
//! * `role`: whether this process is the driver or one of its workers.
//! * `search`: one search, from the first look at the model to `best.toml`.
//! * [`no_answer`]: how a search may end otherwise ([`NoAnswer`]).
//!
//! The driver starts the program again, with the same arguments and a mark in its environment, for every worker; `run`
//! there serves probes instead of searching. What a worker measures is `worker::measure`, for encoders and for every
//! other model alike. Beside `cli` this is the only room that knows both chains.

pub mod no_answer;
mod role;
mod search;
pub mod tune;
pub mod workload;

pub use no_answer::NoAnswer;
pub use role::is_worker;
pub use tune::{Tune, tune};
pub use workload::{Axes, Setup, Workload};

#[cfg(test)]
mod tests;
