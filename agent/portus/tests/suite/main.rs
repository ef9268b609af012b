//! Algorithm crates of portus in this process: hosted, ported, and behind a command line.
#![allow(clippy::unwrap_used)]

mod command_line;
mod common;
#[path = "../generic/mod.rs"]
mod generic;
mod hosted;
mod porting;
