//! Packets of TCP flows on their way out as a datapath: programs of the hooks `send` and `connect`.
//!
//! A classifier on the egress of named devices finds the flow of each packet by its socket. A flow's first packet, the first one of
//! a flowlet, and the one from which on its program asked to run again are decisions: the program sets priority and path. All
//! others get what stands in the flow's record. Programs of a flow's start run where its socket connects, in a cgroup.
//!
//! Nothing is pinned: links and maps are held by descriptors. What the kernel does not take back by itself (a
//! classifier on a kernel without tcx), a separate process removes once the agent has gone.

mod attach;
mod classify;
mod connect;
mod datapath;
mod guard;
mod header;
mod host;
mod layout;
mod lifecycle;
mod maps;
mod measure;
mod netlink;
mod options;
mod record;

pub use attach::{EmptyClassifier, Hooking, available, clean};
pub use datapath::{FlowSteering, PacketsDatapath};
pub use options::{MAX_DEVICES, Marking, PacketsOptions, PathRoute, cgroup_root};
