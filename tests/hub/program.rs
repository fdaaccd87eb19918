//! The program with a model by name, from outside.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use super::site::{COMMIT, Reply, Repository, TOKEN, World, fixture};

/// A call that sees this hub, and nothing of the machine's own settings.
fn autofit(world: &World, arguments: &[&str], variables: &[(&str, &str)]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_autofit"));
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy().to_ascii_uppercase();
        if text.starts_with("HF_") || text.ends_with("_PROXY") {
            command.env_remove(name);
        }
    }
    command.current_dir(world.home.path()).envs(world.variables()).envs(variables.iter().copied());
    command.args(arguments).output().expect("autofit starts")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn said(output: &Output) -> String {
    assert!(output.status.success(), "{}", text(&output.stderr));
    text(&output.stdout)
}

/// Every file under a folder, in one.
fn everything_in(folder: &Path) -> String {
    let mut all = String::new();
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            all += &everything_in(&path);
        } else {
            all += &text(&fs::read(&path).expect("a file"));
        }
    }
    all
}

#[test]
fn estimate_needs_nothing_but_the_shape() {
    let world = World::of(Repository::tiny());
    let arguments = ["estimate", "--model", "owner/tiny", "--vram", "64M", "--max-length", "16"];
    let first = autofit(&world, &arguments, &[]);
    assert!(said(&first).contains("owner/tiny"), "{}", text(&first.stdout));
    let talk = text(&first.stderr);
    assert!(
        talk.contains("downloading owner/tiny (1 file, 839 B) into ") && talk.contains("downloaded 839 B"),
        "{talk}"
    );
    assert!(!talk.contains('\r') && !talk.contains("\x1b"), "plain lines where there is no terminal: {talk}");
    assert!(world.storage.asked().is_empty(), "no weights");
    let asked = world.hub.asked().len();
    let second = autofit(&world, &[&arguments[..], &["--quiet"]].concat(), &[]);
    assert_eq!((said(&second), text(&second.stderr)), (said(&first), String::new()));
    assert_eq!(world.hub.asked().len(), asked);
    let json = said(&autofit(&world, &[&arguments[..], &["--json", "--revision", COMMIT]].concat(), &[]));
    assert!(serde_json::from_str::<serde_json::Value>(&json).is_ok(), "{json}");
}

#[test]
fn names_that_lead_nowhere() {
    let world = World::of(Repository::tiny());
    let refused = |arguments: &[&str]| {
        let output = autofit(&world, &[&["estimate", "--vram", "64M"], arguments].concat(), &[]);
        assert_eq!(output.status.code(), Some(1));
        text(&output.stderr)
    };
    let wrong = refused(&["--model", "owner/other"]);
    assert!(wrong.contains("404") && wrong.contains("check the spelling"), "{wrong}");
    for path in ["./owner/tiny", "bert-huge", "a/b/c"] {
        let wrong = refused(&["--model", path]);
        assert!(wrong.contains("no such folder and no such preset") && wrong.contains("distilbert"), "{wrong}");
    }
    let wrong = refused(&["--model", "distilbert", "--revision", "v1"]);
    assert!(wrong.contains("leave --revision away"), "{wrong}");
    let wrong = refused(&["--model", "owner/tiny@../../x"]);
    assert!(wrong.contains("can't be the revision"), "{wrong}");
    // A folder of that name is what is meant, if there is one.
    fs::create_dir_all(world.home.path().join("owner/other")).expect("a folder");
    fs::write(world.home.path().join("owner/other/config.json"), fixture("config.json")).expect("written");
    assert!(
        autofit(&world, &["estimate", "--vram", "64M", "--model", "owner/other", "--max-length", "16"], &[])
            .status
            .success()
    );
}

#[test]
fn probe_by_name_then_run_on_a_machine_that_has_nothing() {
    let cut = |request: &super::site::Request, reply: Reply| match request.start() {
        None => Reply { cut: Some(60_000), ..reply },
        Some(_) => reply,
    };
    let world = World::with(Repository::tiny(), |_, reply| reply, cut);
    let mut csv = String::from("text,label\n");
    for i in 0..40 {
        csv += if i % 2 == 0 { "the film was good,yes\n" } else { "the film was bad,no\n" };
    }
    fs::write(world.home.path().join("train.csv"), csv).expect("written");
    let token = [("HF_TOKEN", TOKEN)];
    let space = "precision = [\"fp32\"]\nmicro_batch = [4]\ncheckpoint_layers = \"none\"\n";
    fs::write(world.home.path().join("one.toml"), space).expect("written");
    let probe =
        "probe --model owner/tiny --vram 64M --data train.csv --max-length 16 --effective-batch 8 --space ./one.toml";
    let probed = autofit(&world, &probe.split(' ').collect::<Vec<_>>(), &token);
    let shown = said(&probed);
    assert!(shown.contains("Fastest that fits"), "{shown}");
    assert_eq!(world.storage.asked().len(), 2, "broken off once, then continued");
    let study = world.home.path().join("results/tiny-train-64.0MiB");
    let best: toml::Table = fs::read_to_string(study.join("best.toml")).expect("best.toml").parse().expect("TOML");
    assert_eq!(best["model"]["repository"].as_str(), Some("owner/tiny"));
    assert_eq!(best["model"]["revision"].as_str(), Some(COMMIT));
    assert_eq!(best["study"]["model"].as_str(), Some("owner/tiny"));
    let identity = fs::read_to_string(study.join("study.toml")).expect("study.toml");
    assert!(identity.contains(&format!("owner/tiny@{COMMIT}")), "{identity}");
    // Another machine: the answer is there, the cache is not.
    fs::remove_dir_all(world.home.path().join("hf")).expect("removed");
    let run = "run --config results/tiny-train-64.0MiB/best.toml --data train.csv --steps 2 --output out";
    let trained = autofit(&world, &run.split(' ').collect::<Vec<_>>(), &token);
    assert!(said(&trained).contains("Trained 2 steps"), "{}", text(&trained.stderr));
    assert!(text(&trained.stderr).contains("downloading owner/tiny"), "{}", text(&trained.stderr));
    let pinned = format!("/api/models/owner/tiny/revision/{COMMIT}");
    assert!(world.hub.asked().iter().any(|request| request.path == pinned), "at the commit that was probed");
    for name in ["tokenizer.json", "tokenizer_config.json"] {
        assert!(fs::read(world.home.path().join("out").join(name)).expect(name) == fixture(name));
    }
    let all = everything_in(&world.home.path().join("results")) + &everything_in(&world.home.path().join("out"));
    for output in [&probed, &trained] {
        assert!(!(text(&output.stdout) + &text(&output.stderr)).contains(TOKEN));
    }
    assert!(!all.contains(TOKEN) && !everything_in(&world.home.path().join("hf")).contains(TOKEN));
}
