//! What a person sees: the pages, files and texts that the program writes.

mod report;
mod support;
mod xml;
