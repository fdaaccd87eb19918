//! From options and `best.toml` to what a worker is told.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};

use super::{METRICS, Request, TENSORBOARD};
use crate::cli::options::TrainOptions;
use crate::cli::talk::Talk;
use crate::cli::{models, number, probe};
use crate::data::order::RowOrder;
use crate::model::hub::{Need, TOKENIZER_FILES};
use crate::model::source::ModelFiles;
use crate::plan::{Knobs, Precision, bounds, files};
use crate::probe::protocol::ModelSource;
use crate::train::prepare;
use crate::train::snapshot::Snapshots;
use crate::train::spec::{DataSpec, Duration, Evaluation, Hyper, Saving, Selection, Start, TrainSpec};
use crate::train::trainer::SNAPSHOTS;

/// What a worker is told to do.
///
/// # Errors
/// If an option makes no sense, or the output folder is not free.
pub fn spec(request: &Request) -> Result<TrainSpec> {
    let Request { best, train, data, .. } = request;
    let mut talk = Talk::new(request.quiet);
    let model = match (&request.model, &best.model.source) {
        (_, ModelSource::Program(name)) => bail!(
            "{} was found by a program of your own for its model {name}: train with that program, at these knobs",
            request.config.display()
        ),
        (Some(text), _) => models::find(text, request.revision.as_deref(), Need::Weights, &mut talk)?.source,
        (None, ModelSource::Folder(_)) => models::again(&best.model, Need::Weights, &mut talk)?,
        (None, ModelSource::Preset(name)) => bail!(
            "{} was found for the preset {name}, which has no weights and no tokenizer: give --model the folder of a \
             pretrained model of that shape",
            request.config.display()
        ),
    };
    let (known, columns) = match &best.data {
        Some(known) => (Some(known.file.clone()), known.columns.as_slice()),
        None => (None, &[][..]),
    };
    let file = data.data.clone().or(known).context("give --data, the file to train on")?;
    let text = data.text_column.clone().or(columns.first().cloned()).unwrap_or_else(|| data.text());
    let label = data.label_column.clone().or(columns.last().cloned()).unwrap_or_else(|| data.label());
    let pair = data.text_pair_column.clone().or((columns.len() == 3).then(|| columns[1].clone()));
    let knobs = match request.freeze_layers {
        Some(layers) => freeze(best.config.knobs(), layers, &model)?,
        None => best.config.knobs(),
    };
    let regression = data.regression.then_some(true);
    let found = Found {
        model,
        data: DataSpec { train: file, evaluation: evaluation(train), text, pair, label, regression },
        knobs,
        effective_batch: best.config.effective_batch,
        max_length: best.config.max_length,
        proven_length: best.data.as_ref().map_or(best.config.max_length, |data| data.longest),
        seed: request.seed.unwrap_or(best.study.seed),
    };
    told(train, found, &request.config)
}

/// Goes through a run that is to follow a search, as far as that is possible without the answer, which `config` will
/// hold: reads and tokenizes its rows, looks at its output folder.
///
/// # Errors
/// What the run would fail with.
pub fn rehearse(probe: &probe::Arguments, model: &ModelSource, max_length: usize, config: &Path) -> Result<()> {
    let (train, data) = (&probe.train, &probe.data);
    if let ModelSource::Preset(name) = model {
        bail!("the preset {name} has no weights and no tokenizer: give --model the folder of a pretrained model")
    }
    let found = Found {
        model: model.clone(),
        data: DataSpec {
            train: data.data.clone().context("give --data, the file to train on")?,
            evaluation: evaluation(train),
            text: data.text(),
            pair: data.text_pair_column.clone(),
            label: data.label(),
            regression: data.regression.then_some(true),
        },
        // What is found here can't depend on them.
        knobs: Knobs::new(Precision::Fp32, 1, 0),
        effective_batch: probe.effective_batch,
        max_length,
        proven_length: max_length,
        seed: probe.seed,
    };
    prepare::prepare(&told(train, found, config)?, &mut |_| ()).map(drop)
}

/// What a run needs beside the options of training.
struct Found {
    model: ModelSource,
    data: DataSpec,
    knobs: Knobs,
    effective_batch: usize,
    max_length: usize,
    proven_length: usize,
    seed: u64,
}

/// What a worker is told, once the output folder was found to be free. Its default lies beside `config`.
fn told(train: &TrainOptions, found: Found, config: &Path) -> Result<TrainSpec> {
    let Found { model, data, knobs, effective_batch, max_length, proven_length, seed } = found;
    let output = train.output.clone().unwrap_or_else(|| config.parent().unwrap_or(Path::new(".")).join("model"));
    refuse_full(&output, train)?;
    refuse_sources(&output, [("--data", Some(&data.train)), ("--eval-data", train.eval_data.as_ref())])?;
    Ok(TrainSpec {
        model,
        data,
        knobs,
        effective_batch,
        max_length,
        proven_length,
        duration: match (train.steps, train.epochs) {
            (Some(steps), _) => Duration::Steps(steps),
            (None, epochs) => Duration::Epochs(epochs.unwrap_or(3.0)),
        },
        hyper: hyper(train),
        order: if train.no_shuffle { RowOrder::AsGiven } else { RowOrder::Shuffled },
        seed,
        output,
        saving: Saving { every: train.snapshot_every, keep: train.keep_snapshots },
        selection: match train.patience {
            Some(_) => Selection::Best { patience: train.patience },
            None if train.keep_best => Selection::Best { patience: None },
            None => Selection::Last,
        },
        start: if train.resume { Start::Resume } else { Start::Fresh },
    })
}

fn evaluation(train: &TrainOptions) -> Evaluation {
    match (&train.eval_data, train.eval_fraction) {
        (Some(file), _) => Evaluation::File(file.clone()),
        (None, fraction) => Evaluation::Fraction(fraction.unwrap_or(0.1)),
    }
}

/// `embeddings`, or a number of layers.
pub fn frozen(text: &str) -> Result<usize, String> {
    match text {
        "embeddings" => Ok(0),
        _ => number::count::<0, { bounds::LAYERS }>(text)
            .map_err(|error| format!("neither a number of layers ({error}) nor the word embeddings")),
    }
}

/// The same configuration with fewer trained layers: it needs no more than what was proven.
fn freeze(knobs: Knobs, layers: usize, model: &ModelSource) -> Result<Knobs> {
    let all = ModelFiles::open(model)?.config.layers;
    ensure!(layers <= all, "--freeze-layers {layers}: the model has {all} layers");
    if let Some(proven) = knobs.frozen_layers {
        ensure!(
            layers >= proven,
            "--freeze-layers {layers}: the configuration was proven with {proven} frozen layers; fewer need more memory, \
             so probe again without freezing"
        );
    }
    Ok(Knobs { frozen_layers: Some(layers), ..knobs })
}

fn hyper(train: &TrainOptions) -> Hyper {
    Hyper {
        learning_rate: train.learning_rate,
        decay: train.schedule,
        warmup: train.warmup,
        weight_decay: train.weight_decay,
        clip_norm: train.clip_norm,
        label_smoothing: train.label_smoothing,
        balance_classes: train.balance_classes,
        evaluate_every: train.evaluate_every,
    }
}

/// What a run writes is nothing that it reads, by whatever name; the model alone may be replaced by what became of it.
fn refuse_sources(output: &Path, sources: [(&str, Option<&PathBuf>); 2]) -> Result<()> {
    let names = TOKENIZER_FILES.into_iter().chain([METRICS, "config.json", "model.safetensors"]);
    let written: Vec<PathBuf> = names.map(|name| output.join(name)).collect();
    for (flag, source) in sources {
        let Some(source) = source else { continue };
        ensure!(
            !written.iter().any(|path| files::is_same(path, source)),
            "{flag} {} is a file that the run would write over: choose another folder with --output",
            source.display()
        );
    }
    Ok(())
}

/// A trained model is hours of work: neither it nor an unfinished run is overwritten by accident.
fn refuse_full(output: &Path, train: &TrainOptions) -> Result<()> {
    if train.resume || train.overwrite {
        return Ok(());
    }
    let snapshots = Snapshots::new(output.join(SNAPSHOTS), 1);
    ensure!(
        snapshots.list().is_empty(),
        "an unfinished run is in {}: go on with it by --resume, or start anew with --overwrite",
        output.display()
    );
    // Logs alone are what a run leaves that failed before anything was worth keeping.
    let logs = [METRICS, TENSORBOARD];
    let mut entries = std::fs::read_dir(output).into_iter().flatten().flatten();
    let full = entries.any(|entry| !logs.iter().any(|log| entry.file_name() == *log));
    ensure!(
        !full,
        "{} is not empty: choose another folder with --output, or allow to overwrite it with --overwrite",
        output.display()
    );
    Ok(())
}
