//! Every way in which a worker can end, or fail to: each told apart, each in bounded time, nothing left behind.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use autofit::plan::Outcome;
use autofit::probe::protocol::{Job, PROTOCOL, Report, Task};
use autofit::probe::{Executor, LocalProcess};

use crate::support::*;

/// Runs a marked script and checks that none of its processes is left.
#[track_caller]
fn ends(text: &str, deadline: Duration, outcome: Outcome, words: &str) -> autofit::probe::Finished {
    let mark = new_mark();
    let mut worker = script(text).env(MARK, &mark).exit_patience(Duration::from_millis(300));
    let (finished, _) = run_in(&mut worker, &job("cpu"), deadline);
    assert_eq!(finished.attempt.outcome, outcome, "{:?}", finished.attempt);
    assert_reason(&finished, words);
    eventually("the group is gone", || marked(&mark).is_empty());
    finished
}

const SHORT: Duration = Duration::from_millis(400);

#[test]
fn a_report_is_taken_and_messages_are_passed_on_in_order() {
    let text =
        r#"read -r job; echo '{"progress":"one"}'; echo '{"event":{"a":1}}'; echo '{"progress":"two"}'; echo "$1""#;
    let (finished, progress) = run(text, AMPLE);
    assert_eq!(finished.attempt.outcome, Outcome::Fit, "{:?}", finished.attempt);
    assert_eq!(finished.attempt.measurement.as_ref().unwrap().peak_bytes, 4 << 20);
    assert_eq!(finished.report, Some(measured()));
    assert_eq!(progress, ["one", "two"]);
}

#[test]
fn the_job_arrives_as_one_json_line() {
    let (finished, progress) =
        run(r#"read -r job; echo "$job" >&2; read -r more; echo '{"progress":"end"}'; echo "$1""#, SHORT);
    // Standard input stays open until the report: the second `read` waits, and that is what runs into the deadline.
    assert_eq!(finished.attempt.outcome, Outcome::Timeout);
    assert!(progress.is_empty());
    let read: Job = serde_json::from_str(finished.stderr.trim()).unwrap();
    assert_eq!((read.protocol, read.device.as_str()), (PROTOCOL, "cpu"));
}

#[test]
fn a_report_cut_off_anywhere_is_no_report() {
    let whole = line(&Report::Unsupported { what: "x".into() }) + "\n";
    for end in 0..=whole.len() {
        let mut worker = LocalProcess::new("/bin/sh", ["-c", r#"printf %s "$1""#, "worker", &whole[..end]]);
        let (finished, _) = run_in(&mut worker, &job("cpu"), AMPLE);
        let expected = if end == whole.len() { Outcome::Unsupported } else { Outcome::Garbage };
        assert_eq!(finished.attempt.outcome, expected, "cut at {end}: {:?}", finished.attempt);
        assert_eq!(finished.report.is_some(), end == whole.len());
    }
}

#[test]
fn exits_without_a_report() {
    ends("exit 0", AMPLE, Outcome::Garbage, "ended well but sent no report");
    ends(
        "echo 'Error: no such model' >&2; exit 3",
        AMPLE,
        Outcome::Crash,
        "exit status 3, no report; it said: Error: no such model",
    );
    ends("echo hello; exit 0", AMPLE, Outcome::Garbage, "began with: hello");
    ends(r#"echo '{"report":{"brilliant":{}}}'"#, AMPLE, Outcome::Garbage, "another version");
}

#[test]
fn deaths_by_signal() {
    ends("kill -SEGV $$", AMPLE, Outcome::Crash, "SIGSEGV");
    ends("kill -BUS $$", AMPLE, Outcome::Crash, "SIGBUS");
    ends("kill -TERM $$", AMPLE, Outcome::Crash, "SIGTERM");
    ends("kill -KILL $$", AMPLE, Outcome::HostOom, "SIGKILL");
    ends("sh -c 'kill -KILL $$'; exit $?", AMPLE, Outcome::HostOom, "exit status 137");
    ends("kill -ABRT $$", AMPLE, Outcome::Crash, "SIGABRT");
    ends("echo 'memory allocation of 4096 bytes failed' >&2; kill -ABRT $$", AMPLE, Outcome::HostOom, "4.00 KiB");
}

#[test]
fn the_allocators_record_decides_if_the_worker_died_of_it() {
    let record = "echo 'autofit-oom requested=4096 live=100 cap=2048' >/proc/self/fd/$AUTOFIT_OOM_FD";
    let oom = ends(&format!("{record}; kill -ABRT $$"), AMPLE, Outcome::Oom, "4.00 KiB refused by the cap of 2.00 KiB");
    assert_eq!(oom.attempt.oom.unwrap().live, Some(100));
    ends(&format!("{record}; exit 101"), AMPLE, Outcome::Oom, "the cap");
    ends(&format!(r#"{record}; echo '{{"report":{{"failed":{{"error":"x"}}}}}}'"#), AMPLE, Outcome::Oom, "the cap");
    ends(&format!(r#"{record}; echo "$1""#), AMPLE, Outcome::Fit, "peak");
    ends(&format!("{record}; sleep 100"), SHORT, Outcome::Timeout, "after memory was refused");
    // Where the descriptor is not inherited, as behind ssh, the record comes with standard error.
    ends("echo 'autofit-oom requested=1 live=2 cap=3' >&2; kill -ABRT $$", AMPLE, Outcome::Oom, "the cap of 3 B");
    ends("echo 'autofit-oom requested=1 live=2' >&2; kill -ABRT $$", AMPLE, Outcome::HostOom, "the machine");
}

#[test]
fn a_worker_that_is_late_is_ended() {
    ends("read -r job; sleep 100", SHORT, Outcome::Timeout, "no report after 0.4 s");
    ends("read -r job; trap '' TERM; while :; do sleep 100; done", SHORT, Outcome::Timeout, "no report");
    ends("read -r job; kill -STOP $$; echo \"$1\"", SHORT, Outcome::Timeout, "stopped by a signal");
    ends("sleep 100", SHORT, Outcome::Timeout, "never read its job");
}

#[test]
fn a_large_job_is_read_or_told_to_be_unread() {
    let large = Job { task: Task::Train("x".repeat(1 << 20).into()), ..job("cpu") };
    let (finished, _) = run_in(&mut script("exec sleep 100"), &large, SHORT);
    assert_eq!(finished.attempt.outcome, Outcome::Timeout);
    assert_reason(&finished, "never read its job");
    let (finished, _) = run_in(&mut script(r#"head -n1 | wc -c >&2; echo "$1""#), &large, AMPLE);
    assert_eq!(finished.attempt.outcome, Outcome::Fit, "{:?}", finished.attempt);
    assert!(finished.stderr.trim().parse::<usize>().unwrap() > 1 << 20);
    // Not reading is no fault in one that answers.
    let (finished, _) = run_in(&mut script(r#"exec 0<&-; echo "$1""#), &large, AMPLE);
    assert_eq!(finished.attempt.outcome, Outcome::Fit, "{:?}", finished.attempt);
}

#[test]
fn a_worker_that_closes_its_output_and_lives_on_is_ended() {
    let start = Instant::now();
    ends("exec 1>&-; exec sleep 100", AMPLE, Outcome::Garbage, "lived on");
    assert!(start.elapsed() < AMPLE / 2);
}

#[test]
fn floods_are_survived() {
    ends("head -c 100000000 /dev/zero; sleep 100", AMPLE, Outcome::Garbage, "wrote too much");
    ends("yes | head -c 100000000; sleep 100", AMPLE, Outcome::Garbage, "wrote too much");
    let text = r#"yes talk | head -c 100000000 >&2; echo 'last words' >&2; echo "$1""#;
    let finished = ends(text, AMPLE, Outcome::Fit, "peak");
    assert!(finished.stderr.ends_with("talk\nlast words\n") && finished.stderr.len() <= 8 << 10);
    let (finished, progress) =
        run(r#"yes '{"progress":"tick"}' | head -n 50000; echo "$1"; yes 'too late' | head -n 100000"#, AMPLE);
    assert_eq!(finished.attempt.outcome, Outcome::Fit, "{:?}", finished.attempt);
    assert_eq!(progress.len(), 50_000);
}

#[test]
fn a_banner_before_the_messages_is_overlooked() {
    ends(r#"echo 'Welcome to box'; printf '\377\376\n\n'; echo "$1""#, AMPLE, Outcome::Fit, "peak");
}

#[test]
fn a_worker_that_hangs_after_its_report_is_ended_and_its_report_counts() {
    ends(r#"echo "$1"; trap '' TERM; while :; do sleep 100; done"#, AMPLE, Outcome::Fit, "peak");
    ends(r#"echo "$1"; kill -SEGV $$"#, AMPLE, Outcome::Fit, "peak");
}

#[test]
fn descendants_go_with_the_worker() {
    ends(r#"sleep 100 & (sleep 100 & sleep 100) & echo "$1""#, AMPLE, Outcome::Fit, "peak");
    ends("sleep 100 & exit 4", AMPLE, Outcome::Crash, "exit status 4");
    ends("(trap '' TERM; sleep 100) & kill -KILL $$", AMPLE, Outcome::HostOom, "SIGKILL");
}

#[test]
fn one_that_left_the_group_holds_nobody_up() {
    let mark = new_mark();
    let mut worker = script(r#"setsid sleep 30 & echo "$1""#).env(MARK, &mark);
    let start = Instant::now();
    let (finished, _) = run_in(&mut worker, &job("cpu"), AMPLE);
    assert_eq!(finished.attempt.outcome, Outcome::Fit, "{:?}", finished.attempt);
    assert!(start.elapsed() < Duration::from_secs(25), "it was waited for");
    for pid in marked(&mark) {
        unsafe { libc::kill(pid as i32, libc::SIGKILL) };
    }
}

#[test]
fn a_program_that_is_not_there_is_said_to_be() {
    let mut worker = LocalProcess::new("/nowhere/at all", ["x"]);
    let (finished, _) = run_in(&mut worker, &job("cpu"), AMPLE);
    assert_eq!(finished.attempt.outcome, Outcome::Crash);
    assert_reason(&finished, "can't start the worker: /nowhere/at all: No such file");
}

#[test]
fn a_raised_flag_ends_the_running_job_and_starts_no_other() {
    let flag: &'static AtomicBool = Box::leak(Box::new(AtomicBool::new(false)));
    let mark = new_mark();
    let mut worker = script("read -r job; echo '{\"progress\":\"here\"}'; while :; do sleep 100; done");
    worker = worker.env(MARK, &mark).interrupt(flag);
    let mut raised = None;
    let finished = worker.run(&job("cpu"), AMPLE, &mut |_| {
        flag.store(true, Ordering::SeqCst);
        raised = Some(Instant::now());
    });
    assert_eq!(finished.attempt.outcome, Outcome::Interrupted, "{:?}", finished.attempt);
    assert!(raised.unwrap().elapsed() < AMPLE / 2);
    assert!(marked(&mark).is_empty());
    let (finished, progress) = run_in(&mut worker, &job("cpu"), AMPLE);
    assert_eq!(finished.attempt.outcome, Outcome::Interrupted);
    assert!(progress.is_empty());
}

#[test]
fn an_interrupted_worker_may_still_say_what_it_saved() {
    let flag: &'static AtomicBool = Box::leak(Box::new(AtomicBool::new(false)));
    let text =
        r#"trap 'echo "$1"; exit 0' TERM; read -r job; echo '{"progress":"here"}'; while :; do sleep 0.05; done"#;
    let mut worker = script(text).interrupt(flag).grace(AMPLE);
    let finished = worker.run(&job("cpu"), AMPLE, &mut |_| flag.store(true, Ordering::SeqCst));
    assert_eq!(finished.attempt.outcome, Outcome::Interrupted);
    assert_eq!(finished.report, Some(measured()));
}

#[test]
fn the_environment_is_passed_on_and_added_to() {
    let mut worker = script(r#"echo "$HOME $RAYON_NUM_THREADS" >&2; echo "$1""#).env("RAYON_NUM_THREADS", "3");
    let (finished, _) = run_in(&mut worker, &job("cpu"), AMPLE);
    assert_eq!(finished.stderr, format!("{} 3\n", std::env::var("HOME").unwrap_or_default()));
}

#[test]
fn a_listener_that_panics_leaves_no_worker() {
    let mark = new_mark();
    let mut worker = script("read -r job; echo '{\"progress\":\"here\"}'; sleep 100").env(MARK, &mark);
    let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        worker.run(&job("cpu"), AMPLE, &mut |_| panic!("on purpose"));
    }));
    assert!(caught.is_err());
    eventually("the group is gone", || marked(&mark).is_empty());
}

#[test]
fn no_deadline_is_a_deadline_too() {
    let (finished, _) = run(r#"sleep 0.1; echo "$1""#, Duration::MAX);
    assert_eq!(finished.attempt.outcome, Outcome::Fit);
    let (finished, _) = run("sleep 100", Duration::ZERO);
    assert_eq!(finished.attempt.outcome, Outcome::Timeout);
}

#[test]
fn the_end_of_the_budget_ends_what_runs_and_is_no_timeout() {
    let mark = new_mark();
    let soon = Instant::now() + SHORT;
    let mut worker = script("trap '' TERM; echo '{\"progress\":\"ready\"}'; while :; do sleep 1000; done")
        .env(MARK, &mark)
        .grace(Duration::from_millis(50))
        .until(Some(soon));
    let (finished, progress) = run_in(&mut worker, &job("cpu"), AMPLE);
    assert_eq!(finished.attempt.outcome, Outcome::Interrupted, "{:?}", finished.attempt);
    assert_reason(&finished, "the end of the budget");
    assert_eq!(progress, ["ready"], "it was at work");
    eventually("the group is gone", || marked(&mark).is_empty());
    // No other is begun.
    let (finished, progress) = run_in(&mut worker, &job("cpu"), AMPLE);
    assert_eq!((finished.attempt.outcome, progress.len()), (Outcome::Interrupted, 0), "{:?}", finished.attempt);
    // A probe's own deadline, where it comes first, stays what it is.
    let mut worker = script("sleep 1000").until(Some(Instant::now() + AMPLE * 10));
    let (finished, _) = run_in(&mut worker, &job("cpu"), SHORT);
    assert_eq!(finished.attempt.outcome, Outcome::Timeout, "{:?}", finished.attempt);
}
