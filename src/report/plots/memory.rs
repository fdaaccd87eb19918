//! Peak memory against micro-batch, with the cap and everything that ran out of memory.

use std::collections::{BTreeMap, BTreeSet};

use super::{ByteAxis, Frame, Key, MARK, Plot, class, filling, legend, mark_keys, shape, told};
use crate::plan::{ByteSize, Outcome};
use crate::report::sheet::{Row, Sheet};
use crate::report::svg::{Anchor, Scale, Svg};
use crate::study::problem::Branch;

/// `None` where no trial fit or ran out of memory.
pub fn plot(sheet: &Sheet, width: f64, suffix: &str) -> Option<Plot> {
    let (cap, layers) = (sheet.cap(), sheet.layers_or_guess());
    let latest = sheet.latest();
    let height_of = |row: &Row| row.peak().or(row.refused(cap));
    let rows: Vec<(&Row, f64)> = latest.iter().filter_map(|row| Some((*row, height_of(row)? as f64))).collect();
    let highest = rows.iter().map(|(_, bytes)| *bytes).chain(cap.map(|c| c as f64)).reduce(f64::max)?;
    let most = rows.iter().map(|(row, _)| row.trial.knobs.micro_batch).max()?;

    let name = format!("memory{suffix}");
    let refused = rows.iter().filter(|(row, _)| row.trial.attempt.outcome == Outcome::Oom).count();
    let description = format!(
        "{} configurations that fit and {refused} that ran out of memory, by micro-batch size. {}",
        rows.len() - refused,
        cap.map_or(String::new(), |cap| format!("The cap is {}.", ByteSize(cap)))
    );
    let mut svg = Svg::new(&name, "Peak memory against micro-batch", &description, width, 400.0);
    let shown: Vec<&Row> = rows.iter().map(|(row, _)| *row).collect();
    let mut keys = mark_keys(&shown, layers);
    if refused > 0 {
        keys.push(Key::Refused("out of memory: needs at least this".into()));
    }
    let best = sheet.best.as_ref();
    if best.is_some() {
        keys.push(Key::Line("model other", "fitted line of the answer's branch".into()));
    }
    let top = legend(&mut svg, &keys);
    let frame = Frame::new(width, svg.height, top);
    let axis = ByteAxis::new(highest * 1.16);
    let y = axis.scale(frame.y());
    // One step to either side keeps marks off the frame.
    let x_scale = Scale::logarithmic((0.8, most.max(2) as f64 * 1.25), frame.x());
    let x = |micro: usize| x_scale.at(micro as f64);

    for (value, text) in axis.ticks(6) {
        frame.y_tick(&mut svg, y(value), &text);
    }
    frame.name_axes(&mut svg, "micro-batch (samples)", &format!("peak memory ({})", axis.unit));
    for tick in std::iter::successors(Some(1), |t| Some(t * 2)).take_while(|&t| t <= most.max(2)) {
        frame.x_tick(&mut svg, x(tick), &tick.to_string());
    }
    if let Some(cap) = cap {
        let at = y(cap as f64);
        svg.line((frame.left, at), (frame.right, at), "cap");
    }
    if let (Some(best), Some(layers)) = (best, sheet.layers()) {
        let knobs = best.config.knobs();
        let line: Vec<(f64, f64)> = (1..=most)
            .map(|micro| (x(micro), best.memory_model.peak(layers, micro, knobs.checkpoint_layers)))
            .take_while(|(_, bytes)| *bytes <= highest * 1.1)
            .map(|(x, bytes)| (x, y(bytes)))
            .collect();
        svg.open(class(knobs.precision), "");
        svg.path(&line, "model");
        svg.close();
    }
    link(&mut svg, &rows, &|row, bytes| (x(row.trial.knobs.micro_batch), y(bytes)));
    for (row, bytes) in &rows {
        let knobs = &row.trial.knobs;
        let at = (x(knobs.micro_batch), y(*bytes));
        svg.open(&format!("mark {}", class(knobs.precision)), &told(row, layers, sheet.effective_batch()));
        match row.peak() {
            Some(_) => svg.mark(shape(knobs.precision), filling(knobs, layers), at, MARK),
            None => svg.refused(shape(knobs.precision), at, MARK),
        }
        svg.close();
        if Some(*knobs) == sheet.winner() {
            svg.ring(at, MARK);
            svg.text((at.0, at.1 + 26.0), Anchor::Middle, "strong", "answer");
        }
    }
    densities(&mut svg, &rows, layers, &|row, bytes| (x(row.trial.knobs.micro_batch), y(bytes)));
    if let Some(cap) = cap {
        let at = y(cap as f64);
        // On the side where no mark stands in the way.
        let crowded =
            rows.iter().any(|(row, bytes)| x(row.trial.knobs.micro_batch) < 170.0 && (y(*bytes) - at).abs() < 24.0);
        let (from, anchor) = if crowded { (frame.right - 2.0, Anchor::End) } else { (frame.left + 6.0, Anchor::Start) };
        svg.text((from, at - 5.0), anchor, "cap", &format!("cap {}", ByteSize(cap)));
    }
    let caption = "Each mark is one configuration at its last probe; a cross ran out of memory, and its true peak is \
                   higher than drawn (above it, how many layers it recomputed). Marks below the dashed cap line fit."
        .into();
    Some(Plot { name: "memory", title: "Memory against micro-batch", caption, svg })
}

/// Above the highest cross of each micro-batch, the densities that ran out of memory there: a cross hides its filling.
fn densities(svg: &mut Svg, rows: &[(&Row, f64)], layers: usize, at: &dyn Fn(&Row, f64) -> (f64, f64)) {
    let mut crosses: BTreeMap<usize, (BTreeSet<usize>, (f64, f64))> = BTreeMap::new();
    for (row, bytes) in rows.iter().filter(|(row, _)| row.peak().is_none()) {
        let (knobs, place) = (&row.trial.knobs, at(row, *bytes));
        let (counts, highest) = crosses.entry(knobs.micro_batch).or_insert_with(|| (BTreeSet::new(), place));
        counts.insert(knobs.checkpoint_layers);
        highest.1 = highest.1.min(place.1);
    }
    for (counts, (x, y)) in crosses.into_values() {
        let counts: Vec<String> = counts.iter().map(usize::to_string).collect();
        svg.text((x, y - MARK - 12.0), Anchor::Middle, "soft", &format!("{}/{layers}", counts.join(",")));
    }
}

/// A micro-batch with the point of its mark.
type Place = (usize, (f64, f64));

/// Thin lines between the marks of one branch and density that fit.
fn link(svg: &mut Svg, rows: &[(&Row, f64)], at: &dyn Fn(&Row, f64) -> (f64, f64)) {
    let mut lines: BTreeMap<(Branch, usize), Vec<Place>> = BTreeMap::new();
    for (row, bytes) in rows.iter().filter(|(row, _)| row.peak().is_some()) {
        let knobs = &row.trial.knobs;
        let line = lines.entry((Branch::of(knobs), knobs.checkpoint_layers)).or_default();
        line.push((knobs.micro_batch, at(row, *bytes)));
    }
    for ((branch, _), mut points) in lines {
        points.sort_by_key(|(micro, _)| *micro);
        let points: Vec<(f64, f64)> = points.into_iter().map(|(_, at)| at).collect();
        if points.len() > 1 {
            svg.open(class(branch.precision), "");
            svg.path(&points, "link");
            svg.close();
        }
    }
}
