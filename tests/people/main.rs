//! What a person sees: the pages, files and texts that the program writes.

mod errors;
mod estimate;
mod export;
mod hostile;
mod house;
mod numbers;
mod pipes;
mod programs;
mod report;
mod schema;
mod shell;
mod show;
mod spaces;
mod support;
mod xml;
