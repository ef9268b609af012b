//! Flows between the hosts of a fabric, whose sizes can be predicted from earlier ones to a stated degree.
//!
//! Each host runs applications, each of which sends to some destinations. Such a pair of application and destination has a usual
//! size, drawn from the distribution, which it keeps for a regime of some flows. A flow has its pair's usual size, an eighth more
//! or less, with a stated probability, else one drawn afresh. Whatever that probability, sizes have the same distribution and
//! flows arrive as a Poisson process over all pairs.

use super::playback::Copies;
use super::{Arrivals, FlowSizes, HostArrival, MAX_PAIRS, PPM, Playback, Random, WorkloadError, within};

/// Hosts of one workload.
pub const MAX_HOSTS: usize = 256;
/// Parts of a usual size by which a flow of its pair may be more or less.
const SPREAD: u64 = 8;

/// The seeds' use: no flow of one is a flow of another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Split {
    Train,
    Validation,
    Test,
}

/// The number of splits.
const SPLITS: u64 = 3;

/// The pairs of a workload, and how far their sizes repeat.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Structure {
    pub hosts: usize,
    /// Applications of each host; each has a port of its own.
    pub applications: u16,
    /// Destinations of each application.
    pub destinations: usize,
    /// Probability that a flow has the usual size of its pair, millionths.
    pub predictable_ppm: u32,
    /// Flows for which a pair keeps its usual size, on average.
    pub regime_flows: u32,
}

impl Structure {
    /// Sixteen applications on each host, each with four destinations, whose usual sizes last for 32 flows.
    pub fn new(hosts: usize, predictable_ppm: u32) -> Structure {
        Structure { hosts, applications: 16, destinations: 4, predictable_ppm, regime_flows: 32 }
    }

    fn pairs(&self) -> usize {
        usize::from(self.applications).saturating_mul(self.destinations)
    }

    fn check(&self) -> Result<(), WorkloadError> {
        within("hosts", self.hosts as u64, 2, MAX_HOSTS as u64)?;
        within("destinations", self.destinations as u64, 1, self.hosts as u64 - 1)?;
        within("pairs of a host", self.pairs() as u64, 1, MAX_PAIRS as u64)?;
        within("predictable", self.predictable_ppm.into(), 0, PPM.into())?;
        within("flows of a regime", self.regime_flows.into(), 1, PPM.into())
    }
}

/// Flows between hosts, for ever, in order of time.
#[derive(Clone, Debug)]
pub struct HostArrivals {
    arrivals: Arrivals,
    random: Random,
    source: Source,
}

/// The origin of the flows' sizes and ends.
#[derive(Clone, Debug)]
enum Source {
    Drawn(Drawn),
    Played(Copies),
}

/// Pairs of application and destination whose flows are drawn.
#[derive(Clone, Debug)]
struct Drawn {
    sizes: FlowSizes,
    structure: Structure,
    /// Offsets from a host to the destinations of its applications, which are the same for all: so each host receives as much.
    offsets: Vec<usize>,
    /// The usual size of each pair, bytes, host by host.
    usual: Vec<u64>,
}

impl HostArrivals {
    /// Flows that load each host's link of this capacity by this share, in millionths, of payload.
    ///
    /// # Errors
    /// A load, a capacity or a structure outside its limits.
    pub fn new(
        sizes: &FlowSizes,
        load_ppm: u32,
        capacity_bit_per_s: u64,
        structure: Structure,
        (split, seed): (Split, u64),
    ) -> Result<HostArrivals, WorkloadError> {
        structure.check()?;
        let seed = seed_of(split, seed);
        let mut random = Random::new(seed, 1);
        let arrivals = of_all_hosts(sizes, load_ppm, capacity_bit_per_s, structure.hosts, seed)?;
        let others = structure.hosts - 1;
        let offsets = (0..structure.applications).flat_map(|_| {
            let first = random.up_to(others as u64 - 1) as usize;
            (first..first + structure.destinations).map(move |n| 1 + n % others)
        });
        let offsets = offsets.collect();
        let usual =
            (0..structure.hosts * structure.pairs()).map(|_| sizes.quantile(random.share())).collect();
        let source = Source::Drawn(Drawn { sizes: sizes.clone(), structure, offsets, usual });
        Ok(HostArrivals { arrivals, random, source })
    }

    /// Recorded transfers that load each of so many hosts' links of this capacity by this share, in millionths, of payload.
    ///
    /// As many copies of the recording as there are hosts are played at once, so that each host is each of the recording's ends once. A
    /// copy keeps the order of its transfers and begins anew behind the last; when which copy goes on is a Poisson process, and the first
    /// transfer of each is drawn.
    ///
    /// # Errors
    /// A load, a capacity or a number of hosts outside its limits.
    pub fn played(
        playback: &Playback,
        load_ppm: u32,
        capacity_bit_per_s: u64,
        hosts: usize,
        (split, seed): (Split, u64),
    ) -> Result<HostArrivals, WorkloadError> {
        within("hosts", hosts as u64, 2, MAX_HOSTS as u64)?;
        let seed = seed_of(split, seed);
        let mut random = Random::new(seed, 1);
        let mean = FlowSizes::fixed(playback.mean_bytes());
        let arrivals = of_all_hosts(&mean, load_ppm, capacity_bit_per_s, hosts, seed)?;
        let source = Source::Played(Copies::new(playback, hosts, &mut random));
        Ok(HostArrivals { arrivals, random, source })
    }

    /// Returns sizes that each pair had before the first arrival, `count` for each, oldest first; none has a time.
    ///
    /// Of a recording that is played there are no more than it has.
    pub fn past(&mut self, count: usize) -> Vec<HostArrival> {
        match &mut self.source {
            Source::Drawn(drawn) => drawn.past(count, &mut self.random),
            Source::Played(copies) => copies.past(count),
        }
    }
}

/// The seed of a split's flows.
fn seed_of(split: Split, seed: u64) -> u64 {
    seed.wrapping_mul(SPLITS).wrapping_add(split as u64)
}

/// Arrivals of all hosts together, of which each loads its link so much.
fn of_all_hosts(
    sizes: &FlowSizes,
    load_ppm: u32,
    capacity_bit_per_s: u64,
    hosts: usize,
    seed: u64,
) -> Result<Arrivals, WorkloadError> {
    let mut arrivals = Arrivals::new(sizes, load_ppm, capacity_bit_per_s, seed)?;
    arrivals.mean_gap_ns = (arrivals.mean_gap_ns / hosts as u64).max(1);
    Ok(arrivals)
}

impl Drawn {
    fn past(&mut self, count: usize, random: &mut Random) -> Vec<HostArrival> {
        let pairs = self.structure.hosts * self.structure.pairs();
        let times = std::iter::repeat_n(0..pairs, count).flatten();
        let past = times.map(|pair| self.arrive(pair, 0, random));
        past.collect()
    }

    fn next(&mut self, start_us: u64, random: &mut Random) -> HostArrival {
        let pair = random.up_to(self.usual.len() as u64 - 1) as usize;
        self.arrive(pair, start_us, random)
    }

    fn arrive(&mut self, pair: usize, start_us: u64, random: &mut Random) -> HostArrival {
        let Structure { hosts, predictable_ppm, regime_flows, destinations, .. } = self.structure;
        let (from, own) = (pair / self.structure.pairs(), pair % self.structure.pairs());
        if random.up_to(u64::from(regime_flows) - 1) == 0 {
            self.usual[pair] = self.sizes.quantile(random.share());
        }
        let repeats = random.up_to(u64::from(PPM) - 1) < predictable_ppm.into();
        let (usual, fresh) = (self.usual[pair], self.sizes.quantile(random.share()));
        let spread = usual / SPREAD;
        let near = usual - spread + random.up_to(2 * spread);
        HostArrival {
            start_us,
            bytes: if repeats { near } else { fresh }.max(1),
            from,
            to: (from + self.offsets[own]) % hosts,
            application: (own / destinations) as u16,
        }
    }
}

impl Iterator for HostArrivals {
    type Item = HostArrival;

    fn next(&mut self) -> Option<HostArrival> {
        let start_us = self.arrivals.next()?.start_us;
        Some(match &mut self.source {
            Source::Drawn(drawn) => drawn.next(start_us, &mut self.random),
            Source::Played(copies) => copies.next(start_us, &mut self.random),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    fn flows(predictable_ppm: u32, split: Split, seed: u64) -> HostArrivals {
        let structure = Structure::new(8, predictable_ppm);
        HostArrivals::new(&FlowSizes::web_search(), 500_000, 10_000_000_000, structure, (split, seed))
            .unwrap()
    }

    #[test]
    fn sizes_have_the_distribution_and_the_load_whatever_repeats() {
        for predictable_ppm in [0, 500_000, PPM] {
            let all: Vec<HostArrival> = flows(predictable_ppm, Split::Test, 3).take(100_000).collect();
            let below = all.iter().filter(|flow| flow.bytes <= 53 * 1460).count();
            assert!((51_000..55_000).contains(&below), "{predictable_ppm}: {below}");
            let bytes: u64 = all.iter().map(|flow| flow.bytes).sum();
            let seconds = all.last().unwrap().start_us as f64 / 1e6;
            let load = bytes as f64 * 8.0 / seconds / 8.0 / 1e10;
            assert!((load - 0.5).abs() < 0.05, "{predictable_ppm}: {load}");
        }
    }

    #[test]
    fn hosts_send_and_receive_alike_and_pairs_stay() {
        let mut sent = [0; 8];
        let mut received = [0; 8];
        let mut destinations: BTreeMap<(usize, u16), Vec<usize>> = BTreeMap::new();
        for flow in flows(0, Split::Test, 1).take(80_000) {
            assert_ne!(flow.from, flow.to);
            sent[flow.from] += 1;
            received[flow.to] += 1;
            let of = destinations.entry((flow.from, flow.application)).or_default();
            if !of.contains(&flow.to) {
                of.push(flow.to);
            }
        }
        for count in sent.iter().chain(&received) {
            assert!((9_500..10_500).contains(count), "{sent:?} {received:?}");
        }
        assert_eq!(destinations.len(), 8 * 16);
        assert!(destinations.values().all(|to| to.len() == 4));
    }

    /// The share of flows whose size is within a quarter of that of their pair's flow before.
    fn repeats(predictable_ppm: u32) -> f64 {
        let mut last: BTreeMap<(usize, u16, usize), u64> = BTreeMap::new();
        let (mut near, mut all) = (0, 0);
        for flow in flows(predictable_ppm, Split::Test, 5).take(100_000) {
            if let Some(before) = last.insert((flow.from, flow.application, flow.to), flow.bytes) {
                all += 1;
                near += usize::from(flow.bytes.abs_diff(before) * 3 <= before);
            }
        }
        f64::from(near as u32) / f64::from(all)
    }

    #[test]
    fn sizes_repeat_to_the_stated_degree() {
        let (none, half, full) = (repeats(0), repeats(500_000), repeats(PPM));
        assert!(none < 0.2, "{none}");
        // Both of two flows are usual ones in a quarter of the cases.
        assert!((half - (none + 0.25 * (full - none))).abs() < 0.05, "{none} {half} {full}");
        assert!(full > 0.9, "{full}");
    }

    #[test]
    fn splits_and_seeds_are_disjoint_and_repeat_themselves() {
        let first = |split, seed| flows(700_000, split, seed).take(64).collect::<Vec<_>>();
        assert_eq!(first(Split::Train, 1), first(Split::Train, 1));
        for (split, seed) in [(Split::Validation, 1), (Split::Test, 1), (Split::Train, 2)] {
            assert_ne!(first(Split::Train, 1), first(split, seed));
        }
        let mut with_past = flows(PPM, Split::Test, 1);
        assert_eq!(with_past.past(4).len(), 4 * 8 * 64);
    }

    #[test]
    fn what_is_no_structure_is_refused() {
        let sizes = FlowSizes::fixed(1000);
        let refused = |structure| {
            HostArrivals::new(&sizes, PPM, 1_000_000, structure, (Split::Test, 1)).unwrap_err().to_string()
        };
        assert_eq!(refused(Structure::new(1, 0)), "hosts is 1, allowed are 2..=256");
        let crowded = Structure { destinations: 8, ..Structure::new(8, 0) };
        assert_eq!(refused(crowded), "destinations is 8, allowed are 1..=7");
        let crowded = Structure { applications: 2000, ..Structure::new(8, 0) };
        assert_eq!(refused(crowded), "pairs of a host is 8000, allowed are 1..=4096");
    }
}
