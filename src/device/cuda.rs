//! What the CUDA driver and NVML say of a card, and memory taken from the driver directly.
//!
//! Burn's backend loads the same driver library in the same process; calls here share its primary context, so that what
//! is free is what its pools can get. NVML sees the whole card before there is a context, which the driver does not.

use std::ffi::CStr;

use anyhow::{Result, anyhow, bail};
use cudarc::driver::{DriverError, result, sys};
use nvml_wrapper::Nvml;

use super::ballast::Bank;

/// A card by its number among those that the driver shows (`CUDA_VISIBLE_DEVICES` counts).
pub struct Card {
    device: sys::CUdevice,
    index: usize,
}

/// Oldest driver that loads the kernels, as `cuDriverGetVersion` writes it: 11.0, the first that knows the PTX which
/// Burn's matrix products are written in.
const OLDEST_DRIVER: i32 = 11_000;

impl Card {
    /// Finds a card, without a context on it.
    ///
    /// # Errors
    /// If there is no driver, it is too old, or there is no such card.
    pub fn find(index: usize) -> Result<Self> {
        let count = Self::count()?;
        if index >= count {
            bail!("there is no card {index}: the driver shows {count}, numbered from 0 (`autofit devices` lists them)");
        }
        let ordinal = i32::try_from(index).map_err(|_| anyhow!("there is no card {index}"))?;
        let device = result::device::get(ordinal).map_err(|error| failed("cuDeviceGet", error))?;
        Ok(Card { device, index })
    }

    /// How many cards there are; at least 1.
    ///
    /// # Errors
    /// If there is no driver, it is too old, or it shows no card.
    pub fn count() -> Result<usize> {
        // SAFETY: only tries to load each name that the library may have.
        if !unsafe { sys::is_culib_present() } {
            bail!("no NVIDIA driver is installed (libcuda.so was not found): install one, or use --device cpu");
        }
        result::init().map_err(|error| failed("cuInit", error))?;
        let mut version = 0;
        // SAFETY: writes one integer, which outlives the call.
        unsafe { sys::cuDriverGetVersion(&mut version) }
            .result()
            .map_err(|error| failed("cuDriverGetVersion", error))?;
        if version < OLDEST_DRIVER {
            bail!(
                "the NVIDIA driver is too old: it speaks CUDA {}, at least {} is needed: update it, or use --device cpu",
                release(version),
                release(OLDEST_DRIVER)
            );
        }
        match result::device::get_count().map_err(|error| failed("cuDeviceGetCount", error))? {
            0 => bail!("cuDeviceGetCount: CUDA_ERROR_NO_DEVICE"),
            count => Ok(count as usize),
        }
    }

    /// Its name, as the maker gave it.
    pub fn title(&self) -> Option<String> {
        result::device::get_name(self.device).ok()
    }

    /// Its compute capability, as in `8.6`.
    pub fn capability(&self) -> Option<String> {
        use sys::CUdevice_attribute::{
            CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR as MAJOR,
            CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR as MINOR,
        };
        // SAFETY: reads a property of a device that the driver gave.
        let attribute = |which| unsafe { result::device::get_attribute(self.device, which) }.ok();
        Some(format!("{}.{}", attribute(MAJOR)?, attribute(MINOR)?))
    }

    /// Bytes of memory that it has.
    pub fn total(&self) -> Option<u64> {
        // SAFETY: reads a property of a device that the driver gave.
        unsafe { result::device::total_mem(self.device) }.ok().map(|bytes| bytes as u64)
    }

    /// The driver's version and the CUDA release that it speaks.
    pub fn driver(&self) -> Option<String> {
        let mut version = 0;
        // SAFETY: writes one integer, which outlives the call.
        unsafe { sys::cuDriverGetVersion(&mut version) }.result().ok()?;
        let cuda = format!("CUDA {}", release(version));
        let own = nvml().and_then(|nvml| nvml.sys_driver_version().ok());
        Some(own.map_or(cuda.clone(), |own| format!("{own}, {cuda}")))
    }

    /// Bytes that everybody together uses of it, by NVML: known without a context.
    pub fn used(&self) -> Option<u64> {
        let mut address = [0u8; 32];
        // SAFETY: the buffer outlives the call, and its length goes with it.
        unsafe { sys::cuDeviceGetPCIBusId(address.as_mut_ptr().cast(), address.len() as i32, self.device) }
            .result()
            .ok()?;
        let address = CStr::from_bytes_until_nul(&address).ok()?.to_str().ok()?;
        Some(nvml()?.device_by_pci_bus_id(address).ok()?.memory_info().ok()?.used)
    }

    /// Bytes that are free in the context that Burn made.
    pub fn free(&self) -> Option<u64> {
        self.enter().ok()?;
        result::mem_get_info().ok().map(|(free, _)| free as u64)
    }

    /// Makes the primary context, which Burn's backend uses too, that of this thread.
    fn enter(&self) -> Result<(), DriverError> {
        // SAFETY: the device is one that the driver gave. The context is retained once more at each call and never
        // released: it ends with the process, as that of Burn's backend does.
        unsafe {
            let context = result::primary_ctx::retain(self.device)?;
            result::ctx::set_current(context)
        }
    }
}

impl Bank for Card {
    type Block = sys::CUdeviceptr;

    fn free(&mut self) -> Option<u64> {
        Card::free(self)
    }

    fn take(&mut self, bytes: u64) -> Option<sys::CUdeviceptr> {
        self.enter().ok()?;
        // SAFETY: a context is current on this thread. Nothing is ever read from the block or written to it.
        unsafe { result::malloc_sync(usize::try_from(bytes).ok()?) }.ok()
    }

    fn give(&mut self, block: sys::CUdeviceptr) {
        if self.enter().is_ok() {
            // SAFETY: the block came from `take` and is given back once. A failure leaves it to the end of the process.
            let _ = unsafe { result::free_sync(block) };
        }
    }
}

impl std::fmt::Debug for Card {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Card({})", self.index)
    }
}

/// NVML, where it is installed and answers.
fn nvml() -> Option<Nvml> {
    Nvml::init().ok()
}

/// `12080` as `12.8`.
fn release(version: i32) -> String {
    format!("{}.{}", version / 1000, version % 1000 / 10)
}

fn failed(call: &str, error: DriverError) -> anyhow::Error {
    anyhow!("{call}: {:?}", error.0)
}
