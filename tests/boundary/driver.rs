//! What becomes of workers when it is the driver that ends.

use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command};
use std::time::Duration;

use autofit::plan::Outcome;
use autofit::probe::LocalProcess;

use crate::roles::{ROLE, command};
use crate::support::*;

/// A worker with descendants that mind no SIGTERM, none of which ends by itself.
const FAMILY: &str = r#"trap '' TERM; sleep 1000 & (sleep 1000 & sleep 1000) & read -r job; echo '{"progress":"ready"}'; while :; do sleep 1000; done"#;

fn driver(mark: &str, script: &str) -> Command {
    let mut command = command("driver");
    command.env(MARK, mark).env("AUTOFIT_TEST_SCRIPT", script);
    command
}

/// Waits until the driver says that its worker is at work.
fn wait_until_ready(child: &mut Child) {
    let mut said = BufReader::new(child.stderr.take().unwrap()).lines();
    assert!(said.any(|line| line.unwrap().contains("ready")), "the worker never said that it was ready");
    // Keep reading, or the driver would die of its own last words.
    std::thread::spawn(move || said.for_each(drop));
}

fn signal(child: &Child, signal: i32) {
    unsafe { libc::kill(child.id() as i32, signal) };
}

#[test]
fn killed_at_work_it_leaves_nobody() {
    for _ in 0..3 {
        let mark = new_mark();
        let mut child = driver(&mark, FAMILY).spawn().unwrap();
        wait_until_ready(&mut child);
        assert!(marked(&mark).len() >= 5, "driver, guard, worker and its family: {:?}", marked(&mark));
        child.kill().unwrap();
        child.wait().unwrap();
        eventually("everybody is gone", || marked(&mark).is_empty());
    }
}

#[test]
fn killed_at_any_moment_it_leaves_nobody() {
    // From before the worker is started to after it is at work, however fast this machine is today.
    for step in 0..25u64 {
        let mark = new_mark();
        let mut child = driver(&mark, FAMILY).spawn().unwrap();
        std::thread::sleep(Duration::from_micros(step * step * 200));
        child.kill().unwrap();
        child.wait().unwrap();
        eventually("everybody is gone", || marked(&mark).is_empty());
    }
}

#[test]
fn the_first_signal_asks_and_the_second_insists() {
    for (number, code) in [(libc::SIGINT, 130), (libc::SIGTERM, 143), (libc::SIGHUP, 129)] {
        let mark = new_mark();
        let mut child = driver(&mark, FAMILY).spawn().unwrap();
        wait_until_ready(&mut child);
        signal(&child, number);
        assert_eq!(child.wait().unwrap().code(), Some(42), "it did not report an interruption");
        eventually("everybody is gone", || marked(&mark).is_empty());

        let mut child = driver(&mark, FAMILY).env("AUTOFIT_TEST_GRACE", "long").spawn().unwrap();
        wait_until_ready(&mut child);
        signal(&child, number);
        std::thread::sleep(Duration::from_millis(200));
        assert!(child.try_wait().unwrap().is_none(), "the first signal must wait for the worker");
        signal(&child, number);
        assert_eq!(child.wait().unwrap().code(), Some(code));
        eventually("everybody is gone", || marked(&mark).is_empty());
    }
}

#[test]
fn an_ignored_signal_stays_ignored() {
    let mark = new_mark();
    let mut inner = driver(&mark, FAMILY);
    let mut nohup = Command::new("/bin/sh");
    nohup.args(["-c", r#"trap '' HUP; exec "$@""#, "nohup"]).arg(inner.get_program()).args(inner.get_args());
    nohup.envs(inner.get_envs().filter_map(|(name, value)| Some((name, value?))));
    nohup.stderr(std::process::Stdio::piped()).stdout(std::process::Stdio::null());
    inner.stdin(std::process::Stdio::null());
    let mut child = nohup.spawn().unwrap();
    wait_until_ready(&mut child);
    signal(&child, libc::SIGHUP);
    std::thread::sleep(Duration::from_millis(200));
    assert!(child.try_wait().unwrap().is_none());
    child.kill().unwrap();
    assert_eq!(child.wait().unwrap().signal(), Some(libc::SIGKILL));
    eventually("everybody is gone", || marked(&mark).is_empty());
}

#[test]
fn fifty_probes_leave_no_descriptor_no_zombie_and_no_process() {
    // In a process of its own: other tests open and close descriptors all the time.
    let mark = new_mark();
    let output = command("counter").env(MARK, &mark).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(marked(&mark).is_empty());
}

/// The role `counter`.
pub fn count_what_is_left() {
    assert!(std::env::var_os(ROLE).is_some());
    let count = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let short = Duration::from_millis(20);
    let round = || {
        for (text, deadline, outcome) in [
            (r#"echo "$1""#, AMPLE, Outcome::Fit),
            ("exit 1", AMPLE, Outcome::Crash),
            ("sleep 100 & kill -KILL $$", AMPLE, Outcome::HostOom),
            ("sleep 100", short, Outcome::Timeout),
        ] {
            let (finished, _) = run(text, deadline);
            assert_eq!(finished.attempt.outcome, outcome, "{:?}", finished.attempt);
        }
        let (finished, _) = run_in(&mut LocalProcess::new("/nowhere", ["x"]), &job("cpu"), AMPLE);
        assert_eq!(finished.attempt.outcome, Outcome::Crash);
    };
    round();
    let before = count();
    (0..10).for_each(|_| round());
    assert_eq!(count(), before, "descriptors were left open");
    assert_eq!(zombies(), [] as [u32; 0]);
    let mine = std::process::id();
    let others: Vec<u32> = marked(&std::env::var(MARK).unwrap()).into_iter().filter(|&pid| pid != mine).collect();
    assert!(others.is_empty(), "left behind: {others:?}");
}
