//! How a search may end without an answer.

use std::error::Error;
use std::fmt;

use crate::report::terminal;
use crate::study::answer::Answer;
use crate::study::shortfall::Shortfall;

/// Why [`run`](super::Tune::run) has no answer, though nothing was wrong with the question. Found in its error by
/// `error.downcast_ref::<NoAnswer>()`.
#[derive(Clone, Debug, PartialEq)]
pub enum NoAnswer {
    /// Even the smallest configuration ran out of memory.
    NothingFits {
        /// What it needs, as measured outside the cap, and what of. It suggests no cures: those are a model's own.
        shortfall: Box<Shortfall>,
        /// Samples per optimizer step.
        effective_batch: usize,
        /// Layers that can be recomputed.
        layers: usize,
    },
    /// Probes failed for reasons that have nothing to do with memory.
    Failed {
        /// What happened, with the last words of a worker.
        reason: String,
    },
    /// The budget was over before anything was known to fit.
    OutOfTime,
    /// A signal, or the flag given, stopped it. The same search goes on where it stopped.
    Interrupted {
        /// The best so far, where something is known to fit.
        best: Option<Box<Answer>>,
    },
}

impl fmt::Display for NoAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NoAnswer::NothingFits { shortfall, effective_batch, layers } => {
                f.write_str(terminal::needs(shortfall, *effective_batch, *layers).trim_end())
            }
            NoAnswer::Failed { reason } => f.write_str(reason),
            NoAnswer::OutOfTime => f.write_str(
                "the budget was over before anything was known to fit: the same search goes on where it stopped",
            ),
            NoAnswer::Interrupted { .. } => f.write_str("interrupted: the same search goes on where it stopped"),
        }
    }
}

impl Error for NoAnswer {}
