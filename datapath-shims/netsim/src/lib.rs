//! A virtual-time packet network: deterministic from a seed, integer throughout.
//!
//! [`Network`] carries packets of many flows over links to a [`receiver`] each, and acknowledgements back, over
//! links of their own or an uncongested way. A link has a fixed rate or a [`trace`], delay, jitter, loss, outages,
//! and a queue with its [`Discipline`]. [`Topology`] builds the usual shapes; [`CrossConfig`] adds traffic without
//! congestion control, [`workload`] draws short flows. The network holds no sender: the caller asks for what
//! happens next, and answers by sending packets and setting timers.
//!
//! ```
//! use ccplane_netsim::{Capacity, LinkConfig, Network, Occurrence, PathConfig, QueueLimit, Segment};
//! let capacity = Capacity::Rate { bit_per_s: 12_000_000 };
//! let link = LinkConfig::new(capacity, 10_000_000, QueueLimit::Packets(100));
//! let mut net = Network::new(vec![link], 1)?;
//! let flow = net.add_flow(&PathConfig::new(vec![0], 10_000_000))?;
//! net.send(flow, Segment { seq: 0, tx: 0, bytes: 1500, push: false });
//! let Some(Occurrence::Ack { ack, .. }) = net.next(u64::MAX) else { panic!("the packet is acknowledged") };
//! assert_eq!((ack.cumulative, net.now_ns()), (1, 21_000_000));
//! # Ok::<(), ccplane_netsim::ConfigError>(())
//! ```
//!
//! Times are nanoseconds of virtual time since the network's start, rates bits per second.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod aqm;
pub mod bands;
mod config;
mod cross;
pub mod events;
mod ingress;
mod link;
mod network;
mod packet;
mod queue;
pub mod receiver;
mod single;
mod topology;
pub mod trace;
pub mod workload;

pub use config::{
    Acks, BurstLoss, Capacity, ConfigError, Discipline, Ingress, LinkChange, LinkConfig, MAX_ACK_EVERY,
    MAX_QUEUE_PACKETS, Outage, PathConfig, Policer, QueueLimit, Reorder,
};
pub use cross::{CrossConfig, CrossPattern, CrossStats, CrossTimes};
pub use link::LinkStats;
pub use network::{ACK_BYTES, MANY_FLOWS, MAX_CROSS, Network, Occurrence, Segment, TIMERS_PER_FLOW};
pub use packet::{FlowIndex, MAX_ROUTES, PRIORITIES};
pub use receiver::{Ack, Delivery};
pub use topology::{LeafSpine, Topology};
