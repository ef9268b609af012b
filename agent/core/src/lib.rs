//! The agent without its surroundings: which algorithm steers which flow, and what that asks of a datapath.
//!
//! [`Core`] is a state machine. [`Event`](ccplane_contract::Event)s of datapaths and the time go in,
//! [`Action`]s come out, and how each action ended goes in again. It does no I/O, starts no threads and
//! reads no clock, so the same inputs give the same outputs; the daemon, the simulator and the tests run
//! the same code. [`drive`] is the loop's body around one [`Datapath`](ccplane_contract::Datapath).
//!
//! An algorithm's code runs behind a shield: if it panics, its flow goes to the datapath's native
//! algorithm with that as the stated reason, and the agent goes on. (Built with `panic = "abort"` there is
//! no such shield.)
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod action;
mod attached;
mod catalog;
mod choosing;
mod core;
mod deploy;
mod drive;
mod flow;
mod held;
mod learning;
mod lifecycle;
mod queue;
mod reports;
mod requests;
mod results;
mod rows;
mod rules;
mod shield;
mod variants;

pub use crate::core::{AttachError, Config, Core, Counters};
pub use action::{Action, ActionId, Command, DatapathId, Fields};
pub use attached::{InstallState, InstallView};
pub use catalog::{Catalog, CatalogError, CommandError, Compiled, Policy};
pub use deploy::{
    Candidate, Comparison, Decision, Deployment, Evidence, Finding, MAX_PAIRS, Necessity, Origin, PushRules,
    Verdict, Why,
};
pub use drive::{Driven, drive};
pub use flow::{AlgorithmCounters, FlowCounters, FlowView, NativeReason};
pub use held::Held;
pub use learning::SlotView;
pub use rows::{Batch, Measure};
pub use rules::{NATIVE, Rule, Rules, RulesError};

/// Flows known at once, unless configured otherwise; further ones stay with their native algorithm.
pub const MAX_FLOWS: usize = 65_536;
/// Datapaths attached at once.
pub const MAX_DATAPATHS: usize = 4096;
/// Algorithms registered.
pub const MAX_ALGORITHMS: usize = 256;
/// Fold programs of one algorithm.
pub const MAX_PROGRAMS: usize = 64;
/// Rules in force.
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
