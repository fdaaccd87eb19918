//! One micro-batch: padded token ids on the device, with their targets.

use burn::tensor::{Device, Int, Tensor, TensorData};

use super::objective::Targets;
use crate::model::ModelConfig;
use crate::model::pass::{Inputs, PaddingMask};

/// Rows that go through forward and backward together.
#[derive(Clone, Debug)]
pub struct MicroBatch {
    /// Token ids, positions, types and padding, all `[rows, length]`.
    pub inputs: Inputs,
    /// What the rows should give.
    pub targets: Targets,
}

/// The tokens of one row.
#[derive(Clone, Copy, Debug)]
pub struct Row<'a> {
    /// Token ids with the special tokens.
    pub ids: &'a [u32],
    /// Segment of each token; empty means 0 throughout.
    pub types: &'a [u32],
}

impl MicroBatch {
    /// Pads `rows` to `length` (at least that of the longest row).
    ///
    /// The tensors carry no tape: gradients do not flow into token ids.
    pub fn new(rows: &[Row<'_>], targets: Targets, length: usize, config: &ModelConfig, device: &Device) -> Self {
        let plain = device.clone().without_autodiff();
        let longest = rows.iter().map(|row| row.ids.len()).max().unwrap_or(0);
        let length = length.max(longest);
        let cells = rows.len() * length;
        let (mut ids, mut types, mut positions) =
            (Vec::with_capacity(cells), Vec::with_capacity(cells), Vec::with_capacity(cells));
        // Padding keeps RoBERTa's padding position, whose embedding is zero; BERT just counts on.
        let offset = config.position_offset();
        for row in rows {
            for i in 0..length {
                let real = i < row.ids.len();
                ids.push(i64::from(if real { row.ids[i] } else { config.pad_token_id }));
                types.push(i64::from(row.types.get(i).copied().unwrap_or(0)));
                let padding_position = offset.saturating_sub(1);
                positions.push(if real || offset == 0 { i + offset } else { padding_position } as i64);
            }
        }
        let lengths: Vec<usize> = rows.iter().map(|row| row.ids.len()).collect();
        let tensor =
            |values: Vec<i64>| Tensor::<2, Int>::from_data(TensorData::new(values, [rows.len(), length]), &plain);
        let inputs = Inputs {
            ids: tensor(ids),
            positions: tensor(positions),
            types: tensor(types),
            mask: PaddingMask::from_lengths(&lengths, length, &plain),
        };
        MicroBatch { inputs, targets }
    }

    /// Rows.
    pub fn len(&self) -> usize {
        self.targets.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
