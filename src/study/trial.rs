//! A trial and what is asked for: the two sides of ask and tell.

use std::fmt;
use std::str::FromStr;

use crate::plan::Knobs;
use crate::probe::protocol::{Attempt, Effort};

/// Why a trial was run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Purpose {
    /// A cheap first look at a branch: fixes the scale of memory and speed.
    Pilot,
    /// The trial with the greatest expected gain.
    Explore,
    /// Again and longer: the ranking of two leaders wasn't settled.
    Settle,
    /// Next to the answer: shows where the boundary runs.
    Neighbour,
    /// Longer, with an evaluation batch: the last word on the answer.
    Certify,
    /// Never run: the branch could not win. Its row says why.
    Prune,
}

impl Purpose {
    /// Every purpose.
    pub const ALL: [Purpose; 6] =
        [Purpose::Pilot, Purpose::Explore, Purpose::Settle, Purpose::Neighbour, Purpose::Certify, Purpose::Prune];

    /// The word used in `trials.csv`.
    pub fn name(self) -> &'static str {
        match self {
            Purpose::Pilot => "pilot",
            Purpose::Explore => "explore",
            Purpose::Settle => "settle",
            Purpose::Neighbour => "neighbour",
            Purpose::Certify => "certify",
            Purpose::Prune => "prune",
        }
    }

    /// How long a probe of this purpose measures micro-batches of `micro` samples. Memory is known after two optimizer
    /// steps; the rest buys precision of the speed, so small micro-batches, which are cheap and whose rows vary, get more.
    pub fn effort(self, micro: usize) -> Effort {
        let rows = |samples: usize, least: usize| samples.div_ceil(micro.max(1)).max(least);
        match self {
            Purpose::Pilot | Purpose::Explore | Purpose::Neighbour | Purpose::Prune => {
                Effort { warmup: 1, min_timed: 2, max_timed: rows(64, 8), seconds: 2.0, evaluate: false }
            }
            Purpose::Settle => {
                Effort { warmup: 1, min_timed: 4, max_timed: rows(256, 24), seconds: 6.0, evaluate: false }
            }
            Purpose::Certify => {
                Effort { warmup: 1, min_timed: 4, max_timed: rows(256, 32), seconds: 8.0, evaluate: true }
            }
        }
    }
}

impl fmt::Display for Purpose {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Purpose {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Purpose::ALL.into_iter().find(|p| p.name() == text).ok_or_else(|| format!("unknown purpose '{text}'"))
    }
}

/// What the sampler asks to be probed.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    /// The combination to try.
    pub knobs: Knobs,
    /// How long to measure.
    pub effort: Effort,
    /// Why, in one word.
    pub purpose: Purpose,
    /// Why, in one line for a person.
    pub why: String,
}

impl Request {
    /// A request with the effort that its purpose deserves.
    pub(super) fn new(purpose: Purpose, knobs: Knobs, why: String) -> Self {
        Request { knobs, effort: purpose.effort(knobs.micro_batch), purpose, why }
    }
}

/// One combination of knobs and what became of it: a row of `trials.csv`.
#[derive(Clone, Debug, PartialEq)]
pub struct Trial {
    /// 1 for the first.
    pub number: usize,
    /// The combination.
    pub knobs: Knobs,
    /// Why it was run.
    pub purpose: Purpose,
    /// What became of it.
    pub attempt: Attempt,
    /// When it ended, in seconds since 1970.
    pub unix_seconds: u64,
}
