//! Numbers of PyTorch and `transformers` (`tests/python/make_fixtures.py`) against ours: logits, loss, every gradient,
//! and every parameter after three optimizer steps.

mod common;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use autofit::data::batch::PadTo;
use autofit::data::corpus::Targets;
use autofit::data::tokenize::Encoded;
use autofit::model::checkpoint::Checkpoint;
use autofit::model::pass::Pass;
use autofit::model::weights::LoadReport;
use autofit::model::{Classifier, ModelConfig, weights};
use autofit::plan::{Knobs, Precision};
use autofit::train::batch::MicroBatch;
use autofit::train::step::{Learner, StepSettings};
use burn::module::Module;
use common::{device, gradients, parameters, worst_relative};
use safetensors::{Dtype, SafeTensors};

const FAMILIES: [&str; 3] = ["tiny-bert", "tiny-distilbert", "tiny-roberta"];

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures")
}

fn load(folder: &Path) -> (Classifier, ModelConfig, LoadReport) {
    let config = ModelConfig::from_file(&folder.join("config.json")).expect("config.json");
    let model = Classifier::init(&config, 1, &device());
    let mut checkpoint = Checkpoint::open(folder).expect("weights");
    let (model, report) = weights::load(model, &config, &mut checkpoint).expect("a whole checkpoint");
    (model, config, report)
}

/// What PyTorch computed, by name.
struct Expected(BTreeMap<String, Vec<f64>>);

impl Expected {
    fn read(file: &Path) -> Self {
        let bytes = std::fs::read(file).expect("expected.safetensors");
        let tensors = SafeTensors::deserialize(&bytes).expect("safetensors");
        Expected(tensors.tensors().into_iter().map(|(name, view)| (name, numbers(&view))).collect())
    }

    fn get(&self, name: &str) -> &[f64] {
        self.0.get(name).unwrap_or_else(|| panic!("no {name}"))
    }

    fn under(&self, prefix: &str) -> BTreeMap<String, Vec<f32>> {
        let narrow = |values: &[f64]| values.iter().map(|&v| v as f32).collect();
        self.0.iter().filter_map(|(name, v)| Some((name.strip_prefix(prefix)?.to_string(), narrow(v)))).collect()
    }

    /// The stored rows as a micro-batch padded to the stored length.
    fn batch(&self, config: &ModelConfig) -> MicroBatch {
        let labels: Vec<usize> = self.get("labels").iter().map(|&l| l as usize).collect();
        let length = self.get("input_ids").len() / labels.len();
        let row = |name: &str, r: usize| -> Vec<u32> {
            let Some(all) = self.0.get(name) else { return vec![] };
            let real = self.get("attention_mask")[r * length..(r + 1) * length].iter().filter(|&&m| m == 1.0).count();
            all[r * length..r * length + real].iter().map(|&v| v as u32).collect()
        };
        let rows: Vec<Encoded> = (0..labels.len())
            .map(|r| {
                let ids = row("input_ids", r);
                let mut type_ids: Vec<u8> = row("token_type_ids", r).iter().map(|&t| t as u8).collect();
                type_ids.resize(ids.len(), 0);
                Encoded { ids, type_ids, truncated: false }
            })
            .collect();
        let rows: Vec<&Encoded> = rows.iter().collect();
        MicroBatch::new(&rows, Targets::Classes(labels), PadTo::Fixed(length), config, &device())
            .expect("rows that fit")
    }
}

fn numbers(view: &safetensors::tensor::TensorView<'_>) -> Vec<f64> {
    let data = view.data();
    match view.dtype() {
        Dtype::F32 => data.chunks_exact(4).map(|b| f64::from(f32::from_le_bytes(b.try_into().unwrap()))).collect(),
        Dtype::F64 => data.chunks_exact(8).map(|b| f64::from_le_bytes(b.try_into().unwrap())).collect(),
        Dtype::I64 => data.chunks_exact(8).map(|b| i64::from_le_bytes(b.try_into().unwrap()) as f64).collect(),
        other => panic!("{other:?}"),
    }
}

fn assert_close(ours: &[f32], theirs: &[f64], tolerance: f64, what: &str) {
    assert_eq!(ours.len(), theirs.len(), "{what}");
    for (&a, &b) in ours.iter().zip(theirs) {
        assert!((f64::from(a) - b).abs() <= tolerance, "{what}: {a:e} is not {b:e}");
    }
}

fn logits(model: &Classifier, config: &ModelConfig, batch: &MicroBatch) -> Vec<f32> {
    let logits = model.valid().forward(&batch.inputs, config, Pass::evaluation(Precision::Fp32));
    logits.into_data().iter::<f32>().collect()
}

fn learner(model: Classifier, config: ModelConfig, density: usize) -> Learner {
    let settings = StepSettings { dropout_seed: None, ..StepSettings::new(Knobs::new(Precision::Fp32, 8, density), 0) };
    Learner::new(model, config, settings, device())
}

#[test]
fn logits_loss_and_gradients_are_pytorchs() {
    for family in FAMILIES {
        let folder = fixtures().join(family);
        let expected = Expected::read(&folder.join("expected.safetensors"));
        let (model, config, report) = load(&folder);
        assert_eq!(report, LoadReport::default(), "{family}");
        let batch = expected.batch(&config);
        assert_close(&logits(&model, &config, &batch), expected.get("logits"), 1e-4, family);
        for density in 0..=config.layers {
            let mut learner = learner(model.clone(), config.clone(), density);
            learner.accumulate(&batch, batch.len() as f64);
            let ours = gradients(learner.model(), &config, learner.gradients());
            let (worst, name) = worst_relative(&ours, &expected.under("grad."));
            assert!(worst <= 1e-4, "{family} at density {density}: gradient of {name} differs by {worst:e}");
            let outcome = learner.update(0.0).expect("finite");
            assert_close(&[outcome.loss as f32], expected.get("loss"), 1e-5, "loss");
            let norm = expected.get("grad_norm")[0];
            assert!((outcome.gradient_norm / norm - 1.0).abs() < 1e-4, "{} {norm}", outcome.gradient_norm);
        }
    }
}

#[test]
fn three_steps_of_adamw_are_pytorchs() {
    for family in FAMILIES {
        let folder = fixtures().join(family);
        let expected = Expected::read(&folder.join("expected.safetensors"));
        let (model, config, _) = load(&folder);
        let batch = expected.batch(&config);
        let before = parameters(&model, &config);
        let mut learner = learner(model, config.clone(), 1);
        for &rate in expected.get("lrs") {
            learner.accumulate(&batch, batch.len() as f64);
            learner.update(rate).expect("finite");
        }
        let after = parameters(learner.model(), &config);
        let theirs = expected.under("after3.");
        // Adam's first steps move every weight by the learning rate whatever its gradient's size: a gradient that is
        // zero by symmetry moves by the sign of rounding, here as there.
        for (name, ours) in &after {
            if name.ends_with("key.bias") || name.ends_with("k_lin.bias") {
                continue;
            }
            assert_eq!(ours.len(), theirs[name].len(), "{family}: {name}");
            let differences: Vec<f32> = ours.iter().zip(&theirs[name]).map(|(a, b)| (a - b).abs()).collect();
            // NaN is the largest of all.
            let worst = differences.iter().copied().max_by(f32::total_cmp).expect("values");
            let mean = differences.iter().sum::<f32>() / differences.len() as f32;
            assert!(worst < 1e-4 && mean < 1e-6, "{family}: {name} differs by {worst:e}, {mean:e} on average");
        }
        let (moved, _) = worst_relative(&before, &after);
        assert!(moved > 1e-4, "{family}: nothing was learned");
    }
}

#[test]
fn a_prefix_shards_and_half_precision_change_nothing() {
    let reference = Expected::read(&fixtures().join("tiny-bert/expected.safetensors"));
    for (variant, tolerance) in [("sharded", 1e-4), ("surplus", 1e-4), ("fp16", 1e-4), ("bf16", 1e-4)] {
        let folder = fixtures().join("variants").join(variant);
        let (model, config, report) = load(&folder);
        let own = folder.join("expected.safetensors");
        let expected = if own.exists() { Expected::read(&own) } else { Expected(reference.0.clone()) };
        let batch = reference.batch(&config);
        assert_close(&logits(&model, &config, &batch), expected.get("logits"), tolerance, variant);
        assert_eq!(report.initialised, Vec::<String>::new(), "{variant}");
        assert_eq!(!report.unused.is_empty(), variant == "surplus", "{variant}: {:?}", report.unused);
    }
}

#[test]
fn a_bare_encoder_gets_a_head_and_says_so() {
    // Without the prefix, and once under the names of the first BERT checkpoints.
    for variant in ["bare", "legacy"] {
        let folder = fixtures().join("variants").join(variant);
        let config = ModelConfig::from_file(&folder.join("config.json")).expect("config.json");
        let config = config.with_labels(vec!["a".into(), "b".into(), "c".into()]);
        let fresh = Classifier::init(&config, 1, &device());
        let mut checkpoint = Checkpoint::open(&folder).expect("weights");
        let (model, report) = weights::load(fresh, &config, &mut checkpoint).expect("an encoder");
        assert_eq!(report.initialised, ["classifier.weight", "classifier.bias"].map(String::from).to_vec());
        assert_eq!(report.unused, Vec::<String>::new());
        let (whole, ..) = load(&fixtures().join("tiny-bert"));
        let (ours, mut theirs) = (parameters(&model, &config), parameters(&whole, &config));
        for name in ["classifier.weight", "classifier.bias"] {
            theirs.insert(name.into(), ours[name].clone());
        }
        assert_eq!(worst_relative(&ours, &theirs).0, 0.0, "{variant}");
    }
}

#[test]
fn a_missing_encoder_tensor_is_named() {
    let folder = fixtures().join("variants/missing");
    let config = ModelConfig::from_file(&folder.join("config.json")).expect("config.json");
    let mut checkpoint = Checkpoint::open(&folder).expect("weights");
    let error = weights::load(Classifier::init(&config, 1, &device()), &config, &mut checkpoint).expect_err("missing");
    let text = format!("{error:#}");
    assert!(text.contains("bert.encoder.layer."), "{text}");
}

#[test]
fn saved_weights_are_loaded_again_unchanged() {
    for family in FAMILIES {
        let folder = fixtures().join(family);
        let (model, config, _) = load(&folder);
        let saved = tempfile::tempdir().expect("a folder");
        weights::save(&model, &config, &saved.path().join("model.safetensors")).expect("saved");
        std::fs::copy(folder.join("config.json"), saved.path().join("config.json")).expect("copied");
        let (again, _, report) = load(saved.path());
        assert_eq!(report, LoadReport::default());
        assert_eq!(worst_relative(&parameters(&model, &config), &parameters(&again, &config)).0, 0.0);
        let names = |folder: &Path| -> Vec<String> {
            Checkpoint::open(folder).expect("weights").names().map(String::from).collect()
        };
        assert_eq!(names(saved.path()), names(&folder), "{family}: tensor names");
    }
}

#[test]
fn the_real_minilm_gives_pytorchs_logits() {
    let Some(folder) = common::asset("minilm") else { return };
    let config = ModelConfig::from_file(&folder.join("config.json")).expect("config.json");
    let config = config.with_labels(vec!["0".into(), "1".into()]);
    let model = Classifier::init(&config, 1, &device());
    let (mut model, _) =
        weights::load(model, &config, &mut Checkpoint::open(&folder).expect("weights")).expect("MiniLM's weights");
    let width = config.hidden_size;
    let head: Vec<f32> = (0..width * 2).map(|k| (((k % 2) * width + k / 2) as f64).sin() as f32 / 10.0).collect();
    let head = burn::tensor::TensorData::new(head, [width, 2]);
    model.head.classifier.weight =
        model.head.classifier.weight.map(|w| burn::tensor::Tensor::from_data(head.clone(), &w.device()));
    model.head.classifier.bias = model.head.classifier.bias.map(|bias| bias.map(|b| b.zeros_like()));
    let expected = Expected::read(&fixtures().join("minilm_expected.safetensors"));
    let batch = expected.batch(&config);
    assert_close(&logits(&model, &config, &batch), expected.get("logits"), 1e-4, "MiniLM's logits");
}
