//! Adapters: their gradient against differences of the loss, what they leave alone, what they save, what is saved.

mod common;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use autofit::data::batch::PadTo;
use autofit::data::corpus::Targets;
use autofit::data::tokenize::Encoded;
use autofit::model::pass::Pass;
use autofit::model::source::ModelFiles;
use autofit::model::{Classifier, ModelConfig, presets};
use autofit::plan::{Knobs, LORA_ALPHA, Precision};
use autofit::probe::protocol::{Effort, Job, Measurement, ModelSource, PROTOCOL, ProbeSpec, Shapes, Task};
use autofit::probe::{Executor, LocalProcess};
use autofit::train::batch::MicroBatch;
use autofit::train::save;
use autofit::train::snapshot::Snapshots;
use autofit::train::step::{Engine, Learner, StepSettings};
use burn::module::{Module, ModuleMapper, Param};
use burn::tensor::Tensor;
use common::{adapted, device, gradients, parameters, tiny_config};

fn rows() -> (Vec<Encoded>, Targets) {
    let lengths = [12, 7, 3, 1, 9, 5];
    let row = |(r, &n): (usize, &usize)| Encoded {
        ids: (0..n).map(|i| (2 + (r * 17 + i * 5) % 47) as u32).collect(),
        type_ids: vec![0; n],
        truncated: false,
    };
    (lengths.iter().enumerate().map(row).collect(), Targets::Classes((0..6).map(|r| r % 3).collect()))
}

fn batch(config: &ModelConfig) -> MicroBatch {
    let (rows, targets) = rows();
    MicroBatch::new(&rows.iter().collect::<Vec<_>>(), targets, PadTo::Longest, config, &device()).expect("fits")
}

fn learner(model: Classifier, config: &ModelConfig, engine: Engine) -> Learner {
    let knobs = Knobs { lora_rank: Some(4), ..Knobs::new(Precision::Fp32, 6, 1) };
    let settings = StepSettings { dropout_seed: None, engine, ..StepSettings::new(knobs, 0) };
    Learner::new(model, config.clone(), settings, device())
}

/// Moves the parameters whose path holds a word along their own gradients.
struct Move<'a> {
    path: Vec<String>,
    word: &'a str,
    by: f64,
    learner: &'a Learner,
    /// Sum of the squares of the gradients that were moved along.
    squares: f64,
}

impl ModuleMapper for Move<'_> {
    fn enter_module(&mut self, name: &str, _: &str) {
        self.path.push(name.into());
    }
    fn exit_module(&mut self, _: &str, _: &str) {
        self.path.pop();
    }
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let gradient = self.learner.gradients().get::<D>(param.id);
        let Some(gradient) = gradient.filter(|_| self.path.join(".").contains(self.word)) else { return param };
        self.squares += f64::from(gradient.clone().square().sum().into_scalar::<f32>());
        let by = self.by;
        param.map(|value| (value.without_autodiff() + gradient.clone() * by).autodiff().require_grad())
    }
}

#[test]
fn the_gradient_is_the_slope_of_the_loss() {
    for family in ["bert", "distilbert", "roberta"] {
        let config = tiny_config(family);
        for engine in [Engine::Fused, Engine::Tape] {
            let model = adapted(Classifier::init(&config, 7, &device()), 4, 0);
            let mut here = learner(model.clone(), &config, engine);
            here.accumulate(&batch(&config), 6.0);
            for word in ["query_adapter.down", "query_adapter.up", "value_adapter.down", "value_adapter.up", "head"] {
                let loss_at = |by: f64| {
                    let mut step = Move { path: vec![], word, by, learner: &here, squares: 0.0 };
                    let moved = model.clone().map(&mut step);
                    let squares = step.squares;
                    let mut there = learner(moved, &config, engine);
                    there.accumulate(&batch(&config), 6.0);
                    (there.update(0.0).expect("finite").loss, squares)
                };
                let squares = loss_at(0.0).1;
                // A step that moves the loss by about a hundredth: far above rounding, and still almost straight.
                let by = 0.01 / squares;
                let slope = (loss_at(by).0 - loss_at(-by).0) / (2.0 * by);
                assert!((slope / squares - 1.0).abs() < 0.02, "{family} {engine:?} {word}: {slope} is not {squares}");
            }
        }
    }
}

#[test]
fn a_fresh_adapter_changes_nothing_and_training_changes_nothing_else() {
    let config = tiny_config("bert");
    let plain = Classifier::init(&config, 7, &device());
    let logits = |model: &Classifier| -> Vec<f32> {
        let logits = model.valid().forward(&batch(&config).inputs, &config, Pass::evaluation(Precision::Fp32));
        logits.into_data().iter::<f32>().collect()
    };
    for engine in [Engine::Fused, Engine::Tape] {
        let mut learner = learner(plain.clone(), &config, engine);
        assert_eq!(logits(&plain), logits(learner.model()));
        let before = parameters(learner.model(), &config);
        let mut losses = Vec::new();
        for _ in 0..40 {
            learner.accumulate(&batch(&config), 6.0);
            losses.push(learner.update(0.02).expect("finite").loss);
        }
        assert!(losses[39] < 0.5 * losses[0], "{engine:?} learned nothing: {losses:?}");
        for (name, values) in parameters(learner.model(), &config) {
            let trained = name.contains("_adapter.") || name.contains("pooler") || name.starts_with("classifier");
            assert_eq!(values != before[&name], trained, "{engine:?}: {name}");
        }
    }
}

#[test]
fn kaimings_bounds_and_alpha_are_pefts() {
    let config = tiny_config("bert");
    let model = Classifier::init(&config, 7, &device()).with_adapters(8, 0, 3);
    let adapter = model.layers[1].value_adapter.as_ref().expect("an adapter");
    let values: Vec<f32> = adapter.down.weight.val().into_data().iter::<f32>().collect();
    let bound = 1.0 / 24f32.sqrt();
    let largest = values.iter().map(|v| v.abs()).max_by(f32::total_cmp).expect("values");
    assert!(largest <= bound && largest > 0.9 * bound, "{largest} and {bound}");
    assert!(adapter.up.weight.val().into_data().iter::<f32>().all(|v| v == 0.0));
    assert_eq!((adapter.rank(), adapter.scale()), (8, LORA_ALPHA / 8.0));
    let other = Classifier::init(&config, 7, &device()).with_adapters(8, 0, 4);
    let other = other.layers[1].value_adapter.as_ref().expect("an adapter").down.weight.val();
    assert!(other.into_data().iter::<f32>().collect::<Vec<_>>() != values, "another seed gave the same values");
}

fn fixture(family: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(family)
}

#[test]
fn a_saved_model_is_plain_and_gives_the_same_logits() {
    for family in ["tiny-bert", "tiny-distilbert", "tiny-roberta"] {
        let files = ModelFiles::open(&ModelSource::Folder(fixture(family))).expect("a model");
        let config = files.config.clone();
        let load = |files: &ModelFiles| files.load(&config, 1, &device()).expect("weights");
        let plain = load(&files).0;
        let model = adapted(plain.clone(), 4, 1);
        let saved = tempfile::tempdir().expect("a folder");
        save::folder(save::Weights::Of(&model), &config, &files, 32, saved.path()).expect("saved");
        let again = ModelFiles::open(&ModelSource::Folder(saved.path().into())).expect("a model");
        let (merged, report) = load(&again);
        assert_eq!(report, Default::default(), "{family}: the saved folder is not plain");
        let own = batch(&config);
        // Dropout off without a tape takes the fused kernels, with one Burn's operations.
        let fused =
            |model: &Classifier| values(model.valid().forward(&own.inputs, &config, Pass::evaluation(Precision::Fp32)));
        let taped = |model: &Classifier| values(model.forward(&own.inputs, &config, Pass::evaluation(Precision::Fp32)));
        let worst = |a: &[f32], b: &[f32]| {
            assert_eq!(a.len(), b.len());
            a.iter().zip(b).map(|(x, y)| (x - y).abs()).max_by(f32::total_cmp).expect("values")
        };
        let expected = fused(&merged);
        assert!(worst(&fused(&model), &expected) < 1e-5, "{family}: {}", worst(&fused(&model), &expected));
        assert!(worst(&taped(&model), &expected) < 1e-4, "{family}: {}", worst(&taped(&model), &expected));
        let moved = worst(&fused(&plain), &expected);
        assert!(moved > 1e-3 && moved.is_finite(), "{family}: the adapters did nothing");
    }
}

fn values(tensor: Tensor<2>) -> Vec<f32> {
    tensor.into_data().iter::<f32>().collect()
}

/// What a real probe of a preset counts.
fn measured(lora_rank: Option<usize>) -> Measurement {
    let spec = ProbeSpec {
        model: ModelSource::Preset("tinybert".into()),
        num_labels: 2,
        knobs: Knobs { lora_rank, ..Knobs::new(Precision::Fp32, 2, 0) },
        effective_batch: 4,
        shapes: Shapes { longest: 32, typical: vec![], distinct: None, rows: vec![] },
        effort: Effort { warmup: 0, min_timed: 1, max_timed: 1, seconds: 0.0, evaluate: false },
        seed: 1,
    };
    let job = Job { protocol: PROTOCOL, device: "cpu".into(), cap_bytes: None, task: Task::Probe(spec) };
    let mut worker = LocalProcess::new(env!("CARGO_BIN_EXE_autofit"), ["__worker"]);
    let finished = worker.run(&job, Duration::MAX, &mut |_| {});
    finished.attempt.measurement.unwrap_or_else(|| panic!("{}", finished.attempt.reason))
}

#[test]
fn a_step_holds_no_gradient_and_no_state_of_what_is_frozen() {
    let (whole, lora) = (measured(None), measured(Some(8)));
    let config = presets::config("tinybert").expect("a preset");
    let (d, wide, layers) = (config.hidden_size as u64, config.intermediate_size as u64, config.layers as u64);
    let tables = (config.vocab_size + config.max_positions + config.token_types) as u64 * d + 2 * d;
    let encoder = layers * (4 * (d * d + d) + 2 * d * wide + wide + d + 4 * d);
    let adapters = layers * 2 * 2 * d * 8;
    // Two moments of everything that is frozen, and the encoder's gradients: those of the tables are kept by rows.
    let saved = 8 * (tables + encoder) + 4 * encoder;
    // Weights, gradients and moments of the adapters, and two merged matrices.
    let spent = 16 * adapters + 2 * 4 * d * d;
    assert!(
        lora.peak_bytes + saved <= whole.peak_bytes + spent,
        "{} {} {saved} {spent}",
        lora.peak_bytes,
        whole.peak_bytes
    );
    assert!(lora.optimizer_bytes <= 8 * (adapters + d * d + 4 * d + 2) + (1 << 20), "{}", lora.optimizer_bytes);
    let own = lora.weight_bytes.abs_diff(whole.weight_bytes + 4 * adapters);
    assert!(own < 64 << 10, "{} {}", lora.weight_bytes, whole.weight_bytes);
}

fn autofit(folder: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_autofit")).current_dir(folder).args(arguments).output().expect("autofit starts")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn probes_with_adapters_trains_them_and_saves_a_plain_model() {
    let folder = tempfile::tempdir().expect("a folder");
    let line = |i: usize| if i.is_multiple_of(2) { "the film was good,yes\n" } else { "the film was bad,no\n" };
    let csv: String = std::iter::once("text,label\n").chain((0..80).map(line)).collect();
    std::fs::write(folder.path().join("train.csv"), csv).expect("written");
    let space = "precision = [\"fp32\"]\nmicro_batch = [8]\ncheckpoint_layers = \"none\"\nlora_rank = [4]\n";
    std::fs::write(folder.path().join("space.toml"), space).expect("written");
    let model = fixture("tiny-bert");
    let probe = autofit(
        folder.path(),
        &[
            "probe",
            "--model",
            model.to_str().expect("UTF-8"),
            "--vram",
            "64M",
            "--data",
            "train.csv",
            "--max-length",
            "16",
            "--effective-batch",
            "16",
            "--space",
            "./space.toml",
            "--out",
            "study",
        ],
    );
    assert_eq!(probe.status.code(), Some(0), "{}", text(&probe.stderr));
    let best = std::fs::read_to_string(folder.path().join("study/best.toml")).expect("best.toml");
    assert!(best.contains("lora_rank = 4"), "{best}");
    let run = |more: &[&str]| {
        let mut arguments =
            vec!["run", "--config", "study/best.toml", "--data", "train.csv", "--learning-rate", "1e-2"];
        arguments.extend(["--epochs", "8", "--eval-fraction", "0.2"]);
        arguments.extend(more);
        autofit(folder.path(), &arguments)
    };
    let trained = run(&["--output", "model"]);
    assert_eq!(trained.status.code(), Some(0), "{}", text(&trained.stderr));
    assert!(text(&trained.stdout).contains("accuracy 1.0000"), "{}", text(&trained.stdout));
    let loaded = |folder: &Path| -> (BTreeMap<String, Vec<f32>>, ModelConfig) {
        let files = ModelFiles::open(&ModelSource::Folder(folder.into())).expect("a model");
        let (model, report) = files.load(&files.config, 1, &device()).expect("weights");
        assert_eq!(report, Default::default());
        (parameters(&model, &files.config), files.config)
    };
    let (before, after) = (loaded(&model).0, loaded(&folder.path().join("model")).0);
    for (name, values) in &after {
        let trained =
            name.contains("self.query.weight") || name.contains("self.value.weight") || name.contains("pooler");
        if !name.starts_with("classifier") {
            assert_eq!(values != &before[name], trained, "{name}");
        }
    }
    // With the two lowest layers frozen, the third alone has adapters.
    let frozen = run(&["--output", "frozen", "--freeze-layers", "2"]);
    assert_eq!(frozen.status.code(), Some(0), "{}", text(&frozen.stderr));
    let frozen = loaded(&folder.path().join("frozen")).0;
    let queries: Vec<_> = frozen.iter().filter(|(name, _)| name.contains("self.query.weight")).collect();
    assert_eq!(queries.len(), 3);
    for (name, values) in queries {
        assert_eq!(values != &before[name], name.contains("layer.2."), "{name}");
    }
    for (value, code, word) in [("4", 1, "the model has 3 layers"), ("some", 2, "embeddings")] {
        let refused = run(&["--output", "none", "--freeze-layers", value]);
        assert_eq!(refused.status.code(), Some(code), "{}", text(&refused.stderr));
        assert!(text(&refused.stderr).contains(word), "{}", text(&refused.stderr));
    }
}

#[test]
fn a_resumed_training_goes_on_with_the_same_adapters() {
    let config = tiny_config("bert");
    for engine in [Engine::Fused, Engine::Tape] {
        let fresh = |seed: u64| learner(Classifier::init(&config, seed, &device()), &config, engine);
        let steps = |learner: &mut Learner, count: usize| {
            for _ in 0..count {
                learner.accumulate(&batch(&config), 6.0);
                learner.update(0.01).expect("finite");
            }
        };
        let folder = tempfile::tempdir().expect("a folder");
        let snapshots = Snapshots::new(folder.path().join("snapshots"), 1);
        let mut whole = fresh(7);
        steps(&mut whole, 3);
        snapshots.write(3, &(), whole.parameters()).expect("written");
        steps(&mut whole, 3);
        // Another seed: whatever it has, it has from the snapshot.
        let mut resumed = fresh(8);
        let mut newest = snapshots.newest::<()>().expect("readable").opened.expect("a snapshot");
        resumed.resume(&mut newest, 3, None).expect("resumed");
        resumed.accumulate(&batch(&config), 6.0);
        assert_eq!(gradients(resumed.model(), &config, resumed.gradients()).len(), 4 + 3 * 2 * 2, "{engine:?}");
        resumed.forget();
        steps(&mut resumed, 3);
        assert_eq!(parameters(resumed.model(), &config), parameters(whole.model(), &config), "{engine:?}");
    }
}
