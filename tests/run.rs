//! A run that never dies: killed, out of memory, interrupted, its snapshots damaged, it ends with the very weights of a
//! run to which nothing happened.

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// A folder with a data set, and a configuration that was really probed.
struct Place {
    folder: TempDir,
}

impl Place {
    fn new(family: &str, precision: &str) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let mut csv = String::from("text,label\n");
        for i in 0..90 {
            let (word, label) = if i % 2 == 0 { ("good", "yes") } else { ("bad", "no") };
            // Longest last: what a run meets at its end was not seen before.
            csv += &format!("\"{}{word}\",{label}\n", "the film was ".repeat(i * 6 / 90));
        }
        fs::write(folder.path().join("train.csv"), csv).expect("written");
        let space = format!("precision = [\"{precision}\"]\nmicro_batch = [4]\ncheckpoint_layers = \"none\"\n");
        fs::write(folder.path().join("one.toml"), space).expect("written");
        let place = Place { folder };
        let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(family);
        let mut probe = place.autofit(&["probe", "--vram", "64M", "--data", "train.csv", "--max-length", "24"]);
        probe.arg("--model").arg(model).args(["--effective-batch", "8", "--space", "./one.toml", "--out", "study"]);
        succeeded(&probe.output().expect("autofit starts"));
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn autofit(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_autofit"));
        command.current_dir(self.folder.path()).args(arguments).stdin(Stdio::null());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// `autofit run` into a folder: 80 optimizer steps, unless `more` says otherwise.
    fn run(&self, output: &str, more: &[&str]) -> Command {
        let mut command = self.autofit(&["run", "--config", "study/best.toml", "--eval-fraction", "0.1"]);
        command.args(["--learning-rate", "1e-3", "--output", output]).args(more);
        if !more.contains(&"--steps") {
            command.args(["--steps", "80"]);
        }
        command
    }

    fn weights(&self, output: &str) -> Vec<u8> {
        fs::read(self.path(output).join("model.safetensors")).expect("weights")
    }

    fn snapshots(&self, output: &str) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.path(output).join("snapshots")).into_iter().flatten().flatten();
        let mut found: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
        found.sort();
        found
    }
}

fn succeeded(output: &Output) {
    assert_eq!(output.status.code(), Some(0), "{}", said(output));
}

fn said(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

#[test]
fn killed_at_any_moment_it_ends_with_the_same_weights() {
    let kills = std::env::var("AUTOFIT_KILLS").ok().and_then(|text| text.parse().ok()).unwrap_or(10);
    for (family, precision) in [("tiny-bert", "fp32"), ("tiny-distilbert", "fp16"), ("tiny-roberta", "bf16")] {
        let place = Place::new(family, precision);
        let started = Instant::now();
        succeeded(&place.run("whole", &[]).output().expect("autofit starts"));
        let whole = started.elapsed();
        let often = ["--snapshot-every", "1"];
        let mut killed = 0;
        while killed < kills {
            let mut child = place.run("parts", &[&often[..], &["--resume"]].concat()).spawn().expect("autofit starts");
            // Spread over the run's length, so that most moments of it are hit.
            let moment = whole.mul_f64(0.1 + 0.9 * f64::from(killed) / f64::from(kills));
            std::thread::sleep(moment.min(Duration::from_secs(5)));
            let ended = child.try_wait().expect("a state").is_some();
            child.kill().expect("killed");
            let status = child.wait().expect("ended");
            if ended || status.signal().is_none() {
                // It was faster than that: what is left is compared, and the next one begins anew.
                assert!(place.weights("parts") == place.weights("whole"), "{family}: other weights");
                fs::remove_dir_all(place.path("parts")).expect("removed");
            }
            killed += 1;
        }
        succeeded(&place.run("parts", &[&often[..], &["--resume"]].concat()).output().expect("autofit starts"));
        assert!(place.weights("parts") == place.weights("whole"), "{family}: other weights");
        assert_eq!(place.snapshots("parts"), [] as [PathBuf; 0]);
    }
}

#[test]
fn a_damaged_snapshot_is_named_and_the_one_before_it_is_used() {
    let place = Place::new("tiny-bert", "fp32");
    succeeded(&place.run("whole", &[]).output().expect("autofit starts"));
    interrupted(&place, "parts", &["--snapshot-every", "5", "--keep-snapshots", "3"]);
    let snapshots = place.snapshots("parts");
    let newest = snapshots.last().expect("a snapshot");
    let mut bytes = fs::read(newest).expect("read");
    let middle = bytes.len() / 2;
    bytes[middle] ^= 4;
    fs::write(newest, bytes).expect("written");
    let output = place.run("parts", &["--resume"]).output().expect("autofit starts");
    succeeded(&output);
    let name = newest.file_name().expect("a name").to_string_lossy().into_owned();
    assert!(said(&output).contains(&name) && said(&output).contains("damaged"), "{}", said(&output));
    assert!(place.weights("parts") == place.weights("whole"));
}

/// Starts a run and stops it by Ctrl-C once it has written snapshots.
fn interrupted(place: &Place, output: &str, more: &[&str]) -> Output {
    let before = place.snapshots(output);
    let child = place.run(output, more).spawn().expect("autofit starts");
    let limit = Instant::now() + Duration::from_secs(60);
    let new = |path: &PathBuf| path.to_string_lossy().contains("step-") && !before.contains(path);
    while place.snapshots(output).iter().filter(|path| new(path)).count() < 2 {
        assert!(Instant::now() < limit, "no snapshots");
        std::thread::sleep(Duration::from_millis(1));
    }
    let pid = libc::pid_t::try_from(child.id()).expect("a process");
    // SAFETY: a signal to a child that has not been waited for.
    assert_eq!(unsafe { libc::kill(pid, libc::SIGINT) }, 0);
    child.wait_with_output().expect("ended")
}

#[test]
fn interrupted_it_saves_and_goes_on_where_it_was() {
    let place = Place::new("tiny-bert", "fp32");
    // Long enough that it can't be over before the signal arrives.
    let steps = ["--steps", "3000"];
    let stopped = interrupted(&place, "parts", &[&steps[..], &["--snapshot-every", "20"]].concat());
    assert_eq!(stopped.status.code(), Some(130), "{}", said(&stopped));
    assert!(said(&stopped).contains("--resume"), "{}", said(&stopped));
    assert!(!place.path("parts/model.safetensors").exists());
    // Neither lost by accident, nor continued as something else.
    let refused = place.run("parts", &steps).output().expect("autofit starts");
    assert_eq!(refused.status.code(), Some(1));
    assert!(said(&refused).contains("--resume") && said(&refused).contains("--overwrite"), "{}", said(&refused));
    let other = place.run("parts", &[&steps[..], &["--resume", "--warmup", "0.2"]].concat()).output().expect("starts");
    assert_eq!(other.status.code(), Some(1));
    assert!(said(&other).contains("hyper.warmup was 0.06 and is 0.2"), "{}", said(&other));
    let resumed = interrupted(&place, "parts", &[&steps[..], &["--resume", "--snapshot-every", "20"]].concat());
    assert!(said(&resumed).contains("going on after step"), "{}", said(&resumed));
    // Metrics have each step once, in order.
    let text = fs::read_to_string(place.path("parts/metrics.csv")).expect("metrics");
    let steps: Vec<usize> = text
        .lines()
        .skip(1)
        .filter(|line| line.split(',').nth(2) != Some(""))
        .filter_map(|line| line.split(',').next()?.parse().ok())
        .collect();
    assert_eq!(steps, (1..=steps.len()).collect::<Vec<_>>());
}

#[test]
fn out_of_memory_it_goes_on_with_less() {
    let place = Place::new("tiny-bert", "fp32");
    let best = fs::read_to_string(place.path("study/best.toml")).expect("best.toml");
    let table: toml::Table = best.parse().expect("TOML");
    let peak = table["measured"]["peak_bytes"].as_integer().expect("bytes");
    // As if it had been found where there was more memory: eight rows at a time where four just fit.
    let less = best.replace(&format!("cap_bytes = {}", 64 << 20), &format!("cap_bytes = {peak}"));
    let less = less.replacen("micro_batch = 4", "micro_batch = 8", 1);
    assert!(less.contains("micro_batch = 8") && less.contains(&format!("cap_bytes = {peak}")));
    fs::write(place.path("study/best.toml"), less).expect("written");
    // In the order of the file: shuffled, eight mixed rows may fit into what four of the longest took.
    let output = place.run("model", &["--no-shuffle", "--snapshot-every", "1"]).output().expect("autofit starts");
    succeeded(&output);
    assert!(said(&output).contains("going on from the last snapshot with micro-batch 4"), "{}", said(&output));
    // Where nothing is left to lower, it says what the memory is needed for.
    let none = best.replace(&format!("cap_bytes = {}", 64 << 20), "cap_bytes = 300000");
    fs::write(place.path("study/best.toml"), none).expect("written");
    let output = place.run("none", &[]).output().expect("autofit starts");
    assert_eq!(output.status.code(), Some(1));
    for word in ["one row at a time", "Weights take", "--space memory"] {
        assert!(said(&output).contains(word), "{word}: {}", said(&output));
    }
}

#[test]
fn the_best_model_is_kept_and_a_run_that_no_longer_improves_ends() {
    let place = Place::new("tiny-bert", "fp32");
    // A run of fewer steps under the same rate then comes to the same weights.
    let rate = ["--schedule", "constant", "--warmup", "0"];
    let more = ["--steps", "400", "--evaluate-every", "5", "--patience", "4"];
    let output = place.run("best", &[&rate[..], &more].concat()).output().expect("autofit starts");
    succeeded(&output);
    let said = said(&output);
    assert!(said.contains("ended early") && said.contains("kept     the model of step"), "{said}");
    let kept: usize =
        said.split("the model of step ").nth(1).and_then(|t| t.split(',').next()?.parse().ok()).expect("a step");
    let metrics = fs::read_to_string(place.path("best/metrics.csv")).expect("metrics");
    let scored: Vec<(usize, f64)> = metrics
        .lines()
        .filter_map(|line| {
            let cells: Vec<&str> = line.split(',').collect();
            Some((cells[0].parse().ok()?, cells[8].parse().ok()?))
        })
        .collect();
    let best = scored.iter().map(|(_, score)| *score).max_by(f64::total_cmp).expect("scores");
    assert_eq!(scored.iter().find(|(_, score)| *score == best).expect("a score").0, kept, "{scored:?}");
    assert_eq!(scored.len(), scored.iter().position(|(step, _)| *step == kept).expect("its place") + 5);
    assert!(!place.path("best/snapshots").exists());
    // The kept model is the one of its step, and not the last.
    let (last, _) = scored.last().expect("scores");
    for (folder, steps, same) in [("short", kept, true), ("long", *last, false)] {
        let more = ["--steps", &steps.to_string()];
        succeeded(&place.run(folder, &[&rate[..], &more].concat()).output().expect("autofit starts"));
        assert_eq!(place.weights(folder) == place.weights("best"), same, "the weights after {steps} steps");
    }
}

#[test]
fn over_its_own_model_by_any_name_a_run_loses_no_file() {
    let place = Place::new("tiny-bert", "fp32");
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/tiny-bert");
    let tokenizer = ["tokenizer.json", "tokenizer_config.json"];
    let copy = |to: &str| {
        fs::create_dir(place.path(to)).expect("a folder");
        for name in ["config.json", "model.safetensors"].iter().chain(&tokenizer) {
            fs::copy(fixture.join(name), place.path(to).join(name)).expect("copied");
        }
    };
    let whole = |folder: &str| {
        for name in tokenizer {
            let read = |path: PathBuf| fs::read(path).expect("a file of the tokenizer");
            assert!(read(place.path(folder).join(name)) == read(fixture.join(name)), "{folder}: {name} is another one");
        }
    };
    copy("m");
    std::os::unix::fs::symlink("m", place.path("link")).expect("a link");
    let absolute = place.path("m").display().to_string();
    let spellings = [("./m", "m"), ("m", "m/"), ("link", "m"), ("m", "link"), (&absolute, "m"), ("m", "study/../m")];
    for (model, output) in spellings {
        let before = place.weights("m");
        let more = ["--model", model, "--overwrite", "--steps", "2"];
        succeeded(&place.run(output, &more).output().expect("autofit starts"));
        whole("m");
        assert!(place.weights("m") != before, "{model} into {output}: the model is the one that was trained");
        let predict = ["predict", "--model", "m", "--data", "train.csv", "--quiet"];
        succeeded(&place.autofit(&predict).output().expect("autofit starts"));
    }
    // A folder whose names lead to files of others: those stay as they are.
    fs::create_dir(place.path("other")).expect("a folder");
    let names = ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "metrics.csv"];
    fs::write(place.path("theirs"), "mine").expect("written");
    for (number, name) in names.iter().enumerate() {
        let link = place.path("other").join(name);
        match number % 2 {
            0 => std::os::unix::fs::symlink(place.path("theirs"), link).expect("a link"),
            _ => fs::hard_link(place.path("theirs"), link).expect("a link"),
        }
    }
    let more = ["--model", "m", "--overwrite", "--steps", "2"];
    succeeded(&place.run("other", &more).output().expect("autofit starts"));
    assert_eq!(fs::read_to_string(place.path("theirs")).expect("text"), "mine");
    whole("m");
    whole("other");
    // The data is never what is written over.
    let rows = fs::read(place.path("train.csv")).expect("rows");
    fs::remove_file(place.path("other/metrics.csv")).expect("removed");
    fs::hard_link(place.path("train.csv"), place.path("other/metrics.csv")).expect("a link");
    let refused = place.run("other", &more).output().expect("autofit starts");
    assert_eq!(refused.status.code(), Some(1), "{}", said(&refused));
    assert!(said(&refused).contains("train.csv is a file that the run would write over"), "{}", said(&refused));
    assert!(fs::read(place.path("train.csv")).expect("rows") == rows);
}

#[test]
fn a_run_whose_numbers_run_away_says_what_to_do_and_saves_nothing() {
    let place = Place::new("tiny-bert", "bf16");
    let wild = ["--learning-rate", "1e30", "--snapshot-every", "1"];
    let run = |more: &[&str]| {
        let mut command = place.autofit(&["run", "--config", "study/best.toml", "--output", "wild", "--steps", "20"]);
        command.args(wild).args(more).output().expect("autofit starts")
    };
    let output = run(&[]);
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    for word in ["error: step 3: the ", "lower --learning-rate (it was 1e30), or precision fp32", "--overwrite"] {
        assert!(said(&output).contains(word), "{word}: {}", said(&output));
    }
    assert!(!place.path("wild/model.safetensors").exists());
    // What was saved before is whole: going on comes to the same step, and says the same.
    let again = run(&["--resume"]);
    assert_eq!(again.status.code(), Some(1), "{}", said(&again));
    assert!(said(&again).contains("going on after step 2") && said(&again).contains("error: step 3: the "));
    assert!(!said(&again).contains("note:"), "{}", said(&again));
}
