//! A trace in figures.

use ccplane_netsim::trace::Trace;
use serde::Serialize;

use crate::error::Error;
use crate::rates::rates_of;
use crate::stats::{mean, percentile, std_dev};

/// The windows that rates are summed up over, milliseconds.
pub const WINDOWS_MS: [u32; 2] = [100, 1000];

/// The figures of a trace.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Summary {
    /// Of a lap, milliseconds.
    pub duration_ms: u64,
    /// Lines of the trace.
    pub opportunities: usize,
    /// Over a lap, Mb/s.
    pub mean_mbit_per_s: f64,
    /// The longest time between two opportunities, milliseconds; a lap's end and the next one's start count, too.
    pub longest_outage_ms: u64,
    /// Rates by window, shortest windows first.
    pub windows: Vec<Window>,
}

/// The rates of a trace's windows of one length, Mb/s. A shorter window at the end counts only when it is the only one.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Window {
    /// Length of a window, milliseconds.
    pub window_ms: u32,
    /// The number of windows.
    pub count: usize,
    pub min_mbit_per_s: f64,
    pub p5_mbit_per_s: f64,
    pub p25_mbit_per_s: f64,
    pub p50_mbit_per_s: f64,
    pub p75_mbit_per_s: f64,
    pub p95_mbit_per_s: f64,
    pub max_mbit_per_s: f64,
    /// Standard deviation over mean; 0 when nothing is delivered.
    pub coefficient_of_variation: f64,
}

/// Sums a trace up.
///
/// # Errors
/// None that a verified trace can have.
pub fn summary(trace: &Trace) -> Result<Summary, Error> {
    let opportunities = trace.opportunities_ms();
    let gaps = opportunities.windows(2).map(|pair| u64::from(pair[1] - pair[0]));
    // From the lap's start, which is the last one's end.
    let first = opportunities.first().map(|ms| u64::from(*ms));
    Ok(Summary {
        duration_ms: trace.period_ms(),
        opportunities: opportunities.len(),
        mean_mbit_per_s: trace.mean_rate_bit_per_s() as f64 / 1e6,
        longest_outage_ms: gaps.chain(first).max().unwrap_or(0),
        windows: WINDOWS_MS.into_iter().map(|ms| window(trace, ms)).collect::<Result<_, _>>()?,
    })
}

fn window(trace: &Trace, window_ms: u32) -> Result<Window, Error> {
    let mut rates: Vec<u64> = whole_windows(trace, window_ms)?;
    let coefficient_of_variation = if mean(&rates) > 0.0 { std_dev(&rates) / mean(&rates) } else { 0.0 };
    rates.sort_unstable();
    let at = |q| percentile(&rates, q) as f64 / 1e6;
    Ok(Window {
        window_ms,
        count: rates.len(),
        min_mbit_per_s: at(0.0),
        p5_mbit_per_s: at(0.05),
        p25_mbit_per_s: at(0.25),
        p50_mbit_per_s: at(0.5),
        p75_mbit_per_s: at(0.75),
        p95_mbit_per_s: at(0.95),
        max_mbit_per_s: at(1.0),
        coefficient_of_variation,
    })
}

/// The rates of a trace's windows, bits per second, without a shorter one at the end unless it is the only one.
pub(crate) fn whole_windows(trace: &Trace, window_ms: u32) -> Result<Vec<u64>, Error> {
    let mut steps = rates_of(trace, window_ms)?;
    if steps.len() > 1 && steps.last().is_some_and(|last| last.duration_ms < window_ms) {
        steps.pop();
    }
    Ok(steps.into_iter().map(|s| s.bit_per_s).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rates::trace_of;
    use crate::shape;

    #[test]
    fn a_steps_summary_is_the_one_worked_out_by_hand() {
        let rates = shape::step(&[12_032_000, 0, 24_064_000], 1000, 3000).unwrap();
        let s = summary(&trace_of(&rates).unwrap()).unwrap();
        assert_eq!((s.duration_ms, s.opportunities, s.longest_outage_ms), (3000, 3000, 1001));
        assert_eq!(s.mean_mbit_per_s, 12.032);
        let second = &s.windows[1];
        assert_eq!((second.window_ms, second.count), (1000, 3));
        assert_eq!(
            (second.min_mbit_per_s, second.p50_mbit_per_s, second.max_mbit_per_s),
            (0.0, 12.032, 24.064)
        );
        assert!((second.coefficient_of_variation - (2f64 / 3.0).sqrt()).abs() < 1e-9);
        assert_eq!(s.windows[0].count, 30);
    }

    #[test]
    fn a_short_window_at_the_end_is_left_out_unless_it_is_alone() {
        let trace = Trace::parse("1\n150\n").unwrap();
        let s = summary(&trace).unwrap();
        assert_eq!((s.windows[0].count, s.windows[1].count), (1, 1));
        assert_eq!((s.longest_outage_ms, s.windows[1].max_mbit_per_s), (149, 0.160426));
        // The gap from lap to lap counts.
        assert_eq!(summary(&Trace::parse("90\n100\n").unwrap()).unwrap().longest_outage_ms, 90);
    }
}
