//! Settings of the C library's allocator for training: freed memory is kept and used again.
//!
//! A training step frees and takes the same large tensors again and again. With its default settings glibc maps every
//! large block afresh and unmaps it when freed, so each step faults all its pages in again, one trap and one cleared
//! page at a time: a fifth of the step time where it was measured. Kept in the heap, a page is faulted once.

/// Asks the C library to keep freed memory and use it again. Call it once, early in the worker, before threads start.
///
/// Costs: the process's resident memory stays at its high-water mark (the meter counts live bytes, not resident ones),
/// and allocations too large for the thread caches share one lock.
///
/// Returns whether every setting was taken; elsewhere than on glibc nothing is done.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
pub fn tune() -> bool {
    let settings = [
        // No block is mapped on its own. The mapping threshold can't do this: glibc clamps it at 32 MiB.
        (libc::M_MMAP_MAX, 0),
        // The top of the heap is never given back (-1 switches trimming off).
        (libc::M_TRIM_THRESHOLD, -1),
        // The heap grows by this much at a time: fewer calls to the kernel while it grows.
        (libc::M_TOP_PAD, 64 << 20),
        // One arena. The others live in 64 MiB regions, which large blocks don't fit in, and each would keep its own
        // freed memory, which the other threads could not use.
        (libc::M_ARENA_MAX, 1),
    ];
    // SAFETY: `mallopt` takes two integers and reports an unknown or impossible setting by returning 0.
    settings.iter().all(|&(parameter, value)| unsafe { libc::mallopt(parameter, value) } == 1)
}

/// See the version for glibc: here nothing is done.
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
pub fn tune() -> bool {
    false
}
