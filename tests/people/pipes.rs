//! `autofit … | head`: whoever reads may go away, and nobody is bothered with it.

use std::path::Path;
use std::process::{Command, Output, Stdio};

use super::numbers::{PREDICT, PROBE, RUN, place};

/// Runs the program with nobody at the other end of its standard output, or of standard error.
fn unheard(folder: &Path, arguments: &[&str], error_too: bool) -> Output {
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let mut command = Command::new(env!("CARGO_BIN_EXE_autofit"));
    command.current_dir(folder).args(arguments).stdin(Stdio::null()).stderr(Stdio::piped());
    if error_too {
        command.stderr(writer.try_clone().expect("a pipe"));
    }
    command.stdout(writer).spawn().expect("the program starts").wait_with_output().expect("it ends")
}

#[test]
fn a_closed_pipe_is_quiet_for_every_command() {
    let folder = place();
    for arguments in [
        &["--help"][..],
        &["run", "--help"],
        &["estimate", "--vram", "6G"],
        &["estimate", "--vram", "6G", "--model", "tinybert", "--json"],
        &["export", "--config", "study/best.toml", "--to", "hf"],
        &["export", "--config", "study/best.toml", "--to", "deepspeed"],
        &["report", "study", "--svg", "figures"],
        &["init", "project"],
        &["completions", "bash"],
        &["man"],
        &["man", "--dir", "pages"],
        &["devices"],
        PREDICT,
        RUN,
        &[PROBE, &["--out", "other"]].concat(),
        &[PROBE, &["--out", "another", "--json", "--then-run", "--steps", "1", "--overwrite"]].concat(),
    ] {
        let output = unheard(folder.path(), arguments, false);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{arguments:?}: {said}");
        for word in ["error", "panicked", "Broken pipe"] {
            assert!(!said.contains(word), "{arguments:?}: {said}");
        }
        if arguments[0] == "init" {
            std::fs::remove_dir_all(folder.path().join("project")).expect("removed");
        }
        // What was to be told on standard error is lost, and no more than that.
        let output = unheard(folder.path(), arguments, true);
        assert_eq!(output.status.code(), Some(0), "{arguments:?}, standard error closed, too");
    }
    assert!(folder.path().join("another/model/model.safetensors").exists(), "a run goes on unheard");
}

#[test]
fn predictions_that_nobody_reads_are_not_made() {
    let folder = place();
    let rows: String = (0..200_000).map(|i| format!("the film was {i}\n")).collect();
    std::fs::write(folder.path().join("rows.csv"), format!("text\n{rows}")).expect("written");
    let mut command = Command::new(env!("CARGO_BIN_EXE_autofit"));
    command.current_dir(folder.path()).args(PREDICT).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("the program starts");
    let mut first = [0; 10];
    std::io::Read::read_exact(&mut child.stdout.take().expect("a pipe"), &mut first).expect("a header");
    assert_eq!(&first, b"row,label,");
    let output = child.wait_with_output().expect("it ends");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{said}");
    assert!(!said.contains("error") && !said.contains("Predicted 200000 rows"), "{said}");
}

#[test]
fn a_full_disk_is_an_error_and_no_panic() {
    let full = || std::fs::OpenOptions::new().write(true).open("/dev/full").expect("the device that is always full");
    for arguments in [&["estimate", "--vram", "6G"][..], &["completions", "zsh"], &["man"], &["devices"]] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_autofit"));
        let output =
            command.args(arguments).stdout(full()).stderr(Stdio::piped()).output().expect("the program starts");
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {said}");
        assert!(said.contains("can't write to standard output"), "{arguments:?}: {said}");
    }
}
