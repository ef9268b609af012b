//! DPDK ports on veth pairs: echoes, the contract's suite, files over QUIC, and failures.
#![allow(clippy::unwrap_used)]

mod behave;
#[path = "../cable/mod.rs"]
mod cable;
mod echo;
mod failures;
#[path = "../../../quic/tests/common/harness.rs"]
mod harness;
#[allow(dead_code)]
#[path = "../../../quic/tests/common/marks.rs"]
mod marks;
mod packets;
mod quic;
#[path = "../transfer/mod.rs"]
mod transfer;
