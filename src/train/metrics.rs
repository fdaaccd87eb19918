//! Scores of predictions, as scikit-learn and SciPy define them.

pub use crate::probe::protocol::training::{Classification, Regression};

/// Above this many classes a confusion matrix tells a person nothing, and costs its square in memory.
const MAX_CONFUSION: usize = 100;

/// Mean cross-entropy and scores of logits `[rows, width]`, row-major.
pub fn classification(logits: &[f32], width: usize, classes: &[usize]) -> (f64, Classification) {
    let mut counts = vec![Counts::default(); width];
    let mut confusion = if width <= MAX_CONFUSION { vec![vec![0; width]; width] } else { Vec::new() };
    let (mut loss, mut right) = (0.0, 0);
    for (row, &class) in logits.chunks_exact(width).zip(classes) {
        let largest = row.iter().fold(f64::NEG_INFINITY, |m, &v| m.max(f64::from(v)));
        let total: f64 = row.iter().map(|&v| (f64::from(v) - largest).exp()).sum();
        loss += total.ln() + largest - f64::from(row[class]);
        let predicted = (0..width).fold(0, |best, i| if row[i] > row[best] { i } else { best });
        right += usize::from(predicted == class);
        counts[class].targets += 1;
        counts[predicted].predictions += 1;
        counts[class].right += usize::from(predicted == class);
        if let Some(cell) = confusion.get_mut(class).and_then(|row| row.get_mut(predicted)) {
            *cell += 1;
        }
    }
    let rows = classes.len().max(1) as f64;
    let seen: Vec<f64> = counts.iter().filter(|c| c.targets + c.predictions > 0).map(Counts::f1).collect();
    let macro_f1 = seen.iter().sum::<f64>() / seen.len().max(1) as f64;
    let quality = Classification {
        accuracy: right as f64 / rows,
        macro_f1,
        f1: counts.iter().map(Counts::f1).collect(),
        precision: counts.iter().map(|c| share(c.right, c.predictions)).collect(),
        recall: counts.iter().map(|c| share(c.right, c.targets)).collect(),
        support: counts.iter().map(|c| c.targets).collect(),
        confusion,
    };
    (loss / rows, quality)
}

/// `part / whole`; 0 of nothing, as scikit-learn's `zero_division=0`.
fn share(part: usize, whole: usize) -> f64 {
    part as f64 / whole.max(1) as f64
}

#[derive(Clone, Default)]
struct Counts {
    targets: usize,
    predictions: usize,
    right: usize,
}

impl Counts {
    fn f1(&self) -> f64 {
        share(2 * self.right, self.targets + self.predictions)
    }
}

/// Mean squared error and correlations.
pub fn regression(predictions: &[f32], targets: &[f32]) -> (f64, Regression) {
    let x: Vec<f64> = predictions.iter().map(|&v| f64::from(v)).collect();
    let y: Vec<f64> = targets.iter().map(|&v| f64::from(v)).collect();
    let loss = x.iter().zip(&y).map(|(a, b)| (a - b) * (a - b)).sum::<f64>() / x.len().max(1) as f64;
    (loss, Regression { pearson: correlation(&x, &y), spearman: correlation(&ranks(&x), &ranks(&y)) })
}

fn correlation(x: &[f64], y: &[f64]) -> f64 {
    let mean = |v: &[f64]| v.iter().sum::<f64>() / v.len().max(1) as f64;
    let (mx, my) = (mean(x), mean(y));
    let sum = |f: &dyn Fn(f64, f64) -> f64| x.iter().zip(y).map(|(&a, &b)| f(a - mx, b - my)).sum::<f64>();
    let (xy, xx, yy) = (sum(&|a, b| a * b), sum(&|a, _| a * a), sum(&|_, b| b * b));
    if xx == 0.0 || yy == 0.0 { 0.0 } else { xy / (xx * yy).sqrt() }
}

/// Ranks from 1, ties at their mean.
fn ranks(values: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_by(|&a, &b| values[a].total_cmp(&values[b]));
    let mut ranks = vec![0.0; values.len()];
    let mut before = 0;
    for tied in order.chunk_by(|&a, &b| values[a] == values[b]) {
        for &i in tied {
            ranks[i] = before as f64 + (tied.len() as f64 + 1.0) / 2.0;
        }
        before += tied.len();
    }
    ranks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classification_is_scikit_learns() {
        // sklearn.metrics on y_true = [0, 0, 1, 2], y_pred = [0, 1, 1, 1].
        let logits = [2.0, 0.0, 0.0, 0.0, 2.0, 0.0, 0.0, 2.0, 0.0, 0.0, 2.0, 0.0];
        let (loss, scores) = classification(&logits, 3, &[0, 0, 1, 2]);
        assert_eq!(scores.accuracy, 0.5);
        assert!((scores.f1[0] - 2.0 / 3.0).abs() < 1e-12 && scores.f1[1] == 0.5 && scores.f1[2] == 0.0);
        assert!((scores.macro_f1 - (2.0 / 3.0 + 0.5) / 3.0).abs() < 1e-12);
        assert_eq!((&scores.precision[..], &scores.recall[..]), (&[1.0, 1.0 / 3.0, 0.0][..], &[0.5, 1.0, 0.0][..]));
        assert_eq!(scores.support, [2, 1, 1]);
        assert_eq!(scores.confusion, [[1, 1, 0], [0, 1, 0], [0, 1, 0]]);
        let right = (2f64.exp() + 2.0).ln() - 2.0;
        assert!((loss - (2.0 * right + 2.0 * (right + 2.0)) / 4.0).abs() < 1e-12);
    }

    #[test]
    fn correlations_are_scipys() {
        // scipy.stats.pearsonr and spearmanr of [1, 2, 3, 4] and [1, 4, 9, 15]; spearmanr with a tie.
        let (mse, scores) = regression(&[1.0, 2.0, 3.0, 4.0], &[1.0, 4.0, 9.0, 15.0]);
        assert!((scores.pearson - 0.989747890585254).abs() < 1e-6, "{}", scores.pearson);
        assert_eq!((scores.spearman, mse), (1.0, (4.0 + 36.0 + 121.0) / 4.0));
        assert_eq!(ranks(&[2.0, 1.0, 2.0]), [2.5, 1.0, 2.5]);
        assert_eq!(regression(&[1.0, 1.0], &[1.0, 2.0]).1.pearson, 0.0);
    }
}
