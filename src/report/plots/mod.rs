//! The plots of a report, each as one drawing that can be read without colour: precision is a shape, checkpoint
//! density a filling, out of memory a cross.
//!
//! Every plot is drawn for a given width, so that a page can carry one for wide screens and one for phones: scaling
//! one drawing down would make its text unreadable.

mod breakdown;
mod memory;
mod speed;
mod timeline;

use super::sheet::{Row, Sheet};
use super::svg::{Anchor, Filling, Scale, Shape, Svg, short, ticks};
use super::terminal;
use crate::plan::{ByteSize, Knobs, Outcome, Precision};

/// A drawing with the name of its file.
#[derive(Clone, Debug)]
pub struct Plot {
    /// `memory`, `speed`, `timeline` or `breakdown`.
    pub name: &'static str,
    /// Heading.
    pub title: &'static str,
    /// What to see in it, in one or two sentences.
    pub caption: String,
    /// The drawing.
    pub svg: Svg,
}

/// Every plot that the study has something to show for, `width` units wide. `suffix` keeps names unique on a page.
pub fn all(sheet: &Sheet, width: f64, suffix: &str) -> Vec<Plot> {
    [memory::plot, speed::plot, breakdown::plot, timeline::plot]
        .into_iter()
        .filter_map(|plot| plot(sheet, width, suffix))
        .collect()
}

/// Radius of a mark.
const MARK: f64 = 5.5;

/// The class that colours a precision.
fn class(precision: Precision) -> &'static str {
    precision.name()
}

/// The outline of a precision.
fn shape(precision: Precision) -> Shape {
    match precision {
        Precision::Fp32 => Shape::Circle,
        Precision::Bf16 => Shape::Square,
        Precision::Fp16 => Shape::Triangle,
    }
}

/// The filling of a density: nothing recomputed, something, everything.
fn filling(knobs: &Knobs, layers: usize) -> Filling {
    match knobs.checkpoint_layers {
        0 => Filling::Hollow,
        r if r >= layers => Filling::Full,
        _ => Filling::Half,
    }
}

/// What is said when a mark is hovered over.
fn told(row: &Row, layers: usize, effective: Option<usize>) -> String {
    let trial = &row.trial;
    let effective = effective.unwrap_or(trial.knobs.micro_batch);
    let mut text = format!("Trial {}: {}", trial.number, terminal::configuration(&trial.knobs, effective, layers));
    match row.peak() {
        Some(peak) => text += &format!(", {}", ByteSize(peak)),
        None => text += &format!(", {}", outcome(trial.attempt.outcome)),
    }
    if let Some(speed) = row.samples_per_second {
        text += &format!(", {} samples/s", short(speed));
    }
    text
}

/// An outcome in words.
pub(super) fn outcome(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Fit => "fits",
        Outcome::Oom => "out of memory",
        Outcome::HostOom => "machine short of memory",
        Outcome::Timeout => "too slow (deadline)",
        Outcome::Nan => "not finite",
        Outcome::Crash => "crashed",
        Outcome::Garbage => "no report",
        Outcome::Unsupported => "unsupported",
        Outcome::Interrupted => "interrupted",
        Outcome::Pruned => "left out",
    }
}

/// The area between the axes.
#[derive(Clone, Copy, Debug)]
struct Frame {
    left: f64,
    right: f64,
    top: f64,
    bottom: f64,
}

impl Frame {
    /// Below a legend of some lines.
    fn new(width: f64, height: f64, top: f64) -> Self {
        Frame { left: 52.0, right: width - 14.0, top, bottom: height - 42.0 }
    }

    fn x(&self) -> (f64, f64) {
        (self.left, self.right)
    }

    fn y(&self) -> (f64, f64) {
        (self.bottom, self.top)
    }

    fn name_axes(&self, svg: &mut Svg, x: &str, y: &str) {
        svg.text(((self.left + self.right) / 2.0, self.bottom + 34.0), Anchor::Middle, "soft", x);
        svg.text((self.left - 46.0, self.top - 10.0), Anchor::Start, "soft", y);
        svg.line((self.left, self.bottom), (self.right, self.bottom), "axis");
        svg.line((self.left, self.top), (self.left, self.bottom), "axis");
    }

    fn x_tick(&self, svg: &mut Svg, x: f64, text: &str) {
        svg.line((x, self.bottom), (x, self.bottom + 4.0), "axis");
        svg.text((x, self.bottom + 17.0), Anchor::Middle, "", text);
    }

    fn y_tick(&self, svg: &mut Svg, y: f64, text: &str) {
        svg.line((self.left, y), (self.right, y), "grid");
        svg.text((self.left - 6.0, y + 4.5), Anchor::End, "", text);
    }
}

/// Bytes on an axis: a unit and round ticks in it.
struct ByteAxis {
    unit: &'static str,
    bytes: f64,
    /// In units.
    max: f64,
}

impl ByteAxis {
    fn new(max_bytes: f64) -> Self {
        let (unit, bytes) = match max_bytes {
            max if max >= 1.5 * 1024f64.powi(3) => ("GiB", 1024f64.powi(3)),
            max if max >= 1.5 * 1024f64.powi(2) => ("MiB", 1024f64.powi(2)),
            _ => ("KiB", 1024.0),
        };
        ByteAxis { unit, bytes, max: (max_bytes / bytes).max(1e-9) }
    }

    fn scale(&self, range: (f64, f64)) -> impl Fn(f64) -> f64 + use<> {
        let (scale, bytes) = (Scale::linear((0.0, self.max), range), self.bytes);
        move |value| scale.at(value / bytes)
    }

    fn ticks(&self, count: usize) -> Vec<(f64, String)> {
        ticks(self.max, count).into_iter().map(|tick| (tick * self.bytes, short(tick))).collect()
    }
}

/// One entry of a legend.
enum Key {
    Mark(&'static str, Shape, Filling, String),
    Refused(String),
    Line(&'static str, String),
}

/// Draws a legend in as many lines as the width needs; returns where the plot below may begin.
fn legend(svg: &mut Svg, keys: &[Key]) -> f64 {
    let (mut x, mut y) = (8.0, 16.0);
    for key in keys {
        let text = match key {
            Key::Mark(_, _, _, text) | Key::Refused(text) | Key::Line(_, text) => text,
        };
        // About 7 units a letter at 13 px.
        let width = 26.0 + 7.2 * text.chars().count() as f64 + 14.0;
        if x + width > svg.width && x > 8.0 {
            (x, y) = (8.0, y + 22.0);
        }
        match key {
            Key::Mark(class, shape, filling, _) => {
                svg.open(class, "");
                svg.mark(*shape, *filling, (x + 8.0, y - 4.0), MARK);
                svg.close();
            }
            Key::Refused(_) => {
                svg.open("bad", "");
                svg.refused(Shape::Circle, (x + 8.0, y - 3.0), MARK);
                svg.close();
            }
            Key::Line(class, _) => svg.line((x, y - 4.0), (x + 18.0, y - 4.0), class),
        }
        svg.text((x + 23.0, y), Anchor::Start, "", text);
        x += width;
    }
    y + 34.0
}

/// What the marks of these rows mean: one key for each precision, and for each filling, that occurs.
fn mark_keys(rows: &[&Row], layers: usize) -> Vec<Key> {
    let mut keys = Vec::new();
    for precision in Precision::ALL {
        if rows.iter().any(|row| row.trial.knobs.precision == precision) {
            keys.push(Key::Mark(class(precision), shape(precision), Filling::Hollow, precision.to_string()));
        }
    }
    let words = [
        (Filling::Hollow, "no layer recomputed"),
        (Filling::Half, "some recomputed"),
        (Filling::Full, "all recomputed"),
    ];
    for (filling_, text) in words {
        if rows.iter().any(|row| filling(&row.trial.knobs, layers) == filling_) {
            keys.push(Key::Mark("other", Shape::Circle, filling_, text.into()));
        }
    }
    keys
}
