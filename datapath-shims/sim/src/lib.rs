//! A deterministic datapath in the virtual-time network.
//!
//! [`SimDatapath`] holds TCP-like senders that carry their flows over a [`ccplane_netsim`] network and run fold
//! programs on each ACK. It is driven in one process, with no clock, thread or socket: virtual time moves only inside
//! [`SimDatapath::step_until`] and [`SimDatapath::run`]. The same configuration, seed and commands give the
//! same run, bit for bit.
//!
//! A flow's sender numbers segments of its MSS. The handshake, of which only its RTT is simulated, is over when a
//! flow starts. Receivers acknowledge as Linux does ([`ccplane_netsim::Acks`]); an ACK tells of every segment that
//! no earlier one told of, so lost ones are covered by the next. Losses are found by three later deliveries or by
//! time (RFC 9002 section 6.1: RACK of RFC 8985 without its reordering adaptation), or by the retransmission timer
//! (RFC 6298; [`FlowConfig::min_rto_us`]). In recovery the window follows proportional rate reduction (RFC 6937),
//! as in our kernel datapath. Without a program, or with an agent that has fallen silent, a flow runs a native
//! Reno, which answers marks (RFC 3168) too.
//!
//! By [`Stack::Segments`] each segment leaves on its own; [`Stack::Linux`] sends in trains for segmentation offload and
//! probes for lost tails, as Linux does. That decides what a flow carries where queues hold a few packets. Its receiver
//! acknowledges at once what ends a train with PSH, and each segment by which its window grows. That decides what a
//! slow way back lets through.
//!
//! [`Transport`] is a flow's sender without the datapath around it. Whoever drives it over such a network, as the environments that
//! policies are trained in do, has the datapath's own flows, bit for bit.
//!
//! Left out, and of no consequence to what `experiments/runner/tests/validation` compares with the kernel: undo of spurious recoveries, receive
//! windows as a limit, a receiver's joining of segments that arrive at the same time.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod channel;
mod config;
mod datapath;
mod dctcp;
mod executor;
mod flow;
mod hosts;
mod reduction;
mod rtt;
mod sender;
mod trains;
mod transport;

pub use config::{FlowConfig, HEADER_BYTES, HostsConfig, Native, Pacing, SimConfig, SimError, Source, Stack};
pub use datapath::{SimDatapath, Wake};
pub use executor::SimExecutor;
pub use flow::Sample;
pub use hosts::SimHosts;
pub use sender::{Acked, Expired};
pub use transport::{Carrier, Deadlines, Departure, LOSS_TIMER, Transport, Wanted};
