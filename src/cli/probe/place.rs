//! What a study is known by: its identity, its folder, and the options that it was asked with.

use std::path::{Path, PathBuf};

use anyhow::Result;

use super::Arguments;
use crate::cli::models::Model;
use crate::cli::workload::Workload;
use crate::model::content::Content;
use crate::plan::{ByteSize, files};
use crate::probe::protocol::ModelSource;
use crate::study::identity::Identity;
use crate::study::problem::Problem;

/// The file, in a study's folder, of the options that it was asked with: `probe @study.args` asks the same again. Space,
/// folder and limits of the search are left out, for whoever asks to choose.
pub(in crate::cli) const ARGUMENTS: &str = "study.args";

/// What makes this study the same as another.
///
/// # Errors
/// If the model's weights are not there, or not those of its configuration.
pub(super) fn identity(
    arguments: &Arguments,
    model: &Model,
    device: &str,
    workload: &Workload,
    problem: &Problem,
) -> Result<Identity> {
    let content = match &model.source {
        ModelSource::Folder(folder) => Some(Content::of(folder, &workload.config)?),
        ModelSource::Preset(_) | ModelSource::Program(_) => None,
    };
    let (config_digest, weights_digest) = content.map(|content| (content.config, content.weights)).unzip();
    Ok(Identity {
        model: model.identity(),
        config_digest,
        weights_digest,
        rows_digest: workload.fingerprint.map(|print| format!("{print:016x}")),
        num_labels: workload.num_labels,
        longest: workload.shapes.longest,
        lengths_digest: Identity::lengths(&workload.shapes),
        max_length: workload.max_length,
        effective_batch: arguments.effective_batch,
        device: device.to_string(),
        cap_bytes: problem.cap_bytes,
        space_digest: Identity::space(&problem.space),
        seed: arguments.seed,
        version: env!("CARGO_PKG_VERSION").into(),
    })
}

/// `results/distilbert-6.00GiB`, `results/my-bert-train-500MiB`, and for a model by name without its owner.
pub(super) fn default_folder(arguments: &Arguments, model: &Model, cap: u64) -> PathBuf {
    let stem = |path: &Path| {
        path.components()
            .next_back()
            .map(|part| Path::new(part.as_os_str()).file_stem().unwrap_or_default().to_string_lossy().into_owned())
    };
    let model = match &model.origin {
        // A dot in a repository's name begins no extension: bge-small-en-v1.5.
        Some((name, _)) => Some(name.stem()),
        None => stem(Path::new(&arguments.model)),
    };
    let data = arguments.data.data.as_deref().and_then(stem);
    let size = ByteSize(cap).to_string().replace(' ', "");
    let name: Vec<String> = model.into_iter().chain(data).chain([size]).collect();
    PathBuf::from("results").join(name.join("-"))
}

/// Writes [`ARGUMENTS`], unless one of the texts can't stand in a line.
///
/// # Errors
/// If the folder can't be written.
pub(super) fn write_arguments(
    folder: &Path,
    arguments: &Arguments,
    model: &Model,
    device: &str,
    workload: &Workload,
    cap: u64,
) -> Result<()> {
    let absolute = |path: &Path| std::path::absolute(path).unwrap_or(path.to_path_buf()).display().to_string();
    let data = &arguments.data;
    let options = [
        ("--model", Some(model.identity())),
        ("--data", data.data.as_deref().map(absolute)),
        ("--text-column", data.text_column.clone()),
        ("--text-pair-column", data.text_pair_column.clone()),
        ("--label-column", data.label_column.clone()),
        ("--regression", data.regression.then(String::new)),
        ("--max-length", Some(workload.max_length.to_string())),
        ("--effective-batch", Some(arguments.effective_batch.to_string())),
        ("--vram", Some(format!("{cap}B"))),
        ("--device", Some(device.to_string())),
        ("--seed", Some(arguments.seed.to_string())),
        ("--launcher", arguments.launcher.clone()),
    ];
    let given = || options.iter().filter_map(|(option, value)| Some((option, value.as_deref()?)));
    if given().any(|(_, value)| value != value.trim() || value.contains(char::is_control)) {
        return Ok(());
    }
    let lines: String =
        given().map(|(option, value)| format!("{option} {value}").trim_end().to_string() + "\n").collect();
    let head = "# What this study was asked. Written by autofit; ask again with: autofit probe @FILE\n";
    files::write_whole(&folder.join(ARGUMENTS), &(head.to_string() + &lines))
}
