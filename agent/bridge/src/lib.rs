//! An unmodified portus agent as an algorithm of ours: `algorithm = "portus"` in a rule.
//!
//! Towards portus the agent is a datapath of CCP's own protocol ([`ccplane_wire::v1`]): it says READY, announces the flows that rules
//! give to portus, and passes their reports on. Bytecode that portus installs is lifted to our IR and installed in whatever
//! [`Datapath`](ccplane_contract::Datapath) carries a flow, where it runs compiled. [`Bridge`] is the state machine, without I/O;
//! [`PortusLink`] is its unix datagram socket, or the kernel module's device for one that listens on netlink. [`Hosted`] is an algorithm crate of portus in this very process, to which a channel leads; [`Links`]
//! are all ways of a loop.
//!
//! The protocol has no sign of life. Portus is there while it reads what is sent: one that leaves datagrams unread for
//! [`Options::silence_us`], or whose socket is gone, loses its flows to their native algorithm until it reads or listens again.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

/// Writes what algorithms answer whose flows' agent half runs elsewhere.
macro_rules! runs_elsewhere {
    () => {
        fn programs(&self) -> Vec<ccplane_alg::ProgramSource> {
            Vec::new()
        }

        fn flow(
            &self,
            _info: &ccplane_alg::FlowInfo,
            _control: &mut ccplane_alg::Control,
        ) -> Box<dyn ccplane_alg::Flow> {
            Box::new($crate::Elsewhere)
        }

        fn is_hosted(&self) -> bool {
            true
        }
    };
}

mod address;
mod bridge;
mod hosted;
mod hosted_link;
mod link;
mod links;
mod outbox;
mod relay;
mod silence;
mod socket;
mod transport;

pub use bridge::{Bridge, BridgeCounters};
pub use hosted::{Hosted, Wire, WireError};
pub use link::PortusLink;
pub use links::Links;

use ccplane_alg::{Algorithm, Control, Flow, Report};
use std::path::PathBuf;

/// The name that rules use.
pub const PORTUS: &str = "portus";
/// Flows that portus is given unless configured otherwise: as many as ccp-kernel has.
pub const MAX_FLOWS: usize = 1024;
/// The time that portus may leave datagrams unread unless configured otherwise, microseconds.
pub const SILENCE_US: u64 = 2_000_000;

/// The sockets between portus and the agent, and the longest silence of portus.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Options {
    /// The path of the socket that portus listens on, or of the kernel module's device for portus.
    pub socket: PathBuf,
    /// Whether the flows are the kernel's, whom such a device serves alone.
    pub takes_kernel_flows: bool,
    /// The path of our own socket, which portus answers to.
    pub own: PathBuf,
    /// The time that portus may leave datagrams unread, microseconds.
    pub silence_us: u64,
    /// Flows that portus is given at once; further ones run their native algorithm.
    pub max_flows: usize,
}

/// The algorithm that a portus agent hosts.
#[derive(Clone, Copy, Debug)]
pub struct Portus;

impl Algorithm for Portus {
    fn name(&self) -> &'static str {
        PORTUS
    }

    runs_elsewhere!();
}

/// A flow whose agent half runs in portus.
struct Elsewhere;

impl Flow for Elsewhere {
    fn on_report(&mut self, _now_us: u64, _report: &Report<'_>, _control: &mut Control) {}
}
