//! DPDK ports as a wire for [`ccplane_quic`]: datagrams that never meet the kernel's network stack.
//!
//! ```no_run
//! use ccplane_dpdk::{DpdkWire, Eal, EalOptions, Port, PortOptions, WireOptions};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let eal = Eal::start(&EalOptions::default())?;
//! let port = Port::open(&eal, &"af_xdp:veth0".parse()?, PortOptions::default())?;
//! let options = WireOptions { addresses: vec!["10.0.0.2/24".parse()?], udp_port: 4433, ..WireOptions::default() };
//! let wires: Vec<DpdkWire> = DpdkWire::over(port, &options)?; // one a queue, each for one thread
//! # Ok(())
//! # }
//! ```
//!
//! [`net`] is the part between Ethernet and UDP, and knows nothing of DPDK. [`Port`] opens what DPDK drives: a NIC by its PCI
//! address, or an interface of the kernel's by packet or XDP sockets. [`DpdkWire`] joins the two.
//!
//! The kernel must not have a port's addresses, or it answers for them, too. At the other end of a veth pair turn its
//! offloads off (`ethtool -K IFACE tx off`): segments that are left to a NIC to cut arrive in one piece, and are dropped.
//!
//! Packet buffers live in hugepages where enough are free, without a hugetlbfs mounted, else in plain pages ([`Memory`]). Files
//! between two af_packet ports out of 64 pages of 2 MiB are a test, which runs where so many are free already. What several
//! queues receive was tested with packet sockets, over which the kernel spreads flows; a NIC's RSS is set up, and has not
//! been run.
#![deny(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod eal;
mod error;
#[allow(unsafe_code)]
mod ffi;
mod name;
pub mod net;
mod port;
mod wire;

pub use eal::{Eal, EalOptions, Memory};
pub use error::Error;
pub use name::{PortName, PortNameError};
pub use port::{MAX_MTU_BYTES, Port, PortOptions};
pub use wire::{DpdkWire, Idle, MAX_SEGMENTS, WireCounters, WireOptions};
