//! The common part of datapaths in user space: programs on flows, policy slots, the agent's commands.
//!
//! [`engine`] makes a datapath without a transport. The transport holds the [`Engine`] and makes one [`FlowEngine`] for each
//! connection, which returns the window and rate to apply on each ACK. The agent holds the [`Handle`], a
//! [`Datapath`](ccplane_contract::Datapath), on any thread.
//!
//! Neither waits for the other. The agent stages updates in the flow's mailbox, whose lock the flow only tries: while the agent
//! holds it, the next ACK takes the updates. The handle makes and drops the machines that run programs. Slots are read from an
//! atomically swapped table, so that a decision sees one whole snapshot. Reports are records of one size in a bounded queue;
//! statistics are words under a sequence counter. [`FlowEngine::on_ack`] uses no float, allocates nothing, and reads no clock
//! but the ACK's.
//!
//! [`runner`], [`controller`], [`native`], [`packets`] and [`rate`] are the parts that other datapaths are made of too.
//!
//! ```
//! use ccplane_contract::{Datapath, Field, FlowInfo, ProgramUid};
//! use ccplane_engine::{Ack, EngineConfig, Sampled, engine};
//! use ccplane_program::{ir::Prim, vm::Prims};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let (transport, mut agent) = engine(EngineConfig::new("mine"), std::sync::Arc::new(|| ()));
//! # let address = std::net::SocketAddr::from(([127, 0, 0, 1], 4433));
//! # let (local, remote, cgroup, min_rtt_us) = (address, address, None, None);
//! let info = FlowInfo { mss_bytes: 1200, init_cwnd_bytes: 12_000, local, remote, cgroup, min_rtt_us };
//! let mut flow = transport.flow(info, 0);
//!
//! let program = ccplane_program::compile("(def (step 1)) (when true (:= Cwnd (+ Cwnd step)))")
//!     .map_err(|errors| format!("{errors:?}"))?;
//! agent.install(ProgramUid(1), &program)?;
//! agent.set_program(flow.id(), ProgramUid(1), &[(Field::Cwnd, 50_000), (Field::Rate, 1_000_000)])?;
//!
//! let mut prims = Prims::default();
//! prims.set(Prim::AckNow, 20_000).set(Prim::AckBytesAcked, 1200);
//! let (new_loss_episode, timeout, window_limited) = (false, false, true);
//! let sampled = Sampled::default();
//! let limits = flow.on_ack(&Ack { prims, packets: 1, new_loss_episode, timeout, window_limited, sampled });
//! assert_eq!((limits.cwnd_bytes, limits.rate), (50_001, 1_000_000));
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod config;
pub mod controller;
mod core;
mod engine;
mod events;
mod executor;
mod flow;
mod handle;
mod mailbox;
#[cfg(all(loom, test))]
mod model;
pub mod native;
pub mod packets;
mod policies;
mod program;
pub mod rate;
pub mod runner;
mod sample;
mod sequence;
mod sync;

pub use crate::config::{EngineConfig, PacketsConfig};
pub use crate::engine::{Engine, engine, engine_with_clock};
pub use crate::events::Waker;
pub use crate::executor::EngineExecutor;
pub use crate::flow::{Ack, FlowEngine, LastDecision, Sampled, SendLimits};
pub use crate::handle::{Clock, Handle};
pub use crate::program::SharedProgram;
