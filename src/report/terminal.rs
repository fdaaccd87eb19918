//! The table of trials and the answer as plain text: readable without colour, at 80 columns.

use std::fmt::{self, Write};

use super::sheet::speaking;
use crate::plan::{ByteSize, Knobs, OptimizerKind, Outcome};
use crate::probe::protocol::CapHold;
use crate::study::answer::{Answer, Neighbour};
use crate::study::row::Derived;
use crate::study::shortfall::Shortfall;
use crate::study::trial::{Request, Trial};

/// A trial with its speed, where it was measured.
#[derive(Clone, Debug)]
pub struct Row<'a> {
    /// The trial.
    pub trial: &'a Trial,
    /// Samples per second of an effective batch.
    pub samples_per_second: Option<f64>,
}

/// The words for a density.
pub fn density(knobs: &Knobs, layers: usize) -> String {
    match knobs.checkpoint_layers {
        0 => "keep all layers".into(),
        r if r >= layers => "recompute all layers".into(),
        r => format!("recompute {r} of {layers} layers"),
    }
}

/// One configuration in one line. `layers` is 0 for a model that knows no checkpointing.
pub fn configuration(knobs: &Knobs, effective_batch: usize, layers: usize) -> String {
    let accumulation = knobs.accumulation(effective_batch);
    let mut text = format!("{} · micro-batch {} × {accumulation}", knobs.precision, knobs.micro_batch);
    if layers > 0 {
        let _ = write!(text, " · {}", density(knobs, layers));
    }
    if knobs.optimizer != OptimizerKind::AdamW {
        let _ = write!(text, " · {}", knobs.optimizer);
    }
    if let Some(frozen) = knobs.frozen_layers {
        let _ = write!(text, " · {frozen} layers frozen");
    }
    if let Some(rank) = knobs.lora_rank {
        let _ = write!(text, " · LoRA rank {rank}");
    }
    text
}

/// The trials that were run, the winner first, then by speed, then what did not fit.
pub fn table(rows: &[Row<'_>], winner: Option<&Knobs>, effective_batch: usize, layers: usize) -> String {
    let ran = rows.iter().filter(|row| row.trial.attempt.outcome != Outcome::Pruned);
    // A short first look that happened to be quick must not stand for what was measured longer afterwards.
    let mut shown = speaking(ran, |row| row.trial);
    shown.sort_by(|a, b| {
        let key = |row: &Row<'_>| (Some(&row.trial.knobs) != winner, -row.samples_per_second.unwrap_or(-1.0));
        let (a, b) = (key(a), key(b));
        a.0.cmp(&b.0).then(a.1.total_cmp(&b.1))
    });
    let mut out = String::from("   precision  micro × accum  recomputed  peak memory  samples/s  outcome\n");
    for row in shown {
        let knobs = row.trial.knobs;
        let attempt = &row.trial.attempt;
        let peak = attempt.measurement.as_ref().map_or("-".into(), |m| ByteSize(m.peak_bytes).to_string());
        let speed = row.samples_per_second.map_or("-".into(), |s| format!("{s:.2}"));
        let mark = if Some(&knobs) == winner { '>' } else { ' ' };
        let cut = format!("{} × {}", knobs.micro_batch, knobs.accumulation(effective_batch));
        let share = format!("{}/{layers}", knobs.checkpoint_layers);
        let _ = writeln!(
            out,
            " {mark} {:<9}  {cut:>13}  {share:>10}  {peak:>11}  {speed:>9}  {}",
            knobs.precision, attempt.outcome
        );
    }
    out
}

/// A probe that starts, in two lines: what and why. `seconds` are those expected, where they can be.
pub fn asked(number: usize, request: &Request, seconds: Option<f64>, effective_batch: usize, layers: usize) -> String {
    let time = seconds.map_or(String::new(), |s| format!(", about {s:.0} s"));
    let configuration = configuration(&request.knobs, effective_batch, layers);
    format!("{number:>3}  {configuration}\n     why: {}{time}", request.why)
}

/// What became of a probe, in one line.
pub fn told(trial: &Trial, derived: &Derived) -> String {
    let attempt = &trial.attempt;
    let text = match (attempt.outcome, &attempt.measurement) {
        (Outcome::Fit, Some(measured)) => format!(
            "fits: {} at the peak, {} samples/s",
            ByteSize(measured.peak_bytes),
            derived.samples_per_second.map_or("?".into(), |s| format!("{s:.2}"))
        ),
        (Outcome::Pruned, _) => format!("left out: {}: {}", trial.knobs, attempt.reason),
        (outcome, _) => format!("{outcome}: {}", attempt.reason),
    };
    format!("     {text} ({:.1} s)", attempt.wall_seconds)
}

impl fmt::Display for Answer {
    /// Several lines: the configuration, its speed, what the memory at the peak is made of, and the neighbours.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&answer(self, self.cap_bytes, self.effective_batch, self.measurement.layers))
    }
}

/// The answer, its memory and its neighbours.
pub fn answer(answer: &Answer, cap: Option<u64>, effective_batch: usize, layers: usize) -> String {
    let mut out = String::new();
    let score = &answer.score;
    let (low, high) = score.interval();
    let _ = writeln!(out, "Fastest that fits: {}", configuration(&answer.knobs, effective_batch, layers));
    let _ = writeln!(
        out,
        "  speed    {:.2} samples/s (95 % between {low:.2} and {high:.2}), {:.2} s an optimizer step of {effective_batch}",
        score.samples_per_second, score.step_seconds
    );
    let peak = ByteSize(score.peak_bytes);
    let _ = match cap {
        Some(cap) => writeln!(out, "  memory   {peak} of {} at the largest samples", ByteSize(cap)),
        None => writeln!(out, "  memory   {peak} at the largest samples; no cap was given"),
    };
    out += &pooled(answer);
    out += &bar(answer, cap.unwrap_or(score.peak_bytes));
    let _ = writeln!(out, "  next     {}", neighbour(&answer.larger_micro, "larger micro-batch"));
    if layers > 0 {
        let _ = writeln!(out, "           {}", neighbour(&answer.lower_density, "fewer layers recomputed"));
    }
    if !answer.certified {
        let _ = writeln!(out, "  NOT certified: there was no time for the longer probe with an evaluation batch");
    }
    out
}

/// Where memory is kept in pools: how much of the peak was in use, and what held the cap.
fn pooled(answer: &Answer) -> String {
    let (Some(in_use), Some(hold)) = (answer.measurement.in_use_peak_bytes, answer.measurement.cap_hold) else {
        return String::new();
    };
    let context = answer.measurement.context_bytes.map_or_else(
        || "; the context's own part is not known and not counted".to_string(),
        |bytes| format!("; the context takes {} of it", ByteSize(bytes)),
    );
    let held = match hold {
        CapHold::Allocator => "by the allocator",
        CapHold::Ballast => "by the card itself, the rest of which was held back",
        CapHold::Reserve => "by comparing what is reserved with it after each pass",
    };
    format!(
        "           reserved in pools, of which {} were seen in use{context}\n           the cap was held {held}\n",
        ByteSize(in_use)
    )
}

fn neighbour(neighbour: &Neighbour, what: &str) -> String {
    match (&neighbour.knobs, neighbour.outcome) {
        (Some(knobs), Some(outcome)) => {
            let speed = neighbour.samples_per_second.map_or(String::new(), |s| format!(" at {s:.2} samples/s"));
            format!("{what} ({knobs}): {outcome}{speed}")
        }
        _ => format!("{what}: {}", neighbour.reason),
    }
}

/// Cells of the memory bar.
const BAR: usize = 48;

/// What the memory at the peak is made of, as a bar over the cap and a legend.
fn bar(answer: &Answer, cap: u64) -> String {
    let m = &answer.measurement;
    let parts = [
        ('W', "weights", m.weight_bytes),
        ('G', "gradients", m.gradient_bytes),
        ('O', "optimizer", m.optimizer_bytes),
        ('A', "activations", answer.activation_bytes()),
    ];
    let mut cells = String::new();
    let mut sum = 0;
    for (letter, _, bytes) in parts {
        sum += bytes;
        let end = ((sum as f64 / cap.max(1) as f64) * BAR as f64).round() as usize;
        while cells.len() < end.min(BAR) {
            cells.push(letter);
        }
    }
    let legend: Vec<String> =
        parts.iter().map(|(letter, name, bytes)| format!("{letter} {name} {}", ByteSize(*bytes))).collect();
    format!("           [{cells:.<BAR$}]\n           {}\n", legend.join(" · "))
}

/// Why nothing fits, and which single change would.
pub fn shortfall(shortfall: &Shortfall, effective_batch: usize, layers: usize) -> String {
    let mut out = needs(shortfall, effective_batch, layers);
    if shortfall.cures.is_empty() {
        let _ = writeln!(out, "  No single change would make it fit.");
    }
    for cure in &shortfall.cures {
        let _ = writeln!(out, "  This would fit (about {}): {}", ByteSize(cure.peak_bytes), cure.change);
    }
    out
}

/// Why nothing fits.
pub fn needs(shortfall: &Shortfall, effective_batch: usize, layers: usize) -> String {
    let mut out = String::new();
    let cap = shortfall.cap_bytes.map_or("the device's memory".into(), |cap| ByteSize(cap).to_string());
    let _ = writeln!(out, "Nothing fits into {cap}.");
    let smallest = configuration(&shortfall.smallest, effective_batch, layers);
    let _ = writeln!(out, "  The smallest configuration of the space ({smallest}) ran out of memory.");
    let _ = writeln!(
        out,
        "  It needs about {}: weights {}, gradients {}, optimizer state {}, activations {}.",
        ByteSize(shortfall.needed_bytes),
        ByteSize(shortfall.weight_bytes),
        ByteSize(shortfall.gradient_bytes),
        ByteSize(shortfall.optimizer_bytes),
        ByteSize(shortfall.activation_bytes)
    );
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Precision;
    use crate::probe::protocol::{Attempt, Measurement};
    use crate::study::trial::Purpose;

    fn trial(number: usize, micro: usize, outcome: Outcome, megabytes: u64) -> Trial {
        let measurement = Measurement { peak_bytes: megabytes << 20, layers: 6, ..Measurement::default() };
        let measurement = (outcome == Outcome::Fit).then_some(measurement);
        let attempt = Attempt { outcome, reason: String::new(), measurement, oom: None, wall_seconds: 1.0 };
        let knobs = Knobs::new(Precision::Fp32, micro, 0);
        Trial { number, knobs, purpose: Purpose::Explore, attempt, unix_seconds: 0 }
    }

    #[test]
    fn a_configuration_is_shown_as_it_was_measured_last_not_at_its_fastest() {
        let trials = [
            (trial(1, 8, Outcome::Fit, 100), Some(9.0)),
            (trial(2, 4, Outcome::Fit, 60), Some(8.5)),
            (trial(3, 16, Outcome::Oom, 0), None),
            (trial(4, 8, Outcome::Fit, 101), Some(8.0)),
            (trial(5, 8, Outcome::Interrupted, 0), None),
            (trial(6, 4, Outcome::Crash, 0), None),
            (trial(7, 2, Outcome::Timeout, 0), None),
        ];
        let rows: Vec<Row<'_>> =
            trials.iter().map(|(trial, speed)| Row { trial, samples_per_second: *speed }).collect();
        let text = table(&rows, Some(&trials[0].0.knobs), 16, 6);
        let words = |line: &str| line.split_whitespace().map(String::from).collect::<Vec<_>>().join(" ");
        let shown: Vec<String> = text.lines().skip(1).map(words).collect();
        assert_eq!(
            shown,
            [
                "> fp32 8 × 2 0/6 101 MiB 8.00 fit",
                "fp32 4 × 4 0/6 60.0 MiB 8.50 fit",
                "fp32 16 × 1 0/6 - - oom",
                "fp32 2 × 8 0/6 - - timeout",
            ]
        );
    }
}
