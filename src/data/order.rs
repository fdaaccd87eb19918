//! When each row is trained on: a pure function of seed and epoch, so that a resumed run continues exactly.
//!
//! An order is cut into steps of one effective batch each; how a step is cut into micro-batches changes nothing here.

use serde::{Deserialize, Serialize};

use super::random::Random;

/// Tells this use of a seed from the others.
const PURPOSE: u64 = 1;

/// How an epoch orders its rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RowOrder {
    /// At random, anew for each epoch.
    #[default]
    Shuffled,
    /// As the file has them.
    AsGiven,
}

/// The order in which `epoch` visits rows `0..rows`: each exactly once.
pub fn epoch_order(rows: usize, seed: u64, epoch: usize) -> Vec<usize> {
    let mut order = Vec::new();
    refill(&mut order, rows, RowOrder::Shuffled, seed, epoch);
    order
}

/// The order of an epoch in a vector that is there already.
pub fn refill(order: &mut Vec<usize>, rows: usize, kind: RowOrder, seed: u64, epoch: usize) {
    order.clear();
    order.extend(0..rows);
    if kind == RowOrder::Shuffled {
        Random::new(seed, &[PURPOSE, epoch as u64]).shuffle(order);
    }
}

/// What becomes of the rows that do not fill the last step of an epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LastStep {
    /// They make a smaller step.
    #[default]
    Keep,
    /// They are left out of this epoch.
    Drop,
}

/// Optimizer steps in an epoch of `rows` rows; 0 if `effective_batch` is 0.
pub fn steps_per_epoch(rows: usize, effective_batch: usize, last: LastStep) -> usize {
    match last {
        _ if effective_batch == 0 => 0,
        LastStep::Keep => rows.div_ceil(effective_batch),
        LastStep::Drop => rows / effective_batch,
    }
}

/// The rows of step `step` (from 0) of the epoch with this `order`; empty behind the last step.
pub fn step(order: &[usize], effective_batch: usize, last: LastStep, step: usize) -> &[usize] {
    if step >= steps_per_epoch(order.len(), effective_batch, last) {
        return &[];
    }
    let start = step * effective_batch;
    &order[start..order.len().min(start + effective_batch)]
}

/// The rows of every step, in order.
pub fn steps(order: &[usize], effective_batch: usize, last: LastStep) -> impl ExactSizeIterator<Item = &[usize]> {
    (0..steps_per_epoch(order.len(), effective_batch, last)).map(move |i| step(order, effective_batch, last, i))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// If this fails, runs saved by earlier versions can no longer be resumed exactly.
    #[test]
    fn orders_never_change() {
        assert_eq!(epoch_order(10, 42, 0), [3, 7, 5, 2, 4, 0, 1, 8, 9, 6]);
        assert_eq!(epoch_order(10, 42, 1), [9, 8, 1, 6, 0, 4, 7, 3, 5, 2]);
    }

    #[test]
    fn as_given_is_the_files_order_in_every_epoch() {
        let mut order = vec![7];
        refill(&mut order, 4, RowOrder::AsGiven, 42, 3);
        assert_eq!(order, [0, 1, 2, 3]);
    }

    proptest! {
        #[test]
        fn visits_every_row_once(rows in 0usize..300, seed: u64, epoch in 0usize..5) {
            let mut order = epoch_order(rows, seed, epoch);
            prop_assert_eq!(&order, &epoch_order(rows, seed, epoch));
            if rows > 20 {
                prop_assert_ne!(&order, &epoch_order(rows, seed, epoch + 1));
                prop_assert_ne!(&order, &epoch_order(rows, seed ^ 1, epoch));
            }
            order.sort_unstable();
            prop_assert_eq!(order, (0..rows).collect::<Vec<_>>());
        }

        #[test]
        fn steps_cut_the_order(rows in 0usize..200, effective in 1usize..40) {
            let order = epoch_order(rows, 1, 0);
            let kept: Vec<&[usize]> = steps(&order, effective, LastStep::Keep).collect();
            prop_assert_eq!(kept.concat(), order.clone());
            prop_assert!(kept.iter().rev().skip(1).all(|step| step.len() == effective));
            let dropped: Vec<&[usize]> = steps(&order, effective, LastStep::Drop).collect();
            prop_assert!(dropped.iter().all(|step| step.len() == effective));
            prop_assert_eq!(dropped.concat(), order[..rows / effective * effective].to_vec());
            prop_assert!(step(&order, effective, LastStep::Keep, kept.len()).is_empty());
            prop_assert_eq!(steps_per_epoch(rows, 0, LastStep::Keep), 0);
        }
    }
}
