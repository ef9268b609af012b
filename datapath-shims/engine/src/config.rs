//! Configuration of an engine.

use ccplane_contract::{ON_ACKS, ON_PACKETS};
use ccplane_program::ir::Hook;

/// Most events that a queue holds; each takes about half a kibibyte.
pub(crate) const MAX_EVENT_CAPACITY: usize = 1 << 20;

/// Configuration of a datapath in user space.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EngineConfig {
    /// The datapath's kind in its capabilities, such as "quic" or "dpdk".
    pub kind: &'static str,
    /// Flows that can be steered at once; further ones are not announced and run the native algorithm.
    pub max_flows: usize,
    /// Programs that can be installed at once.
    pub max_programs: usize,
    /// Events that wait for the agent, from 1 to 2^20, allocated at the start; further ones are dropped and counted.
    pub event_capacity: usize,
    /// The silence of the agent after which flows run the native algorithm, microseconds.
    pub heartbeat_timeout_us: u64,
    /// The interval at which rows (reports of invocations that asked a policy) may wake the agent, microseconds; 0 to
    /// have them wake it as other reports do.
    pub batch_us: u64,
    /// Decisions about packets on their way out; `None` for an engine that decides on ACKs.
    pub packets: Option<PacketsConfig>,
}

/// Configuration of an engine that decides about packets on their way out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PacketsConfig {
    /// A pause of a flow at which a flowlet begins, microseconds: its program runs, and it may be served earlier.
    pub flowlet_us: u64,
    /// The time for which measurements of a path are known, microseconds.
    pub path_memory_us: u64,
}

impl Default for PacketsConfig {
    /// A flowlet begins after half a millisecond; paths are known for a second.
    fn default() -> PacketsConfig {
        PacketsConfig { flowlet_us: 500, path_memory_us: 1_000_000 }
    }
}

impl EngineConfig {
    /// With defaults: 4096 flows, 64 programs, 4096 waiting events, a heartbeat timeout of 1 s, rows each 100 ms.
    pub const fn new(kind: &'static str) -> EngineConfig {
        EngineConfig {
            kind,
            max_flows: 4096,
            max_programs: 64,
            event_capacity: 4096,
            heartbeat_timeout_us: 1_000_000,
            batch_us: 100_000,
            packets: None,
        }
    }

    /// The hooks whose programs the engine runs.
    pub const fn hooks(&self) -> &'static [Hook] {
        if self.packets.is_some() { ON_PACKETS } else { ON_ACKS }
    }
}
