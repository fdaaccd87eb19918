//! What is minimised: the loss of one micro-batch, as a sum, so that a step may be cut anywhere.

use burn::tensor::activation::log_softmax;
use burn::tensor::{Device, Int, Tensor, TensorData};
use serde::{Deserialize, Serialize};

use crate::data::corpus::Targets;

/// Cross-entropy (with label smoothing and class weights) for classes, mean squared error for values: as PyTorch's
/// `CrossEntropyLoss` and `MSELoss` define them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Objective {
    /// Share of the target probability that is spread evenly over all classes.
    #[serde(default)]
    pub label_smoothing: f64,
    /// Weight of each class in the mean; empty means equal weights.
    #[serde(default)]
    pub class_weights: Vec<f32>,
}

impl Objective {
    /// What the sum of losses over these rows is divided by, so that it becomes their (weighted) mean.
    pub fn weight(&self, targets: &Targets) -> f64 {
        match targets {
            Targets::Classes(classes) if !self.class_weights.is_empty() => {
                classes.iter().map(|&class| f64::from(self.class_weights[class])).sum()
            }
            other => other.len() as f64,
        }
    }

    /// The sum of the rows' losses. `logits` is `[rows, classes]` (`[rows, 1]` for values), in 32 bits.
    pub fn loss_sum(&self, logits: Tensor<2>, targets: &Targets) -> Tensor<1> {
        let device = logits.device();
        match targets {
            Targets::Classes(classes) => self.cross_entropy_sum(logits, classes, &device),
            Targets::Values(values) => {
                let data = TensorData::new(values.clone(), [values.len(), 1]);
                (logits - Tensor::<2>::from_data(data, &device)).square().sum()
            }
        }
    }

    fn cross_entropy_sum(&self, logits: Tensor<2>, classes: &[usize], device: &Device) -> Tensor<1> {
        let [rows, width] = logits.dims();
        let indices: Vec<i64> = classes.iter().map(|&class| class as i64).collect();
        let indices = Tensor::<2, Int>::from_data(TensorData::new(indices, [rows, 1]), device);
        let log_probabilities = log_softmax(logits, 1);
        let mut chosen = log_probabilities.clone().gather(1, indices);
        if self.class_weights.is_empty() && self.label_smoothing == 0.0 {
            return chosen.sum().neg();
        }
        let weights = |rows: Vec<f32>, shape: [usize; 2]| Tensor::<2>::from_data(TensorData::new(rows, shape), device);
        let mut all = log_probabilities;
        if !self.class_weights.is_empty() {
            chosen = chosen * weights(classes.iter().map(|&class| self.class_weights[class]).collect(), [rows, 1]);
            all = all * weights(self.class_weights.clone(), [1, width]);
        }
        let smooth = self.label_smoothing;
        (chosen.sum() * (1.0 - smooth) + all.sum() * (smooth / width as f64)).neg()
    }
}
