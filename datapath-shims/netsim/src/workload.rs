//! Short flows as data centres carry them: sizes from a measured distribution, arriving as a Poisson process.
//!
//! Integers and a seed decide everything: the same seed gives the same flows on every machine, in the simulator
//! and between kernels.
//!
//! ```
//! use ccplane_netsim::workload::{Arrivals, FlowSizes};
//! let sizes = FlowSizes::web_search();
//! // Half of 192 Mb/s.
//! let arrivals = Arrivals::new(&sizes, 500_000, 192_000_000, 1)?;
//! let minute: Vec<_> = arrivals.take_while(|flow| flow.start_us < 60_000_000).collect();
//! assert!(minute.len() > 300 && minute.iter().all(|flow| flow.bytes >= 8_760));
//! # Ok::<(), ccplane_netsim::workload::WorkloadError>(())
//! ```

mod playback;
mod random;
pub mod recorded;
mod structured;

pub(crate) use random::{Random, scaled};

pub use playback::Playback;
pub use structured::{HostArrivals, MAX_HOSTS, Split, Structure};

use std::sync::Arc;

/// A share of 1 in the distributions and loads here.
pub const PPM: u32 = 1_000_000;
/// Points of one distribution.
pub const MAX_POINTS: usize = 1024;
/// Pairs of application and destination of one host.
pub const MAX_PAIRS: usize = 4096;
/// The size of the largest flow, bytes.
pub const MAX_FLOW_BYTES: u64 = 1 << 40;
/// Fastest link that a load can be a share of, bits per second.
pub const MAX_CAPACITY_BIT_PER_S: u64 = crate::config::MAX_RATE_BIT_PER_S;

/// Sizes of flows, as a cumulative distribution that is linear between its points.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FlowSizes {
    name: Arc<str>,
    points: Arc<[Point]>,
}

/// A point of a distribution of sizes: the share of flows, millionths, that are at most so large.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Point {
    /// The flow's payload, bytes.
    pub bytes: u64,
    /// Millionths of all flows, 0 at the first point and [`PPM`] at the last.
    pub at_most_ppm: u32,
}

/// The fault of a distribution or a load.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WorkloadError {
    /// Fewer than one step, or more than [`MAX_POINTS`].
    #[error("{0} points; a distribution has 2 to {MAX_POINTS}")]
    Points(usize),
    /// A point below its predecessor, or outside the limits of a flow.
    #[error("point {index}: {bytes} bytes at {at_most_ppm} ppm does not continue the distribution")]
    Order {
        /// The index of the point, from 0.
        index: usize,
        bytes: u64,
        at_most_ppm: u32,
    },
    /// The shares don't go from 0 to [`PPM`].
    #[error("shares go from {first} to {last} ppm, not from 0 to {PPM}")]
    Range {
        /// At the first point.
        first: u32,
        /// The share of the last point, millionths.
        last: u32,
    },
    /// A load of nothing, or of more than ten times the link.
    #[error("a load of {found} ppm is outside 1..={max}", max = MAX_LOAD_PPM)]
    Load {
        /// The load asked for, millionths.
        found: u32,
    },
    /// A structure outside its limits.
    #[error("{what} is {found}, allowed are {min}..={max}")]
    Structure { what: &'static str, found: u64, min: u64, max: u64 },
    /// A link outside its limits.
    #[error("a capacity of {found} bit/s is outside 1..={MAX_CAPACITY_BIT_PER_S}")]
    Capacity {
        /// The rate asked for, bits per second.
        found: u64,
    },
}

/// Refuses a number of a structure that is not within its limits.
fn within(what: &'static str, found: u64, min: u64, max: u64) -> Result<(), WorkloadError> {
    let is_within = (min..=max).contains(&found);
    if is_within { Ok(()) } else { Err(WorkloadError::Structure { what, found, min, max }) }
}

/// Heaviest load, millionths of the capacity.
pub const MAX_LOAD_PPM: u32 = 10 * PPM;

/// Bytes of a packet in the tables below.
const TABLE_PACKET_BYTES: u64 = 1460;

/// Alizadeh et al., "Data Center TCP (DCTCP)", SIGCOMM 2010, section 2.2 and figure 4: a web search cluster. In
/// packets, as pFabric's simulations (SIGCOMM 2013, section 5) tabulate it.
const WEB_SEARCH_PACKETS: &[(u64, u32)] = &[
    (6, 0),
    (6, 150_000),
    (13, 200_000),
    (19, 300_000),
    (33, 400_000),
    (53, 530_000),
    (133, 600_000),
    (667, 700_000),
    (1333, 800_000),
    (3333, 900_000),
    (6667, 970_000),
    (20_000, PPM),
];

/// Greenberg et al., "VL2", SIGCOMM 2009, section 3.1 and figure 2: a data mining cluster. From the same tables.
const DATA_MINING_PACKETS: &[(u64, u32)] = &[
    (1, 0),
    (1, 500_000),
    (2, 600_000),
    (3, 700_000),
    (7, 800_000),
    (267, 900_000),
    (2107, 950_000),
    (66_667, 990_000),
    (666_667, PPM),
];

impl FlowSizes {
    /// Web search (DCTCP): mean 1.67 MB, half of the flows below 74 KB.
    pub fn web_search() -> FlowSizes {
        FlowSizes::of_packets("web-search", WEB_SEARCH_PACKETS)
    }

    /// Data mining (VL2): mean 7.47 MB, half of the flows a single packet.
    pub fn data_mining() -> FlowSizes {
        FlowSizes::of_packets("data-mining", DATA_MINING_PACKETS)
    }

    /// Every flow of this many bytes, at least 1.
    pub fn fixed(bytes: u64) -> FlowSizes {
        let bytes = bytes.clamp(1, MAX_FLOW_BYTES);
        let points = [Point { bytes, at_most_ppm: 0 }, Point { bytes, at_most_ppm: PPM }];
        FlowSizes { name: "fixed".into(), points: points.into() }
    }

    /// The distribution called `web-search` or `data-mining`.
    pub fn named(name: &str) -> Option<FlowSizes> {
        [FlowSizes::web_search(), FlowSizes::data_mining()].into_iter().find(|sizes| sizes.name() == name)
    }

    /// A distribution of one's own: both numbers of its points never decrease, shares go from 0 to [`PPM`].
    ///
    /// # Errors
    /// The first point that is wrong.
    pub fn new(name: &str, points: &[Point]) -> Result<FlowSizes, WorkloadError> {
        let (Some(first), Some(last)) = (points.first(), points.last()) else {
            return Err(WorkloadError::Points(0));
        };
        if !(2..=MAX_POINTS).contains(&points.len()) {
            return Err(WorkloadError::Points(points.len()));
        }
        let mut before = Point { bytes: 1, at_most_ppm: 0 };
        for (index, point) in points.iter().copied().enumerate() {
            let Point { bytes, at_most_ppm } = point;
            if bytes < before.bytes || at_most_ppm < before.at_most_ppm || bytes > MAX_FLOW_BYTES {
                return Err(WorkloadError::Order { index, bytes, at_most_ppm });
            }
            before = point;
        }
        if (first.at_most_ppm, last.at_most_ppm) != (0, PPM) {
            return Err(WorkloadError::Range { first: first.at_most_ppm, last: last.at_most_ppm });
        }
        Ok(FlowSizes { name: name.into(), points: points.into() })
    }

    /// The same without flows of more than so many bytes, at least 1, which become that large.
    pub fn at_most(&self, bytes: u64) -> FlowSizes {
        let bytes = bytes.max(1);
        let mut points: Vec<Point> =
            self.points.iter().copied().filter(|point| point.bytes < bytes).collect();
        if points.len() < self.points.len() {
            let share = self.share_below(bytes);
            points.extend([Point { bytes, at_most_ppm: share }, Point { bytes, at_most_ppm: PPM }]);
            if points[0].at_most_ppm > 0 {
                points.insert(0, Point { bytes, at_most_ppm: 0 });
            }
        }
        FlowSizes { name: Arc::clone(&self.name), points: points.into() }
    }

    /// The share of flows smaller than this, millionths.
    fn share_below(&self, bytes: u64) -> u32 {
        for w in self.points.windows(2) {
            if w[0].bytes < bytes && bytes <= w[1].bytes {
                let within = u64::from(w[1].at_most_ppm - w[0].at_most_ppm) * (bytes - w[0].bytes);
                return w[0].at_most_ppm + (within / (w[1].bytes - w[0].bytes)) as u32;
            }
        }
        if self.points.first().is_some_and(|first| bytes <= first.bytes) { 0 } else { PPM }
    }

    fn of_packets(name: &str, table: &[(u64, u32)]) -> FlowSizes {
        let point = |(packets, at_most_ppm)| Point { bytes: packets * TABLE_PACKET_BYTES, at_most_ppm };
        FlowSizes { name: name.into(), points: table.iter().copied().map(point).collect() }
    }

    /// Returns the name in plans.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the points of the distribution.
    pub fn points(&self) -> &[Point] {
        &self.points
    }

    /// The mean size, bytes, rounded down; at least 1.
    pub fn mean_bytes(&self) -> u64 {
        let twice_ppm: u128 = self
            .points
            .windows(2)
            .map(|w| {
                u128::from(w[1].at_most_ppm - w[0].at_most_ppm)
                    * (u128::from(w[0].bytes) + u128::from(w[1].bytes))
            })
            .sum();
        ((twice_ppm / (2 * u128::from(PPM))) as u64).max(1)
    }

    /// The size below which this share of flows lies, in 2^-32.
    pub fn quantile(&self, share: u32) -> u64 {
        let at = u64::from(share) * u64::from(PPM);
        let fine = |ppm: u32| u64::from(ppm) << 32;
        for w in self.points.windows(2) {
            let (from, to) = (fine(w[0].at_most_ppm), fine(w[1].at_most_ppm));
            if at < to {
                let within = u128::from(w[1].bytes - w[0].bytes) * u128::from(at - from);
                return w[0].bytes + (within / u128::from(to - from)) as u64;
            }
        }
        self.points.last().map_or(1, |p| p.bytes)
    }
}

/// A flow that starts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Arrival {
    /// When, microseconds from the workload's start.
    pub start_us: u64,
    /// The flow's payload, bytes.
    pub bytes: u64,
}

/// A flow that starts between two hosts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HostArrival {
    /// When, microseconds from the workload's start.
    pub start_us: u64,
    /// The flow's payload, bytes.
    pub bytes: u64,
    /// The host that sends.
    pub from: usize,
    pub to: usize,
    /// The application's number on its host.
    pub application: u16,
}

/// Flows of a Poisson process, for ever, in order of time.
#[derive(Clone, Debug)]
pub struct Arrivals {
    sizes: FlowSizes,
    mean_gap_ns: u64,
    now_ns: u64,
    random: Random,
}

impl Arrivals {
    /// Flows that load a link of this capacity by this share, in millionths, of payload.
    ///
    /// # Errors
    /// A load or capacity outside its limits.
    pub fn new(
        sizes: &FlowSizes,
        load_ppm: u32,
        capacity_bit_per_s: u64,
        seed: u64,
    ) -> Result<Arrivals, WorkloadError> {
        if !(1..=MAX_LOAD_PPM).contains(&load_ppm) {
            return Err(WorkloadError::Load { found: load_ppm });
        }
        if !(1..=MAX_CAPACITY_BIT_PER_S).contains(&capacity_bit_per_s) {
            return Err(WorkloadError::Capacity { found: capacity_bit_per_s });
        }
        const NS_PER_S: u128 = 1_000_000_000;
        let bits_ns_ppm = u128::from(sizes.mean_bytes()) * 8 * NS_PER_S * u128::from(PPM);
        let gap_ns = bits_ns_ppm / (u128::from(load_ppm) * u128::from(capacity_bit_per_s));
        Ok(Arrivals {
            sizes: sizes.clone(),
            mean_gap_ns: u64::try_from(gap_ns).unwrap_or(u64::MAX).max(1),
            now_ns: 0,
            random: Random::new(seed, 0),
        })
    }

    /// Mean time between two flows, nanoseconds.
    pub fn mean_gap_ns(&self) -> u64 {
        self.mean_gap_ns
    }
}

impl Iterator for Arrivals {
    type Item = Arrival;

    fn next(&mut self) -> Option<Arrival> {
        let gap_ns = scaled(self.mean_gap_ns, self.random.exponential());
        self.now_ns = self.now_ns.saturating_add(gap_ns);
        let bytes = self.sizes.quantile(self.random.share()).max(1);
        Some(Arrival { start_us: self.now_ns / 1000, bytes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_tables_have_their_published_means() {
        // 1140.9 and 5116 packets.
        assert_eq!(FlowSizes::web_search().mean_bytes() / TABLE_PACKET_BYTES, 1140);
        assert_eq!(FlowSizes::data_mining().mean_bytes() / TABLE_PACKET_BYTES, 5116);
        assert_eq!(FlowSizes::fixed(777).mean_bytes(), 777);
        for sizes in [FlowSizes::web_search(), FlowSizes::data_mining()] {
            assert_eq!(FlowSizes::new(sizes.name(), sizes.points()), Ok(sizes.clone()));
            assert_eq!(FlowSizes::named(sizes.name()), Some(sizes));
        }
    }

    #[test]
    fn quantiles_lie_on_the_table() {
        let sizes = FlowSizes::web_search();
        let at = |percent: u64| sizes.quantile((percent * (1 << 32) / 100) as u32);
        assert_eq!((sizes.quantile(0), at(10)), (8_760, 8_760));
        assert!(at(50).abs_diff((33 + 20 * 10 / 13) * TABLE_PACKET_BYTES) < TABLE_PACKET_BYTES);
        assert!(at(90).abs_diff(3333 * TABLE_PACKET_BYTES) < 10);
        assert!(sizes.quantile(u32::MAX) <= 20_000 * TABLE_PACKET_BYTES);
    }

    #[test]
    fn the_load_is_the_one_asked_for() {
        for sizes in [FlowSizes::web_search(), FlowSizes::fixed(50_000)] {
            let arrivals = Arrivals::new(&sizes, 500_000, 1_000_000_000, 7).unwrap();
            let (mut bytes, mut count, end_us) = (0u64, 0u64, 1_000_000_000);
            for flow in arrivals.take_while(|flow| flow.start_us < end_us) {
                bytes += flow.bytes;
                count += 1;
            }
            // 500 Mb/s over 1000 s, within 3 %.
            let offered = 500_000_000 / 8 * (end_us / 1_000_000);
            assert!(bytes.abs_diff(offered) < offered / 33, "{}: {bytes} of {offered}", sizes.name());
            assert!((count * sizes.mean_bytes()).abs_diff(offered) < offered / 33, "{count}");
        }
    }

    /// Counts of a Poisson process over equal times have a variance like their mean.
    #[test]
    fn arrivals_are_poisson() {
        let arrivals = Arrivals::new(&FlowSizes::fixed(1250), PPM, 1_000_000, 3).unwrap();
        let mut counts = vec![0i64; 2000];
        for flow in arrivals {
            let Some(count) = counts.get_mut((flow.start_us / 200_000) as usize) else { break };
            *count += 1;
        }
        let (n, sum): (i64, i64) = (counts.len() as i64, counts.iter().sum());
        // 20 a bin: six standard deviations of the sum are 6 * sqrt(40,000).
        assert!((sum - 20 * n).abs() < 1200, "{sum}");
        let squares: i64 = counts.iter().map(|c| (n * c - sum).pow(2) / n).sum();
        let dispersion_percent = 100 * squares / (n - 1) / sum;
        assert!((85..=115).contains(&dispersion_percent), "{dispersion_percent}");
    }

    #[test]
    fn a_seed_gives_the_same_flows_everywhere() {
        let first = |seed| {
            let sizes = FlowSizes::web_search();
            Arrivals::new(&sizes, 500_000, 192_000_000, seed).unwrap().take(4).collect::<Vec<_>>()
        };
        let golden = first(1).iter().map(|a| (a.start_us, a.bytes)).collect::<Vec<_>>();
        assert_eq!(golden, GOLDEN);
        assert_ne!(first(1), first(2));
    }

    const GOLDEN: [(u64, u64); 4] =
        [(126_338, 19_205_486), (342_297, 188_440), (552_914, 2_893_877), (565_457, 1_076_989)];

    #[test]
    fn a_distribution_without_its_largest_flows_keeps_the_others() {
        let (all, most) = (FlowSizes::data_mining(), FlowSizes::data_mining().at_most(10_000_000));
        for percent in 0..100_u64 {
            let share = (percent * (1 << 32) / 100) as u32;
            assert!(all.quantile(share).min(10_000_000).abs_diff(most.quantile(share)) <= 200, "{percent}");
        }
        assert_eq!(FlowSizes::new("x", most.points()).unwrap().points(), most.points());
        assert_eq!(FlowSizes::web_search().at_most(1 << 40), FlowSizes::web_search());
        assert_eq!(FlowSizes::fixed(777).at_most(5).mean_bytes(), 5);
    }

    #[test]
    fn refuses_what_is_no_distribution() {
        let point = |bytes, at_most_ppm| Point { bytes, at_most_ppm };
        let refusal = |points: &[Point]| FlowSizes::new("x", points).unwrap_err().to_string();
        assert_eq!(refusal(&[point(1, 0)]), "1 points; a distribution has 2 to 1024");
        assert_eq!(
            refusal(&[point(9, 0), point(8, PPM)]),
            "point 1: 8 bytes at 1000000 ppm does not continue the distribution"
        );
        assert_eq!(refusal(&[point(1, 0), point(2, 7)]), "shares go from 0 to 7 ppm, not from 0 to 1000000");
        assert!(Arrivals::new(&FlowSizes::fixed(1), 0, 1, 1).is_err());
        assert!(Arrivals::new(&FlowSizes::fixed(1), 1, 0, 1).is_err());
    }

    proptest! {
        #[test]
        fn quantiles_never_decrease(a: u32, b: u32) {
            for sizes in [FlowSizes::web_search(), FlowSizes::data_mining()] {
                prop_assert!(sizes.quantile(a.min(b)) <= sizes.quantile(a.max(b)));
            }
        }
    }
}
