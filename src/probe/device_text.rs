//! The one table of what drivers say when a device can't be used, each with what a person can do about it.
//!
//! CUDA's names are those of `CUresult` in `cuda.h`; a test holds one whole message for each row.

/// Said of a device that can't even be asked.
pub const NO_ROOM: &str = "the card has no memory left for a context: other programs use it (nvidia-smi names them)";

/// A driver's words; the status that stands for them (0 for none), which some layers print instead; what is wrong and
/// what to do.
const TABLE: &[(&str, u32, &str)] = &[
    (
        "libdevice.10.bc was not found",
        0,
        "the card's kernels need libdevice.10.bc, which is in the CUDA toolkit and in the Python package \
         nvidia-cuda-nvcc-cu12: install one of them, or set CUDA_PATH to a folder that has \
         nvvm/libdevice/libdevice.10.bc",
    ),
    (
        "CUDA_ERROR_NO_DEVICE",
        100,
        "the NVIDIA driver shows no card: see whether nvidia-smi lists one and whether CUDA_VISIBLE_DEVICES hides it, \
         or use --device cpu",
    ),
    (
        "CUDA_ERROR_INVALID_DEVICE",
        101,
        "the NVIDIA driver knows no such card: `autofit devices` lists those that there are",
    ),
    (
        "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
        803,
        "the NVIDIA driver's parts are of different versions, as after an update: restart the machine",
    ),
    (
        "CUDA_ERROR_SYSTEM_NOT_READY",
        802,
        "the NVIDIA driver is not ready: start its services (nvidia-fabricmanager, nvidia-persistenced) or restart the \
         machine",
    ),
    (
        "CUDA_ERROR_UNSUPPORTED_PTX_VERSION",
        222,
        "the NVIDIA driver is too old for the kernels of this build: update it, or use --device cpu",
    ),
    (
        "CUDA_ERROR_INVALID_PTX",
        218,
        "the NVIDIA driver refuses the kernels of this build: update it, or use --device cpu",
    ),
    (
        "CUDA_ERROR_NO_BINARY_FOR_GPU",
        209,
        "this card is too old for the kernels of this build: use another one, or --device cpu",
    ),
    (
        "CUDA_ERROR_ECC_UNCORRECTABLE",
        214,
        "the card's memory has an error that it could not correct: reset the card (nvidia-smi --gpu-reset) or replace it",
    ),
    (
        "CUDA_ERROR_CONTEXT_IS_DESTROYED",
        709,
        "the card was taken away while it worked: start again; if it happens again, see dmesg for lines with NVRM",
    ),
    (
        "CUDA_ERROR_ILLEGAL_ADDRESS",
        700,
        "a kernel failed on the card and took its context along: start again; if it happens again, it is a fault to \
         report",
    ),
    (
        "CUDA_ERROR_LAUNCH_FAILED",
        719,
        "a kernel failed on the card and took its context along: start again; if it happens again, it is a fault to \
         report",
    ),
    (
        "CUDA_ERROR_LAUNCH_TIMEOUT",
        702,
        "the card's driver ended a kernel that took too long: the card also drives a screen, use another one",
    ),
    (
        "CUDA_ERROR_DEVICE_UNAVAILABLE",
        46,
        "the card is used by another program alone: end that, or set the card's compute mode to default",
    ),
    ("CUDA_ERROR_OUT_OF_MEMORY", 2, NO_ROOM),
];

/// What is wrong and what to do about it, if these are a driver's words about its device.
pub fn meaning(text: &str) -> Option<&'static str> {
    let said =
        |&&(words, status, _): &&(&str, u32, &str)| text.contains(words) || (status > 0 && has_status(text, status));
    TABLE.iter().find(said).map(|(.., meaning)| *meaning)
}

/// Whether a call of CUDA's driver (their names begin with `cu`) is said to have failed with this status.
fn has_status(text: &str, status: u32) -> bool {
    let failed = format!(" failed with status {status}");
    text.match_indices(&failed).any(|(at, _)| {
        let whole = !text[at + failed.len()..].starts_with(|c: char| c.is_ascii_digit());
        let call = text[..at].rsplit(|c: char| !c.is_ascii_alphanumeric() && c != '_').next().unwrap_or_default();
        whole && call.starts_with("cu")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_failure_of_a_driver_says_what_to_do() {
        for &(words, status, what) in TABLE {
            let text = format!("panicked: called `Result::unwrap()` on an `Err` value: DriverError({words}, \"x\")");
            assert_eq!(meaning(&text), Some(what));
            assert!(what.contains([':', ',']), "it says what to do: {what}");
            if status > 0 {
                assert_eq!(meaning(&format!("poisoned: cuLaunchKernel failed with status {status}\n")), Some(what));
                assert_eq!(meaning(&format!("hipMalloc failed with status {status}")), None);
                assert_eq!(meaning(&format!("cuLaunchKernel failed with status {status}99")), None);
            }
        }
        assert_eq!(meaning("something else"), None);
        assert_eq!(meaning("there is no card 3: the driver shows 1"), None, "our own words need no other");
    }
}
