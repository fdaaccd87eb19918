//! What a study says to a person.
//!
//! * [`terminal`]: the table of trials and the answer, as text; [`story`]: what happened in each trial.
//! * [`sheet`]: a study's files, read for a report; [`svg`], [`plots`]: drawings; [`html`]: the page.
//! * [`export`]: the answer in the words of other tools; [`outlook`]: what fits, by estimate; [`tensorboard`]: event files.

pub mod console;
pub mod export;
pub mod html;
pub mod outlook;
pub mod plots;
pub mod sheet;
pub mod story;
pub mod svg;
pub mod tensorboard;
pub mod terminal;
