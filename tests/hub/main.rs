//! Models by name, against hubs on loopback: what is downloaded, what is kept, and what is said when it can't be.

mod failures;
mod program;
mod site;
mod transfers;
