use super::*;
use crate::probe::protocol::training::{self, Summary};

fn evidence(ending: Ending) -> Evidence {
    Evidence {
        ending,
        report: None,
        junk: None,
        records: Vec::new(),
        stderr: String::new(),
        kernel_kills: KernelKills::Unknown,
        wall_seconds: 1.5,
    }
}

fn answered(report: Report) -> Evidence {
    Evidence { report: Some(report), ..evidence(Ending::Answered) }
}

fn record(cap: Option<u64>) -> OomRecord {
    OomRecord { requested: Some(4096), live: Some(100), cap, text: String::new() }
}

fn measured() -> Report {
    Report::Measured(Measurement { peak_bytes: 1 << 30, loss: 0.7, parameter_sum: 3.0, ..Measurement::default() })
}

#[track_caller]
fn check(evidence: &Evidence, outcome: Outcome, words: &str) -> Attempt {
    let attempt = classify(evidence);
    assert_eq!(attempt.outcome, outcome, "{attempt:?}");
    assert!(attempt.reason.contains(words), "{words:?} is not in {:?}", attempt.reason);
    assert!(!attempt.reason.contains('\n') && !attempt.reason.is_empty());
    assert_eq!(attempt.oom.is_some(), outcome == Outcome::Oom);
    assert_eq!(attempt.wall_seconds, 1.5);
    attempt
}

#[test]
fn a_measurement_fits() {
    let attempt = check(&answered(measured()), Outcome::Fit, "peak 1.00 GiB");
    assert_eq!(attempt.measurement.unwrap().loss, 0.7);
    let summary = Summary {
        steps: 1,
        ending: training::Ending::Done,
        train_loss: None,
        scores: None,
        kept_step: 1,
        samples_per_second: None,
        peak_bytes: 0,
    };
    check(&answered(Report::Trained(summary)), Outcome::Fit, "trained");
}

#[test]
fn a_refusal_that_was_survived_does_not_count() {
    let survived = Evidence { records: vec![record(Some(2048))], ..answered(measured()) };
    check(&survived, Outcome::Fit, "peak");
    let survived =
        Evidence { records: vec![record(Some(2048))], ..answered(Report::NonFinite { what: "loss at step 2".into() }) };
    check(&survived, Outcome::Nan, "loss at step 2");
}

#[test]
fn a_measurement_that_is_not_finite_is_nan() {
    let Report::Measured(mut m) = measured() else { unreachable!() };
    m.parameter_sum = f64::NAN;
    assert!(check(&answered(Report::Measured(m)), Outcome::Nan, "NaN").measurement.is_none());
}

#[test]
fn reports_are_taken_at_their_word() {
    check(&answered(Report::Unsupported { what: "bf16 on cpu".into() }), Outcome::Unsupported, "bf16 on cpu");
    let attempt = check(&answered(Report::OutOfMemory(record(Some(2048)))), Outcome::Oom, "the cap of 2.00 KiB");
    assert_eq!(attempt.oom, Some(record(Some(2048))));
    let pinned = OomRecord {
        text: "cuMemAllocHost_v2 failed with error code: CUDA_ERROR_OUT_OF_MEMORY".into(),
        ..OomRecord::default()
    };
    check(&answered(Report::OutOfMemory(pinned)), Outcome::HostOom, "the machine");
}

#[test]
fn a_failure_is_a_crash_unless_it_was_for_want_of_memory() {
    let failed = |error: &str| answered(Report::Failed { error: error.into() });
    check(&failed("no such\nfile"), Outcome::Crash, "no such file");
    let oom = check(&failed("An IO error\nout of device memory allocating 77 bytes\nno trace"), Outcome::Oom, "77 B");
    assert_eq!(oom.oom.unwrap().text, "out of device memory allocating 77 bytes");
    check(&failed("Os: Cannot allocate memory"), Outcome::HostOom, "Cannot allocate memory");
    let capped = Evidence { records: vec![record(None), record(Some(9))], ..failed("something else") };
    check(&capped, Outcome::Oom, "the cap of 9 B");
    let host = Evidence { records: vec![record(Some(9)), record(None)], ..failed("something else") };
    check(&host, Outcome::HostOom, "the machine");
}

#[test]
fn an_abort_after_a_refusal_is_out_of_memory() {
    let aborted = |records: Vec<OomRecord>, stderr: &str| Evidence {
        records,
        stderr: stderr.into(),
        ..evidence(Ending::Killed(libc::SIGABRT))
    };
    check(&aborted(vec![record(Some(2048))], "memory allocation of 4096 bytes failed\n"), Outcome::Oom, "4.00 KiB");
    check(&aborted(vec![record(None)], "memory allocation of 4096 bytes failed\n"), Outcome::HostOom, "4.00 KiB");
    // Without a record the process was not metered: it was the host's memory.
    check(&aborted(vec![], "memory allocation of 4096 bytes failed\n"), Outcome::HostOom, "4.00 KiB");
    check(&aborted(vec![], "assertion failed\n"), Outcome::Crash, "SIGABRT (aborted); it said: assertion failed");
    check(&Evidence { records: vec![record(Some(1))], ..evidence(Ending::Exited(101)) }, Outcome::Oom, "cap");
    check(&Evidence { records: vec![record(Some(1))], ..evidence(Ending::Killed(libc::SIGSEGV)) }, Outcome::Oom, "cap");
}

#[test]
fn sigkill_is_the_machine_and_says_how_sure_that_is() {
    for (kills, words) in [
        (KernelKills::InGroup, "by the kernel: its memory group"),
        (KernelKills::OnMachine, "by the kernel: the machine"),
        (KernelKills::None, "not by the kernel"),
        (KernelKills::Unknown, "probably by the kernel"),
    ] {
        let killed = Evidence { kernel_kills: kills, ..evidence(Ending::Killed(libc::SIGKILL)) };
        check(&killed, Outcome::HostOom, words);
        check(&Evidence { ending: Ending::Exited(137), ..killed }, Outcome::HostOom, "exit status 137, SIGKILL");
    }
}

#[test]
fn other_deaths_are_crashes_by_name() {
    for (signal, name) in
        [(libc::SIGSEGV, "SIGSEGV"), (libc::SIGBUS, "SIGBUS"), (libc::SIGILL, "SIGILL"), (libc::SIGTERM, "SIGTERM")]
    {
        check(&evidence(Ending::Killed(signal)), Outcome::Crash, name);
    }
    check(&evidence(Ending::Killed(64)), Outcome::Crash, "signal 64");
    check(&evidence(Ending::Exited(139)), Outcome::Crash, "exit status 139, SIGSEGV");
    let with_text = Evidence {
        stderr: "autotune: out of device memory allocating 1 bytes, skipped\n".into(),
        ..evidence(Ending::Killed(libc::SIGSEGV))
    };
    check(&with_text, Outcome::Crash, "SIGSEGV");
}

#[test]
fn exits_without_a_report() {
    check(&evidence(Ending::Exited(0)), Outcome::Garbage, "no report");
    let torn = Evidence { junk: Some("{\"report\":{\"meas".into()), ..evidence(Ending::Exited(0)) };
    check(&torn, Outcome::Garbage, "does not parse");
    let banner = Evidence { junk: Some("Welcome to box".into()), ..evidence(Ending::Exited(1)) };
    check(&banner, Outcome::Crash, "Welcome to box");
    let spoken =
        Evidence { stderr: "thread 'main' panicked at a.rs:1:1:\nboom\n".into(), ..evidence(Ending::Exited(101)) };
    check(&spoken, Outcome::Crash, "exit status 101, no report; it said: boom");
    let device =
        Evidence { stderr: "DriverError(CUDA_ERROR_OUT_OF_MEMORY, \"x\")".into(), ..evidence(Ending::Exited(101)) };
    check(&device, Outcome::Oom, "the device");
    check(&evidence(Ending::Exited(255)), Outcome::Crash, "255");
}

#[test]
fn the_rest_is_told_apart() {
    check(&evidence(Ending::Interrupted), Outcome::Interrupted, "stopped");
    check(&Evidence { report: Some(measured()), ..evidence(Ending::Interrupted) }, Outcome::Interrupted, "stopped");
    check(&evidence(Ending::OutOfTime), Outcome::Interrupted, "the end of the budget");
    let limit = Duration::from_millis(2500);
    let late = |hang| evidence(Ending::Deadline { limit, hang });
    check(&late(Hang::Unknown), Outcome::Timeout, "no report after 2.5 s");
    check(&late(Hang::Stopped), Outcome::Timeout, "stopped by a signal");
    check(&late(Hang::JobUnread), Outcome::Timeout, "never read its job");
    let after = Evidence { records: vec![record(Some(1))], ..late(Hang::Unknown) };
    check(&after, Outcome::Timeout, "after memory was refused");
    check(&evidence(Ending::Muted), Outcome::Garbage, "lived on");
    check(&evidence(Ending::Flooded), Outcome::Garbage, "too much");
    check(&evidence(Ending::Vanished), Outcome::Crash, "nobody knows");
    check(&evidence(Ending::NotStarted("No such file".into())), Outcome::Crash, "can't start the worker: No such file");
}
