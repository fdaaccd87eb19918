//! What other programs read: `--json` is JSON and nothing else, whatever comes of the search; and `--then-run`, which
//! finds out before the search what would end the run after it.

use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

use super::numbers::{PROBE, place};

fn autofit(folder: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_autofit"));
    command.current_dir(folder).args(arguments).stdin(Stdio::null()).output().expect("the program starts")
}

fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
}

fn talk(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn json_alone_is_on_standard_output() {
    let folder = place();
    let found = autofit(folder.path(), &[PROBE, &["--out", "study", "--json"]].concat());
    assert_eq!(json(&found)["config"]["micro_batch"], 4, "{}", talk(&found));
    let small: Vec<&str> = PROBE.iter().map(|word| if *word == "64M" { "150K" } else { word }).collect();
    let none = autofit(folder.path(), &[&small[..], &["--out", "none", "--json"]].concat());
    assert_eq!(none.status.code(), Some(3), "{}", talk(&none));
    let missing = &json(&none)["nothing_fits"];
    assert_eq!(missing["cap_bytes"], 150 << 10);
    assert!(missing["needed_bytes"].as_u64() > Some(150 << 10) && missing["cures"].is_array(), "{missing}");
    assert!(talk(&none).contains("Nothing fits into 150 KiB"), "{}", talk(&none));
    let estimate = autofit(folder.path(), &["estimate", "--vram", "200K", "--model", "bert", "--json"]);
    assert_eq!(estimate.status.code(), Some(3));
    assert!(json(&estimate).is_array());
    let run = autofit(folder.path(), &[PROBE, &["--out", "study", "--json", "--then-run", "--steps", "2"]].concat());
    assert_eq!(json(&run)["config"]["micro_batch"], 4, "{}", talk(&run));
    assert!(talk(&run).contains("Trained 2 steps"), "{}", talk(&run));
    assert!(folder.path().join("study/model/model.safetensors").exists());
}

#[test]
fn a_quiet_search_is_followed_by_a_quiet_run() {
    let folder = place();
    let output =
        autofit(folder.path(), &[PROBE, &["--out", "study", "--quiet", "--then-run", "--steps", "2"]].concat());
    assert_eq!((output.status.code(), talk(&output).as_str()), (Some(0), ""));
    assert!(String::from_utf8_lossy(&output.stdout).contains("Trained 2 steps"));
}

#[test]
fn what_would_end_the_run_is_said_before_the_search() {
    let folder = place();
    std::fs::create_dir(folder.path().join("full")).expect("a folder");
    std::fs::write(folder.path().join("full/mine"), "mine").expect("written");
    std::fs::write(folder.path().join("other.csv"), "text,label\nthe film,maybe\n").expect("written");
    let preset = ["probe", "--model", "tinybert", "--vram", "1G", "--out", "new", "--then-run"];
    let base = [PROBE, &["--out", "new", "--then-run"]].concat();
    for (arguments, words) in [
        ([&base[..], &["--output", "full"]].concat(), "full is not empty"),
        ([&base[..], &["--eval-data", "gone.csv"]].concat(), "gone.csv"),
        ([&base[..], &["--eval-data", "other.csv"]].concat(), "maybe"),
        (preset.to_vec(), "no tokenizer"),
    ] {
        let output = autofit(folder.path(), &arguments);
        let said = talk(&output);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {said}");
        assert!(said.contains("--then-run") && said.contains(words), "{arguments:?}: {said}");
        let trials = std::fs::read_to_string(folder.path().join("new/trials.csv")).expect("a journal");
        assert_eq!(trials.lines().count(), 1, "{arguments:?}: a probe was run");
        std::fs::remove_dir_all(folder.path().join("new")).expect("removed");
    }
}

#[test]
fn a_value_may_begin_with_an_at_sign() {
    let folder = place();
    let rows = std::fs::read_to_string(folder.path().join("rows.csv")).expect("rows");
    std::fs::write(folder.path().join("rows.csv"), rows.replacen("text", "@text", 1)).expect("written");
    let predict = ["predict", "--model", "bert", "--data", "rows.csv", "--text-column"];
    for value in [&["@@text"][..], &["=@text"]] {
        let mut arguments = predict.to_vec();
        let joined = format!("--text-column{}", value[0]);
        match value[0].starts_with('=') {
            true => *arguments.last_mut().expect("an option") = &joined,
            false => arguments.extend(value),
        }
        let output = autofit(folder.path(), &arguments);
        assert_eq!(output.status.code(), Some(0), "{}", talk(&output));
    }
    let file = autofit(folder.path(), &[&predict[..], &["@text"]].concat());
    assert!(talk(&file).contains("a value that begins with @ is written @@text"), "{}", talk(&file));
}
