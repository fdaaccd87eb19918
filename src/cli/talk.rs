//! What a person sees on standard error while work is going on: one line that is rewritten on a terminal, plain
//! lines elsewhere.

use std::io::{IsTerminal, stderr};

use crate::plan::text::one_line;
use crate::report::console;

/// The talk of one command.
#[derive(Debug)]
pub struct Talk {
    terminal: bool,
    quiet: bool,
    /// Whether a line that will be rewritten stands on the terminal.
    open: bool,
}

/// Columns that a rewritten line may use where the terminal does not say.
const WIDTH: usize = 80;

impl Talk {
    /// Talk on standard error; `quiet` says nothing but errors.
    pub fn new(quiet: bool) -> Self {
        Talk { terminal: stderr().is_terminal(), quiet, open: false }
    }

    /// A line that stays.
    pub fn line(&mut self, text: &str) {
        if self.quiet {
            return;
        }
        self.clear();
        console::talk(&format!("{text}\n"));
    }

    /// What is being done right now: rewritten by whatever comes next, and not shown where lines can't be rewritten.
    pub fn now(&mut self, text: &str) {
        if self.quiet || !self.terminal {
            return;
        }
        self.clear();
        let width: usize = std::env::var("COLUMNS").ok().and_then(|c| c.parse().ok()).unwrap_or(WIDTH);
        let shown: String = one_line(text).chars().take(width.saturating_sub(1)).collect();
        console::talk(&shown);
        self.open = true;
    }

    /// Whether [`Talk::now`] is seen.
    pub fn is_live(&self) -> bool {
        self.terminal && !self.quiet
    }

    fn clear(&mut self) {
        if self.open {
            console::steer("\r\x1b[K");
            self.open = false;
        }
    }
}

impl Drop for Talk {
    fn drop(&mut self) {
        self.clear();
    }
}
