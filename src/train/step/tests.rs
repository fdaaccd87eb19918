//! Steps that are not finite, and clipping.

use super::*;
use crate::data::batch::PadTo;
use crate::data::corpus::Targets;
use crate::data::tokenize::Encoded;
use crate::train::finite::parameter_sum;

fn learner(precision: Precision, loss_scale: LossScale) -> Learner {
    let json = serde_json::json!({"model_type": "bert", "vocab_size": 20, "hidden_size": 8, "num_hidden_layers": 1,
        "num_attention_heads": 2, "intermediate_size": 16, "max_position_embeddings": 8});
    let config = ModelConfig::from_json(&json).expect("a configuration");
    let device = Device::flex().autodiff();
    let settings = StepSettings { loss_scale, ..StepSettings::new(Knobs::new(precision, 2, 0), 1) };
    Learner::new(Classifier::init(&config, 1, &device), config, settings, device)
}

fn accumulate(learner: &mut Learner) {
    let row = Encoded { ids: vec![3, 4, 5], type_ids: vec![0; 3], truncated: false };
    let batch =
        MicroBatch::new(&[&row, &row], Targets::Classes(vec![0, 1]), PadTo::Longest, &learner.config, learner.device())
            .expect("rows that fit");
    learner.accumulate(&batch, 2.0);
}

/// What a device may give back of a step that went wrong.
const WRONG: [Settled; 4] = [
    Settled { loss: 0.7, gradient_norm: f64::NAN },
    Settled { loss: 0.7, gradient_norm: f64::INFINITY },
    Settled { loss: f64::NAN, gradient_norm: 1.0 },
    Settled { loss: f64::INFINITY, gradient_norm: 1.0 },
];

#[test]
fn an_update_that_is_not_finite_is_refused_and_changes_nothing() {
    for precision in [Precision::Fp32, Precision::Bf16] {
        for settled in WRONG {
            let mut learner = learner(precision, LossScale::default());
            let before = parameter_sum(learner.model()).expect("a sum");
            accumulate(&mut learner);
            learner.settle();
            let refused = learner.apply(0.1, settled).expect_err("not finite");
            let named = if settled.loss.is_finite() { settled.gradient_norm } else { settled.loss };
            assert!(refused.what.contains(&named.to_string()), "{refused}");
            assert_eq!(parameter_sum(learner.model()).expect("a sum"), before, "{settled:?}");
            assert_eq!((learner.steps(), learner.gradients().is_empty()), (0, true));
            // It can go on: the refused gradient is no part of the next step.
            accumulate(&mut learner);
            assert!(learner.update(0.1).expect("finite").updated);
            assert!(parameter_sum(learner.model()).expect("a sum") != before);
        }
    }
}

#[test]
fn in_fp16_it_is_skipped_until_no_scale_helps() {
    for settled in WRONG {
        let mut learner = learner(Precision::Fp16, LossScale { scale: 4.0, steady: 7 });
        let before = parameter_sum(learner.model()).expect("a sum");
        for (step, left) in [(1, 2.0), (2, 1.0)] {
            accumulate(&mut learner);
            learner.settle();
            let outcome = learner.apply(0.1, settled).expect("a smaller scale may help");
            assert_eq!((outcome.updated, learner.steps()), (false, step));
            assert_eq!(learner.loss_scale(), Some(LossScale { scale: left, steady: 0 }));
        }
        accumulate(&mut learner);
        learner.settle();
        learner.apply(0.1, settled).expect_err("no scale is smaller");
        assert_eq!(parameter_sum(learner.model()).expect("a sum"), before);
        assert_eq!(learner.steps(), 2);
    }
}

#[test]
fn the_gradient_is_clipped_to_the_limit_and_never_stretched() {
    assert_eq!(clip_factor(0.5, 1.0), 1.0);
    assert!((clip_factor(4.0, 1.0) - 0.25).abs() < 1e-6);
    assert!((clip_factor(4.0, 2.0) - 0.5).abs() < 1e-6);
}
