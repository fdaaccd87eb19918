//! Learning rate over optimizer steps: linear warm-up, then a decay.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// What the learning rate does after warm-up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Decay {
    /// A straight line down to zero at the last step.
    #[default]
    Linear,
    /// Half a cosine down to zero at the last step.
    Cosine,
    /// None.
    Constant,
}

impl fmt::Display for Decay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Decay::Linear => "linear",
            Decay::Cosine => "cosine",
            Decay::Constant => "constant",
        })
    }
}

impl FromStr for Decay {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        [Decay::Linear, Decay::Cosine, Decay::Constant]
            .into_iter()
            .find(|decay| decay.to_string() == text)
            .ok_or_else(|| format!("unknown schedule '{text}': use linear, cosine or constant"))
    }
}

/// Learning rate as a function of the step, as `transformers.get_scheduler` defines it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Schedule {
    /// The highest rate.
    pub peak: f64,
    /// Steps over which the rate rises from zero; the first step has rate zero if there are any.
    pub warmup_steps: usize,
    /// Steps in all.
    pub total_steps: usize,
    /// What comes after warm-up.
    pub decay: Decay,
}

impl Schedule {
    /// The rate of optimizer step `step`, counted from 0.
    pub fn rate(&self, step: usize) -> f64 {
        if step < self.warmup_steps {
            return self.peak * step as f64 / self.warmup_steps as f64;
        }
        let rest = self.total_steps.saturating_sub(self.warmup_steps).max(1) as f64;
        let done = ((step - self.warmup_steps) as f64 / rest).min(1.0);
        self.peak
            * match self.decay {
                Decay::Linear => 1.0 - done,
                Decay::Cosine => 0.5 * (1.0 + (std::f64::consts::PI * done).cos()),
                Decay::Constant => 1.0,
            }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn follows_transformers() {
        // transformers 5: get_linear_schedule_with_warmup(optimizer, 2, 10), get_cosine_schedule_with_warmup.
        let linear = Schedule { peak: 1.0, warmup_steps: 2, total_steps: 10, decay: Decay::Linear };
        let rates: Vec<f64> = (0..11).map(|s| linear.rate(s)).collect();
        assert_eq!(rates, [0.0, 0.5, 1.0, 0.875, 0.75, 0.625, 0.5, 0.375, 0.25, 0.125, 0.0]);
        let cosine = Schedule { decay: Decay::Cosine, ..linear };
        assert!((cosine.rate(6) - 0.5).abs() < 1e-12);
        assert_eq!(Schedule { decay: Decay::Constant, ..linear }.rate(9), 1.0);
    }
}
