//! Programs on a flow's packets on their way out, for every datapath in user space.
//!
//! A [`PacketFlow`] decides for one flow by programs of `(hook connect)` and `(hook send)`. A [`HostMemory`] holds the facts about
//! earlier flows and about paths that such programs read. A [`PacketFlowEngine`] is a flow of an engine with
//! [`EngineConfig::packets`](crate::EngineConfig::packets), whose agent is on another thread. Its memory is its thread's own, so that
//! neither waits for the other.
//!
//! A send program runs on the flow's first packet, on each one from `DecideAt` on (where that is above 0), and where a
//! flowlet begins. The next packet after a command of the agent is a decision, too. When the flow has ended, the program runs once
//! more, on a packet without payload. A priority that is served later takes effect at once. One that is served earlier,
//! and another path, wait until nothing of the flow is in flight or a flowlet begins: no packet overtakes one of its own flow.

mod engine;
mod flow;
mod memory;

pub use engine::PacketFlowEngine;
pub(crate) use engine::Started;
pub use flow::{Outbound, PacketFlow, Steering};
pub use memory::{HostMemory, PathSample};
