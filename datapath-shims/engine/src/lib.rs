//! What datapaths in user space have in common: programs on flows, policy slots, the agent's commands.
//!
//! [`engine`] makes a datapath without a transport. The transport holds the [`Engine`] and makes one [`FlowEngine`] for each
//! connection, which it asks on each ACK what window and rate to apply. The agent holds the [`Handle`], a
//! [`Datapath`](ccplane_contract::Datapath), on any thread.
//!
//! Neither waits for the other. What the agent stages lies at the flow's desk behind a lock that the flow only tries: while
//! the agent writes, the next ACK takes it. Machines are made, and dropped, by the handle. Slots are read from an
//! atomically swapped table, so that a decision sees one whole snapshot. Reports go as records of one size into a bounded
//! queue, statistics into words under a sequence counter. [`FlowEngine::on_ack`] uses no float, allocates nothing, and
//! reads no clock but the ACK's.
//!
//! [`steering`], [`helm`], [`native`] and [`rate`] are the parts that other datapaths are made of too.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod config;
mod core;
mod desk;
mod events;
mod executor;
mod flow;
mod handle;
pub mod helm;
pub mod native;
mod program;
pub mod rate;
mod sample;
pub mod steering;

pub use crate::config::EngineConfig;
pub use crate::core::{Clock, Engine, Waker, engine, engine_with_clock};
pub use crate::executor::EngineExecutor;
pub use crate::flow::{Ack, Decided, FlowEngine, Sampled, Steer};
pub use crate::handle::Handle;
