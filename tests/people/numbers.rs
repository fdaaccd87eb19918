//! Whatever number stands on the command line or in a file, the program answers: it never panics, and nothing that it
//! starts does.

use std::path::Path;
use std::process::{Command, Output, Stdio};

/// Nothing, little, less than nothing, too much for every type, and what is no number at all.
const WORDS: [&str; 14] = [
    "0",
    "1",
    "-1",
    "0.5",
    "100000000000",
    "9223372036854775807",
    "18446744073709551615",
    "18446744073709551616",
    "1e308",
    "1e999",
    "-1e308",
    "nan",
    "inf",
    "-inf",
];

/// The same as TOML writes them, as far as it can.
const VALUES: [&str; 12] =
    ["0", "1", "-1", "0.0", "0.5", "-1.5", "100000000000", "9223372036854775807", "1e308", "nan", "inf", "-inf"];

/// A folder with rows, a model that is trained in no time, a space of one configuration and its study.
pub fn place() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    let rows: String = (0..12).map(|i| format!("the film was {},{}\n", ["good", "bad"][i % 2], i % 2)).collect();
    std::fs::write(folder.path().join("rows.csv"), format!("text,label\n{rows}")).expect("written");
    std::fs::write(folder.path().join("one.toml"), SPACE).expect("written");
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/tiny-bert");
    std::os::unix::fs::symlink(model, folder.path().join("bert")).expect("a link");
    let output = autofit(folder.path(), &[PROBE, &["--out", "study"]].concat());
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    folder
}

const SPACE: &str = "precision = [\"fp32\"]\nmicro_batch = [4]\ncheckpoint_layers = [0]\n";
pub const PROBE: &[&str] = &[
    "probe",
    "--model",
    "./bert",
    "--data",
    "rows.csv",
    "--effective-batch",
    "4",
    "--max-length",
    "8",
    "--vram",
    "64M",
    "--space",
    "./one.toml",
];
pub const RUN: &[&str] = &["run", "--config", "study/best.toml", "--steps", "1", "--output", "out", "--overwrite"];
pub const PREDICT: &[&str] = &["predict", "--model", "bert", "--data", "rows.csv"];
const ESTIMATE: &[&str] = &["estimate", "--vram", "6G", "--model", "bert"];

fn autofit(folder: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_autofit"));
    command.current_dir(folder).args(arguments).env("HF_HUB_OFFLINE", "1").stdin(Stdio::null());
    command.output().expect("the program starts")
}

/// An answer of some kind.
fn answered(folder: &Path, arguments: &[&str], what: &str) {
    let output = autofit(folder, arguments);
    let said = String::from_utf8_lossy(&output.stderr);
    let known = output.status.code().is_some_and(|code| [0, 1, 2, 3].contains(&code));
    assert!(known && !said.contains("panicked"), "{what}, {arguments:?}: {:?}\n{said}", output.status);
    assert!(output.status.success() || !said.trim().is_empty() || output.status.code() == Some(3), "{what}: no word");
}

/// Options of a command that take a number, by what its help calls their values.
fn numeric(command: &str) -> Vec<String> {
    let help = String::from_utf8(autofit(Path::new("."), &[command, "--help"]).stdout).expect("UTF-8");
    let names = ["<N>", "<X>", "<SHARE>", "<SIZE>", "<TIME>", "<STEPS|TIME>", "<N|embeddings>"];
    let option = |line: &str| {
        let (before, rest) = line.trim().split_once(" <")?;
        let value = rest.split_inclusive('>').next()?;
        let name = before.split(' ').next_back()?.strip_prefix("--")?;
        names.contains(&format!("<{value}").as_str()).then(|| format!("--{name}"))
    };
    help.lines().filter_map(option).collect()
}

/// The arguments with one option set to a value, and without what contradicts it.
fn with<'a>(base: &[&'a str], option: &'a str, value: &'a str) -> Vec<&'a str> {
    let mut arguments = vec![base[0]];
    for pair in base[1..].chunks(2) {
        let contradicts = pair[0] == option || (pair[0] == "--steps" && option == "--epochs");
        arguments.extend(if contradicts { &[] } else { pair });
    }
    arguments.extend([option, value]);
    arguments
}

#[test]
fn any_number_in_any_option_is_answered() {
    let folder = place();
    let commands = [(ESTIMATE, 4), (PREDICT, 3), (RUN, 14), (PROBE, 10)];
    std::thread::scope(|scope| {
        for (base, least) in commands {
            let folder = folder.path();
            scope.spawn(move || {
                let options = numeric(base[0]);
                assert!(options.len() >= least, "{}: {options:?}", base[0]);
                for option in &options {
                    for value in WORDS {
                        let study = format!("fuzz-{}{option}", base[0]);
                        let mut arguments = with(base, option, value);
                        if base[0] == "probe" {
                            arguments.extend(["--out", &study, "--fresh"]);
                        }
                        answered(folder, &arguments, "an option");
                    }
                }
            });
        }
    });
}

/// A text of TOML for each number in it and each other value of that: table, key, value, text.
fn changed(text: &str) -> Vec<(String, String, String, String)> {
    let value: toml::Table = text.parse().expect("TOML");
    let mut all = Vec::new();
    for (table, keys) in &value {
        for (key, old) in keys.as_table().into_iter().flatten() {
            if !old.is_integer() && !old.is_float() {
                continue;
            }
            for new in VALUES {
                let mut changed = value.clone();
                let new_value = format!("x = {new}").parse::<toml::Table>().expect("TOML").remove("x").expect("x");
                changed[table].as_table_mut().expect("a table").insert(key.clone(), new_value);
                let text = toml::to_string(&changed).expect("TOML");
                all.push((table.clone(), key.clone(), new.to_string(), text));
            }
        }
    }
    all
}

#[test]
fn any_number_in_an_answer_is_answered() {
    let folder = place();
    let text = std::fs::read_to_string(folder.path().join("study/best.toml")).expect("an answer");
    let text = text.replacen("[measured]", "frozen_layers = 0\nlora_rank = 2\n\n[measured]", 1);
    let all = changed(&text);
    assert!(all.len() > 33 * VALUES.len(), "{}", all.len());
    for (number, (table, key, value, text)) in all.iter().enumerate() {
        let what = format!("{table}.{key} = {value}");
        std::fs::write(folder.path().join("study/best.toml"), text).expect("written");
        let tools = ["hf", "accelerate", "deepspeed", "lightning", "axolotl", "env"];
        let tools = if table == "config" { &tools[..] } else { &tools[number % tools.len()..][..1] };
        for tool in tools {
            answered(folder.path(), &["export", "--config", "study/best.toml", "--to", tool], &what);
        }
        answered(folder.path(), &["report", "study"], &what);
        let used =
            ["config", "data", "model"].contains(&table.as_str()) || ["seed", "cap_bytes"].contains(&key.as_str());
        if used {
            answered(folder.path(), RUN, &what);
        }
    }
    for (key, value) in [("config.micro_batch", "0"), ("config.effective_batch", "0"), ("config.lora_rank", "0")] {
        let (table, name) = key.split_once('.').expect("a key");
        let wanted = |one: &&(String, String, String, String)| one.0 == table && one.1 == name && one.2 == value;
        std::fs::write(folder.path().join("study/best.toml"), &all.iter().find(wanted).expect("tried").3)
            .expect("written");
        let output = autofit(folder.path(), RUN);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(
            said.contains("best.toml") && said.contains(&format!("{key} = {value}: at least 1 is needed")),
            "{said}"
        );
    }
}

#[test]
fn any_number_in_a_space_or_a_record_is_answered() {
    let folder = place();
    let space = folder.path().join("one.toml");
    for key in ["micro_batch", "checkpoint_layers", "frozen_layers", "lora_rank"] {
        for value in VALUES {
            let rest: String =
                SPACE.lines().filter(|line| !line.starts_with(key)).map(|line| format!("{line}\n")).collect();
            std::fs::write(&space, format!("{rest}{key} = [{value}]\n")).expect("written");
            answered(folder.path(), &[PROBE, &["--out", "other", "--fresh"]].concat(), &format!("{key} = [{value}]"));
        }
    }
    let record = folder.path().join("study/trials.csv");
    let text = std::fs::read_to_string(&record).expect("trials");
    let mut lines = text.lines().map(|line| line.split(',').collect::<Vec<_>>());
    let (header, row) = (lines.next().expect("a header"), lines.next().expect("a trial"));
    let numbers = (0..row.len()).filter(|&at| row[at].parse::<f64>().is_ok());
    for at in numbers {
        for value in WORDS {
            let mut changed = row.clone();
            changed[at] = value;
            std::fs::write(&record, format!("{}\n{}\n", header.join(","), changed.join(","))).expect("written");
            answered(folder.path(), &["report", "study"], &format!("{} = {value}", header[at]));
        }
    }
    let identity = folder.path().join("study/study.toml");
    std::fs::write(&record, &text).expect("written");
    let text = format!("[study]\n{}", std::fs::read_to_string(&identity).expect("an identity"));
    for (_, key, value, text) in changed(&text) {
        std::fs::write(&identity, text.replacen("[study]\n", "", 1)).expect("written");
        answered(folder.path(), &["report", "study"], &format!("study.toml: {key} = {value}"));
    }
}
