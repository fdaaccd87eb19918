//! `autofit predict`: labels for every row of a file, from a trained model.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;

use super::devices;
use super::talk::Talk;
use super::{Exit, number};
use crate::model::source::ModelFiles;
use crate::plan::files::{self, Draft};
use crate::plan::{ByteSize, Outcome, bounds};
use crate::probe::protocol::{Job, Message, ModelSource, PROTOCOL, Report, Task};
use crate::probe::{Executor, LocalProcess, interrupt};
use crate::report::console::{self, Reader};
use crate::train::predict::{self, Lines, PredictSpec, Summary};
use crate::train::save;

/// Examples under the help.
const EXAMPLES: &str = "Examples:
  autofit predict --model my-model --data new.csv --output predictions.csv
  autofit predict --model my-model --data pairs.jsonl --text-column a --text-pair-column b | head";

/// Predicts every row of a file with a trained model.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Arguments {
    /// Folder of a trained classifier: what `run` saved, or a Hugging Face model of a known family
    #[arg(long, value_name = "DIR")]
    model: PathBuf,
    /// CSV (with a header), TSV or JSONL file of texts, of any length
    #[arg(long, value_name = "FILE")]
    data: PathBuf,
    /// Column of the text
    #[arg(long, value_name = "COLUMN", default_value = "text")]
    text_column: String,
    /// Column of a second text, for pairs
    #[arg(long, value_name = "COLUMN")]
    text_pair_column: Option<String>,
    /// CSV file for the predictions; - is standard output
    #[arg(long, short, value_name = "FILE", default_value = "-")]
    output: PathBuf,
    /// Replace the output file if it is there
    #[arg(long)]
    overwrite: bool,
    /// Rows that go through the model together
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = number::count::<1, { bounds::BATCH }>)]
    batch: usize,
    /// Longest row in tokens; longer ones are truncated [default: where training truncated, else what the model takes]
    #[arg(long, value_name = "N", value_parser = number::count::<1, { bounds::TOKENS }>)]
    max_length: Option<usize>,
    /// Device: auto, cpu, cuda:N, rocm:N or vulkan:N
    #[arg(long, value_name = "NAME", default_value = "auto")]
    device: String,
    /// Memory that prediction may use, as in 6G, 500M, 1.5GiB (G means GiB) [default: no limit]
    #[arg(long, value_name = "SIZE")]
    vram: Option<ByteSize>,
    /// Say nothing on standard error but errors
    #[arg(long, short)]
    quiet: bool,
}

/// Predicts in a worker process and writes what it sends.
///
/// # Errors
/// If model or data can't be used, the output can't be written, or the memory does not suffice.
pub fn predict(arguments: &Arguments) -> Result<Exit> {
    let spec = PredictSpec {
        model: predict::folder(&arguments.model)?,
        data: arguments.data.clone(),
        text: arguments.text_column.clone(),
        pair: arguments.text_pair_column.clone(),
        batch: arguments.batch,
        max_length: arguments.max_length,
    };
    let interrupted = interrupt::install().context("can't catch Ctrl-C")?;
    let mut sink = Sink::open(arguments)?;
    let device = devices::choose(&arguments.device, None)?.description.name;
    let mut executor = LocalProcess::this_program()?.interrupt(interrupted);
    let cap_bytes = arguments.vram.map(|size| size.0);
    let task = Task::Predict(serde_json::to_value(&spec)?);
    let job = Job { protocol: PROTOCOL, device, cap_bytes, task };
    let mut talk = Talk::new(arguments.quiet);
    if let Some(length) = cut_as_trained(arguments) {
        talk.line(&format!("rows are cut at {length} tokens, as in training (--max-length N cuts elsewhere)"));
    }
    let mut progress = Progress { talk, started: Instant::now(), said: 0 };
    let mut written = Ok(Reader::There);
    let finished = executor.run(&job, Duration::MAX, &mut |message| {
        let Message::Lines(Lines { csv, rows, share }) = message else { return };
        if let Ok(Reader::There) = written {
            written = sink.write(csv);
            // What nobody takes need not be computed.
            interrupted.fetch_or(!matches!(written, Ok(Reader::There)), Ordering::SeqCst);
        }
        progress.tell(*rows, *share);
    });
    let mut talk = progress.talk;
    if written? == Reader::Gone {
        return Ok(Exit::Answered);
    }
    match (finished.attempt.outcome, finished.report) {
        (Outcome::Interrupted, _) => Ok(Exit::Interrupted),
        (_, Some(Report::Predicted(summary))) => {
            sink.finish()?;
            talk.line(&conclusion(&summary, arguments));
            Ok(Exit::Answered)
        }
        (Outcome::Crash, Some(Report::Failed { error })) => bail!("{error}"),
        (Outcome::Oom, _) => bail!(
            "{}: allow more with --vram, or lower --batch ({}) or --max-length",
            finished.attempt.reason,
            arguments.batch
        ),
        (outcome, _) => bail!("prediction ended with {outcome}: {}", finished.attempt.reason),
    }
}

/// Where rows are cut because training cut them there, unless that is as long as the model takes anyway. What is wrong
/// with the folder the worker says.
fn cut_as_trained(arguments: &Arguments) -> Option<usize> {
    let files = ModelFiles::open(&ModelSource::Folder(arguments.model.clone())).ok()?;
    let kept = save::max_length(&files).filter(|&length| length < files.config.max_length());
    kept.filter(|_| arguments.max_length.is_none())
}

/// Where predictions go. A file appears under its name only once it is whole.
enum Sink {
    Standard,
    File { draft: Draft, output: PathBuf, overwrite: bool },
}

impl Sink {
    fn open(arguments: &Arguments) -> Result<Self> {
        let output = arguments.output.clone();
        if output == Path::new("-") {
            return Ok(Sink::Standard);
        }
        refuse_sources(&output, arguments)?;
        let draft = Draft::beside(&output).context("--output")?;
        refuse_existing(&output, arguments.overwrite)?;
        Ok(Sink::File { draft, output, overwrite: arguments.overwrite })
    }

    fn write(&mut self, lines: &str) -> Result<Reader> {
        match self {
            Sink::Standard => console::piece(lines),
            Sink::File { draft, .. } => {
                draft.write_all(lines.as_bytes()).with_context(|| format!("can't write {}", draft.path().display()))?;
                Ok(Reader::There)
            }
        }
    }

    /// Gives a finished file its name.
    fn finish(self) -> Result<()> {
        let Sink::File { draft, output, overwrite } = self else { return Ok(()) };
        refuse_existing(&output, overwrite)?;
        draft.place(&output)
    }
}

/// Neither the data nor a file of the model is overwritten, whatever it is called.
fn refuse_sources(output: &Path, arguments: &Arguments) -> Result<()> {
    ensure!(!files::is_same(output, &arguments.data), "--output {} is the file that is read", output.display());
    let mut parts = fs::read_dir(&arguments.model).into_iter().flatten().flatten();
    ensure!(
        !parts.any(|part| files::is_same(output, &part.path())),
        "--output {} is a file of the model",
        output.display()
    );
    Ok(())
}

fn refuse_existing(output: &Path, overwrite: bool) -> Result<()> {
    ensure!(
        overwrite || !output.exists(),
        "{} is there already: choose another file with --output, or allow to replace it with --overwrite",
        output.display()
    );
    Ok(())
}

/// What a person sees meanwhile.
struct Progress {
    talk: Talk,
    started: Instant,
    /// Tenths of the file of which a plain line has told.
    said: u64,
}

impl Progress {
    fn tell(&mut self, rows: u64, share: f64) {
        let seconds = self.started.elapsed().as_secs_f64();
        let left = if share > 0.0 { seconds * (1.0 - share) / share } else { 0.0 };
        let text = format!("{rows} rows · {:.1} rows/s · {left:.0} s left", rows as f64 / seconds.max(1e-9));
        let tenth = (share * 10.0) as u64;
        if tenth > self.said && tenth < 10 && !self.talk.is_live() {
            self.said = tenth;
            self.talk.line(&text);
        } else {
            self.talk.now(&text);
        }
    }
}

fn conclusion(summary: &Summary, arguments: &Arguments) -> String {
    let Summary { rows, truncated, max_length, seconds, peak_bytes } = summary;
    let cap = arguments.vram.map_or(String::new(), |cap| format!(" of {cap}"));
    let mut out = format!(
        "Predicted {rows} rows at {:.1} rows/s, memory {}{cap} at the peak",
        *rows as f64 / seconds.max(1e-9),
        ByteSize(*peak_bytes)
    );
    if *truncated > 0 {
        out += &format!("; {truncated} of them were cut to {max_length} tokens");
    }
    out
}
