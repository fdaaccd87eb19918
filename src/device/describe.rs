//! What a device says of itself, and what it computes when it is tried.

use anyhow::{Context, Result, bail};
use burn::tensor::{Device, Tensor, TensorData};

use super::select::{self, Selected};
use crate::plan::Precision;
use crate::probe::protocol::DeviceDescription;

/// Environment variable by which tests of flow accept a device that computes nothing. What is trained on one is not
/// saved.
pub const TRUST_VAR: &str = "AUTOFIT_TRUST_DEVICE";

/// Whether wrong arithmetic is accepted here: for tests of flow on a driver that is not there.
pub fn trusted() -> bool {
    std::env::var_os(TRUST_VAR).is_some()
}

/// Asks a device who it is, and tries each precision. Sets up its runtime in this process.
///
/// # Errors
/// If there is no such device, or it does not answer. Runtimes may panic instead.
pub fn describe(selected: &Selected) -> Result<DeviceDescription> {
    if selected.is_cpu() {
        return Ok(cpu());
    }
    let mut description = identity(selected)?;
    selected.device.sync().context("the device does not answer")?;
    let mut wrong = Vec::new();
    for precision in Precision::ALL {
        if !select::claims(selected, precision) {
            continue;
        }
        match computes(&selected.device, precision)? {
            None => description.precisions.push(precision),
            Some(_) if trusted() => description.precisions.push(precision),
            Some(what) => wrong.push(format!("{precision}: {what}")),
        }
    }
    if !description.precisions.contains(&Precision::Fp32) {
        bail!("it does not compute: {}", wrong.join("; "));
    }
    description.notes.extend(wrong.into_iter().map(|what| format!("not used: {what}")));
    Ok(description)
}

/// The CPU, which needs no question.
pub fn cpu() -> DeviceDescription {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    DeviceDescription {
        name: select::CPU.into(),
        title: Some(format!("this computer's processor, {threads} threads")),
        total_bytes: None,
        free_bytes: select::available_memory(),
        driver: None,
        capability: None,
        precisions: Precision::ALL.to_vec(),
        siblings: 1,
        notes: vec!["memory is counted and capped by autofit's allocator".into()],
    }
}

/// What can be known before the runtime is set up: free memory is what others leave, without a context of ours.
fn identity(selected: &Selected) -> Result<DeviceDescription> {
    #[allow(unused_mut)]
    let mut description = DeviceDescription { name: selected.name.clone(), siblings: 1, ..Default::default() };
    #[cfg(feature = "cuda")]
    if let Some(index) = selected.cuda_index() {
        let card = super::cuda::Card::find(index)?;
        description.title = card.title();
        description.capability = card.capability();
        description.driver = card.driver();
        description.total_bytes = card.total();
        description.siblings = super::cuda::Card::count()?;
        description.free_bytes = match (card.used(), card.total()) {
            (Some(used), Some(total)) => Some(total.saturating_sub(used)),
            // Without NVML a context is needed to ask, and takes its part first.
            _ => card.free(),
        };
    }
    if selected.name == select::CUBECL_CPU {
        description.title = Some("the accelerators' runtime on this computer's processor, for tests".into());
        description.free_bytes = select::available_memory();
    }
    Ok(description)
}

/// Tries a little arithmetic that is exact in every precision, and a function that kernels take from a library; what
/// was wrong, if anything.
///
/// Not a matrix product: the runtime would compile and time every way that it knows to make one.
///
/// # Errors
/// If a kernel can't be compiled or run.
fn computes(device: &Device, precision: Precision) -> Result<Option<String>> {
    let count = 16;
    let left: Vec<f32> = (0..count).map(|i| i as f32 - 8.0).collect();
    let right: Vec<f32> = (0..count).map(|i| (i % 3) as f32 - 1.0).collect();
    let zero_erf = 0.5; // erf(0) + 1/2
    let expected: Vec<f32> = left.iter().zip(&right).map(|(a, b)| a * b + zero_erf).collect();
    let tensor = |values: &[f32]| {
        Tensor::<1>::from_data(TensorData::new(values.to_vec(), [count]), device).cast(select::dtype(precision))
    };
    let library = (tensor(&left) * 0.0).erf() + f64::from(zero_erf);
    let sum = (tensor(&left) * tensor(&right) + library).cast(select::dtype(Precision::Fp32));
    let sum = sum.try_into_data().context("what was computed can't be read")?;
    let sum: Vec<f32> = sum.try_to_vec().map_err(|error| anyhow::anyhow!("{error:?}"))?;
    let wrong = sum.iter().zip(&expected).find(|(got, want)| got != want);
    Ok(wrong.map(|(got, want)| format!("a sum of small products gave {got} instead of {want}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_processor_computes_what_is_expected() {
        for precision in [Precision::Fp32, Precision::Bf16] {
            assert_eq!(computes(&Device::flex(), precision).expect("the CPU computes"), None, "{precision}");
        }
        let cpu = describe(&select::cpu()).expect("the CPU is there");
        assert_eq!((cpu.name.as_str(), cpu.precisions.as_slice()), ("cpu", Precision::ALL.as_slice()));
        assert!(cpu.free_bytes.is_none_or(|bytes| bytes > 0));
    }
}
