//! Dynamic loss scaling for fp16: small gradients are lifted over the smallest number of 16 bits, until a large one
//! overflows.

use serde::{Deserialize, Serialize};

use crate::plan::float;

/// Dynamic loss scaling for fp16, with the constants of PyTorch's `GradScaler`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct LossScale {
    /// What the loss is multiplied by before backward.
    #[serde(with = "float")]
    pub scale: f64,
    /// Steps since the scale last changed.
    pub steady: u32,
}

impl Default for LossScale {
    fn default() -> Self {
        LossScale { scale: 65_536.0, steady: 0 }
    }
}

impl LossScale {
    /// Steps without overflow after which the scale doubles.
    const GROWTH_INTERVAL: u32 = 2_000;
    /// The lowest scale: lower ones would lose gradients, not save them. What is not finite here is not so for the
    /// scale's sake.
    pub const LOWEST: LossScale = LossScale { scale: 1.0, steady: 0 };

    /// Learns from one step whether the scale was right; returns what to do with that step.
    pub fn learn(&mut self, finite: bool) -> Lesson {
        if !finite && self.scale <= Self::LOWEST.scale {
            return Lesson::Hopeless;
        }
        if !finite {
            *self = LossScale { scale: (self.scale / 2.0).max(Self::LOWEST.scale), steady: 0 };
            return Lesson::Skip;
        }
        self.steady += 1;
        if self.steady == Self::GROWTH_INTERVAL {
            *self = LossScale { scale: self.scale * 2.0, steady: 0 };
        }
        Lesson::Take
    }
}

/// What a loss scale makes of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lesson {
    /// All is finite: do the update.
    Take,
    /// The scaled gradient overflowed: no update; the next step has a smaller scale.
    Skip,
    /// It is not finite at the lowest scale either: no scale will help.
    Hopeless,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loss_scale_backs_off_and_grows() {
        let mut scale = LossScale::default();
        assert_eq!(scale.learn(false), Lesson::Skip);
        assert_eq!(scale, LossScale { scale: 32_768.0, steady: 0 });
        for _ in 0..LossScale::GROWTH_INTERVAL {
            assert_eq!(scale.scale, 32_768.0);
            assert_eq!(scale.learn(true), Lesson::Take);
        }
        assert_eq!(scale, LossScale { scale: 65_536.0, steady: 0 });
        for _ in 0..16 {
            assert_eq!(scale.learn(false), Lesson::Skip);
        }
        assert_eq!(scale, LossScale::LOWEST);
        assert_eq!(scale.learn(false), Lesson::Hopeless);
        assert_eq!(scale, LossScale::LOWEST);
    }
}
