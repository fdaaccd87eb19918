//! Device names to devices.

use anyhow::{Result, bail};
use burn::tensor::Device;

use crate::plan::Precision;

/// A device that work can be done on.
#[derive(Clone, Debug)]
pub struct Selected {
    /// Its name in full: `cpu`, `cuda:0`.
    pub name: String,
    /// What Burn calls it, without autodiff.
    pub device: Device,
}

/// Kinds of device, with the Cargo feature that brings each in.
const ACCELERATORS: [&str; 3] = ["cuda", "rocm", "vulkan"];

/// Turns `auto`, `cpu`, `cuda`, `cuda:1`, `vulkan:0`, … into a device.
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
        "auto" => Ok(best()),
        "cpu" if index == 0 => Ok(cpu()),
        "cpu" => bail!("--device {name}: there is only one CPU device; write cpu"),
        _ if ACCELERATORS.contains(&kind) => accelerator(kind, index),
        _ => bail!("--device {name}: unknown device; use auto, cpu, cuda:N, rocm:N or vulkan:N"),
    }
}

/// The CPU, on Burn's Flex backend.
pub fn cpu() -> Selected {
    Selected { name: "cpu".into(), device: Device::flex() }
}

/// The first accelerator that this binary can drive, else the CPU.
fn best() -> Selected {
    for kind in ACCELERATORS {
        if let Ok(found) = accelerator(kind, 0) {
            return found;
        }
    }
    cpu()
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
        _ => bail!(
            "this autofit was built without {kind}: build it with `cargo build --release --features {kind}`, or use \
             --device cpu"
        ),
    }
}

/// Every device that this binary can drive, the best first.
pub fn all() -> Vec<Selected> {
    let accelerators = ACCELERATORS.into_iter().filter_map(|kind| accelerator(kind, 0).ok());
    accelerators.chain([cpu()]).collect()
}

/// A few words about a device for a person.
pub fn describe(selected: &Selected) -> String {
    match selected.name.as_str() {
        "cpu" => {
            let threads = std::thread::available_parallelism().map_or(1, usize::from);
            format!("this computer's processor, {threads} threads; memory is counted and capped by autofit's allocator")
        }
        _ => String::new(),
    }
}

/// Bytes that are free on a device, where it says so.
pub fn free_bytes(selected: &Selected) -> Option<u64> {
    match selected.name.as_str() {
        "cpu" => available_memory(),
        _ => None,
    }
}

/// `MemAvailable` of Linux: what new work can use without swapping.
fn available_memory() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok().map(|kib| kib * 1024)
}

/// Precisions in which a device computes. On the CPU the 16-bit ones halve what is kept for backward; arithmetic stays
/// in 32 bits.
pub fn precisions(_selected: &Selected) -> Vec<Precision> {
    Precision::ALL.to_vec()
}
