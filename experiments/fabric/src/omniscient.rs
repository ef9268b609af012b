//! An oracle for paths: it knows flows' sizes, what every link still has to carry, and which links are slow or down.
//!
//! It chooses a flow's path once, when the flow starts, and at once: none that fails before the flow has ended, as far as it can tell.

use crate::fabric::Fabric;
use crate::uplinks::Uplinks;
use ccplane_netsim::PathConfig;
use std::collections::BTreeMap;

/// The flows that links still have to carry.
#[derive(Debug)]
pub(crate) struct Omniscient {
    uplinks: Uplinks,
    /// Rates that are other than the fabric's, by link.
    rates: BTreeMap<u8, u64>,
    /// Flows that run: their links, and their bytes that are not yet acknowledged.
    flows: BTreeMap<u64, (Vec<u8>, u64)>,
}

impl Omniscient {
    pub(crate) fn new(fabric: &Fabric, uplinks: Uplinks) -> Omniscient {
        let rate = |change: &crate::fabric::FabricChange| Some((change.link, change.change.bit_per_s?));
        Omniscient {
            uplinks,
            rates: fabric.changes.iter().filter_map(rate).collect(),
            flows: BTreeMap::new(),
        }
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
            (self.uplinks.is_down(&fabric.shape, route, now_us, until_us), ends_ns)
        };
        let Some(best) = routes.min_by_key(|route| ends_ns(route)).cloned() else { return };
        path.links.clone_from(&best);
        path.other_routes.clear();
        self.flows.insert(flow, (best, bytes));
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
