//! The account of a workload on a device whose runtime keeps memory in pools.
//!
//! A pool asks its driver for pages, hands out parts of them and keeps pages that are free again. What a card of the
//! size of the cap has to give is the pages, so it is the *reserve* that is held against the cap, together with what
//! the runtime's context takes. How much of it was in use is sampled beside: the runtime answers such a question in
//! the order of the work, so that each answer was true at some moment, but the highest moment may fall between two.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, Result};
use burn::tensor::Device;

use super::brake::{Brake, Room};
use super::select::Selected;
use crate::plan::ByteSize;
use crate::probe::protocol::CapHold;

/// How often the bytes in use are sampled while memory is measured.
const SAMPLE: Duration = Duration::from_millis(2);
/// Share of the room at which pages that nobody uses are given back between two steps.
const CROWDED: f64 = 0.9;

/// Bytes above those that were reserved when the account was opened, plus the context's.
pub struct Pool {
    device: Device,
    /// Bytes in use when it was opened, left by earlier work in this process.
    baseline: u64,
    room: Room,
    brake: Brake,
    peak: Arc<Peak>,
    sampler: Option<JoinHandle<()>>,
}

/// The highest figures since the last reset.
#[derive(Debug, Default)]
struct Peak {
    in_use: AtomicU64,
    reserved: AtomicU64,
    over: AtomicBool,
}

impl Peak {
    fn note(&self, in_use: u64, reserved: u64) {
        self.in_use.fetch_max(in_use, SeqCst);
        self.reserved.fetch_max(reserved, SeqCst);
    }
}

impl Pool {
    /// Opens the account: has the runtime set up, gives back pages that nobody uses, and holds the cap.
    ///
    /// # Errors
    /// If the device does not answer.
    pub fn open(selected: &Selected, cap: Option<u64>) -> Result<Self> {
        let used_before = super::select::used_by_all(selected);
        selected.device.sync().with_context(|| format!("{} does not answer", selected.name))?;
        let (baseline, reserved) = tidy(&selected.device);
        let room = Room::of(selected, cap, used_before, reserved);
        let brake = Brake::set(selected, &room, reserved);
        let peak = Arc::new(Peak::default());
        let (device, watched, stop) = (selected.device.clone(), selected.device.clone(), peak.clone());
        let sampler = thread::Builder::new().name("memory".into()).spawn(move || {
            while !stop.over.load(SeqCst) {
                if let Some(usage) = watched.memory_pool_usage() {
                    stop.note(usage.bytes_in_use, usage.bytes_reserved);
                }
                thread::sleep(SAMPLE);
            }
        });
        Ok(Pool { device, baseline, room, brake, peak, sampler: sampler.ok() })
    }

    /// Bytes in use now.
    pub fn live(&self) -> u64 {
        self.look().0.saturating_sub(self.baseline)
    }

    /// The highest reserve since the last reset, with the context.
    pub fn reserved_peak(&self) -> u64 {
        self.look();
        self.peak.reserved.load(SeqCst) + self.room.context
    }

    /// The highest number of bytes in use that was seen since the last reset, with the context.
    pub fn in_use_peak(&self) -> u64 {
        self.look();
        self.peak.in_use.load(SeqCst) + self.room.context
    }

    /// Ends the sampling.
    pub fn stop_sampling(&self) {
        self.peak.over.store(true, SeqCst);
    }

    /// Starts new peaks, without the pages that nobody uses: a phase is measured by itself.
    pub fn reset_peak(&self) {
        tidy(&self.device);
        self.peak.in_use.store(0, SeqCst);
        self.peak.reserved.store(0, SeqCst);
        self.look();
    }

    /// Between two steps of a long run: gives back pages that nobody uses before the reserve meets the cap. Pools
    /// fragment where lengths change, and their own way out, once the driver has refused, comes in the middle of a step.
    pub fn tend(&self) {
        let Some(room) = self.room.bytes else { return };
        let (in_use, reserved) = self.look();
        if reserved as f64 > CROWDED * room as f64 && reserved > in_use {
            tidy(&self.device);
        }
    }

    /// Whether the cap still holds: in the words of a refusal if the reserve has passed it.
    ///
    /// # Errors
    /// If it has.
    pub fn check(&self) -> Result<()> {
        let (reserved, Some(room)) = (self.look().1, self.room.bytes) else { return Ok(()) };
        // A card gives memory away in grains, and ballast leaves one more than it should.
        if reserved <= room.saturating_add(super::ballast::GRAIN) {
            return Ok(());
        }
        anyhow::bail!(
            "out of device memory allocating {} bytes beyond the cap: the pool holds {}, the cap leaves it {}",
            reserved - room,
            ByteSize(reserved),
            ByteSize(room)
        )
    }

    /// What a refusal means that the driver gave: `None` if the cap explains it, else who has the memory.
    pub fn taken_by_others(&mut self) -> Option<String> {
        let reserved = self.look().1;
        self.brake.taken_by_others(&self.room, reserved)
    }

    /// How the cap is held.
    pub fn hold(&self) -> CapHold {
        self.brake.hold()
    }

    /// What the runtime's context takes, where it could be told.
    pub fn context_bytes(&self) -> Option<u64> {
        self.room.context_known.then_some(self.room.context)
    }

    /// Bytes in use and reserved, now.
    fn look(&self) -> (u64, u64) {
        let Some(usage) = self.device.memory_pool_usage() else { return (0, 0) };
        self.peak.note(usage.bytes_in_use, usage.bytes_reserved);
        (usage.bytes_in_use, usage.bytes_reserved)
    }
}

/// Gives pages back that nobody uses; bytes in use and reserved after it.
fn tidy(device: &Device) -> (u64, u64) {
    // A failure shows where results are read.
    let _ = device.sync();
    device.memory_cleanup();
    let _ = device.sync();
    device.memory_pool_usage().map_or((0, 0), |usage| (usage.bytes_in_use, usage.bytes_reserved))
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.peak.over.store(true, SeqCst);
        if let Some(sampler) = self.sampler.take() {
            // It may have died of the device's own panic, which has been heard elsewhere.
            let _ = sampler.join();
        }
    }
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pool").field("baseline", &self.baseline).field("room", &self.room).finish_non_exhaustive()
    }
}
