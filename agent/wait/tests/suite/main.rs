//! Waiting: the choice under a budget in virtual time, dispatchers of real threads, and what a process leaves behind.
#![allow(clippy::unwrap_used)]

mod auto;
mod dispatcher;
mod processes;
mod watcher;
