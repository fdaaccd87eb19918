//! A device that refuses memory in the middle of a run, panics that are something else, and steps that are not finite.

use std::path::Path;

use super::super::resume::Best;
use super::super::schedule::Decay;
use super::super::spec::{DataSpec, Duration, Evaluation, Every, Hyper, Saving, Selection};
use super::super::step::{Engine, LossScale};
use super::*;
use crate::data::order::RowOrder;
use crate::probe::protocol::ModelSource;
use crate::probe::protocol::training::{Quality, Regression, Scores};
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

/// A folder with rows to train on.
fn workplace() -> Result<tempfile::TempDir> {
    let folder = tempfile::tempdir()?;
    let rows = (0..24).map(|i| format!("{}film,{}\n", "the ".repeat(i % 9), ["no", "yes"][i % 2]));
    std::fs::write(folder.path().join("train.csv"), format!("text,label\n{}", rows.collect::<String>()))?;
    Ok(folder)
}

/// Trains on the CPU until it ends, or is asked to stop after so many steps; what it said.
fn train_until(spec: &TrainSpec, steps: usize, change: impl FnOnce(&mut Run)) -> (Result<Summary>, Vec<Event>) {
    let events = std::cell::RefCell::new(Vec::new());
    let done = || events.borrow().iter().filter(|event| matches!(event, Event::Step { .. })).count();
    let mut tell = |event| events.borrow_mut().push(event);
    let around = Surroundings { peak: &|| 0, stop: &|| done() >= steps, refusal: &serve::refusal, tell: &mut tell };
    let whole = || -> Result<Summary> {
        let prepared = prepare(spec, &mut |_| ())?;
        let snapshots = Snapshots::new(spec.output.join(SNAPSHOTS), spec.saving.keep);
        let mut run = Run::start(spec, prepared, Device::flex().autodiff(), snapshots, around)?;
        change(&mut run);
        run.finished()
    };
    let summary = whole();
    (summary, events.into_inner())
}

/// Trains on a device that refuses more than `tokens` at a time; the losses, and what was lowered to.
fn losses(tokens: usize) -> Result<(Vec<f64>, Vec<usize>)> {
    let folder = workplace()?;
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

#[test]
fn a_run_that_is_stopped_before_its_first_step_still_ends_well() -> Result<()> {
    let folder = workplace()?;
    let (summary, _) = train_until(&spec(folder.path()), 0, |_| ());
    let summary = summary?;
    assert_eq!((summary.steps, summary.ending), (0, Ending::Stopped));
    assert_eq!((summary.train_loss, summary.samples_per_second), (None, None));
    let resumed = TrainSpec { start: Start::Resume, ..spec(folder.path()) };
    let (summary, events) = train_until(&resumed, usize::MAX, |_| ());
    assert_eq!((summary?.steps, events.len()), (6, 7), "{events:?}");
    Ok(())
}

#[test]
fn steps_that_overflow_in_fp16_are_told_and_a_snapshot_after_them_is_whole() -> Result<()> {
    let folder = workplace()?;
    let knobs = Knobs::new(Precision::Fp16, 8, 0);
    let fp16 = TrainSpec { knobs, selection: Selection::Best { patience: None }, ..spec(folder.path()) };
    let huge = LossScale { scale: f64::from(f32::MAX), steady: 0 };
    let (summary, events) = train_until(&fp16, 2, |run| {
        run.learner.scaler = Some(huge);
        // As an evaluation leaves it whose outputs were no numbers.
        let loss = f64::NAN;
        run.state.scores = Some(Scores { rows: 1, loss, quality: regression(f64::NAN), labels: Vec::new() });
        run.state.best = run.state.scores.clone().map(|scores| Best { step: 0, scores });
        run.state.clock.losses.push(f64::INFINITY);
    });
    assert!(summary?.train_loss.is_some_and(f64::is_finite));
    let skipped = events.iter().filter(|event| match event {
        Event::Step { gradient_norm, updated, .. } => !updated && !gradient_norm.is_finite(),
        _ => false,
    });
    assert_eq!(skipped.count(), 2, "{events:?}");
    let snapshots = Snapshots::new(fp16.output.join(SNAPSHOTS), 1);
    let opened = snapshots.newest::<State>(|damaged| panic!("{damaged}")).expect("a snapshot");
    assert_eq!(opened.state.step, 2);
    assert!(opened.state.best.is_some_and(|best| best.scores.loss.is_nan() && best.scores.headline().is_nan()));
    Ok(())
}

fn regression(value: f64) -> Quality {
    Quality::Regression(Regression { pearson: value, spearman: value })
}

#[test]
fn a_run_that_no_longer_has_numbers_ends_and_its_snapshots_do() -> Result<()> {
    let folder = workplace()?;
    // Warm-up gives the first step a rate of zero; the second update leaves weights of this size.
    let hyper = Hyper { learning_rate: 1e30, ..Hyper::default() };
    let saving = Saving { every: Every::Steps(1), keep: 9 };
    let wild = TrainSpec { hyper, saving, ..spec(folder.path()) };
    let (summary, events) = train_until(&wild, usize::MAX, |_| ());
    let error = summary.expect_err("no numbers");
    let NotFinite { what } = error.downcast_ref().expect("what is not finite");
    for word in ["step 3: the ", "lower --learning-rate (it was 1e30)", "--overwrite"] {
        assert!(what.contains(word), "{word}: {what}");
    }
    assert!(!what.contains("fp32"), "{what}");
    assert_eq!(events.iter().filter(|event| matches!(event, Event::Step { .. })).count(), 2);
    assert!(!wild.output.join("model.safetensors").exists());
    // What was saved can be gone on from, and comes to the same end.
    let resumed = TrainSpec { start: Start::Resume, ..wild };
    let (summary, events) = train_until(&resumed, usize::MAX, |_| ());
    assert_eq!(summary.expect_err("the same").to_string(), *what);
    assert!(!events.iter().any(|event| matches!(event, Event::Note(_))), "{events:?}");
    Ok(())
}

#[test]
fn a_model_whose_last_update_left_no_numbers_is_not_saved() -> Result<()> {
    let folder = workplace()?;
    let hyper = Hyper { learning_rate: 1e39, decay: Decay::Constant, warmup: 0.0, ..Hyper::default() };
    let wild = TrainSpec { hyper, duration: Duration::Steps(1), ..spec(folder.path()) };
    let (summary, _) = train_until(&wild, usize::MAX, |_| ());
    let error = summary.expect_err("no numbers").to_string();
    assert!(error.contains("the parameters is") && error.contains("after step 1"), "{error}");
    assert!(!wild.output.join("model.safetensors").exists());
    Ok(())
}
