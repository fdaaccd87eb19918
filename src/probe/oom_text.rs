//! The one table of out-of-memory texts: what drivers, runtimes and the system say when memory is refused, and whose
//! memory it was. The device's is what a trial is about; the host's says nothing about the trial.
//!
//! Accelerator runtimes hand their errors to us as text only (often through a panic in another thread), so text is what
//! there is to go by. Each row is a literal of the source named beside it; a test holds one whole message for each.

/// Whose memory was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// The accelerator's: the trial does not fit.
    Device,
    /// The machine's.
    Host,
}

/// A text that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Whose memory was refused.
    pub place: Place,
    /// Bytes asked for, where the text says so.
    pub requested: Option<u64>,
    /// The line in which it stands.
    pub line: String,
}

/// `{}` stands for a number: the bytes asked for.
const TABLE: &[(Place, &str)] = &[
    // cubecl-runtime, `IoError`: driver out of memory; larger than any page; all page sizes in use; while capturing.
    (Place::Device, "out of device memory allocating {} bytes"),
    (Place::Device, "can't allocate buffer of size: {}"),
    (Place::Device, "Can't allocate {} bytes: every page size the memory tracks still holds live allocations"),
    (Place::Device, "No room for {} bytes in the memory held"),
    // cubecl-runtime, `LaunchError`: a kernel's own memory. Its cause, from cubecl-hip, may be quoted alone.
    (Place::Device, "An out-of-memory error happened during launch"),
    (Place::Device, "out of memory launching kernel"),
    // cubecl-cuda, pinned host memory: before the row that its end would match.
    (Place::Host, "cuMemAllocHost_v2 failed with error code: CUDA_ERROR_OUT_OF_MEMORY"),
    // cudarc, `DriverError`: contexts, modules, streams, events. The second is CUDA's runtime library.
    (Place::Device, "CUDA_ERROR_OUT_OF_MEMORY"),
    (Place::Device, "cudaErrorMemoryAllocation"),
    (Place::Device, "CUBLAS_STATUS_ALLOC_FAILED"),
    // cubecl-cuda, `DriverError`: status 2 is CUDA_ERROR_OUT_OF_MEMORY, of launches, modules, streams and events.
    (Place::Host, "cuMemAllocHost failed with status 2"),
    (Place::Device, "cuLaunchKernel failed with status 2"),
    (Place::Device, "cuModuleLoadData failed with status 2"),
    (Place::Device, "cuEventCreate failed with status 2"),
    (Place::Device, "cuStreamCreate failed with status 2"),
    // cubecl-hip, `DriverError`: status 2 is hipErrorOutOfMemory.
    (Place::Device, "hipMalloc failed with status 2"),
    (Place::Host, "hipHostMalloc failed with status 2"),
    (Place::Device, "hipErrorOutOfMemory"),
    // ash, `vk::Result`, as `{:?}` and as `{}`.
    (Place::Device, "ERROR_OUT_OF_DEVICE_MEMORY"),
    (Place::Device, "A device memory allocation has failed"),
    (Place::Host, "ERROR_OUT_OF_HOST_MEMORY"),
    (Place::Host, "A host memory allocation has failed"),
    // wgpu-core, `DeviceError` and `CreateBufferError`; wgpu, `Error`.
    (Place::Device, "Not enough memory left"),
    (Place::Device, "Buffer size {} is greater than the maximum buffer size"),
    (Place::Device, "wgpu error: Out of Memory"),
    // Our own word for a device that is full of other programs' memory: says nothing about the trial.
    (Place::Host, "of the device's memory went to other programs"),
    // Rust: the abort of an infallible allocation, and `TryReserveError`. With our allocator's record the record wins.
    (Place::Host, "memory allocation of {} bytes failed"),
    (Place::Host, "memory allocation failed because the memory allocator returned an error"),
    // The C library's text of ENOMEM, with which threads, maps and forks fail; C++; LLVM in the kernel compiler.
    (Place::Host, "Cannot allocate memory"),
    (Place::Host, "std::bad_alloc"),
    (Place::Host, "LLVM ERROR: out of memory"),
    // cubecl-environment, copies of shared bytes.
    (Place::Host, "failed to allocate copy-on-write buffer for shared bytes"),
    (Place::Host, "failed to allocate MAX_ALIGN buffer for copy-on-write (len: {}"),
];

/// Longest line that is quoted, in characters.
const MAX_QUOTE: usize = 300;

/// The first refusal that `text` speaks of: the earliest in the text, for what follows is its consequence.
pub fn find(text: &str) -> Option<Found> {
    let mut first: Option<(usize, Place, Option<u64>)> = None;
    for &(place, pattern) in TABLE {
        if let Some((at, requested)) = locate(text, pattern)
            && first.is_none_or(|(earliest, ..)| at < earliest)
        {
            first = Some((at, place, requested));
        }
    }
    let (at, place, requested) = first?;
    let start = text[..at].rfind('\n').map_or(0, |end| end + 1);
    let line = text[start..].lines().next().unwrap_or_default().trim();
    Some(Found { place, requested, line: line.chars().take(MAX_QUOTE).collect() })
}

/// Where `pattern` stands in `text`, and the number at its `{}`.
fn locate(text: &str, pattern: &str) -> Option<(usize, Option<u64>)> {
    let Some((before, after)) = pattern.split_once("{}") else {
        // A pattern that ends in a status number must not match the beginning of a longer number.
        let ends = |end: usize| !(pattern.ends_with(digit) && text[end..].starts_with(digit));
        return text.match_indices(pattern).find(|(at, _)| ends(at + pattern.len())).map(|(at, _)| (at, None));
    };
    text.match_indices(before).find_map(|(at, _)| {
        let rest = &text[at + before.len()..];
        let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        let (number, rest) = rest.split_at(digits);
        (digits > 0 && rest.starts_with(after)).then(|| (at, number.parse().ok()))
    })
}

fn digit(c: char) -> bool {
    c.is_ascii_digit()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whole messages, as they reach us: one for each row of the table, in its order.
    const MESSAGES: &[(&str, Place, Option<u64>)] = &[
        (
            "An IO error happened\nCaused by:\n  out of device memory allocating 1099511627776 bytes\nNo backtrace available",
            Place::Device,
            Some(1 << 40),
        ),
        (
            "failed to reserve 3595479680 bytes of device memory: can't allocate buffer of size: 3595479680\nNo backtrace available",
            Place::Device,
            Some(3595479680),
        ),
        (
            "Can't allocate 4096 bytes: every page size the memory tracks still holds live allocations\n",
            Place::Device,
            Some(4096),
        ),
        (
            "No room for 512 bytes in the memory held, and no page may be added (a graph capture is recording)",
            Place::Device,
            Some(512),
        ),
        (
            "A launch error happened\nCaused by:\n  An out-of-memory error happened during launch\nCaused by:\n  x",
            Place::Device,
            None,
        ),
        ("out of memory launching kernel KernelId { .. }", Place::Device, None),
        ("cuMemAllocHost_v2 failed with error code: CUDA_ERROR_OUT_OF_MEMORY", Place::Host, None),
        (
            "called `Result::unwrap()` on an `Err` value: DriverError(CUDA_ERROR_OUT_OF_MEMORY, \"out of memory\")",
            Place::Device,
            None,
        ),
        ("cudaErrorMemoryAllocation: out of memory", Place::Device, None),
        ("CublasError(CUBLAS_STATUS_ALLOC_FAILED)", Place::Device, None),
        ("cuMemAllocHost failed with status 2", Place::Host, None),
        ("The device is poisoned: cuLaunchKernel failed with status 2", Place::Device, None),
        ("cuModuleLoadData failed with status 2\n", Place::Device, None),
        ("cuEventCreate failed with status 2", Place::Device, None),
        ("cuStreamCreate failed with status 2", Place::Device, None),
        ("hipMalloc failed with status 2", Place::Device, None),
        ("hipHostMalloc failed with status 2, at start", Place::Host, None),
        ("HIP: hipErrorOutOfMemory", Place::Device, None),
        ("called `Result::unwrap()` on an `Err` value: ERROR_OUT_OF_DEVICE_MEMORY", Place::Device, None),
        ("vkAllocateMemory: A device memory allocation has failed", Place::Device, None),
        ("Err(ERROR_OUT_OF_HOST_MEMORY)", Place::Host, None),
        ("A host memory allocation has failed", Place::Host, None),
        (
            "wgpu error: Validation Error\n\nCaused by:\n  In Device::create_buffer\n    Not enough memory left.",
            Place::Device,
            None,
        ),
        ("Buffer size 4294967296 is greater than the maximum buffer size (2147483648)", Place::Device, Some(1 << 32)),
        ("wgpu error: Out of Memory\n", Place::Device, None),
        (
            "1.00 GiB of the device's memory went to other programs: 2.00 MiB are free where the cap leaves 1.00 GiB",
            Place::Host,
            None,
        ),
        ("memory allocation of 4194304 bytes failed\n", Place::Host, Some(4 << 20)),
        ("memory allocation failed because the memory allocator returned an error", Place::Host, None),
        (
            "failed to spawn thread: Os { code: 12, kind: OutOfMemory, message: \"Cannot allocate memory\" }",
            Place::Host,
            None,
        ),
        (
            "terminate called after throwing an instance of 'std::bad_alloc'\n  what():  std::bad_alloc",
            Place::Host,
            None,
        ),
        ("LLVM ERROR: out of memory\nAllocation failed", Place::Host, None),
        ("failed to allocate copy-on-write buffer for shared bytes: OutOfMemory", Place::Host, None),
        ("failed to allocate MAX_ALIGN buffer for copy-on-write (len: 77, error: OutOfMemory)", Place::Host, Some(77)),
    ];

    #[test]
    fn every_row_has_its_message() {
        assert_eq!(MESSAGES.len(), TABLE.len());
        for (&(message, place, requested), (_, pattern)) in MESSAGES.iter().zip(TABLE) {
            assert!(locate(message, pattern).is_some(), "{pattern} is not in {message}");
            let found = find(message).unwrap_or_else(|| panic!("nothing found in {message}"));
            assert_eq!((found.place, found.requested), (place, requested), "{message}");
            assert!(!found.line.is_empty() && message.contains(&found.line));
        }
    }

    #[test]
    fn other_words_about_memory_are_not_refusals() {
        for text in [
            "",
            "Too many resources were requested during launch\nShared memory: 65536 of 49152",
            "hipMalloc failed with status 209",
            "memory allocation of many bytes failed",
            "memory allocation failed because the computed capacity exceeded the collection's maximum",
            "cannot open 'out of memory.csv'",
            "CUDA_ERROR_ILLEGAL_ADDRESS",
        ] {
            assert_eq!(find(text), None, "{text}");
        }
    }

    #[test]
    fn the_first_refusal_counts() {
        let text = "x\nmemory allocation of 12 bytes failed\nout of device memory allocating 99 bytes";
        let found = find(text).unwrap();
        assert_eq!((found.place, found.requested), (Place::Host, Some(12)));
        assert_eq!(found.line, "memory allocation of 12 bytes failed");
    }

    #[test]
    fn a_number_too_large_for_us_is_unknown_and_still_a_refusal() {
        let found = find("out of device memory allocating 99999999999999999999999 bytes").unwrap();
        assert_eq!((found.place, found.requested), (Place::Device, None));
    }
}
