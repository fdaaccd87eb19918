//! What was probed when, how long it took and what became of it.

use super::{Plot, class, outcome};
use crate::plan::{ByteSize, Outcome};
use crate::report::sheet::{Row, Sheet};
use crate::report::svg::{Anchor, Scale, Svg, short, ticks};

/// Height of a line.
const LINE: f64 = 38.0;

/// `None` where nothing was probed.
pub fn plot(sheet: &Sheet, width: f64, suffix: &str) -> Option<Plot> {
    let rows: Vec<&Row> = sheet.rows.iter().filter(|row| row.ran()).collect();
    let wall = |row: &Row| Some(row.trial.attempt.wall_seconds).filter(|s| s.is_finite()).unwrap_or(0.0).max(0.0);
    let total: f64 = rows.iter().map(|row| wall(row)).sum();
    if rows.is_empty() {
        return None;
    }
    let name = format!("timeline{suffix}");
    let description = format!("{} probes in {} seconds, one line each.", rows.len(), short(total));
    let height = 46.0 + LINE * rows.len() as f64;
    let mut svg = Svg::new(&name, "Time line of probes", &description, width, height);
    let (left, right, bottom) = (34.0, width - 12.0, height - 40.0);
    let total = total.max(1e-3);
    let scale = Scale::linear((0.0, total), (left, right));
    for tick in ticks(total, if width < 500.0 { 4 } else { 8 }) {
        let x = scale.at(tick);
        svg.line((x, 4.0), (x, bottom), "grid");
        svg.text((x, bottom + 16.0), Anchor::Middle, "", &short(tick));
    }
    svg.text(((left + right) / 2.0, bottom + 33.0), Anchor::Middle, "soft", "seconds of probing");
    let mut before = 0.0;
    for (at, row) in rows.iter().enumerate() {
        let trial = &row.trial;
        let (from, to) = (scale.at(before), scale.at(before + wall(row)));
        before += wall(row);
        let y = 8.0 + LINE * at as f64;
        let fit = trial.attempt.outcome == Outcome::Fit;
        let winner = sheet.winner() == Some(trial.knobs);
        svg.text((left - 8.0, y + 13.0), Anchor::End, "soft", &trial.number.to_string());
        svg.open(class(trial.knobs.precision), &trial.attempt.reason);
        svg.rect((from, y + 17.0), ((to - from).max(3.0), 12.0), if fit { "full" } else { "line" });
        if !fit {
            svg.line((from, y + 29.0), (from + (to - from).max(3.0), y + 17.0), "cross");
        }
        svg.close();
        let text = label(row, sheet, width < 500.0);
        // A label begins at its bar, unless it would leave the drawing.
        let fits = from + 7.2 * text.chars().count() as f64 <= right;
        let (x, anchor) = if fits { (from, Anchor::Start) } else { (right, Anchor::End) };
        svg.text((x, y + 13.0), anchor, if winner { "strong" } else { "" }, &text);
    }
    let caption = "One line for each probe, in the order in which they ran, its length is its time. Filled bars fit, \
                   crossed ones did not; the answer's probes are in bold."
        .into();
    Some(Plot { name: "timeline", title: "Time line", caption, svg })
}

/// What was tried and what came of it, in a few words.
fn label(row: &Row, sheet: &Sheet, narrow: bool) -> String {
    let knobs = &row.trial.knobs;
    let mut text = format!("{} {}", knobs.precision, knobs.micro_batch);
    if let Some(accumulation) = row.accumulation.or_else(|| Some(knobs.accumulation(sheet.effective_batch()?))) {
        text += &format!("×{accumulation}");
    }
    if knobs.checkpoint_layers > 0 {
        text += &format!(", {} of {} recomputed", knobs.checkpoint_layers, sheet.layers_or_guess());
    }
    if !narrow {
        text += &format!(" ({})", row.trial.purpose);
    }
    match (row.peak(), row.samples_per_second) {
        (Some(_), Some(speed)) if narrow => text += &format!(": {}/s", short(speed)),
        (Some(peak), Some(speed)) => text += &format!(": {}, {} samples/s", ByteSize(peak), short(speed)),
        _ => text += &format!(": {}", outcome(row.trial.attempt.outcome)),
    }
    text
}
