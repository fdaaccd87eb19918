//! The worker's global allocator: the system's own, with an exact count of live and peak bytes and a cap on them.
//!
//! On the CPU the device's memory is the heap, so "does it fit in 6 GiB" is a question about the allocator. [`Meter`]
//! adds up the sizes that were *asked for* ([`Layout::size`]), which repeats to the byte from run to run; what the
//! C library rounds up or keeps for itself is left to the reserve. Code that calls `malloc` itself is not seen.
//!
//! Once [`arm`]ed with a cap, a request that would go beyond it is refused: one line about it goes to the descriptor
//! given to [`report_to`], then the caller sees a null pointer, which in Rust usually ends the process. The line is
//!
//! ```text
//! autofit-oom requested=<bytes> live=<bytes> cap=<bytes>
//! ```
//!
//! with bytes counted above the level at which the meter was armed, and without `cap` when it was not the cap but the
//! system itself that refused. A process may survive a refusal (`Vec::try_reserve`), so the line says what happened,
//! not that anybody died of it.
//!
//! # Exactness
//! Counters change by atomic read-modify-write, reserving bytes *before* they are taken from the system and giving
//! them back *after* they were returned. Under a cap the reservation is a compare-exchange that only succeeds inside
//! it: the count never passes the cap, not by a byte and not for a moment, and no thread is refused on account of bytes
//! that another thread was refused. Per-thread counters would be cheaper under contention and were rejected: their sum
//! is not a value that existed at any moment.

use std::alloc::{GlobalAlloc, Layout, System};
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst};

pub use tune::tune;

mod record;
mod tune;

/// A counter on a cache line of its own: `LIVE` is written on every allocation, its neighbours are mostly read.
#[repr(align(128))]
struct Padded<T>(T);

/// Bytes allocated and not yet freed since the process began.
static LIVE: Padded<AtomicUsize> = Padded(AtomicUsize::new(0));
/// Highest value of [`LIVE`] since the last reset.
static PEAK: Padded<AtomicUsize> = Padded(AtomicUsize::new(0));
/// Value that [`LIVE`] may not pass; [`UNCAPPED`] when there is no cap.
static LIMIT: Padded<AtomicUsize> = Padded(AtomicUsize::new(UNCAPPED));
/// Value of [`LIVE`] when the meter was armed.
static BASELINE: AtomicUsize = AtomicUsize::new(0);
/// Bytes in use when the meter is armed that count nevertheless; see [`inherit`].
static INHERITED: AtomicUsize = AtomicUsize::new(0);
/// Where refusals are written; negative for nowhere.
static REPORT_FD: AtomicI32 = AtomicI32::new(-1);
/// Refusals since the meter was armed.
static REFUSALS: AtomicU32 = AtomicU32::new(0);

const UNCAPPED: usize = usize::MAX;

/// Refusals written per arming. A process that goes on after a refusal can be refused millions of times; the reader
/// needs the first few, and a full pipe must not stop the writer.
pub const MAX_RECORDS: u32 = 16;

/// Larger than any address space there is. Such a request is refused in the system's name without asking it: counted
/// while the system thinks, it would spoil the peak that another thread reaches meanwhile.
const BEYOND_ANY_MEMORY: usize = 1 << 56;

/// The allocator. Declare it once, in the binary (or the test):
///
/// ```ignore
/// #[global_allocator]
/// static METER: Meter = Meter::new();
/// ```
///
/// All counters are the module's own, so [`arm`], [`live`] and the others need no reference to it; without the
/// declaration they read zero.
pub struct Meter(());

impl Meter {
    /// The meter, disarmed.
    pub const fn new() -> Self {
        Meter(())
    }
}

impl Default for Meter {
    fn default() -> Self {
        Meter::new()
    }
}

/// Whether this program declared a [`Meter`] as its global allocator: without one nothing is counted and nothing capped.
pub fn installed() -> bool {
    // Something that lives while the count is read: a program that allocated nothing at all would read zero, too.
    let held = std::hint::black_box(Box::new(0u8));
    let counted = LIVE.0.load(SeqCst) > 0;
    drop(held);
    counted
}

/// Bytes in use in the whole process, baseline or not.
pub fn in_use() -> usize {
    LIVE.0.load(SeqCst)
}

/// Counts `bytes` of those in use as above the baseline at every [`arm`] from now on: what work that has ended left
/// behind in buffers that a runtime keeps for the next time. Work in a fresh process has to take them, too.
pub fn inherit(bytes: usize) {
    INHERITED.store(bytes, SeqCst);
}

/// Takes the bytes in use now, but for those [inherited](inherit), as the baseline, caps what may be used above it, resets the peak and the count of
/// refusals. `None` counts without a cap. Threads that allocate during the call are counted on one side or the other.
pub fn arm(cap: Option<u64>) {
    disarm();
    let baseline = LIVE.0.load(SeqCst).saturating_sub(INHERITED.load(SeqCst));
    BASELINE.store(baseline, SeqCst);
    REFUSALS.store(0, SeqCst);
    reset_peak();
    let limit = cap.map_or(UNCAPPED, |cap| baseline.saturating_add(usize::try_from(cap).unwrap_or(UNCAPPED)));
    LIMIT.0.store(limit, SeqCst);
}

/// Lifts the cap, and returns whether there was one. Counting goes on, above the same baseline.
pub fn disarm() -> bool {
    LIMIT.0.swap(UNCAPPED, SeqCst) != UNCAPPED
}

/// Bytes in use above the baseline; 0 while more of the older bytes were freed than new ones taken.
pub fn live() -> u64 {
    LIVE.0.load(SeqCst).saturating_sub(BASELINE.load(SeqCst)) as u64
}

/// Highest number of bytes in use above the baseline since [`arm`] or [`reset_peak`].
pub fn peak() -> u64 {
    PEAK.0.load(SeqCst).saturating_sub(BASELINE.load(SeqCst)) as u64
}

/// Starts a new peak at the bytes in use now.
pub fn reset_peak() {
    // Zero first, then raise to the present: a thread that allocates in between raises it too. With the sequentially
    // consistent pair in `raise_peak` no allocation falls between the two steps unseen.
    PEAK.0.swap(0, SeqCst);
    PEAK.0.fetch_max(LIVE.0.load(SeqCst), SeqCst);
}

/// Refusals since [`arm`], written or not.
pub fn refusals() -> u32 {
    REFUSALS.load(SeqCst)
}

/// Writes refusals to `fd` from now on; negative for nowhere. The descriptor must stay open; it should not block.
pub fn report_to(fd: RawFd) {
    REPORT_FD.store(fd, SeqCst);
}

/// Counts `bytes` as live if the cap allows it: the value of [`LIVE`] after it, or what was live and the limit.
#[inline]
fn reserve(bytes: usize) -> Result<usize, (usize, usize)> {
    let limit = LIMIT.0.load(Relaxed);
    if limit == UNCAPPED {
        return Ok(LIVE.0.fetch_add(bytes, SeqCst).wrapping_add(bytes));
    }
    let mut live = LIVE.0.load(Relaxed);
    loop {
        let wanted = match live.checked_add(bytes) {
            Some(wanted) if wanted <= limit => wanted,
            _ => return Err((live, limit)),
        };
        match LIVE.0.compare_exchange_weak(live, wanted, SeqCst, Relaxed) {
            Ok(_) => return Ok(wanted),
            Err(now) => live = now,
        }
    }
}

/// Notes that [`LIVE`] was `reached`. Reads before it writes: in the steady state of training no new peak is reached.
#[inline]
fn raise_peak(reached: usize) {
    if reached > PEAK.0.load(SeqCst) {
        PEAK.0.fetch_max(reached, SeqCst);
    }
}

/// Reserves `bytes`, runs `take`, and settles the count by what it gave; null when either refuses.
#[inline]
fn metered(bytes: usize, take: impl FnOnce() -> *mut u8) -> *mut u8 {
    if bytes >= BEYOND_ANY_MEMORY && LIMIT.0.load(Relaxed) == UNCAPPED {
        refuse(bytes, LIVE.0.load(Relaxed), None);
        return std::ptr::null_mut();
    }
    match reserve(bytes) {
        Ok(reached) => {
            let pointer = take();
            if pointer.is_null() {
                let live = LIVE.0.fetch_sub(bytes, SeqCst).wrapping_sub(bytes);
                refuse(bytes, live, None);
            } else {
                raise_peak(reached);
            }
            pointer
        }
        Err((live, limit)) => {
            refuse(bytes, live, Some(limit));
            std::ptr::null_mut()
        }
    }
}

/// Writes the record of a refusal. `limit` is absent when the system refused.
#[cold]
fn refuse(requested: usize, live: usize, limit: Option<usize>) {
    // Saturating, so that a process refused four thousand million times does not start over.
    let earlier = REFUSALS.fetch_update(SeqCst, SeqCst, |n| n.checked_add(1)).unwrap_or(u32::MAX);
    let fd = REPORT_FD.load(SeqCst);
    if earlier < MAX_RECORDS && fd >= 0 {
        let baseline = BASELINE.load(SeqCst);
        let cap = limit.map(|limit| limit.saturating_sub(baseline) as u64);
        record::write(fd, requested as u64, live.saturating_sub(baseline) as u64, cap);
    }
}

// SAFETY: every method hands the caller's own layout and pointer to `System`, which upholds the contract of
// `GlobalAlloc`, and returns either what `System` returned or null, which the contract allows at any time. Counting
// touches only atomics: it neither allocates nor unwinds.
unsafe impl GlobalAlloc for Meter {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        metered(layout.size(), || {
            // SAFETY: the caller's promise about `layout` (its size is not zero) is passed on unchanged.
            unsafe { System.alloc(layout) }
        })
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        metered(layout.size(), || {
            // SAFETY: as in `alloc`. `System` calls `calloc`, which leaves fresh pages untouched until they are used;
            // the default method would have written zeros over all of them.
            unsafe { System.alloc_zeroed(layout) }
        })
    }

    #[inline]
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller promises that `pointer` came from this allocator with this `layout`; all our pointers
        // come from `System` with the caller's layout.
        unsafe { System.dealloc(pointer, layout) };
        LIVE.0.fetch_sub(layout.size(), SeqCst);
    }

    #[inline]
    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        // SAFETY: the caller promises that `pointer` came from this allocator with `layout`, hence from `System`, and
        // that `new_size` is not zero and does not overflow when rounded up to the alignment.
        let resize = || unsafe { System.realloc(pointer, layout, new_size) };
        match new_size.checked_sub(layout.size()) {
            // Where the block must move, both copies exist for the length of the copy. The count follows the program,
            // which owns one block at a time; the C library moves large blocks by remapping, without a second copy.
            Some(growth) => metered(growth, resize),
            None => {
                let moved = resize();
                if !moved.is_null() {
                    LIVE.0.fetch_sub(layout.size() - new_size, SeqCst);
                }
                moved
            }
        }
    }
}
