//! What is kept of a run that is stopped, resumed, has no numbers any more, or whose files are gone.

use std::fs;
use std::path::{Path, PathBuf};

use super::super::super::resume::Best;
use super::super::super::schedule::Decay;
use super::super::super::spec::{Duration, Evaluation, Every, Hyper, Saving, Selection};
use super::super::super::step::LossScale;
use super::*;
use crate::probe::protocol::training::{Classification, Quality, Regression, Scores};

#[test]
fn a_run_that_is_stopped_before_its_first_step_still_ends_well() -> Result<()> {
    let folder = workplace()?;
    let (summary, _) = train_until(&TrainSpec::tiny(folder.path()), 0, |_| ());
    let summary = summary?;
    assert_eq!((summary.steps, summary.ending), (0, Ending::Stopped));
    assert_eq!((summary.train_loss, summary.samples_per_second), (None, None));
    let resumed = TrainSpec { start: Start::Resume, ..TrainSpec::tiny(folder.path()) };
    let (summary, events) = train_until(&resumed, usize::MAX, |_| ());
    assert_eq!((summary?.steps, events.len()), (6, 7), "{events:?}");
    Ok(())
}

#[test]
fn steps_that_overflow_in_fp16_are_told_and_a_snapshot_after_them_is_whole() -> Result<()> {
    let folder = workplace()?;
    let knobs = Knobs::new(Precision::Fp16, 8, 0);
    let fp16 = TrainSpec { knobs, selection: Selection::Best { patience: None }, ..TrainSpec::tiny(folder.path()) };
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
    let opened = snapshots.newest::<State>()?.opened.expect("a snapshot");
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
    let wild = TrainSpec { hyper, saving, ..TrainSpec::tiny(folder.path()) };
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
    let wild = TrainSpec { hyper, duration: Duration::Steps(1), ..TrainSpec::tiny(folder.path()) };
    let (summary, _) = train_until(&wild, usize::MAX, |_| ());
    let error = summary.expect_err("no numbers").to_string();
    assert!(error.contains("the parameters is") && error.contains("after step 1"), "{error}");
    assert!(!wild.output.join("model.safetensors").exists());
    Ok(())
}

fn notes(events: &[Event]) -> Vec<&str> {
    let texts = events.iter().filter_map(|event| match event {
        Event::Note(text) => Some(text.as_str()),
        _ => None,
    });
    texts.collect()
}

/// Makes files of some kind what they were not.
fn damage(spec: &TrainSpec, kind: &str) -> Vec<PathBuf> {
    let files: Vec<PathBuf> = fs::read_dir(spec.output.join(SNAPSHOTS))
        .expect("a folder")
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(kind)))
        .collect();
    files.iter().for_each(|path| fs::write(path, "rubbish").expect("written"));
    files
}

#[test]
fn a_damaged_snapshot_is_replaced_and_it_is_said_whether_there_is_another() -> Result<()> {
    let folder = workplace()?;
    let saving = Saving { every: Every::Steps(1), keep: 1 };
    let spec = TrainSpec { saving, ..TrainSpec::tiny(folder.path()) };
    let resumed = TrainSpec { start: Start::Resume, ..spec.clone() };
    assert_eq!(train_until(&spec, 4, |_| ()).0?.ending, Ending::Stopped);
    assert_eq!(damage(&spec, "step-00000004-").len(), 1);
    let (summary, events) = train_until(&resumed, 2, |_| ());
    assert_eq!(summary?.steps, 2);
    let said = notes(&events);
    assert!(said[0].contains("step-00000004-") && said[0].ends_with("so training starts anew"), "{said:?}");
    // What is written now is kept, although its number is lower.
    let (summary, events) = train_until(&resumed, 1, |_| ());
    assert_eq!(summary?.steps, 3);
    assert!(notes(&events)[0].starts_with("stopping"), "{events:?}");
    let twice = TrainSpec { saving: Saving { keep: 2, ..saving }, ..resumed };
    assert_eq!(train_until(&twice, 1, |_| ()).0?.steps, 4);
    damage(&spec, "step-00000004-");
    let (_, events) = train_until(&twice, 1, |_| ());
    assert!(notes(&events)[0].ends_with("the one of step 3 is used"), "{events:?}");
    Ok(())
}

/// Scores that no model reaches.
fn unbeaten() -> Scores {
    let (one, none) = (vec![1.0; 2], Vec::new());
    let (f1, precision, recall) = (one.clone(), one.clone(), one);
    let quality =
        Classification { accuracy: 2.0, macro_f1: 1.0, f1, precision, recall, support: vec![1; 2], confusion: none };
    Scores { rows: 8, loss: 0.0, quality: Quality::Classification(quality), labels: Vec::new() }
}

/// Six steps, of which the model after the second has scores that none of the others reaches: stopped after the fourth.
fn stopped_after_the_best(folder: &Path) -> Result<TrainSpec> {
    let mut spec = TrainSpec { selection: Selection::Best { patience: None }, ..TrainSpec::tiny(folder) };
    spec.data.evaluation = Evaluation::Fraction(0.3);
    train_until(&spec, 2, |_| ()).0?;
    let resumed = TrainSpec { start: Start::Resume, ..spec };
    let (summary, _) = train_until(&resumed, 2, |run| {
        run.best.write(run.learner.model(), &run.learner.config, 2).expect("written");
        run.state.best = Some(Best { step: 2, scores: unbeaten() });
    });
    assert_eq!(summary?.steps, 4);
    Ok(resumed)
}

fn saved(spec: &TrainSpec) -> Vec<u8> {
    fs::read(spec.output.join("model.safetensors")).expect("weights")
}

#[test]
fn the_best_model_comes_with_its_scores() -> Result<()> {
    let folder = workplace()?;
    let spec = stopped_after_the_best(folder.path())?;
    let best = fs::read(BestModels::new(spec.output.join(SNAPSHOTS)).find(2)?)?;
    let (summary, events) = train_until(&spec, usize::MAX, |_| ());
    let summary = summary?;
    assert_eq!((summary.kept_step, summary.scores), (2, Some(unbeaten())));
    assert_eq!(notes(&events), [] as [&str; 0]);
    assert!(!spec.output.join(SNAPSHOTS).exists());
    assert!(saved(&spec) == best);
    Ok(())
}

#[test]
fn scores_of_a_best_model_that_is_gone_are_forgotten() -> Result<()> {
    for when in ["before it goes on", "at the end"] {
        let folder = workplace()?;
        let spec = stopped_after_the_best(folder.path())?;
        let best = fs::read(BestModels::new(spec.output.join(SNAPSHOTS)).find(2)?)?;
        if when == "before it goes on" {
            assert_eq!(damage(&spec, "best-00000002-").len(), 1);
        }
        let (summary, events) = train_until(&spec, usize::MAX, |run| {
            if when == "at the end" {
                run.best.prune(None, &[]);
            }
        });
        let (summary, said) = (summary?, notes(&events));
        assert!(said.len() == 1 && said[0].contains("best") && said[0].contains("it is lost"), "{when}: {said:?}");
        assert_eq!(summary.kept_step, 6, "{when}");
        assert!(summary.scores.is_some_and(|scores| scores.headline() <= 1.0), "{when}");
        assert!(saved(&spec) != best, "{when}");
    }
    Ok(())
}
