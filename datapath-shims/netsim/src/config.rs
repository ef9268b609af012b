//! The configuration of a network, and its limits.

use crate::packet::{MAX_HOPS, MAX_ROUTES};
use crate::trace::Trace;

/// Fastest link, bits per second.
pub const MAX_RATE_BIT_PER_S: u64 = 1_000_000_000_000;
/// Longest delay of a link or of a return path, nanoseconds.
pub const MAX_DELAY_NS: u64 = 60_000_000_000;
/// Longest queue, packets; also bounds one that is configured in bytes.
pub const MAX_QUEUE_PACKETS: u32 = 1 << 20;
/// Links of one network.
pub const MAX_LINKS: usize = 256;
/// Flows of one network.
pub const MAX_FLOWS: usize = 1 << 20;
/// Bytes that a link may add to a packet.
pub const MAX_OVERHEAD_BYTES: u16 = 1024;
/// Largest bucket of a policer, bytes.
pub const MAX_POLICER_BYTES: u64 = 1 << 30;
/// Segments that one ACK may wait for.
pub const MAX_ACK_EVERY: u8 = 64;
/// A loss probability of 1.
pub const PPM: u32 = 1_000_000;

/// The speeds at which a link serves.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Capacity {
    /// A constant rate; a packet departs when its last bit was served.
    Rate {
        /// Bits per second, wire bytes counted.
        bit_per_s: u64,
    },
    /// Delivery opportunities of 1504 bytes at equal distances, whether they are used or not, as the emulator's constant rates:
    /// a packet that arrives waits in the queue for its own.
    Slots {
        /// Bits per second, wire bytes and overhead counted.
        bit_per_s: u64,
    },
    /// Delivery opportunities of a mahimahi trace. Packets may span opportunities; what an opportunity has left
    /// when the queue runs empty is lost; a packet can't use an opportunity of the millisecond it arrives in.
    Trace {
        trace: Trace,
        /// Whether the trace starts over at its end; else the link is dead from then on.
        repeat: bool,
    },
}

/// The limits at which a queue ends. On a link of constant rate the packet in service is not in the
/// queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum QueueLimit {
    /// Packets, at least 1.
    Packets(u32),
    /// Wire bytes, at least one packet's worth to be of use.
    Bytes(u64),
}

/// The rule by which a queue drops or marks packets, before it is full and when it is. A mark needs a flow that
/// [understands it](PathConfig::ecn); other flows' packets are dropped where CoDel and PIE would mark.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub enum Discipline {
    /// Drops what arrives at a full queue.
    #[default]
    DropTail,
    /// Drops the oldest packets to make room.
    DropHead,
    /// Marks what arrives when this much waits; drops at the tail (DCTCP, SIGCOMM 2010, section 3.1).
    EcnThreshold {
        /// The length from which packets are marked, the paper's K.
        mark_at: QueueLimit,
    },
    /// Serves packets of the smallest priority first, in order within each; a packet that finds the queue full takes the
    /// place of the last one of a larger priority, if there is one.
    StrictPriority {
        /// The length of the whole queue from which packets are marked; `None` marks none.
        mark_at: Option<QueueLimit>,
    },
    /// Controls the delay as CoDel does (RFC 8289).
    Codel {
        /// Acceptable standing delay, nanoseconds.
        target_ns: u64,
        /// The time for which it may be exceeded, nanoseconds.
        interval_ns: u64,
        /// Whether to mark packets rather than drop them.
        ecn: bool,
    },
    /// PIE (RFC 8033), with delays taken from packets that leave.
    Pie {
        /// The delay that the queue is held to, nanoseconds.
        target_ns: u64,
        /// The length of a burst that passes untouched, nanoseconds.
        max_burst_ns: u64,
        /// Whether to mark packets rather than drop them while the probability is below a tenth.
        ecn: bool,
    },
}

impl Discipline {
    /// CoDel as RFC 8289 section 4.2 and 4.3 set it: 5 ms over 100 ms, dropping.
    pub const CODEL: Discipline =
        Discipline::Codel { target_ns: 5_000_000, interval_ns: 100_000_000, ecn: false };
    /// PIE as RFC 8033 section 4 sets it: 15 ms, bursts of 150 ms, dropping.
    pub const PIE: Discipline =
        Discipline::Pie { target_ns: 15_000_000, max_burst_ns: 150_000_000, ecn: false };
}

/// A time in which a link serves nothing. What is in service waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Outage {
    /// The start, nanoseconds.
    pub from_ns: u64,
    /// The end, nanoseconds.
    pub until_ns: u64,
}

/// The rate, delay, queue and impairments of a link.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LinkConfig {
    /// The speed at which it serves.
    pub capacity: Capacity,
    /// One-way propagation delay behind the queue, nanoseconds.
    pub delay_ns: u64,
    /// Largest extra delay of a packet, drawn uniformly for each, nanoseconds. Packets stay in order.
    pub jitter_ns: u64,
    /// Probability, in millionths, that a packet is lost before it reaches the queue.
    pub loss_ppm: u32,
    /// The limit at which the queue ends.
    pub queue: QueueLimit,
    pub discipline: Discipline,
    /// Bytes that a packet costs this link beside its own, such as 4 for mahimahi's TUN header.
    pub overhead_bytes: u16,
    /// When it serves nothing: in order of time, apart from each other.
    pub outages: Vec<Outage>,
    /// Further impairments of packets before the queue.
    pub ingress: Ingress,
}

/// Impairments of packets before a link's queue, beside their independent loss; the default has none.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Ingress {
    /// Probability that a packet comes twice, millionths.
    pub duplicate_ppm: u32,
    pub burst_loss: Option<BurstLoss>,
    /// Drops what exceeds a rate.
    pub policer: Option<Policer>,
    /// Largest extra delay of a packet, drawn uniformly for each, nanoseconds. Packets stay in order.
    pub jitter_ns: u64,
    /// Packets that others overtake.
    pub reorder: Option<Reorder>,
}

/// Losses in bursts (Gilbert 1960, Elliott 1963): two states, either of which loses packets independently. It begins good.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BurstLoss {
    /// Probability to turn bad, for each packet in the good state, millionths.
    pub to_bad_ppm: u32,
    /// Probability to turn good, for each packet in the bad state, millionths, above 0.
    pub to_good_ppm: u32,
    /// Probability to lose a packet in the good state, millionths.
    pub loss_good_ppm: u32,
    /// Probability to lose a packet in the bad state, millionths.
    pub loss_bad_ppm: u32,
}

/// A token bucket that drops what exceeds it, and delays nothing. It begins full.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Policer {
    /// Tokens per second, bits.
    pub bit_per_s: u64,
    /// The bucket's size, bytes.
    pub burst_bytes: u64,
}

/// Packets held back, so that later ones overtake them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reorder {
    /// Probability that a packet is held back, millionths.
    pub ppm: u32,
    /// For how long, nanoseconds.
    pub hold_ns: u64,
}

/// A change of a link at run time; values that are `None` stay as they are.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LinkChange {
    /// Its rate from the next packet on, bits per second; links that follow a trace have none.
    pub bit_per_s: Option<u64>,
    /// Its propagation delay, nanoseconds. Packets stay in order: after a shorter one they wait for those under way.
    pub delay_ns: Option<u64>,
    /// Probability that a packet is lost before it reaches the queue, millionths.
    pub loss_ppm: Option<u32>,
}

/// The way in which a receiver acknowledges.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Acks {
    /// Segments that one ACK waits for, of the largest size seen; 1: each is acknowledged at once.
    pub every: u8,
    /// The longest time that it waits, nanoseconds.
    pub delay_ns: u64,
    /// ACKs that don't wait at a flow's start, and after it was idle.
    pub quick: u8,
    /// The interval at which ACKs are released together, nanoseconds; 0 releases each on its own.
    pub aggregate_ns: u64,
    /// Whether ACKs of a hole are Linux's: they name up to three blocks, and all but the first three of them wait for
    /// others. The wait is a twentieth of the round trip but at most a millisecond (`tcp_comp_sack_delay_ns`). And
    /// whether a segment by which the offered window grows is acknowledged at once, as by Linux (`tcp_grow_window`).
    pub compress: bool,
    /// Whether the receiver lies: it acknowledges what never arrived, so that its sender hears of no loss (Savage et al., CCR 1999,
    /// section 4.3: optimistic acknowledgements, here of holes only).
    pub conceals_losses: bool,
}

impl Acks {
    /// Each segment at once.
    pub const EACH: Acks =
        Acks { every: 1, delay_ns: 0, quick: 0, aggregate_ns: 0, compress: false, conceals_losses: false };
    /// Linux's way with bulk data: each second segment or after 40 ms (`TCP_DELACK_MIN`), but 16 at once at the
    /// start (`TCP_MAX_QUICKACKS`).
    pub const LINUX: Acks = Acks { every: 2, delay_ns: 40_000_000, quick: 16, ..Acks::EACH };
}

impl Default for Acks {
    fn default() -> Acks {
        Acks::LINUX
    }
}

/// The way of one flow, there and back.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PathConfig {
    /// Delay before the first link, nanoseconds.
    pub access_delay_ns: u64,
    /// Indices of the links that its packets cross, in order; at least one.
    pub links: Vec<u8>,
    /// The links of further routes, which [`Network::steer`](crate::Network::steer) numbers from 1.
    pub other_routes: Vec<Vec<u8>>,
    /// The way in which its receiver acknowledges.
    pub acks: Acks,
    /// Links that its acknowledgements cross, in order; none: their way is uncongested.
    pub return_links: Vec<u8>,
    /// Delay of the way back behind these, nanoseconds.
    pub return_delay_ns: u64,
    /// Whether its packets can be marked rather than dropped (ECT, RFC 3168).
    pub ecn: bool,
}

/// A configuration outside its limits.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// A number outside its range.
    #[error("{field} is {found}, allowed are {min}..={max}")]
    OutOfRange {
        /// The field, as the configuration spells it.
        field: &'static str,
        found: u64,
        min: u64,
        max: u64,
    },
    /// Outages that overlap or end before they start.
    #[error("outage {index} is out of order")]
    OutageOrder {
        /// The index of the value, from 0.
        index: usize,
    },
    /// The rate of a link that follows a trace cannot be changed.
    #[error("link {link} follows a trace: it has no bit_per_s to change")]
    NoRate { link: u8 },
    /// A path crosses a link that does not exist.
    #[error("link {found} does not exist, the network has {links}")]
    NoLink { found: u8, links: usize },
}

pub(crate) fn within(field: &'static str, found: u64, min: u64, max: u64) -> Result<(), ConfigError> {
    if (min..=max).contains(&found) {
        Ok(())
    } else {
        Err(ConfigError::OutOfRange { field, found, min, max })
    }
}

impl QueueLimit {
    fn check(self, packets: &'static str, bytes: &'static str) -> Result<(), ConfigError> {
        match self {
            QueueLimit::Packets(n) => within(packets, n.into(), 1, MAX_QUEUE_PACKETS.into()),
            QueueLimit::Bytes(n) => within(bytes, n, 1, u64::MAX),
        }
    }
}

impl LinkConfig {
    /// A droptail link without loss, jitter, overhead or outages.
    pub fn new(capacity: Capacity, delay_ns: u64, queue: QueueLimit) -> LinkConfig {
        LinkConfig {
            capacity,
            delay_ns,
            jitter_ns: 0,
            loss_ppm: 0,
            queue,
            discipline: Discipline::DropTail,
            overhead_bytes: 0,
            outages: Vec::new(),
            ingress: Ingress::default(),
        }
    }

    /// # Errors
    /// The first field outside its limits.
    pub fn check(&self) -> Result<(), ConfigError> {
        if let Capacity::Rate { bit_per_s } | Capacity::Slots { bit_per_s } = self.capacity {
            within("bit_per_s", bit_per_s, 1, MAX_RATE_BIT_PER_S)?;
        }
        within("delay_ns", self.delay_ns, 0, MAX_DELAY_NS)?;
        within("jitter_ns", self.jitter_ns, 0, MAX_DELAY_NS)?;
        within("loss_ppm", self.loss_ppm.into(), 0, PPM.into())?;
        within("overhead_bytes", self.overhead_bytes.into(), 0, MAX_OVERHEAD_BYTES.into())?;
        self.queue.check("queue packets", "queue bytes")?;
        self.ingress.check()?;
        match self.discipline {
            Discipline::DropTail | Discipline::DropHead => {}
            Discipline::EcnThreshold { mark_at } | Discipline::StrictPriority { mark_at: Some(mark_at) } => {
                mark_at.check("mark_at packets", "mark_at bytes")?;
            }
            Discipline::StrictPriority { mark_at: None } => {}
            Discipline::Codel { target_ns, interval_ns, .. } => {
                within("codel target_ns", target_ns, 1, MAX_DELAY_NS)?;
                within("codel interval_ns", interval_ns, target_ns, MAX_DELAY_NS)?;
            }
            Discipline::Pie { target_ns, max_burst_ns, .. } => {
                within("pie target_ns", target_ns, 1, MAX_DELAY_NS)?;
                within("pie max_burst_ns", max_burst_ns, 0, MAX_DELAY_NS)?;
            }
        }
        let mut free_from_ns = 0;
        for (index, outage) in self.outages.iter().enumerate() {
            if outage.from_ns < free_from_ns || outage.until_ns <= outage.from_ns {
                return Err(ConfigError::OutageOrder { index });
            }
            free_from_ns = outage.until_ns + 1;
        }
        Ok(())
    }
}

impl LinkChange {
    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        within("bit_per_s", self.bit_per_s.unwrap_or(1), 1, MAX_RATE_BIT_PER_S)?;
        within("delay_ns", self.delay_ns.unwrap_or(0), 0, MAX_DELAY_NS)?;
        within("loss_ppm", self.loss_ppm.unwrap_or(0).into(), 0, PPM.into())
    }
}

impl Ingress {
    fn check(&self) -> Result<(), ConfigError> {
        let share = |field, ppm: u32| within(field, ppm.into(), 0, PPM.into());
        share("duplicate_ppm", self.duplicate_ppm)?;
        within("ingress jitter_ns", self.jitter_ns, 0, MAX_DELAY_NS)?;
        if let Some(burst) = self.burst_loss {
            share("burst to_bad_ppm", burst.to_bad_ppm)?;
            within("burst to_good_ppm", burst.to_good_ppm.into(), 1, PPM.into())?;
            share("burst loss_good_ppm", burst.loss_good_ppm)?;
            share("burst loss_bad_ppm", burst.loss_bad_ppm)?;
        }
        if let Some(policer) = self.policer {
            within("policer bit_per_s", policer.bit_per_s, 1, MAX_RATE_BIT_PER_S)?;
            within("policer burst_bytes", policer.burst_bytes, 1, MAX_POLICER_BYTES)?;
        }
        if let Some(reorder) = self.reorder {
            share("reorder ppm", reorder.ppm)?;
            within("reorder hold_ns", reorder.hold_ns, 0, MAX_DELAY_NS)?;
        }
        Ok(())
    }
}

impl Acks {
    fn check(self) -> Result<(), ConfigError> {
        within("acks every", self.every.into(), 1, MAX_ACK_EVERY.into())?;
        within("acks delay_ns", self.delay_ns, 0, MAX_DELAY_NS)?;
        within("acks aggregate_ns", self.aggregate_ns, 0, MAX_DELAY_NS)
    }
}

impl PathConfig {
    /// A way over these links, with an uncongested way back of this delay; acknowledged as Linux does, without
    /// ECN.
    pub fn new(links: Vec<u8>, return_delay_ns: u64) -> PathConfig {
        PathConfig {
            access_delay_ns: 0,
            links,
            other_routes: Vec::new(),
            acks: Acks::LINUX,
            return_links: Vec::new(),
            return_delay_ns,
            ecn: false,
        }
    }

    /// # Errors
    /// The first field outside its limits, in a network of `links` links.
    pub fn check(&self, links: usize) -> Result<(), ConfigError> {
        within("hops", self.links.len() as u64, 1, MAX_HOPS as u64)?;
        within("return hops", self.return_links.len() as u64, 0, MAX_HOPS as u64)?;
        within("access_delay_ns", self.access_delay_ns, 0, MAX_DELAY_NS)?;
        within("return_delay_ns", self.return_delay_ns, 0, MAX_DELAY_NS)?;
        self.acks.check()?;
        within("routes", 1 + self.other_routes.len() as u64, 1, MAX_ROUTES as u64)?;
        for route in &self.other_routes {
            within("hops", route.len() as u64, 1, MAX_HOPS as u64)?;
            check_links(route, links)?;
        }
        check_links(&self.links, links)?;
        check_links(&self.return_links, links)
    }
}

pub(crate) fn check_links(found: &[u8], links: usize) -> Result<(), ConfigError> {
    match found.iter().find(|l| usize::from(**l) >= links) {
        Some(found) => Err(ConfigError::NoLink { found: *found, links }),
        None => Ok(()),
    }
}

pub(crate) fn check_counts(links: usize) -> Result<(), ConfigError> {
    within("links", links as u64, 1, MAX_LINKS as u64)
}

pub(crate) fn check_flows(flows: usize) -> Result<(), ConfigError> {
    within("flows", flows as u64, 0, MAX_FLOWS as u64 - 1)
}
