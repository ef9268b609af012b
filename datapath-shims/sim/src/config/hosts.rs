//! The configuration of the hosts' datapath.

/// Configuration of the hosts' datapath.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HostsConfig {
    /// A pause of a flow after which its program runs and it may take another path, microseconds.
    pub flowlet_us: u64,
    /// The time for which a path's round trip, marks and losses are known after they were measured,
    /// microseconds.
    pub path_memory_us: u64,
    /// From a report to the agent's update, microseconds: events reach the agent so much later.
    pub agent_latency_us: u64,
    /// The interval at which the agent takes rows, as [`SimConfig::batch_us`](crate::SimConfig::batch_us).
    pub batch_us: u64,
    /// The time for which the agent may be silent before programs do not run any more, microseconds.
    pub heartbeat_timeout_us: u64,
    pub max_programs: usize,
    /// Flows that the agent hears of at once.
    pub max_flows: usize,
    /// Events that wait for the agent; further ones are dropped and counted.
    pub event_capacity: usize,
}

impl Default for HostsConfig {
    fn default() -> HostsConfig {
        HostsConfig {
            flowlet_us: 500,
            path_memory_us: 10_000,
            agent_latency_us: 0,
            batch_us: 0,
            heartbeat_timeout_us: 1_000_000,
            max_programs: 64,
            max_flows: 16_384,
            event_capacity: 65_536,
        }
    }
}
