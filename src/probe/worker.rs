//! One worker process: started, asked, listened to, ended. Everything in bounded time, in one thread, by polling.
//!
//! Reader threads would be simpler to write and were rejected: a descendant that left the worker's group and holds its
//! output open would keep such a thread for ever.

use std::ffi::OsString;
use std::io::{self, ErrorKind, PipeReader, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use super::classify::Hang;
use super::guard::Guard;
use super::interrupt::Registered;
use super::lines::{Lines, Tail};
use super::oom_record;
use super::os::{self, Group};
use super::protocol::{Message, OOM_FD_VAR, OomRecord, Report};

/// Bytes of standard error that are kept.
const TAIL: usize = 8 << 10;
/// Bytes of output that is no message (a banner, a stray print) before the worker counts as out of hand.
const MAX_JUNK: usize = 1 << 20;
/// Bytes of allocator records that are kept: far more than an honest worker writes.
const MAX_RECORDS: usize = 64 << 10;
/// Bytes read from one descriptor before the clock is looked at again.
const BURST: usize = 1 << 20;
/// Longest sleep between two looks at the clock, the interrupt flag and the process.
const TICK: Duration = Duration::from_millis(50);
/// The same once the worker has closed its output: it is about to end.
const SHORT_TICK: Duration = Duration::from_millis(2);
/// How long a worker may live on after it closed its output without a report.
const MUTED_GRACE: Duration = Duration::from_secs(2);
/// How long the kernel may take to end a killed process (drivers can hold one back) before it is left to a thread.
const KILL_PATIENCE: Duration = Duration::from_secs(10);
/// How often what is left in the pipes of an ended worker is read: [`BURST`] each time.
const LAST_READS: usize = 64;

/// A worker process, with our ends of its pipes.
pub(super) struct Worker {
    child: Child,
    group: Group,
    stdin: Option<ChildStdin>,
    stdout: Option<ChildStdout>,
    stderr: Option<ChildStderr>,
    refusals: Option<PipeReader>,
    lines: Lines,
    tail: Tail,
    refusal_bytes: Vec<u8>,
    guard: Option<Guard>,
    listed: Option<Registered>,
    started_by: ThreadId,
    buffer: Box<[u8]>,
    status: Option<ExitStatus>,
    over: bool,
}

/// How one turn of a worker ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Stop {
    /// It reported.
    Reported,
    /// The process ended.
    #[default]
    Ended,
    /// Its time was up.
    Deadline(Hang),
    /// The interrupt flag was raised.
    Interrupted,
    /// It closed its output and lived on.
    Muted,
    /// It wrote more than is read.
    Flooded,
}

/// What was heard in one turn.
#[derive(Default)]
pub(super) struct Heard {
    pub stop: Stop,
    pub report: Option<Report>,
    /// The first line that was no message.
    pub junk: Option<String>,
    /// Whether there was output after the report.
    pub surplus: bool,
    junk_bytes: usize,
    flooded: bool,
}

/// The person who listens: is given every message as it comes.
pub(super) type Listener<'a> = &'a mut dyn FnMut(&Message);

impl Worker {
    /// Starts `program`. The calling thread must live as long as the worker should (see [`os::prepare_child`]).
    pub(super) fn start(
        program: &OsString,
        arguments: &[OsString],
        environment: &[(OsString, OsString)],
    ) -> io::Result<Self> {
        let mut guard = Guard::start();
        let (refusals, refusal_writer) = io::pipe()?;
        // Both ends: the allocator, too, must rather lose a record than wait.
        os::set_nonblocking(refusals.as_fd())?;
        os::set_nonblocking(refusal_writer.as_fd())?;
        let mut command = Command::new(program);
        command.args(arguments).envs(environment.iter().map(|(name, value)| (name, value)));
        command.env(OOM_FD_VAR, refusal_writer.as_raw_fd().to_string());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        os::prepare_child(&mut command, refusal_writer.as_fd(), guard.as_ref().and_then(Guard::pipe));
        let mut child = command.spawn()?;
        let group = Group(child.id() as libc::pid_t);
        if let Some(guard) = &mut guard {
            guard.watch(Some(group));
        }
        let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let worker = Worker {
            child,
            group,
            stdin,
            stdout,
            stderr,
            refusals: Some(refusals),
            lines: Lines::default(),
            tail: Tail::new(TAIL),
            refusal_bytes: Vec::new(),
            guard,
            listed: Some(Registered::new(group)),
            started_by: thread::current().id(),
            buffer: vec![0; 64 << 10].into_boxed_slice(),
            status: None,
            over: false,
        };
        for fd in [fd(&worker.stdin), fd(&worker.stdout), fd(&worker.stderr)].into_iter().flatten() {
            os::set_nonblocking(fd)?;
        }
        Ok(worker)
    }

    /// Writes `job` (one line) and listens until a report or a reason to stop. `until` is the deadline, if any.
    pub(super) fn ask(
        &mut self,
        job: &[u8],
        until: Option<Instant>,
        interrupt: &AtomicBool,
        listener: Listener<'_>,
    ) -> Heard {
        self.tail.clear();
        self.refusal_bytes.clear();
        let mut heard = Heard::default();
        let mut unsent = job;
        let mut muted_since = None;
        heard.stop = loop {
            self.send(&mut unsent);
            self.listen(&mut heard, listener);
            if heard.report.is_some() {
                break Stop::Reported;
            }
            if heard.flooded {
                break Stop::Flooded;
            }
            if self.has_ended() {
                self.hear_out(&mut heard, listener);
                break if heard.report.is_some() { Stop::Reported } else { Stop::Ended };
            }
            if interrupt.load(SeqCst) {
                break Stop::Interrupted;
            }
            let now = Instant::now();
            if until.is_some_and(|until| now >= until) {
                break Stop::Deadline(self.hang(unsent));
            }
            if self.stdout.is_none() && now.duration_since(*muted_since.get_or_insert(now)) >= MUTED_GRACE {
                break Stop::Muted;
            }
            let tick = if self.stdout.is_none() { SHORT_TICK } else { TICK };
            self.wait(!unsent.is_empty(), until.map_or(tick, |until| tick.min(until.duration_since(now))));
        };
        heard
    }

    /// Ends the worker politely: it is told that no more will come, and has `patience` to leave. Then as [`Self::stop`].
    pub(super) fn dismiss(&mut self, patience: Duration, interrupt: &AtomicBool, heard: &mut Heard, grace: Duration) {
        self.stdin = None;
        self.linger(patience, Some(interrupt), heard, &mut |_| {});
        self.stop(grace, heard, &mut |_| {});
    }

    /// Ends the worker: SIGTERM, `grace`, SIGKILL, each to its whole group. It is still listened to meanwhile, and
    /// always reaped. SIGCONT lets a stopped worker take its SIGTERM.
    pub(super) fn stop(&mut self, grace: Duration, heard: &mut Heard, listener: Listener<'_>) {
        if !self.has_ended() && !grace.is_zero() {
            os::signal_group(self.group, libc::SIGTERM);
            os::signal_group(self.group, libc::SIGCONT);
            let until = Instant::now() + grace;
            // Its last words are all that it is given time for: who has said them would only wait for another job.
            while heard.report.is_none() && !self.has_ended() && Instant::now() < until {
                self.listen(heard, listener);
                self.wait(false, SHORT_TICK);
            }
        }
        self.stdin = None;
        os::signal_group(self.group, libc::SIGKILL);
        self.linger(KILL_PATIENCE, None, heard, listener);
        self.hear_out(heard, listener);
        self.reap();
    }

    /// How it ended; `None` while it lives, or if somebody else reaped it.
    pub(super) fn status(&self) -> Option<ExitStatus> {
        self.status
    }

    /// The thread whose end is this worker's end.
    pub(super) fn started_by(&self) -> ThreadId {
        self.started_by
    }

    /// The end of its standard error, since it was last asked.
    pub(super) fn stderr(&self) -> String {
        self.tail.text()
    }

    /// What is left of a line that was cut off.
    pub(super) fn torn_line(&self) -> Option<String> {
        let rest = self.lines.rest();
        (!rest.is_empty()).then(|| quote(rest))
    }

    /// What its allocator said it refused since it was last asked: through its own descriptor, or, where that was not
    /// inherited, on standard error.
    pub(super) fn refusals(&mut self) -> Vec<OomRecord> {
        self.read_refusals();
        match oom_record::find(&self.refusal_bytes) {
            records if records.is_empty() => oom_record::find(self.tail.text().as_bytes()),
            records => records,
        }
    }

    /// Whether it waits quietly for another job: alive, its pipes open, and nothing said since its report.
    pub(super) fn is_idle(&mut self) -> bool {
        let mut heard = Heard::default();
        self.listen(&mut heard, &mut |_| {});
        let silent = heard.report.is_none() && heard.junk.is_none() && self.lines.rest().is_empty();
        silent && !self.has_ended() && self.stdin.is_some() && self.stdout.is_some()
    }

    fn pid(&self) -> libc::pid_t {
        self.group.0
    }

    /// Whether the process has ended. A child that somebody else reaped (SIGCHLD ignored) has.
    fn has_ended(&self) -> bool {
        self.over || os::has_ended(self.pid()).unwrap_or(true)
    }

    /// What a worker that is late may be doing.
    fn hang(&self, unsent: &[u8]) -> Hang {
        let unread = |pipe: &ChildStdin| os::unread_bytes(pipe.as_fd()).is_some_and(|bytes| bytes > 0);
        if os::is_stopped(self.pid()) {
            Hang::Stopped
        } else if !unsent.is_empty() || self.stdin.as_ref().is_some_and(unread) {
            Hang::JobUnread
        } else {
            Hang::Unknown
        }
    }

    /// Waits for the end of the process at most for `patience`, and listens meanwhile.
    fn linger(
        &mut self,
        patience: Duration,
        interrupt: Option<&AtomicBool>,
        heard: &mut Heard,
        listener: Listener<'_>,
    ) {
        let until = Instant::now() + patience;
        while !self.has_ended() && !interrupt.is_some_and(|flag| flag.load(SeqCst)) {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            self.listen(heard, listener);
            // Ending processes make no noise of their own: look often.
            self.wait(false, left.min(SHORT_TICK));
        }
    }

    /// Sleeps until something can be read (or written, if `sending`), at most for `timeout`.
    fn wait(&self, sending: bool, timeout: Duration) {
        let readable: Vec<BorrowedFd<'_>> =
            [fd(&self.stdout), fd(&self.stderr), fd(&self.refusals)].into_iter().flatten().collect();
        os::wait(&readable, fd(&self.stdin).filter(|_| sending), timeout);
    }

    /// Writes as much of the job as the pipe takes. A worker that doesn't want it may still have something to say.
    fn send(&mut self, unsent: &mut &[u8]) {
        while !unsent.is_empty() {
            let Some(pipe) = &mut self.stdin else { return };
            match pipe.write(unsent) {
                Ok(taken) => *unsent = &unsent[taken..],
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(_) => {
                    self.stdin = None;
                    *unsent = &[];
                }
            }
        }
    }

    /// Reads what there is, a burst of each; returns whether there was anything.
    fn listen(&mut self, heard: &mut Heard, listener: Listener<'_>) -> bool {
        let lines = &mut self.lines;
        let said = read_some(&mut self.stdout, &mut self.buffer, |bytes| {
            lines.push(bytes);
            heard.take(lines, listener);
            // What follows a report, or a flood, waits until it is known what to do.
            heard.report.is_none() && !heard.flooded
        });
        let tail = &mut self.tail;
        let talked = read_some(&mut self.stderr, &mut self.buffer, |bytes| {
            tail.push(bytes);
            true
        });
        let refused = self.read_refusals();
        said || talked || refused
    }

    fn read_refusals(&mut self) -> bool {
        let kept = &mut self.refusal_bytes;
        read_some(&mut self.refusals, &mut self.buffer, |bytes| {
            let room = MAX_RECORDS.saturating_sub(kept.len()).min(bytes.len());
            kept.extend_from_slice(&bytes[..room]);
            true
        })
    }

    /// Reads what an ended worker left in its pipes. Not to their ends: a descendant may hold them open.
    fn hear_out(&mut self, heard: &mut Heard, listener: Listener<'_>) {
        for _ in 0..LAST_READS {
            if !self.listen(heard, listener) {
                break;
            }
        }
    }

    /// Takes note of the end. The group's number is ours until the leader is reaped, so what the leader left behind is
    /// killed, and everybody who knows the number told, before.
    fn reap(&mut self) {
        if self.over {
            return;
        }
        let ended = self.has_ended();
        os::signal_group(self.group, libc::SIGKILL);
        if let Some(guard) = &mut self.guard {
            guard.watch(None);
        }
        self.guard = None;
        self.listed = None;
        self.over = true;
        if ended {
            self.status = self.child.wait().ok();
        } else {
            // Stuck in the kernel, and killed: it goes when its driver lets it. Don't leave a zombie then.
            let pid = self.pid();
            thread::spawn(move || os::reap(pid));
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        if !self.over {
            self.stop(Duration::ZERO, &mut Heard::default(), &mut |_| {});
        }
    }
}

impl Heard {
    /// Takes the whole lines, up to and including a report.
    fn take(&mut self, lines: &mut Lines, listener: Listener<'_>) {
        while self.report.is_none() && !self.flooded {
            match lines.next() {
                Ok(Some(line)) => self.line(line, listener),
                Ok(None) => break,
                Err(_) => {
                    self.junk.get_or_insert_with(|| quote(lines.rest()));
                    self.flooded = true;
                }
            }
        }
        self.surplus = self.report.is_some() && !lines.rest().is_empty();
    }

    fn line(&mut self, line: &[u8], listener: Listener<'_>) {
        match serde_json::from_slice::<Message>(line) {
            Ok(message) => {
                listener(&message);
                if let Message::Report(report) = message {
                    self.report = Some(report);
                }
            }
            Err(_) => {
                self.junk.get_or_insert_with(|| quote(line));
                self.junk_bytes += line.len() + 1;
                self.flooded = self.junk_bytes > MAX_JUNK;
            }
        }
    }
}

/// The beginning of what is no message, as text.
fn quote(bytes: &[u8]) -> String {
    String::from_utf8_lossy(&bytes[..bytes.len().min(512)]).into_owned()
}

fn fd<T: AsFd>(end: &Option<T>) -> Option<BorrowedFd<'_>> {
    end.as_ref().map(AsFd::as_fd)
}

/// Reads at most a burst, hands it over piece by piece until `take` has enough, and drops the end once it is closed.
fn read_some<T: Read>(end: &mut Option<T>, buffer: &mut [u8], mut take: impl FnMut(&[u8]) -> bool) -> bool {
    let mut total = 0;
    while total < BURST {
        let Some(open) = end else { break };
        match open.read(buffer) {
            Ok(0) => *end = None,
            Ok(count) => {
                total += count;
                if !take(&buffer[..count]) {
                    break;
                }
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => break,
            Err(_) => *end = None,
        }
    }
    total > 0
}
