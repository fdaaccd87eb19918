//! How many bytes a workload uses on its device, whatever the device.

use burn::tensor::Device;

use super::meter;
use super::select::Selected;

/// The account of one workload: bytes above what was in use when it was opened.
#[derive(Debug)]
pub struct Memory {
    /// `None` on the CPU, where the process's own allocator counts.
    pool: Option<Device>,
    baseline: u64,
}

impl Memory {
    /// Opens the account and, on the CPU, sets the cap.
    pub fn open(selected: &Selected, cap: Option<u64>) -> Self {
        if selected.name == "cpu" {
            meter::arm(cap);
            return Memory { pool: None, baseline: 0 };
        }
        let memory = Memory { pool: Some(selected.device.clone()), baseline: 0 };
        Memory { baseline: memory.in_use(), ..memory }
    }

    fn in_use(&self) -> u64 {
        match &self.pool {
            None => meter::live(),
            Some(device) => device.memory_pool_usage().map_or(0, |usage| usage.bytes_in_use),
        }
    }

    /// Bytes in use now.
    pub fn live(&self) -> u64 {
        self.in_use().saturating_sub(self.baseline)
    }

    /// The highest number of bytes in use so far. A pool reports no peak: what it holds in reserve is the nearest
    /// upper bound.
    pub fn peak(&self) -> u64 {
        match &self.pool {
            None => meter::peak(),
            Some(device) => {
                device.memory_pool_usage().map_or(0, |usage| usage.bytes_reserved.saturating_sub(self.baseline))
            }
        }
    }

    /// Starts a new peak at the present level; without effect on a pool.
    pub fn reset_peak(&self) {
        if self.pool.is_none() {
            meter::reset_peak();
        }
    }
}
