//! What became of a trial, in one word.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The outcome of a trial. Only [`Outcome::Oom`] says that the configuration does not fit: a host kill, a timeout,
/// NaN and a crash are outcomes of their own and shrink nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// Ran to the end inside the cap; everything read back was finite.
    Fit,
    /// The device, or the cap, refused memory.
    Oom,
    /// The machine itself ran short of memory: says nothing about the cap.
    HostOom,
    /// Did not report before its deadline.
    Timeout,
    /// Loss or updated parameters were NaN or infinite.
    Nan,
    /// The worker died without a report: a signal, an abort, an error.
    Crash,
    /// The worker ended well but what it wrote was no report.
    Garbage,
    /// The device can't do what the knobs ask.
    Unsupported,
    /// Stopped by the user or by the end of the budget.
    Interrupted,
    /// Never run: could not have won.
    Pruned,
}

impl Outcome {
    /// Every outcome.
    pub const ALL: [Outcome; 10] = [
        Outcome::Fit,
        Outcome::Oom,
        Outcome::HostOom,
        Outcome::Timeout,
        Outcome::Nan,
        Outcome::Crash,
        Outcome::Garbage,
        Outcome::Unsupported,
        Outcome::Interrupted,
        Outcome::Pruned,
    ];

    /// Whether the probe failed for a reason that has nothing to do with how much memory there is.
    pub fn is_failure(self) -> bool {
        !matches!(self, Outcome::Fit | Outcome::Oom | Outcome::Interrupted | Outcome::Pruned)
    }

    /// The word used in `trials.csv`.
    pub fn name(self) -> &'static str {
        match self {
            Outcome::Fit => "fit",
            Outcome::Oom => "oom",
            Outcome::HostOom => "host_oom",
            Outcome::Timeout => "timeout",
            Outcome::Nan => "nan",
            Outcome::Crash => "crash",
            Outcome::Garbage => "garbage",
            Outcome::Unsupported => "unsupported",
            Outcome::Interrupted => "interrupted",
            Outcome::Pruned => "pruned",
        }
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Outcome {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Outcome::ALL.into_iter().find(|o| o.name() == text).ok_or_else(|| format!("unknown outcome '{text}'"))
    }
}
