//! A deterministic datapath in the virtual-time network.
//!
//! [`SimDatapath`] holds TCP-like senders that carry their flows over a [`ccplane_netsim`] network and run fold
//! programs on each ACK. It is driven in one process, with no clock, thread or socket: virtual time moves only inside
//! [`SimDatapath::step_until`] and [`SimDatapath::run`]. The same configuration, seed and commands give the
//! same run, bit for bit.
//!
//! A flow's sender numbers segments of its MSS; every one that arrives is acknowledged at once, over a way
//! back that loses nothing. Losses are found by three later deliveries or by time (RFC 9002 section 6.1, which
//! is RACK, RFC 8985, without its reordering adaptation), or by the retransmission timer (RFC 6298, at least
//! 200 ms). Without a program, or with an agent that has fallen silent, a flow runs a native Reno.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod channel;
mod config;
mod datapath;
mod executor;
mod flow;
mod native;
mod rate;
mod rtt;
mod sender;
mod steering;

pub use config::{FlowConfig, Pacing, SimConfig, SimError, Source};
pub use datapath::{SimDatapath, Wake};
pub use executor::SimExecutor;
pub use flow::Sample;
