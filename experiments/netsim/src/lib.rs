//! A virtual-time packet network: deterministic from a seed, integer throughout.
//!
//! [`Network`] carries packets of many flows over [`link`]s (fixed rate or [`trace`], delay, loss, droptail)
//! to a [`receiver`] each, and acknowledgements back over an uncongested path. It holds no sender: the caller
//! asks for what happens next, and answers by sending packets and setting timers.
//!
//! ```
//! use ccplane_netsim::{Capacity, LinkConfig, Network, Occurrence, PathConfig, QueueLimit, Segment};
//! let link = LinkConfig {
//!     capacity: Capacity::Rate { bit_per_s: 12_000_000 },
//!     delay_ns: 10_000_000,
//!     loss_ppm: 0,
//!     queue: QueueLimit::Packets(100),
//! };
//! let mut net = Network::new(vec![link], 1)?;
//! let flow = net.add_flow(&PathConfig { links: vec![0], return_delay_ns: 10_000_000 })?;
//! net.send(flow, Segment { seq: 0, tx: 0, bytes: 1500 });
//! let Some(Occurrence::Ack { ack, .. }) = net.next(u64::MAX) else { panic!("the packet is acknowledged") };
//! assert_eq!((ack.cumulative, net.now_ns()), (1, 21_000_000));
//! # Ok::<(), ccplane_netsim::ConfigError>(())
//! ```
//!
//! Times are nanoseconds of virtual time since the network's start, rates bits per second.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod config;
pub mod events;
pub mod link;
mod network;
pub mod receiver;
pub mod trace;
pub mod workload;

pub use config::{Capacity, ConfigError, LinkConfig, PathConfig, QueueLimit};
pub use link::LinkStats;
pub use network::{FlowIndex, Network, Occurrence, Segment, TIMERS_PER_FLOW};
pub use receiver::Ack;
