//! What an optimizer remembers of one parameter, as named tensors and whole numbers: the form in which snapshots hold
//! it. Names are Burn's own ([`RecordState`]): `momentum.moment_1`, `momentum.time`, …

use std::collections::BTreeMap;

use anyhow::{Context, Result, anyhow};
use burn::optim::{RecordState, StateSink, StateSource};
use burn::tensor::{Device, TensorData};

use crate::model::views::TensorView;

/// The memory of one parameter, on its way out.
#[derive(Default)]
pub struct Exported {
    /// Tensors by name.
    pub tensors: Vec<(String, TensorView)>,
    /// Counters by name.
    pub counters: BTreeMap<String, u64>,
}

/// The memory of one parameter, on its way in.
#[derive(Default)]
pub struct Imported {
    /// Tensors by name.
    pub tensors: Vec<(String, TensorData)>,
    /// Counters by name.
    pub counters: BTreeMap<String, u64>,
}

/// Any rule's memory. Tensors are copied: a rule whose memory is too large for that exports it by itself.
pub(super) fn export<S: RecordState>(state: &S) -> Exported {
    let mut sink = StateSink::default();
    state.state_flatten("", &mut sink);
    let counters = sink.scalars.into_iter().filter_map(|(name, value)| Some((name, u64::try_from(value).ok()?)));
    Exported {
        counters: counters.collect(),
        tensors: sink.tensors.into_iter().map(|(name, data)| (name, TensorView::of_data(data))).collect(),
    }
}

/// The rule's memory again.
///
/// # Errors
/// If a part of it is missing.
pub(super) fn import<S: RecordState>(from: Imported, device: &Device) -> Result<S> {
    let names: Vec<String> =
        from.tensors.iter().map(|(name, _)| name.clone()).chain(from.counters.keys().cloned()).collect();
    let mut source = StateSource::new(from.counters.into_iter().map(|(name, value)| (name, value.into())).collect());
    for (name, data) in from.tensors {
        source.insert_tensor(name, data);
    }
    S::state_unflatten("", &mut source, device)
        .ok_or_else(|| anyhow!("it holds only {}", names.join(", ")))
        .context("the optimizer's memory of a parameter is not whole")
}
