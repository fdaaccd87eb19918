//! Throughput against memory, with the Pareto front: the configurations than which none is both faster and smaller.

use super::{ByteAxis, Frame, Key, MARK, Plot, class, filling, legend, mark_keys, shape, told};
use crate::plan::ByteSize;
use crate::report::sheet::{Row, Sheet};
use crate::report::svg::{Anchor, Scale, Svg, short, ticks};

/// A configuration that was measured.
struct Measured<'a> {
    row: &'a Row,
    bytes: f64,
    speed: f64,
}

/// `None` where nothing fit.
pub fn plot(sheet: &Sheet, width: f64, suffix: &str) -> Option<Plot> {
    let (cap, layers) = (sheet.cap(), sheet.layers_or_guess());
    let latest = sheet.latest();
    let points: Vec<Measured<'_>> = latest
        .iter()
        .filter_map(|row| Some(Measured { row, bytes: row.peak()? as f64, speed: sheet.speed(&row.trial.knobs)? }))
        .collect();
    let most = points.iter().map(|p| p.bytes).chain(cap.map(|c| c as f64)).reduce(f64::max)?;
    let fastest = points.iter().map(|p| p.speed).reduce(f64::max)?;
    let front = front(&points);

    let description = format!(
        "{} measured configurations, {} of them on the Pareto front. The fastest reaches {} samples per second.",
        points.len(),
        front.len(),
        short(fastest)
    );
    let name = format!("speed{suffix}");
    let mut svg = Svg::new(&name, "Throughput against peak memory", &description, width, 380.0);
    let shown: Vec<&Row> = points.iter().map(|p| p.row).collect();
    let mut keys = mark_keys(&shown, layers);
    keys.push(Key::Line("front", "Pareto front".into()));
    let top = legend(&mut svg, &keys);
    let frame = Frame::new(width, svg.height, top);
    let axis = ByteAxis::new(most * 1.06);
    let x = axis.scale(frame.x());
    let y = Scale::linear((0.0, fastest * 1.15), frame.y());

    for tick in ticks(fastest * 1.15, 5) {
        frame.y_tick(&mut svg, y.at(tick), &short(tick));
    }
    for (value, text) in axis.ticks(if width < 500.0 { 4 } else { 8 }) {
        frame.x_tick(&mut svg, x(value), &text);
    }
    frame.name_axes(&mut svg, &format!("peak memory ({})", axis.unit), "samples per second");
    if let Some(cap) = cap {
        let at = x(cap as f64);
        svg.line((at, frame.top), (at, frame.bottom), "cap");
        svg.text((at - 5.0, frame.bottom - 8.0), Anchor::End, "cap", &format!("cap {}", ByteSize(cap)));
    }
    let mut steps: Vec<(f64, f64)> = Vec::new();
    for point in &front {
        let at = (x(point.bytes), y.at(point.speed));
        if let Some(&(_, before)) = steps.last() {
            steps.push((at.0, before));
        }
        steps.push(at);
    }
    svg.path(&steps, "front");
    for point in &points {
        let knobs = &point.row.trial.knobs;
        let at = (x(point.bytes), y.at(point.speed));
        svg.open(&format!("mark {}", class(knobs.precision)), &told(point.row, layers, sheet.effective_batch()));
        svg.mark(shape(knobs.precision), filling(knobs, layers), at, MARK);
        svg.close();
        if Some(*knobs) == sheet.winner() {
            svg.ring(at, MARK);
            svg.text((at.0 - 14.0, at.1 - 10.0), Anchor::End, "strong", "answer");
        }
    }
    let caption = "Up is faster, left is smaller. Every point off the front is beaten by one that is faster and needs \
                   no more memory."
        .into();
    Some(Plot { name: "speed", title: "Throughput against memory", caption, svg })
}

/// The Pareto front, the smallest first.
fn front<'a>(points: &'a [Measured<'a>]) -> Vec<&'a Measured<'a>> {
    let mut sorted: Vec<&Measured<'_>> = points.iter().collect();
    sorted.sort_by(|a, b| a.bytes.total_cmp(&b.bytes).then(b.speed.total_cmp(&a.speed)));
    let mut fastest = f64::NEG_INFINITY;
    sorted.retain(|point| {
        let leads = point.speed > fastest;
        fastest = fastest.max(point.speed);
        leads
    });
    sorted
}
