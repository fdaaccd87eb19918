//! How large the numbers may be that people and files give. They are held against these where they are read; behind
//! that, sums and products of them fit, and nothing as long as one of them is a surprise.

use std::ops::RangeInclusive;

/// Rows that go through a model for one optimizer step, and so in one pass.
pub const BATCH: usize = 1 << 20;
/// Tokens of a row.
pub const TOKENS: usize = 1 << 24;
/// Encoder layers.
pub const LAYERS: usize = 1 << 12;
/// Classes.
pub const LABELS: usize = 1 << 20;
/// Rank of an adapter.
pub const RANK: usize = 1 << 16;
/// Optimizer steps, evaluations, and what else counts the parts of a run.
pub const STEPS: usize = 1 << 30;
/// Times through the data.
pub const EPOCHS: f64 = 1e6;
/// Bytes of memory: 1 EiB. A few of them fit into 64 bits.
pub const BYTES: u64 = 1 << 60;
/// Seeds: what TOML can hold.
pub const SEED: u64 = i64::MAX as u64;
/// Seconds of a search or of a probe: ten years.
pub const SECONDS: f64 = 10.0 * 365.25 * 86_400.0;

/// The number, or what is wrong with it: `at least 1 is needed`, `at most 1048576 are possible`.
///
/// # Errors
/// If it lies outside.
pub fn within<T: PartialOrd + Copy + std::fmt::Display>(value: T, range: RangeInclusive<T>) -> Result<T, String> {
    let (least, most) = (*range.start(), *range.end());
    // Not the other way round: what is not a number lies nowhere.
    if value >= least && value <= most {
        return Ok(value);
    }
    Err(match value > most {
        true => format!("at most {most} are possible"),
        false => format!("at least {least} is needed"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lies_outside_is_told_which_way() {
        assert_eq!(within(BATCH, 1..=BATCH), Ok(BATCH));
        assert_eq!(within(0, 1..=BATCH), Err("at least 1 is needed".into()));
        assert_eq!(within(BATCH + 1, 1..=BATCH), Err("at most 1048576 are possible".into()));
        assert_eq!(within(f64::NAN, 0.0..=1.0), Err("at least 0 is needed".into()));
    }
}
