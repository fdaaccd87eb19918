//! How well each class does, as a table.

use crate::plan::text::one_line;
use crate::train::evaluate::{Quality, Scores};

/// Above this many classes a table is longer than a person reads at the end of a run.
const MAX_CLASSES: usize = 10;

/// Widest label that is shown whole.
const MAX_LABEL: usize = 24;

/// Precision, recall, F1 and rows of every class, one line each; empty for a regression and for many classes.
pub fn table(scores: &Scores) -> String {
    let Quality::Classification(quality) = &scores.quality else { return String::new() };
    if !(2..=MAX_CLASSES).contains(&quality.support.len()) {
        return String::new();
    }
    let labels: Vec<String> =
        (0..quality.support.len()).map(|class| short(scores.labels.get(class).map_or("", String::as_str))).collect();
    let width = labels.iter().map(|label| label.chars().count()).max().unwrap_or(0).max("class".len());
    let mut out = format!("  {:width$}  precision  recall      F1   rows\n", "class");
    for (class, label) in labels.iter().enumerate() {
        out += &format!(
            "  {label:width$}  {:9.4}  {:6.4}  {:6.4}  {:5}\n",
            quality.precision[class], quality.recall[class], quality.f1[class], quality.support[class]
        );
    }
    out
}

/// A label on one line, cut where it is long.
fn short(label: &str) -> String {
    let plain = one_line(label);
    if plain.chars().count() <= MAX_LABEL {
        return plain.into_owned();
    }
    plain.chars().take(MAX_LABEL - 1).chain(['…']).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::train::metrics;

    fn scores(width: usize) -> Scores {
        let logits: Vec<f32> = (0..width * width).map(|i| if i % (width + 1) == 0 { 1.0 } else { 0.0 }).collect();
        let (loss, quality) = metrics::classification(&logits, width, &(0..width).collect::<Vec<_>>());
        let labels = (0..width).map(|class| format!("class {class} of this test\nand more")).collect();
        Scores { rows: width, loss, quality: Quality::Classification(quality), labels }
    }

    #[test]
    fn one_line_a_class_but_not_for_many() {
        let text = table(&scores(3));
        assert_eq!(text.lines().count(), 4, "{text}");
        assert!(text.contains("class 1 of this test\\na…     1.0000  1.0000  1.0000      1\n"), "{text}");
        assert_eq!(table(&scores(MAX_CLASSES)).lines().count(), 1 + MAX_CLASSES);
        assert_eq!(table(&scores(MAX_CLASSES + 1)), "");
    }
}
