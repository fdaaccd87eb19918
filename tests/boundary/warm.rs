//! Workers that are kept while everything fits, and let go at the first doubt.

use std::time::{Duration, Instant};

use autofit::plan::{Outcome, Precision};
use autofit::probe::protocol::Job;
use autofit::probe::{Executor, LocalProcess, Workers};

use crate::support::*;

/// Says its process id and the number of the job as progress; what else it does, the device says.
const LOOP: &str = r#"n=0
while read -r job; do
  n=$((n+1)); echo "{\"progress\":\"$$ $n\"}"
  case "$job" in
    *'"device":"crash"'*) exit 5;;
    *'"device":"second crashes"'*) [ $n -gt 1 ] && exit 5;;
    *'"device":"nan"'*) echo '{"report":{"non_finite":{"what":"loss"}}}'; continue;;
    *'"device":"refused"'*) echo 'autofit-oom requested=9 live=9 cap=9' >/proc/self/fd/$AUTOFIT_OOM_FD;;
    *'"device":"talks on"'*) echo "$1"; echo stray; continue;;
    *'"device":"stray first"'*) echo stray;;
    *'"device":"leaves"'*) echo "$1"; exit 0;;
  esac
  echo "$1"
done
echo left >&2"#;

fn warm(max_jobs: usize) -> LocalProcess {
    script(LOOP).workers(Workers::Warm { max_jobs })
}

/// Runs a job that must end so, and returns process and number of each worker that was asked.
#[track_caller]
fn ask(worker: &mut LocalProcess, job: &Job, outcome: Outcome) -> Vec<(u32, u32)> {
    let (finished, progress) = run_in(worker, job, AMPLE);
    assert_eq!(finished.attempt.outcome, outcome, "{:?}", finished.attempt);
    let pair = |text: &String| {
        let (process, number) = text.split_once(' ').unwrap();
        (process.parse().unwrap(), number.parse().unwrap())
    };
    progress.iter().map(pair).collect()
}

#[test]
fn a_worker_is_kept_up_to_its_number_of_jobs() {
    let mut worker = warm(3);
    let asked: Vec<(u32, u32)> = (0..5).flat_map(|_| ask(&mut worker, &job("cpu"), Outcome::Fit)).collect();
    let numbers: Vec<u32> = asked.iter().map(|&(_, number)| number).collect();
    assert_eq!(numbers, [1, 2, 3, 1, 2]);
    assert!(asked[0].0 == asked[2].0 && asked[2].0 != asked[3].0 && asked[3].0 == asked[4].0);
}

#[test]
fn a_fresh_worker_is_never_kept() {
    let mut worker = script(LOOP);
    let first = ask(&mut worker, &job("cpu"), Outcome::Fit);
    assert_eq!(first[0].1, 1);
    assert_eq!(ask(&mut worker, &job("cpu"), Outcome::Fit)[0].1, 1);
}

#[test]
fn without_time_to_ask_again_what_a_kept_worker_says_is_no_answer() {
    let soon = Instant::now() + Duration::from_secs(2);
    let mut worker = warm(9).until(Some(soon));
    ask(&mut worker, &job("second crashes"), Outcome::Fit);
    // It dies at once, but the budget is over by the time that this is seen.
    let finished = worker.run(&job("second crashes"), AMPLE, &mut |_| {
        std::thread::sleep((soon + Duration::from_millis(20)).saturating_duration_since(Instant::now()));
    });
    assert_eq!(finished.attempt.outcome, Outcome::Interrupted, "{:?}", finished.attempt);
}

#[test]
fn anything_but_a_plain_fit_is_the_end_of_it() {
    for (device, outcome) in [
        ("crash", Outcome::Crash),
        ("nan", Outcome::Nan),
        ("refused", Outcome::Fit),
        ("stray first", Outcome::Fit),
        ("leaves", Outcome::Fit),
    ] {
        let mut worker = warm(9);
        let first = ask(&mut worker, &job(device), outcome);
        let second = ask(&mut worker, &job(device), outcome);
        assert!(first[0].0 != second[0].0 && second[0].1 == 1, "{device} was kept: {first:?} {second:?}");
    }
}

#[test]
fn one_that_talks_after_its_report_is_let_go() {
    // At once, or, if the next job was quicker than its words, after that job.
    let mut worker = warm(9);
    let asked: Vec<(u32, u32)> = (0..3).flat_map(|_| ask(&mut worker, &job("talks on"), Outcome::Fit)).collect();
    assert_ne!(asked[0].0, asked[2].0, "{asked:?}");
}

#[test]
fn another_precision_or_device_is_another_worker() {
    let mut worker = warm(9);
    let number = |worker: &mut LocalProcess, job: Job| ask(worker, &job, Outcome::Fit)[0].1;
    assert_eq!(number(&mut worker, job("a")), 1);
    assert_eq!(number(&mut worker, job("a")), 2);
    assert_eq!(number(&mut worker, job_at("a", Precision::Bf16)), 1);
    assert_eq!(number(&mut worker, job("a")), 1);
    assert_eq!(number(&mut worker, job("b")), 1);
    assert_eq!(number(&mut worker, Job { cap_bytes: Some(7), ..job("b") }), 2);
}

#[test]
fn bad_news_from_a_reused_worker_is_asked_of_a_fresh_one() {
    let mut worker = warm(9);
    let first = ask(&mut worker, &job("second crashes"), Outcome::Fit);
    let both = ask(&mut worker, &job("second crashes"), Outcome::Fit);
    assert_eq!(both.len(), 2, "{both:?}");
    assert_eq!(both[0], (first[0].0, 2));
    assert!(both[1].0 != first[0].0 && both[1].1 == 1);
    // And the fresh one is kept in turn.
    assert_eq!(ask(&mut worker, &job("second crashes"), Outcome::Fit)[0], (both[1].0, 2));
}

#[test]
fn one_that_died_while_waiting_is_replaced() {
    let mut worker = warm(9);
    let first = ask(&mut worker, &job("cpu"), Outcome::Fit);
    unsafe { libc::kill(first[0].0 as i32, libc::SIGKILL) };
    let second = ask(&mut worker, &job("cpu"), Outcome::Fit);
    let last = second.last().unwrap();
    assert!(last.0 != first[0].0 && last.1 == 1);
}

#[test]
fn a_worker_is_not_shared_with_another_thread() {
    // It would die with the thread that started it, in the middle of the other's job.
    let (mut worker, first) = std::thread::spawn(|| {
        let mut worker = warm(9);
        let first = ask(&mut worker, &job("cpu"), Outcome::Fit);
        (worker, first)
    })
    .join()
    .unwrap();
    let second = ask(&mut worker, &job("cpu"), Outcome::Fit);
    assert!(second.len() == 1 && second[0].0 != first[0].0);
}

#[test]
fn a_waiting_worker_leaves_when_the_executor_does() {
    let mark = new_mark();
    let mut worker = warm(9).env(MARK, &mark);
    ask(&mut worker, &job("cpu"), Outcome::Fit);
    assert!(!marked(&mark).is_empty());
    drop(worker);
    eventually("the group is gone", || marked(&mark).is_empty());
}
