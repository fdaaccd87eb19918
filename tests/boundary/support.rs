//! Jobs, script workers, and what is left of them in `/proc`.

use std::fs;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use autofit::plan::{Knobs, Precision};
use autofit::probe::protocol::{
    Effort, Job, Measurement, Message, ModelSource, PROTOCOL, ProbeSpec, Report, Shapes, Task,
};
use autofit::probe::{Executor, Finished, LocalProcess};

/// Ample for anything that ends by itself: a test that waits so long has failed.
pub const AMPLE: Duration = Duration::from_secs(60);

/// Environment variable that marks a test's processes, and is inherited by whatever they start.
pub const MARK: &str = "AUTOFIT_TEST_MARK";

/// A probe job; `device` is free for the fake workers' use.
pub fn job(device: &str) -> Job {
    job_at(device, Precision::Fp32)
}

pub fn job_at(device: &str, precision: Precision) -> Job {
    let spec = ProbeSpec {
        model: ModelSource::Preset("none".into()),
        num_labels: 2,
        knobs: Knobs::new(precision, 1, 0),
        effective_batch: 1,
        shapes: Shapes { longest: 8, typical: Vec::new(), distinct: None, rows: Vec::new() },
        effort: Effort { warmup: 0, min_timed: 1, max_timed: 1, seconds: 1.0, evaluate: false },
        seed: 1,
    };
    Job { protocol: PROTOCOL, device: device.into(), cap_bytes: None, task: Task::Probe(spec) }
}

pub fn measured() -> Report {
    Report::Measured(Measurement { peak_bytes: 4 << 20, loss: 0.5, parameter_sum: 1.0, ..Measurement::default() })
}

/// A report as its line, without the line end.
pub fn line(report: &Report) -> String {
    serde_json::to_string(&Message::Report(report.clone())).unwrap()
}

/// A worker that is a script; `$1` is the line of a good report.
pub fn script(text: &str) -> LocalProcess {
    LocalProcess::new("/bin/sh", ["-c", text, "worker", &line(&measured())])
}

/// Runs one job in a script; progress texts are returned too.
pub fn run(text: &str, deadline: Duration) -> (Finished, Vec<String>) {
    run_in(&mut script(text), &job("cpu"), deadline)
}

pub fn run_in(executor: &mut LocalProcess, job: &Job, deadline: Duration) -> (Finished, Vec<String>) {
    let mut progress = Vec::new();
    let finished = executor.run(job, deadline, &mut |message| {
        if let Message::Progress(text) = message {
            progress.push(text.clone());
        }
    });
    (finished, progress)
}

/// A mark that no other test has.
pub fn new_mark() -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    format!("{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::SeqCst))
}

/// Living processes that carry the mark. Zombies have no environment any more.
pub fn marked(mark: &str) -> Vec<u32> {
    let wanted = format!("{MARK}={mark}");
    let carries = |pid: &u32| {
        fs::read(format!("/proc/{pid}/environ"))
            .is_ok_and(|bytes| bytes.split(|&b| b == 0).any(|v| v == wanted.as_bytes()))
    };
    processes().into_iter().filter(carries).collect()
}

/// Our own children that ended and were not reaped.
pub fn zombies() -> Vec<u32> {
    let mine = std::process::id().to_string();
    let zombie = |pid: &u32| {
        let Ok(stat) = fs::read_to_string(format!("/proc/{pid}/stat")) else { return false };
        // After the name, which may hold anything, in parentheses: state, parent.
        let mut fields = stat.rsplit(") ").next().unwrap_or_default().split(' ');
        fields.next() == Some("Z") && fields.next() == Some(&mine)
    };
    processes().into_iter().filter(zombie).collect()
}

fn processes() -> Vec<u32> {
    let entries = fs::read_dir("/proc").unwrap();
    entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect()
}

/// Waits until `done`, and fails if it never is.
#[track_caller]
pub fn eventually(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < AMPLE, "never happened: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[track_caller]
pub fn assert_reason(finished: &Finished, words: &str) {
    assert!(finished.attempt.reason.contains(words), "{words:?} is not in {:?}", finished.attempt);
}
