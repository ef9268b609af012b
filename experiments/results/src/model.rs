//! The records of a results file.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Version of the format, in each file's [`Header`]. A reader refuses others.
pub const SCHEMA_VERSION: u32 = 1;
/// The version of the format of plans, of every kind, that this ccplane reads.
pub const PLAN_VERSION: u64 = 1;
/// The advice about a plan of another version.
pub const PLAN_ADVICE: &str =
    "run it by the ccplane that it was written for, or see the keys in experiments/plans/README.md";

/// One line of a results file.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(tag = "record", rename_all = "kebab-case")]
pub enum ResultRecord {
    /// The first record of a file.
    Header(Box<Header>),
    /// A record after the first.
    Run(Box<Run>),
}

/// The plan, its scenarios and contenders, and the machine that runs it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Header {
    /// The version of the format, [`SCHEMA_VERSION`].
    pub schema: u32,
    pub plan: Plan,
    /// The links and their traffic, one for each point of a sweep.
    pub scenarios: Vec<Scenario>,
    /// The contenders in the plan's order.
    pub contenders: Vec<Contender>,
    pub host: Host,
}

/// A plan's name, texts, times and comparisons.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Plan {
    /// Short: the plan file's name without `.toml`.
    pub name: String,
    /// The heading of the report.
    pub title: String,
    /// The report's first paragraph, a sentence or two.
    pub about: String,
    /// The plan file, whole.
    pub source: String,
    /// SHA-256 of everything that decides what is run (plan, traces), hexadecimal. A file is resumed only if it agrees.
    pub digest: String,
    /// Times that each contender runs in each scenario.
    pub repeats: u32,
    /// The seed from which every run's seed follows.
    pub seed: u64,
    /// Length of a run, milliseconds.
    pub duration_ms: u64,
    /// Time at a run's start that figures leave out, milliseconds.
    pub warmup_ms: u64,
    /// Between samples of a series, milliseconds.
    pub sample_ms: u64,
    /// The comparisons that the report makes.
    pub comparisons: Vec<Comparison>,
    /// Figures from papers, which the report shows beside the measured ones.
    pub paper: Vec<PaperFigure>,
}

/// A figure of a paper, in words.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PaperFigure {
    /// Paper and figure or section: "CCP, section 7.2, figure 6".
    pub source: String,
    /// The statement of the paper.
    pub says: String,
}

/// One contender's figure against another's: the ratio of their means over runs of the same repeat.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Comparison {
    pub metric: Metric,
    pub of: String,
    /// The name of the one that it is compared with; empty with a constant.
    pub against: String,
    /// The figure that it is compared with in place of another contender's, in the metric's unit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub constant: Option<u64>,
    /// In this scenario only; `None`: in each.
    pub scenario: Option<String>,
    /// All scenarios' runs in one figure, rather than one for each.
    #[serde(default)]
    pub together: bool,
    /// Largest allowed |ratio - 1|, millionths.
    pub within_ppm: Option<u64>,
    /// Largest allowed ratio, millionths.
    pub at_most_ppm: Option<u64>,
    /// Smallest allowed ratio, millionths.
    pub at_least_ppm: Option<u64>,
    /// The same figure in a paper, in words: "CCP: 30 % more".
    pub paper: Option<String>,
}

impl Comparison {
    /// Compares two contenders in every scenario, without limits.
    #[must_use]
    pub fn new(metric: Metric, of: &str, against: &str) -> Comparison {
        Comparison {
            metric,
            of: of.to_owned(),
            against: against.to_owned(),
            constant: None,
            scenario: None,
            together: false,
            within_ppm: None,
            at_most_ppm: None,
            at_least_ppm: None,
            paper: None,
        }
    }
}

/// A quantity that contenders can be compared by.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Metric {
    /// Payload acknowledged per second after the warm-up, all flows together, bits per second.
    ThroughputBps,
    /// Standard deviation of that over time, in steps of half a second, bits per second.
    ThroughputDeviationBps,
    /// Mean of the flows' RTT samples, microseconds.
    MeanRttUs,
    /// 95th percentile of the flows' RTT samples, microseconds.
    P95RttUs,
    /// Mean time that packets spent in the bottleneck's queue, microseconds.
    MeanQueueUs,
    /// 95th percentile of that, microseconds.
    P95QueueUs,
    /// Share of the link's capacity used, millionths.
    UtilisationPpm,
    /// Share of packets that the link dropped or lost, millionths.
    LossPpm,
    /// Jain's index of the flows' throughputs while all of them run, millionths.
    JainPpm,
    /// A contender's flow's throughput against the mean of all flows', background included, while all of them run, millionths.
    FairSharePpm,
    /// Median completion time of short flows, microseconds.
    FctP50Us,
    /// 95th percentile of completion times, microseconds.
    FctP95Us,
    /// 99th percentile of completion times, microseconds.
    FctP99Us,
    /// Median completion time of flows of more than 1 MB, microseconds.
    FctLargeP50Us,
    /// Processor time per gigabyte of payload acknowledged, microseconds: the whole machine's, idle time not counted.
    CpuUsPerGbyte,
    /// Share of the whole machine's time that went into soft interrupts, millionths.
    SoftirqPpm,
    /// Mean of [`Stretch::reward_ppm`] over time: of the oracle's reward, millionths.
    RewardPpm,
    /// Mean time from a change of the link to 90 % of the oracle's reward, microseconds; a stretch in which that was not
    /// reached counts with its length.
    AdaptationUs,
    /// Mean time from the last rival's end until the queue is short for a second, microseconds; the rest of a flow in which it never
    /// is counts whole.
    ShortQueueUs,
}

/// A link and what runs over it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Scenario {
    /// Unique in the file.
    pub name: String,
    /// The values that a sweep gave it, by the plan's key: `link.rate_mbit` -> `24`.
    pub parameters: BTreeMap<String, String>,
    pub link: LinkRecord,
    /// Its traffic in words: "4 bulk flows, 5 s apart".
    pub traffic: String,
}

/// The bottleneck of a scenario.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct LinkRecord {
    /// In words: rate or trace, delay, queue, loss.
    pub description: String,
    /// Round-trip time of a packet that meets no queue, microseconds.
    pub base_rtt_us: Option<u64>,
    /// Largest IP packet, bytes.
    pub mtu_bytes: u64,
    /// Capacity over time: each value holds until the next one's time. Empty when it has no limit.
    pub capacity: Vec<Capacity>,
    /// Changes of the link during a run, in order of time.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub changes: Vec<Change>,
}

/// A link from a moment on.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Change {
    /// The start of this capacity, milliseconds.
    pub t_ms: u64,
    /// In words: what changed.
    pub description: String,
    /// Round-trip time of a packet that meets no queue, from then on, microseconds.
    pub base_rtt_us: u64,
}

/// A link's capacity from a moment on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Capacity {
    /// The time of the change, milliseconds.
    pub t_ms: u64,
    /// Bits per second, of IP packets.
    pub capacity_bps: u64,
}

/// An algorithm on a datapath with its parameters.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Contender {
    /// Unique in plan and file: "reno in the kernel's program".
    pub name: String,
    /// "reno", "cubic" ...: the kernel's own for [`Datapath::Kernel`], else one of ours.
    pub algorithm: String,
    /// The datapath of its flows.
    pub datapath: Datapath,
    /// Parameters of the algorithm that the plan sets.
    pub parameters: BTreeMap<String, i64>,
    /// Whether the agent improves its policies while its flows run.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub learning: bool,
}

impl Contender {
    /// Whether it is the same algorithm, of the same parameters and learning alike: on another datapath, if on any other.
    pub fn is_same_algorithm(&self, other: &Contender) -> bool {
        (&self.algorithm, &self.parameters, self.learning)
            == (&other.algorithm, &other.parameters, other.learning)
    }
}

/// The datapath that carries a contender's flows and decides their windows.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Datapath {
    /// The kernel's own algorithm: the baseline.
    Kernel,
    /// A fold program compiled into the kernel.
    Ebpf,
    /// The same fold program, interpreted by the kernel module.
    Module,
    /// The same fold program in the virtual-time simulator.
    Sim,
    /// The same fold program under QUIC, over UDP sockets.
    Quic,
    /// The same, over DPDK ports.
    Dpdk,
}

impl Datapath {
    /// Returns the name in plans and reports.
    pub fn name(self) -> &'static str {
        match self {
            Datapath::Kernel => "kernel",
            Datapath::Ebpf => "ebpf",
            Datapath::Module => "module",
            Datapath::Sim => "sim",
            Datapath::Quic => "quic",
            Datapath::Dpdk => "dpdk",
        }
    }
}

/// The machine and software of the runs.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Host {
    /// Kernel release and machine, as `uname` names them.
    pub kernel: String,
    /// Processors, and their model.
    pub processors: String,
    /// The sysctls that matter to TCP, as they were.
    pub sysctls: BTreeMap<String, String>,
    pub version: String,
    /// The commit of the source that ran; empty when unknown.
    pub git_commit: String,
    pub command: String,
    /// When it started: RFC 3339, UTC.
    pub started_at: String,
}

/// One contender in one scenario, once.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Run {
    pub scenario: String,
    pub contender: String,
    /// The number of the repeat, from 0.
    pub repeat: u32,
    /// Counts from 1; a failed run is tried once more.
    pub attempt: u32,
    /// Decided the losses and the traffic; the same for every contender of one repeat.
    pub seed: u64,
    /// When it started: RFC 3339, UTC.
    pub started_at: String,
    /// The real time that it took, milliseconds.
    pub wall_ms: u64,
    #[serde(flatten)]
    pub outcome: RunOutcome,
}

/// The outcome of a run: figures, or the reason of its failure.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(tag = "status", rename_all = "kebab-case")]
pub enum RunOutcome {
    /// The run ended well.
    Ok(Box<RunFigures>),
    /// The run failed.
    Failed { error: String },
}

/// The figures of a run.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct RunFigures {
    /// The data's direction of the bottleneck, from the end of the warm-up on; `None` where the link has no bottleneck.
    pub link: Option<LinkUse>,
    /// Long flows, in order of their start. Empty when there are short ones only.
    pub flows: Vec<FlowResult>,
    /// The time between two changes of the link, in order; empty where it does not change.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stretches: Vec<Stretch>,
    /// The completion times of short flows.
    pub completions: Option<Completions>,
    /// Those of short flows beside the contender's; `None` where there are none, and for live runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub background_completions: Option<Completions>,
    /// The datagrams beside the contender's flows, by source; empty for live runs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub datagrams: Vec<DatagramsUse>,
    /// The flows between the hosts of a fabric; `None` where there is a link.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fabric: Option<FabricFlows>,
    /// The whole machine's processor time; `None` in the simulator.
    pub cpu: Option<Cpu>,
    /// The agent's counters; `None` without an agent.
    pub agent: Option<AgentUse>,
    /// The client's report of iperf3, as it printed it; `None` where it was not used.
    pub iperf3: Option<serde_json::Value>,
    /// Remarks on the run for the reader.
    pub notes: Vec<String>,
}

/// The packets and bytes that a link carried.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct LinkUse {
    /// Share of its capacity used, millionths.
    pub utilisation_ppm: u64,
    /// Packets that left the link.
    pub departed_pkts: u64,
    /// Packets that the queue had no room for, or that it dropped to signal.
    pub dropped_pkts: u64,
    /// Packets lost at random.
    pub lost_pkts: u64,
    /// Packets that it marked with CE.
    pub marked_pkts: u64,
    /// Time that packets spent in the queue, microseconds.
    pub queue_delay_us: Percentiles,
}

/// A time in which the link is as it is, and how the contender's flows did in it. The reward is the share of the capacity
/// used times (base RTT / RTT)^0.4, both RTTs 2 ms longer: Aurora's scale-free reward as a factor, but for its term for
/// losses, which do not count here. The oracle uses the whole capacity without a queue: 1.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Stretch {
    /// From when, milliseconds since the run's start.
    pub from_ms: u64,
    /// The end of the time, milliseconds.
    pub to_ms: u64,
    /// Mean reward, of the oracle's, millionths.
    pub reward_ppm: u64,
    /// From its start until the reward stays at 90 % of the oracle's or above for a second, milliseconds; `None` if it
    /// never does.
    pub reached_ms: Option<u64>,
}

/// The mean and percentiles of a distribution.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Percentiles {
    pub mean: u64,
    pub p50: u64,
    pub p95: u64,
    pub p99: u64,
}

/// A bulk flow with its figures and series.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct FlowResult {
    /// Unique in the run.
    pub name: String,
    /// Whether it is the contender's; else it is background traffic, of this algorithm.
    pub background: Option<String>,
    /// Start, milliseconds since the run's.
    pub start_ms: u64,
    /// End, milliseconds since the run's start.
    pub end_ms: u64,
    /// Payload acknowledged, bytes, warm-up included.
    pub acked_bytes: u64,
    /// Payload acknowledged per second from the warm-up's end, or the flow's start if that is later, bits per second.
    pub throughput_bps: u64,
    /// RTT samples after the warm-up, microseconds.
    pub rtt_us: Percentiles,
    /// Smallest round-trip time, microseconds; 0 if none was measured.
    pub min_rtt_us: u64,
    /// Packets that the sender took for lost.
    pub lost_pkts: u64,
    /// Retransmitted packets.
    pub retransmitted_pkts: u64,
    /// The flow over time.
    pub series: Series,
    /// The algorithm's own states, each until the next one; empty where it has none or they were not observed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub states: Vec<StateChange>,
}

/// The state that a flow's algorithm reports from a moment on.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct StateChange {
    /// Milliseconds since the run's start.
    pub t_ms: u64,
    /// Two or three words: "short queue", "competes".
    pub state: String,
}

/// A flow over time: columns of the same length.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Series {
    /// Milliseconds since the run's start.
    pub t_ms: Vec<u64>,
    /// Payload delivered since the sample before, bits per second.
    pub throughput_bps: Vec<u64>,
    /// Smoothed round-trip time, microseconds; 0 before the first measurement.
    pub srtt_us: Vec<u64>,
    pub cwnd_pkts: Vec<u64>,
    /// Pacing rate, bits per second; 0 when the flow is not paced.
    pub pacing_bps: Vec<u64>,
}

/// Short flows: those that completed, and how many did not.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Completions {
    /// The name of the distribution of sizes, such as "web-search" or "data-mining".
    pub distribution: String,
    /// Those that completed, in order of their start.
    pub flows: Vec<Completion>,
    /// Started and not completed by the run's end.
    pub unfinished: u64,
}

/// The datagrams of one source.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct DatagramsUse {
    /// Packets that were sent.
    pub sent: u64,
    /// Those that reached the other end.
    pub delivered: u64,
}

/// A short flow that completed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Completion {
    /// When it was asked for, microseconds since the run's start.
    pub start_us: u64,
    /// The payload, bytes.
    pub bytes: u64,
    /// From then until the receiver had all of it, microseconds.
    pub fct_us: u64,
}

/// Flows between the hosts of a fabric, in order of their start: columns of the same length.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct FabricFlows {
    /// Payload, bytes.
    pub bytes: Vec<u64>,
    /// From the start until the last byte was acknowledged, nanoseconds; of one that did not end, until the run's end.
    pub fct_ns: Vec<u64>,
    /// Indices of the flows that did not end.
    pub unfinished: Vec<u64>,
    /// Packets that queues dropped.
    pub dropped_pkts: u64,
}

/// The machine's processor time during a run, milliseconds, all processors together.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Cpu {
    /// Time in user space, milliseconds.
    pub user_ms: u64,
    /// In the kernel, interrupts included.
    pub system_ms: u64,
    /// Part of `system_ms`: soft interrupts.
    pub softirq_ms: u64,
    /// Time idle or waiting for I/O, milliseconds.
    pub idle_ms: u64,
}

/// The agent's counters of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct AgentUse {
    /// Reports that it received.
    pub reports: u64,
    /// Saturations and divisions by zero in its flows' programs.
    pub faults: u64,
    /// Flows that a poll found without the program that they should have run.
    pub unsteered_flows: u64,
}
