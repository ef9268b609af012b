//! A QUIC datapath: quinn-proto driven under fold programs.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod wire;

pub use wire::{Datagram, Wire};
