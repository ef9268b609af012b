//! When a link can deliver: mahimahi's opportunities, from a trace or at a constant rate.

use std::path::Path;

use ccplane_netsim::trace::{OPPORTUNITY_BYTES, Schedule, Trace, TraceError};

use crate::refusal::{ConfigError, check_range};

/// Slowest constant rate, bits per second.
pub const MIN_RATE_BIT_PER_S: u64 = 1_000;
/// Fastest constant rate, bits per second.
pub const MAX_RATE_BIT_PER_S: u64 = 10_000_000_000;

const NS_PER_MS: u64 = 1_000_000;
const OPPORTUNITY_BIT_NS: u128 = OPPORTUNITY_BYTES as u128 * 8 * 1_000_000_000;

/// The speed at which one direction of a link delivers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Shape {
    /// At once: no bottleneck, so no queue.
    Unlimited,
    /// One opportunity of 1504 bytes every 1504 * 8 / rate, to the nanosecond.
    Rate {
        /// Bits per second, [`MIN_RATE_BIT_PER_S`] to [`MAX_RATE_BIT_PER_S`].
        bit_per_s: u64,
    },
    /// One opportunity of 1504 bytes at each timestamp of a trace.
    Trace {
        trace: Trace,
        /// Whether the trace starts over at its end; else the link delivers nothing after it (`--once`).
        repeat: bool,
        /// The name of the trace's source, for the log's header.
        source: String,
    },
}

impl Shape {
    /// A constant rate in megabits per second.
    pub fn mbit(mbit_per_s: u32) -> Shape {
        Shape::Rate { bit_per_s: u64::from(mbit_per_s) * 1_000_000 }
    }

    /// A repeating trace from a file.
    ///
    /// # Errors
    /// What is wrong with the file, by line.
    pub fn load(path: &Path) -> Result<Shape, TraceError> {
        let trace = Trace::load(path)?;
        Ok(Shape::Trace { trace, repeat: true, source: path.display().to_string() })
    }

    /// Mean rate, bits per second; `None` when unlimited.
    pub fn mean_rate_bit_per_s(&self) -> Option<u64> {
        match self {
            Shape::Unlimited => None,
            Shape::Rate { bit_per_s } => Some(*bit_per_s),
            Shape::Trace { trace, .. } => Some(trace.mean_rate_bit_per_s()),
        }
    }

    pub(crate) fn check(&self, field: &'static str) -> Result<(), ConfigError> {
        match self {
            Shape::Rate { bit_per_s } => {
                let (low, high) = (MIN_RATE_BIT_PER_S as f64, MAX_RATE_BIT_PER_S as f64);
                check_range(field, *bit_per_s as f64, low, high, "bit/s")
            }
            Shape::Unlimited | Shape::Trace { .. } => Ok(()),
        }
    }

    /// The opportunities from `start_ns` on, nanoseconds; `None` when unlimited. A trace starts at the next whole millisecond,
    /// so that a log in milliseconds shows its timestamps unchanged.
    pub(crate) fn opportunities(&self, start_ns: u64) -> Option<Opportunities> {
        match self {
            Shape::Unlimited => None,
            Shape::Rate { bit_per_s } => {
                Some(Opportunities::Rate { start_ns, bit_per_s: *bit_per_s, next: 1 })
            }
            Shape::Trace { trace, repeat, .. } => {
                let start_ns = start_ns.next_multiple_of(NS_PER_MS);
                Some(Opportunities::Trace { start_ns, schedule: trace.schedule(*repeat) })
            }
        }
    }
}

impl std::fmt::Display for Shape {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Shape::Unlimited => write!(f, "unlimited"),
            Shape::Rate { bit_per_s } => write!(f, "{bit_per_s} bit/s"),
            Shape::Trace { source, .. } => write!(f, "{source}"),
        }
    }
}

/// The coming opportunities of a limited shape, in order.
#[derive(Clone, Debug)]
pub(crate) enum Opportunities {
    /// Opportunity `next` comes at `start_ns + next * 1504 bytes / rate`.
    Rate { start_ns: u64, bit_per_s: u64, next: u64 },
    /// A trace laid from `start_ns` on.
    Trace { start_ns: u64, schedule: Schedule },
}

impl Opportunities {
    /// When the next one comes, nanoseconds; `None` when a trace that does not repeat is over.
    pub(crate) fn peek_ns(&self) -> Option<u64> {
        match self {
            Opportunities::Rate { start_ns, bit_per_s, next } => {
                let after_ns = u128::from(*next) * OPPORTUNITY_BIT_NS / u128::from(*bit_per_s);
                Some(start_ns.saturating_add(u64::try_from(after_ns).unwrap_or(u64::MAX)))
            }
            Opportunities::Trace { start_ns, schedule } => Some(start_ns + schedule.peek()? * NS_PER_MS),
        }
    }

    /// Takes the next one.
    pub(crate) fn take(&mut self) {
        match self {
            Opportunities::Rate { next, .. } => *next += 1,
            Opportunities::Trace { schedule, .. } => {
                schedule.next();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn first_us(shape: &Shape, start_ns: u64, count: usize) -> Vec<u64> {
        let mut opportunities = shape.opportunities(start_ns).unwrap();
        let mut times = Vec::new();
        while let Some(at_ns) = opportunities.peek_ns().filter(|_| times.len() < count) {
            times.push(at_ns / 1000);
            opportunities.take();
        }
        times
    }

    #[test]
    fn a_rate_drifts_by_no_nanosecond() {
        // 1504 bytes at 12.032 Mb/s last one millisecond.
        let shape = Shape::Rate { bit_per_s: 12_032_000 };
        assert_eq!(first_us(&shape, 5_000, 3), [1_005, 2_005, 3_005]);
        let mut opportunities = Shape::mbit(12).opportunities(0).unwrap();
        (1..750_000).for_each(|_| opportunities.take());
        assert_eq!(opportunities.peek_ns(), Some(752_000_000_000));
    }

    #[test]
    fn a_trace_starts_on_a_millisecond_and_wraps() {
        let trace = Trace::parse("0\n2\n3\n").unwrap();
        let shape = Shape::Trace { trace: trace.clone(), repeat: true, source: String::new() };
        assert_eq!(first_us(&shape, 1_500_000, 5), [2_000, 4_000, 5_000, 5_000, 7_000]);
        let once = Shape::Trace { trace, repeat: false, source: String::new() };
        assert_eq!(first_us(&once, 0, 5), [0, 2_000, 3_000]);
    }

    #[test]
    fn rates_out_of_range_are_refused() {
        for bit_per_s in [0, MIN_RATE_BIT_PER_S - 1, MAX_RATE_BIT_PER_S + 1] {
            let refused = Shape::Rate { bit_per_s }.check("up.shape").unwrap_err();
            assert!(matches!(refused, ConfigError::OutOfRange { field: "up.shape", .. }), "{refused}");
        }
        assert_eq!(Shape::mbit(12).check("up.shape"), Ok(()));
    }
}
