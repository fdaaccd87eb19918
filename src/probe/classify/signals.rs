//! Names of signals, which differ in number between systems.

/// The usual name.
pub(super) fn name(signal: i32) -> Option<&'static str> {
    Some(match signal {
        libc::SIGHUP => "SIGHUP",
        libc::SIGINT => "SIGINT",
        libc::SIGQUIT => "SIGQUIT",
        libc::SIGILL => "SIGILL",
        libc::SIGTRAP => "SIGTRAP",
        libc::SIGABRT => "SIGABRT",
        libc::SIGBUS => "SIGBUS",
        libc::SIGFPE => "SIGFPE",
        libc::SIGKILL => "SIGKILL",
        libc::SIGUSR1 => "SIGUSR1",
        libc::SIGSEGV => "SIGSEGV",
        libc::SIGUSR2 => "SIGUSR2",
        libc::SIGPIPE => "SIGPIPE",
        libc::SIGALRM => "SIGALRM",
        libc::SIGTERM => "SIGTERM",
        libc::SIGXCPU => "SIGXCPU",
        libc::SIGXFSZ => "SIGXFSZ",
        libc::SIGSYS => "SIGSYS",
        _ => return None,
    })
}

/// The name with what it means, for those that a person may not know.
pub(super) fn describe(signal: i32) -> String {
    let Some(name) = name(signal) else { return format!("signal {signal}") };
    let meaning = match signal {
        libc::SIGABRT => "aborted",
        libc::SIGBUS => "bus error: a mapped file shrank, or shared memory ran out",
        libc::SIGFPE => "arithmetic error",
        libc::SIGILL => "illegal instruction: built for another processor?",
        libc::SIGSEGV => "invalid memory access",
        libc::SIGTERM => "ended from outside",
        libc::SIGXCPU => "over its limit of processor time",
        _ => return name.to_owned(),
    };
    format!("{name} ({meaning})")
}
