//! How the rows of one optimizer step are cut into padded micro-batches of different sizes.
//!
//! The gradient of a step does not depend on the cut, but its time does: a micro-batch costs a fixed overhead and
//! pads every row to its longest one. Short rows therefore go together, many at a time, and long rows a few at a time,
//! as long as memory allows. With rows sorted by length the best cut is a sequence of neighbours (swapping two rows
//! so that the longer one joins the longer rows never makes a rectangle longer), so dynamic programming over all
//! places to cut finds it in O(n²) for n rows.

use std::fmt;

use serde::{Deserialize, Serialize};

/// What a padded micro-batch costs. Both must be monotone: more or longer rows never cost less, and never fit better.
pub trait CostModel {
    /// Seconds for forward, backward and accumulation of `rows` rows padded to `length` tokens.
    fn seconds(&self, rows: usize, length: usize) -> f64;
    /// Whether `rows` rows padded to `length` tokens stay inside the cap.
    fn fits(&self, rows: usize, length: usize) -> bool;
}

/// One forward/backward pass of a step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MicroBatch {
    /// Indices into the step's rows, the longest row first.
    pub rows: Vec<usize>,
    /// Tokens of the longest row: what the others are padded to.
    pub length: usize,
}

/// A row that does not fit even alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooBig {
    /// Index into the step's rows.
    pub row: usize,
    /// Its tokens.
    pub length: usize,
}

impl fmt::Display for TooBig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "a row of {} tokens does not fit in memory, not even alone: it is longer than what was probed; \
             lower --max-length or probe with the data's longest row",
            self.length
        )
    }
}

impl std::error::Error for TooBig {}

/// Cuts a step whose rows have these `lengths` (in tokens, rounded up already where the caller pads to a multiple)
/// so that the sum of [`CostModel::seconds`] is the least possible and every part [`CostModel::fits`].
///
/// The parts come longest first; equal cost goes to fewer, larger parts. The result is a function of its arguments
/// alone: the same step is cut the same way after a resume.
///
/// # Errors
/// If a row does not fit alone.
pub fn cut(lengths: &[usize], cost: &impl CostModel) -> Result<Vec<MicroBatch>, TooBig> {
    let mut order: Vec<usize> = (0..lengths.len()).collect();
    order.sort_by_key(|&row| std::cmp::Reverse(lengths[row]));
    // best[i]: least seconds for the first i rows of `order`, and where the last part of that cut begins.
    let mut best: Vec<(f64, usize)> = vec![(0.0, 0)];
    for end in 1..=order.len() {
        // Alone is tried first, so a row that fits alone always has a cut, whatever the seconds are.
        let (row, alone) = (order[end - 1], lengths[order[end - 1]]);
        if !cost.fits(1, alone) {
            return Err(TooBig { row, length: alone });
        }
        let mut least = (best[end - 1].0 + cost.seconds(1, alone), end - 1);
        for begin in (0..end - 1).rev() {
            let (rows, length) = (end - begin, lengths[order[begin]]);
            // Earlier beginnings mean more rows, and longer ones: once it is too much, it stays too much.
            if !cost.fits(rows, length) {
                break;
            }
            let seconds = best[begin].0 + cost.seconds(rows, length);
            if seconds <= least.0 {
                least = (seconds, begin);
            }
        }
        best.push(least);
    }
    let mut parts = Vec::new();
    let mut end = order.len();
    while end > 0 {
        let begin = best[end].1;
        parts.push(MicroBatch { rows: order[begin..end].to_vec(), length: lengths[order[begin]] });
        end = begin;
    }
    parts.reverse();
    Ok(parts)
}

/// Seconds of a whole cut.
pub fn total_seconds(parts: &[MicroBatch], cost: &impl CostModel) -> f64 {
    parts.iter().map(|part| cost.seconds(part.rows.len(), part.length)).sum()
}

/// A quadratic in the padded length, for each row: `linear · length + square · length²`. Everything in an encoder
/// grows linearly with the length but attention scores, which grow with its square.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PerRow {
    /// For each token.
    pub linear: f64,
    /// For each pair of tokens.
    pub square: f64,
}

impl PerRow {
    /// The value for `rows` rows of `length` tokens.
    pub fn of(&self, rows: usize, length: usize) -> f64 {
        let length = length as f64;
        rows as f64 * (self.linear * length + self.square * length * length)
    }
}

/// A cost model from what probes measured. Coefficients must not be negative.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ShapeCost {
    /// Seconds of a micro-batch whatever its size: launching kernels, reading back the loss.
    pub overhead_seconds: f64,
    /// Seconds that each row adds.
    pub seconds: PerRow,
    /// Bytes of activations that each row adds; only their ratio matters. `None` where it was not measured.
    pub bytes: Option<PerRow>,
    /// Rows of the largest micro-batch that was really run inside the cap.
    pub proven_rows: usize,
    /// Its padded length.
    pub proven_length: usize,
}

impl CostModel for ShapeCost {
    fn seconds(&self, rows: usize, length: usize) -> f64 {
        self.overhead_seconds + self.seconds.of(rows, length)
    }

    /// What was proven bounds what is allowed. Never a longer row, and never more tokens in all, unless the measured
    /// bytes say that shorter rows need less for each token (attention scores do): then, as many as are predicted
    /// to stay at or below the proven peak. At the proven length that means no more rows than were proven.
    ///
    /// No more tokens is safe whatever the coefficients are: `rows · length ≤ R · L` and `length ≤ L` give
    /// `rows · length² ≤ R · L²`, so neither term of the bytes exceeds the proven one.
    fn fits(&self, rows: usize, length: usize) -> bool {
        if length > self.proven_length {
            return false;
        }
        // Rows without tokens would cost nothing by the formula, and any number of them fit.
        let length = length.max(1);
        let tokens = rows as u128 * length as u128 <= self.proven_rows as u128 * self.proven_length as u128;
        let predicted = || {
            // A fit that saw no linear part is no measurement: it would let short rows in without limit.
            let bytes = self.bytes.filter(|bytes| bytes.linear > 0.0 && length < self.proven_length);
            bytes.is_some_and(|bytes| bytes.of(rows, length) <= bytes.of(self.proven_rows, self.proven_length))
        };
        tokens || predicted()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::partition;
    use proptest::prelude::*;

    fn cost() -> ShapeCost {
        ShapeCost {
            overhead_seconds: 0.010,
            seconds: PerRow { linear: 1e-4, square: 1e-7 },
            bytes: None,
            proven_rows: 4,
            proven_length: 100,
        }
    }

    /// Any model that the study could come up with.
    fn any_cost() -> impl Strategy<Value = ShapeCost> {
        let coefficient = prop_oneof![Just(0.0), 0.0f64..1.0];
        let bytes = proptest::option::of((coefficient.clone(), coefficient.clone()));
        (coefficient.clone(), coefficient.clone(), coefficient, bytes, 1usize..6, 40usize..60).prop_map(
            |(overhead, linear, square, bytes, rows, length)| ShapeCost {
                overhead_seconds: overhead * 50.0,
                seconds: PerRow { linear, square: square / 50.0 },
                bytes: bytes.map(|(linear, square)| PerRow { linear, square: square / 50.0 }),
                proven_rows: rows,
                proven_length: length,
            },
        )
    }

    /// The least seconds over every partition of the rows into sets, neighbours or not.
    fn brute_force(rest: &[usize], parts: &mut Vec<Vec<usize>>, cost: &ShapeCost) -> f64 {
        let fits = |part: &Vec<usize>| cost.fits(part.len(), part.iter().copied().max().unwrap_or(0));
        let Some((&length, rest)) = rest.split_first() else {
            if !parts.iter().all(fits) {
                return f64::INFINITY;
            }
            return parts.iter().map(|part| cost.seconds(part.len(), part.iter().copied().max().unwrap_or(0))).sum();
        };
        let mut least = f64::INFINITY;
        for i in 0..parts.len() {
            parts[i].push(length);
            least = least.min(brute_force(rest, parts, cost));
            parts[i].pop();
        }
        parts.push(vec![length]);
        least = least.min(brute_force(rest, parts, cost));
        parts.pop();
        least
    }

    #[test]
    fn short_rows_go_together() {
        let parts = cut(&[10, 100, 10, 10, 90, 10, 10], &cost()).expect("fits");
        let shapes: Vec<(usize, usize)> = parts.iter().map(|part| (part.rows.len(), part.length)).collect();
        assert_eq!(shapes, [(2, 100), (5, 10)]);
        assert_eq!(parts[0].rows, [1, 4]);
        assert_eq!(parts[1].rows, [0, 2, 3, 5, 6]);
    }

    #[test]
    fn overhead_decides_how_much_padding_is_worth() {
        let with = |overhead_seconds| cut(&[100, 10, 10, 10], &ShapeCost { overhead_seconds, ..cost() }).expect("fits");
        assert_eq!(with(0.001).len(), 2);
        assert_eq!(with(1.0).len(), 1);
    }

    #[test]
    fn refuses_only_what_was_never_proven() {
        assert_eq!(cut(&[5, 101, 7], &cost()), Err(TooBig { row: 1, length: 101 }));
        assert_eq!(cut(&[], &cost()), Ok(vec![]));
        assert_eq!(cut(&[100], &cost()).expect("proven").len(), 1);
        assert!(cut(&[0, 0], &cost()).is_ok());
    }

    #[test]
    fn measured_bytes_allow_more_short_rows() {
        let plain = cost();
        let measured = ShapeCost { bytes: Some(PerRow { linear: 1.0, square: 0.1 }), ..plain };
        // 4 rows of 100 tokens: 4 · (100 + 0.1 · 10000) = 4400; one of 50 tokens: 50 + 0.1 · 2500 = 300.
        assert!(plain.fits(8, 50) && !plain.fits(9, 50));
        assert!(measured.fits(14, 50) && !measured.fits(15, 50));
        assert!(measured.fits(4, 100) && !measured.fits(5, 100) && !measured.fits(1, 101));
        // A measurement of nothing allows nothing more.
        assert!(!ShapeCost { bytes: Some(PerRow::default()), ..plain }.fits(9, 50));
        assert!(!ShapeCost { bytes: Some(PerRow { linear: 0.0, square: 1.0 }), ..plain }.fits(9, 50));
    }

    #[test]
    fn survives_meaningless_seconds() {
        struct Nonsense;
        impl CostModel for Nonsense {
            fn seconds(&self, _: usize, _: usize) -> f64 {
                f64::NAN
            }
            fn fits(&self, rows: usize, _: usize) -> bool {
                rows <= 2
            }
        }
        let parts = cut(&[3, 1, 2], &Nonsense).expect("fits");
        assert_eq!(parts.iter().map(|part| part.rows.len()).sum::<usize>(), 3);
    }

    proptest! {
        #[test]
        fn no_partition_is_faster(lengths in proptest::collection::vec(0usize..40, 0..8), cost in any_cost()) {
            let least = brute_force(&lengths, &mut Vec::new(), &cost);
            let found = total_seconds(&cut(&lengths, &cost).expect("fits"), &cost);
            prop_assert!((found - least).abs() <= 1e-9 * (1.0 + least), "{found} is not {least}");
        }

        #[test]
        fn every_row_once_and_none_too_big(lengths in proptest::collection::vec(0usize..60, 0..100), cost in any_cost()) {
            let longest = lengths.iter().copied().max().unwrap_or(0);
            let Ok(parts) = cut(&lengths, &cost) else {
                prop_assert!(longest > cost.proven_length);
                return Ok(());
            };
            let mut rows: Vec<usize> = parts.iter().flat_map(|part| part.rows.clone()).collect();
            rows.sort_unstable();
            prop_assert_eq!(rows, (0..lengths.len()).collect::<Vec<_>>());
            for part in &parts {
                prop_assert_eq!(Some(part.length), part.rows.iter().map(|&row| lengths[row]).max());
                prop_assert!(cost.fits(part.rows.len(), part.length));
            }
            prop_assert!(parts.windows(2).all(|pair| pair[0].length >= pair[1].length));
        }

        #[test]
        fn never_slower_than_equal_parts(lengths in proptest::collection::vec(1usize..40, 1..100), cost in any_cost()) {
            let mut fixed = 0.0;
            let mut rest = lengths.as_slice();
            for size in partition::parts(lengths.len(), cost.proven_rows) {
                let (part, others) = rest.split_at(size);
                fixed += cost.seconds(size, part.iter().copied().max().unwrap_or(0));
                rest = others;
            }
            let found = total_seconds(&cut(&lengths, &cost).expect("fits"), &cost);
            prop_assert!(found <= fixed * (1.0 + 1e-9), "{found} is slower than {fixed}");
        }

        #[test]
        fn fits_is_monotone_and_proven(cost in any_cost(), rows in 1usize..60, length in 0usize..60) {
            if cost.fits(rows, length) {
                prop_assert!(rows == 1 || cost.fits(rows - 1, length));
                prop_assert!(length == 0 || cost.fits(rows, length - 1));
                prop_assert!(length <= cost.proven_length);
                prop_assert!(length < cost.proven_length || rows <= cost.proven_rows);
            }
            prop_assert!(cost.fits(cost.proven_rows, cost.proven_length));
            prop_assert!(!cost.fits(cost.proven_rows + 1, cost.proven_length));
        }
    }
}
