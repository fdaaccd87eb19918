//! How many bytes a workload uses on its device, whatever the device, and what holds the cap on them.

use anyhow::Result;

use super::meter;
use super::pool::Pool;
use super::select::Selected;
use crate::probe::protocol::CapHold;

/// The account of one workload: bytes above what was in use when it was opened.
#[derive(Debug)]
pub enum Memory {
    /// The CPU: the process's own allocator counts, exactly.
    Heap,
    /// A device with pools.
    Pool(Box<Pool>),
}

impl Memory {
    /// Opens the account and sets the cap.
    ///
    /// # Errors
    /// If the device does not answer.
    pub fn open(selected: &Selected, cap: Option<u64>) -> Result<Self> {
        if selected.is_cpu() {
            meter::arm(cap);
            return Ok(Memory::Heap);
        }
        Ok(Memory::Pool(Box::new(Pool::open(selected, cap)?)))
    }

    /// Bytes in use now.
    pub fn live(&self) -> u64 {
        match self {
            Memory::Heap => meter::live(),
            Memory::Pool(pool) => pool.live(),
        }
    }

    /// The highest number of bytes held against the cap since the last reset: those in use on the CPU; on a device those
    /// that its pools reserved, and its context.
    pub fn peak(&self) -> u64 {
        match self {
            Memory::Heap => meter::peak(),
            Memory::Pool(pool) => pool.reserved_peak(),
        }
    }

    /// The highest number of bytes in use that was seen, where that is another figure than [`Memory::peak`].
    pub fn in_use_peak(&self) -> Option<u64> {
        match self {
            Memory::Heap => None,
            Memory::Pool(pool) => Some(pool.in_use_peak()),
        }
    }

    /// Ends the sampling of bytes in use: it costs a little, and what follows is timed.
    pub fn stop_sampling(&self) {
        if let Memory::Pool(pool) = self {
            pool.stop_sampling();
        }
    }

    /// Starts a new peak at the present level, pages that nobody uses given back.
    pub fn reset_peak(&self) {
        match self {
            Memory::Heap => meter::reset_peak(),
            Memory::Pool(pool) => pool.reset_peak(),
        }
    }

    /// Between two steps of a long run: keeps the reserve away from the cap.
    pub fn tend(&self) {
        if let Memory::Pool(pool) = self {
            pool.tend();
        }
    }

    /// Whether the cap holds. The CPU's allocator refuses by itself.
    ///
    /// # Errors
    /// If it has been passed; the text is that of a refusal.
    pub fn check(&self) -> Result<()> {
        match self {
            Memory::Heap => Ok(()),
            Memory::Pool(pool) => pool.check(),
        }
    }

    /// Who has the memory that a device refused, if it was not the cap.
    pub fn taken_by_others(&mut self) -> Option<String> {
        match self {
            Memory::Heap => None,
            Memory::Pool(pool) => pool.taken_by_others(),
        }
    }

    /// How the cap is held.
    pub fn hold(&self) -> CapHold {
        match self {
            Memory::Heap => CapHold::Allocator,
            Memory::Pool(pool) => pool.hold(),
        }
    }

    /// What the device's runtime takes beside its pools, where it could be told; part of every peak.
    pub fn context_bytes(&self) -> Option<u64> {
        match self {
            Memory::Heap => None,
            Memory::Pool(pool) => pool.context_bytes(),
        }
    }
}
