//! QUIC under programs: the contract's suite, failures in virtual time, loopback, and under quinn's own driver.
#![allow(clippy::unwrap_used)]

mod behave;
#[path = "../common/mod.rs"]
mod common;
#[allow(dead_code)]
#[path = "../../examples/stock_quinn.rs"]
mod example;
mod failures;
mod follow;
mod fuzz_files;
#[path = "../common/harness.rs"]
mod harness;
mod live;
#[path = "../common/marks.rs"]
mod marks;
mod packets;
mod stock_quinn;
