//! `autofit report`: a study as one HTML page, and its plots as SVG.

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use clap::Args;

use super::Exit;
use super::study::StudyOption;
use crate::plan::files;
use crate::report::sheet::Sheet;
use crate::report::{console, html, plots};
use crate::study::journal::{BEST, STUDY, TRIALS};

/// Examples under the help.
const EXAMPLES: &str = "Examples:
  autofit report results/distilbert-6.00GiB
  autofit report results/distilbert-6.00GiB --svg figures";

/// Width of plots that are written as files, in pixels.
const WIDTH: f64 = 860.0;

/// Writes a study as one HTML page.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Arguments {
    #[command(flatten)]
    study: StudyOption,
    /// Where to write the page [default: report.html in the study's folder]
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Write each plot as an SVG file into this folder, too
    #[arg(long, value_name = "DIR")]
    svg: Option<PathBuf>,
}

/// Writes the page and says where.
///
/// # Errors
/// If the study can't be read or the page can't be written.
pub fn report(arguments: &Arguments) -> Result<Exit> {
    let study = arguments.study.folder();
    let sheet = Sheet::read(&study)?;
    let page = arguments.output.clone().unwrap_or_else(|| study.join("report.html"));
    let taken = [TRIALS, STUDY, BEST].iter().any(|name| files::is_same(&page, &study.join(name)));
    ensure!(!taken, "--output {} is a file of the study", page.display());
    files::write_whole(&page, &html::page(&sheet))?;
    console::say(&format!("{}\n", page.display()))?;
    if let Some(folder) = &arguments.svg {
        std::fs::create_dir_all(folder).with_context(|| format!("creating {}", folder.display()))?;
        for plot in plots::all(&sheet, WIDTH, "") {
            let file = folder.join(format!("{}.svg", plot.name));
            files::write_whole(&file, &plot.svg.standalone())?;
            console::say(&format!("{}\n", file.display()))?;
        }
    }
    Ok(Exit::Answered)
}
