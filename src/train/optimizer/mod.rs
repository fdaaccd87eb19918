//! Update rules over a whole model, with one state per parameter.
//!
//! Burn's [`ModuleOptimizer`](burn::optim::ModuleOptimizer) would do the update, but it can only be saved by copying
//! every state at once, which a run under a memory cap can't afford. Its per-parameter rules are used here; states
//! are held by parameter, so that they can be written and read one at a time.

pub mod state;

use std::collections::{BTreeMap, HashMap};

use anyhow::Result;
use burn::module::{Module, ModuleMapper, Param, ParamId};
use burn::optim::decay::WeightDecayConfig;
use burn::optim::momentum::MomentumConfig;
use burn::optim::{
    Adafactor, AdafactorConfig, AdamW, AdamWConfig, AdamWState, AdaptiveMomentumState, Lion, LionConfig,
    Optimizer as Rule, Sgd, SgdConfig,
};
use burn::tensor::{Device, Tensor};
use serde::{Deserialize, Serialize};
use state::{Exported, Imported};

use super::gradients::{GradientSum, Rows};
use crate::kernels::adamw::{self, Factors};
use crate::kernels::bridge::{self, Values, ValuesMut};
use crate::model::Classifier;
use crate::model::views::TensorView;
use crate::plan::OptimizerKind;

/// The constants of an update rule.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct OptimizerSettings {
    /// Which rule.
    pub kind: OptimizerKind,
    /// Weight decay, not applied to biases and LayerNorm. Decoupled from the gradient, but for SGD.
    pub weight_decay: f64,
}

impl Default for OptimizerSettings {
    fn default() -> Self {
        OptimizerSettings { kind: OptimizerKind::AdamW, weight_decay: 0.01 }
    }
}

/// Updates a model's parameters from the gradients of a step, and keeps what the rule remembers.
pub struct Optimizer(Box<dyn UpdateModel>);

impl std::fmt::Debug for Optimizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Optimizer")
    }
}

impl Optimizer {
    /// A rule without memories.
    pub fn new(settings: OptimizerSettings) -> Self {
        let decay = settings.weight_decay;
        Optimizer(match settings.kind {
            OptimizerKind::AdamW => {
                // Burn's betas are PyTorch's already.
                let rule = |decay: f64| {
                    AdamWConfig::new().with_epsilon(adamw::EPSILON).with_weight_decay(decay as f32).build()
                };
                Box::new(States::new(decay, rule(decay), rule(0.0)))
            }
            OptimizerKind::Lion => {
                let rule = |decay: f64| LionConfig::new().with_weight_decay(decay as f32).build();
                Box::new(States::new(decay, rule(decay), rule(0.0)))
            }
            OptimizerKind::Adafactor => {
                // The learning rate is the schedule's alone: no relative step, no scaling by the parameter.
                let rule = |decay: f64| {
                    AdafactorConfig::new()
                        .with_relative_step(false)
                        .with_scale_parameter(false)
                        .with_weight_decay(decay as f32)
                        .build()
                };
                Box::new(States::new(decay, rule(decay), rule(0.0)))
            }
            OptimizerKind::Sgd => {
                let rule = |decay: f64| {
                    let config = SgdConfig::new().with_momentum(Some(MomentumConfig {
                        momentum: 0.9,
                        dampening: 0.0,
                        nesterov: false,
                    }));
                    let decay = (decay > 0.0).then(|| WeightDecayConfig::new(decay as f32));
                    config.with_weight_decay(decay).build()
                };
                Box::new(States::new(decay, rule(decay), rule(0.0)))
            }
        })
    }

    /// One update with gradients multiplied by `factor` (clipping and unscaling in one). Consumes the gradients, each
    /// freed as soon as it is used.
    pub fn step(&mut self, rate: f64, model: Classifier, gradients: GradientSum, factor: f64) -> Classifier {
        self.0.update(rate, model, gradients, factor)
    }

    /// What is remembered of a parameter; `None` before its first update.
    pub fn export(&self, id: ParamId) -> Option<Exported> {
        self.0.export(id)
    }

    /// Remembers what [`Optimizer::export`] gave, of a parameter with `rank` dimensions.
    ///
    /// # Errors
    /// If it is not the memory of such a parameter under this rule.
    pub fn import(&mut self, id: ParamId, rank: usize, memory: Imported, device: &Device) -> Result<()> {
        self.0.import(id, rank, memory, device)
    }
}

trait UpdateModel: Send {
    fn export(&self, id: ParamId) -> Option<Exported>;
    fn import(&mut self, id: ParamId, rank: usize, memory: Imported, device: &Device) -> Result<()>;
    fn update(&mut self, rate: f64, model: Classifier, gradients: GradientSum, factor: f64) -> Classifier;
}

/// The state of one parameter: vectors and matrices are told apart by rules that factor.
enum State<R: Rule> {
    Vector(R::State<1>),
    Matrix(R::State<2>),
}

/// What one update multiplies with.
#[derive(Clone, Copy)]
struct Scalars {
    rate: f64,
    /// Weight decay of this parameter.
    decay: f64,
    /// Of the gradient.
    factor: f64,
}

/// A parameter's gradient on the CPU.
enum Gradient {
    Dense(Values),
    Rows(Rows),
}

/// A rule that may have a way of its own on the CPU: in place, in one pass.
trait OnCpu: Rule {
    /// Whether it has.
    const FUSED: bool = false;

    /// The memory of one parameter, named as Burn names it.
    fn export<const D: usize>(state: &Self::State<D>) -> Exported {
        state::export(state)
    }

    /// One update; only called where [`OnCpu::FUSED`].
    fn update<const D: usize>(
        _scalars: Scalars,
        _value: &mut ValuesMut,
        _shape: [usize; D],
        _gradient: Gradient,
        _state: Option<Self::State<D>>,
    ) -> Option<Self::State<D>> {
        None
    }
}

impl OnCpu for Lion {}
impl OnCpu for Adafactor {}
impl OnCpu for Sgd {}

impl OnCpu for AdamW {
    const FUSED: bool = true;

    fn export<const D: usize>(state: &AdamWState<D>) -> Exported {
        // Two moments of the largest table, copied, could be more than a tight cap leaves.
        let momentum = &state.momentum;
        let view = |name: &str, moment: &Tensor<D>| (format!("momentum.{name}"), TensorView::of(moment.clone()));
        Exported {
            tensors: vec![view("moment_1", &momentum.moment_1), view("moment_2", &momentum.moment_2)],
            counters: BTreeMap::from([("momentum.time".to_string(), momentum.time as u64)]),
        }
    }

    fn update<const D: usize>(
        scalars: Scalars,
        value: &mut ValuesMut,
        shape: [usize; D],
        gradient: Gradient,
        state: Option<AdamWState<D>>,
    ) -> Option<AdamWState<D>> {
        let (time, first, second) = match state.map(|state| state.momentum) {
            Some(old) => (old.time + 1, ValuesMut::of(old.moment_1)?, ValuesMut::of(old.moment_2)?),
            None => (1, ValuesMut::zeros(shape), ValuesMut::zeros(shape)),
        };
        let (mut first, mut second) = (first, second);
        let factors = Factors::new(time, scalars.rate, scalars.decay, scalars.factor);
        let (value, m, v) = (value.slice_mut(), first.slice_mut(), second.slice_mut());
        match gradient {
            Gradient::Dense(gradient) => {
                const BLOCK: usize = 1 << 10;
                let blocks: Vec<&[f32]> = gradient.slice().chunks(BLOCK).collect();
                adamw::update(factors, value, m, v, BLOCK, |i| blocks.get(i).copied());
            }
            Gradient::Rows(rows) => adamw::update(factors, value, m, v, rows.width(), |i| rows.row(i)),
        }
        let (moment_1, moment_2) = (first.into_tensor(), second.into_tensor());
        Some(AdamWState { momentum: AdaptiveMomentumState { time, moment_1, moment_2, max_moment_2: None } })
    }
}

struct States<R: Rule> {
    /// Weight decay of [`States::decayed`].
    decay: f64,
    decayed: R,
    plain: R,
    by_parameter: HashMap<ParamId, State<R>>,
}

impl<R: Rule> States<R> {
    fn new(decay: f64, decayed: R, plain: R) -> Self {
        States { decay, decayed, plain, by_parameter: HashMap::new() }
    }

    fn update_one<const D: usize>(
        &mut self,
        id: ParamId,
        decay: bool,
        rate: f64,
        value: Tensor<D>,
        gradient: Tensor<D>,
    ) -> Tensor<D> {
        let rule = if decay { &self.decayed } else { &self.plain };
        let shape = value.dims();
        let old = self.by_parameter.remove(&id);
        if let [_, _] = shape.as_slice() {
            let old = old.and_then(|s| if let State::Matrix(s) = s { Some(s) } else { None });
            let (value, state) = rule.step(rate, value.reshape([0, 0]), gradient.reshape([0, 0]), old);
            self.by_parameter.extend(state.map(|state| (id, State::Matrix(state))));
            value.reshape(shape)
        } else {
            let old = old.and_then(|s| if let State::Vector(s) = s { Some(s) } else { None });
            let (value, state) = rule.step(rate, value.reshape([-1]), gradient.reshape([-1]), old);
            self.by_parameter.extend(state.map(|state| (id, State::Vector(state))));
            value.reshape(shape)
        }
    }
}

impl<R: OnCpu> States<R> {
    /// One update in place, on the CPU.
    fn update_in_place<const D: usize>(
        &mut self,
        id: ParamId,
        scalars: Scalars,
        value: Tensor<D>,
        gradient: Gradient,
    ) -> Option<Tensor<D>> {
        let shape = value.dims();
        let mut value = ValuesMut::of(value)?;
        let old = self.by_parameter.remove(&id);
        let state = if let [_, _] = shape.as_slice() {
            let old = old.and_then(|s| if let State::Matrix(s) = s { Some(s) } else { None });
            let shape = [shape[0], shape[D - 1]];
            R::update(scalars, &mut value, shape, gradient, old).map(State::Matrix)
        } else {
            let old = old.and_then(|s| if let State::Vector(s) = s { Some(s) } else { None });
            R::update(scalars, &mut value, [shape.iter().product()], gradient, old).map(State::Vector)
        };
        self.by_parameter.extend(state.map(|state| (id, state)));
        Some(value.into_tensor())
    }
}

impl<R: OnCpu> UpdateModel for States<R> {
    fn export(&self, id: ParamId) -> Option<Exported> {
        Some(match self.by_parameter.get(&id)? {
            State::Vector(state) => R::export(state),
            State::Matrix(state) => R::export(state),
        })
    }

    fn import(&mut self, id: ParamId, rank: usize, memory: Imported, device: &Device) -> Result<()> {
        let state = match rank {
            2 => State::Matrix(state::import(memory, device)?),
            _ => State::Vector(state::import(memory, device)?),
        };
        self.by_parameter.insert(id, state);
        Ok(())
    }

    fn update(&mut self, rate: f64, model: Classifier, gradients: GradientSum, factor: f64) -> Classifier {
        model.map(&mut Update { states: self, gradients, rate, factor, owners: Vec::new() })
    }
}

struct Update<'a, R: OnCpu> {
    states: &'a mut States<R>,
    gradients: GradientSum,
    rate: f64,
    factor: f64,
    /// Names of the parameters and modules that the traversal stands in.
    owners: Vec<String>,
}

impl<R: OnCpu> Update<'_, R> {
    /// The gradient of a parameter that can be updated in place.
    fn on_cpu<const D: usize>(&mut self, param: &Param<Tensor<D>>) -> Option<Gradient> {
        if !R::FUSED || !bridge::is_flex(&param.val().device()) {
            return None;
        }
        let rows = self.gradients.take_rows(param.id).map(Gradient::Rows);
        rows.or_else(|| self.gradients.take::<D>(param.id).and_then(Values::of).map(Gradient::Dense))
    }
}

impl<R: OnCpu> ModuleMapper for Update<'_, R> {
    fn enter_module(&mut self, name: &str, _container: &str) {
        self.owners.push(name.to_string());
    }

    fn exit_module(&mut self, _name: &str, _container: &str) {
        self.owners.pop();
    }

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let decay = self.owners.last().is_some_and(|leaf| is_decayed(leaf));
        if let Some(gradient) = self.on_cpu(&param) {
            let (id, value, mapper) = param.consume();
            let decay = if decay { self.states.decay } else { 0.0 };
            let scalars = Scalars { rate: self.rate, decay, factor: self.factor };
            let value = self.states.update_in_place(id, scalars, value.without_autodiff(), gradient);
            let value = value.unwrap_or_else(|| unreachable!("the device was found to be the CPU"));
            return Param::from_mapped_value(id, value.autodiff().require_grad(), mapper);
        }
        let Some(gradient) = self.gradients.take::<D>(param.id) else { return param };
        let gradient = if self.factor == 1.0 { gradient } else { gradient * self.factor };
        let (id, value, mapper) = param.consume();
        let value = self.states.update_one(id, decay, self.rate, value.without_autodiff(), gradient);
        Param::from_mapped_value(id, value.autodiff().require_grad(), mapper)
    }
}

/// Matrices and tables decay; biases and LayerNorm's scale and shift do not.
fn is_decayed(leaf: &str) -> bool {
    leaf == "weight"
}
