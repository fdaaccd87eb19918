//! This test binary in other roles: started again with [`ROLE`] set, it runs the one test below as its `main`.

use std::process::{Command, Stdio};
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use autofit::plan::Outcome;
use autofit::probe::protocol::{Job, Message, Report};
use autofit::probe::{Executor, LocalProcess, interrupt, serve};

use crate::support::*;

pub const ROLE: &str = "AUTOFIT_TEST_ROLE";

/// Not a test unless it is given a role, which only this file does.
#[test]
fn role() {
    match std::env::var(ROLE).as_deref() {
        Err(_) => {}
        Ok("worker") => {
            move_stdout();
            serve(work).unwrap();
            std::process::exit(0);
        }
        Ok("driver") => drive(),
        Ok("counter") => crate::driver::count_what_is_left(),
        Ok(other) => panic!("no such role: {other}"),
    }
}

fn command_line() -> [String; 4] {
    let program = std::env::current_exe().unwrap().into_os_string().into_string().unwrap();
    [program, "--exact".into(), "roles::role".into(), "--nocapture".into()]
}

/// An executor whose workers are this binary. The test harness greets on standard output, which is overlooked.
pub fn serving_worker() -> LocalProcess {
    let [program, arguments @ ..] = command_line();
    LocalProcess::new(program, arguments).env(ROLE, "worker")
}

/// The same without the greeting: the harness's output is thrown away, and the protocol's comes instead of errors.
pub fn silent_serving_worker() -> LocalProcess {
    let [program, ..] = command_line();
    let script = r#"exec "$0" --exact roles::role --nocapture 2>&1 >/dev/null"#;
    LocalProcess::new("/bin/sh", ["-c", script, &program]).env(ROLE, "worker").env("AUTOFIT_TEST_STDOUT", "2")
}

/// This binary in `role`, its standard streams piped.
pub fn command(role: &str) -> Command {
    let [program, arguments @ ..] = command_line();
    let mut command = Command::new(program);
    command.args(arguments).env(ROLE, role);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// The worker's handler: the device says what to do.
fn work(job: &Job, emit: &mut dyn FnMut(Message)) -> Report {
    emit(Message::Progress(std::process::id().to_string()));
    match job.device.as_str() {
        "panic" => panic!("on purpose"),
        "panic elsewhere" => {
            let thread = std::thread::Builder::new().name("device".into());
            let device = thread.spawn(|| panic!("out of device memory allocating 512 bytes\nno trace")).unwrap();
            device.join().map_err(|_| "the channel is closed").unwrap();
        }
        "print" => {
            println!("{}", line(&Report::Unsupported { what: "not by print".into() }));
            let raw = b"{\"report\":\n";
            unsafe { libc::write(1, raw.as_ptr().cast(), raw.len()) };
        }
        "hang" => loop {
            std::thread::sleep(AMPLE);
        },
        "exit" => std::process::exit(0),
        "abort" => std::process::abort(),
        _ => {}
    }
    measured()
}

/// A driver that runs the script in its environment, and says on standard error how that ended.
fn drive() {
    let flag: &'static AtomicBool = interrupt::install().unwrap();
    let text = std::env::var("AUTOFIT_TEST_SCRIPT").unwrap();
    let grace = std::env::var("AUTOFIT_TEST_GRACE").map_or(Duration::from_millis(300), |_| AMPLE * 10);
    let finished = script(&text).interrupt(flag).grace(grace).run(&job("cpu"), AMPLE * 10, &mut |message| {
        if let Message::Progress(text) = message {
            eprintln!("{text}");
        }
    });
    eprintln!("outcome {}", finished.attempt.outcome);
    std::process::exit(if finished.attempt.outcome == Outcome::Interrupted { 42 } else { 1 });
}

/// Undoes what [`silent_serving_worker`]'s script did to the streams.
fn move_stdout() {
    if std::env::var_os("AUTOFIT_TEST_STDOUT").is_some() {
        unsafe {
            let nowhere = libc::dup(1);
            libc::dup2(2, 1);
            libc::dup2(nowhere, 2);
            libc::close(nowhere);
        }
    }
}
