//! Completions, manual pages, project files and option files.

use autofit::study::search_space::SearchSpace;

use super::support::{refused, said};

/// Every command that a person may call.
const COMMANDS: [&str; 11] =
    ["probe", "run", "predict", "estimate", "show", "report", "export", "init", "completions", "man", "devices"];

#[test]
fn completions_know_every_command_and_not_the_worker() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let text = said(&["completions", shell]);
        assert!(COMMANDS.iter().all(|command| text.contains(command)), "{shell}");
        assert!(text.contains("effective-batch"), "{shell}");
    }
    assert!(refused(&["completions", "bsh"], 2).contains("bash"));
}

#[test]
fn manual_pages_for_every_command() {
    let main = said(&["man"]);
    assert!(main.contains(".TH autofit") && main.contains("Exit codes: 0 answered"), "{main}");
    let folder = tempfile::tempdir().expect("a folder");
    said(&["man", "--dir", folder.path().to_str().expect("UTF-8")]);
    for command in COMMANDS {
        let page = std::fs::read_to_string(folder.path().join(format!("autofit-{command}.1"))).expect("a page");
        assert!(page.contains(".SH NAME"), "{command}");
    }
    let pages = std::fs::read_dir(folder.path()).expect("a folder").count();
    assert_eq!(pages, COMMANDS.len() + 1, "the hidden worker has no page");
}

#[test]
fn a_new_project_is_ready_to_be_edited_and_never_overwritten() {
    let folder = tempfile::tempdir().expect("a folder");
    let project = folder.path().join("project");
    let path = project.to_str().expect("UTF-8");
    let text = said(&["init", path]);
    assert!(text.contains("autofit probe @probe.args"), "{text}");
    let space = project.join("space.toml");
    let read = SearchSpace::load(space.to_str().expect("UTF-8")).expect("a valid space");
    let default = SearchSpace::load("default").expect("the default");
    assert_eq!(read.to_toml(), default.to_toml(), "as it is written, it is the default space");
    let edited = std::fs::read_to_string(&space).expect("text").replace("# frozen_layers", "frozen_layers");
    let edited = edited.replace("# lora_rank", "lora_rank");
    SearchSpace::parse("edited", &edited).expect("the commented axes are valid too");

    std::fs::write(&space, "mine").expect("written");
    std::fs::remove_file(project.join("probe.args")).expect("removed");
    assert!(refused(&["init", path], 1).contains("writes over nothing"));
    assert_eq!(std::fs::read_to_string(&space).expect("text"), "mine");
    assert!(!project.join("probe.args").exists(), "neither is written");
}

#[test]
fn options_may_come_from_a_file() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("my options.args");
    std::fs::write(&file, "# how much\n--vram 6G\n--model tinybert\n").expect("written");
    let argument = format!("@{}", file.display());
    assert_eq!(
        said(&["estimate", &argument, "--max-length", "64"]),
        said(&["estimate", "--vram", "6G", "--model", "tinybert", "--max-length", "64"])
    );
    assert!(refused(&["estimate", "@/nowhere.args"], 1).contains("/nowhere.args"));
    let project = folder.path().join("project");
    said(&["init", project.to_str().expect("UTF-8")]);
    let options = format!("@{}", project.join("probe.args").display());
    let error = refused(&["probe", &options, "--max-length", "0", "--effective-batch", "0"], 2);
    assert!(error.contains("cannot be used multiple times"), "every option of the file is known to probe: {error}");
}

#[test]
fn a_mistyped_command_or_option_is_suggested() {
    assert!(refused(&["prob"], 2).contains("'probe'"));
    assert!(refused(&["estimate", "--vrm", "6G"], 2).contains("--vram"));
}
