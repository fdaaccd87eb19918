//! Peak memory of a training step from the model's shape alone: no probe, no tensor.
//!
//! Weights, gradients and optimizer state follow from the parameters. What lies above them was measured: the
//! coefficients in `FP32` and `HALF` are least-squares fits to real probes on the CPU, taken by
//! `scripts/calibrate-estimate.py`, which prints them anew after a kernel has changed. `tests/estimate.rs` compares a
//! few estimates with probes and fails when the table has grown old.
//!
//! The estimate covers full fine-tuning, without frozen layers and adapters. It answers "is it worth trying?"; only
//! probes decide what fits.

use super::memory_model::StaticBytes;
use super::problem::{Branch, SizeHint};
use crate::plan::{Knobs, OptimizerKind, Precision, partition};

/// Largest error against the probes that the table was fitted to, relative to the measured peak.
/// Presets stay within 0.5 %, those that were not fitted to (bert-base, roberta-base, rows of 512 tokens) too; models of
/// a few million parameters, where fixed costs count, within 2.3 %.
pub const ERROR: f64 = 0.023;

/// Bytes for each element of what is counted in 32-bit elements.
const WORD: f64 = 4.0;

/// What one moment of a layer's backward holds above the tapes, in 32-bit elements.
#[derive(Clone, Copy, Debug)]
struct Moment {
    /// For each token and unit of the hidden width.
    hidden: f64,
    /// For each token and unit of the feed-forward width.
    wide: f64,
    /// For each token, head and token that it attends to.
    scores: f64,
    /// For each row and element of the feed-forward matrix: its gradient is taken row by row, then summed.
    wide_matrix: f64,
    /// For each row and element of an attention projection, as above.
    square_matrix: f64,
}

/// What a step holds above weights, gradients and optimizer state.
#[derive(Clone, Copy, Debug)]
struct Coefficients {
    /// Bytes whatever the shape: packing buffers of matrix products, the program itself.
    fixed: f64,
    /// 32-bit elements of a kept layer's tape for each token and unit of the hidden width.
    tape_hidden: f64,
    /// The same for each unit of the feed-forward width.
    tape_wide: f64,
    /// The same for each token, head and token that it attends to.
    tape_scores: f64,
    /// The same for each parameter of the layer's matrices: copies in half precision.
    tape_weights: f64,
    /// 32-bit elements that a recomputed layer keeps for each token and unit of the hidden width: its input.
    boundary: f64,
    /// While backward stands in the feed-forward block of the highest layer.
    feed_forward: Moment,
    /// While it stands in the attention block; what the feed-forward block kept is gone by then.
    attention: Moment,
}

/// Measured in fp32.
const FP32: Coefficients = Coefficients {
    fixed: 2.094e6,
    tape_hidden: 11.755,
    tape_wide: 2.03,
    tape_scores: 4.015,
    tape_weights: 0.0,
    boundary: 0.782,
    feed_forward: Moment { hidden: 0.0, wide: 0.911, scores: 0.0, wide_matrix: 1.994, square_matrix: 0.0 },
    attention: Moment { hidden: -3.315, wide: -2.062, scores: 1.942, wide_matrix: 0.0, square_matrix: 0.2 },
};

/// Measured in bf16; fp16 has the same sizes.
const HALF: Coefficients = Coefficients {
    fixed: 1.759e6,
    tape_hidden: 8.154,
    tape_wide: 1.02,
    tape_scores: 2.984,
    tape_weights: 0.469,
    boundary: 0.34,
    feed_forward: Moment { hidden: 0.0, wide: 1.958, scores: 0.0, wide_matrix: 1.976, square_matrix: 0.0 },
    attention: Moment { hidden: -3.097, wide: -0.919, scores: 2.082, wide_matrix: 0.0, square_matrix: 1.565 },
};

/// Estimated peak in bytes of full fine-tuning at these knobs.
///
/// The peak is the higher of two moments: backward of a layer, of the highest one if gradients lie there already, when
/// every kept tape still does, too; and the update, which holds copies of the largest table.
pub fn peak(size: &SizeHint, knobs: &Knobs, effective_batch: usize) -> f64 {
    let table = match knobs.precision {
        Precision::Fp32 => &FP32,
        _ => &HALF,
    };
    let StaticBytes { weights, gradients, optimizer } = size.static_bytes(Branch::of(knobs));
    let largest_table = WORD * size.vocab as f64 * size.hidden as f64;
    let layer_gradients = WORD * matrices(size);
    let accumulates = knobs.accumulation(effective_batch) > 1;
    // Gradients that are there while backward stands in the layer with `below` layers under it.
    let there = |below: usize| {
        if accumulates { gradients } else { layer_gradients * (size.layers - 1 - below) as f64 }
    };
    let backward = (0..size.layers).map(|below| there(below) + live(table, size, knobs, below)).fold(0.0, f64::max);
    let update = gradients + table_copies(knobs.optimizer) * largest_table;
    weights + optimizer + table.fixed + backward.max(update)
}

/// Tensors as large as the largest table that an update holds at once, besides gradients and state: measured.
fn table_copies(optimizer: OptimizerKind) -> f64 {
    match optimizer {
        OptimizerKind::AdamW | OptimizerKind::Adafactor | OptimizerKind::Sgd => 1.0,
        OptimizerKind::Lion => 2.0,
    }
}

/// Parameters of one layer's matrices.
fn matrices(size: &SizeHint) -> f64 {
    let (h, i) = (size.hidden as f64, size.intermediate as f64);
    4.0 * h * h + 2.0 * h * i
}

/// Bytes of tapes, boundaries and temporaries while backward stands in the layer with `below` layers under it.
fn live(table: &Coefficients, size: &SizeHint, knobs: &Knobs, below: usize) -> f64 {
    let (h, i) = (size.hidden as f64, size.intermediate as f64);
    let rows = knobs.micro_batch as f64;
    let tokens = rows * size.length as f64;
    let scores = (size.heads * size.length) as f64;
    // The lowest layers are the recomputed ones; the one that backward stands in has a tape in any case.
    let recomputed = knobs.checkpoint_layers.min(below) as f64;
    let taped = (below + 1) as f64 - recomputed;
    let tape = tokens * (table.tape_hidden * h + table.tape_wide * i + table.tape_scores * scores)
        + table.tape_weights * matrices(size);
    let moment = |m: &Moment| {
        tokens * (m.hidden * h + m.wide * i + m.scores * scores)
            + rows * (m.wide_matrix * h * i + m.square_matrix * h * h)
    };
    let transient = moment(&table.feed_forward).max(moment(&table.attention));
    WORD * (taped * tape + recomputed * table.boundary * tokens * h + transient)
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
        length: 128,
    };

    #[test]
    fn grows_with_rows_and_shrinks_with_recomputation() {
        for precision in Precision::ALL {
            let at = |micro: usize, layers: usize| peak(&DISTILBERT, &Knobs::new(precision, micro, layers), 64);
            for layers in 0..=6 {
                assert!((1..63).all(|micro| at(micro + 1, layers) >= at(micro, layers)), "{precision} {layers}");
            }
            assert!((0..6).all(|layers| at(16, layers + 1) <= at(16, layers)), "{precision}");
            assert!(at(64, 0) < 1.02 * peak(&DISTILBERT, &Knobs::new(precision, 64, 0), 128), "no gradients held");
        }
    }

    #[test]
    fn optimizers_differ_by_their_state() {
        let with = |optimizer| peak(&DISTILBERT, &Knobs { optimizer, ..Knobs::new(Precision::Fp32, 1, 0) }, 32);
        let state = with(OptimizerKind::AdamW) - with(OptimizerKind::Sgd);
        assert!((state / (4.0 * DISTILBERT.parameters as f64) - 1.0).abs() < 1e-9);
        assert!(with(OptimizerKind::Adafactor) < with(OptimizerKind::Lion));
    }

    #[test]
    fn the_largest_micro_batch_fits_and_the_next_does_not() {
        let knobs = Knobs::new(Precision::Fp32, 1, 0);
        let (micro, bytes) = largest(&DISTILBERT, &knobs, 32, 2 << 30).expect("it fits");
        assert!(bytes <= f64::from(2u32 << 30) && micro < 32);
        let next = *partition::candidates(32).iter().rev().find(|m| **m > micro).expect("there is a next");
        assert!(peak(&DISTILBERT, &Knobs { micro_batch: next, ..knobs }, 32) > f64::from(2u32 << 30));
        assert_eq!(largest(&DISTILBERT, &knobs, 32, 100 << 20), None);
    }
}
