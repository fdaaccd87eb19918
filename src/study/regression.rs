//! Bayesian linear regression whose coefficients are shared, to a degree, between branches.
//!
//! Each branch `b` has coefficients `c_bj ~ N(1, sd_j²)`, correlated between two branches by their likeness, and a
//! value is `Σ_j c_bj φ_j` plus a smooth relative deviation (the bumps that no line has) plus noise. The features `φ`
//! come multiplied with a guess, so that 1 is always the expected coefficient. What is learned about one precision
//! thereby sharpens the guess about the next. Solved in kernel form (Rasmussen & Williams, Gaussian Processes for
//! Machine Learning, algorithm 2.1): the work grows with the few observations, not with the number of branches.

use super::problem::Branch;

/// A mean and its standard deviation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Prediction {
    /// Expected value.
    pub mean: f64,
    /// Standard deviation.
    pub sd: f64,
}

/// Where a value is observed or predicted.
#[derive(Clone, Debug)]
pub struct Point<const N: usize> {
    /// The branch.
    pub branch: Branch,
    /// Features times their guessed coefficients: their sum is the value expected beforehand.
    pub features: [f64; N],
    /// Place in the space of bumps (`ln micro`, share of layers recomputed); `None` where there are no bumps.
    pub place: Option<[f64; 2]>,
}

/// A measured value with the standard deviation of its noise.
#[derive(Clone, Debug)]
pub struct Observation<const N: usize> {
    /// Where.
    pub point: Point<N>,
    /// What was measured.
    pub value: f64,
    /// Standard deviation of the noise, in units of the value.
    pub noise: f64,
}

/// What is believed before anything is measured.
#[derive(Clone, Copy, Debug)]
pub struct Prior<const N: usize> {
    /// Standard deviation of each relative coefficient around 1.
    pub sd: [f64; N],
    /// Correlation of two branches that differ in precision, optimizer, frozen layers, adapter rank.
    pub likeness: [f64; 4],
    /// Standard deviation of the bumps, relative to the expected value.
    pub bump: f64,
    /// Distance in `ln micro`, and in share of layers, at which bumps become unrelated.
    pub reach: [f64; 2],
}

impl<const N: usize> Prior<N> {
    /// Correlation of two branches: 1 for the same one.
    pub fn likeness(&self, a: Branch, b: Branch) -> f64 {
        let differs = [
            a.precision != b.precision,
            a.optimizer != b.optimizer,
            a.frozen_layers != b.frozen_layers,
            a.lora_rank != b.lora_rank,
        ];
        self.likeness.iter().zip(differs).map(|(&like, differs)| if differs { like } else { 1.0 }).product()
    }

    /// Prior covariance of the values at two points.
    fn covariance(&self, a: &Point<N>, b: &Point<N>) -> f64 {
        let linear: f64 = (0..N).map(|j| self.sd[j] * self.sd[j] * a.features[j] * b.features[j]).sum();
        let bumps = match (a.place, b.place) {
            (Some(p), Some(q)) => {
                let distance: f64 = (0..2).map(|i| ((p[i] - q[i]) / self.reach[i]).powi(2)).sum();
                self.bump * self.bump * expected(a) * expected(b) * (-0.5 * distance).exp()
            }
            _ => 0.0,
        };
        self.likeness(a.branch, b.branch) * (linear + bumps)
    }
}

/// The value expected at a point beforehand.
pub fn expected<const N: usize>(point: &Point<N>) -> f64 {
    point.features.iter().sum()
}

/// What is believed after the observations.
#[derive(Clone, Debug)]
pub struct Posterior<const N: usize> {
    prior: Prior<N>,
    points: Vec<Point<N>>,
    /// Lower triangle of the Cholesky factor of the observations' covariance, row by row.
    factor: Vec<Vec<f64>>,
    /// Covariance⁻¹ · (observed − expected).
    weights: Vec<f64>,
    /// ln p(observations), up to a constant that depends on their number only.
    log_likelihood: f64,
}

impl<const N: usize> Posterior<N> {
    /// Learns from observations.
    pub fn fit(prior: Prior<N>, observations: Vec<Observation<N>>) -> Self {
        let n = observations.len();
        let mut factor: Vec<Vec<f64>> = Vec::with_capacity(n);
        for i in 0..n {
            let mut row = Vec::with_capacity(i + 1);
            for j in 0..=i {
                let mut sum = prior.covariance(&observations[i].point, &observations[j].point);
                let lower: &[f64] = if i == j { &row } else { &factor[j] };
                sum -= row.iter().zip(lower).map(|(a, b)| a * b).sum::<f64>();
                if i == j {
                    // The floor keeps the root real against rounding when two points are equal and have no noise.
                    let floor = 1e-9 * prior.covariance(&observations[i].point, &observations[i].point);
                    let noise = observations[i].noise.powi(2);
                    row.push((sum + noise).max(floor).max(f64::MIN_POSITIVE).sqrt());
                } else {
                    row.push(sum / factor[j][j]);
                }
            }
            factor.push(row);
        }
        let residuals = observations.iter().map(|o| o.value - expected(&o.point)).collect();
        let whitened = forward(&factor, residuals);
        let misfit: f64 = whitened.iter().map(|v| v * v).sum();
        let volume: f64 = factor.iter().filter_map(|row| row.last()).map(|root| root.ln()).sum();
        let weights = backward(&factor, whitened);
        let points = observations.into_iter().map(|o| o.point).collect();
        Posterior { prior, points, factor, weights, log_likelihood: -0.5 * misfit - volume }
    }

    /// ln p(observations), up to a constant that depends on their number only: tells which of several priors they
    /// speak for.
    pub fn log_likelihood(&self) -> f64 {
        self.log_likelihood
    }

    /// The value at a point, noise apart.
    pub fn predict(&self, point: &Point<N>) -> Prediction {
        let cross: Vec<f64> = self.points.iter().map(|seen| self.prior.covariance(seen, point)).collect();
        let shift: f64 = cross.iter().zip(&self.weights).map(|(c, w)| c * w).sum();
        let explained: f64 = forward(&self.factor, cross).iter().map(|v| v * v).sum();
        let variance = (self.prior.covariance(point, point) - explained).max(0.0);
        Prediction { mean: expected(point) + shift, sd: variance.sqrt() }
    }
}

/// Solves `L x = b` for a lower triangular `L`.
fn forward(factor: &[Vec<f64>], mut b: Vec<f64>) -> Vec<f64> {
    for i in 0..b.len() {
        let known: f64 = factor[i][..i].iter().zip(&b).map(|(l, x)| l * x).sum();
        b[i] = (b[i] - known) / factor[i][i];
    }
    b
}

/// Solves `Lᵀ x = b` for a lower triangular `L`.
fn backward(factor: &[Vec<f64>], mut b: Vec<f64>) -> Vec<f64> {
    for i in (0..b.len()).rev() {
        let known: f64 = (i + 1..b.len()).map(|k| factor[k][i] * b[k]).sum();
        b[i] = (b[i] - known) / factor[i][i];
    }
    b
}

/// Φ: the probability that a standard normal variable lies below `z`, to 1e-7 (Abramowitz & Stegun 26.2.17).
pub fn normal_cdf(z: f64) -> f64 {
    let t = 1.0 / (1.0 + 0.231_641_9 * z.abs());
    let series = [0.319_381_530, -0.356_563_782, 1.781_477_937, -1.821_255_978, 1.330_274_429];
    let tail = normal_pdf(z) * series.iter().rev().fold(0.0, |sum, c| (sum + c) * t);
    if z >= 0.0 { 1.0 - tail } else { tail }
}

/// φ: the density of the standard normal distribution.
pub fn normal_pdf(z: f64) -> f64 {
    (-0.5 * z * z).exp() / (2.0 * std::f64::consts::PI).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{OptimizerKind, Precision};

    const PRIOR: Prior<2> = Prior { sd: [0.5, 0.5], likeness: [0.6, 0.9, 0.9, 0.9], bump: 0.0, reach: [1.0, 1.0] };

    fn branch(precision: Precision) -> Branch {
        Branch { precision, optimizer: OptimizerKind::AdamW, frozen_layers: None, lora_rank: None }
    }

    fn at(precision: Precision, x: f64) -> Point<2> {
        Point { branch: branch(precision), features: [10.0, x], place: None }
    }

    fn line(x: f64) -> f64 {
        12.0 + 1.5 * x
    }

    #[test]
    fn finds_a_line_and_says_how_sure_it_is() {
        let observe = |x: f64| Observation { point: at(Precision::Fp32, x), value: line(x), noise: 1e-3 };
        let before = Posterior::fit(PRIOR, vec![]).predict(&at(Precision::Fp32, 8.0));
        assert_eq!(before.mean, 18.0);
        let one = Posterior::fit(PRIOR, vec![observe(2.0)]).predict(&at(Precision::Fp32, 8.0));
        let two = Posterior::fit(PRIOR, vec![observe(2.0), observe(5.0)]).predict(&at(Precision::Fp32, 8.0));
        assert!((two.mean - line(8.0)).abs() < 0.02, "{two:?}");
        assert!(before.sd > one.sd && one.sd > 10.0 * two.sd, "{before:?} {one:?} {two:?}");
    }

    #[test]
    fn one_branch_teaches_another_but_not_everything() {
        let seen = [2.0, 5.0].map(|x| Observation { point: at(Precision::Fp32, x), value: line(x), noise: 1e-3 });
        let posterior = Posterior::fit(PRIOR, seen.to_vec());
        let other = posterior.predict(&at(Precision::Bf16, 8.0));
        assert!(other.mean > 20.0 && other.mean < line(8.0), "{other:?}");
        assert!(other.sd > posterior.predict(&at(Precision::Fp32, 8.0)).sd);
    }

    #[test]
    fn the_same_point_twice_is_no_trouble() {
        let observation = Observation { point: at(Precision::Fp32, 2.0), value: 15.0, noise: 0.0 };
        let posterior = Posterior::fit(PRIOR, vec![observation.clone(), observation]);
        let there = posterior.predict(&at(Precision::Fp32, 2.0));
        assert!((there.mean - 15.0).abs() < 1e-6 && there.sd < 1e-3, "{there:?}");
    }

    #[test]
    fn bumps_are_local() {
        let prior = Prior { bump: 0.05, ..PRIOR };
        let place = |x: f64| Point { place: Some([x.ln(), 0.0]), ..at(Precision::Fp32, x) };
        let seen = [2.0, 5.0].map(|x| Observation { point: place(x), value: line(x), noise: 1e-3 });
        let posterior = Posterior::fit(prior, seen.to_vec());
        assert!(posterior.predict(&place(5.5)).sd < 0.3 * posterior.predict(&place(30.0)).sd);
    }

    #[test]
    fn normal_distribution() {
        for (z, p) in [(0.0, 0.5), (1.0, 0.841_344_7), (-1.0, 0.158_655_3), (1.96, 0.975_002_1), (-4.0, 3.167e-5)] {
            assert!((normal_cdf(z) - p).abs() < 1e-6, "{z}");
        }
    }
}
