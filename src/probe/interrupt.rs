//! Ctrl-C, `kill` and a closed terminal: the first asks, the second insists.
//!
//! The first SIGINT, SIGTERM or SIGHUP only raises a flag; whoever runs a worker looks at it several times a second,
//! ends the worker politely, and the study is left in good order. The second one kills the workers and leaves at once.
//! A signal that was ignored when the program started (`nohup`) stays ignored.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering::SeqCst};

use super::os::{self, Group};

/// Raised by the first signal.
static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// Raised by the second one, before it kills: the process is about to end.
static LEAVING: AtomicBool = AtomicBool::new(false);

/// Who wants to be asked first. While nobody does, a signal ends the process as it would have without a handler.
static LISTENERS: AtomicU32 = AtomicU32::new(0);

/// Groups to kill at the second signal; 0 is an empty slot. An array, for a handler may not take a lock.
static RUNNING: [AtomicI32; 32] = [const { AtomicI32::new(0) }; 32];

/// Catches SIGINT, SIGTERM and SIGHUP for the rest of the process, and returns the flag that the first of them raises.
///
/// # Errors
/// If the system refuses a handler.
pub fn install() -> io::Result<&'static AtomicBool> {
    LISTENERS.fetch_add(1, SeqCst);
    handle()
}

/// Signals caught for as long as this lives, in a program that has other things to do afterwards.
#[derive(Debug)]
pub struct Caught(&'static AtomicBool);

impl Caught {
    /// As [`install`], until this is dropped. From then on a signal ends the process again. A signal that was caught
    /// for somebody earlier is not held against who comes next.
    ///
    /// # Errors
    /// If the system refuses a handler.
    pub fn new() -> io::Result<Self> {
        if LISTENERS.fetch_add(1, SeqCst) == 0 {
            INTERRUPTED.store(false, SeqCst);
        }
        match handle() {
            Ok(flag) => Ok(Caught(flag)),
            Err(error) => {
                LISTENERS.fetch_sub(1, SeqCst);
                Err(error)
            }
        }
    }

    /// The flag that the first signal raises.
    pub fn flag(&self) -> &'static AtomicBool {
        self.0
    }
}

impl Drop for Caught {
    fn drop(&mut self) {
        LISTENERS.fetch_sub(1, SeqCst);
    }
}

fn handle() -> io::Result<&'static AtomicBool> {
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        os::handle(signal, on_signal)?;
    }
    Ok(&INTERRUPTED)
}

/// Keeps to atomics, `kill` and `_exit`.
extern "C" fn on_signal(signal: libc::c_int) {
    if INTERRUPTED.swap(true, SeqCst) || LISTENERS.load(SeqCst) == 0 {
        LEAVING.store(true, SeqCst);
        for group in &RUNNING {
            os::signal_group(Group(group.load(SeqCst)), libc::SIGKILL);
        }
        // As a shell reports a death by this signal: 130 for Ctrl-C.
        os::exit_now(128 + signal);
    }
}

/// A group on the list of what the second signal kills, for as long as this lives.
pub(super) struct Registered(Option<&'static AtomicI32>);

impl Registered {
    /// Lists `group`. On a full list it stays unlisted: the guard still ends it when this process is gone.
    pub(super) fn new(group: Group) -> Self {
        Registered(RUNNING.iter().find(|slot| slot.compare_exchange(0, group.0, SeqCst, SeqCst).is_ok()))
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        // The worker may have died of the second signal, whose handler is at work in another thread: it has the last
        // word on the exit code, not whoever reads this worker's end as an outcome.
        while LEAVING.load(SeqCst) {
            std::thread::park();
        }
        if let Some(slot) = self.0 {
            slot.store(0, SeqCst);
        }
    }
}
