//! The process boundary, from outside: real processes that end in every way there is.
//!
//! Most workers are `sh` scripts of a line or two. Where a worker must speak through `autofit::probe::serve`, or where
//! a whole driver is to be killed, this test binary starts itself again in another role (see `roles`).

#[cfg(target_os = "linux")]
mod driver;
#[cfg(target_os = "linux")]
mod endings;
#[cfg(target_os = "linux")]
mod roles;
#[cfg(target_os = "linux")]
mod serving;
#[cfg(target_os = "linux")]
mod support;
#[cfg(target_os = "linux")]
mod warm;

#[cfg(not(target_os = "linux"))]
#[test]
fn nothing_but_linux_is_tested() {
    use std::io::Write;
    // Past the harness, which shows what a test prints only if it fails.
    let _ = writeln!(std::io::stderr(), "SKIPPED: the process boundary is tested on Linux alone");
}
