//! The search: which trial comes next, and when the answer is known. Pure: it knows no tensor and no process.
//!
//! * [`search_space`]: the axes; [`problem`]: what is to be solved, and the grid of configurations it spans.
//! * [`trial`]: what is asked for and what became of it.
//! * [`regression`], [`memory_model`], [`speed_model`]: they propose; only probes decide. [`estimate`]: a guess from the shape alone.
//! * [`evidence`]: what the trials so far say; [`sampler`]: what to ask next.
//! * [`answer`], [`shortfall`]: how a study ends; [`best`]: the answer as a file.
//! * [`journal`], [`identity`]: every trial on disk before the next one starts.
//! * [`driver`]: ask → probe → record → tell, until done, out of time or interrupted.

pub mod answer;
pub mod best;
pub mod driver;
pub mod estimate;
pub mod evidence;
pub mod identity;
pub mod journal;
pub mod memory_model;
mod moves;
pub mod problem;
pub mod regression;
pub mod row;
pub mod sampler;
pub mod search_space;
pub mod shortfall;
pub mod speed_model;
pub mod stamp;
pub mod suggest;
pub mod trial;

#[cfg(test)]
mod properties;
#[cfg(test)]
mod synthetic;
#[cfg(test)]
mod whole_studies;
