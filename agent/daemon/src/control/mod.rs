//! The control socket: how commands reach the agent.
//!
//! The socket is owner-only by file mode, which the peer's credentials check again. Clients, request sizes and
//! times are bounded, so a client that sends garbage or nothing at all harms nobody but itself.

mod client;
mod protocol;
mod server;
mod snapshots;

pub use crate::mode::ModeName;
pub use client::{ClientError, ask, open};
pub use protocol::{
    Counters, DatapathRecord, FlowArm, FlowRecord, Flows, InsteadOf, LoopRecord, MAX_REQUEST_BYTES,
    MAX_RESPONSE_BYTES, ProgramRecord, Request, Response, Silence, Status, SteeringRecord, Version,
};
pub use server::{Answer, Server, ServerLimits};
pub use snapshots::{
    ArmRecord, DecisionRecord, DeploymentRecord, LearnerRecord, PolicyRecord, SlotRecord, Snapshots,
    StandingRecord, from_hex, to_hex,
};
