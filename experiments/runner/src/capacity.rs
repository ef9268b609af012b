//! The capacity of links over time, for reports.

use ccplane_netsim::trace::{OPPORTUNITY_BYTES, Trace};
use ccplane_results::Capacity;

use crate::plan::{Medium, PlanLink};

/// A trace's opportunities are counted in bins of this length.
const BIN_MS: u64 = 250;
/// Bits of one opportunity, as mahimahi counts them: 1500 bytes of IP packet and 4 of the device's header.
const OPPORTUNITY_BITS: u64 = OPPORTUNITY_BYTES as u64 * 8;

/// A trace's capacity from its start on, in bins of 250 ms: each one's start and bits per second.
pub fn of_trace(trace: &Trace, repeat: bool, duration_ms: u64) -> impl Iterator<Item = (u64, u64)> {
    let mut opportunities = trace.schedule(repeat).peekable();
    (0..duration_ms).step_by(BIN_MS as usize).map(move |t_ms| {
        let bin_ms = BIN_MS.min(duration_ms - t_ms);
        let mut count = 0;
        while opportunities.next_if(|at_ms| *at_ms < t_ms + bin_ms).is_some() {
            count += 1;
        }
        (t_ms, count * OPPORTUNITY_BITS * 1000 / bin_ms)
    })
}

/// A plan's link; empty where it has no limit.
fn of_medium(medium: &Medium, duration_ms: u64) -> Vec<Capacity> {
    match medium {
        Medium::Veth | Medium::Unlimited => Vec::new(),
        Medium::Rate(bit_per_s) => vec![Capacity { t_ms: 0, capacity_bps: *bit_per_s }],
        Medium::Trace { trace, .. } => {
            let bins = of_trace(trace, true, duration_ms);
            bins.map(|(t_ms, capacity_bps)| Capacity { t_ms, capacity_bps }).collect()
        }
    }
}

/// The same with its changes.
pub(crate) fn of_link(link: &PlanLink, duration_ms: u64) -> Vec<Capacity> {
    let mut steps = of_medium(&link.medium, duration_ms);
    let changed = link.changes.iter().filter_map(|c| Some((c.at_ms, c.bit_per_s?)));
    steps.extend(changed.map(|(t_ms, capacity_bps)| Capacity { t_ms, capacity_bps }));
    steps
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bins_count_opportunities() {
        // One opportunity at 100 ms, three at 400 ms; a lap lasts 400 ms.
        let trace = Trace::parse("100\n400\n400\n400\n").unwrap();
        let bins: Vec<_> = of_trace(&trace, true, 600).collect();
        let per_bin = OPPORTUNITY_BITS * 4;
        // 100 | 400 400 400 | 500 falls into the last, shorter bin.
        assert_eq!(bins, [(0, per_bin), (250, 3 * per_bin), (500, OPPORTUNITY_BITS * 10)]);
    }
}
