//! A `best.toml` from a stranger: whatever its texts hold, no export runs it, no page and no terminal obeys it.

use std::io::Write;
use std::process::{Command, Stdio};

use autofit::plan::{Outcome, Precision};

use super::support::{BEST, autofit, said, study, trial};

/// Texts that mean something to a shell, to Python, YAML, JSON or HTML, to a terminal, or to whoever reads a line.
const TEXTS: [&str; 14] = [
    "cpu\ntouch x #",
    "cpu\r\ntouch x\r#",
    "$(touch x)",
    "`touch x`",
    "'; touch x; '",
    "\"; touch x; \"",
    "\\\"; touch x; \\",
    "\"\"\"\n__import__('os').system('touch x')\n\"\"\"",
    "a: &b !!python/object/apply:os.system ['touch x'] # c",
    "one\u{85}touch x\u{2028}touch x\u{2029}touch x\u{b}\u{c}",
    "nul \u{0} escape \u{1b}[2J\u{1b}]0;title\u{7}\u{9b}31m delete \u{7f}",
    "left \u{202e}thgir\u{2066} tag \u{e0041} mark \u{feff}",
    "</code></style><script>alert(1)</script><img src=x onerror=\"alert('1')\">&amp;",
    "é 文 😀 \u{200d} \\n %s {0} ~ * ?",
];

/// What a field may hold is fixed where a list of words is.
const WORDS: [&str; 2] = ["precision", "optimizer"];

/// [`BEST`] with every text replaced, those inside of lists too.
fn answer(hostile: &str) -> String {
    fn replace(value: &mut toml::Value, hostile: &str) {
        match value {
            toml::Value::String(text) => *text = hostile.into(),
            toml::Value::Array(list) => list.iter_mut().for_each(|value| replace(value, hostile)),
            toml::Value::Table(table) => {
                let free = table.iter_mut().filter(|(key, _)| !WORDS.contains(&key.as_str()));
                free.for_each(|(_, value)| replace(value, hostile));
            }
            _ => {}
        }
    }
    let more = "repository = \"a/b\"\nrevision = \"c\"\nnum_labels = 2\n\n[data]\nfile = \"f\"\ncolumns = [\"text\", \"label\"]\n\
                longest = 128\nrows = 9\n";
    let mut value: toml::Value = toml::from_str(&BEST.replacen("num_labels = 2\n", more, 1)).expect("TOML");
    replace(&mut value, hostile);
    toml::to_string(&value).expect("TOML")
}

/// Says so past the harness, which shows what a test prints only if it fails.
fn skipped(why: &str) {
    let _ = writeln!(std::io::stderr(), "SKIPPED: {why}");
}

/// Has Python judge texts: the program finds them in `texts`, and prints JSON. `None`, loudly, where it can't.
fn python(program: &str, texts: &[String]) -> Option<Vec<String>> {
    let program = format!("import json, sys; texts = json.loads(sys.stdin.buffer.read())\n{program}");
    let child = Command::new("python3").args(["-c", &program]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
    let Ok(mut child) = child else {
        skipped("there is no python3 to read what was exported");
        return None;
    };
    let mut pipe = child.stdin.take().expect("a pipe");
    pipe.write_all(serde_json::to_string(texts).expect("JSON").as_bytes()).expect("written");
    drop(pipe);
    let output = child.wait_with_output().expect("ended");
    if output.status.code() == Some(77) {
        skipped("python3 lacks what reads these");
        return None;
    }
    assert!(output.status.success(), "{program}: {texts:?}");
    Some(serde_json::from_slice(&output.stdout).expect("JSON"))
}

/// A double-quoted scalar of YAML 1.1, read as its specification says.
fn yaml_string(scalar: &str) -> String {
    let inside = scalar.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')).expect("quotes");
    let (mut out, mut chars) = (String::new(), inside.chars());
    while let Some(c) = chars.next() {
        assert!(c != '"' && !c.is_control() && !('\u{2028}'..='\u{2029}').contains(&c), "{scalar:?}");
        if c != '\\' {
            out.push(c);
            continue;
        }
        match chars.next().expect("an escape") {
            c @ ('"' | '\\') => out.push(c),
            'U' => {
                let code: String = chars.by_ref().take(8).collect();
                out.extend(char::from_u32(u32::from_str_radix(&code, 16).expect("eight digits")));
            }
            c => panic!("\\{c} in {scalar:?}"),
        }
    }
    out
}

/// Lines as any reader may cut them.
fn lines(text: &str) -> Vec<&str> {
    text.split(['\n', '\r', '\u{b}', '\u{c}', '\u{85}', '\u{2028}', '\u{2029}']).collect()
}

fn code(text: &str) -> Vec<&str> {
    lines(text).into_iter().filter(|line| !line.starts_with('#') && !line.starts_with("base_model: ")).collect()
}

#[test]
fn no_text_of_an_answer_becomes_code_in_any_export() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("best.toml");
    let config = path.to_str().expect("UTF-8");
    for tool in ["hf", "accelerate", "deepspeed", "lightning", "axolotl", "env"] {
        std::fs::write(&path, answer("plain")).expect("written");
        let plain = said(&["export", "--config", config, "--to", tool]);
        let mut texts = vec![plain.clone()];
        for hostile in TEXTS {
            std::fs::write(&path, answer(hostile)).expect("written");
            let output = autofit(&["export", "--config", config, "--to", tool]);
            assert!(output.status.success(), "{tool}, {hostile:?}");
            let text = String::from_utf8(output.stdout).expect("UTF-8");
            harmless(&output.stderr);
            harmless(text.as_bytes());
            assert_eq!(code(&text), code(&plain), "{tool}, {hostile:?}");
            match tool {
                "env" => evaluate(&text, hostile),
                "deepspeed" => {
                    let _: serde_json::Value = serde_json::from_str(&text).expect("JSON");
                }
                "axolotl" => {
                    let model = lines(&text).into_iter().find_map(|line| line.strip_prefix("base_model: "));
                    assert_eq!(yaml_string(model.expect("a model")), hostile);
                }
                _ => {}
            }
            texts.push(text);
        }
        match tool {
            "hf" | "accelerate" | "lightning" => {
                let tree = "import ast; print(json.dumps([ast.dump(ast.parse(text)) for text in texts]))";
                let trees = python(tree, &texts).unwrap_or_default();
                trees.iter().for_each(|tree| assert_eq!(*tree, trees[0], "{tool}"));
            }
            "axolotl" => {
                let models = "try:\n    import yaml\nexcept ImportError:\n    sys.exit(77)\n\
                              print(json.dumps([yaml.safe_load(text)['base_model'] for text in texts]))";
                python(models, &texts).iter().for_each(|models| assert_eq!(models[1..], TEXTS));
            }
            _ => {}
        }
    }
}

/// As the help recommends it, in a folder where nothing may appear.
fn evaluate(text: &str, hostile: &str) {
    let folder = tempfile::tempdir().expect("a folder");
    let script = "set -a; eval \"$EXPORTED\"; set +a; unset EXPORTED; env";
    let mut shell = Command::new("sh");
    let output = shell.args(["-c", script]).env("EXPORTED", text).current_dir(folder.path()).output().expect("sh");
    assert!(output.status.success() && output.stderr.is_empty(), "{hostile:?}");
    assert_eq!(std::fs::read_dir(folder.path()).expect("a folder").count(), 0, "{hostile:?} was run");
    let set = String::from_utf8(output.stdout).expect("UTF-8");
    for line in text.lines() {
        assert!(set.lines().any(|set| set == line), "{line} is lost: {set}");
        // What is not quoted needs no quotes, in any shell.
        let (name, value) = line.split_once('=').expect("NAME=value");
        assert!(name.starts_with("AUTOFIT_") && value.chars().all(|c| c.is_ascii_alphanumeric()), "{line}");
    }
}

/// Nothing that a terminal obeys, or that shows another text than there is.
fn harmless(bytes: &[u8]) {
    let text = std::str::from_utf8(bytes).expect("UTF-8");
    let bad = text
        .chars()
        .find(|&c| (c.is_control() && c != '\n' && c != '\t') || "\u{2028}\u{202e}\u{2066}\u{feff}".contains(c));
    assert_eq!(bad, None, "{text:?}");
}

#[test]
fn no_text_of_an_answer_becomes_a_tag_of_the_page() {
    let folder = tempfile::tempdir().expect("a folder");
    let trials =
        vec![trial(Precision::Bf16, 8, 3, Outcome::Fit, 858), trial(Precision::Bf16, 11, 3, Outcome::Oom, 990)];
    study(folder.path(), 1_000_000_000, trials);
    let page = |answer: &str| {
        std::fs::write(folder.path().join("best.toml"), answer).expect("written");
        said(&["report", folder.path().to_str().expect("UTF-8")]);
        std::fs::read_to_string(folder.path().join("report.html")).expect("a page")
    };
    let marks = |page: &str| ['<', '>', '"'].map(|mark| page.matches(mark).count());
    let plain = marks(&page(&answer("plain")));
    for hostile in TEXTS {
        let page = page(&answer(hostile));
        assert_eq!(marks(&page), plain, "{hostile:?}");
        harmless(page.replace('\r', "").as_bytes());
    }
}

#[test]
fn errors_and_talk_about_an_answer_leave_the_terminal_alone() {
    let folder = tempfile::tempdir().expect("a folder");
    for hostile in TEXTS {
        for (from, to) in [("folder", "folder"), ("folder", "preset"), ("folder", "program")] {
            let text = answer(hostile).replacen(&format!("{from} = "), &format!("{to} = "), 1);
            std::fs::write(folder.path().join("best.toml"), &text).expect("written");
            let config = folder.path().join("best.toml").display().to_string();
            for arguments in [&["run", "--config", &config][..], &["run", "--config", &config, "--model", "tinybert"]] {
                let mut command = Command::new(env!("CARGO_BIN_EXE_autofit"));
                // Nothing is to be looked up anywhere.
                let output = command.args(arguments).env("HF_HUB_OFFLINE", "1").current_dir(folder.path()).output();
                let output = output.expect("the program starts");
                assert_eq!(output.status.code(), Some(1), "{hostile:?}");
                harmless(&output.stderr);
            }
        }
        let broken = format!("config = \"{hostile}\"\n");
        std::fs::write(folder.path().join("best.toml"), broken).expect("written");
        let output =
            autofit(&["export", "--to", "hf", "--config", &folder.path().join("best.toml").display().to_string()]);
        harmless(&output.stderr);
        assert_eq!(std::fs::read_dir(folder.path()).expect("a folder").count(), 1, "{hostile:?} left something");
    }
}
