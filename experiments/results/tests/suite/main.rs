//! Files of results: what was written is read, and whatever bytes they hold.
#![allow(clippy::unwrap_used)]

mod file;
mod fuzz;
mod support;
