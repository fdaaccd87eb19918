//! `autofit devices`: what work can be done on.

use anyhow::Result;

use super::Exit;
use crate::device::select;

/// Prints one line a device.
pub fn devices() -> Result<Exit> {
    for selected in select::all() {
        let precisions: Vec<&str> = select::precisions(&selected).into_iter().map(|p| p.name()).collect();
        println!("{:<10} {}  {}", selected.name, precisions.join(" "), select::describe(&selected));
    }
    Ok(Exit::Answered)
}
