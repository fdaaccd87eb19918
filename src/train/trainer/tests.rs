//! A device that refuses memory in the middle of a run, and panics that are something else.

use std::path::Path;

use super::super::spec::{DataSpec, Duration, Evaluation, Hyper, Saving};
use super::super::step::Engine;
use super::*;
use crate::data::order::RowOrder;
use crate::plan::Precision;
use crate::probe::protocol::ModelSource;
use crate::probe::serve;

fn spec(folder: &Path) -> TrainSpec {
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/tiny-bert");
    TrainSpec {
        model: ModelSource::Folder(model),
        data: DataSpec {
            train: folder.join("train.csv"),
            evaluation: Evaluation::Fraction(0.0),
            text: "text".into(),
            pair: None,
            label: "label".into(),
            regression: None,
        },
        knobs: Knobs::new(Precision::Fp32, 8, 0),
        effective_batch: 8,
        max_length: 24,
        proven_length: 24,
        duration: Duration::Steps(6),
        hyper: Hyper { learning_rate: 1e-3, ..Hyper::default() },
        order: RowOrder::Shuffled,
        seed: 7,
        output: folder.join("model"),
        saving: Saving { every: Every::Never, keep: 1 },
        selection: Selection::Last,
        start: Start::Fresh,
    }
}

/// Trains on a device that refuses more than `tokens` at a time; the losses, and what was lowered to.
fn losses(tokens: usize) -> Result<(Vec<f64>, Vec<usize>)> {
    let folder = tempfile::tempdir()?;
    let rows = (0..24).map(|i| format!("{}film,{}\n", "the ".repeat(i % 9), ["no", "yes"][i % 2]));
    std::fs::write(folder.path().join("train.csv"), format!("text,label\n{}", rows.collect::<String>()))?;
    let spec = spec(folder.path());
    let prepared = prepare(&spec, &mut |_| ())?;
    let (mut losses, mut lowered) = (Vec::new(), Vec::new());
    let mut tell = |event| match event {
        Event::Step { loss, .. } => losses.push(loss),
        Event::Lowered { micro_batch, reason, .. } => {
            assert!(reason.contains("4096"), "{reason}");
            lowered.push(micro_batch);
        }
        _ => {}
    };
    let around = Surroundings { peak: &|| 0, stop: &|| false, refusal: &serve::refusal, tell: &mut tell };
    let snapshots = Snapshots::new(folder.path().join("snapshots"), 1);
    let mut run = Run::start(&spec, prepared, Device::flex().autodiff(), snapshots, around)?;
    run.learner.settings.engine = Engine::Refusing(tokens);
    // Masks depend on how a step is cut where Burn's tape draws them.
    run.learner.settings.dropout_seed = None;
    run.steps()?;
    Ok((losses, lowered))
}

#[test]
fn a_step_that_a_device_refuses_is_done_again_with_less() -> Result<()> {
    let (whole, none) = losses(usize::MAX)?;
    assert!(whole.len() == 6 && none.is_empty());
    let (parts, lowered) = losses(40)?;
    assert!(!lowered.is_empty() && lowered.is_sorted_by(|a, b| a > b), "{lowered:?}");
    for (a, b) in whole.iter().zip(&parts) {
        assert!((a - b).abs() < 1e-5, "{whole:?} {parts:?}");
    }
    let error = losses(3).expect_err("no row has so few tokens");
    assert!(error.to_string().contains("nothing is left to lower"), "{error:#}");
    Ok(())
}

#[test]
fn any_other_panic_is_passed_on() {
    let caught = panic::catch_unwind(|| panic!("index out of bounds")).expect_err("a panic");
    assert_eq!(serve::refusal(caught.as_ref()), None);
}
