//! A flow as its datapath knows it.

use crate::ids::{FlowId, ProgramUid};
use crate::transport::TransportStats;
use ccplane_infer::FlowPolicy;
use std::net::SocketAddr;

/// Facts about a flow that are known when it starts.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FlowInfo {
    /// Maximum segment size, bytes of payload.
    pub mss_bytes: u32,
    /// Congestion window when the algorithm takes over, bytes.
    pub init_cwnd_bytes: u64,
    pub local: SocketAddr,
    pub remote: SocketAddr,
    /// The cgroup (v2 id) that the socket belongs to, where the datapath knows.
    pub cgroup: Option<u64>,
    /// The smallest round-trip time so far, that of the handshake, microseconds; where the datapath knows.
    pub min_rtt_us: Option<u32>,
}

impl FlowInfo {
    /// Returns an example for tests and benches: a flow from 10.0.0.1:40000 to 10.0.0.2:5001.
    pub fn example(mss_bytes: u32, init_cwnd_bytes: u64) -> FlowInfo {
        FlowInfo {
            mss_bytes,
            init_cwnd_bytes,
            local: ([10, 0, 0, 1], 40_000).into(),
            remote: ([10, 0, 0, 2], 5001).into(),
            cgroup: None,
            min_rtt_us: None,
        }
    }
}

/// The ways in which a flow can be steered.
// Exhaustive: a new one has to be handled by every datapath, message and trace, which the compiler names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    Program,
    /// By the native algorithm, because no program was set, or has started yet: [`FlowStats::waits_for_ack`].
    NativeNoProgram,
    /// By the native algorithm, because the agent's heartbeat is late.
    NativeAgentSilent,
    /// By the native algorithm, because a policy had no answer: its slot was empty, or the monitor tripped. Until a
    /// program is set again.
    NativePolicy,
}

/// One flow as its datapath last sampled it, in `tcp_info`'s vocabulary.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FlowStats {
    pub flow: FlowId,
    pub info: FlowInfo,
    pub mode: Mode,
    /// The program set on it, if any.
    pub program: Option<ProgramUid>,
    pub transport: TransportStats,
    /// The state of its policy, where its program asks one.
    pub policy: Option<FlowPolicy>,
    /// The datapath's clock at the sample, microseconds.
    pub sampled_at_us: u64,
}

impl FlowStats {
    /// Whether a program is set that starts at the flow's next ACK. A flow that sends nothing, such as the receiving
    /// side of a connection, may stay so for as long as it lives.
    pub fn waits_for_ack(&self) -> bool {
        self.mode == Mode::NativeNoProgram && self.program.is_some()
    }
}
