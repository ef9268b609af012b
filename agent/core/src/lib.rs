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
mod held;
mod host;
mod hosting;
mod learning;
mod lifecycle;
mod panics;
mod queue;
mod reports;
mod requests;
mod results;
mod rows;
mod rules;
mod start;
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
pub use held::Held;
pub use host::{HostError, HostEvent, HostReason, HostedFlow};
pub use hosting::MAX_HOSTED_PROGRAMS;
pub use learning::SlotView;
pub use panics::panic_message;
pub use rows::{Batch, Measure};
pub use rules::{NATIVE, Rule, Rules, RulesError};

/// The algorithm of flows that their own cannot steer, on datapaths without a native one.
pub const FALLBACK: &str = "reno";
/// Flows known at once, unless configured otherwise; further ones stay with their native algorithm.
pub const MAX_FLOWS: usize = 65_536;
/// Datapaths attached at once.
pub const MAX_DATAPATHS: usize = 4096;
/// Algorithms that one catalog registers.
pub const MAX_ALGORITHMS: usize = 256;
/// Fold programs of one algorithm.
pub const MAX_PROGRAMS: usize = 64;
/// Rules that one core has in force.
pub const MAX_RULES: usize = 1024;
/// Commands that an algorithm may give in one call.
pub const MAX_COMMANDS_PER_CALL: usize = 16;
/// Policies of one algorithm.
pub const MAX_POLICIES: usize = 4;
/// Rows of one slot that wait for its learner; the oldest make way.
pub const MAX_ROWS: usize = 8192;
/// Samples of flows' paths in one batch of rows; further flows are left out.
pub const MAX_MEASURES: usize = 1024;
/// Decisions that are kept to be looked at; the oldest make way.
pub const MAX_DECISIONS: usize = 256;
/// Fields of one command.
pub const MAX_FIELDS: usize = 64;
/// Updates and program changes queued for one datapath; those beyond are refused until it catches up.
pub const MAX_QUEUED_COMMANDS: usize = 2 * MAX_FLOWS;
/// Events that [`drive`] takes from a datapath at once.
pub const MAX_EVENTS_PER_DRIVE: usize = 1024;
