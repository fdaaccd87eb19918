//! The process boundary, from outside: real processes that end in every way there is.
//!
//! Most workers are `sh` scripts of a line or two. Where a worker must speak through `autofit::probe::serve`, or where
//! a whole driver is to be killed, this test binary starts itself again in another role (see [`roles`]).
#![cfg(target_os = "linux")]

mod driver;
mod endings;
mod roles;
mod serving;
mod support;
mod warm;
