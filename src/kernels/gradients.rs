//! Gradients of a layer's parameters: held, borrowed, or not wanted at all.

use crate::kernels::layer::{LayerShape, LayerWeights, Linear, Norm};
use crate::kernels::lora::AdapterSink;

/// Gradients of a linear map, in its layout.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LinearGradient<V = Vec<f32>> {
    /// `[in, out]`.
    pub weight: V,
    /// `[out]`.
    pub bias: V,
}

/// Gradients of a normalisation.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NormGradient<V = Vec<f32>> {
    /// `[d]`.
    pub gamma: V,
    /// `[d]`.
    pub beta: V,
}

/// Gradients of all parameters of a layer, held or borrowed.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LayerGradients<V = Vec<f32>> {
    /// `[d, d]`.
    pub query: LinearGradient<V>,
    /// `[d, d]`.
    pub key: LinearGradient<V>,
    /// `[d, d]`.
    pub value: LinearGradient<V>,
    /// `[d, d]`.
    pub attention_output: LinearGradient<V>,
    /// `[d]`.
    pub attention_norm: NormGradient<V>,
    /// `[d, f]`.
    pub intermediate: LinearGradient<V>,
    /// `[f, d]`.
    pub output: LinearGradient<V>,
    /// `[d]`.
    pub output_norm: NormGradient<V>,
}

impl LayerGradients {
    /// All zero.
    pub fn zeros(shape: &LayerShape) -> Self {
        let (d, f) = (shape.hidden, shape.intermediate);
        let linear = |i: usize, o: usize| LinearGradient { weight: vec![0.0; i * o], bias: vec![0.0; o] };
        let norm = || NormGradient { gamma: vec![0.0; d], beta: vec![0.0; d] };
        LayerGradients {
            query: linear(d, d),
            key: linear(d, d),
            value: linear(d, d),
            attention_output: linear(d, d),
            attention_norm: norm(),
            intermediate: linear(d, f),
            output: linear(f, d),
            output_norm: norm(),
        }
    }

    /// Every gradient, in the order of [`LayerWeights::slices`].
    pub fn slices_mut(&mut self) -> [&mut [f32]; 16] {
        let g = self;
        [
            &mut g.query.weight,
            &mut g.query.bias,
            &mut g.key.weight,
            &mut g.key.bias,
            &mut g.value.weight,
            &mut g.value.bias,
            &mut g.attention_output.weight,
            &mut g.attention_output.bias,
            &mut g.attention_norm.gamma,
            &mut g.attention_norm.beta,
            &mut g.intermediate.weight,
            &mut g.intermediate.bias,
            &mut g.output.weight,
            &mut g.output.bias,
            &mut g.output_norm.gamma,
            &mut g.output_norm.beta,
        ]
    }
}

impl LayerGradients<Place<'_>> {
    /// Lengths of the places, in the order of [`LayerWeights::slices`].
    pub(super) fn places(&self) -> [Option<usize>; 16] {
        let g = self;
        let (q, k, v, a) = (&g.query, &g.key, &g.value, &g.attention_output);
        let (n, i, o, m) = (&g.attention_norm, &g.intermediate, &g.output, &g.output_norm);
        let places = [
            &q.weight, &q.bias, &k.weight, &k.bias, &v.weight, &v.bias, &a.weight, &a.bias, &n.gamma, &n.beta,
            &i.weight, &i.bias, &o.weight, &o.bias, &m.gamma, &m.beta,
        ];
        places.map(|place| place.as_ref().map(|place| place.len()))
    }
}

impl<V> LayerGradients<V> {
    /// Places for gradients, in the order of [`LayerWeights::slices`].
    pub fn from_places(places: [V; 16]) -> Self {
        let [qw, qb, kw, kb, vw, vb, aw, ab, ag, ah, iw, ib, ow, ob, og, oh] = places;
        LayerGradients {
            query: LinearGradient { weight: qw, bias: qb },
            key: LinearGradient { weight: kw, bias: kb },
            value: LinearGradient { weight: vw, bias: vb },
            attention_output: LinearGradient { weight: aw, bias: ab },
            attention_norm: NormGradient { gamma: ag, beta: ah },
            intermediate: LinearGradient { weight: iw, bias: ib },
            output: LinearGradient { weight: ow, bias: ob },
            output_norm: NormGradient { gamma: og, beta: oh },
        }
    }
}

/// A place that gradients are added to; `None` for a parameter that is not trained.
pub type Place<'a> = Option<&'a mut [f32]>;

/// Where the gradients of a layer's parameters are added.
#[derive(Debug, Default)]
pub struct Sinks<'a> {
    /// Of the layer's own parameters. For a matrix without a place nothing is computed.
    pub own: LayerGradients<Place<'a>>,
    /// Of the adapter that is merged into the query's matrix.
    pub query: Option<AdapterSink<'a>>,
    /// Of the value's.
    pub value: Option<AdapterSink<'a>>,
}

impl<'a> LayerWeights<'a> {
    /// Parameters in the order of [`LayerWeights::slices`].
    pub fn from_slices(values: [&'a [f32]; 16]) -> Self {
        let linear = |i: usize| Linear { weight: values[i], bias: values[i + 1] };
        let norm = |i: usize| Norm { gamma: values[i], beta: values[i + 1] };
        LayerWeights {
            query: linear(0),
            key: linear(2),
            value: linear(4),
            attention_output: linear(6),
            attention_norm: norm(8),
            intermediate: linear(10),
            output: linear(12),
            output_norm: norm(14),
        }
    }

    /// Every parameter, in the order of [`LayerGradients::slices_mut`].
    pub fn slices(&self) -> [&'a [f32]; 16] {
        [
            self.query.weight,
            self.query.bias,
            self.key.weight,
            self.key.bias,
            self.value.weight,
            self.value.bias,
            self.attention_output.weight,
            self.attention_output.bias,
            self.attention_norm.gamma,
            self.attention_norm.beta,
            self.intermediate.weight,
            self.intermediate.bias,
            self.output.weight,
            self.output.bias,
            self.output_norm.gamma,
            self.output_norm.beta,
        ]
    }
}
