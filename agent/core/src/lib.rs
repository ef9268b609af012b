//! The agent without its surroundings: which algorithm steers which flow, and what that asks of a datapath.
//!
//! [`Core`] is a state machine. [`Event`](ccplane_contract::Event)s of datapaths and the time go in,
//! [`Action`]s come out, and how each action ended goes in again. It does no I/O, starts no threads and
//! reads no clock, so the same inputs give the same outputs; the daemon, the simulator and the tests run
//! the same code. [`drive`] is the loop's body around one [`Datapath`](ccplane_contract::Datapath).
//!
//! A panic of an algorithm's code is caught: its flow goes to the datapath's native
//! algorithm with that as the stated reason, and the agent goes on. (Built with `panic = "abort"` there is
//! nothing to catch it.)
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod action;
mod attached;
mod catalog;
mod choosing;
mod core;
mod deploy;
mod drive;
mod fallback;
mod flow;
mod host;
mod hosting;
mod learning;
mod lifecycle;
mod limits;
mod panics;
mod queue;
mod reports;
mod requests;
mod results;
mod rows;
mod rules;
mod start;
mod table_sizes;
mod variants;

pub use crate::core::{AttachError, Config, Core, Counters};
pub use action::{Action, ActionId, Command, DatapathId, Fields};
pub use attached::{InstallState, InstallView};
pub use catalog::{Catalog, CatalogError, CommandError, Compiled, Policy};
pub use deploy::{
    Candidate, Comparison, Decision, Deployment, Evidence, Finding, MAX_PAIRS, Necessity, Origin, PushRules,
    Verdict, Why,
};
pub use drive::{Companion, Driven, drive};
pub use fallback::Fallback;
pub use flow::{AlgorithmCounters, FlowCounters, FlowView, NativeReason};
pub use host::{HostError, HostEvent, HostReason, HostedFlow};
pub use hosting::MAX_HOSTED_PROGRAMS;
pub use learning::SlotView;
pub use limits::{
    MAX_ALGORITHMS, MAX_COMMANDS_PER_CALL, MAX_DATAPATHS, MAX_DECISIONS, MAX_EVENTS_PER_DRIVE, MAX_FIELDS,
    MAX_FLOWS, MAX_MEASURES, MAX_POLICIES, MAX_PROGRAMS, MAX_QUEUED_COMMANDS, MAX_ROWS, MAX_RULES,
};
pub use panics::panic_message;
pub use rows::{Batch, Measure};
pub use rules::{FALLBACK, NATIVE, Rule, Rules, RulesError};
pub use table_sizes::TableSizes;
