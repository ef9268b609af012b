//! A plan that was checked.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use ccplane_netsim::trace::Trace;
use ccplane_netsim::workload::FlowSizes;
use ccplane_netsim::{self as netsim, CrossConfig, CrossPattern, Ingress};
use ccplane_results::{Comparison, Contender, Datapath, PaperFigure};

use super::number::decimal;

/// A valid plan. Only [`Plan::parse`](super::Plan::parse) makes one, so every number is within its range.
#[derive(Clone, PartialEq, Debug)]
pub struct Plan {
    /// The file's name without `.toml`.
    pub name: String,
    /// The heading of the report.
    pub title: String,
    /// The report's first paragraph.
    pub about: String,
    /// The whole text of the plan's file.
    pub source: String,
    /// Length of a run, milliseconds.
    pub duration_ms: u64,
    /// Time at a run's start that figures leave out, milliseconds; less than `duration_ms`.
    pub warmup_ms: u64,
    /// Between samples of a series, milliseconds.
    pub sample_ms: u64,
    /// Times that each contender runs in each scenario.
    pub repeats: u32,
    /// Whether a scenario's contenders run at the same time, each over a link of its own, and are shown while they do.
    pub at_once: bool,
    /// The seed from which every run's seed follows.
    pub seed: u64,
    /// At least one; names are unique.
    pub scenarios: Vec<Scenario>,
    /// At least one; names are unique.
    pub contenders: Vec<Contender>,
    /// The comparisons that the report makes.
    pub comparisons: Vec<Comparison>,
    /// Contenders whose datapath is not there: without the feature `dpdk`, those over DPDK.
    pub left_out: Vec<Contender>,
    /// Figures from papers, which the report shows beside the measured ones.
    pub paper: Vec<PaperFigure>,
}

/// A link and what crosses it.
#[derive(Clone, PartialEq, Debug)]
pub struct Scenario {
    /// Unique in the plan.
    pub name: String,
    /// The values that a sweep set, by the plan's key.
    pub parameters: BTreeMap<String, String>,
    pub link: PlanLink,
    /// The traffic of each contender.
    pub traffic: Traffic,
    /// When the first of the contender's bulk flows starts, milliseconds.
    pub start_ms: u64,
    /// Extra delay of data packets before the link for each bulk flow, microseconds. The list repeats; only simulated
    /// flows have it.
    pub extra_delays_us: Vec<u64>,
    /// The rest of what each bulk flow has for itself; only simulated flows have it.
    pub own_paths: OwnPaths,
    /// Whether the contender's flows set ECT(0), so that queues may mark them (RFC 3168); only simulated flows do.
    pub ecn: bool,
    /// Bulk flows that run beside every contender.
    pub background: Vec<Background>,
    /// Short flows of others at the same time; simulated only.
    pub short: Vec<ShortBackground>,
    /// Datagrams that cross the link at the same time, whatever becomes of them.
    pub datagrams: Vec<Datagrams>,
    /// Settings of simulated contenders.
    pub simulator: Simulator,
}

/// Ways and receivers of the contender's single bulk flows; lists repeat, and the default adds nothing.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct OwnPaths {
    /// Largest further delay of data packets before the link, drawn for each packet, microseconds; packets stay in order.
    pub jitters_us: Vec<u64>,
    /// The interval at which acknowledgements are released together, microseconds.
    pub aggregated_acks_us: Vec<u64>,
    /// Segments that one acknowledgement waits for; `None` as Linux.
    pub ack_every: Option<u8>,
    /// Whether receivers acknowledge what never arrived.
    pub conceals_losses: bool,
}

/// Settings of the simulator that the kernel decides by itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Simulator {
    /// From a report to the agent's update, microseconds.
    pub agent_latency_us: u64,
    /// Least that retransmission timeouts exceed the RTT by, microseconds.
    pub min_rto_us: u32,
    /// Whether senders are as Linux's, with trains for segmentation offload, and constant rates as the emulator's, in opportunities.
    pub emulated: bool,
}

/// A link. The data's direction has the bottleneck; acknowledgements come back with the same delay, unhindered unless
/// `way_back` says otherwise.
#[derive(Clone, PartialEq, Debug)]
pub struct PlanLink {
    pub medium: Medium,
    /// The medium of what comes back.
    pub way_back: Medium,
    pub return_queue: Queue,
    /// Probability that an acknowledgement is lost, millionths.
    pub return_loss_ppm: u32,
    /// Propagation delay of each direction, microseconds.
    pub delay_us: u64,
    pub queue: Queue,
    /// Probability that a data packet is lost, millionths.
    pub loss_ppm: u32,
    /// Impairments of data packets.
    pub impairments: Impairments,
    /// Changes of the link during a run, in order of time.
    pub changes: Vec<Change>,
}

impl PlanLink {
    /// The link after all changes up to `at_ms`.
    #[must_use]
    pub fn at(&self, at_ms: u64) -> PlanLink {
        let mut link = self.clone();
        for change in self.changes.iter().take_while(|c| c.at_ms <= at_ms) {
            link.medium = change.bit_per_s.map_or(link.medium, Medium::Rate);
            link.delay_us = change.delay_us.unwrap_or(link.delay_us);
            link.loss_ppm = change.loss_ppm.unwrap_or(link.loss_ppm);
        }
        link
    }
}

/// A change of a link at a moment; values that are `None` stay as they are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Change {
    /// When, milliseconds since the run's start.
    pub at_ms: u64,
    /// The rate at which it delivers from then on, bits per second.
    pub bit_per_s: Option<u64>,
    /// Propagation delay of each direction, microseconds.
    pub delay_us: Option<u64>,
    /// Probability that a data packet is lost, millionths.
    pub loss_ppm: Option<u32>,
}

/// Impairments of data packets beside random loss; the default has none.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Impairments {
    pub burst_loss: Option<BurstLoss>,
    /// Largest extra delay, microseconds; packets stay in order.
    pub jitter_us: u64,
    /// Probability that a packet is held back so that others overtake it, millionths.
    pub reorder_ppm: u32,
    /// For how long, microseconds.
    pub reorder_us: u64,
    /// Probability that a packet comes twice, millionths.
    pub duplicate_ppm: u32,
    /// A token bucket that drops what exceeds it.
    pub policer: Option<Policer>,
}

impl Impairments {
    /// Returns the impairments as the simulated network takes them.
    #[must_use]
    pub fn simulated(self) -> Ingress {
        let burst_loss = |burst: BurstLoss| {
            let (to_bad_ppm, to_good_ppm) = burst.chances_ppm();
            let loss_bad_ppm = netsim::workload::PPM;
            netsim::BurstLoss { to_bad_ppm, to_good_ppm, loss_good_ppm: 0, loss_bad_ppm }
        };
        let policer = |p: Policer| netsim::Policer { bit_per_s: p.bit_per_s, burst_bytes: p.burst_bytes };
        let reorder = netsim::Reorder { ppm: self.reorder_ppm, hold_ns: self.reorder_us * 1000 };
        Ingress {
            duplicate_ppm: self.duplicate_ppm,
            burst_loss: self.burst_loss.map(burst_loss),
            policer: self.policer.map(policer),
            jitter_ns: self.jitter_us * 1000,
            reorder: (self.reorder_ppm > 0).then_some(reorder),
        }
    }
}

/// Losses in bursts of a mean length, in which every packet is lost (Gilbert 1960).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BurstLoss {
    /// Share of all packets that is lost, millionths, below half.
    pub share_ppm: u32,
    /// Mean length of a burst, packets.
    pub packets: u32,
}

impl BurstLoss {
    /// The chance that a burst begins with a packet, and that it ends with one, millionths.
    #[must_use]
    pub fn chances_ppm(self) -> (u32, u32) {
        let end = 1_000_000 / self.packets.max(1);
        let share = u64::from(self.share_ppm.min(MAX_BURST_SHARE_PPM));
        let begin = u64::from(end) * share / (1_000_000 - share);
        (begin as u32, end)
    }
}

/// Most of all packets that are lost in bursts.
pub(super) const MAX_BURST_SHARE_PPM: u32 = 500_000;

/// A token bucket in front of the link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Policer {
    /// Its rate, bits per second.
    pub bit_per_s: u64,
    /// The depth of its bucket, bytes.
    pub burst_bytes: u64,
}

/// The media by which a direction of a link delivers.
#[derive(Clone, PartialEq, Debug)]
pub enum Medium {
    /// A pair of virtual Ethernet devices: as fast as the machine, no emulator in between.
    Veth,
    /// An emulated link that delivers at once.
    Unlimited,
    /// Emulated, at a constant rate, bits per second.
    Rate(u64),
    /// Emulated, as a trace says, over and over.
    Trace {
        /// The name in the plan.
        name: String,
        trace: Trace,
    },
}

impl Medium {
    /// Mean rate, bits per second; `None` without a limit.
    #[must_use]
    pub fn rate_bit_per_s(&self) -> Option<u64> {
        match self {
            Medium::Veth | Medium::Unlimited => None,
            Medium::Rate(bit_per_s) => Some(*bit_per_s),
            Medium::Trace { trace, .. } => Some(trace.mean_rate_bit_per_s()),
        }
    }
}

/// The queue at a bottleneck, with its limits.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Queue {
    pub discipline: Discipline,
    pub packets: Option<u32>,
    pub bytes: Option<u64>,
    /// Whether CoDel or PIE marks packets of flows that set ECT rather than drops them; only simulated queues do.
    pub marks: bool,
}

/// The rule by which a queue drops packets.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Discipline {
    /// Drops packets that arrive at a full queue.
    #[default]
    DropTail,
    /// The oldest when it is full.
    DropHead,
    /// Packets are dropped as CoDel drops them (RFC 8289).
    Codel {
        /// Acceptable standing delay, microseconds.
        target_us: u64,
        /// The time for which it may be exceeded, microseconds.
        interval_us: u64,
    },
    /// Packets are dropped as PIE drops them (RFC 8033).
    Pie {
        /// The delay that the queue is held to, microseconds.
        target_us: u64,
        /// The length of a burst that passes untouched, microseconds.
        max_burst_us: u64,
    },
}

impl fmt::Display for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = |us: u64| decimal(us, 1000);
        let packets = self.packets.map(|n| format!("{n} packets"));
        let limits: Vec<String> =
            packets.into_iter().chain(self.bytes.map(|n| format!("{n} bytes"))).collect();
        match self.discipline {
            Discipline::DropTail if limits.is_empty() => return f.write_str("infinite queue"),
            Discipline::DropTail => f.write_str("droptail queue")?,
            Discipline::DropHead => f.write_str("drophead queue")?,
            Discipline::Codel { target_us, interval_us } => {
                write!(f, "CoDel {} ms / {} ms", ms(target_us), ms(interval_us))?;
            }
            Discipline::Pie { target_us, max_burst_us } => {
                write!(f, "PIE {} ms, bursts of {} ms", ms(target_us), ms(max_burst_us))?;
            }
        }
        let marks = if self.marks { ", marking," } else { "" };
        write!(f, "{marks} of {}", limits.join(" and "))
    }
}

/// The traffic of a contender.
#[derive(Clone, PartialEq, Debug)]
pub enum Traffic {
    /// Flows that always have more to send.
    Bulk {
        flows: u32,
        /// Between the starts of two, milliseconds.
        stagger_ms: u64,
        tool: Tool,
    },
    /// Flows of random sizes that arrive as a Poisson process.
    ShortFlows {
        sizes: FlowSizes,
        /// Share of the link's mean rate that they ask for, millionths.
        load_ppm: u32,
    },
    /// A number of flows of the same size that start at the same moment, again and again.
    Incast {
        senders: u32,
        /// The size of each flow, bytes.
        bytes: u64,
        /// Between two such moments, microseconds.
        every_us: u64,
    },
}

/// The sender of bulk flows in the kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Tool {
    /// Sockets of this process.
    Native,
    Iperf3,
}

/// Bulk flows of another algorithm that compete with every contender's.
#[derive(Clone, PartialEq, Debug)]
pub struct Background {
    pub algorithm: String,
    /// The datapath of these flows beside contenders in the kernel; beside simulated contenders they are simulated.
    pub datapath: Datapath,
    /// Parameters that the plan sets.
    pub parameters: BTreeMap<String, i64>,
    pub flows: u32,
    /// When they start, milliseconds.
    pub start_ms: u64,
    /// When they stop, milliseconds.
    pub stop_ms: u64,
}

/// Short flows of an algorithm that compete with every contender's.
#[derive(Clone, PartialEq, Debug)]
pub struct ShortBackground {
    pub algorithm: String,
    /// Parameters that the plan sets.
    pub parameters: BTreeMap<String, i64>,
    pub sizes: FlowSizes,
    /// Share of the link's mean rate that they ask for, millionths.
    pub load_ppm: u32,
    /// When they start, milliseconds.
    pub start_ms: u64,
    /// When those left stop, milliseconds.
    pub stop_ms: u64,
}

/// Packets without congestion control that cross the data's direction (UDP).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Datagrams {
    /// While they are sent, bits per second of IP packets.
    pub bit_per_s: u64,
    /// They come at equal distances; with periods, in on periods only.
    pub periods: Option<Periods>,
    /// When they start, milliseconds.
    pub start_ms: u64,
    /// When they stop, milliseconds.
    pub stop_ms: u64,
}

impl Datagrams {
    /// The source, in the simulator's terms; in the kernel the same packets leave at the same times.
    pub(crate) fn source(&self) -> CrossConfig {
        let pattern = match self.periods {
            Some(p) => CrossPattern::OnOff { on_ns: p.on_us * 1000, off_ns: p.off_us * 1000 },
            None => CrossPattern::Constant,
        };
        CrossConfig {
            pattern,
            start_ns: self.start_ms * 1_000_000,
            end_ns: self.stop_ms * 1_000_000,
            ..CrossConfig::new(vec![0], self.bit_per_s)
        }
    }
}

/// Periods of exponentially distributed length.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Periods {
    /// Mean of those in which something is sent, microseconds.
    pub on_us: u64,
    /// Mean of those in which nothing is, microseconds.
    pub off_us: u64,
}

/// In words: rate or trace, delay, queue, loss.
impl fmt::Display for PlanLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.medium {
            Medium::Veth => return f.write_str("veth pair, not emulated"),
            medium => write!(f, "{medium}, {} ms each way, ", decimal(self.delay_us, 1000))?,
        }
        write!(f, "{}", self.queue)?;
        if self.loss_ppm > 0 {
            write!(f, ", {} % loss", decimal(self.loss_ppm.into(), 10_000))?;
        }
        write!(f, "{}", self.impairments)?;
        match &self.way_back {
            Medium::Unlimited | Medium::Veth => {}
            medium => write!(f, ", back {medium}, {}", self.return_queue)?,
        }
        if self.return_loss_ppm > 0 {
            write!(f, ", {} % of what comes back lost", decimal(self.return_loss_ppm.into(), 10_000))?;
        }
        self.changes.iter().try_for_each(|change| write!(f, "; {change}"))
    }
}

/// "from 10 s on 12 Mb/s, 40 ms each way".
impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rate = self.bit_per_s.map(|rate| format!("{} Mb/s", decimal(rate, 1_000_000)));
        let delay = self.delay_us.map(|us| format!("{} ms each way", decimal(us, 1000)));
        let loss = self.loss_ppm.map(|ppm| format!("{} % loss", decimal(ppm.into(), 10_000)));
        let parts: Vec<String> = [rate, delay, loss].into_iter().flatten().collect();
        write!(f, "from {} s on {}", decimal(self.at_ms, 1000), parts.join(", "))
    }
}

/// Each after a comma; nothing if there is none.
impl fmt::Display for Impairments {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (ms, percent) = (|us: u64| decimal(us, 1000), |ppm: u32| decimal(ppm.into(), 10_000));
        if let Some(BurstLoss { share_ppm, packets }) = self.burst_loss {
            write!(f, ", {} % lost in bursts of {packets}", percent(share_ppm))?;
        }
        if self.jitter_us > 0 {
            write!(f, ", jitter to {} ms", ms(self.jitter_us))?;
        }
        if self.reorder_ppm > 0 {
            write!(f, ", {} % held back {} ms", percent(self.reorder_ppm), ms(self.reorder_us))?;
        }
        if self.duplicate_ppm > 0 {
            write!(f, ", {} % twice", percent(self.duplicate_ppm))?;
        }
        if let Some(Policer { bit_per_s, burst_bytes }) = self.policer {
            write!(f, ", policed to {} Mb/s, bursts of {burst_bytes} bytes", decimal(bit_per_s, 1_000_000))?;
        }
        Ok(())
    }
}

impl fmt::Display for Medium {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Medium::Veth => f.write_str("veth pair"),
            Medium::Unlimited => f.write_str("no limit"),
            Medium::Rate(bit_per_s) => write!(f, "{} Mb/s", decimal(*bit_per_s, 1_000_000)),
            Medium::Trace { name, .. } => {
                let file = Path::new(name).file_name().map_or(name.into(), |file| file.to_string_lossy());
                write!(f, "trace {file}")
            }
        }
    }
}
