//! Environments to learn in: links at packet level under the datapath's own fold programs.
//!
//! A flow here is what it is in a datapath: its algorithm's fold program, run by the reference VM on each ACK, and the
//! algorithm's own agent-side code. That code tells from each report what the interval was worth. The path is one bottleneck
//! of the virtual-time network, and a way back that may limit acknowledgements. The transport is the simulated datapath's
//! own ([`ccplane_sim::Transport`]): with its RACK timer, its probes of lost tails and its trains. Left out is the datapath
//! around them, so that episodes take little time ([`run`]);
//! a test holds the two together, bit for bit.
//!
//! [`Links`] is a [`ccplane_learn::Environment`] for any algorithm with a policy; [`Family`] says which links there are.
//! [`Stepped`] is the same for callers that give one action at a time.
#![deny(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod compare;
mod decider;
mod environment;
mod error;
mod family;
mod flow;
mod foresight;
mod interval;
mod link;
mod measure;
pub mod recipe;
mod scenario;
pub mod spec;
mod stepped;
mod world;

pub use ccplane_sim::Stack;
pub use compare::{LinkPerformance, NoDecider, outcome};
pub use decider::{ActionMap, Decider, Integer, Learning};
pub use environment::Links;
pub use error::EnvError;
pub use family::{Family, PublishedLinks, Range, RealLinks};
pub use flow::Prepared;
pub use link::{EnvLink, Phase};
pub use measure::{AckObserver, FlowTotals, NoObserver, Rtts};
pub use scenario::{FlowSetup, OnOff, Scenario};
pub use stepped::{Ask, Stepped};
pub use world::run;
