//! What the memory of the answer is made of, as a bar as long as the cap.

use super::Plot;
use crate::plan::ByteSize;
use crate::report::sheet::Sheet;
use crate::report::svg::{Anchor, Scale, Svg};

/// `None` without an answer.
pub fn plot(sheet: &Sheet, width: f64, suffix: &str) -> Option<Plot> {
    let measured = &sheet.best.as_ref()?.measured;
    let whole = measured.cap_bytes.unwrap_or(measured.peak_bytes).max(measured.peak_bytes).max(1);
    let parts = [
        ("w", "W", "weights", measured.weight_bytes),
        ("g", "G", "gradients", measured.gradient_bytes),
        ("o", "O", "optimizer state", measured.optimizer_bytes),
        ("a", "A", "activations and temporaries", measured.activation_bytes),
        ("free", "", "left free below the cap", whole.saturating_sub(measured.peak_bytes)),
    ];
    let words: Vec<String> = parts.iter().map(|(_, _, name, bytes)| format!("{name} {}", ByteSize(*bytes))).collect();
    let name = format!("breakdown{suffix}");
    let height = 74.0 + 22.0 * parts.len() as f64;
    let mut svg = Svg::new(&name, "What the memory of the answer is made of", &words.join(", "), width, height);
    let scale = Scale::linear((0.0, whole as f64), (8.0, width - 8.0));
    let mut before = 0u64;
    for (at, (class, letter, name, bytes)) in parts.iter().enumerate() {
        let (from, to) = (scale.at(before as f64), scale.at((before + bytes) as f64));
        before += bytes;
        svg.open("", &words[at]);
        svg.rect((from, 12.0), (to - from, 36.0), class);
        if to - from > 18.0 && !letter.is_empty() {
            svg.text(((from + to) / 2.0, 35.0), Anchor::Middle, "on", letter);
        }
        svg.close();
        let y = 76.0 + 22.0 * at as f64;
        svg.rect((8.0, y - 12.0), (18.0, 15.0), class);
        svg.text((17.0, y), Anchor::Middle, "on", letter);
        svg.text((34.0, y), Anchor::Start, "", name);
        let share = 100.0 * *bytes as f64 / whole as f64;
        svg.text((width - 70.0, y), Anchor::End, "", &ByteSize(*bytes).to_string());
        svg.text((width - 8.0, y), Anchor::End, "soft", &format!("{share:.0} %"));
    }
    let caption = match measured.cap_bytes {
        Some(cap) => format!("The whole bar is the cap, {}.", ByteSize(cap)),
        None => "No cap was given: the whole bar is the peak.".into(),
    };
    Some(Plot { name: "breakdown", title: "What the memory is made of", caption, svg })
}
