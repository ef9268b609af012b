//! The figures of a link log, by the arithmetic of mahimahi's `mm-throughput-graph` and `mm-delay-graph`.

use std::collections::BTreeMap;

use serde::Serialize;

use super::{Event, Kind, LinkLog, LogReason};
use crate::error::{Error, InputPlace, check_range};

/// Bins of a series.
pub const MAX_BINS: u32 = 1 << 20;

/// The share that the percentiles of mahimahi's graphs are for.
const P95: f64 = 0.95;
const P50: f64 = 0.5;

/// The figures of a log. Rates are averages from the first event to the last.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Figures {
    /// From the first event to the last, milliseconds; above 0.
    pub duration_ms: u32,
    /// The rate that the link could have delivered, Mb/s.
    pub capacity_mbit_per_s: f64,
    /// The rate of arrivals, Mb/s.
    pub ingress_mbit_per_s: f64,
    /// The rate of departures, Mb/s.
    pub throughput_mbit_per_s: f64,
    /// Throughput over capacity; `None` without an opportunity.
    pub utilisation: Option<f64>,
    /// Median of the packets' queueing delays, milliseconds.
    pub queueing_delay_p50_ms: u32,
    /// Their 95th percentile: of n delays in ascending order, the one at index 0.95 n, cut to a whole number.
    pub queueing_delay_p95_ms: u32,
    /// 95th percentile, in the same sense, of the signal delay: for each millisecond from the first arrival of a packet that left to the last,
    /// how long a message that came then needed at least. Where no packet came, it is one more than a millisecond later.
    pub signal_delay_p95_ms: u32,
    /// Packets that left the link.
    pub packets: usize,
    /// Packets that the log says were dropped.
    pub dropped_packets: u64,
}

/// Rates within a bin, and what waits at its end.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Bin {
    /// The bin's start, seconds since the base timestamp.
    pub t_s: f64,
    /// The rate that the link could have delivered, Mb/s.
    pub capacity_mbit_per_s: f64,
    /// The rate of arrivals, Mb/s.
    pub ingress_mbit_per_s: f64,
    /// The rate of departures, Mb/s.
    pub throughput_mbit_per_s: f64,
    /// Bits that have come and neither left nor been dropped; may be below 0 if the log does not hold the link's whole life.
    pub queue_bits: i64,
}

/// A packet's delay, or the least of a millisecond's packets.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct DelayPoint {
    /// When it came, milliseconds since the base timestamp.
    pub at_ms: u32,
    /// The time for which it waited, milliseconds.
    pub delay_ms: u32,
}

impl LinkLog {
    /// The part of the log from `from_ms` up to `to_ms`, milliseconds since the base timestamp.
    #[must_use]
    pub fn between(&self, from_ms: u32, to_ms: u32) -> LinkLog {
        let inside = self.events.iter().filter(|e| (from_ms..to_ms).contains(&e.at_ms));
        LinkLog { events: inside.copied().collect(), ..self.clone() }
    }

    /// The figures of the whole log.
    ///
    /// # Errors
    /// A log without a departure or that takes no time.
    pub fn figures(&self) -> Result<Figures, Error> {
        let refuse = |reason| Error::Log { place: InputPlace::default(), reason };
        let times = self.events.iter().map(|e| e.at_ms);
        // As in mahimahi: the first by place, the last by time.
        let (first_ms, last_ms) = (self.events.first().map_or(0, |e| e.at_ms), times.max().unwrap_or(0));
        let mut delays_ms: Vec<u32> = self.delays().map(|p| p.delay_ms).collect();
        if delays_ms.is_empty() {
            return Err(refuse(LogReason::NoDepartures));
        }
        let Some(duration_ms) = last_ms.checked_sub(first_ms).filter(|ms| *ms > 0) else {
            return Err(refuse(LogReason::NoTime));
        };
        delays_ms.sort_unstable();

        // The order of divisions is mahimahi's, so that even the last bit is.
        let duration_s = f64::from(duration_ms) / 1000.0;
        let mbit_per_s = |bits: u64| bits as f64 / duration_s / 1_000_000.0;
        let capacity = mbit_per_s(self.bits(|k| k == Kind::Opportunity));
        let throughput = mbit_per_s(self.bits(is_departure));
        let dropped =
            self.events.iter().map(|e| if let Kind::Drop { packets } = e.kind { packets.into() } else { 0 });
        Ok(Figures {
            duration_ms,
            capacity_mbit_per_s: capacity,
            ingress_mbit_per_s: mbit_per_s(self.bits(|k| k == Kind::Arrival)),
            throughput_mbit_per_s: throughput,
            utilisation: (capacity > 0.0).then(|| throughput / capacity),
            queueing_delay_p50_ms: delays_ms[rank(P50, delays_ms.len() as u64) as usize],
            queueing_delay_p95_ms: delays_ms[rank(P95, delays_ms.len() as u64) as usize],
            signal_delay_p95_ms: signal_percentile(&self.signal_delays(), P95),
            packets: delays_ms.len(),
            dropped_packets: dropped.sum(),
        })
    }

    /// The delay of each packet that left, in the log's order.
    pub fn delays(&self) -> impl Iterator<Item = DelayPoint> + '_ {
        self.events.iter().filter_map(|e| match e.kind {
            Kind::Departure { delay_ms } => Some(DelayPoint { at_ms: e.at_ms - delay_ms, delay_ms }),
            _ => None,
        })
    }

    /// For each millisecond in which a packet came, the least delay of those, ascending in time. In between it rises by
    /// 1 ms for each millisecond before the next point.
    pub fn signal_delays(&self) -> Vec<DelayPoint> {
        let mut least = BTreeMap::new();
        for point in self.delays() {
            least
                .entry(point.at_ms)
                .and_modify(|d: &mut u32| *d = (*d).min(point.delay_ms))
                .or_insert(point.delay_ms);
        }
        least.into_iter().map(|(at_ms, delay_ms)| DelayPoint { at_ms, delay_ms }).collect()
    }

    /// Rates in bins of `bin_ms`, from the first event's bin to the last's.
    ///
    /// # Errors
    /// Bins that are 0 ms wide, or more than `MAX_BINS`.
    pub fn bins(&self, bin_ms: u32) -> Result<Vec<Bin>, Error> {
        check_range("bin", bin_ms.into(), 1.0, super::MAX_LOG_MS.into(), "ms")?;
        let bin_of = |event: &Event| event.at_ms / bin_ms;
        let events = || self.events.iter().filter(|e| !matches!(e.kind, Kind::Drop { .. }));
        let (Some(first), Some(last)) = (events().map(bin_of).min(), events().map(bin_of).max()) else {
            return Ok(Vec::new());
        };
        check_range(
            "bins of the log",
            f64::from(last - first) + 1.0,
            1.0,
            MAX_BINS.into(),
            "bins; ask for wider ones",
        )?;
        // Arrived, could have left, left, dropped.
        let mut bits = vec![[0u64; 4]; (last - first + 1) as usize];
        for event in &self.events {
            let kind = match event.kind {
                Kind::Arrival => 0,
                Kind::Opportunity => 1,
                Kind::Departure { .. } => 2,
                Kind::Drop { .. } => 3,
            };
            let bin = bin_of(event).clamp(first, last) - first;
            bits[bin as usize][kind] += u64::from(event.bytes) * 8;
        }
        let mbit_per_s = |bits: u64| bits as f64 / (f64::from(bin_ms) / 1000.0) / 1_000_000.0;
        let mut queue_bits = 0;
        let series = bits.iter().zip(first..).map(|([arrived, capacity, left, dropped], n)| {
            queue_bits += *arrived as i64 - *left as i64 - *dropped as i64;
            Bin {
                t_s: f64::from(n) * f64::from(bin_ms) / 1000.0,
                capacity_mbit_per_s: mbit_per_s(*capacity),
                ingress_mbit_per_s: mbit_per_s(*arrived),
                throughput_mbit_per_s: mbit_per_s(*left),
                queue_bits,
            }
        });
        Ok(series.collect())
    }

    fn bits(&self, of: impl Fn(Kind) -> bool) -> u64 {
        self.events.iter().filter(|e| of(e.kind)).map(|e| u64::from(e.bytes) * 8).sum()
    }
}

/// Prints the figures as mahimahi's graphs do, in their words and rounding.
impl std::fmt::Display for Figures {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(f, "Average capacity: {:.2} Mbits/s", self.capacity_mbit_per_s)?;
        write!(f, "Average throughput: {:.2} Mbits/s", self.throughput_mbit_per_s)?;
        let percent = 100.0 * self.throughput_mbit_per_s / self.capacity_mbit_per_s;
        match self.utilisation {
            Some(_) => writeln!(f, " ({percent:.1}% utilization)")?,
            None => writeln!(f)?,
        }
        writeln!(f, "95th percentile per-packet queueing delay: {} ms", self.queueing_delay_p95_ms)?;
        writeln!(f, "95th percentile signal delay: {} ms", self.signal_delay_p95_ms)
    }
}

fn is_departure(kind: Kind) -> bool {
    matches!(kind, Kind::Departure { .. })
}

/// The index of a percentile among `n` sorted values, above 0, as Perl computes it from `q * n`.
fn rank(q: f64, n: u64) -> u64 {
    (q * n as f64) as u64
}

/// A percentile over every millisecond from the first point to the last, which are not laid out one by one: the gap before a
/// point holds the delays above it, one each.
fn signal_percentile(points: &[DelayPoint], q: f64) -> u32 {
    let (Some(first), Some(last)) = (points.first(), points.last()) else { return 0 };
    let gaps: Vec<(u32, u32)> =
        points.windows(2).map(|pair| (pair[1].delay_ms, pair[1].at_ms - pair[0].at_ms - 1)).collect();
    let at_most = |delay_ms: u32| -> u64 {
        let on_points = points.iter().filter(|p| p.delay_ms <= delay_ms).count() as u64;
        on_points
            + gaps.iter().map(|(next, gap)| u64::from(delay_ms.saturating_sub(*next).min(*gap))).sum::<u64>()
    };
    let rank = rank(q, u64::from(last.at_ms - first.at_ms) + 1);
    // The least delay that more than `rank` milliseconds do not exceed.
    let (mut low, mut high) = (0, points.iter().map(|p| p.delay_ms).max().unwrap_or(0));
    high += gaps.iter().map(|(_, gap)| *gap).max().unwrap_or(0);
    while low < high {
        let middle = low + (high - low) / 2;
        if at_most(middle) > rank { high = middle } else { low = middle + 1 }
    }
    low
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn log(text: &str) -> LinkLog {
        LinkLog::parse(&format!("# base timestamp: 10\n{text}")).unwrap()
    }

    #[test]
    fn figures_of_a_log_are_those_worked_out_by_hand() {
        // 3 opportunities and 2 departures in 10 ms; the packet of 12 ms waits 5, that of 15 ms none.
        let log = log(
            "10 # 1500\n12 + 1500\n15 + 1000\n15 - 1000 0\n17 # 1500\n17 - 1500 5\n18 d 3 4500\n20 # 1500\n",
        );
        let figures = log.figures().unwrap();
        assert_eq!((figures.duration_ms, figures.packets, figures.dropped_packets), (10, 2, 3));
        assert_eq!((figures.capacity_mbit_per_s, figures.throughput_mbit_per_s), (3.6, 2.0));
        assert_eq!((figures.queueing_delay_p50_ms, figures.queueing_delay_p95_ms), (5, 5));
        // At 12 to 15 ms: 3 (by waiting for the packet of 15 ms), or 5 for the packet itself; 2, 1, 0.
        assert_eq!(figures.signal_delay_p95_ms, 5);
        assert_eq!(
            figures.to_string(),
            "Average capacity: 3.60 Mbits/s\nAverage throughput: 2.00 Mbits/s (55.6% utilization)\n\
             95th percentile per-packet queueing delay: 5 ms\n95th percentile signal delay: 5 ms\n"
        );
        assert_eq!(log.between(5, 8).figures().unwrap().capacity_mbit_per_s, 6.0, "12 000 bits in 2 ms");
        let bins = log.bins(5).unwrap();
        let rows: Vec<(f64, f64, f64, f64, i64)> = bins
            .iter()
            .map(|b| {
                (b.t_s, b.capacity_mbit_per_s, b.ingress_mbit_per_s, b.throughput_mbit_per_s, b.queue_bits)
            })
            .collect();
        assert_eq!(
            rows,
            [(0.0, 2.4, 2.4, 0.0, 12_000), (0.005, 2.4, 1.6, 4.0, -36_000), (0.01, 2.4, 0.0, 0.0, -36_000)]
        );
    }

    #[test]
    fn what_has_no_figures_says_why() {
        let refusal = |text: &str| log(text).figures().unwrap_err().to_string();
        assert!(refusal("").starts_with("input: no packet left the link"));
        assert!(refusal("11 + 5\n").starts_with("input: no packet left the link"));
        assert!(refusal("11 - 5 0\n").starts_with("input: all events are at the same time"));
        assert_eq!(log("11 + 5\n12 - 5 1\n").figures().unwrap().utilisation, None);
        assert_eq!(log("").bins(1).unwrap(), []);
        assert!(log("11 + 5\n").bins(0).unwrap_err().to_string().starts_with("bin: 0"));
        let long = log("11 + 5\n2000000 + 5\n").bins(1).unwrap_err().to_string();
        assert!(long.ends_with("outside 1..=1048576 bins; ask for wider ones"), "{long}");
    }

    /// Every millisecond laid out, as mahimahi does it.
    fn laid_out(points: &[DelayPoint], q: f64) -> u32 {
        let mut delays = BTreeMap::new();
        delays.extend(points.iter().map(|p| (p.at_ms, p.delay_ms)));
        let (first, last) = (points[0].at_ms, points[points.len() - 1].at_ms);
        for at in (first..last).rev() {
            let next = delays[&(at + 1)];
            delays.entry(at).or_insert(next + 1);
        }
        let mut sorted: Vec<u32> = delays.into_values().collect();
        sorted.sort_unstable();
        sorted[(q * sorted.len() as f64) as usize]
    }

    proptest! {
        #[test]
        fn the_signal_delay_needs_no_laying_out(
            delays in prop::collection::btree_map(0u32..400, 0u32..60, 1..60), q in 0.0f64..0.999,
        ) {
            let points: Vec<DelayPoint> =
                delays.into_iter().map(|(at_ms, delay_ms)| DelayPoint { at_ms, delay_ms }).collect();
            prop_assert_eq!(signal_percentile(&points, q), laid_out(&points, q));
        }

        #[test]
        fn bins_hold_all_bits(times in prop::collection::vec(0u32..5000, 1..100), bin_ms in 1u32..900) {
            let text: String = times.iter().map(|t| format!("{} + 125\n", t + 10)).collect();
            let total: f64 = log(&text).bins(bin_ms).unwrap().iter().map(|b| b.ingress_mbit_per_s).sum();
            let mbit = total * f64::from(bin_ms) / 1000.0;
            prop_assert!((mbit - times.len() as f64 / 1000.0).abs() < 1e-9);
        }
    }
}
