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
//!   rounding. The common ACK costs a sum and a comparison: no multiplication, no division.
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
//! It reports `acked`, `lost` and `timeouts` since the flow started, `rtt_us`, `cwnd` and `ssthresh`.
//!
//! It keeps within stock CCP's language and limits, so it also runs on libccp: every subtraction is of a
//! smaller number from a larger one.

use crate::parameters::{MSS_BYTES, REPORT, REPORT_US, SSTHRESH, SSTHRESH_BYTES, window};
use ccplane_alg::FoldAlgorithm;

/// Reno, which starts with RFC 5681's "arbitrarily high" slow start threshold and reports decreases at once.
pub const RENO: FoldAlgorithm = FoldAlgorithm {
    name: "reno",
    source: include_str!("reno.fold"),
    parameters: &[SSTHRESH_BYTES, REPORT_US],
    registers: &[MSS_BYTES, SSTHRESH, REPORT],
    // Past slow start; nothing paces the flow that another algorithm paced.
    resumed: &[("ssthresh", window), ("Cwnd", window), ("Rate", |_, _| 0)],
};

// Tests

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Ack, Bench, MSS};

    const RTT_US: i64 = 40_000;
    /// The time that an episode lasts.
    const EPISODE_US: i64 = RTT_US + RTT_US / 2;

    fn start(cwnd_segments: i64) -> Bench {
        Bench::new(&RENO, MSS as u32, cwnd_segments * MSS)
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
    fn slow_start_doubles_each_round_trip_and_stops_at_ssthresh() {
        let mut bench =
            Bench::configured(RENO, &[("initial_ssthresh_bytes", 100 * MSS + 7)], MSS as u32, 10 * MSS);
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
    fn windows_follow_the_golden_trajectory() {
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
}
