//! Device names to devices.

use anyhow::{Result, bail};
use burn::tensor::{Device, FloatDType};

use crate::plan::Precision;

/// A device that work can be done on.
#[derive(Clone, Debug)]
pub struct Selected {
    /// Its name in full: `cpu`, `cuda:0`.
    pub name: String,
    /// What Burn calls it, without autodiff.
    pub device: Device,
}

impl Selected {
    /// Whether this is the CPU on Burn's Flex backend, whose memory is the process's own.
    pub fn is_cpu(&self) -> bool {
        self.name == CPU
    }

    /// The number of a CUDA card.
    pub fn cuda_index(&self) -> Option<usize> {
        self.name.strip_prefix("cuda:")?.parse().ok()
    }
}

/// The name of the CPU.
pub const CPU: &str = "cpu";

/// Kinds of accelerator, each a Cargo feature of the same name; the best first.
pub const ACCELERATORS: [&str; 3] = ["cuda", "rocm", "vulkan"];

/// For tests: the runtime of the accelerators on the processor. Never chosen by `auto`.
pub const CUBECL_CPU: &str = "cubecl-cpu";

/// As [`select`], with `None` for `auto`: the best that answers.
///
/// # Errors
/// As [`select`].
pub fn named(name: &str) -> Result<Option<Selected>> {
    if name == "auto" { Ok(None) } else { select(name).map(Some) }
}

/// Turns `cpu`, `cuda`, `cuda:1`, `vulkan:0`, … into a device. Nothing is asked of the device itself.
///
/// # Errors
/// If the name is unknown, or this binary was built without the feature that it needs.
pub fn select(name: &str) -> Result<Selected> {
    let (kind, index) = match name.split_once(':') {
        Some((kind, index)) => match index.parse::<usize>() {
            Ok(index) => (kind, index),
            Err(_) => bail!("--device {name}: '{index}' is not a device number; write cuda:0, for example"),
        },
        None => (name, 0),
    };
    match kind {
        CPU if index == 0 => Ok(cpu()),
        CPU => bail!("--device {name}: there is only one CPU device; write cpu"),
        CUBECL_CPU => accelerator(kind, index),
        _ if ACCELERATORS.contains(&kind) => accelerator(kind, index),
        _ => bail!("--device {name}: unknown device; use auto, cpu, cuda:N, rocm:N or vulkan:N"),
    }
}

/// The CPU, on Burn's Flex backend.
pub fn cpu() -> Selected {
    Selected { name: CPU.into(), device: Device::flex() }
}

/// The kinds of accelerator that this binary can drive, the best first.
pub fn built_in() -> Vec<&'static str> {
    ACCELERATORS.into_iter().filter(|kind| accelerator(kind, 0).is_ok()).collect()
}

#[allow(unused_variables, unreachable_code, clippy::needless_return)]
fn accelerator(kind: &str, index: usize) -> Result<Selected> {
    let name = format!("{kind}:{index}");
    match kind {
        #[cfg(feature = "cuda")]
        "cuda" => return Ok(Selected { name, device: Device::cuda(index) }),
        #[cfg(feature = "rocm")]
        "rocm" => return Ok(Selected { name, device: Device::rocm(index) }),
        #[cfg(feature = "vulkan")]
        "vulkan" => return Ok(Selected { name, device: Device::vulkan(burn::tensor::DeviceKind::DiscreteGpu(index)) }),
        #[cfg(feature = "cubecl-cpu")]
        CUBECL_CPU => return Ok(Selected { name: kind.into(), device: Device::cpu() }),
        _ => bail!(
            "this autofit was built without {kind}: build it with `cargo build --release --features {kind}`, or use \
             --device cpu"
        ),
    }
}

/// `MemAvailable` of Linux: what new work can use without swapping.
pub fn available_memory() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok().map(|kib| kib * 1024)
}

/// Bytes of a device's memory that everybody together uses, where that is known without a context on it.
pub fn used_by_all(selected: &Selected) -> Option<u64> {
    #[cfg(feature = "cuda")]
    if let Some(index) = selected.cuda_index() {
        return super::cuda::Card::find(index).ok()?.used();
    }
    let _ = selected;
    None
}

/// Whether a device claims to compute in a precision. [`describe`](super::describe) tries it.
///
/// On the CPU the 16-bit ones halve what is kept for backward; arithmetic stays in 32 bits.
pub fn claims(selected: &Selected, precision: Precision) -> bool {
    selected.is_cpu() || selected.device.supports_dtype(dtype(precision))
}

/// The type in which forward and backward compute.
pub(super) fn dtype(precision: Precision) -> FloatDType {
    match precision {
        Precision::Fp32 => FloatDType::F32,
        Precision::Fp16 => FloatDType::F16,
        Precision::Bf16 => FloatDType::BF16,
    }
}
