//! Environments to learn in: links at packet level under the datapath's own fold programs.
//!
//! A flow here is what it is in a datapath: its algorithm's fold program, run by the reference VM on each ACK, and the
//! algorithm's own agent-side code. That code tells from each report what the interval was worth. The path is one bottleneck
//! of the virtual-time network, and the transport is the simulated datapath's own ([`ccplane_sim::Transport`]): with its RACK
//! timer, its probes of lost tails and its trains. Left out is the datapath around them, so that episodes take little time ([`run`]);
//! a test holds the two together, bit for bit.
//!
//! [`Links`] is a [`ccplane_learn::Environment`] for any algorithm with a policy; [`Family`] says which links there are.
//! [`Stepped`] is the same for callers that give one action at a time.
#![deny(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod compare;
mod decider;
mod environment;
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
pub use compare::{NoDecider, Outcome, outcome};
pub use decider::{ActionMap, Decider, Integer, Learning};
pub use environment::Links;
pub use family::{Family, PublishedLinks, Range, RealLinks};
pub use flow::Prepared;
pub use link::{Link, Phase};
pub use measure::{AckObserver, Measured, NoObserver, Rtts};
pub use scenario::{FlowSetup, OnOff, Scenario};
pub use stepped::{Ask, Stepped};
pub use world::run;

use ccplane_alg::ParameterError;
use ccplane_netsim::ConfigError;

/// The reason why there is no such environment.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
pub enum EnvError {
    /// A program does not compile.
    #[error("program {program}: {count} errors")]
    Program { program: &'static str, count: usize },
    /// The algorithm's programs ask no policy.
    #[error("{algorithm} asks no policy: there is nothing to learn")]
    NoPolicy { algorithm: &'static str },
    /// The policy sees other numbers than the program keeps.
    #[error("the policy has {found} inputs, the program keeps {expected}")]
    Inputs { found: usize, expected: usize },
    /// The algorithm has one reward, whatever is preferred.
    #[error("{algorithm} takes no preference: {source}")]
    Preference { algorithm: &'static str, source: ParameterError },
    /// No scenario has a flow.
    #[error("no scenario has a flow")]
    NoFlows,
    /// A flow of an algorithm that there is not.
    #[error("a scenario's flow has algorithm {found}, counted from 0; there are {known}")]
    Algorithm { found: usize, known: usize },
    /// A scenario outside the simulator's limits.
    #[error(transparent)]
    Simulator(#[from] ConfigError),
    /// A range of a family that is none, or goes beyond what is simulated.
    #[error("{field}: {low} to {high}; a range within {min} to {max} is needed")]
    Range { field: &'static str, low: f64, high: f64, min: f64, max: f64 },
}
