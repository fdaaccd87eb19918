//! The one source of chance in this room: a named generator and a shuffle of our own.
//!
//! Orders must be the same after an update of any dependency, or a resumed run would see other rows than the one it
//! continues. `rand` promises that for its named generators but not for `StdRng`, nor for its shuffle.

use rand::rngs::Xoshiro256PlusPlus;
use rand::{Rng, SeedableRng};

/// A reproducible stream of random numbers.
#[derive(Clone, Debug)]
pub struct Random(Xoshiro256PlusPlus);

impl Random {
    /// The stream that belongs to `seed` and to each of `path`: purpose, epoch, row. Different paths give unrelated
    /// streams.
    pub fn new(seed: u64, path: &[u64]) -> Self {
        let mixed = path.iter().fold(mix(seed), |state, &step| mix(state.wrapping_add(step)));
        Random(Xoshiro256PlusPlus::seed_from_u64(mixed))
    }

    /// Uniform in `0..bound`; 0 if `bound` is 0. Lemire's multiplication, with rejection, so exactly uniform.
    pub fn below(&mut self, bound: usize) -> usize {
        let bound = bound as u64;
        loop {
            let product = u128::from(self.0.next_u64()) * u128::from(bound);
            let low = product as u64;
            if low >= bound || low >= bound.wrapping_neg() % bound.max(1) {
                return (product >> 64) as usize;
            }
        }
    }

    /// Puts `items` in an order in which every permutation is equally likely (Fisher and Yates).
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last + 1));
        }
    }
}

/// SplitMix64's output function (Steele, Lea and Flood, 2014) after one step from `state`.
fn mix(state: u64) -> u64 {
    let z = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_unrelated_and_stable() {
        let draw = |seed, path: &[u64]| Random::new(seed, path).below(1 << 20);
        assert_eq!(draw(1, &[2, 3]), draw(1, &[2, 3]));
        let all = [draw(0, &[]), draw(0, &[0]), draw(0, &[0, 0]), draw(0, &[1]), draw(1, &[0]), draw(1, &[1])];
        let mut distinct = all.to_vec();
        distinct.sort_unstable();
        distinct.dedup();
        assert_eq!(distinct.len(), all.len());
    }

    #[test]
    fn below_is_uniform() {
        let mut random = Random::new(7, &[]);
        assert_eq!((random.below(0), random.below(1)), (0, 0));
        let mut counts = [0usize; 6];
        for _ in 0..60_000 {
            counts[random.below(6)] += 1;
        }
        // Five standard deviations of a binomial with n = 60000 and p = 1/6 are 456.
        assert!(counts.iter().all(|count| count.abs_diff(10_000) < 456), "{counts:?}");
    }

    #[test]
    fn every_permutation_is_equally_likely() {
        let mut random = Random::new(8, &[]);
        let mut counts = std::collections::HashMap::new();
        for _ in 0..24_000 {
            let mut items = [0, 1, 2, 3];
            random.shuffle(&mut items);
            *counts.entry(items).or_insert(0usize) += 1;
        }
        assert_eq!(counts.len(), 24);
        assert!(counts.values().all(|count| count.abs_diff(1000) < 160), "{counts:?}");
    }
}
