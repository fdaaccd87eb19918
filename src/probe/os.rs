//! Calls to the operating system that the standard library lacks, each as a safe function: the only `unsafe` of this
//! room. Nothing here knows what a probe is.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

/// A process group, by the process id of its leader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Group(pub libc::pid_t);

/// Turns the -1 of a system call into the error that it stands for.
fn checked(result: libc::c_int) -> io::Result<libc::c_int> {
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Makes reads and writes on `fd` return at once. Of a pipe this touches only the one end.
pub(super) fn set_nonblocking(fd: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: `fd` is open for the length of the call; both commands take and return plain integers.
    let flags = checked(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GETFL) })?;
    // SAFETY: as above.
    checked(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_SETFL, flags | libc::O_NONBLOCK) })?;
    Ok(())
}

/// Waits until one of `readable` has something to read (or was closed by its writer), `writable` takes something, or
/// `timeout` has passed. Returns early on a signal. Which one was ready is not told: all are non-blocking, try them.
pub(super) fn wait(readable: &[BorrowedFd<'_>], writable: Option<BorrowedFd<'_>>, timeout: Duration) {
    let entry = |fd: RawFd, events| libc::pollfd { fd, events, revents: 0 };
    let mut fds: Vec<libc::pollfd> = readable.iter().map(|fd| entry(fd.as_raw_fd(), libc::POLLIN)).collect();
    fds.extend(writable.map(|fd| entry(fd.as_raw_fd(), libc::POLLOUT)));
    let milliseconds = timeout.as_micros().div_ceil(1000).min(60_000) as libc::c_int;
    // SAFETY: the pointer and count describe `fds`, which lives through the call and is written nowhere else.
    unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, milliseconds) };
}

/// Bytes written to a pipe that its reader has not read; `None` where the system can't tell.
pub(super) fn unread_bytes(pipe: BorrowedFd<'_>) -> Option<usize> {
    let mut unread: libc::c_int = 0;
    // SAFETY: FIONREAD writes one `int` to the address given, which is that of a live local.
    checked(unsafe { libc::ioctl(pipe.as_raw_fd(), libc::FIONREAD, &mut unread) }).ok()?;
    usize::try_from(unread).ok()
}

/// Calls `waitid` for our child `pid` without reaping it: whether it is in the state asked for.
fn child_is(pid: libc::pid_t, state: libc::c_int) -> io::Result<bool> {
    let flags = state | libc::WNOHANG | libc::WNOWAIT;
    // SAFETY: a zeroed `siginfo_t` is a valid one, and `waitid` writes to nothing else.
    unsafe {
        let mut info: libc::siginfo_t = std::mem::zeroed();
        checked(libc::waitid(libc::P_PID, pid as libc::id_t, &mut info, flags))?;
        // With WNOHANG and nothing to report, success leaves the process id at zero.
        Ok(info.si_pid() != 0)
    }
}

/// Whether our child has ended. It stays a zombie, so its id, and its group's, can't be given to another process.
pub(super) fn has_ended(pid: libc::pid_t) -> io::Result<bool> {
    child_is(pid, libc::WEXITED)
}

/// Whether our child is stopped (SIGSTOP, or a debugger).
pub(super) fn is_stopped(pid: libc::pid_t) -> bool {
    child_is(pid, libc::WSTOPPED).unwrap_or(false)
}

/// Sends `signal` to every process of the group. An empty group is not an error: it is what was wanted.
pub(super) fn signal_group(group: Group, signal: libc::c_int) {
    // 0 and 1 would mean our own group and every process there is.
    if group.0 > 1 {
        // SAFETY: `kill` takes two integers; a negative id names a group.
        unsafe { libc::kill(-group.0, signal) };
    }
}

/// Prepares what `command` will start: a process group of its own, death together with the calling *thread* (Linux), no
/// core dump, and `inherited` left open in it, alone among the descriptors of this process.
///
/// A core dump would write out all of the worker's memory before its end is seen.
///
/// The child names its own group to `guard` before it becomes the worker: were that left to the driver, one that is
/// killed in between would leave behind whatever the worker has started by then.
pub(super) fn prepare_child(command: &mut Command, inherited: BorrowedFd<'_>, guard: Option<BorrowedFd<'_>>) {
    command.process_group(0);
    let inherited = inherited.as_raw_fd();
    let guard = guard.map(|guard| guard.as_raw_fd());
    // SAFETY: `getpid` takes nothing and can't fail.
    let driver = unsafe { libc::getpid() };
    // SAFETY: the closure runs in the forked child, where only async-signal-safe calls are allowed: it makes plain
    // system calls, allocates nothing and takes no lock; `io::Error::from_raw_os_error` only stores an integer.
    // `inherited` and `guard` are copies of numbers that are valid in the child whether or not the caller closes its own.
    unsafe {
        command.pre_exec(move || {
            #[cfg(target_os = "linux")]
            {
                checked(libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL))?;
                // A driver that died before the line above sends no signal any more.
                if libc::getppid() != driver {
                    return Err(io::Error::from_raw_os_error(libc::ESRCH));
                }
            }
            let _ = driver;
            if let Some(guard) = guard {
                announce(guard);
            }
            let no_core = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
            libc::setrlimit(libc::RLIMIT_CORE, &no_core);
            checked(libc::fcntl(inherited, libc::F_SETFD, 0))?;
            Ok(())
        });
    }
}

/// Writes the number of this process, which leads its group, and a line feed to `fd`. Safe after a fork: formats on the
/// stack and makes one system call. A guard that can't be told is told again by the driver.
fn announce(fd: RawFd) {
    // SAFETY: `getpid` takes nothing and can't fail.
    let mut number = unsafe { libc::getpid() };
    let mut text = [b'\n'; 12];
    let mut start = text.len() - 1;
    while number > 0 && start > 0 {
        start -= 1;
        text[start] = b'0' + (number % 10) as u8;
        number /= 10;
    }
    // SAFETY: the bytes from `start` to the end of `text` are initialised and live for the call.
    unsafe { libc::write(fd, text[start..].as_ptr().cast(), text.len() - start) };
}

/// Takes standard output away from everybody else: returns a private descriptor of it, and points the public one at
/// standard error, so that whatever a library prints goes there.
pub(super) fn take_stdout() -> io::Result<OwnedFd> {
    // SAFETY: duplicates a descriptor to a new one, above the standard three, that is closed on exec.
    let private = checked(unsafe { libc::fcntl(libc::STDOUT_FILENO, libc::F_DUPFD_CLOEXEC, 3) })?;
    // SAFETY: `private` was just opened and belongs to nobody else.
    let private = unsafe { OwnedFd::from_raw_fd(private) };
    // SAFETY: replaces descriptor 1; Rust's own standard output holds the number, not the file.
    checked(unsafe { libc::dup2(libc::STDERR_FILENO, libc::STDOUT_FILENO) })?;
    Ok(private)
}

/// Whether `fd` is an open descriptor of this process.
pub(super) fn is_open(fd: RawFd) -> bool {
    // SAFETY: F_GETFD reads a flag of a number that need not be a descriptor.
    checked(unsafe { libc::fcntl(fd, libc::F_GETFD) }).is_ok()
}

/// Blocks until nobody is left to read what is written to `fd` (a pipe, a socket or a terminal).
pub(super) fn wait_for_hangup(fd: BorrowedFd<'_>) {
    let mut entry = libc::pollfd { fd: fd.as_raw_fd(), events: 0, revents: 0 };
    loop {
        // SAFETY: one entry, live and exclusively borrowed for the call. No events are asked for, so only POLLERR,
        // POLLHUP and POLLNVAL, which are always reported, end it.
        let ready = unsafe { libc::poll(&mut entry, 1, -1) };
        if ready > 0 && entry.revents != 0 {
            return;
        }
    }
}

/// Ends this process at once: no destructors, no exit handlers.
pub(super) fn exit_now(code: libc::c_int) -> ! {
    // SAFETY: `_exit` does not return and runs nothing of ours.
    unsafe { libc::_exit(code) }
}

/// Ignores `signal` from now on.
pub(super) fn ignore(signal: libc::c_int) {
    // SAFETY: SIG_IGN is a disposition, not a handler: no code of ours runs.
    unsafe { libc::signal(signal, libc::SIG_IGN) };
}

/// Installs `handler` for `signal`, unless the signal is ignored, as `nohup` and background jobs of a shell do.
///
/// `handler` must keep to what a signal handler may do: atomics and async-signal-safe system calls.
pub(super) fn handle(signal: libc::c_int, handler: extern "C" fn(libc::c_int)) -> io::Result<()> {
    // SAFETY: a zeroed `sigaction` is a valid one (no flags, empty mask, default action); both calls read or write
    // only the locals given. The handler has the signature of a plain (not SA_SIGINFO) handler and, by the contract
    // above, is safe to run at any point of the program.
    unsafe {
        let mut old: libc::sigaction = std::mem::zeroed();
        checked(libc::sigaction(signal, std::ptr::null(), &mut old))?;
        if old.sa_sigaction == libc::SIG_IGN {
            return Ok(());
        }
        let mut new: libc::sigaction = std::mem::zeroed();
        new.sa_sigaction = handler as *const () as libc::sighandler_t;
        new.sa_flags = libc::SA_RESTART;
        checked(libc::sigaction(signal, &new, std::ptr::null_mut()))?;
    }
    Ok(())
}

/// Waits for our child `pid`, however long it takes, and reaps it.
pub(super) fn reap(pid: libc::pid_t) {
    // SAFETY: `waitpid` accepts a null status.
    while unsafe { libc::waitpid(pid, std::ptr::null_mut(), 0) } == -1
        && io::Error::last_os_error().kind() == io::ErrorKind::Interrupted
    {}
}
