//! One micro-batch: padded token ids on the device, with their targets.

use anyhow::{Result, ensure};
use burn::tensor::{Device, Int, Tensor, TensorData};

use crate::data::batch::{self, PadTo, Padded};
use crate::data::corpus::Targets;
use crate::data::tokenize::Encoded;
use crate::model::ModelConfig;
use crate::model::pass::{Inputs, Packed, PaddingMask};

/// Rows that go through forward and backward together.
#[derive(Clone, Debug)]
pub struct MicroBatch {
    /// Token ids, positions, types and padding, all `[rows, length]`.
    pub inputs: Inputs,
    /// What the rows should give.
    pub targets: Targets,
}

impl MicroBatch {
    /// Pads `rows` and brings them to `device`. The tensors carry no tape: gradients do not flow into token ids.
    ///
    /// # Errors
    /// If a row is longer than the padding allows, or than the model has positions.
    pub fn new(rows: &[&Encoded], targets: Targets, pad: PadTo, config: &ModelConfig, device: &Device) -> Result<Self> {
        let plain = device.clone().without_autodiff();
        let padded = batch::pad(rows, config.pad_token_id, pad)?;
        let (count, length) = (padded.rows, padded.length);
        ensure!(
            length <= config.max_length(),
            "a row of {length} tokens is longer than the {} positions of the model: lower --max-length",
            config.max_length()
        );
        let tensor = |values: Vec<i32>| Tensor::<2, Int>::from_data(TensorData::new(values, [count, length]), &plain);
        let positions = positions(&padded, config.position_offset());
        let inputs = Inputs {
            packed: pack(&padded, &positions),
            positions: tensor(positions),
            mask: PaddingMask::from_lengths(&padded.lengths, length, &plain),
            ids: tensor(padded.ids),
            types: tensor(padded.type_ids),
        };
        Ok(MicroBatch { inputs, targets })
    }

    /// Numbers the rows by their place in the optimizer step, from 0, so that their dropout masks do not depend on the
    /// micro-batch that they were put in. Without it they are numbered in the order in which they come.
    pub fn numbered(mut self, numbers: impl IntoIterator<Item = u64>) -> Self {
        self.inputs.packed.rows = numbers.into_iter().collect();
        self
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

/// The real tokens alone.
fn pack(padded: &Padded, positions: &[i32]) -> Packed {
    let mut packed = Packed { offsets: vec![0], ..Packed::default() };
    for (row, &tokens) in padded.lengths.iter().enumerate() {
        let range = row * padded.length..row * padded.length + tokens;
        packed.ids.extend(padded.ids[range.clone()].iter().map(|&id| id as u32));
        packed.positions.extend(positions[range.clone()].iter().map(|&position| position as u32));
        packed.types.extend(padded.type_ids[range].iter().map(|&kind| kind as u32));
        packed.offsets.push(packed.ids.len());
    }
    packed
}

/// Position of every token. Where positions start behind the padding index (RoBERTa), padding keeps that index, whose
/// embedding is zero; BERT just counts on.
fn positions(padded: &Padded, offset: usize) -> Vec<i32> {
    let position = |row: usize, i: usize| match offset {
        0 => i,
        _ if i < padded.lengths[row] => i + offset,
        _ => offset - 1,
    };
    (0..padded.rows).flat_map(|row| (0..padded.length).map(move |i| position(row, i) as i32)).collect()
}
