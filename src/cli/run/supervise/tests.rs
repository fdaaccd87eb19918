//! Which worker follows one that died.

use super::*;
use crate::cli::talk::Talk;
use crate::probe::protocol::training::Event;
use crate::probe::protocol::{Attempt, Message};
use crate::probe::{Executor, Finished};

/// Workers that each say so much, and then die.
struct Dying<'a> {
    lives: std::slice::Iter<'a, (&'a [Event], Outcome)>,
    /// What each was told.
    told: Vec<TrainSpec>,
}

impl Executor for Dying<'_> {
    fn run(&mut self, job: &Job, _deadline: Duration, on_message: &mut dyn FnMut(&Message)) -> Finished {
        let Task::Train(spec) = &job.task else { panic!("not a training") };
        self.told.push(serde_json::from_value(spec.clone()).expect("a specification"));
        let (events, outcome) = self.lives.next().expect("no more workers");
        events.iter().for_each(|event| on_message(&Message::Event(event.clone())));
        let attempt =
            Attempt { outcome: *outcome, reason: "it died".into(), measurement: None, oom: None, wall_seconds: 0.0 };
        Finished { attempt, report: None, stderr: String::new() }
    }
}

/// What the workers of a run were told, until it was interrupted.
fn told(lives: &[(&[Event], Outcome)]) -> Vec<TrainSpec> {
    let folder = tempfile::tempdir().expect("a folder");
    let spec = TrainSpec::tiny(folder.path());
    let mut progress = Progress::new(Talk::new(true), spec.output.clone());
    let mut executor = Dying { lives: lives.iter(), told: Vec::new() };
    let summary = supervise(&mut executor, "cpu", None, &spec, &mut progress).expect("interrupted");
    assert_eq!(summary, None);
    executor.told
}

#[test]
fn a_worker_that_died_before_it_started_anew_is_not_taken_for_the_run_before() {
    let note = Event::Note("a word about the data".into());
    let started = Event::Started { train_rows: 9, evaluation_rows: 0, total_steps: 6, done: 0 };
    let step = Event::Step {
        step: 1,
        epoch: 0.1,
        loss: 0.7,
        rate: 1e-3,
        gradient_norm: 1.0,
        loss_scale: None,
        updated: true,
        seconds: 0.1,
        rows: 8,
    };
    for death in [Outcome::Crash, Outcome::Oom, Outcome::HostOom] {
        let told = told(&[
            (std::slice::from_ref(&note), death),
            (&[note.clone(), started.clone(), step.clone()], death),
            (&[], Outcome::Interrupted),
        ]);
        let starts: Vec<Start> = told.iter().map(|spec| spec.start).collect();
        assert_eq!(starts, [Start::Fresh, Start::Fresh, Start::Resume], "{death}");
    }
}
