//! Parses, dispatches, and turns an error into text and exit code in one place.

use std::process::ExitCode;

use autofit::cli;
use autofit::device::meter::Meter;

/// Counts and caps the memory of workers; nothing but a counter elsewhere.
#[global_allocator]
static METER: Meter = Meter::new();

fn main() -> ExitCode {
    cli::main()
}
