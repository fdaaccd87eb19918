//! `autofit show`: what happened in a trial, from studies on disk.

use autofit::plan::{Outcome, Precision};
use autofit::study::journal::Journal;
use autofit::study::row::Derived;

use super::support::{identity, refused, said, study, trial};

#[test]
fn a_trial_is_told_with_its_reason_and_the_command_that_repeats_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let trials = vec![
        trial(Precision::Fp32, 8, 0, Outcome::Fit, 900),
        trial(Precision::Bf16, 16, 3, Outcome::Oom, 2_000),
        trial(Precision::Fp32, 8, 0, Outcome::Fit, 901),
        trial(Precision::Bf16, 4, 0, Outcome::Pruned, 0),
    ];
    study(folder.path(), 1 << 30, trials);
    let at = folder.path().to_str().expect("UTF-8");
    let list = said(&["show", at]);
    assert_eq!(
        list.lines().count(),
        1 + 4 + 2,
        "a line for each, and a second where the reason is all there is: {list}"
    );
    assert!(
        list.contains("   1  fit          fp32 · micro-batch 8 × 4 · keep all layers · 900 MiB at the peak"),
        "{list}"
    );
    assert!(!list.contains('\u{7}'), "what steers a terminal is written out: {list}");
    let fit = said(&["show", at, "3"]);
    for words in [
        "Trial 3 of 4: fp32 · micro-batch 8 × 4 · keep all layers\n",
        "  outcome  fit\n",
        "  purpose  explore: it promised the greatest gain for its cost\n",
        "  memory   901 MiB of 1.00 GiB at the peak; weights 100 MiB · gradients 100 MiB · optimizer 200 MiB\n",
        "  speed    3.00 samples/s",
        "  took     3.5 s, ended 2023-11-14T22:13:20Z\n",
        "  also     trials of the same configuration: 1 (fit)\n",
        "  alone    the command that began the study, with --fresh-workers --space '{ precision = [\"fp32\"], micro_batch = [8], \
         checkpoint_layers = [0],",
    ] {
        assert!(fit.contains(words), "{words}: {fit}");
    }
    let oom = said(&["show", "--config", at, "2"]);
    assert!(oom.contains("  refused  1000 MiB more, with 1000 MiB in use\n"), "{oom}");
    assert!(!said(&["show", at, "4"]).contains("alone"), "nobody ran it");
    let best = folder.path().join("best.toml");
    std::fs::write(&best, super::support::BEST).expect("written");
    assert_eq!(said(&["show", best.to_str().expect("UTF-8"), "2"]), oom);

    assert!(refused(&["show", at, "5"], 1).contains("no trial 5: its trials are 1 to 4"));
    assert!(refused(&["show", at, "x"], 1).contains("'x' is no number of a trial"));
    assert!(refused(&["show", at, "1", "--config", at], 1).contains("one study and one trial"));
    refused(&["show"], 2);
}

#[test]
fn the_last_words_of_a_failed_worker_are_shown_and_cannot_steer_a_terminal() {
    let folder = tempfile::tempdir().expect("a folder");
    {
        let mut journal = Journal::open(folder.path(), &identity(1 << 30), true).expect("a journal");
        let mut failed = trial(Precision::Fp32, 8, 0, Outcome::Crash, 0);
        failed.number = 1;
        journal.append(failed, &Derived::default()).expect("appended");
        let words: String = (1..=30).map(|line| format!("line {line}\u{1b}[2J\n")).collect();
        journal.keep_words(&words).expect("kept");
    }
    let at = folder.path().to_str().expect("UTF-8");
    let told = said(&["show", at, "1"]);
    assert!(told.contains("The last words of its worker (") && told.contains("stderr/1.txt):\n"), "{told}");
    assert!(
        told.contains("    line 30\\u{1b}[2J\n") && told.contains("    line 11") && !told.contains("    line 10"),
        "{told}"
    );
}
