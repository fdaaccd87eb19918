//! What `estimate` says: one model in detail, or many in one line each.

use std::fmt::Write;

use serde::Serialize;

use crate::plan::{ByteSize, Knobs, OptimizerKind, Precision};
use crate::study::estimate::{self, ERROR};
use crate::study::problem::SizeHint;

/// A model to be estimated.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// Preset or folder.
    pub name: String,
    /// Its shape, with the length of its rows.
    pub size: SizeHint,
}

/// One line of the answer as data.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Line {
    /// Preset or folder.
    pub model: String,
    /// Parameters of the whole model.
    pub parameters: u64,
    /// Precision of forward and backward.
    pub precision: Precision,
    /// The update rule.
    pub optimizer: OptimizerKind,
    /// Encoder layers recomputed in backward.
    pub checkpoint_layers: usize,
    /// Encoder layers.
    pub layers: usize,
    /// The largest micro-batch that is expected to fit; `None` where not even one row does.
    pub micro_batch: Option<usize>,
    /// Estimated peak at that micro-batch, or at one row where nothing fits.
    pub peak_bytes: u64,
    /// Whether the peak is so near to the cap that the error of the estimate decides.
    pub tight: bool,
}

/// What is asked.
#[derive(Clone, Copy, Debug)]
pub struct Question {
    /// Bytes that the workload may use.
    pub cap: u64,
    /// Samples per optimizer step.
    pub effective_batch: usize,
}

impl Question {
    /// The answer at one precision, optimizer and density.
    pub fn line(&self, candidate: &Candidate, precision: Precision, optimizer: OptimizerKind, layers: usize) -> Line {
        let (size, knobs) = (&candidate.size, Knobs { optimizer, ..Knobs::new(precision, 1, layers) });
        let found = estimate::largest(size, &knobs, self.effective_batch, self.cap);
        let bytes = found.map_or_else(|| estimate::peak(size, &knobs, self.effective_batch), |(_, bytes)| bytes);
        Line {
            model: candidate.name.clone(),
            parameters: size.parameters,
            precision,
            optimizer,
            checkpoint_layers: layers,
            layers: size.layers,
            micro_batch: found.map(|(micro, _)| micro),
            peak_bytes: bytes as u64,
            tight: (bytes / self.cap as f64 - 1.0).abs() <= ERROR,
        }
    }

    /// Every precision, optimizer and density (none, half, all) of a model.
    pub fn lines(&self, candidate: &Candidate) -> Vec<Line> {
        let mut lines = Vec::new();
        for precision in [Precision::Fp32, Precision::Bf16] {
            for optimizer in OptimizerKind::ALL {
                for layers in densities(candidate.size.layers) {
                    lines.push(self.line(candidate, precision, optimizer, layers));
                }
            }
        }
        lines
    }

    /// One model in detail.
    pub fn detail(&self, candidate: &Candidate) -> String {
        let size = &candidate.size;
        let [_, half, full] = densities(size.layers);
        let (some, every) = (format!("recompute {half}/{}", size.layers), format!("recompute {full}/{}", size.layers));
        let mut out = format!(
            "{}: {} layers, {:.1} million parameters, rows of {} tokens, effective batch {}\n\
             Largest micro-batch expected to fit into {}, and its peak:\n\n\
             \x20 precision  optimizer   {:<20}{some:<20}{every}\n",
            candidate.name,
            size.layers,
            size.parameters as f64 / 1e6,
            size.length,
            self.effective_batch,
            ByteSize(self.cap),
            "keep all layers"
        );
        for lines in self.lines(candidate).chunks(3) {
            let _ = write!(out, "  {:<9}  {:<10}", lines[0].precision, lines[0].optimizer);
            let cells: Vec<String> = lines.iter().map(|line| format!("  {:<18}", cell(line))).collect();
            out += cells.concat().trim_end();
            out.push('\n');
        }
        out
    }

    /// Many models, one line each.
    pub fn overview(&self, candidates: &[Candidate]) -> String {
        let mut out = format!(
            "What fits into {} at rows of {} tokens and an effective batch of {}: the largest micro-batch, with AdamW\n\n\
             \x20                              keep all layers       recompute all\n\
             \x20 model           parameters   fp32       bf16       fp32       bf16       least peak   verdict\n",
            ByteSize(self.cap),
            candidates.first().map_or(0, |c| c.size.length),
            self.effective_batch
        );
        for candidate in candidates {
            let all = candidate.size.layers;
            let at = |precision, layers| self.line(candidate, precision, OptimizerKind::AdamW, layers);
            let cells =
                [at(Precision::Fp32, 0), at(Precision::Bf16, 0), at(Precision::Fp32, all), at(Precision::Bf16, all)];
            let micro = |line: &Line| {
                let near = if line.tight { "~" } else { "" };
                line.micro_batch.map_or(format!("no{near}"), |micro| format!("{micro}{near}"))
            };
            let least = estimate::peak(&candidate.size, &Knobs::new(Precision::Fp32, 1, all), self.effective_batch);
            let columns: Vec<String> = cells.iter().map(|line| format!("{:<11}", micro(line))).collect();
            let _ = writeln!(
                out,
                "  {:<14}  {:>8.1} M   {}{:<11}  {}",
                candidate.name,
                candidate.size.parameters as f64 / 1e6,
                columns.concat(),
                ByteSize(least as u64).to_string(),
                self.verdict(candidate)
            );
        }
        out
    }

    /// The gentlest way to train a model here.
    fn verdict(&self, candidate: &Candidate) -> &'static str {
        let all = candidate.size.layers;
        let fits =
            |precision, optimizer, layers| self.line(candidate, precision, optimizer, layers).micro_batch.is_some();
        let either =
            |optimizer, layers| fits(Precision::Fp32, optimizer, layers) || fits(Precision::Bf16, optimizer, layers);
        if self.line(candidate, Precision::Fp32, OptimizerKind::AdamW, 0).micro_batch == Some(self.effective_batch) {
            "yes, in one pass"
        } else if either(OptimizerKind::AdamW, 0) {
            "yes"
        } else if either(OptimizerKind::AdamW, all) {
            "yes, recomputing"
        } else if either(OptimizerKind::Lion, all) {
            "with lion or sgd"
        } else if either(OptimizerKind::Adafactor, all) {
            "with adafactor"
        } else {
            "no"
        }
    }
}

/// Densities that are shown: nothing, half, everything.
fn densities(layers: usize) -> [usize; 3] {
    [0, layers.div_ceil(2), layers]
}

fn cell(line: &Line) -> String {
    let (peak, near) = (ByteSize(line.peak_bytes), if line.tight { " ~" } else { "" });
    match line.micro_batch {
        Some(micro) => format!("{micro:>3}  {peak}{near}"),
        None => format!(" no  {peak}{near}"),
    }
}

/// What the numbers are worth.
pub fn footnote(lines_are_detailed: bool) -> String {
    let no = if lines_are_detailed { "no: one row needs this much" } else { "no: not even one row" };
    format!(
        "\n  {no}. ~: so near to the cap that only a probe can tell.\n\
         \x20 Nothing was run. On the CPU, measured peaks of presets lay within 0.7 % of this, of tiny models within {:.1} %;\n\
         \x20 on a GPU memory pools take more, how much was not measured. autofit probe decides.\n",
        100.0 * ERROR
    )
}
