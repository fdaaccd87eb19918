//! From a file of texts to padded micro-batches, without naming a tensor.
//!
//! * [`source`]: CSV, TSV and JSONL files → [`source::Example`]s;
//! * [`labels`]: label names ↔ class indices, or numbers for regression;
//! * [`tokenize`]: texts → token ids, truncated and never padded;
//! * [`lengths`]: what the rows' lengths look like, which decides memory and speed;
//! * [`split`], [`order`]: which rows are trained on, and when: pure functions of a seed;
//! * [`batch`]: rows of different lengths → one rectangle of ids;
//! * [`synthetic`]: rows for use without any data.
//!
//! How a step's rows are cut into micro-batches is [`crate::plan::cut`]'s business.

pub mod batch;
pub mod corpus;
pub mod labels;
pub mod lengths;
pub mod order;
pub mod random;
pub mod source;
pub mod split;
pub mod suggest;
pub mod synthetic;
pub mod tokenize;
