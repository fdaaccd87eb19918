//! Rows for use without any data: random token ids with something to learn in them.

use anyhow::{Result, bail};

use super::random::Random;
use super::tokenize::Encoded;

/// Tells this use of a seed from the others.
const PURPOSE: u64 = 3;

/// Lowest ids that are never drawn, where the vocabulary allows it: among them is the padding id of every supported
/// family, and RoBERTa counts positions by what is not padding.
const RESERVED: usize = 5;

/// One row in this many tokens comes from the part of the vocabulary that belongs to the row's label.
const HINT_EVERY: usize = 4;

/// `count` rows of exactly `length` token ids below `vocab`, and their classes, all as frequent as they can be.
///
/// One token in four (on average) tells the label, so that a model that learns at all shows a falling loss. Each row
/// depends on `seed` and its own index alone.
///
/// # Errors
/// If `vocab` is too small to tell `labels` labels apart, or anything is 0.
pub fn rows(count: usize, length: usize, vocab: usize, labels: usize, seed: u64) -> Result<(Vec<Encoded>, Vec<usize>)> {
    let first = if vocab > RESERVED + labels { RESERVED } else { 0 };
    let band = (vocab - first) / labels.max(1);
    if band == 0 || length == 0 || labels == 0 || vocab > u32::MAX as usize {
        bail!("synthetic rows of {length} tokens from a vocabulary of {vocab} can't carry {labels} labels");
    }
    let row = |index: usize| {
        let label = index % labels;
        let mut random = Random::new(seed, &[PURPOSE, index as u64]);
        let ids = (0..length)
            .map(|_| match random.below(HINT_EVERY) {
                0 => first + label * band + random.below(band),
                _ => first + random.below(vocab - first),
            })
            // Below `vocab`, which was checked to fit.
            .map(|id| id as u32)
            .collect();
        (Encoded { ids, type_ids: vec![0; length], truncated: false }, label)
    };
    Ok((0..count).map(row).unzip())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn rows_tell_their_label() {
        let (rows, classes) = rows(300, 40, 30522, 3, 9).expect("possible");
        let band = (30522 - RESERVED) / 3;
        let mut right = 0;
        for (row, &class) in rows.iter().zip(&classes) {
            let mut votes = [0; 4];
            row.ids.iter().for_each(|&id| votes[(id as usize - RESERVED) / band] += 1);
            right += usize::from((0..3).all(|other| votes[other] <= votes[class]));
        }
        assert!(right > 240, "{right} of 300");
        assert_eq!([0, 1, 2].map(|c| classes.iter().filter(|&&class| class == c).count()), [100; 3]);
    }

    #[test]
    fn refuses_the_impossible() {
        assert!(rows(1, 0, 100, 2, 0).is_err());
        assert!(rows(1, 8, 100, 0, 0).is_err());
        assert!(rows(1, 8, 2, 3, 0).is_err());
    }

    proptest! {
        #[test]
        fn rows_are_valid(count in 0usize..20, length in 1usize..30, vocab in 2usize..200, labels in 1usize..9, seed: u64) {
            prop_assume!(vocab >= labels);
            let (a, classes) = rows(count, length, vocab, labels, seed).expect("possible");
            prop_assert_eq!((a.len(), classes.len()), (count, count));
            prop_assert!(a.iter().all(|row| row.ids.len() == length && row.ids.iter().all(|&id| (id as usize) < vocab)));
            prop_assert!(classes.iter().all(|&class| class < labels));
            // A longer run starts with the same rows.
            prop_assert_eq!(&rows(count + 3, length, vocab, labels, seed).expect("possible").0[..count], a.as_slice());
        }
    }
}
