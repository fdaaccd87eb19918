//! `autofit devices`: what work can be done on.

use anyhow::Result;

use super::Exit;
use crate::device::select;
use crate::report::console;

/// Prints one line a device.
pub fn devices() -> Result<Exit> {
    for selected in select::all() {
        let precisions: Vec<&str> = select::precisions(&selected).into_iter().map(|p| p.name()).collect();
        let line = format!("{:<10} {}  {}\n", selected.name, precisions.join(" "), select::describe(&selected));
        console::say(&line)?;
    }
    Ok(Exit::Answered)
}
