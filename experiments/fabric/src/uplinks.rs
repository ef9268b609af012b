//! Fabrics whose paths differ: one uplink is slow, or one fails for a while.

use crate::fabric::{Fabric, FabricChange};
use ccplane_netsim::{LeafSpine, LinkChange};
use serde::Deserialize;

/// The leaf whose uplink is another than the others', and the spine that it leads to.
const LEAF: usize = 0;
const SPINE: usize = 1;
/// The share of its rate that a slow uplink has.
pub(crate) const SLOW_PARTS: u64 = 4;
/// The times for which a failed uplink loses everything, and works between, microseconds.
const FAILED_US: u64 = 20_000;
const WORKS_US: u64 = 40_000;
/// Failures of one trial.
const FAILURES: u64 = 1000;
const ALL_PPM: u32 = 1_000_000;

/// The state of a fabric's uplinks.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Uplinks {
    /// All paths are alike.
    #[default]
    Even,
    /// The links between one leaf and one spine have a quarter of their rate, both ways.
    Slow,
    /// The links between one leaf and one spine lose everything for 20 of each 60 ms, both ways, as one that flaps. No route is
    /// withdrawn meanwhile.
    Failed,
}

impl Uplinks {
    /// Returns the name in plans and reports.
    pub fn name(self) -> &'static str {
        match self {
            Uplinks::Even => "even",
            Uplinks::Slow => "slow uplink",
            Uplinks::Failed => "failed uplink",
        }
    }

    /// Gives a fabric these uplinks.
    pub fn apply(self, fabric: &mut Fabric) {
        let links = links(&fabric.shape);
        let change = |at_us: u64, change: LinkChange| links.map(|link| FabricChange { at_us, link, change });
        fabric.changes = match self {
            Uplinks::Even => Vec::new(),
            Uplinks::Slow => {
                let bit_per_s = Some(fabric.core_bit_per_s / SLOW_PARTS);
                change(0, LinkChange { bit_per_s, ..LinkChange::default() }).into()
            }
            Uplinks::Failed => (0..FAILURES)
                .flat_map(|n| {
                    let fails_us = n * (FAILED_US + WORKS_US) + WORKS_US / 2;
                    let loss = |loss_ppm| LinkChange { loss_ppm: Some(loss_ppm), ..LinkChange::default() };
                    let pair = [change(fails_us, loss(ALL_PPM)), change(fails_us + FAILED_US, loss(0))];
                    pair.into_iter().flatten()
                })
                .collect(),
        };
    }

    /// Whether a route's links are down at a moment, or will be before another one.
    pub(crate) fn is_down(self, shape: &LeafSpine, route: &[u8], from_us: u64, until_us: u64) -> bool {
        let phase_us = from_us % (FAILED_US + WORKS_US);
        let mut fails_us = from_us - phase_us + WORKS_US / 2;
        if fails_us + FAILED_US <= from_us {
            fails_us += FAILED_US + WORKS_US;
        }
        let fails = fails_us <= until_us.max(from_us);
        self == Uplinks::Failed && fails && links(shape).iter().any(|link| route.contains(link))
    }
}

/// The links up and down between the leaf and the spine.
fn links(shape: &LeafSpine) -> [u8; 2] {
    [shape.to_spine(LEAF, SPINE), shape.from_spine(LEAF, SPINE)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_uplink_is_down_exactly_between_its_changes() {
        let mut fabric = Fabric::new(16, 10_000_000_000);
        Uplinks::Failed.apply(&mut fabric);
        assert!(fabric.changes.is_sorted_by_key(|change| change.at_us));
        let (own, other) = (fabric.shape.to_spine(LEAF, SPINE), fabric.shape.to_spine(LEAF, SPINE + 1));
        let lost = |at_us: u64, link: u8| {
            let mut before = fabric.changes.iter().filter(|c| c.link == link && c.at_us <= at_us);
            before.next_back().and_then(|c| c.change.loss_ppm).unwrap_or(0) > 0
        };
        for at_us in (0..1_000_000).step_by(777) {
            let is_down =
                |link, later_us| Uplinks::Failed.is_down(&fabric.shape, &[link], at_us, at_us + later_us);
            assert_eq!(is_down(own, 0), lost(at_us, own), "{at_us}");
            let soon = (0..=9000).step_by(500).any(|later_us| lost(at_us + later_us, own));
            assert_eq!(is_down(own, 9000), soon, "{at_us}");
            assert!(!is_down(other, 1_000_000) && !lost(at_us, other));
        }
    }

    #[test]
    fn a_slow_uplink_has_a_quarter_of_its_rate() {
        let mut fabric = Fabric::new(16, 10_000_000_000);
        Uplinks::Slow.apply(&mut fabric);
        let rates: Vec<_> =
            fabric.changes.iter().map(|change| (change.at_us, change.change.bit_per_s)).collect();
        assert_eq!(rates, [(0, Some(2_500_000_000)); 2]);
        Uplinks::Even.apply(&mut fabric);
        assert!(fabric.changes.is_empty());
    }
}
