//! The time from the last rival's end until the queue is short again: how soon a flow stops competing.
//!
//! Any algorithm shows it, whatever its states: the queue is what the smoothed RTT exceeds the flow's smallest RTT by. A flow whose
//! window is small by chance when its rivals leave counts as there at once.

use ccplane_results::{FlowResult, RunFigures};

/// A queue is short up to this part of the flow's smallest RTT.
const SHORT_QUEUE_PART: u64 = 4;
/// A queue is short up to this, too, microseconds.
const SHORT_QUEUE_US: u64 = 2_000;
/// The time that the queue has to stay short, milliseconds.
const HOLD_MS: u64 = 1_000;

/// The time that a flow took after its last rival had ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Leaving {
    /// Until the queue is short and stays so, milliseconds; until the flow's end if it never does.
    pub after_ms: u64,
    /// Whether the queue ever is short for so long.
    pub reached: bool,
}

/// Returns one for each of the contender's own flows; none without rivals, or where they leave within the flow's last second.
pub fn leavings<'a>(own: impl Iterator<Item = &'a FlowResult>, measured: &RunFigures) -> Vec<Leaving> {
    let rivals = measured.flows.iter().filter(|f| f.background.is_some());
    let Some(left_ms) = rivals.map(|f| f.end_ms).max() else { return Vec::new() };
    own.filter_map(|flow| leaving(flow, left_ms)).collect()
}

fn leaving(flow: &FlowResult, left_ms: u64) -> Option<Leaving> {
    let rest_ms = flow.end_ms.checked_sub(left_ms).filter(|ms| *ms >= HOLD_MS && flow.min_rtt_us > 0)?;
    let short_us = flow.min_rtt_us.saturating_add((flow.min_rtt_us / SHORT_QUEUE_PART).max(SHORT_QUEUE_US));
    let samples = flow.series.t_ms.iter().zip(&flow.series.srtt_us);
    let mut since_ms = left_ms;
    for (t_ms, srtt_us) in samples.filter(|(t_ms, srtt_us)| **t_ms > left_ms && **srtt_us > 0) {
        if *srtt_us > short_us {
            since_ms = *t_ms;
        } else if t_ms.saturating_sub(since_ms) >= HOLD_MS {
            return Some(Leaving { after_ms: since_ms - left_ms, reached: true });
        }
    }
    Some(Leaving { after_ms: rest_ms, reached: false })
}

#[cfg(test)]
mod tests {
    use super::super::figures::{own_flows, value};
    use super::*;
    use ccplane_results::{Metric, Series};

    const LEFT_MS: u64 = 4_000;

    /// A flow of 10 s over 40 ms, a sample each half second, beside one that ends at 4 s.
    fn beside(srtt_us: impl Fn(u64) -> u64) -> RunFigures {
        let t_ms: Vec<u64> = (1..=20).map(|n| n * 500).collect();
        let srtt_us = t_ms.iter().map(|t| srtt_us(*t)).collect();
        let series = Series { t_ms, srtt_us, ..Series::default() };
        let own = FlowResult { end_ms: 10_000, min_rtt_us: 40_000, series, ..FlowResult::default() };
        let rival = FlowResult { end_ms: LEFT_MS, background: Some("cubic".into()), ..own.clone() };
        RunFigures { flows: vec![own, rival], ..RunFigures::default() }
    }

    fn of(measured: &RunFigures) -> Vec<Leaving> {
        leavings(own_flows(measured), measured)
    }

    fn after(srtt_us: impl Fn(u64) -> u64) -> (u64, bool) {
        let found = of(&beside(srtt_us));
        assert_eq!(found.len(), 1, "rivals have none");
        (found[0].after_ms, found[0].reached)
    }

    #[test]
    fn time_counts_from_the_rivals_end_until_the_queue_is_short_for_a_second() {
        assert_eq!(after(|t| if t <= 6_500 { 90_000 } else { 45_000 }), (2_500, true));
        // A quarter of 40 ms is short, a microsecond more is not.
        assert_eq!(after(|_| 50_000), (0, true));
        assert_eq!(after(|_| 50_001), (6_000, false), "to the flow's end");
        // A test that empties the queue for half a second does not count.
        assert_eq!(after(|t| if t == 5_000 || t > 8_000 { 41_000 } else { 90_000 }), (4_000, true));
        // Short before the rival left, and not after: nothing of that counts.
        assert_eq!(after(|t| if t <= LEFT_MS { 40_000 } else { 90_000 }), (6_000, false));
        // Samples without an RTT tell nothing.
        assert_eq!(after(|t| if t <= 5_000 { 0 } else { 90_000 }), (6_000, false));
        let late = beside(|t| if t <= 6_500 { 90_000 } else { 45_000 });
        assert_eq!(value(Metric::ShortQueueUs, &late, 0), Some(2_500_000.0));
    }

    /// Two milliseconds are short however short the path is.
    #[test]
    fn short_paths_have_two_milliseconds() {
        let of = |srtt_us| {
            let mut measured = beside(|_| srtt_us);
            measured.flows[0].min_rtt_us = 1_000;
            of(&measured)[0].reached
        };
        assert!(of(3_000) && !of(3_001));
    }

    #[test]
    fn nothing_is_told_where_nobody_leaves_in_time() {
        let mut measured = beside(|_| 41_000);
        measured.flows[1].end_ms = 9_001;
        assert_eq!(of(&measured), [], "less than a second is left");
        measured.flows[1].end_ms = 9_000;
        assert_eq!(of(&measured).len(), 1);
        measured.flows[0].min_rtt_us = 0;
        assert_eq!(of(&measured), [], "no round trip was measured");
        measured.flows[0].min_rtt_us = 40_000;
        measured.flows.pop();
        assert_eq!(of(&measured), [], "no rivals");
    }
}
