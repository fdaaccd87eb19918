//! Workers that speak through `autofit::probe::serve`.

use std::io::{BufRead, BufReader, Write};

use autofit::plan::Outcome;
use autofit::probe::protocol::{Job, PROTOCOL};
use autofit::probe::{Executor, Workers};

use crate::roles::{command, serving_worker, silent_serving_worker};
use crate::support::*;

#[track_caller]
fn serves(device: &str, outcome: Outcome, words: &str) -> autofit::probe::Finished {
    let (finished, progress) = run_in(&mut serving_worker(), &job(device), AMPLE);
    assert_eq!(finished.attempt.outcome, outcome, "{:?}\n{}", finished.attempt, finished.stderr);
    assert_reason(&finished, words);
    assert_eq!(progress.len(), 1);
    finished
}

#[test]
fn a_report_arrives() {
    serves("cpu", Outcome::Fit, "peak 4.00 MiB");
}

#[test]
fn a_panic_arrives_with_its_text_and_prints_as_usual() {
    let finished = serves("panic", Outcome::Crash, "panicked: on purpose");
    assert!(finished.stderr.contains("panicked at"), "{}", finished.stderr);
}

#[test]
fn a_refusal_in_the_devices_own_thread_is_out_of_memory() {
    let finished = serves("panic elsewhere", Outcome::Oom, "512 B refused by the device");
    assert_eq!(finished.attempt.oom.unwrap().requested, Some(512));
}

#[test]
fn stray_prints_are_no_messages() {
    let finished = serves("print", Outcome::Fit, "peak");
    assert!(finished.stderr.contains("not by print"), "{}", finished.stderr);
}

#[test]
fn a_worker_that_leaves_without_an_answer() {
    serves("exit", Outcome::Garbage, "no report");
    serves("abort", Outcome::Crash, "SIGABRT");
}

#[test]
fn another_protocol_is_refused_in_words() {
    let other = Job { protocol: PROTOCOL + 1, ..job("cpu") };
    let (finished, _) = run_in(&mut serving_worker(), &other, AMPLE);
    assert_eq!(finished.attempt.outcome, Outcome::Crash);
    assert_reason(&finished, "use the same autofit on both sides");
}

#[test]
fn one_worker_serves_many_jobs() {
    let mut worker = silent_serving_worker().workers(Workers::Warm { max_jobs: 9 });
    let pids: Vec<String> = (0..3).flat_map(|_| run_in(&mut worker, &job("cpu"), AMPLE).1).collect();
    assert!(pids.len() == 3 && pids.iter().all(|pid| *pid == pids[0]), "{pids:?}");
}

#[test]
fn a_worker_leaves_when_nobody_reads_it_any_more() {
    let mut child = command("worker").spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap());
    writeln!(input, "{}", serde_json::to_string(&job("hang")).unwrap()).unwrap();
    let mut line = String::new();
    while !line.contains("progress") {
        line.clear();
        assert!(output.read_line(&mut line).unwrap() > 0, "the worker said nothing");
    }
    assert!(child.try_wait().unwrap().is_none());
    drop(output);
    // Its input stays open, it is busy, and nothing was sent to kill it.
    let mut status = None;
    eventually("the worker leaves", || {
        status = child.try_wait().unwrap();
        status.is_some()
    });
    assert_eq!(status.unwrap().code(), Some(1));
    drop(input);
}

#[test]
fn a_template_runs_the_worker_behind_its_command() {
    let mut nice = autofit::probe::LocalProcess::behind("sh -c 'echo \"$0\" >&2; exit 9' {worker}").unwrap();
    let finished = nice.run(&job("cpu"), AMPLE, &mut |_| {});
    assert_eq!(finished.attempt.outcome, Outcome::Crash);
    assert_eq!(finished.stderr.trim(), std::env::current_exe().unwrap().to_str().unwrap());
    assert!(autofit::probe::LocalProcess::behind("nice 'x").is_err());
}
