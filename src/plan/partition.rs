//! How an effective batch is cut into micro-batches.
//!
//! The parts are as equal as possible, so the largest part, which decides peak memory, is never larger than it
//! must be: 32 samples at micro-batch 12 become 11 + 11 + 10, not 12 + 12 + 8.

/// Forward/backward passes per optimizer step: `ceil(effective / micro)`.
///
/// # Panics
/// If `micro` is zero.
pub fn accumulation(effective: usize, micro: usize) -> usize {
    assert!(micro > 0, "a micro-batch holds at least one sample");
    effective.div_ceil(micro)
}

/// The sizes of the micro-batches, largest first, as equal as possible; they sum to `effective`.
pub fn parts(effective: usize, micro: usize) -> Vec<usize> {
    let count = accumulation(effective, micro);
    if count == 0 {
        return Vec::new();
    }
    let (base, extra) = (effective / count, effective % count);
    (0..count).map(|i| base + usize::from(i < extra)).collect()
}

/// The size of the largest of [`parts`]; 0 for no samples.
///
/// # Panics
/// If `micro` is zero.
pub fn largest_part(effective: usize, micro: usize) -> usize {
    effective.div_ceil(accumulation(effective, micro).max(1))
}

/// The micro-batch sizes worth trying, largest first: the distinct values of `ceil(effective / k)`.
///
/// Any other size runs as many passes as the next smaller one of these, with a larger peak.
pub fn candidates(effective: usize) -> Vec<usize> {
    let mut sizes = Vec::new();
    let mut passes = 1;
    while passes <= effective {
        let size = effective.div_ceil(passes);
        sizes.push(size);
        // The fewest passes whose parts are smaller than that.
        passes = if size == 1 { break } else { effective.div_ceil(size - 1) };
    }
    sizes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_equal_and_complete() {
        assert_eq!(parts(32, 12), [11, 11, 10]);
        assert_eq!(parts(8, 3), [3, 3, 2]);
        assert_eq!(parts(8, 8), [8]);
        assert_eq!(parts(1, 4), [1]);
        assert!(parts(0, 4).is_empty());
        for effective in 1..80 {
            for micro in 1..=effective {
                let p = parts(effective, micro);
                assert_eq!(p.iter().sum::<usize>(), effective);
                assert_eq!(p.len(), accumulation(effective, micro));
                assert!(p[0] <= micro && p[0] - p[p.len() - 1] <= 1);
            }
        }
    }

    #[test]
    fn candidates_are_the_largest_parts() {
        assert_eq!(candidates(32), [32, 16, 11, 8, 7, 6, 5, 4, 3, 2, 1]);
        for size in candidates(100) {
            assert_eq!(parts(100, size)[0], size);
        }
        for effective in 0..300usize {
            let mut every: Vec<usize> = (1..=effective).map(|k| effective.div_ceil(k)).collect();
            every.dedup();
            assert_eq!(candidates(effective), every, "{effective}");
            assert!((1..=effective).all(|micro| largest_part(effective, micro) == parts(effective, micro)[0]));
        }
        assert_eq!(candidates(crate::plan::bounds::BATCH).len(), 2047);
    }
}
