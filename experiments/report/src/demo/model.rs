//! The data of a report.

use serde::{Deserialize, Serialize};

/// An experiment: what was run, over which link, and what each flow did.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Report {
    /// The page's heading.
    pub title: String,
    /// One or two sentences under the heading.
    pub summary: String,
    /// What was run, where and when.
    pub run: Run,
    /// The link that each flow crossed.
    pub link: Link,
    /// Stretches of the link's behaviour, in order, on the flows' time axis.
    pub phases: Vec<Phase>,
    /// The flows. Those of one algorithm share a column of charts, in this order.
    pub flows: Vec<Flow>,
    /// A policy that learned beside its flow, if one did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub learned: Option<Learned>,
    /// What a reader should know: what could not be run and why, what differs from a real link.
    pub notes: Vec<String>,
}

/// A policy that learns beside its flow while the link changes, and what it is compared with. Each flow crosses a link of
/// its own, alone; all links are alike and change at the same time.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Learned {
    /// The link of each.
    pub link: Link,
    /// Round-trip time without queue over time: each value holds until the next one's time.
    pub base_rtts: Vec<BaseRtt>,
    /// Before the change, and after it.
    pub phases: Vec<Phase>,
    /// The flow that learns comes first, then the one that could have.
    pub flows: Vec<Flow>,
    /// What the agent decided about policies, in order of time.
    pub decisions: Vec<Decision>,
}

/// A link's round-trip time without queue from a moment on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct BaseRtt {
    /// From when, milliseconds.
    pub t_ms: u64,
    /// Microseconds.
    pub base_rtt_us: u64,
}

/// A decision to push a snapshot, or not to.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Decision {
    /// When, milliseconds on the time axis.
    pub t_ms: u64,
    /// The algorithm.
    pub algorithm: String,
    /// The snapshot's content hash; empty where the agent does not know it.
    pub snapshot: String,
    /// What it changes for flows.
    pub effect: Effect,
    /// What was decided, in one word.
    pub verdict: String,
    /// And in a few.
    pub text: String,
    /// Its numbers, in words: "stability", "0.012".
    pub numbers: Vec<(String, String)>,
}

/// What a decision changes for the flows that decide by a policy.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Effect {
    /// Nothing.
    None,
    /// They go back and forth between the snapshot and what they have, until a push or a rollback ends it.
    Trial,
    /// They decide by the snapshot from then on.
    Push,
    /// They no longer do.
    Rollback,
}

/// What was run, where and when.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Run {
    /// The command line that makes this report again.
    pub command: String,
    /// Kernel release and machine, as `uname` names them.
    pub kernel: String,
    /// The commit of the source that ran; empty when unknown.
    pub git_commit: String,
    /// When it started: RFC 3339, UTC.
    pub started_at: String,
}

/// The link that each flow crossed, alone unless the report's notes say otherwise.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Link {
    /// In words: delay, queue.
    pub description: String,
    /// Round-trip time of a packet that meets no queue, microseconds.
    pub base_rtt_us: Option<u64>,
    /// Largest IP packet, bytes; turns the bandwidth-delay product into packets.
    pub mtu_bytes: u64,
    /// Capacity over time: each value holds until the next one's time. Empty when unknown.
    pub capacity: Vec<Capacity>,
}

/// The link's capacity from a moment on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Capacity {
    /// From when, milliseconds.
    pub t_ms: u64,
    /// Bits per second, of IP packets.
    pub capacity_bps: u64,
}

/// A stretch of the link's behaviour.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Phase {
    /// A few words: "fixed 24 Mb/s".
    pub label: String,
    /// Start, milliseconds.
    pub t0_ms: u64,
    /// End, milliseconds; not before `t0_ms`.
    pub t1_ms: u64,
}

/// What carried a flow's packets and decided its window.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Datapath {
    /// The kernel's own algorithm: the baseline.
    KernelNative,
    /// A fold program compiled into the kernel.
    CcplaneEbpf,
    /// The same fold program under QUIC.
    CcplaneQuic,
    /// The same fold program in the virtual-time simulator.
    Sim,
}

impl Datapath {
    /// As tables and legends name it.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Self::KernelNative => "kernel native",
            Self::CcplaneEbpf => "ccplane ebpf",
            Self::CcplaneQuic => "ccplane quic",
            Self::Sim => "ccplane sim",
        }
    }
}

/// One flow.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Flow {
    /// Unique within the report.
    pub name: String,
    /// "reno", "cubic" ...
    pub algorithm: String,
    /// What carried it.
    pub datapath: Datapath,
    /// Samples in order of time.
    pub samples: Vec<Sample>,
    /// What it did in all.
    pub totals: Totals,
}

/// A flow at a moment. Counters count from the flow's start.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Sample {
    /// When, milliseconds on the report's time axis.
    pub t_ms: u64,
    /// Payload delivered (acknowledged, also selectively) since the sample before, bits per second.
    pub throughput_bps: u64,
    /// Smoothed round-trip time, microseconds; 0 before the first measurement.
    pub srtt_us: u64,
    /// Congestion window, packets.
    pub cwnd_pkts: u64,
    /// Pacing rate, bits per second; 0 when the flow is not paced.
    pub pacing_bps: u64,
    /// Payload acknowledged, bytes.
    pub acked_bytes: u64,
    /// Packets of the flow that the link dropped.
    pub lost_pkts: u64,
    /// Packets sent again.
    pub retransmitted_pkts: u64,
}

/// What a flow did in all.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Totals {
    /// How long it ran, milliseconds.
    pub duration_ms: u64,
    /// Payload acknowledged, bytes.
    pub acked_bytes: u64,
    /// Packets of the flow that the link dropped.
    pub lost_pkts: u64,
    /// Packets sent again.
    pub retransmitted_pkts: u64,
    /// Smallest round-trip time, microseconds; 0 if none was measured.
    pub min_rtt_us: u64,
    /// Reports that the agent received; `None` without an agent.
    pub reports: Option<u64>,
    /// Times that the agent changed the flow's program; `None` without an agent.
    pub program_switches: Option<u64>,
    /// Saturations and divisions by zero in its programs; `None` without an agent.
    pub faults: Option<u64>,
}
