//! The leaf room: words that every other room shares, free of tensors and of processes.
//!
//! * [`bounds`]: how large numbers of people and files may be.
//! * [`cut`]: how the rows of one step are cut into padded micro-batches of different sizes.
//! * [`files`]: files that are whole or not there, and whether two names are one file.
//! * [`float`]: floats in JSON, also those that are not finite.
//! * [`knobs`]: the axes that the search turns ([`Precision`], [`Knobs`]).
//! * [`outcome`]: what became of a trial.
//! * [`partition`]: how an effective batch is cut into micro-batches.
//! * [`size`]: byte sizes as people write them (`6G`, `500M`).
//! * [`text`]: foreign text for a person, a shell or a file to read.

#[doc(hidden)]
pub mod bounds;
pub mod cut;
#[doc(hidden)]
pub mod files;
pub mod float;
pub mod knobs;
pub mod outcome;
pub mod partition;
pub mod size;
#[doc(hidden)]
pub mod text;

pub use knobs::{Knobs, LORA_ALPHA, OptimizerKind, Precision};
pub use outcome::Outcome;
pub use size::ByteSize;
