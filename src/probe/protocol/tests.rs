//! Whatever a worker measured arrives, also where it is not finite.

use super::training::{Classification, Ending, Event, Quality, Regression, Scores};
use super::*;

/// Every message that holds floats, with `x` in all of them that are not shares or counts.
fn messages(x: f64) -> Vec<Message> {
    let scores = |quality| Scores { rows: 3, loss: x, quality, labels: vec!["a".into(), "b".into()] };
    let classes = scores(Quality::Classification(Classification {
        accuracy: 0.5,
        macro_f1: 0.25,
        f1: vec![0.5, 0.0],
        precision: vec![1.0, 0.0],
        recall: vec![0.5, 0.0],
        support: vec![2, 1],
        confusion: vec![vec![1, 1], vec![0, 1]],
    }));
    let numbers = scores(Quality::Regression(Regression { pearson: x, spearman: x }));
    let step = |loss_scale| Event::Step {
        step: 7,
        epoch: x,
        loss: x,
        rate: x,
        gradient_norm: x,
        loss_scale,
        updated: false,
        seconds: x,
        rows: 8,
    };
    let summary = |known: Option<f64>, scores| training::Summary {
        steps: 0,
        ending: Ending::Stopped,
        train_loss: known,
        scores,
        kept_step: 0,
        samples_per_second: known,
        peak_bytes: 9,
    };
    let measured = Measurement {
        micro_seconds: vec![1.0, x],
        optimizer_seconds: vec![x],
        loss: x,
        parameter_sum: x,
        setup_seconds: x,
        ..Measurement::default()
    };
    vec![
        Message::Event(step(None)),
        Message::Event(step(Some(x))),
        Message::Event(Event::Evaluated { step: 7, scores: classes.clone() }),
        Message::Event(Event::Evaluated { step: 7, scores: numbers.clone() }),
        Message::Lines(prediction::Lines { csv: "1,a\n".into(), rows: 1, share: x }),
        Message::Report(Report::Measured(measured)),
        Message::Report(Report::Trained(summary(Some(x), Some(numbers)))),
        Message::Report(Report::Trained(summary(None, None))),
        Message::Report(Report::Predicted(prediction::Summary {
            rows: 1,
            truncated: 0,
            max_length: 8,
            seconds: x,
            peak_bytes: 0,
        })),
    ]
}

#[test]
fn every_message_arrives_as_it_was_sent() {
    for x in [0.25, -3.0, f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
        for message in messages(x) {
            let line = serde_json::to_string(&message).unwrap();
            let heard: Message = serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}"));
            // NaN is not equal to itself, but prints as itself.
            assert_eq!(format!("{heard:?}"), format!("{message:?}"));
        }
    }
}

#[test]
fn scores_that_are_no_numbers_are_never_better() {
    let scores = |loss, pearson| Scores {
        rows: 3,
        loss,
        quality: Quality::Regression(Regression { pearson, spearman: 0.0 }),
        labels: Vec::new(),
    };
    let (good, better) = (scores(1.0, 0.25), scores(2.0, 0.5));
    assert!(better.better_than(&good) && !good.better_than(&better) && !good.better_than(&good));
    for none in [scores(1.0, f64::NAN), scores(f64::NAN, 0.9)] {
        assert!(good.better_than(&none) && !none.better_than(&good) && !none.better_than(&none), "{none:?}");
    }
}
