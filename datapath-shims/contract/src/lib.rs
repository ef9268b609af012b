//! The contract that every datapath shim keeps.
//!
//! A shim carries flows, runs installed programs on their ACKs, and speaks with the agent only through
//! [`Datapath`]: commands go in, [`Event`]s come out. Its promises:
//!
//! 1. A program's effects are those of [`ccplane_program::vm`], bit for bit.
//! 2. Field updates and program changes take effect together, before the flow's next ACK is processed.
//! 3. A flow runs a native algorithm when its program is missing, or its agent has been silent for
//!    longer than the heartbeat timeout. It starts from its current window; when the agent is back,
//!    the program resumes from the window that the flow then has.
//! 4. Everything is bounded: flows, programs, report sizes, queued events. What does not fit is counted.
//! 5. `Cwnd` and `Rate` are applied after each invocation within the shim's own bounds (at least one
//!    segment, at most the transport's limits); the registers keep their exact values.
//! 6. `(policy slot)` does what [`ccplane_infer::Slot::decide`] does, with the flow's id as key, on the slot's control
//!    word as it stood when the decision began. No decision sees half of a snapshot. A flow's
//!    [`FlowPolicy`](ccplane_infer::FlowPolicy) lives as long as the flow, over changes of its program. A program is
//!    installed only if its slots are defined and take as many inputs as its histories have cells; where a policy has
//!    no answer, the invocation's effects stand and the native algorithm goes on from its window.
//! 7. A report of an invocation that asked a policy is a row of a batch: it wakes nobody.
//! 8. A path's MTU is found while the flow runs: what a program keeps in [`MSS_REGISTER`] follows the flow's segment size
//!    for as long as it is that size. At each invocation, after what was staged, a register that holds the size of the
//!    invocation before becomes that of now; one that its program's start left at the size of the flow's start does too.
//!    (Datapaths of the [full language](Capabilities::full_language); a stock CCP one cannot.)
//! 9. Below [`PAIRED_BYTES_PER_S`] (24 Mb/s) a paced flow sends them one by one while its queue holds less than
//!    [`PAIRED_QUEUE_SEGMENTS`]. Its queue is the smoothed less the smallest RTT, times its rate. So a link with room
//!    for one packet loses none.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod code_points;
mod command;
mod datapath;
mod error;
mod event;
pub mod fake;
mod fields;
mod flow;
mod forward;
mod ids;
mod pairing;
pub mod registry;
pub mod slots;
pub mod suite;
mod transport;

pub use code_points::{CodePoints, MAX_DSCP, PRIORITIES, traffic_class};
pub use command::{Field, Part};
pub use datapath::{Capabilities, Datapath, ON_ACKS, ON_PACKETS, SlotStats};
pub use error::DatapathError;
pub use event::{Event, Values};
pub use fields::{MSS_REGISTER, apply_fields, check_fields, mss_register};
pub use flow::{FlowInfo, FlowStats, Mode};
pub use forward::{Accepted, Forward};
pub use ids::{FlowId, ProgramUid, SnapshotUid};
pub use pairing::{PAIRED_BYTES_PER_S, PAIRED_QUEUE_SEGMENTS};
pub use slots::SlotTable;
pub use transport::{INFINITE_SSTHRESH, KnownStats, StatInfo, TransportStats};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
