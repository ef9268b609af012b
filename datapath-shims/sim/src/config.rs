//! Configuration of a simulated datapath and its flows.

mod hosts;

use crate::rtt::MIN_RTO_NS;
use ccplane_engine::native::MAX_CWND_PACKETS;
use ccplane_netsim::{ConfigError, LinkConfig, PathConfig};
pub use hosts::HostsConfig;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

/// Longest minimum of the retransmission timeout, microseconds.
const MAX_MIN_RTO_US: u32 = 60_000_000;
/// Longest time between batches, microseconds.
const MAX_BATCH_US: u64 = 60_000_000;
/// Longest latency of the agent, microseconds.
const MAX_AGENT_LATENCY_US: u64 = 60_000_000;

/// Bytes of IPv4 and TCP headers, with the timestamp option.
pub const HEADER_BYTES: u32 = 52;
/// Payload of a full segment on Ethernet, with the timestamp option.
const ETHERNET_MSS_BYTES: u32 = 1448;
/// Window at a flow's start (RFC 6928).
const INIT_CWND_PACKETS: u32 = 10;
const MIN_MSS_BYTES: u32 = 64;
const MAX_MSS_BYTES: u32 = 16_384;
/// Samples kept per flow; later ones are not taken.
pub(crate) const MAX_SAMPLES: usize = 1 << 20;

/// Configuration of a simulated datapath.
#[derive(Clone, Debug)]
pub struct SimConfig {
    pub links: Vec<LinkConfig>,
    /// Decides every random loss.
    pub seed: u64,
    /// The time for which the agent may be silent before flows run the native algorithm, microseconds.
    pub heartbeat_timeout_us: u64,
    /// Programs that can be installed at once.
    pub max_programs: usize,
    /// Flows that can be steered at once; further ones are not announced and run the native algorithm.
    pub max_flows: usize,
    /// Events that wait for the agent; further ones are dropped and counted.
    pub event_capacity: usize,
    /// From a report to the agent's update, microseconds: events reach the agent so much later.
    pub agent_latency_us: u64,
    /// The interval at which the agent takes rows: reports of invocations that asked a policy, microseconds; 0 to have
    /// them wake it as other reports do. A row becomes due at the next multiple of this, or with the next event that
    /// wakes the agent.
    pub batch_us: u64,
    /// The interval at which each flow's [`Sample`](crate::Sample) is taken, microseconds; 0 for never.
    pub sample_every_us: u64,
    /// The hosts' datapath, on which programs decide on packets; `None` for none, where all packets are alike.
    pub hosts: Option<HostsConfig>,
}

impl SimConfig {
    pub(crate) fn check(&self) -> Result<(), SimError> {
        within("agent_latency_us", self.agent_latency_us, 0, MAX_AGENT_LATENCY_US)?;
        within("batch_us", self.batch_us, 0, MAX_BATCH_US)?;
        let Some(hosts) = &self.hosts else { return Ok(()) };
        within("hosts agent_latency_us", hosts.agent_latency_us, 0, MAX_AGENT_LATENCY_US)?;
        within("hosts batch_us", hosts.batch_us, 0, MAX_BATCH_US)
    }

    /// A datapath over these links, with defaults: heartbeat timeout 1 s, 64 programs, 16,384 flows, 65,536
    /// waiting events, an agent that answers at once and takes rows each 100 ms, no samples.
    pub fn new(links: Vec<LinkConfig>, seed: u64) -> SimConfig {
        SimConfig {
            links,
            seed,
            heartbeat_timeout_us: 1_000_000,
            max_programs: 64,
            max_flows: 16_384,
            event_capacity: 65_536,
            agent_latency_us: 0,
            batch_us: 100_000,
            sample_every_us: 0,
            hosts: None,
        }
    }
}

/// The data that a flow's application writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Source {
    /// Always more than can be sent.
    Bulk,
    /// So many bytes at the start, after whose acknowledgement the flow closes.
    Bytes(u64),
    /// So many bytes at the start and again each interval.
    Chunks {
        /// Bytes of one write.
        bytes: u32,
        every_us: u32,
    },
}

/// The ways in which a flow that has set no `Rate` spreads its packets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pacing {
    /// Packets leave as acknowledgements come, like Linux without `fq`.
    AckClocked,
    /// At twice the window per smoothed RTT in slow start, else at 1.2 times (Linux `tcp_update_pacing_rate`).
    Window,
}

/// The ways in which a sender hands segments to the network.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Stack {
    /// Each on its own, as soon as window and pacing allow it.
    #[default]
    Segments,
    /// In trains for segmentation offload, as Linux does: of a millisecond's bytes but two segments at least, which
    /// leave together and are paced as one. Losses are found and tails probed by time (RFC 8985). Behind a hole its
    /// receiver's ACKs are compressed.
    Linux,
    /// In trains, as Linux does under our BPF datapath: trains may be of one segment where the rate is low and
    /// the queue short.
    Steered,
}

/// The ways in which a flow answers marks while no program controls it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Native {
    /// Marks count as a loss, once per window (RFC 3168).
    #[default]
    Reno,
    /// By half of the share of marked packets, once per window (DCTCP, RFC 8257).
    Dctcp,
}

/// Configuration of one simulated flow.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FlowConfig {
    /// When it starts, microseconds of virtual time.
    pub start_us: u64,
    pub source: Source,
    /// The flow's path through the network.
    pub path: PathConfig,
    /// Payload of a full segment, bytes.
    pub mss_bytes: u32,
    /// Window at the start, packets.
    pub init_cwnd_packets: u32,
    /// Pacing where no rate was set.
    pub pacing: Pacing,
    pub stack: Stack,
    pub native: Native,
    /// Bytes that the application writes ahead of what is sent, at most: what a send hook can see of a flow's size.
    pub send_buffer_bytes: u64,
    /// Least time by which the retransmission timeout exceeds the RTT, microseconds; for links of a data centre,
    /// where Linux's 200 ms are ten thousand round trips.
    pub min_rto_us: u32,
    /// The sender's address as the agent sees it.
    pub local: SocketAddr,
    pub remote: SocketAddr,
    /// The cgroup that the agent sees.
    pub cgroup: Option<u64>,
}

impl FlowConfig {
    /// A flow over link 0 that starts at time 0, with this delay for the way back; Ethernet's MSS, a window of
    /// 10 packets, ACK-clocked, timeouts and acknowledgements as Linux has them, from 10.0.0.1:40000 to 10.0.0.2:5001.
    pub fn new(source: Source, return_delay_us: u64) -> FlowConfig {
        let address = |host, port| SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 0, 0, host)), port);
        FlowConfig {
            start_us: 0,
            source,
            path: PathConfig::new(vec![0], return_delay_us.saturating_mul(1000)),
            mss_bytes: ETHERNET_MSS_BYTES,
            init_cwnd_packets: INIT_CWND_PACKETS,
            pacing: Pacing::AckClocked,
            stack: Stack::default(),
            native: Native::default(),
            send_buffer_bytes: u64::MAX,
            min_rto_us: (MIN_RTO_NS / 1000) as u32,
            local: address(1, 40_000),
            remote: address(2, 5001),
            cgroup: None,
        }
    }

    /// Returns the flow's path with a receiver that acknowledges as the flow's stack lets it.
    pub fn network_path(&self) -> PathConfig {
        let mut path = self.path.clone();
        path.acks.compress |= self.stack != Stack::Segments;
        path
    }

    pub(crate) fn check(&self) -> Result<(), SimError> {
        check_mss(self.mss_bytes)?;
        within("min_rto_us", self.min_rto_us.into(), 1, MAX_MIN_RTO_US.into())?;
        within("init_cwnd_packets", self.init_cwnd_packets.into(), 1, MAX_CWND_PACKETS)?;
        match self.source {
            Source::Bulk => Ok(()),
            Source::Bytes(n) => within("source bytes", n, 1, u64::MAX / 2),
            Source::Chunks { bytes, every_us } => {
                within("source bytes", bytes.into(), 1, u32::MAX.into())?;
                within("source every_us", every_us.into(), 1, u32::MAX.into())
            }
        }
    }
}

pub(crate) fn check_mss(mss_bytes: u32) -> Result<(), SimError> {
    within("mss_bytes", mss_bytes.into(), MIN_MSS_BYTES.into(), MAX_MSS_BYTES.into())
}

fn within(field: &'static str, found: u64, min: u64, max: u64) -> Result<(), SimError> {
    if (min..=max).contains(&found) {
        Ok(())
    } else {
        Err(ConfigError::OutOfRange { field, found, min, max }.into())
    }
}

/// Reasons why a simulation can't be built or changed so.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SimError {
    /// A field outside its limits.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// No such flow, or it has ended.
    #[error("flow {0:?} is not known")]
    NoFlow(ccplane_contract::FlowId),
}
