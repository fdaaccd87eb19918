//! Which device the work is done on. Accelerators are asked in a worker: drivers may panic, crash or hang.

use std::time::Duration;

use anyhow::{Result, bail};

use super::device_text;
use super::executor::Executor;
use super::protocol::{DeviceDescription, Job, PROTOCOL, Report, Task};

/// How long a device may take to answer: a driver wakes up slowly where nothing else uses it.
const PATIENCE: Duration = Duration::from_secs(120);

/// The devices that a program can drive.
#[derive(Clone, Debug)]
pub struct Available {
    /// Kinds of accelerator that were built in, the best first.
    pub kinds: Vec<&'static str>,
    /// The processor, which is always there.
    pub cpu: DeviceDescription,
}

/// A device that answered.
#[derive(Clone, Debug)]
pub struct Chosen {
    /// What it says of itself.
    pub description: DeviceDescription,
    /// Why `auto` did not take a better one, a sentence each.
    pub passed_over: Vec<String>,
}

impl Available {
    /// The device of this full name, or where none is named the best that answers.
    ///
    /// # Errors
    /// If the one that is named does not answer: in one sentence with what to do.
    pub fn choose(&self, name: Option<&str>, executor: &mut impl Executor) -> Result<Chosen> {
        let Some(name) = name else { return Ok(self.best(executor)) };
        match self.ask(name, executor) {
            Ok(description) => Ok(Chosen { description, passed_over: Vec::new() }),
            Err(why) => bail!("--device {name}: {why}"),
        }
    }

    fn best(&self, executor: &mut impl Executor) -> Chosen {
        let mut passed_over = Vec::new();
        for kind in &self.kinds {
            match self.ask(&format!("{kind}:0"), executor) {
                Ok(description) => return Chosen { description, passed_over },
                Err(why) => passed_over.push(format!("{kind}:0 is not used: {why}")),
            }
        }
        Chosen { description: self.cpu.clone(), passed_over }
    }

    /// Every device, the best first, or why there is none of a kind.
    pub fn all(&self, executor: &mut impl Executor) -> Vec<(String, Result<DeviceDescription, String>)> {
        let mut found = Vec::new();
        for kind in &self.kinds {
            let first = self.ask(&format!("{kind}:0"), executor);
            let siblings = first.as_ref().map_or(1, |first| first.siblings);
            found.push((format!("{kind}:0"), first));
            for name in (1..siblings).map(|index| format!("{kind}:{index}")) {
                let answer = self.ask(&name, executor);
                found.push((name, answer));
            }
        }
        found.push((self.cpu.name.clone(), Ok(self.cpu.clone())));
        found
    }

    /// What the device of this full name says of itself, or in one sentence why it does not.
    fn ask(&self, name: &str, executor: &mut impl Executor) -> Result<DeviceDescription, String> {
        if name == self.cpu.name {
            return Ok(self.cpu.clone());
        }
        let job = Job { protocol: PROTOCOL, device: name.to_string(), cap_bytes: None, task: Task::Describe };
        let finished = executor.run(&job, PATIENCE, &mut |_| ());
        match finished.report {
            Some(Report::Described(description)) => Ok(description),
            Some(Report::OutOfMemory(_)) => Err(device_text::NO_ROOM.to_string()),
            _ => Err(finished.attempt.reason),
        }
    }
}
