//! Peak memory of a training step from the model's shape alone: no probe, no tensor.
//!
//! Weights, gradients, optimizer state, tapes and activations follow from the shape: `moments` counts what the CPU's
//! kernels hold at each moment that can be the highest. What can't be counted from outside, the buffers in which
//! matrices are packed and attention's scratch memory, was measured: the coefficients in `FP32` and `HALF` are
//! least-squares fits to real probes, taken by `scripts/calibrate-estimate.py`, which prints them anew after a kernel
//! has changed. `tests/estimate.rs` compares a few estimates with probes and fails when either has grown old.
//!
//! The estimate covers full fine-tuning, without frozen layers and adapters. It answers "is it worth trying?"; only
//! probes decide what fits.

use super::memory_model::StaticBytes;
use super::problem::{Branch, SizeHint};
use crate::plan::{Knobs, OptimizerKind, Precision, partition};

/// Largest error against the probes that the table was fitted to, relative to the measured peak.
/// Presets stay within 0.7 %; models of a few million parameters, where fixed costs count, within 2 %.
pub const ERROR: f64 = 0.02;

/// Bytes of a 32-bit element.
const WORD: f64 = 4.0;

/// Tokens that the kernels take through the feed-forward block at a time.
const BLOCK: f64 = 1024.0;

/// What the kernels' workspace holds besides activations, in 32-bit elements.
#[derive(Clone, Copy, Debug)]
struct Workspace {
    /// For each token of the longest row.
    length: f64,
    /// For each unit of the hidden width.
    hidden: f64,
    /// For each unit of the feed-forward width.
    wide: f64,
    /// For each token of a block and unit of the hidden width.
    token_hidden: f64,
    /// For each token of a block and unit of the feed-forward width.
    token_wide: f64,
    /// For each token of a block.
    token: f64,
}

/// Measured in fp32.
const FP32: Workspace = Workspace {
    length: 1137.851,
    hidden: 1429.372,
    wide: 146.53,
    token_hidden: 1.301,
    token_wide: 0.07,
    token: 284.097,
};

/// Measured in bf16; fp16 has the same sizes.
const HALF: Workspace = Workspace {
    length: 1425.27,
    hidden: 1346.486,
    wide: 151.272,
    token_hidden: 0.706,
    token_wide: 0.084,
    token: 237.467,
};

impl Workspace {
    fn bytes(&self, size: &SizeHint, block: f64) -> f64 {
        let (h, i) = (size.hidden as f64, size.intermediate as f64);
        WORD * (self.length * size.length as f64
            + self.hidden * h
            + self.wide * i
            + block * (self.token_hidden * h + self.token_wide * i + self.token))
    }
}

/// Estimated peak in bytes of full fine-tuning at these knobs.
///
/// The peak is the highest of a layer's forward, its recomputation and its backward, for every layer, and of the update.
pub fn peak(size: &SizeHint, knobs: &Knobs, effective_batch: usize) -> f64 {
    let table = match knobs.precision {
        Precision::Fp32 => &FP32,
        _ => &HALF,
    };
    let StaticBytes { weights, optimizer, .. } = size.static_bytes(Branch::of(knobs));
    let gradients = gradients(size, effective_batch);
    let tokens = (knobs.micro_batch * size.length) as f64;
    let workspace = table.bytes(size, tokens.min(BLOCK));
    let highest = moments(size, knobs, effective_batch, gradients).into_iter().fold(0.0, f64::max);
    let largest_table = WORD * size.vocab as f64 * size.hidden as f64;
    let update = gradients + table_copies(knobs.optimizer) * largest_table;
    weights + optimizer + (workspace + highest).max(update)
}

/// Bytes of the whole gradient. Those of the tables are kept by rows: as many of the word table as a step may have
/// different ids, and of the position table as the longest row has tokens.
fn gradients(size: &SizeHint, effective_batch: usize) -> f64 {
    let h = size.hidden as f64;
    let words = (size.vocab as f64).min((effective_batch * size.length) as f64);
    let rows = words + size.length as f64;
    WORD * (size.parameters as f64 - (size.vocab + size.positions) as f64 * h + rows * h)
}

/// Tensors as large as the largest table that an update holds at once, besides gradients and state: measured. AdamW's is
/// done in place.
fn table_copies(optimizer: OptimizerKind) -> f64 {
    match optimizer {
        OptimizerKind::AdamW => 0.0,
        OptimizerKind::Adafactor | OptimizerKind::Sgd => 2.0,
        OptimizerKind::Lion => 3.0,
    }
}

/// Bytes above weights, optimizer state and the workspace's own at each moment that can be the highest.
fn moments(size: &SizeHint, knobs: &Knobs, effective_batch: usize, gradients: f64) -> Vec<f64> {
    let (h, i) = (size.hidden as f64, size.intermediate as f64);
    let (rows, heads) = (knobs.micro_batch as f64, size.heads as f64);
    let tokens = rows * size.length as f64;
    let stored = if knobs.precision == Precision::Fp32 { WORD } else { WORD / 2.0 };
    let layer = WORD * (4.0 * h * h + 2.0 * h * i + 9.0 * h + i);
    // See `kernels::layer`: a tape, what makes a layer's output again, and the tape of the top layer, which computes
    // the first tokens alone.
    let tape = tokens * ((6.0 * h + i) * stored + WORD * (heads + 2.0));
    let boundary = tokens * (h * stored + WORD);
    let top = tokens * 2.0 * h * stored + rows * (4.0 * h + i) * stored;
    let (values, block) = (WORD * tokens * h, WORD * tokens.min(BLOCK));
    let recomputed = knobs.checkpoint_layers;
    let kept = |below: usize| recomputed.min(below) as f64 * boundary + below.saturating_sub(recomputed) as f64 * tape;
    let accumulates = knobs.accumulation(effective_batch) > 1;
    // Gradients of a step's first micro-batch come layer by layer; those of a later one are there from the start.
    let there = |layers: usize| if accumulates { gradients } else { layer * layers as f64 };
    let mut moments = Vec::new();
    for below in 0..size.layers.saturating_sub(1) {
        let above = size.layers - 1 - below;
        let again = below < recomputed;
        // Kept from the layer above, if that had all tokens.
        let more = if above > 1 { values } else { WORD * rows * h };
        moments.push(there(0) + kept(below) + if again { boundary } else { tape } + 3.0 * values + block * i);
        if again {
            moments.push(there(above) + kept(below) + tape + 4.0 * values + block * (h + i) + more);
        }
        let own = there(above + 1) + kept(below) + block * (h + i);
        moments.push(own + tape - tokens * h * stored + 2.0 * values + more);
        moments.push(own + 4.0 * h * stored * tokens + 3.0 * values);
    }
    moments.push(there(1) + kept(size.layers.saturating_sub(1)) + top + 2.0 * values + block * i);
    moments
}

/// The largest micro-batch that is expected to stay below the cap, with its peak in bytes. `None` where not even one
/// row does.
pub fn largest(size: &SizeHint, knobs: &Knobs, effective_batch: usize, cap: u64) -> Option<(usize, f64)> {
    partition::candidates(effective_batch)
        .into_iter()
        .map(|micro_batch| (micro_batch, peak(size, &Knobs { micro_batch, ..*knobs }, effective_batch)))
        .find(|(_, bytes)| *bytes <= cap as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DISTILBERT: SizeHint = SizeHint {
        parameters: 66_955_010,
        hidden: 768,
        layers: 6,
        intermediate: 3072,
        heads: 12,
        vocab: 30_522,
        positions: 512,
        length: 128,
    };

    #[test]
    fn grows_with_rows_and_shrinks_with_recomputation() {
        for precision in Precision::ALL {
            let at = |micro: usize, layers: usize| peak(&DISTILBERT, &Knobs::new(precision, micro, layers), 64);
            for layers in 0..=6 {
                assert!((1..63).all(|micro| at(micro + 1, layers) >= at(micro, layers)), "{precision} {layers}");
            }
            assert!((0..4).all(|layers| at(16, layers + 1) < at(16, layers)), "{precision}");
            // While backward stands in the layer below the top one, that layer has its tape in any case.
            assert!((5..=6).all(|layers| (at(16, layers) / at(16, 4) - 1.0).abs() < 0.02), "{precision}");
            assert!(at(64, 0) < 1.02 * peak(&DISTILBERT, &Knobs::new(precision, 64, 0), 128), "no gradients held");
        }
    }

    #[test]
    fn the_gradient_of_positions_grows_with_the_rows_and_not_with_the_table() {
        let more = 4096 - DISTILBERT.positions;
        let parameters = DISTILBERT.parameters + (more * DISTILBERT.hidden) as u64;
        let long = SizeHint { positions: 4096, parameters, ..DISTILBERT };
        assert_eq!(gradients(&long, 32), gradients(&DISTILBERT, 32));
        let frozen = Branch { frozen_layers: Some(1), ..Branch::of(&Knobs::new(Precision::Fp32, 1, 0)) };
        assert_eq!(long.trained_parameters(frozen), DISTILBERT.trained_parameters(frozen));
    }

    #[test]
    fn optimizers_differ_by_their_state() {
        let with = |optimizer| peak(&DISTILBERT, &Knobs { optimizer, ..Knobs::new(Precision::Fp32, 16, 0) }, 32);
        let state = with(OptimizerKind::AdamW) - with(OptimizerKind::Sgd);
        assert!((state / (4.0 * DISTILBERT.parameters as f64) - 1.0).abs() < 1e-9);
        assert!(with(OptimizerKind::Adafactor) < with(OptimizerKind::Lion));
    }

    #[test]
    fn the_largest_micro_batch_fits_and_the_next_does_not() {
        let knobs = Knobs::new(Precision::Fp32, 1, 0);
        let (micro, bytes) = largest(&DISTILBERT, &knobs, 32, 5 << 28).expect("it fits");
        assert!(bytes <= f64::from(5u32 << 28) && micro < 32);
        let next = *partition::candidates(32).iter().rev().find(|m| **m > micro).expect("there is a next");
        assert!(peak(&DISTILBERT, &Knobs { micro_batch: next, ..knobs }, 32) > f64::from(5u32 << 28));
        assert_eq!(largest(&DISTILBERT, &knobs, 32, 100 << 20), None);
    }
}
