//! What a study says to a person.
//!
//! * [`terminal`]: the table of trials and the answer, as text.

pub mod terminal;
