//! How a step's rows are cut into micro-batches: the same for a probe's timing and for a run.
//!
//! Rows are sorted by length and cut so that the step takes least time ([`crate::plan::cut`]), and no micro-batch has
//! more padded tokens than the one that was proven to fit. The gradient of the step's sum does not depend on the cut.

use anyhow::{Result, bail};

use crate::model::ModelConfig;
use crate::plan::cut::{self, PerRow, ShapeCost};

/// What starting a micro-batch costs, in tokens: adding to every gradient once more.
const OVERHEAD_TOKENS: f64 = 16.0;

/// Which rows go through forward and backward together: positions in `lengths`, each once.
///
/// `micro_batch` rows of `proven_length` tokens are what was proven to fit.
///
/// # Errors
/// If a row is longer than what was proven.
pub fn micro_batches(
    lengths: &[usize],
    config: &ModelConfig,
    micro_batch: usize,
    proven_length: usize,
) -> Result<Vec<Vec<usize>>> {
    let linear = (4 * config.hidden_size + 2 * config.intermediate_size) as f64;
    let cost = ShapeCost {
        overhead_seconds: OVERHEAD_TOKENS * linear,
        // Operations up to a factor: matrices act on every token, attention on every pair of a row's tokens.
        seconds: PerRow { linear, square: 2.0 },
        bytes: None,
        proven_rows: micro_batch,
        proven_length,
    };
    match cut::cut(lengths, &cost) {
        Ok(parts) => Ok(parts.into_iter().map(|part| part.rows).collect()),
        Err(too_big) => bail!(
            "a row has {} tokens, but only {proven_length} were proven to fit: probe again with this data",
            too_big.length
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::presets;

    #[test]
    fn short_rows_share_what_a_long_one_takes_alone() -> Result<()> {
        let Some(config) = presets::config("minilm") else { bail!("no preset") };
        let lengths = [500, 20, 22, 21, 19, 480, 25, 23];
        let parts = micro_batches(&lengths, &config, 1, 512)?;
        assert_eq!(parts.len(), 3, "{parts:?}");
        let mut rows: Vec<usize> = parts.concat();
        rows.sort_unstable();
        assert_eq!(rows, (0..8).collect::<Vec<_>>());
        assert!(micro_batches(&[513], &config, 1, 512).is_err());
        Ok(())
    }
}
