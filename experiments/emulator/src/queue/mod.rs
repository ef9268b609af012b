//! Queues at the bottleneck, by mahimahi's names and arguments.

mod packet_queue;

pub(crate) use packet_queue::PacketQueue;

use crate::refusal::{ConfigError, check_range};

/// CoDel's target unless given, microseconds (RFC 8289, section 4.3).
pub const DEFAULT_TARGET_US: u64 = 5_000;
/// CoDel's interval unless given, microseconds (RFC 8289, section 4.3).
pub const DEFAULT_INTERVAL_US: u64 = 100_000;
/// Longest time that a queue takes as an argument, microseconds: a minute.
pub const MAX_QUEUE_TIME_US: u64 = 60_000_000;
const MAX_PACKETS: f64 = u32::MAX as f64;
const MAX_BYTES: f64 = (1u64 << 40) as f64;
const US_PER_MS: u64 = 1_000;

/// The queue of packets that must wait at the bottleneck. The packet in transmission does not count, as in mahimahi.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Queue {
    /// Every packet waits.
    #[default]
    Infinite,
    /// A packet waits unless the queue would then exceed a limit; at least one limit is above 0.
    DropTail {
        /// Most packets; `None`: any number.
        packets: Option<u32>,
        /// Most bytes, as [`crate::path`] counts them; `None`: any number.
        bytes: Option<u64>,
    },
    /// A packet waits, and the oldest go until the queue is within its limits; at least one is above 0.
    DropHead { packets: Option<u32>, bytes: Option<u64> },
    /// Strict priorities by the DSCP's class selector, over a droptail queue: class 7 is served first, class 0 last. A
    /// packet that finds no room takes that of the newest one of the lowest class below its own. At least one limit is
    /// above 0.
    Priority { packets: Option<u32>, bytes: Option<u64> },
    /// Controlled delay (RFC 8289), over a droptail queue; at least one limit is above 0.
    CoDel {
        packets: Option<u32>,
        bytes: Option<u64>,
        /// The standing delay that it accepts, microseconds, above 0; [`DEFAULT_TARGET_US`].
        target_us: u64,
        /// The time for which a delay stands before it drops, microseconds, above 0; [`DEFAULT_INTERVAL_US`].
        interval_us: u64,
    },
    /// Proportional integral controller enhanced (RFC 8033), over a droptail queue; at least one limit is above 0.
    Pie {
        packets: Option<u32>,
        bytes: Option<u64>,
        /// The delay that it steers to, microseconds, above 0; RFC 8033 suggests 15 ms.
        qdelay_ref_us: u64,
        /// The time for which a burst may last before packets are dropped, microseconds, above 0; RFC 8033
        /// suggests 150 ms.
        max_burst_us: u64,
        /// Of its random drops.
        seed: u64,
    },
}

/// Most packets and most bytes that wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Limits {
    pub(crate) packets: Option<u32>,
    pub(crate) bytes: Option<u64>,
}

impl Queue {
    /// The names of the kinds for [`Queue::parse`].
    pub const KINDS: [&str; 6] = ["infinite", "droptail", "drophead", "priority", "codel", "pie"];

    /// A droptail queue of at most `packets` packets.
    pub fn packets(packets: u32) -> Queue {
        Queue::DropTail { packets: Some(packets), bytes: None }
    }

    /// Reads mahimahi's `--uplink-queue KIND --uplink-queue-args ARGS`; `field` names the flag in refusals.
    ///
    /// `ARGS` are `NAME=NUMBER[, NAME=NUMBER...]`, times in whole milliseconds: `packets` and `bytes` for every kind but `infinite`,
    /// `target` and `interval` for `codel`, `qdelay_ref` and `max_burst` for `pie`, both of which it needs. As in mahimahi,
    /// 0 says no limit. Where mahimahi takes a missing `target` or `interval` for 0, which drops nearly everything, this takes RFC 8289's.
    ///
    /// # Errors
    /// An unknown kind, arguments that cannot be read or that the kind does not take, or a missing one.
    pub fn parse(field: &'static str, kind: &str, args: &str) -> Result<Queue, ConfigError> {
        let args = Args::parse(field, args)?;
        let packets = args.number("packets")?.filter(|n| *n > 0);
        let bytes = args.number("bytes")?.filter(|n| *n > 0);
        let packets = packets.map(|n| u32::try_from(n).unwrap_or(u32::MAX));
        let (queue, allowed): (Queue, &[&str]) = match kind {
            "infinite" => match args.text.trim() {
                "" => (Queue::Infinite, &[]),
                text => return Err(ConfigError::NoArgs { field, found: text.to_owned() }),
            },
            "droptail" => (Queue::DropTail { packets, bytes }, &["packets", "bytes"]),
            "priority" => (Queue::Priority { packets, bytes }, &["packets", "bytes"]),
            "drophead" => (Queue::DropHead { packets, bytes }, &["packets", "bytes"]),
            "codel" => {
                let target_us = args.time_us("target")?.unwrap_or(DEFAULT_TARGET_US);
                let interval_us = args.time_us("interval")?.unwrap_or(DEFAULT_INTERVAL_US);
                let queue = Queue::CoDel { packets, bytes, target_us, interval_us };
                (queue, &["packets", "bytes", "target", "interval"])
            }
            "pie" => {
                let given = |name| args.time_us(name)?.ok_or(ConfigError::PieArgs { field });
                let (qdelay_ref_us, max_burst_us) = (given("qdelay_ref")?, given("max_burst")?);
                let queue = Queue::Pie { packets, bytes, qdelay_ref_us, max_burst_us, seed: 0 };
                (queue, &["packets", "bytes", "qdelay_ref", "max_burst"])
            }
            _ => return Err(ConfigError::UnknownQueue { field, found: kind.to_owned() }),
        };
        args.only(allowed)?;
        queue.check(field).map(|()| queue)
    }

    /// The queue with its random drops by `seed`; only PIE has any.
    #[must_use]
    pub fn seeded(mut self, by: u64) -> Queue {
        if let Queue::Pie { seed, .. } = &mut self {
            *seed = by;
        }
        self
    }

    /// mahimahi's name of its kind; `priority` is ours.
    pub fn kind(self) -> &'static str {
        match self {
            Queue::Infinite => "infinite",
            Queue::DropTail { .. } => "droptail",
            Queue::DropHead { .. } => "drophead",
            Queue::Priority { .. } => "priority",
            Queue::CoDel { .. } => "codel",
            Queue::Pie { .. } => "pie",
        }
    }

    pub(crate) fn limits(self) -> Limits {
        match self {
            Queue::Infinite => Limits::default(),
            Queue::DropTail { packets, bytes }
            | Queue::DropHead { packets, bytes }
            | Queue::Priority { packets, bytes }
            | Queue::CoDel { packets, bytes, .. }
            | Queue::Pie { packets, bytes, .. } => Limits { packets, bytes },
        }
    }

    pub(crate) fn check(self, field: &'static str) -> Result<(), ConfigError> {
        let time = |us: u64| check_range(field, us as f64, 1.0, MAX_QUEUE_TIME_US as f64, "us");
        match self {
            Queue::CoDel { target_us, interval_us, .. } => time(target_us).and(time(interval_us))?,
            Queue::Pie { qdelay_ref_us, max_burst_us, .. } => time(qdelay_ref_us).and(time(max_burst_us))?,
            Queue::Infinite | Queue::DropTail { .. } | Queue::DropHead { .. } | Queue::Priority { .. } => {}
        }
        let limits = self.limits();
        let none = limits.packets.is_none() && limits.bytes.is_none();
        let zero = limits.packets == Some(0) || limits.bytes == Some(0);
        if self != Queue::Infinite && (none || zero) {
            return Err(ConfigError::NoLimit { field, kind: self.kind() });
        }
        Ok(())
    }
}

/// Displays the queue as mahimahi writes it in a log's header: the kind and its limits, nothing else.
impl std::fmt::Display for Queue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Limits { packets, bytes } = self.limits();
        match (self, bytes, packets) {
            (Queue::Infinite, ..) => write!(f, "infinite"),
            (_, Some(b), Some(p)) => write!(f, "{} [bytes={b}, packets={p}]", self.kind()),
            (_, Some(b), None) => write!(f, "{} [bytes={b}]", self.kind()),
            (_, None, Some(p)) => write!(f, "{} [packets={p}]", self.kind()),
            (_, None, None) => write!(f, "{} []", self.kind()),
        }
    }
}

/// The arguments of a queue, read from `NAME=NUMBER[, NAME=NUMBER...]`.
struct Args<'a> {
    field: &'static str,
    text: &'a str,
    numbers: Vec<(&'a str, u64)>,
}

impl<'a> Args<'a> {
    fn parse(field: &'static str, text: &'a str) -> Result<Args<'a>, ConfigError> {
        let mut numbers: Vec<(&str, u64)> = Vec::new();
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let refused = || ConfigError::QueueArgs { field, found: part.to_owned() };
            let (name, number) = part.split_once('=').ok_or_else(refused)?;
            if numbers.iter().any(|(known, _)| *known == name) || number.starts_with('+') {
                return Err(refused());
            }
            numbers.push((name, number.parse().map_err(|_| refused())?));
        }
        Ok(Args { field, text, numbers })
    }

    fn number(&self, name: &str) -> Result<Option<u64>, ConfigError> {
        let Some((_, number)) = self.numbers.iter().find(|(known, _)| *known == name) else {
            return Ok(None);
        };
        let most = if name == "packets" { MAX_PACKETS } else { MAX_BYTES };
        check_range(self.field, *number as f64, 0.0, most, "").map(|()| Some(*number))
    }

    fn time_us(&self, name: &str) -> Result<Option<u64>, ConfigError> {
        Ok(self.number(name)?.map(|ms| ms.saturating_mul(US_PER_MS)))
    }

    fn only(&self, allowed: &[&str]) -> Result<(), ConfigError> {
        match self.numbers.iter().find(|(name, _)| !allowed.contains(name)) {
            Some((name, number)) => {
                Err(ConfigError::QueueArgs { field: self.field, found: format!("{name}={number}") })
            }
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(kind: &str, args: &str) -> Result<Queue, ConfigError> {
        Queue::parse("--uplink-queue", kind, args)
    }

    #[test]
    fn queues_read_as_mahimahi_writes_them() {
        assert_eq!(parse("infinite", ""), Ok(Queue::Infinite));
        assert_eq!(parse("droptail", "packets=100"), Ok(Queue::packets(100)));
        assert_eq!(parse("droptail", "packets=100, bytes=0"), Ok(Queue::packets(100)));
        let priority = Queue::Priority { packets: Some(7), bytes: None };
        assert_eq!(parse("priority", "packets=7"), Ok(priority));
        assert_eq!(parse("drophead", "bytes=9"), Ok(Queue::DropHead { packets: None, bytes: Some(9) }));
        let (packets, bytes) = (Some(7), None);
        let codel = Queue::CoDel { packets, bytes, target_us: 10_000, interval_us: 90_000 };
        assert_eq!(parse("codel", "packets=7, target=10, interval=90"), Ok(codel));
        let codel = Queue::CoDel { packets, bytes, target_us: 5_000, interval_us: 100_000 };
        assert_eq!(parse("codel", "packets=7"), Ok(codel));
        let pie = Queue::Pie { packets, bytes, qdelay_ref_us: 15_000, max_burst_us: 150_000, seed: 0 };
        assert_eq!(parse("pie", "packets=7,qdelay_ref=15,max_burst=150"), Ok(pie));
        for (kind, args, written) in [
            ("droptail", "bytes=3000, packets=7", "droptail [bytes=3000, packets=7]"),
            ("drophead", "bytes=3000", "drophead [bytes=3000]"),
            ("priority", "packets=7", "priority [packets=7]"),
            ("codel", "packets=7,target=1,interval=2", "codel [packets=7]"),
            ("pie", "bytes=3000,qdelay_ref=1,max_burst=2", "pie [bytes=3000]"),
            ("infinite", "", "infinite"),
        ] {
            assert_eq!(parse(kind, args).unwrap().to_string(), written);
        }
    }

    #[test]
    fn refusals_name_the_flag_and_what_would_be_right() {
        for (kind, args, message) in [
            (
                "red",
                "",
                "unknown queue \"red\"; expected infinite, droptail, drophead, priority, codel or pie",
            ),
            ("infinite", "packets=1", "an infinite queue takes no arguments, found \"packets=1\""),
            ("droptail", "", "a droptail queue needs packets=N or bytes=N, above 0"),
            ("drophead", "packets=0", "a drophead queue needs packets=N or bytes=N, above 0"),
            ("priority", "", "a priority queue needs packets=N or bytes=N, above 0"),
            ("codel", "target=5", "a codel queue needs packets=N or bytes=N, above 0"),
            ("codel", "packets=9,target=0", "0 is outside 1..=60000000 us"),
            ("pie", "packets=9", "a pie queue needs qdelay_ref=MS and max_burst=MS, above 0"),
            ("pie", "packets=9,qdelay_ref=15", "a pie queue needs qdelay_ref=MS and max_burst=MS, above 0"),
            ("pie", "packets=9,qdelay_ref=0,max_burst=1", "0 is outside 1..=60000000 us"),
        ] {
            assert_eq!(parse(kind, args).unwrap_err().to_string(), format!("--uplink-queue: {message}"));
        }
        for args in [
            "packets",
            "packets=x",
            "packets=-1",
            "packets=+1",
            "pkts=3",
            "packets=1,packets=2",
            "packets=1,target=5",
        ] {
            assert!(matches!(parse("droptail", args), Err(ConfigError::QueueArgs { .. })), "{args}");
        }
    }
}
