//! Models of a user's own, from outside: this program is a user's program, its driver and its own worker in turn, hence
//! without the usual harness, which would print on the worker's standard output. Started again with [`ROLE`] set it is
//! `examples/own_model.rs`, or one of the programs in `ledger`.

#[cfg(target_os = "linux")]
#[path = "../../examples/own_model.rs"]
#[allow(dead_code)]
mod example;
#[cfg(target_os = "linux")]
mod ledger;
#[cfg(target_os = "linux")]
mod studies;

/// Environment variable that says which program this is.
#[cfg(target_os = "linux")]
pub const ROLE: &str = "AUTOFIT_TEST_ROLE";

#[cfg(not(target_os = "linux"))]
fn main() {
    eprintln!("SKIPPED: a program of one's own is tested on Linux alone");
}

#[cfg(target_os = "linux")]
fn main() -> std::process::ExitCode {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::process::ExitCode;

    if let Ok(role) = std::env::var(ROLE) {
        return match if role == "example" { example::main() } else { ledger::program(&role) } {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("error: {error:#}");
                ExitCode::FAILURE
            }
        };
    }
    let filter = std::env::args().skip(1).find(|argument| !argument.starts_with('-')).unwrap_or_default();
    let chosen: Vec<_> = studies::TESTS.iter().filter(|(name, _)| name.contains(&filter)).collect();
    let failed = chosen.iter().filter(|(name, test)| {
        let ended = catch_unwind(AssertUnwindSafe(test));
        println!("test {name} ... {}", if ended.is_ok() { "ok" } else { "FAILED" });
        ended.is_err()
    });
    let failed = failed.count();
    println!("\n{} passed, {failed} failed, of {}", chosen.len() - failed, studies::TESTS.len());
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
