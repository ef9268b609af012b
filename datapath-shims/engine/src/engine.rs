//! The making of an engine, and its transport's end.

use crate::config::EngineConfig;
use crate::core::Core;
use crate::events::Waker;
use crate::flow::FlowEngine;
use crate::handle::{Clock, Handle};
use crate::packets::{HostMemory, PacketFlowEngine};
use ccplane_contract::FlowInfo;
use std::sync::Arc;
use std::time::Instant;

/// Pairs of application and destination that a thread's flows remember, at most; each takes about 150 bytes.
const MAX_PEERS: usize = 4096;
/// Networks without a flow whose paths are remembered, at most; each takes about 500 bytes.
const MAX_NETWORKS: usize = 1024;

/// Creates a datapath without a transport, as the transport's end and the agent's. The agent counts as alive at
/// first, and `waker` is called when an event that wakes the agent was queued.
pub fn engine(config: EngineConfig, waker: Waker) -> (Engine, Handle) {
    let epoch = Instant::now();
    let clock = Arc::new(move || epoch.elapsed().as_micros() as u64);
    with_epoch(config, waker, clock, epoch)
}

/// Creates an engine with a clock of its own: `clock` returns the time of a heartbeat, in the microseconds of the
/// ACKs.
pub fn engine_with_clock(config: EngineConfig, waker: Waker, clock: Clock) -> (Engine, Handle) {
    with_epoch(config, waker, clock, Instant::now())
}

fn with_epoch(config: EngineConfig, waker: Waker, clock: Clock, epoch: Instant) -> (Engine, Handle) {
    let core = Arc::new(Core::new(config, waker, clock()));
    (Engine { core: Arc::clone(&core), epoch }, Handle::new(core, clock))
}

/// The transport's end of an engine.
#[derive(Clone)]
pub struct Engine {
    pub(crate) core: Arc<Core>,
    epoch: Instant,
}

impl Engine {
    /// Converts an instant to the datapath's clock, microseconds since it was made, which ACKs carry as `Ack.now`.
    pub fn now_us(&self, at: Instant) -> u64 {
        at.saturating_duration_since(self.epoch).as_micros() as u64
    }

    /// Converts an instant to the datapath's clock, nanoseconds.
    pub fn now_ns(&self, at: Instant) -> u64 {
        at.saturating_duration_since(self.epoch).as_nanos() as u64
    }

    /// Makes the memory of one thread's flows whose packets are decided about.
    pub fn host_memory(&self) -> HostMemory {
        let packets = self.core.config.packets.unwrap_or_default();
        HostMemory::new(MAX_PEERS, MAX_NETWORKS, packets.path_memory_us)
    }

    /// Starts a flow with so many paths whose packets are decided about, in an engine with [`EngineConfig::packets`]. Further flows than
    /// [`EngineConfig::max_flows`] start with the same programs, but the agent does not hear of them.
    pub fn packet_flow(
        &self,
        info: FlowInfo,
        paths: u8,
        memory: &mut HostMemory,
        now_us: u64,
    ) -> PacketFlowEngine {
        PacketFlowEngine::start(&self.core, self.core.next_flow(), (info, paths), memory, now_us)
    }

    /// Starts a flow. It is announced unless there are [`EngineConfig::max_flows`] already; then the native algorithm
    /// controls it for its whole life.
    pub fn flow(&self, info: FlowInfo, now_us: u64) -> FlowEngine {
        FlowEngine::start(&self.core, self.core.next_flow(), info, now_us)
    }
}
