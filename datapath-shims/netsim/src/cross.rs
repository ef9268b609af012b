//! Traffic without congestion control: it crosses links and is not acknowledged.

use crate::config::{ConfigError, MAX_LINKS, MAX_RATE_BIT_PER_S, check_links, within};
use crate::packet::MAX_HOPS;
use crate::workload::{Random, scaled};

/// Smallest packet, wire bytes.
const MIN_PACKET_BYTES: u16 = 20;
/// Longest mean of an on or off period: an hour.
const MAX_PERIOD_NS: u64 = 3_600_000_000_000;
const NS_PER_S: u64 = 1_000_000_000;
/// Streams of the seed for cross traffic, past those of links.
const CROSS_STREAM: u64 = 1 << 34;

/// When cross traffic sends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CrossPattern {
    /// At equal distances (CBR).
    Constant,
    /// With exponential gaps, at the rate in the mean.
    Poisson,
    /// At its rate in on periods, not at all in off periods; both exponential.
    OnOff {
        /// Mean on period, nanoseconds, at least 1.
        on_ns: u64,
        /// Mean off period, nanoseconds, at least 1.
        off_ns: u64,
    },
}

/// A source of cross traffic.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CrossConfig {
    /// Indices of the links that it crosses, in order; at least one.
    pub links: Vec<u8>,
    /// The pattern of its packets over time.
    pub pattern: CrossPattern,
    /// Wire bits per second while it sends.
    pub bit_per_s: u64,
    /// Wire bytes of a packet.
    pub packet_bytes: u16,
    /// When it starts, nanoseconds.
    pub start_ns: u64,
    /// When it has ended, nanoseconds.
    pub end_ns: u64,
}

impl CrossConfig {
    /// Constant traffic of 1500-byte packets over these links, from the start and for ever.
    pub fn new(links: Vec<u8>, bit_per_s: u64) -> CrossConfig {
        CrossConfig {
            links,
            pattern: CrossPattern::Constant,
            bit_per_s,
            packet_bytes: 1500,
            start_ns: 0,
            end_ns: u64::MAX,
        }
    }

    /// # Errors
    /// The first field outside its limits, in a network of `links` links.
    pub fn check(&self, links: usize) -> Result<(), ConfigError> {
        within("hops", self.links.len() as u64, 1, MAX_HOPS as u64)?;
        within("bit_per_s", self.bit_per_s, 1, MAX_RATE_BIT_PER_S)?;
        within("packet_bytes", self.packet_bytes.into(), MIN_PACKET_BYTES.into(), u16::MAX.into())?;
        if let CrossPattern::OnOff { on_ns, off_ns } = self.pattern {
            within("on_ns", on_ns, 1, MAX_PERIOD_NS)?;
            within("off_ns", off_ns, 1, MAX_PERIOD_NS)?;
        }
        check_links(&self.links, links)
    }
}

/// The counters of a source.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct CrossStats {
    pub sent: u64,
    /// Packets that crossed all links.
    pub delivered: u64,
}

/// When a source's packets leave, nanoseconds: those of [`Network::add_cross`](crate::Network::add_cross)'s source number
/// `index`, for callers that send them elsewhere.
pub struct CrossTimes {
    source: Cross,
    next_ns: Option<u64>,
}

impl CrossTimes {
    /// # Errors
    /// The first field outside its limits.
    pub fn new(config: &CrossConfig, seed: u64, index: usize) -> Result<CrossTimes, ConfigError> {
        config.check(MAX_LINKS)?;
        let next_ns = Some(config.start_ns).filter(|at_ns| *at_ns < config.end_ns);
        Ok(CrossTimes { source: Cross::new(config, seed, index), next_ns })
    }
}

impl Iterator for CrossTimes {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        let now_ns = self.next_ns?;
        self.next_ns = self.source.next_ns(now_ns);
        Some(now_ns)
    }
}

/// A source at work.
pub(crate) struct Cross {
    pub(crate) config: CrossConfig,
    pub(crate) stats: CrossStats,
    random: Random,
    remainder: u64,
    on_until_ns: u64,
}

impl Cross {
    pub(crate) fn new(config: &CrossConfig, seed: u64, index: usize) -> Cross {
        let mut random = Random::new(seed, CROSS_STREAM + index as u64);
        let on_until_ns = match config.pattern {
            CrossPattern::OnOff { on_ns, .. } => {
                config.start_ns.saturating_add(scaled(on_ns, random.exponential()))
            }
            _ => u64::MAX,
        };
        let stats = CrossStats::default();
        Cross { config: config.clone(), stats, random, remainder: 0, on_until_ns }
    }

    /// A packet left now; when the next one does.
    pub(crate) fn next_ns(&mut self, now_ns: u64) -> Option<u64> {
        let bits_ns = u64::from(self.config.packet_bytes) * 8 * NS_PER_S + self.remainder;
        self.remainder = bits_ns % self.config.bit_per_s;
        let gap_ns = bits_ns / self.config.bit_per_s;
        let at_ns = match self.config.pattern {
            CrossPattern::Constant => now_ns + gap_ns,
            CrossPattern::Poisson => now_ns + scaled(gap_ns, self.random.exponential()),
            CrossPattern::OnOff { on_ns, off_ns } => {
                let next_ns = now_ns + gap_ns;
                if next_ns < self.on_until_ns {
                    next_ns
                } else {
                    let start_ns = self.on_until_ns.max(now_ns) + scaled(off_ns, self.random.exponential());
                    self.on_until_ns = start_ns + scaled(on_ns, self.random.exponential());
                    start_ns
                }
            }
        };
        (at_ns < self.config.end_ns).then_some(at_ns)
    }
}
