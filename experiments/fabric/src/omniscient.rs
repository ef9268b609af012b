//! Oracles for paths: they know flows' sizes, what every link still has to carry, and which links are slow or down.
//!
//! They choose a flow's path once, when the flow starts, and at once. One foresees failures: it takes no path that fails before the flow
//! has ended, as far as it can tell. The other one hears of each failure a moment after it has begun, as the network itself might.

use crate::fabric::Fabric;
use crate::uplinks::Uplinks;
use ccplane_netsim::PathConfig;
use std::collections::BTreeMap;

/// The time after which an oracle that foresees nothing hears that a link is down, or up again, microseconds.
const HEARS_US: u64 = 10;

/// An oracle that chooses paths.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PathOracle {
    /// The uplinks that it knows of.
    pub uplinks: Uplinks,
    /// Whether it knows when they will fail.
    pub foresees: bool,
}

/// The flows that links still have to carry.
#[derive(Debug)]
pub(crate) struct Omniscient {
    oracle: PathOracle,
    /// Rates that are other than the fabric's, by link.
    rates: BTreeMap<u8, u64>,
    /// Flows that run: their links, and their bytes that are not yet acknowledged.
    flows: BTreeMap<u64, (Vec<u8>, u64)>,
}

impl Omniscient {
    pub(crate) fn new(fabric: &Fabric, oracle: PathOracle) -> Omniscient {
        let rate = |change: &crate::fabric::FabricChange| Some((change.link, change.change.bit_per_s?));
        Omniscient { oracle, rates: fabric.changes.iter().filter_map(rate).collect(), flows: BTreeMap::new() }
    }

    /// Leaves a flow the one path on which it ends first, and notes it under its number.
    pub(crate) fn choose(
        &mut self,
        fabric: &Fabric,
        flow: u64,
        path: &mut PathConfig,
        bytes: u64,
        now_us: u64,
    ) {
        let routes = std::iter::once(&path.links).chain(&path.other_routes);
        let ends_ns = |route: &Vec<u8>| {
            let core = route.iter().filter(|link| usize::from(**link) >= 2 * fabric.shape.hosts());
            let slowest = core.map(|link| {
                // Flows share a link: of each other one no more than its own bytes passes before it has ended.
                let others = self.flows.values().filter(|(links, _)| links.contains(link));
                let waiting: u64 = others.map(|(_, left)| (*left).min(bytes)).sum();
                let rate = self.rates.get(link).copied().unwrap_or(fabric.core_bit_per_s).max(1);
                u128::from(waiting + bytes) * 8_000_000_000 / u128::from(rate)
            });
            let ends_ns = slowest.max().unwrap_or(0);
            let until_us = now_us.saturating_add(u64::try_from(ends_ns / 1000).unwrap_or(u64::MAX));
            (self.is_down(fabric, route, now_us, until_us), ends_ns)
        };
        let Some(best) = routes.min_by_key(|route| ends_ns(route)).cloned() else { return };
        path.links.clone_from(&best);
        path.other_routes.clear();
        self.flows.insert(flow, (best, bytes));
    }

    /// Whether a route is down for a flow that would end at `until_us`, as far as this oracle can know.
    fn is_down(&self, fabric: &Fabric, route: &[u8], now_us: u64, until_us: u64) -> bool {
        let PathOracle { uplinks, foresees } = self.oracle;
        if foresees {
            return uplinks.is_down(&fabric.shape, route, now_us, until_us);
        }
        let heard_us = now_us.saturating_sub(HEARS_US);
        uplinks.is_down(&fabric.shape, route, heard_us, heard_us)
    }

    /// Whether the flow runs, as far as it was told.
    pub(crate) fn knows(&self, flow: u64) -> bool {
        self.flows.contains_key(&flow)
    }

    /// Notes what a flow still has to carry; nothing of one that has ended.
    pub(crate) fn left(&mut self, flow: u64, bytes: Option<u64>) {
        match bytes {
            None => drop(self.flows.remove(&flow)),
            Some(bytes) => {
                if let Some((_, left)) = self.flows.get_mut(&flow) {
                    *left = bytes;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ccplane_netsim::workload::HostArrival;

    /// The uplinks that a flow of so many bytes which starts then is left with.
    fn chosen(foresees: bool, bytes: u64, now_us: u64) -> Vec<u8> {
        let mut fabric = Fabric::new(16, 10_000_000_000);
        Uplinks::Failed.apply(&mut fabric);
        let mut oracle = Omniscient::new(&fabric, PathOracle { uplinks: Uplinks::Failed, foresees });
        // Other paths are busy, so that it takes the one that fails as long as it may.
        let failing = fabric.shape.to_spine(0, 1);
        let arrival = HostArrival { start_us: now_us, bytes, from: 0, to: 5, application: 0 };
        let of_other = || fabric.flow(&arrival, 0).path;
        let all = of_other();
        let routes = std::iter::once(&all.links).chain(&all.other_routes);
        for (n, route) in (0..).zip(routes.filter(|route| !route.contains(&failing))) {
            oracle.flows.insert(1000 + n, (route.clone(), 1 << 30));
        }
        let mut path = of_other();
        oracle.choose(&fabric, 1, &mut path, bytes, now_us);
        assert!(path.other_routes.is_empty());
        path.links.iter().copied().filter(|link| *link == failing).collect()
    }

    #[test]
    fn one_oracle_foresees_a_failure_and_the_other_one_hears_of_it() {
        // The link fails at 20 ms for 20 ms. This flow takes 8 ms.
        let bytes = 10_000_000;
        for (now_us, foreseen, heard) in [
            (5_000, true, true),
            (15_000, false, true),
            (20_000 + HEARS_US - 1, false, true),
            (20_000 + HEARS_US, false, false),
            (40_000 + HEARS_US - 1, true, false),
            (40_000 + HEARS_US, true, true),
        ] {
            let takes = |foresees| !chosen(foresees, bytes, now_us).is_empty();
            assert_eq!((takes(true), takes(false)), (foreseen, heard), "at {now_us} us");
        }
    }
}
