//! `autofit devices`: what work can be done on.

use anyhow::Result;
use clap::Args;
use serde_json::json;

use super::Exit;
use crate::device::{describe, select};
use crate::plan::ByteSize;
use crate::probe::LocalProcess;
use crate::probe::devices::{Available, Chosen};
use crate::probe::protocol::DeviceDescription;
use crate::report::console;

/// Lists the devices that work can be done on.
#[derive(Args, Debug)]
pub struct Arguments {
    /// Print a JSON array on standard output
    #[arg(long)]
    json: bool,
}

/// Prints one line a device; kinds that were built in and did not answer are listed with the reason.
///
/// # Errors
/// If workers can't be started.
pub fn devices(arguments: &Arguments) -> Result<Exit> {
    let found = available().all(&mut LocalProcess::this_program()?);
    if arguments.json {
        let list: Vec<serde_json::Value> = found
            .iter()
            .map(|(name, answer)| match answer {
                Ok(description) => serde_json::to_value(description),
                Err(why) => Ok(json!({"name": name, "error": why})),
            })
            .collect::<Result<_, _>>()?;
        console::say(&format!("{}\n", serde_json::to_string_pretty(&list)?))?;
        return Ok(Exit::Answered);
    }
    for (name, answer) in &found {
        let (able, words) = match answer {
            Ok(description) => {
                let precisions: Vec<&str> = description.precisions.iter().map(|p| p.name()).collect();
                (precisions.join(" "), in_words(description))
            }
            Err(why) => ("not usable".to_string(), why.clone()),
        };
        console::say(&format!("{name:<10} {able:<15} {words}\n"))?;
    }
    Ok(Exit::Answered)
}

/// What this program can drive.
fn available() -> Available {
    Available { kinds: select::built_in(), cpu: describe::cpu() }
}

/// The device that --device names; with `auto` the best that answers.
///
/// # Errors
/// If it is unknown, or does not answer: in one sentence with what to do.
pub fn choose(name: &str, launcher: Option<&str>) -> Result<Chosen> {
    let mut executor = match launcher {
        Some(command) => LocalProcess::behind(command)?,
        None => LocalProcess::this_program()?,
    };
    let full = select::named(name)?.map(|selected| selected.name);
    available().choose(full.as_deref(), &mut executor)
}

/// In a few words for a person.
pub fn in_words(description: &DeviceDescription) -> String {
    let mut words: Vec<String> = description.title.iter().cloned().collect();
    let size = |bytes: u64| ByteSize(bytes).to_string();
    match (description.free_bytes, description.total_bytes) {
        (Some(free), Some(total)) => words.push(format!("{} free of {}", size(free), size(total))),
        (None, Some(total)) => words.push(size(total)),
        (Some(free), None) => words.push(format!("{} free", size(free))),
        (None, None) => {}
    }
    words.extend(description.capability.iter().map(|capability| format!("compute capability {capability}")));
    words.extend(description.driver.iter().map(|driver| format!("driver {driver}")));
    words.extend(description.notes.iter().cloned());
    words.join(", ")
}
