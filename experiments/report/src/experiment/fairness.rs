//! Convergence of several flows to their fair shares.

use ccplane_results::{FlowResult, RunFigures};

use super::figures::{BIN_MS, MAX_BINS, binned, own_flows};

/// The distance of a flow from its fair share, of that share. Band and time are those of PCC (NSDI'15, section
/// 4.2.2).
pub const BAND: f64 = 0.25;
/// The time for which it must stay inside, milliseconds.
pub const HOLD_MS: u64 = 5_000;

/// The convergence of a run's flows to equal shares.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Convergence {
    /// The flows converged this long after the last flow's start, milliseconds.
    After(u64),
    /// Not in this run.
    Never,
}

/// From the last flow's start, when every flow begins to stay within [`BAND`] of the flows' mean throughput for [`HOLD_MS`]. Flows of
/// another algorithm beside the contender's count: their share of the link is as fair. `None` for fewer than two flows, or where they
/// are not all there for so long.
pub fn convergence(measured: &RunFigures) -> Option<Convergence> {
    let flows: Vec<&FlowResult> = measured.flows.iter().collect();
    if flows.len() < 2 || own_flows(measured).next().is_none() {
        return None;
    }
    let start_ms = flows.iter().map(|f| f.start_ms).max()?;
    let end_ms = flows.iter().map(|f| f.end_ms).min()?;
    let bins = usize::try_from(end_ms.checked_sub(start_ms)? / BIN_MS).ok()?;
    let hold = (HOLD_MS / BIN_MS) as usize;
    if bins < hold || bins > MAX_BINS {
        return None;
    }
    let throughputs: Vec<Vec<f64>> = flows.iter().map(|f| binned(f, start_ms, bins)).collect();
    let fair = |bin: usize| {
        let share = throughputs.iter().map(|t| t[bin]).sum::<f64>() / throughputs.len() as f64;
        share > 0.0 && throughputs.iter().all(|t| (t[bin] - share).abs() <= BAND * share)
    };
    let mut held = 0;
    for bin in 0..bins {
        held = if fair(bin) { held + 1 } else { 0 };
        if held == hold {
            return Some(Convergence::After((bin + 1 - hold) as u64 * BIN_MS));
        }
    }
    Some(Convergence::Never)
}

#[cfg(test)]
mod tests {
    use ccplane_results::Series;

    use super::*;

    /// A flow from `start_ms` to 20 s, whose throughput at each time is `bps`.
    fn flow(start_ms: u64, bps: impl Fn(u64) -> u64) -> FlowResult {
        let t_ms: Vec<u64> = (start_ms / 100 + 1..=200).map(|i| i * 100).collect();
        let throughput_bps = t_ms.iter().map(|t| bps(*t)).collect();
        FlowResult {
            start_ms,
            end_ms: 20_000,
            series: Series { t_ms, throughput_bps, ..Series::default() },
            ..FlowResult::default()
        }
    }

    fn of(flows: Vec<FlowResult>) -> Option<Convergence> {
        convergence(&RunFigures { flows, ..RunFigures::default() })
    }

    #[test]
    fn counts_from_the_last_start() {
        let first = || flow(0, |t| if t <= 8_000 { 9_000_000 } else { 5_000_000 });
        let second = flow(5_000, |t| if t <= 8_000 { 1_000_000 } else { 5_500_000 });
        assert_eq!(of(vec![first(), second]), Some(Convergence::After(3_000)));
        assert_eq!(of(vec![first(), flow(5_000, |_| 1_000_000)]), Some(Convergence::Never));
    }

    #[test]
    fn a_short_peace_does_not_count() {
        let first = flow(0, |t| if t / 4_000 % 2 == 0 { 5_000_000 } else { 9_000_000 });
        assert_eq!(of(vec![first, flow(0, |_| 5_000_000)]), Some(Convergence::Never));
    }

    #[test]
    fn flows_of_another_algorithm_have_shares_too() {
        let beside = |bps: u64| FlowResult { background: Some("cubic".into()), ..flow(0, move |_| bps) };
        assert_eq!(of(vec![flow(0, |_| 4), flow(0, |_| 4), beside(5)]), Some(Convergence::After(0)));
        assert_eq!(of(vec![flow(0, |_| 4), flow(0, |_| 4), beside(9)]), Some(Convergence::Never));
        let from_10_s = |t| if t > 10_000 { 4 } else { 1 };
        assert_eq!(of(vec![flow(0, from_10_s), beside(4)]), Some(Convergence::After(10_000)));
        assert_eq!(of(vec![beside(4), beside(4)]), None, "none of the contender's");
    }

    #[test]
    fn needs_two_flows_side_by_side() {
        assert_eq!(of(vec![flow(0, |_| 1)]), None);
        assert_eq!(of(vec![flow(0, |_| 1), flow(16_000, |_| 1)]), None, "not five seconds");
        assert_eq!(of(vec![FlowResult::default(), FlowResult::default()]), None);
    }
}
