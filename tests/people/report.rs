//! `autofit report` on finished, unfinished and hopeless studies.

use std::path::Path;

use autofit::plan::{Outcome, Precision};
use autofit::study::trial::Trial;

use super::support::{BEST, autofit, refused, said, study, trial};
use super::xml;

/// One trial of every outcome, the fifth of which is the answer of [`BEST`].
fn every_outcome() -> Vec<Trial> {
    let mut trials = vec![
        trial(Precision::Fp32, 1, 0, Outcome::Fit, 600),
        trial(Precision::Fp32, 4, 0, Outcome::Oom, 980),
        trial(Precision::Bf16, 11, 3, Outcome::Oom, 1_000),
        trial(Precision::Fp32, 2, 6, Outcome::Fit, 500),
        trial(Precision::Bf16, 8, 3, Outcome::Fit, 858),
    ];
    trials
        .extend(Outcome::ALL.into_iter().filter(|o| *o != Outcome::Fit).map(|o| trial(Precision::Fp16, 16, 1, o, 990)));
    trials
}

/// The page of a study; checks what must hold for every page.
fn page(folder: &Path) -> String {
    said(&["report", folder.to_str().expect("UTF-8")]);
    let page = std::fs::read_to_string(folder.join("report.html")).expect("a page");
    for part in page.split("<svg").skip(1) {
        let svg = format!("<svg{}", part.split("</svg>").next().expect("an end")) + "</svg>";
        let names = xml::elements(&svg).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(names[1..3], ["title".to_string(), "desc".into()], "a screen reader has something to read");
    }
    for forbidden in ["http", "<script", "<link", "@import", "url(", "src="] {
        assert!(!page.contains(forbidden), "{forbidden}");
    }
    let ids: Vec<&str> = page.split(" id=\"").skip(1).filter_map(|part| part.split('"').next()).collect();
    let mut unique = ids.clone();
    unique.sort_unstable();
    unique.dedup();
    assert_eq!(ids.len(), unique.len(), "ids are unique: {ids:?}");
    assert!(page.contains("name=\"viewport\"") && page.contains("prefers-color-scheme:dark"));
    page
}

/// Trial numbers in the order of the table.
fn listed(page: &str) -> Vec<usize> {
    let number = |part: &str| part.split('"').next().and_then(|n| n.parse().ok()).expect("a number");
    page.split("data-trial=\"").skip(1).map(number).collect()
}

#[test]
fn a_finished_study_shows_every_trial_with_the_answer_first() {
    let folder = tempfile::tempdir().expect("a folder");
    study(folder.path(), 1_000_000_000, every_outcome());
    std::fs::write(folder.path().join("best.toml"), BEST).expect("written");
    let page = page(folder.path());
    let order = listed(&page);
    assert_eq!(order[..3], [5, 4, 1], "the answer, then by speed");
    let mut sorted = order.clone();
    sorted.sort_unstable();
    assert_eq!(sorted, (1..=14).collect::<Vec<_>>());
    for text in [
        "bf16 · micro-batch 8 × 4 · recompute 3 of 6 layers",
        "+400 % over the plain choice (fp32 · micro-batch 1 × 32",
        "cap 954 MiB",
        "autofit run --config",
        "refused &lt;9&gt; MiB",
        "&lt;b&gt;&amp;",
        "machine short of memory",
        "3 measured configurations, 2 of them on the Pareto front",
        ">0/6</text>",
        ">3/6</text>",
    ] {
        assert!(page.contains(text), "{text}");
    }
    assert_eq!(page.matches("<svg").count(), 8, "four plots for wide screens, four for narrow ones");
}

#[test]
fn plots_are_written_as_files_of_their_own() {
    let folder = tempfile::tempdir().expect("a folder");
    study(folder.path(), 1_000_000_000, every_outcome());
    std::fs::write(folder.path().join("best.toml"), BEST).expect("written");
    let figures = folder.path().join("figures");
    let (study, out) = (folder.path().to_str().expect("UTF-8"), figures.to_str().expect("UTF-8"));
    let page = figures.join("page.html");
    std::fs::create_dir(&figures).expect("created");
    let text = said(&["report", study, "--svg", out, "--output", page.to_str().expect("UTF-8")]);
    assert_eq!(text.lines().count(), 5, "{text}");
    assert!(page.exists() && !folder.path().join("report.html").exists());
    for name in ["memory", "speed", "breakdown", "timeline"] {
        let svg = std::fs::read_to_string(figures.join(format!("{name}.svg"))).expect("a plot");
        xml::elements(&svg).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert!(svg.starts_with("<svg xmlns=\"http://www.w3.org/2000/svg\"") && svg.contains("<style>"));
        assert_eq!(svg.matches("http").count(), 1, "{name}");
    }
}

#[test]
fn a_study_in_which_nothing_fits_says_so() {
    let folder = tempfile::tempdir().expect("a folder");
    let trials = vec![trial(Precision::Fp32, 1, 6, Outcome::Oom, 200), trial(Precision::Bf16, 1, 6, Outcome::Oom, 190)];
    study(folder.path(), 100 << 20, trials);
    let page = page(folder.path());
    assert!(page.contains("Nothing fits into 100 MiB.") && page.contains("needs more than 190 MiB"), "{page}");
    assert!(page.contains("autofit estimate --vram 100M") && listed(&page) == [1, 2]);
    assert!(!page.contains("autofit run"));
}

#[test]
fn unfinished_and_empty_studies_have_a_page_too() {
    let folder = tempfile::tempdir().expect("a folder");
    study(folder.path(), 1 << 30, every_outcome());
    let unfinished = page(folder.path());
    assert!(unfinished.contains("No answer yet") && unfinished.contains("trial 5"), "the best so far");
    assert!(unfinished.contains("goes on where it stopped"));
    study(folder.path(), 1 << 30, vec![]);
    let empty = page(folder.path());
    assert!(empty.contains("Nothing was measured") && listed(&empty).is_empty());
    study(folder.path(), 1 << 30, vec![trial(Precision::Fp32, 1, 0, Outcome::Crash, 1)]);
    assert!(page(folder.path()).contains("The last probe ended so: &lt;script&gt;"));
}

#[test]
fn what_is_no_study_is_refused_with_a_hint() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().to_str().expect("UTF-8");
    assert!(refused(&["report", path], 1).contains("no study has run"));
    assert!(refused(&["report", "/nowhere/at/all"], 1).contains("give the folder"));
    study(folder.path(), 1 << 30, every_outcome());
    std::fs::write(folder.path().join("best.toml"), "config = 1").expect("written");
    assert!(refused(&["report", path], 1).contains("best.toml"));
    assert!(!autofit(&["report"]).status.success());
}
