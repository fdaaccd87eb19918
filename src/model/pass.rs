//! What a forward pass is told besides its input: precision, dropout, padding.

use burn::tensor::{Device, Distribution, FloatDType, Int, Tensor, TensorData};

use crate::plan::Precision;

/// Added to the attention scores of padding: far below any real score, yet finite, so that a row of nothing but
/// padding gives a uniform distribution instead of NaN.
const MASKED_SCORE: f32 = -1e9;

/// The floating-point type in which a precision computes.
pub fn compute_dtype(precision: Precision) -> FloatDType {
    match precision {
        Precision::Fp32 => FloatDType::F32,
        Precision::Bf16 => FloatDType::BF16,
        Precision::Fp16 => FloatDType::F16,
    }
}

/// How one forward pass of one segment computes.
#[derive(Clone, Copy, Debug)]
pub struct Pass {
    /// Precision of matrix products and of what is kept for backward.
    pub precision: Precision,
    /// Seed of this segment's dropout masks; `None` switches dropout off. The same seed gives the same masks, so
    /// that a recomputed segment repeats exactly what it did the first time.
    pub dropout: Option<u64>,
}

impl Pass {
    /// A pass without dropout.
    pub fn evaluation(precision: Precision) -> Self {
        Pass { precision, dropout: None }
    }

    /// The dropout masks of one segment, to be drawn in order.
    pub fn masks(&self, device: &Device) -> Masks {
        if let Some(seed) = self.dropout {
            device.seed(seed);
        }
        Masks { on: self.dropout.is_some() }
    }

    /// Brings a master weight or an activation to the compute type; free in fp32.
    pub fn cast<const D: usize>(&self, tensor: Tensor<D>) -> Tensor<D> {
        match self.precision {
            Precision::Fp32 => tensor,
            reduced => tensor.cast(compute_dtype(reduced)),
        }
    }

    /// Brings an activation to 32 bits, where sums over many elements stay exact enough; free in fp32.
    pub fn widen<const D: usize>(&self, tensor: Tensor<D>) -> Tensor<D> {
        match self.precision {
            Precision::Fp32 => tensor,
            _ => tensor.cast(FloatDType::F32),
        }
    }
}

/// Draws the dropout masks of one segment from its seed, in the order in which they are asked for.
pub struct Masks {
    on: bool,
}

impl Masks {
    /// Zeroes each element with probability `p` and scales the others by `1 / (1 - p)`.
    pub fn apply<const D: usize>(&self, x: Tensor<D>, p: f64) -> Tensor<D> {
        if !self.on || p == 0.0 {
            return x;
        }
        let keep = 1.0 - p;
        let plain = x.device().without_autodiff();
        let mask = Tensor::<D>::random(x.shape(), Distribution::Bernoulli(keep), &plain);
        x.clone() * mask.cast(FloatDType::from(x.dtype())).autodiff_like(&x) * (1.0 / keep)
    }
}

/// Puts a constant on the same footing as the tensor that it is combined with.
trait AutodiffLike {
    fn autodiff_like<const D: usize>(self, other: &Tensor<D>) -> Self;
}

impl<const N: usize> AutodiffLike for Tensor<N> {
    fn autodiff_like<const D: usize>(self, other: &Tensor<D>) -> Self {
        if other.is_autodiff() { self.autodiff() } else { self }
    }
}

/// Which keys attention must not look at.
#[derive(Clone, Debug)]
pub struct PaddingMask {
    /// Added to the scores: `[batch, 1, 1, length]`, 0 for tokens and [`MASKED_SCORE`] for padding, in 32 bits.
    /// `None` where no row is padded.
    bias: Option<Tensor<4>>,
}

impl PaddingMask {
    /// From the number of real tokens of each row, which stand at its front.
    pub fn from_lengths(lengths: &[usize], padded: usize, device: &Device) -> Self {
        if lengths.iter().all(|&n| n == padded) {
            return PaddingMask { bias: None };
        }
        let bias: Vec<f32> =
            lengths.iter().flat_map(|&n| (0..padded).map(move |i| if i < n { 0.0 } else { MASKED_SCORE })).collect();
        let data = TensorData::new(bias, [lengths.len(), 1, 1, padded]);
        PaddingMask { bias: Some(Tensor::from_data(data, &device.clone().without_autodiff())) }
    }

    /// Scores `[batch, heads, length, length]` with padding pushed out of the softmax's reach.
    pub fn apply(&self, scores: Tensor<4>) -> Tensor<4> {
        match &self.bias {
            Some(bias) => {
                let bias = bias.clone().autodiff_like(&scores);
                scores + bias
            }
            None => scores,
        }
    }
}

/// Token ids of one micro-batch on the device. Shapes are `[batch, length]`.
#[derive(Clone, Debug)]
pub struct Inputs {
    /// Token ids, padded.
    pub ids: Tensor<2, Int>,
    /// Position of each token in the position embedding.
    pub positions: Tensor<2, Int>,
    /// Segment of each token (0 or 1); unused where the model has no token types.
    pub types: Tensor<2, Int>,
    /// Which of them are padding.
    pub mask: PaddingMask,
    /// The same tokens without padding, in the host's memory.
    pub packed: Packed,
}

/// The real tokens of a micro-batch one after the other, without padding.
#[derive(Clone, Debug, Default)]
pub struct Packed {
    /// Token ids.
    pub ids: Vec<u32>,
    /// Position of each token in the position embedding.
    pub positions: Vec<u32>,
    /// Segment of each token.
    pub types: Vec<u32>,
    /// Where each row begins, and the end of the last: `[rows + 1]`.
    pub offsets: Vec<usize>,
    /// Number of each row in its optimizer step, by which its dropout masks are drawn.
    pub rows: Vec<u64>,
}
