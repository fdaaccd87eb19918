//! The map in CONTRIBUTING.md is true: every room is on it, and arrows run one way.

use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// Rust files in a room, with its front door.
fn files(room: &str) -> Vec<PathBuf> {
    fn walk(folder: &Path, found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path()) {
            if entry.is_dir() {
                walk(&entry, found);
            } else if entry.extension().is_some_and(|extension| extension == "rs") {
                found.push(entry);
            }
        }
    }
    let mut found = Vec::new();
    walk(&root().join("src").join(room), &mut found);
    assert!(!found.is_empty(), "{room}");
    found
}

/// Lines of code, not of comment, in a room that name something.
fn naming(room: &str, what: &str) -> Vec<String> {
    let mut lines = Vec::new();
    for file in files(room) {
        let text = fs::read_to_string(&file).expect("text");
        let code = text.lines().filter(|line| !line.trim_start().starts_with("//") && line.contains(what));
        lines.extend(code.map(|line| format!("{}: {line}", file.display())));
    }
    lines
}

#[test]
fn arrows_run_one_way() {
    let mut wrong = Vec::new();
    for room in ["plan", "study", "probe", "report"] {
        for below in ["burn::", "crate::model", "crate::data", "crate::device", "crate::train", "crate::worker"] {
            wrong.extend(naming(room, below));
        }
    }
    for room in ["model", "data", "device", "train", "worker"] {
        for other in ["crate::study", "crate::report", "crate::cli", "crate::library"] {
            wrong.extend(naming(room, other));
        }
    }
    for room in ["plan", "study", "probe"] {
        wrong.extend(naming(room, "crate::report"));
        wrong.extend(naming(room, "crate::cli"));
        wrong.extend(naming(room, "crate::library"));
    }
    wrong.extend(naming("library", "crate::cli"));
    wrong.extend(naming("cli", "crate::library"));
    for other in ["crate::study", "crate::probe", "crate::model"] {
        wrong.extend(naming("plan", other));
    }
    for line in naming("kernels", "crate::").into_iter().chain(naming("kernels", "burn::")) {
        let inside = line.contains("crate::kernels") || line.contains("kernels/bridge.rs");
        wrong.extend((!inside).then_some(line));
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn every_room_is_on_the_map() {
    let map = fs::read_to_string(root().join("CONTRIBUTING.md")).expect("the map");
    for entry in fs::read_dir(root().join("src")).expect("the house") {
        let path = entry.expect("a room").path();
        if path.is_dir() {
            let room = path.file_name().expect("a name").to_string_lossy().into_owned();
            assert!(map.contains(&format!("| `src/{room}` |")), "{room} is not on the map");
        }
    }
}

/// The first block of Rust in the text; comments of a module's documentation are text.
fn rust(text: &str) -> String {
    let plain = |line: &str| line.strip_prefix("//!").map_or(line, |l| l.strip_prefix(' ').unwrap_or(l)).to_string();
    let lines = text.lines().map(plain).skip_while(|line| line != "```rust" && line != "```no_run").skip(1);
    lines.take_while(|line| line != "```").collect::<Vec<_>>().join("\n")
}

#[test]
fn the_readme_shows_what_is_compiled() {
    let read = |file: &str| fs::read_to_string(root().join(file)).expect("text");
    let (shown, compiled) = (rust(&read("README.md")), rust(&read("src/lib.rs")));
    assert!(shown.contains("autofit::tune("), "{shown}");
    assert_eq!(shown, compiled, "the example in the documentation of the crate is the one that is compiled");
}
