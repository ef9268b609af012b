//! The engine under the contract's suite, in virtual time, and among threads.
#![allow(clippy::unwrap_used)]

#[path = "../common/mod.rs"]
mod common;
mod conformance;
mod flows;
mod packets;
mod threads;
