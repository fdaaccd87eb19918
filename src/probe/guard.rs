//! A small process that ends the worker's group when the driver is gone, however it went.
//!
//! The kernel's own parent-death signal reaches the worker only, and only on Linux; behind a command template the
//! worker has a parent and perhaps siblings. The guard is `sh` reading a pipe whose other end only the driver holds:
//! each line names the group that runs now (`0` for none), and when the pipe closes the last one named is killed.
//! It takes numbers only, never a part of a command.

use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use super::os::Group;

/// Signals of a terminal must not end the guard before its time.
const SCRIPT: &str = r#"trap '' HUP INT TERM
group=0
while read -r line; do group=$line; done
[ "$group" -gt 1 ] && kill -s KILL -- "-$group""#;

/// The guard of one worker. Dropping it ends the guard and nothing else: the driver is still there.
pub(super) struct Guard(Child);

impl Guard {
    /// Starts a guard; `None` if there is no `/bin/sh`. Then the other means must do.
    pub(super) fn start() -> Option<Self> {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", SCRIPT]).process_group(0).current_dir("/");
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        command.spawn().ok().map(Guard)
    }

    /// Where the guard reads from, for a child to name its group itself.
    pub(super) fn pipe(&self) -> Option<BorrowedFd<'_>> {
        self.0.stdin.as_ref().map(AsFd::as_fd)
    }

    /// The group to end; `None` when nothing runs. Call it before the leader of the former group is reaped, or the
    /// number could mean another group by then.
    pub(super) fn watch(&mut self, group: Option<Group>) {
        if let Some(pipe) = &mut self.0.stdin {
            let number = group.map_or(0, |group| group.0);
            // A guard that was killed can't be told anything: the next worker starts without one.
            let _ = pipe.write_all(format!("{number}\n").as_bytes());
        }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
