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
//! let steer = flow.on_ack(&Ack { prims, packets: 1, new_loss_episode, timeout, window_limited, sampled });
//! assert_eq!((steer.cwnd_bytes, steer.rate), (50_001, 1_000_000));
//! # Ok(())
//! # }
//! ```
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
#[cfg(all(loom, test))]
mod model;
pub mod native;
mod program;
pub mod rate;
mod sample;
mod sequence;
pub mod steering;

/// What loom checks the orderings of (`make loom`).
mod sync {
    #[cfg(all(loom, test))]
    pub(crate) use loom::{
        hint::spin_loop,
        sync::atomic::{AtomicBool, AtomicU64, Ordering, fence},
        sync::{Mutex, MutexGuard},
        thread::yield_now,
    };
    #[cfg(not(all(loom, test)))]
    pub(crate) use std::{
        hint::spin_loop,
        sync::atomic::{AtomicBool, AtomicU64, Ordering, fence},
        sync::{Mutex, MutexGuard},
        thread::yield_now,
    };
}

pub use crate::config::EngineConfig;
pub use crate::core::{Clock, Engine, Waker, engine, engine_with_clock};
pub use crate::executor::EngineExecutor;
pub use crate::flow::{Ack, Decided, FlowEngine, Sampled, Steer};
pub use crate::handle::Handle;
