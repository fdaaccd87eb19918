//! Dropout masks that are never stored: each bit is a hash of where it falls, so backward makes the same mask again.
//!
//! A bit depends on the seed, the layer, the place in the layer, the number of the sample in the effective batch, the
//! token's position in it and the feature; not on the micro-batch that the sample was put in, on padding, or on the
//! order of computation. So gradients do not depend on how an effective batch is cut, and a recomputed layer is exact.
//!
//! Each (sample, position) gets a 64-bit key from SplitMix64's finaliser (Steele, Lea and Flood, OOPSLA 2014); each
//! feature a 32-bit hash of its number under that key, of two multiply-xorshift rounds (the multipliers of `lowbias32`
//! from Wellons' hash-prospector search), which takes only 32-bit vector instructions.

use crate::kernels::isa::vectorized;

/// Dropout of one step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Dropout {
    /// Another for each optimizer step.
    pub seed: u64,
    /// Probability that a feature of an output (attention's, feed-forward's, embeddings') is dropped: 0 <= p < 1.
    pub hidden: f32,
    /// Probability that an attention weight is dropped: 0 <= p < 1.
    pub attention: f32,
}

/// A place in the model where something is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Site {
    /// Attention weights; `head` of the layer. The position is the query's, the feature the key's.
    Attention {
        /// Head of the layer.
        head: u32,
    },
    /// Attention's output projection, before the residual.
    AttentionOutput,
    /// The feed-forward block's output, before the residual.
    Output,
    /// Embeddings after their normalisation.
    Embeddings,
    /// Anything else: a classification head, say.
    Other(u32),
}

impl Site {
    fn number(self) -> u64 {
        match self {
            Site::Attention { head } => (1 << 32) | u64::from(head),
            Site::AttentionOutput => 2 << 32,
            Site::Output => 3 << 32,
            Site::Embeddings => 4 << 32,
            Site::Other(number) => (5 << 32) | u64::from(number),
        }
    }
}

/// SplitMix64's finaliser.
fn mix(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// All masks of one site in one layer, in one step.
#[derive(Clone, Copy, Debug)]
pub struct Masks {
    key: u64,
    /// Dropped is a hash of 24 bits below this.
    threshold: i32,
    /// What a kept value is multiplied by.
    scale: f32,
}

impl Masks {
    /// Masks that keep everything.
    pub const NONE: Masks = Masks { key: 0, threshold: 0, scale: 1.0 };

    /// Masks that drop with probability `p`, rounded to a multiple of 2^-24.
    pub fn new(seed: u64, layer: usize, site: Site, p: f32) -> Masks {
        let threshold = (f64::from(p.clamp(0.0, 1.0)) * f64::from(1 << 24)).round() as i32;
        let threshold = threshold.min((1 << 24) - 1);
        let kept = 1.0 - f64::from(threshold) / f64::from(1 << 24);
        Masks { key: mix(mix(mix(seed) ^ layer as u64) ^ site.number()), threshold, scale: (1.0 / kept) as f32 }
    }

    /// Whether nothing is dropped.
    pub fn is_none(&self) -> bool {
        self.threshold == 0
    }

    /// The mask of one token (or of one query).
    pub fn row(&self, row_id: u64, position: usize) -> Mask {
        let key = mix(mix(self.key ^ row_id).wrapping_add(position as u64));
        Mask { first: key as u32, second: (key >> 32) as u32, threshold: self.threshold, scale: self.scale }
    }
}

/// The mask of one token.
#[derive(Clone, Copy, Debug)]
pub struct Mask {
    first: u32,
    second: u32,
    threshold: i32,
    scale: f32,
}

impl Mask {
    /// What the value of this feature is multiplied by: 0, or 1 / (1 - p).
    #[inline(always)]
    pub fn factor(&self, feature: usize) -> f32 {
        let mut h = (feature as u32).wrapping_mul(0x9e37_79b9).wrapping_add(self.first);
        h = (h ^ (h >> 16)).wrapping_mul(0x7feb_352d) ^ self.second;
        h = (h ^ (h >> 15)).wrapping_mul(0x846c_a68b);
        h ^= h >> 16;
        if ((h >> 8) as i32) < self.threshold { 0.0 } else { self.scale }
    }
}

vectorized! {
    /// The factors of one token for features 0, 1, …: 0, or 1 / (1 - p).
    pub fn fill_mask(mask: Mask, factors: &mut [f32]) {
        for (feature, factor) in factors.iter_mut().enumerate() {
            *factor = mask.factor(feature);
        }
    }
}

vectorized! {
    /// `to = from · mask`.
    pub fn masked(mask: Mask, from: &[f32], to: &mut [f32]) {
        for (feature, (to, from)) in to.iter_mut().zip(from).enumerate() {
            *to = from * mask.factor(feature);
        }
    }
}

vectorized! {
    /// `values = values · mask`.
    pub fn mask_in_place(mask: Mask, values: &mut [f32]) {
        for (feature, value) in values.iter_mut().enumerate() {
            *value *= mask.factor(feature);
        }
    }
}
