//! What the lengths of the rows look like: the longest decides memory, their spread decides speed.

use std::collections::HashSet;

use super::tokenize::Encoded;

/// Lengths of the rows in tokens, special tokens included, after truncation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Survey {
    /// The largest length; 0 without rows.
    pub longest: usize,
    /// Length of each row, in the order of the rows.
    pub lengths: Vec<usize>,
    /// Rows that were longer and have been cut.
    pub truncated: usize,
    sorted: Vec<usize>,
}

/// One bar of a histogram: the rows with `from <= length < to`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bin {
    /// Smallest length counted.
    pub from: usize,
    /// First length no longer counted.
    pub to: usize,
    /// Rows.
    pub count: usize,
}

impl Survey {
    /// Surveys encoded rows.
    pub fn of<'a>(rows: impl IntoIterator<Item = &'a Encoded>) -> Self {
        let mut truncated = 0;
        let lengths = rows.into_iter().map(|row| {
            truncated += usize::from(row.truncated);
            row.ids.len()
        });
        let survey = Self::of_lengths(lengths.collect());
        Survey { truncated, ..survey }
    }

    /// Surveys rows of known lengths, none of them truncated.
    pub fn of_lengths(lengths: Vec<usize>) -> Self {
        let mut sorted = lengths.clone();
        sorted.sort_unstable();
        Survey { longest: sorted.last().copied().unwrap_or(0), lengths, truncated: 0, sorted }
    }

    /// All tokens of all rows.
    pub fn tokens(&self) -> usize {
        self.lengths.iter().sum()
    }

    /// Mean length; 0 without rows.
    pub fn mean(&self) -> f64 {
        self.tokens() as f64 / self.lengths.len().max(1) as f64
    }

    /// The length that `percent` (0 to 100) of the rows do not exceed, by the nearest-rank method; 0 without rows.
    pub fn percentile(&self, percent: f64) -> usize {
        let rank = (percent.clamp(0.0, 100.0) / 100.0 * self.sorted.len() as f64).ceil() as usize;
        self.sorted.get(rank.saturating_sub(1)).copied().unwrap_or(0)
    }

    /// At most `bins` bars of equal width from the shortest row to the longest; every row is in exactly one.
    pub fn histogram(&self, bins: usize) -> Vec<Bin> {
        let (Some(&shortest), true) = (self.sorted.first(), bins > 0) else {
            return Vec::new();
        };
        let width = (self.longest - shortest + 1).div_ceil(bins);
        let mut histogram: Vec<Bin> =
            (shortest..=self.longest).step_by(width).map(|from| Bin { from, to: from + width, count: 0 }).collect();
        for &length in &self.lengths {
            histogram[(length - shortest) / width].count += 1;
        }
        histogram
    }

    /// Fingerprint of the lengths in their order: 64-bit FNV-1a over each as eight little-endian bytes. Two data sets
    /// with the same digest need the same memory and time.
    pub fn digest(&self) -> u64 {
        let mut print = Fingerprint::default();
        self.lengths.iter().for_each(|&length| print.add(length as u64));
        print.value()
    }
}

/// Upper bound of the different token ids among any `count` of these rows: as many as all rows have together, or as the
/// `count` richest have one by one, whichever is less.
pub fn distinct_ids(rows: &[Encoded], count: usize) -> usize {
    let mut all: HashSet<u32> = HashSet::new();
    let mut own: Vec<usize> = rows
        .iter()
        .map(|row| {
            let ids: HashSet<u32> = row.ids.iter().copied().collect();
            all.extend(&ids);
            ids.len()
        })
        .collect();
    own.sort_unstable_by(|a, b| b.cmp(a));
    own.iter().take(count).sum::<usize>().min(all.len())
}

/// 64-bit FNV-1a over numbers of eight little-endian bytes each: the same on every machine and in every version.
#[derive(Clone, Copy, Debug)]
pub struct Fingerprint(u64);

impl Default for Fingerprint {
    fn default() -> Self {
        Fingerprint(FNV_BASIS)
    }
}

impl Fingerprint {
    /// Takes one more number in.
    pub fn add(&mut self, number: u64) {
        for byte in number.to_le_bytes() {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(FNV_PRIME);
        }
    }

    /// What it is by now.
    pub fn value(self) -> u64 {
        self.0
    }
}

/// Offset basis of 64-bit FNV-1a (Fowler, Noll and Vo).
const FNV_BASIS: u64 = 0xCBF2_9CE4_8422_2325;
/// Prime of 64-bit FNV-1a.
const FNV_PRIME: u64 = 0x0000_0100_0000_01B3;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn different_ids_are_bounded_by_all_and_by_the_richest_rows() {
        let row = |ids: &[u32]| Encoded { ids: ids.to_vec(), type_ids: vec![0; ids.len()], truncated: false };
        let rows = [row(&[1, 2, 3]), row(&[1, 1]), row(&[3, 4, 4]), row(&[])];
        assert_eq!([0, 1, 2, 3, 9].map(|count| distinct_ids(&rows, count)), [0, 3, 4, 4, 4]);
    }

    #[test]
    fn percentiles_by_nearest_rank() {
        let survey = Survey::of_lengths(vec![50, 15, 40, 20, 35]);
        let percentiles = [0.0, 5.0, 30.0, 40.0, 50.0, 100.0].map(|p| survey.percentile(p));
        assert_eq!(percentiles, [15, 15, 20, 20, 35, 50]);
        assert_eq!((survey.longest, survey.tokens(), survey.mean()), (50, 160, 32.0));
    }

    #[test]
    fn nothing_is_no_problem() {
        let empty = Survey::of_lengths(vec![]);
        assert_eq!((empty.longest, empty.mean(), empty.percentile(50.0)), (0, 0.0, 0));
        assert!(empty.histogram(5).is_empty());
        assert_eq!(empty.digest(), FNV_BASIS);
    }

    #[test]
    fn counts_truncated_rows() {
        let row = |truncated| Encoded { ids: vec![1, 2], type_ids: vec![0, 0], truncated };
        assert_eq!(Survey::of(&[row(true), row(false), row(true)]).truncated, 2);
    }

    /// The published test vector "a" of FNV-1a, extended by the seven zero bytes of a 64-bit integer.
    #[test]
    fn digest_is_fnv() {
        let mut expected = 0xAF63_DC4C_8601_EC8C_u64;
        for _ in 0..7 {
            expected = expected.wrapping_mul(FNV_PRIME);
        }
        assert_eq!(Survey::of_lengths(vec![usize::from(b'a')]).digest(), expected);
        assert_ne!(Survey::of_lengths(vec![1, 2]).digest(), Survey::of_lengths(vec![2, 1]).digest());
    }

    proptest! {
        #[test]
        fn histograms_hold_every_row(lengths in proptest::collection::vec(0usize..700, 1..80), bins in 1usize..12) {
            let survey = Survey::of_lengths(lengths.clone());
            let histogram = survey.histogram(bins);
            prop_assert!(histogram.len() <= bins);
            prop_assert!(histogram.windows(2).all(|pair| pair[0].to == pair[1].from));
            for bin in histogram {
                let count = lengths.iter().filter(|l| (bin.from..bin.to).contains(l)).count();
                prop_assert_eq!(bin.count, count);
            }
        }
    }
}
