//! A device that refuses memory in the middle of a run, and panics that are something else.

use super::super::step::Engine;
use super::*;
use crate::probe::serve;

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
    let around = Surroundings {
        peak: &|| 0,
        between_steps: &|| (),
        stop: &|| done() >= steps,
        refusal: &serve::refusal,
        tell: &mut tell,
    };
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
    let spec = TrainSpec::tiny(folder.path());
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
    let around =
        Surroundings { peak: &|| 0, between_steps: &|| (), stop: &|| false, refusal: &serve::refusal, tell: &mut tell };
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
    assert_eq!(whole.len(), parts.len());
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

mod keep;
