//! What a device that refuses memory means: the trial, or the run, is too large for the cap, or other programs have
//! taken what the cap counts on.

use std::panic::{self, AssertUnwindSafe};

use anyhow::Result;

use crate::device::memory::Memory;
use crate::probe::oom_text::{self, Place};
use crate::probe::protocol::{OomRecord, Report};
use crate::probe::serve;

/// Does `work` under an account of memory. On the CPU a refusal ends the process and the allocator's record tells what
/// happened; on a device it comes as an error or a panic, and the account knows what the text does not: how much was
/// held, against which cap, and whether that was the reason.
///
/// # Errors
/// If `work` fails for another reason.
pub fn under(mut memory: Memory, cap: Option<u64>, work: impl FnOnce(&Memory) -> Result<Report>) -> Result<Report> {
    if matches!(memory, Memory::Heap) {
        return work(&memory);
    }
    let text = match panic::catch_unwind(AssertUnwindSafe(|| work(&memory))) {
        Ok(Ok(report)) => return Ok(report),
        Ok(Err(error)) => match serve::refusal_in(&format!("{error:#}")) {
            Some(text) => text,
            None => return Err(error),
        },
        Err(payload) => match serve::refusal(payload.as_ref()) {
            Some(text) => text,
            None => panic::resume_unwind(payload),
        },
    };
    // Asked of a device that has just failed: it may fail again.
    let others = panic::catch_unwind(AssertUnwindSafe(|| memory.taken_by_others())).ok().flatten();
    let held = panic::catch_unwind(AssertUnwindSafe(|| memory.peak())).ok();
    if let Some(others) = others {
        return Ok(Report::OutOfMemory(OomRecord { text: others, ..OomRecord::default() }));
    }
    let requested =
        oom_text::find(&text).filter(|found| found.place == Place::Device).and_then(|found| found.requested);
    Ok(Report::OutOfMemory(OomRecord { requested, live: held, cap, text }))
}
