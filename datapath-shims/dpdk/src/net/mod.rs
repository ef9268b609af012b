//! What an end system needs between an Ethernet link and UDP, with no I/O, no clock and no DPDK in it.
//!
//! [`frame`] parses and writes, [`neighbour`] resolves addresses, [`Interface`] joins them: which frames are ours, where
//! datagrams go, who is answered. It takes no part in routing, and learns no addresses: they are given.

pub mod frame;
mod interface;
mod mac;
pub mod neighbour;

pub use interface::{ConfigError, Drops, Interface, InterfaceConfig, Path};
pub use mac::{Mac, MacError};
