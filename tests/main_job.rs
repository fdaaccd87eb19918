//! The main job from outside: probe a model on its data under a cap, train with the answer, load what was saved.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use tempfile::TempDir;

/// A folder with a data set in which one word tells the label.
fn workplace() -> TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    let mut csv = String::from("id,text,label\n");
    for i in 0..120 {
        let (word, label) = if i % 2 == 0 { ("good", "yes") } else { ("bad", "no") };
        let filler = "the film was ".repeat(i % 5);
        csv += &format!("{i},\"{filler}{word}, {word}\",{label}\n");
    }
    std::fs::write(folder.path().join("train.csv"), csv).expect("written");
    folder
}

fn model(family: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(family)
}

fn autofit(folder: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_autofit")).current_dir(folder).args(arguments).output().expect("autofit starts")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn probe(folder: &Path, family: &str, cap: &str, more: &[&str]) -> Output {
    let model = model(family);
    let mut arguments = vec!["probe", "--model", model.to_str().expect("UTF-8"), "--vram", cap, "--data", "train.csv"];
    arguments.extend(["--max-length", "24", "--effective-batch", "16", "--out", "study"]);
    arguments.extend(more);
    autofit(folder, &arguments)
}

fn best(folder: &Path) -> toml::Table {
    std::fs::read_to_string(folder.join("study/best.toml")).expect("best.toml").parse().expect("TOML")
}

#[test]
fn probes_then_trains_and_saves_a_model() {
    for family in ["tiny-bert", "tiny-distilbert", "tiny-roberta"] {
        let folder = workplace();
        let found = probe(folder.path(), family, "64M", &[]);
        assert_eq!(found.status.code(), Some(0), "{}", text(&found.stderr));
        assert!(text(&found.stdout).contains("Fastest that fits"), "{}", text(&found.stdout));
        let best = best(folder.path());
        for (table, keys) in [
            (
                "config",
                &["micro_batch", "accumulation", "effective_batch", "precision", "checkpoint_layers", "max_length"][..],
            ),
            ("measured", &["peak_bytes", "cap_bytes", "samples_per_second"]),
            ("neighbour", &["outcome"]),
            ("study", &["model", "device"]),
        ] {
            keys.iter().for_each(|key| assert!(best[table].get(key).is_some(), "{table}.{key}"));
        }
        assert!(best["measured"]["peak_bytes"].as_integer().is_some_and(|peak| (1..=64 << 20).contains(&peak)));
        let run = |output: &str| {
            autofit(
                folder.path(),
                &[
                    "run",
                    "--config",
                    "study/best.toml",
                    "--data",
                    "train.csv",
                    "--epochs",
                    "15",
                    "--learning-rate",
                    "3e-3",
                    "--eval-fraction",
                    "0.2",
                    "--output",
                    output,
                ],
            )
        };
        let trained = run("model");
        assert_eq!(trained.status.code(), Some(0), "{}", text(&trained.stderr));
        assert!(text(&trained.stdout).contains("accuracy 1.0000"), "{family}: {}", text(&trained.stdout));
        assert!(
            text(&trained.stdout).contains("  yes       1.0000  1.0000  1.0000     12\n"),
            "{}",
            text(&trained.stdout)
        );
        let config: serde_json::Value =
            serde_json::from_slice(&std::fs::read(folder.path().join("model/config.json")).expect("config"))
                .expect("JSON");
        assert_eq!(config["id2label"]["1"], "yes");
        assert!(folder.path().join("model/tokenizer.json").exists());
        assert_eq!(config["autofit_max_length"], 24, "predict cuts where the run cut");
        let again = run("model");
        assert_eq!(again.status.code(), Some(1));
        assert!(text(&again.stderr).contains("--overwrite"), "{}", text(&again.stderr));
        let bytes = |name: &str| std::fs::read(folder.path().join(name).join("model.safetensors")).expect("weights");
        assert_eq!(run("twin").status.code(), Some(0));
        assert!(bytes("model") == bytes("twin"), "{family}: the same seed gave other weights");
    }
}

#[test]
fn every_command_takes_a_study_by_its_folder_or_its_answer() {
    let folder = workplace();
    std::fs::write(folder.path().join("one.toml"), "precision = [\"fp32\"]\nmicro_batch = [4]\n").expect("written");
    let none = autofit(folder.path(), &["probe", "--model", "tinybert", "--vram", "1K", "--out", "none", "--quiet"]);
    assert_eq!(none.status.code(), Some(3), "{}", text(&none.stderr));
    let found = probe(folder.path(), "tiny-bert", "64M", &["--space", "./one.toml"]);
    assert_eq!(found.status.code(), Some(0), "{}", text(&found.stderr));
    let ways = [&["study"][..], &["study/best.toml"], &["--config", "study"], &["--study", "study/best.toml"]];
    for (command, more) in [
        ("report", &[][..]),
        ("export", &["--to", "env"]),
        ("estimate", &[]),
        ("run", &["--steps", "2", "--output", "model", "--overwrite"]),
    ] {
        let said = ways.map(|way| {
            let output = autofit(folder.path(), &[&[command], way, more].concat());
            assert_eq!(output.status.code(), Some(0), "{command} {way:?}: {}", text(&output.stderr));
            text(&output.stdout)
        });
        // The speed of a run is never twice the same.
        assert!(command == "run" || said.iter().all(|one| *one == said[0]), "{command}: {said:?}");
        let both = autofit(folder.path(), &[&[command, "study", "--config", "study"], more].concat());
        assert_eq!(both.status.code(), Some(2), "{command}: {}", text(&both.stderr));
        if command != "report" {
            let output = autofit(folder.path(), &[&[command, "none"], more].concat());
            let said = text(&output.stderr);
            assert!(output.status.code() == Some(1) && said.contains("none has no best.toml"), "{command}: {said}");
        }
        if command != "estimate" {
            let output = autofit(folder.path(), &[&[command], more].concat());
            assert_eq!(output.status.code(), Some(2), "{command}: {}", text(&output.stderr));
        }
    }
    let estimate = |arguments: &[&str]| text(&autofit(folder.path(), &[&["estimate"], arguments].concat()).stdout);
    let bert = model("tiny-bert");
    let longest = best(folder.path())["data"]["longest"].to_string();
    let plain = ["--model", bert.to_str().expect("UTF-8"), "--vram", "64M", "--effective-batch", "16"];
    assert_eq!(
        estimate(&["study"]),
        estimate(&[&plain[..], &["--max-length", longest.as_str()]].concat()),
        "the study's model, memory, rows and batch"
    );
    let other = ["study", "--vram", "1M", "--max-length", "40"];
    assert_ne!(estimate(&other), estimate(&["study"]), "options say more than the study");
}

#[test]
fn the_answer_fits_and_its_neighbour_does_not() {
    let folder = workplace();
    // Between the peaks of two micro-batches that are all there is: whichever is faster, only one of them fits.
    let peaks: Vec<u64> = ["8", "16"]
        .iter()
        .map(|micro| {
            let space = format!("precision = [\"fp32\"]\nmicro_batch = [{micro}]\ncheckpoint_layers = \"none\"\n");
            std::fs::write(folder.path().join("one.toml"), space).expect("written");
            let output = probe(folder.path(), "tiny-bert", "64M", &["--space", "./one.toml", "--fresh"]);
            assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
            best(folder.path())["measured"]["peak_bytes"].as_integer().expect("a number") as u64
        })
        .collect();
    let cap = format!("{}B", (peaks[0] + peaks[1]) / 2);
    assert!(peaks[0] < peaks[1], "{peaks:?}");
    let space = "precision = [\"fp32\"]\nmicro_batch = [8, 16]\ncheckpoint_layers = \"none\"\n";
    std::fs::write(folder.path().join("micro.toml"), space).expect("written");
    let output = probe(folder.path(), "tiny-bert", &cap, &["--space", "./micro.toml", "--fresh"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let trials = std::fs::read_to_string(folder.path().join("study/trials.csv")).expect("trials.csv");
    let header = "trial,precision,micro_batch,accumulation,checkpoint_layers,outcome,peak_bytes,step_seconds,\
                  samples_per_second,wall_seconds,reason";
    assert!(trials.starts_with(header), "{trials}");
    let best = best(folder.path());
    let (config, neighbour) = (&best["config"], &best["neighbour"]);
    let number = |value: &toml::Value| value.as_integer().expect("a number");
    assert_eq!((number(&config["micro_batch"]), number(&neighbour["micro_batch"])), (8, 16), "{best}");
    assert_eq!(neighbour["outcome"].as_str(), Some("oom"), "{neighbour}");
    assert!(number(&best["measured"]["peak_bytes"]) <= number(&best["measured"]["cap_bytes"]), "{best}");
    // It was tried, and not inferred.
    let tried = |micro: &str, outcome: &str| {
        let cells = |row: &str| -> Vec<String> { row.split(',').map(String::from).collect() };
        trials.lines().map(cells).any(|cells| cells[2] == micro && cells[5] == outcome)
    };
    assert!(tried("8", "fit") && tried("16", "oom") && !tried("16", "fit"), "{trials}");
    // Resuming repeats nothing.
    let again = probe(folder.path(), "tiny-bert", &cap, &["--space", "./micro.toml"]);
    assert_eq!(again.status.code(), Some(0), "{}", text(&again.stderr));
    assert_eq!(std::fs::read_to_string(folder.path().join("study/trials.csv")).expect("trials.csv"), trials);
}

#[test]
fn another_model_or_other_rows_in_the_same_place_are_not_answered_with_the_old_result() {
    let folder = workplace();
    let at = |name: &str| folder.path().join(name);
    let copy = |from: &Path, to: &str| {
        std::fs::create_dir_all(at(to)).expect("a folder");
        for name in ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"] {
            std::fs::copy(from.join(name), at(to).join(name)).expect("copied");
        }
    };
    copy(&model("tiny-bert"), "m");
    std::fs::write(at("one.toml"), "precision = [\"fp32\"]\nmicro_batch = [16]\ncheckpoint_layers = \"none\"\n")
        .expect("written");
    let probe = |model: &str| {
        let arguments = format!(
            "probe --model {model} --vram 64M --data train.csv --max-length 24 --effective-batch 16 --space ./one.toml \
             --out study"
        );
        autofit(folder.path(), &arguments.split(' ').collect::<Vec<_>>())
    };
    let first = probe("./m");
    assert_eq!(first.status.code(), Some(0), "{}", text(&first.stderr));
    let trials = || std::fs::read(at("study/trials.csv")).expect("trials.csv");
    let known = trials();
    let refused = |words: &[&str]| {
        let output = probe("./m");
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{said}");
        let next = ["another study", "--out", "--fresh"];
        words.iter().chain(&next).for_each(|word| assert!(said.contains(word), "{word}: {said}"));
        assert!(trials() == known, "nothing measured is lost");
    };
    // The same shape, one bit of one weight another.
    let weights = std::fs::read(at("m/model.safetensors")).expect("weights");
    let mut others = weights.clone();
    *others.last_mut().expect("bytes") ^= 1;
    std::fs::write(at("m/model.safetensors"), others).expect("written");
    refused(&["the model's weights are others"]);
    std::fs::write(at("m/model.safetensors"), weights).expect("written");
    let config = std::fs::read_to_string(at("m/config.json")).expect("a configuration");
    std::fs::write(at("m/config.json"), config.replace("0.1", "0.2")).expect("written");
    refused(&["config.json"]);
    std::fs::write(at("m/config.json"), config).expect("written");
    // As many rows of the same lengths, and one word in one of them another.
    let rows = std::fs::read_to_string(at("train.csv")).expect("rows");
    std::fs::write(at("train.csv"), rows.replacen("good", "bad", 1)).expect("written");
    refused(&["the rows"]);
    std::fs::write(at("train.csv"), &rows).expect("written");
    // The same model elsewhere is the same model; a column that is not read is no other row.
    copy(&at("m"), "elsewhere");
    std::fs::write(at("train.csv"), rows.replacen("\n0,", "\n1000,", 1)).expect("written");
    let again = probe("./elsewhere");
    assert_eq!(again.status.code(), Some(0), "{}", text(&again.stderr));
    assert!(trials() == known, "nothing was repeated");
}

#[test]
fn the_budget_bounds_a_probe_that_hangs_and_it_is_tried_again() {
    let folder = workplace();
    std::fs::write(folder.path().join("one.toml"), "precision = [\"fp32\"]\nmicro_batch = [4]\n").expect("written");
    let started = std::time::Instant::now();
    let hanging = ["--space", "./one.toml", "--budget", "1s", "--launcher", "/bin/sh -c 'sleep 1000' {worker}"];
    let output = probe(folder.path(), "tiny-bert", "64M", &hanging);
    assert!(started.elapsed().as_secs() < 60, "the deadline of a probe is 10 minutes, the budget a second");
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("--budget was over") && said.contains("goes on where it stopped"), "{said}");
    let trials = || std::fs::read_to_string(folder.path().join("study/trials.csv")).expect("trials.csv");
    let row = |at: usize| trials().lines().nth(at).unwrap_or_default().to_string();
    assert!(row(1).contains(",interrupted,") && row(2).is_empty(), "{}", trials());
    let again = probe(folder.path(), "tiny-bert", "64M", &["--space", "./one.toml"]);
    assert_eq!(again.status.code(), Some(0), "{}", text(&again.stderr));
    let knobs = |row: &str| row.split(',').skip(1).take(4).collect::<Vec<_>>().join(",");
    assert_eq!(knobs(&row(2)), knobs(&row(1)), "what was cut off is asked for first: {}", trials());
    assert!(row(2).contains(",fit,"), "{}", trials());
}

#[test]
fn every_named_space_is_searched_to_an_answer() {
    let folder = workplace();
    for family in ["tiny-bert", "tiny-distilbert", "tiny-roberta"] {
        for space in autofit::study::search_space::SearchSpace::names() {
            let small = ["--space", space, "--fresh"];
            let output = probe(folder.path(), family, "64M", &small);
            assert_eq!(output.status.code(), Some(0), "{family}, {space}: {}", text(&output.stderr));
            let trials = std::fs::read_to_string(folder.path().join("study/trials.csv")).expect("trials.csv");
            let failed = trials.lines().skip(1).find(|row| !row.contains(",fit,") && !row.contains(",pruned,"));
            assert_eq!(failed, None, "{family}, {space}");
        }
    }
    // A file of somebody with a deeper model: cut, and said.
    std::fs::write(folder.path().join("deep.toml"), "frozen_layers = [8]\ncheckpoint_layers = [9]\n").expect("written");
    let output = probe(folder.path(), "tiny-bert", "64M", &["--space", "./deep.toml", "--fresh"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let said = text(&output.stderr);
    for word in ["frozen_layers = 8", "checkpoint_layers = 9", "the 3 that the model has"] {
        assert!(said.contains(word), "{word}: {said}");
    }
}

#[test]
fn a_failed_trial_is_told_and_any_trial_can_be_repeated_alone() {
    let folder = workplace();
    std::fs::write(folder.path().join("two.toml"), "precision = [\"fp32\"]\nmicro_batch = [4, 16]\n").expect("written");
    let crash = "/bin/sh -c 'echo out of luck >&2; exit 5' {worker}";
    let output = probe(folder.path(), "tiny-bert", "64M", &["--space", "./two.toml", "--launcher", crash]);
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("autofit show study has more"), "{said}");
    let show = |arguments: &[&str]| {
        let output = autofit(folder.path(), &[&["show", "study"], arguments].concat());
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        text(&output.stdout)
    };
    let told = show(&["1"]);
    assert!(
        told.contains("outcome  crash") && told.contains("stderr/1.txt") && told.contains("    out of luck\n"),
        "{told}"
    );

    let output = probe(folder.path(), "tiny-bert", "64M", &["--space", "./two.toml", "--fresh"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let told = show(&["1"]);
    assert!(!told.contains("last words") && !show(&[]).contains("crash"), "a new study knows nothing of the old one");
    let command = told.lines().find_map(|line| line.strip_prefix("  alone    autofit ")).expect("a command");
    let script = format!("exec \"$0\" {command}");
    let mut shell = Command::new("/bin/sh");
    // Elsewhere: the paths in it are whole.
    std::fs::create_dir(folder.path().join("elsewhere")).expect("a folder");
    let script = script.replace("@study/", "@../study/");
    shell.args(["-c", &script, env!("CARGO_BIN_EXE_autofit")]).current_dir(folder.path().join("elsewhere"));
    let output = shell.output().expect("a shell");
    assert_eq!(output.status.code(), Some(0), "{script}: {}", text(&output.stderr));
    let knobs = |row: &str| row.split(',').skip(1).take(4).collect::<Vec<_>>().join(",");
    let rows = |at: &str| -> Vec<String> {
        let text = std::fs::read_to_string(folder.path().join(at)).expect("trials.csv");
        text.lines().skip(1).map(knobs).collect()
    };
    let (first, alone) = (rows("study/trials.csv").swap_remove(0), rows("elsewhere/study/trial-1/trials.csv"));
    assert!(!alone.is_empty() && alone.iter().all(|row| *row == first), "{alone:?}, not {first}");
}

#[test]
fn says_what_is_missing_when_nothing_fits() {
    let folder = workplace();
    let output = probe(folder.path(), "tiny-bert", "100K", &[]);
    assert_eq!(output.status.code(), Some(3), "{}", text(&output.stderr));
    let said = text(&output.stdout);
    for word in ["Nothing fits into 100 KiB", "weights", "gradients", "optimizer state"] {
        assert!(said.contains(word), "{word}: {said}");
    }
    assert!(!folder.path().join("study/best.toml").exists());
}

#[test]
fn errors_say_what_to_do() {
    let folder = workplace();
    std::fs::write(folder.path().join("one-label.csv"), "text,label\na,x\nb,x\n").expect("written");
    let bert = model("tiny-bert");
    let bert = bert.to_str().expect("UTF-8");
    for (arguments, code, words) in [
        (&["probe", "--model", "gpt5", "--vram", "6G"][..], 1, &["gpt5", "distilbert"][..]),
        (&["probe", "--model", "tinybert", "--vram", "6X"], 2, &["6X", "6G"]),
        (&["probe", "--model", "tinybert", "--vram", "6G", "--data", "train.csv"], 1, &["--data", "tokenizer"]),
        (&["probe", "--model", bert, "--vram", "6G", "--data", "none.csv"], 1, &["none.csv"]),
        (
            &["probe", "--model", bert, "--vram", "6G", "--data", "one-label.csv", "--max-length", "9"],
            1,
            &["one-label.csv", "label"],
        ),
        (
            &[
                "probe",
                "--model",
                bert,
                "--vram",
                "6G",
                "--data",
                "train.csv",
                "--text-column",
                "txt",
                "--max-length",
                "9",
            ],
            1,
            &["txt", "text"],
        ),
        (&["probe", "--model", bert, "--vram", "6G", "--max-length", "128"], 1, &["--max-length 128", "40"]),
        (&["probe", "--model", "tinybert", "--vram", "6G", "--space", "defalt"], 1, &["defalt", "default"]),
        (&["probe", "--model", "tinybert", "--vram", "6G", "--device", "cuda:0"], 1, &["--features cuda"]),
        (&["run", "--config", "none.toml", "--data", "train.csv"], 1, &["none.toml"]),
    ] {
        let output = autofit(folder.path(), arguments);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {said}");
        words.iter().for_each(|word| assert!(said.contains(word), "{arguments:?} lacks {word}: {said}"));
        assert!(!said.contains("panicked"), "{said}");
    }
}

/// A copy of a model folder.
fn copied(family: &str, to: &Path) {
    std::fs::create_dir(to).expect("a folder");
    for entry in std::fs::read_dir(model(family)).expect("a folder").map(|entry| entry.expect("an entry")) {
        std::fs::copy(entry.path(), to.join(entry.file_name())).expect("copied");
    }
}

/// A copy of a model folder in which one tensor of 32 bits holds `value` throughout.
fn spoiled(family: &str, tensor: &str, value: f32, to: &Path) {
    copied(family, to);
    let file = to.join("model.safetensors");
    let mut bytes = std::fs::read(&file).expect("weights");
    let (header, metadata) = safetensors::SafeTensors::read_metadata(&bytes).expect("a header");
    let (start, end) = metadata.info(tensor).expect("the tensor").data_offsets;
    for number in bytes[8 + header..][start..end].chunks_exact_mut(4) {
        number.copy_from_slice(&value.to_le_bytes());
    }
    std::fs::write(file, bytes).expect("written");
}

#[test]
fn a_step_that_is_not_finite_is_no_fit() {
    let folder = tempfile::tempdir().expect("a folder");
    // Three classes, as the head of the model has.
    let rows = (0..12).map(|i| format!("the film was good,{}\n", ["a", "b", "c"][i % 3]));
    std::fs::write(folder.path().join("train.csv"), format!("text,label\n{}", rows.collect::<String>()))
        .expect("written");
    let space = "precision = [\"fp32\", \"bf16\", \"fp16\"]\nmicro_batch = [2]\ncheckpoint_layers = \"none\"\n";
    std::fs::write(folder.path().join("one.toml"), space).expect("written");
    // With weights of 1e30 the loss is finite, and the squares of the gradient are not.
    let huge = folder.path().join("huge");
    spoiled("tiny-bert", "classifier.weight", 1e30, &huge);
    let mut arguments =
        vec!["probe", "--model", huge.to_str().expect("UTF-8"), "--vram", "64M", "--space", "./one.toml"];
    arguments.extend(["--data", "train.csv", "--max-length", "24", "--effective-batch", "4", "--out", "study"]);
    let output = autofit(folder.path(), &arguments);
    assert_ne!(output.status.code(), Some(0), "{}", text(&output.stdout));
    let trials = std::fs::read_to_string(folder.path().join("study/trials.csv")).expect("trials.csv");
    for precision in ["fp32", "bf16", "fp16"] {
        let mut rows = trials.lines().filter(|row| row.split(',').nth(1) == Some(precision)).peekable();
        assert!(rows.peek().is_some(), "{precision}: {trials}");
        assert!(rows.all(|row| row.contains(",nan,") && row.contains("the norm of the gradient is ")), "{trials}");
    }
    assert!(!folder.path().join("study/best.toml").exists());
}

#[test]
fn ids_that_the_model_does_not_embed_are_refused_before_anything_is_trained() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    let rows = (0..20).map(|i| format!("the film,was good,{}\n", ["a", "b"][i % 2]));
    std::fs::write(at("train.csv"), format!("text,more,label\n{}", rows.collect::<String>())).expect("written");
    let options = ["--data", "train.csv", "--text-pair-column", "more", "--max-length", "24"];
    let probe = |model: &Path, out: &str| {
        let space = "precision = [\"fp32\"]\nmicro_batch = [2]\ncheckpoint_layers = \"none\"\n";
        std::fs::write(at("one.toml"), space).expect("written");
        let mut arguments = vec!["probe", "--model", model.to_str().expect("UTF-8"), "--vram", "64M", "--out", out];
        arguments.extend(["--effective-batch", "4", "--space", "./one.toml"]);
        arguments.extend(options);
        autofit(folder.path(), &arguments)
    };
    let found = probe(&model("tiny-bert"), "study");
    assert_eq!(found.status.code(), Some(0), "{}", text(&found.stderr));
    let changed = |name: &str, file: &str, from: &str, to: &str| {
        copied("tiny-bert", &at(name));
        let old = std::fs::read_to_string(at(name).join(file)).expect("text");
        assert!(old.contains(from), "{old}");
        std::fs::write(at(name).join(file), old.replace(from, to)).expect("written");
    };
    // Written by other programs: a special token with an id of its own, and a model with one type of token.
    let tokenizer = std::fs::read_to_string(model("tiny-bert").join("tokenizer.json")).expect("text");
    let mut json: serde_json::Value = serde_json::from_str(&tokenizer).expect("JSON");
    json["post_processor"]["special_tokens"]["[SEP]"]["ids"] = serde_json::json!([500]);
    changed("ids", "tokenizer.json", &tokenizer, &json.to_string());
    changed("types", "config.json", "\"type_vocab_size\": 2", "\"type_vocab_size\": 1");
    for (name, words) in [("ids", ["ids up to 500", "[SEP]"]), ("types", ["the type 1", "--text-pair-column"])] {
        let broken = at(name);
        let broken = broken.to_str().expect("UTF-8");
        let outputs = [
            probe(&at(name), "other"),
            autofit(folder.path(), &["run", "--config", "study/best.toml", "--model", broken, "--output", "trained"]),
            autofit(
                folder.path(),
                &["predict", "--model", broken, "--data", "train.csv", "--text-pair-column", "more"],
            ),
        ];
        for output in outputs {
            let said = text(&output.stderr);
            assert_eq!(output.status.code(), Some(1), "{name}: {said}");
            assert!(words.iter().all(|word| said.contains(word)) && !said.contains("panicked"), "{name}: {said}");
        }
        assert!(!at("other/trials.csv").exists() && !at("trained/model.safetensors").exists());
    }
}
