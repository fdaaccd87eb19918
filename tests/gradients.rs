//! The gradient is the same whatever the knobs: how the step is cut, and how much is recomputed.

mod common;

use std::collections::BTreeMap;
use std::sync::Mutex;

use autofit::data::batch::PadTo;
use autofit::data::corpus::Targets;
use autofit::data::tokenize::Encoded;
use autofit::model::Classifier;
use autofit::plan::{Knobs, Precision, partition};
use autofit::train::batch::MicroBatch;
use autofit::train::objective::Objective;
use autofit::train::step::{Engine, Learner, LossScale, StepSettings};
use common::{device, gradients, relative_norm, tiny_config, worst_relative};

/// Eight ragged rows of token ids, with labels.
fn rows() -> (Vec<Encoded>, Vec<usize>) {
    let lengths = [12, 7, 3, 12, 1, 9, 5, 8];
    let rows = lengths.iter().enumerate().map(|(r, &n)| Encoded {
        ids: (0..n).map(|i| (2 + (r * 17 + i * 5) % 47) as u32).collect(),
        type_ids: vec![0; n],
        truncated: false,
    });
    (rows.collect(), (0..8).map(|r| r % 3).collect())
}

/// Loss scale of fp16.
const SCALE: f64 = 1024.0;

const ENGINES: [Engine; 2] = [Engine::Fused, Engine::Tape];

struct Case {
    family: &'static str,
    parts: Vec<usize>,
    density: usize,
    precision: Precision,
    dropout: Option<u64>,
    objective: Objective,
    frozen: Option<usize>,
    lora: Option<usize>,
    engine: Engine,
}

impl Case {
    fn new(family: &'static str) -> Self {
        Case {
            family,
            parts: vec![8],
            density: 0,
            precision: Precision::Fp32,
            dropout: None,
            objective: Objective::default(),
            frozen: None,
            lora: None,
            engine: Engine::Fused,
        }
    }

    fn gradients(&self) -> BTreeMap<String, Vec<f32>> {
        // Burn's random numbers come from one generator per device: tests that draw must not overlap.
        static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
        let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let config = tiny_config(self.family);
        let device = device();
        let model = Classifier::init(&config, 7, &device);
        let mut knobs = Knobs::new(self.precision, self.parts[0], self.density);
        (knobs.frozen_layers, knobs.lora_rank) = (self.frozen, self.lora);
        let model = match self.lora {
            Some(rank) => common::adapted(model, rank, self.frozen.unwrap_or(0)),
            None => model,
        };
        let settings = StepSettings {
            dropout_seed: self.dropout,
            objective: self.objective.clone(),
            engine: self.engine,
            loss_scale: LossScale { scale: SCALE, ..LossScale::default() },
            ..StepSettings::new(knobs, 0)
        };
        let mut learner = Learner::new(model, config, settings, device);
        let (rows, labels) = rows();
        let total = self.objective.weight(&Targets::Classes(labels.clone()));
        let mut start = 0;
        for &size in &self.parts {
            let part = start..start + size;
            let ids: Vec<&Encoded> = rows[part.clone()].iter().collect();
            let targets = Targets::Classes(labels[part].to_vec());
            let batch = MicroBatch::new(&ids, targets, PadTo::Longest, &learner.config, learner.device());
            let batch = batch.expect("rows that fit");
            learner.accumulate(&batch, total);
            start += size;
        }
        assert_eq!(start, 8);
        let mut gradients = gradients(learner.model(), &learner.config, learner.gradients());
        if self.precision == Precision::Fp16 {
            gradients.values_mut().flatten().for_each(|g| *g /= SCALE as f32);
        }
        gradients
    }
}

fn assert_same(a: &Case, b: &Case, tolerance: f64) {
    let (worst, name) = worst_relative(&a.gradients(), &b.gradients());
    assert!(
        worst <= tolerance,
        "{} {:?}/{} vs {:?}/{}: {name} differs by {worst:e}",
        a.family,
        a.parts,
        a.density,
        b.parts,
        b.density
    );
}

#[test]
fn any_cut_of_the_step_gives_the_same_gradient() {
    for (family, engine) in families_and_engines() {
        let whole = Case { engine, ..Case::new(family) };
        assert_eq!(partition::parts(8, 3), [3, 3, 2]);
        for parts in [vec![1; 8], vec![2; 4], partition::parts(8, 3), vec![5, 3]] {
            assert_same(&whole, &Case { parts, engine, ..Case::new(family) }, 1e-5);
        }
    }
}

fn families_and_engines() -> impl Iterator<Item = (&'static str, Engine)> {
    ["bert", "distilbert", "roberta"].into_iter().flat_map(|family| ENGINES.map(|engine| (family, engine)))
}

#[test]
fn with_fused_kernels_dropout_depends_on_the_row_and_not_on_the_cut() {
    for family in ["bert", "distilbert", "roberta"] {
        let whole = Case { dropout: Some(5), ..Case::new(family) };
        for parts in [vec![1; 8], vec![3, 3, 2]] {
            assert_same(&whole, &Case { parts, density: 2, dropout: Some(5), ..Case::new(family) }, 1e-5);
        }
        let (other, _) =
            worst_relative(&whole.gradients(), &Case { dropout: Some(6), ..Case::new(family) }.gradients());
        assert!(other > 1e-3, "another seed gave the same masks");
    }
}

#[test]
fn fused_kernels_give_the_gradient_of_the_tape() {
    for family in ["bert", "distilbert", "roberta"] {
        for parts in [vec![8], vec![3, 3, 2]] {
            let fused = Case { parts: parts.clone(), ..Case::new(family) };
            assert_same(&fused, &Case { parts, engine: Engine::Tape, ..Case::new(family) }, 1e-4);
        }
    }
}

#[test]
fn fused_kernels_repeat_to_the_bit() {
    let case = Case { dropout: Some(9), density: 1, parts: vec![5, 3], ..Case::new("bert") };
    assert_eq!(case.gradients(), case.gradients());
}

#[test]
fn weighted_and_smoothed_losses_may_be_cut_anywhere_too() {
    let objective = Objective { label_smoothing: 0.1, class_weights: vec![0.5, 1.0, 3.0] };
    let whole = Case { objective: objective.clone(), ..Case::new("bert") };
    assert_same(&whole, &Case { parts: vec![3, 3, 2], objective, ..Case::new("bert") }, 1e-5);
    let (difference, _) = worst_relative(&whole.gradients(), &Case::new("bert").gradients());
    assert!(difference > 1e-2, "weights and smoothing had no effect");
}

#[test]
fn any_density_gives_the_same_gradient_with_dropout_on() {
    for (family, engine) in families_and_engines() {
        for parts in [vec![8], vec![3, 3, 2]] {
            let none = Case { dropout: Some(3), parts: parts.clone(), engine, ..Case::new(family) };
            for density in 1..=3 {
                assert_same(
                    &none,
                    &Case { density, dropout: Some(3), parts: parts.clone(), engine, ..Case::new(family) },
                    1e-5,
                );
            }
            let (difference, _) =
                worst_relative(&none.gradients(), &Case { parts, engine, ..Case::new(family) }.gradients());
            assert!(difference > 1e-3, "dropout had no effect");
        }
    }
}

#[test]
fn frozen_layers_get_no_gradient_and_the_others_keep_theirs() {
    for engine in ENGINES {
        let all = Case { engine, ..Case::new("bert") }.gradients();
        let some = Case { frozen: Some(2), density: 3, engine, ..Case::new("bert") }.gradients();
        assert!(some.len() < all.len() && !some.is_empty());
        assert!(
            some.keys()
                .all(|name| !name.contains("embeddings") && !name.contains("layer.0.") && !name.contains("layer.1."))
        );
        let same: BTreeMap<_, _> = all.into_iter().filter(|(name, _)| some.contains_key(name)).collect();
        let (worst, name) = worst_relative(&same, &some);
        assert!(worst <= 1e-5, "{name} differs by {worst:e}");
    }
}

#[test]
fn adapters_and_the_head_alone_get_gradients() {
    for (family, engine) in families_and_engines() {
        let all = Case { engine, ..Case::new(family) }.gradients();
        let some = Case { lora: Some(4), engine, ..Case::new(family) }.gradients();
        let head: Vec<&String> = some.keys().filter(|name| !name.contains("_adapter.")).collect();
        assert_eq!(head.len(), 4, "{head:?}");
        assert!(head.iter().all(|name| all.contains_key(*name) && !name.contains(".layer.")), "{head:?}");
        assert_eq!(some.len(), 4 + 3 * 2 * 2, "{:?}", some.keys());
        let upper = Case { lora: Some(4), frozen: Some(2), density: 3, engine, ..Case::new(family) }.gradients();
        assert_eq!(upper.len(), 4 + 2 * 2, "{:?}", upper.keys());
        assert!(some.values().all(|values| values.iter().any(|v| v.abs() > 1e-6)), "a gradient is zero");
    }
}

#[test]
fn adapters_get_the_same_gradient_from_any_cut_density_and_engine() {
    for family in ["bert", "distilbert", "roberta"] {
        for frozen in [None, Some(0), Some(1)] {
            let tape = Case { lora: Some(4), frozen, engine: Engine::Tape, ..Case::new(family) };
            for engine in ENGINES {
                for (parts, density) in [(vec![8], 0), (vec![8], 3), (vec![3, 3, 2], 2), (vec![1; 8], 1)] {
                    let other = Case { lora: Some(4), frozen, parts, density, engine, ..Case::new(family) };
                    assert_same(&tape, &other, 1e-4);
                }
            }
        }
        let whole = Case { lora: Some(4), dropout: Some(5), ..Case::new(family) };
        let parts = vec![3, 3, 2];
        assert_same(&whole, &Case { lora: Some(4), dropout: Some(5), parts, density: 2, ..Case::new(family) }, 1e-5);
    }
}

#[test]
fn adapters_in_sixteen_bits_stay_close_to_full_precision() {
    let full = Case { lora: Some(4), ..Case::new("distilbert") }.gradients();
    let cases = [
        (Precision::Bf16, Engine::Fused, 0.1),
        (Precision::Bf16, Engine::Tape, 0.1),
        (Precision::Fp16, Engine::Fused, 0.01),
    ];
    for (precision, engine, tolerance) in cases {
        let reduced = Case { lora: Some(4), precision, engine, density: 1, ..Case::new("distilbert") };
        let difference = relative_norm(&full, &reduced.gradients());
        assert!(difference > 1e-6 && difference < tolerance, "{precision:?} {engine:?} differs by {difference:e}");
    }
}

#[test]
fn sixteen_bits_stay_close_to_full_precision() {
    let full = Case::new("distilbert").gradients();
    // On the CPU, Burn's own half precision overflows here: fp16 is offered with the fused kernels alone.
    let cases = [
        (Precision::Bf16, Engine::Fused, 0.05),
        (Precision::Bf16, Engine::Tape, 0.1),
        (Precision::Fp16, Engine::Fused, 0.01),
    ];
    for (precision, engine, tolerance) in cases {
        for density in [0, 3] {
            let reduced = Case { precision, engine, density, ..Case::new("distilbert") };
            let difference = relative_norm(&full, &reduced.gradients());
            assert!(
                difference > 1e-6 && difference < tolerance,
                "{precision:?} {engine:?}/{density} differs by {difference:e}"
            );
        }
    }
}
