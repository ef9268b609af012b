//! Reno: slow start, congestion avoidance and one multiplicative decrease per loss episode
//! (RFC 5681, RFC 6582, RFC 3168).
//!
//! What `reno.fold` does, clause by clause:
//!
//! - **Slow start** (RFC 5681 section 3.1): below `ssthresh`, `Cwnd` grows by the bytes acknowledged, so an
//!   ACK that covers many segments counts in full. One ACK at most doubles it, and never carries it past
//!   `ssthresh`.
//! - **Congestion avoidance** (section 3.1, the recommended way): one segment whenever a window's worth of
//!   bytes was acknowledged. Bytes past the mark carry over to the next window, so nothing is lost to
//!   rounding, and the common ACK costs a sum and a comparison: no multiplication, no division.
//! - **Application-limited flows** (section 4.1; RFC 7661): no growth on an ACK before which less than half
//!   of `Cwnd` was in flight.
//! - **Loss** (section 3.2, equation 4): `ssthresh = max(Cwnd / 2, 2 segments)`, `Cwnd = ssthresh`. `Cwnd`
//!   stands for FlightSize: it only grows while used, and what is in flight by the time a loss is seen
//!   leaves out what was lost.
//! - **One decrease per episode** (RFC 6582 section 3.2): further losses and growth wait until 1.5 times the
//!   RTT, as measured at the decrease, has passed. Stock CCP shows no sequence numbers, so time takes
//!   `recover`'s place; after one RTT alone, the tail of the window that lost is still being found lost.
//! - **ECN** (RFC 3168 section 6.1.2): a mark is answered like a loss.
//! - **Timeout** (RFC 5681 section 3.1): `ssthresh` as for a loss, `Cwnd` = 1 segment, then slow start.
//!
//! It keeps within stock CCP's language and limits, so it also runs on libccp: every subtraction is of a
//! smaller number from a larger one.

use crate::{DEFAULT_REPORT_US, MAX_WINDOW_BYTES, REPORT_US, SSTHRESH_BYTES, fields, window_of};
use ccplane_alg::{Algorithm, Control, Flow, FlowInfo, Handover, Parameter, ProgramSource, Report};
use std::sync::Arc;

// State

/// The agent's side of a Reno flow. Every decision is the program's, so there is none.
struct RenoFlow;

// Behaviour

impl Flow for RenoFlow {
    /// Reports are for those who watch: `acked` and `rtt_us`, `lost` and `timeouts`, `cwnd` and `ssthresh`.
    fn on_report(&mut self, _now_us: u64, _report: &Report<'_>, _control: &mut Control) {}
}

// Config

/// What can be set.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RenoConfig {
    /// Slow start threshold of a new flow, bytes; at most [`MAX_WINDOW_BYTES`]. RFC 5681 section 3.1:
    /// "SHOULD be set arbitrarily high".
    pub initial_ssthresh_bytes: u64,
    /// Least time between two reports of a flow, microseconds. Decreases are reported at once.
    pub report_us: u32,
}

// Defaults

impl Default for RenoConfig {
    fn default() -> Self {
        RenoConfig { initial_ssthresh_bytes: MAX_WINDOW_BYTES, report_us: DEFAULT_REPORT_US }
    }
}

// Factory

/// Makes Reno flows.
#[derive(Clone, Default, Debug)]
pub struct Reno {
    /// For every flow that starts.
    pub config: RenoConfig,
}

impl Algorithm for Reno {
    fn name(&self) -> &'static str {
        "reno"
    }

    fn programs(&self) -> Vec<ProgramSource> {
        vec![ProgramSource { name: "reno", source: include_str!("reno.fold") }]
    }

    fn flow(&self, info: &FlowInfo, control: &mut Control) -> Box<dyn Flow> {
        let RenoConfig { initial_ssthresh_bytes, report_us } = self.config;
        control.set_program("reno", &fields(info.mss_bytes, initial_ssthresh_bytes, report_us));
        Box::new(RenoFlow)
    }

    fn resume(&self, info: &FlowInfo, from: &Handover, control: &mut Control) -> Box<dyn Flow> {
        let flow = self.flow(info, control);
        let window = window_of(from.window_bytes(info.mss_bytes));
        // Past slow start; nothing paces the flow that another arm paced.
        control.update(&[("ssthresh", window), ("Cwnd", window), ("Rate", 0)]);
        flow
    }

    fn parameters(&self) -> &'static [Parameter] {
        &[SSTHRESH_BYTES, REPORT_US]
    }

    fn configured(&self, values: &[(&'static str, i64)]) -> Option<Arc<dyn Algorithm>> {
        let mut config = RenoConfig::default();
        for (name, value) in values {
            match *name {
                "initial_ssthresh_bytes" => {
                    config.initial_ssthresh_bytes = u64::try_from(*value).unwrap_or(MAX_WINDOW_BYTES);
                }
                "report_us" => config.report_us = u32::try_from(*value).unwrap_or(DEFAULT_REPORT_US),
                _ => {}
            }
        }
        Some(Arc::new(Reno { config }))
    }
}

// Tests

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Ack, Bench, MSS, assert_stock_limits};
    use ccplane_alg::configure;
    use proptest::prelude::*;

    const RTT_US: i64 = 40_000;
    /// How long an episode lasts.
    const EPISODE_US: i64 = RTT_US + RTT_US / 2;

    fn start(cwnd_segments: i64) -> Bench {
        Bench::new(&Reno::default(), MSS as u32, cwnd_segments * MSS)
    }

    /// A flow in congestion avoidance, outside recovery.
    fn avoiding(cwnd_segments: i64) -> Bench {
        let mut bench = start(2 * cwnd_segments);
        bench.round(RTT_US);
        bench.set_cwnd(2 * cwnd_segments * MSS);
        lose(&mut bench);
        assert_eq!(bench.cwnd(), cwnd_segments * MSS);
        bench.ack(EPISODE_US + 1, Ack::default());
        bench
    }

    fn lose(bench: &mut Bench) {
        bench.ack(100, Ack { lost: 1, in_flight: bench.cwnd(), rtt_us: RTT_US, ..Ack::default() });
    }

    #[test]
    fn keeps_within_stock_ccp() {
        assert_stock_limits(&start(10).program);
    }

    #[test]
    fn slow_start_doubles_each_round_trip_and_stops_at_ssthresh() {
        let mut bench = Bench::new(
            &Reno {
                config: RenoConfig { initial_ssthresh_bytes: 100 * MSS as u64 + 7, ..RenoConfig::default() },
            },
            MSS as u32,
            10 * MSS,
        );
        let mut windows = vec![];
        for _ in 0..4 {
            bench.round(RTT_US);
            windows.push(bench.cwnd());
        }
        // The last round reaches ssthresh after 21 of its 80 segments; the other 59 count towards the next.
        assert_eq!(windows, [20 * MSS, 40 * MSS, 80 * MSS, 100 * MSS + 7]);
        bench.round(RTT_US);
        assert_eq!(bench.cwnd(), 101 * MSS + 7);
    }

    #[test]
    fn parameters_reach_the_program() {
        let algorithms: [Arc<dyn Algorithm>; 2] =
            [Arc::new(Reno::default()), Arc::new(crate::Cubic::default())];
        for algorithm in algorithms {
            let set = [("report_us", 7), ("initial_ssthresh_bytes", 100_000)];
            let bench = Bench::new(&*configure(&algorithm, set).unwrap(), MSS as u32, MSS);
            assert_eq!((bench.reg("report_us"), bench.reg("ssthresh")), (7, 100_000));
            let bench = Bench::new(&*configure(&algorithm, []).unwrap(), MSS as u32, MSS);
            assert_eq!((bench.reg("report_us"), bench.reg("ssthresh")), (10_000, 1 << 30));
            assert!(configure(&algorithm, [("initial_ssthresh_bytes", 0)]).is_err());
            assert!(configure(&algorithm, [("mss", 1)]).is_err());
        }
    }

    #[test]
    fn one_ack_at_most_doubles_the_window() {
        let mut bench = start(2);
        bench.ack(RTT_US, Ack { bytes: 50 * MSS, rtt_us: RTT_US, in_flight: 2 * MSS, ..Ack::default() });
        assert_eq!(bench.cwnd(), 4 * MSS);
    }

    #[test]
    fn congestion_avoidance_grows_one_segment_per_window_without_rounding_loss() {
        let mut bench = avoiding(10);
        let (from, acked) = (bench.cwnd(), bench.reg("Report.acked"));
        // ACKs of odd sizes: after n segments of growth exactly the sum of the n windows was acknowledged.
        for n in 0..20_000 {
            let bytes = 1 + (n * 7919) % 4000;
            bench.ack(200, Ack { bytes, in_flight: bench.cwnd(), rtt_us: RTT_US, ..Ack::default() });
        }
        let grown = (bench.cwnd() - from) / MSS;
        assert_eq!(bench.cwnd(), from + grown * MSS);
        let windows: i64 = (0..grown).map(|n| from + n * MSS).sum();
        let since = bench.reg("Report.acked") - acked;
        assert!(
            grown > 100 && (windows..=windows + bench.cwnd()).contains(&since),
            "{grown} {windows} {since}"
        );
    }

    #[test]
    fn an_episode_decreases_once() {
        let mut bench = avoiding(100);
        for _ in 0..50 {
            lose(&mut bench);
        }
        assert_eq!((bench.cwnd(), bench.reg("ssthresh")), (50 * MSS, 50 * MSS));
        assert_eq!(bench.reg("Report.lost"), 51);
        bench.ack(EPISODE_US - 49 * 100, Ack { lost: 1, ..Ack::default() });
        assert_eq!(bench.cwnd(), 50 * MSS, "the last microsecond of the episode");
        bench.ack(1, Ack { lost: 1, ..Ack::default() });
        assert_eq!(bench.cwnd(), 25 * MSS);
    }

    #[test]
    fn recovery_does_not_grow_the_window() {
        let mut bench = avoiding(100);
        lose(&mut bench);
        for _ in 0..59 {
            bench.ack(1_000, Ack { bytes: 50 * MSS, in_flight: 60 * MSS, ..Ack::default() });
        }
        assert_eq!(bench.cwnd(), 50 * MSS);
        bench.ack(1_001, Ack { bytes: 50 * MSS, in_flight: 50 * MSS, ..Ack::default() });
        bench.ack(1_000, Ack { bytes: MSS, in_flight: 50 * MSS, ..Ack::default() });
        assert_eq!(bench.cwnd(), 51 * MSS);
    }

    #[test]
    fn marks_are_answered_like_losses() {
        let mut bench = avoiding(100);
        bench.ack(100, Ack { ecn: 3, in_flight: 100 * MSS, ..Ack::default() });
        assert_eq!((bench.cwnd(), bench.reg("Report.lost")), (50 * MSS, 1));
    }

    #[test]
    fn a_timeout_starts_over_from_one_segment() {
        let mut bench = avoiding(64);
        bench.ack(
            1_000_000,
            Ack { bytes: MSS, lost: 63, timeout: true, rtt_us: RTT_US, in_flight: MSS, ..Ack::default() },
        );
        assert_eq!((bench.cwnd(), bench.reg("ssthresh"), bench.reg("Report.timeouts")), (MSS, 32 * MSS, 1));
        // What the timeout marked lost is no second episode.
        lose(&mut bench);
        assert_eq!(bench.cwnd(), MSS);
        for segments in [2, 4, 8, 16, 32, 32, 33] {
            bench.round(RTT_US);
            assert_eq!(bench.cwnd(), segments * MSS);
        }
    }

    #[test]
    fn the_window_never_falls_below_a_segment_nor_ssthresh_below_two() {
        let mut bench = avoiding(4);
        for _ in 0..8 {
            bench.ack(2 * RTT_US, Ack { lost: 1, ..Ack::default() });
        }
        assert_eq!((bench.cwnd(), bench.reg("ssthresh")), (2 * MSS, 2 * MSS));
        bench.ack(2 * RTT_US, Ack { timeout: true, ..Ack::default() });
        bench.ack(2 * RTT_US, Ack { lost: 1, ..Ack::default() });
        assert_eq!((bench.cwnd(), bench.reg("ssthresh")), (MSS, 2 * MSS));
    }

    #[test]
    fn an_unused_window_does_not_grow() {
        for mut bench in [start(100), avoiding(100)] {
            for _ in 0..1_000 {
                bench.ack(1_000, Ack { bytes: MSS, in_flight: 48 * MSS, rtt_us: RTT_US, ..Ack::default() });
            }
            assert_eq!(bench.cwnd(), 100 * MSS);
            bench.ack(1_000, Ack { bytes: 100 * MSS, in_flight: 0, ..Ack::default() });
            bench.ack(1_000, Ack { bytes: MSS, in_flight: 99 * MSS, ..Ack::default() });
            assert!(bench.cwnd() > 100 * MSS);
        }
    }

    #[test]
    fn reports_once_per_round_trip_and_at_once_after_a_decrease() {
        let mut bench = avoiding(100);
        bench.reports.clear();
        for _ in 0..10 {
            bench.round(RTT_US);
        }
        assert!((8..=10).contains(&bench.reports.len()), "{}", bench.reports.len());
        bench.reports.clear();
        lose(&mut bench);
        let (at_us, values) = bench.reports.remove(0);
        assert_eq!((at_us, values[1], values[4]), (bench.now_us, 2, bench.cwnd()));
        for _ in 0..9 {
            bench.round(RTT_US / 40);
        }
        assert!(bench.reports.len() <= 1, "at most one per 10 ms: {:?}", bench.reports);
    }

    #[test]
    fn golden_trajectory() {
        // Window in bytes after each round trip of 40 ms; a loss opens rounds 6 and 9, a timeout round 12.
        let mut bench = start(10);
        let mut windows = vec![];
        for round in 0..18 {
            match round {
                6 | 9 => lose(&mut bench),
                12 => bench.ack(400_000, Ack { timeout: true, lost: 9, ..Ack::default() }),
                _ => {}
            }
            bench.round(RTT_US);
            windows.push(bench.cwnd());
        }
        assert_eq!(windows, GOLDEN);
    }

    const GOLDEN: [i64; 18] = [
        28960, 57920, 115840, 231680, 463360, 926720, // slow start
        463360, 463360, 464808, // half of 926720; the episode, then a segment per round trip
        232404, 232404, 233852, //
        2896, 5792, 11584, 23168, 46336, 92672, // from one segment, towards 116926
    ];

    prop_compose! {
        fn acks()(
            bytes in prop_oneof![Just(0), Just(MSS), 0..1i64 << 30],
            lost in prop_oneof![8 => Just(0), 1 => 1..100i64],
            ecn in prop_oneof![9 => Just(0), 1 => 1..10i64],
            timeout in prop::bool::weighted(0.02),
            rtt_us in prop_oneof![Just(0), 1..10_000_000i64],
            in_flight in 0..1i64 << 31,
            after_us in prop_oneof![0..2_000i64, 0..20_000_000i64],
        ) -> (i64, Ack) {
            (after_us, Ack { bytes, lost, ecn, timeout, rtt_us, in_flight })
        }
    }

    proptest! {
        /// Whatever a datapath says, stock CCP would not abort ([`Bench::ack`] checks) and the bounds hold.
        #[test]
        fn any_stream_keeps_the_bounds(
            mss in 1..=65_535u32,
            cwnd in 1..1i64 << 30,
            stream in prop::collection::vec(acks(), 1..200),
        ) {
            let mut bench = Bench::new(&Reno::default(), mss, cwnd);
            let mss = i64::from(mss);
            for (after_us, ack) in stream {
                let before = bench.cwnd();
                bench.ack(after_us, ack);
                let after = bench.cwnd();
                prop_assert!(after >= mss.min(cwnd) && after <= (2 * before).max(before + mss));
                prop_assert!(bench.reg("ssthresh") >= 2 * mss || bench.reg("ssthresh") == 1 << 30);
                prop_assert!(ack.lost + ack.ecn == 0 || after <= before.max(bench.reg("ssthresh")), "{ack:?}");
            }
        }
    }
}
