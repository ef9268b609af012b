//! The part of an end system between an Ethernet link and UDP, without I/O, clock or DPDK.
//!
//! [`frame`] parses and writes frames, [`neighbour`] resolves addresses, and [`Interface`] joins them: it accepts
//! frames, routes datagrams and answers neighbours. It takes no part in routing protocols, and its addresses are given,
//! not learned.

pub mod frame;
mod interface;
mod mac;
pub mod neighbour;
mod sum;

pub use interface::{ConfigError, Drops, Interface, InterfaceConfig, NextHop};
pub use mac::{Mac, MacError};
