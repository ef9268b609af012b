//! Copa (Arun and Balakrishnan, "Copa: Practical Delay-Based Congestion Control for the Internet", NSDI 2018).
//!
//! What `copa.fold` does, on every ACK:
//!
//! - **Queueing delay** (section 2.1): `dq = standing - min`, the smallest RTT of the last `srtt / 2` less that of the
//!   last 10 s. `srtt` is TCP's. A window of time is two halves, the one that fills and the one before it. So it
//!   reaches back between half of that time and all of it.
//! - **Target** (section 2.1, equation 1): up while `Cwnd / standing <= 1 / (delta dq)`, else down; by
//!   `v / delta` packets per window, in bytes and with the remainder carried. Compared without a division.
//! - **Velocity** (section 2.1, step 4): once per window its direction is that of `Cwnd` over the window. After three
//!   windows of the same direction `v` doubles with each more; with another it is 1.
//! - **Slow start** (section 2.1): doubling each round trip until the rate is above its target.
//! - **Pacing** (section 2.1): `2 Cwnd / standing`.
//! - **Mode** (section 2.2): the queue is nearly empty where `dq` is at most a tenth of (largest RTT of the last four round
//!   trips - `min`). Not seen for five `srtt`: someone fills the queue, and the mode is competitive.
//! - **Competitive mode** (section 2.2): `1/delta` grows by one per round trip and is halved on loss, at least its default;
//!   it is back at the default in default mode.
//!
//! What the paper leaves open, or what is different here:
//!
//! - `v` counts only towards where it was earned: an ACK that moves the window against its direction sets it to 1. An
//!   ACK moves the window by at most half of what it acknowledges.
//! - In default mode loss changes nothing, as in the paper, except that it ends slow start. In competitive mode it counts
//!   once per `srtt`; a mark (ECN) counts as a loss.
//! - After a timeout the window is one segment, and slow start follows (RFC 5681).
//! - Packets are not a fluid: a tenth of a queue that swings by five packets is less than one. A flow alone would take
//!   itself for a competitor, raise `1/delta`, and never see an empty queue again. So a queue is also nearly empty
//!   where it varies by less than `2.5 / delta` packets (section 3's swing). These are sent at the flow's largest
//!   delivery rate of late, which decays by a quarter every 5 s. It is nearly empty, too, where `dq` is less than
//!   `1 / delta` packets sent at the flow's own rate. That rate counts as at least a fifth of the largest: the mean
//!   queue of as many equal Copa flows as share the link. `delta` is the default mode's. The price: a flow whose share
//!   is small is slower to notice a competitor.
//! - Slow start's own queue does not count against the five round trips; the window does not grow while less than half
//!   of it is in flight (RFC 7661). But for the timeout, it stays at two segments or more.
//!
//! It reports `acked`, `lost`, `timeouts`; `srtt_us`, `standing_us` and `min_us`; `cwnd`, `inverse_delta`, `velocity`,
//! `competitive`; and the program's own progress.
//!
//! It fits stock CCP's language and limits to the last register, so it also runs on libccp. The agent decides nothing.

use crate::parameters::{MSS_BYTES, REPORT, REPORT_US, drained_window};
use ccplane_alg::{FoldAlgorithm, Parameter};

/// The default of `1/delta`, packets; the program's own bound in competitive mode is 16,384. Section 2.1: delta = 0.5.
const INVERSE_DELTA: Parameter = Parameter {
    name: "inverse_delta_packets",
    about: "1/delta in default mode, about the packets that a flow keeps queued",
    default: 2,
    min: 1,
    max: 1024,
};

/// Copa, which reports losses in competitive mode at once.
pub const COPA: FoldAlgorithm = FoldAlgorithm {
    name: "copa",
    source: include_str!("copa.fold"),
    parameters: &[INVERSE_DELTA, REPORT_US],
    registers: &[MSS_BYTES, ("inverse_delta", |start| start.value(&INVERSE_DELTA)), REPORT],
    resumed: &[("min_is", |_, from| from.min_rtt_us.into()), ("Cwnd", drained_window)],
};

// Tests

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Ack, Bench, MSS};
    use ccplane_program::ir::Prim;

    const BASE_US: i64 = 40_000;

    fn start(cwnd_segments: i64) -> Bench {
        Bench::new(&COPA, MSS as u32, cwnd_segments * MSS)
    }

    /// A flow past slow start, at the start of a round, with an empty queue.
    fn steady(cwnd_segments: i64) -> Bench {
        let mut bench = start(cwnd_segments);
        bench.ack(BASE_US, Ack { rtt_us: BASE_US, in_flight: cwnd_segments * MSS, ..Ack::default() });
        bench.set("Report.slow_start", 0);
        bench.set("Report.same", 0);
        bench.set("round_end", bench.cwnd());
        bench.set("Report.cwnd", bench.cwnd());
        bench
    }

    /// A round at this RTT, one ACK per segment of the window that it starts with; then the ACK that ends it.
    fn round(bench: &mut Bench, rtt_us: i64) {
        let segments = bench.cwnd() / MSS;
        for _ in 0..segments {
            one(bench, rtt_us / segments, rtt_us);
        }
    }

    fn one(bench: &mut Bench, after_us: i64, rtt_us: i64) {
        let in_flight = bench.cwnd() - MSS;
        bench.ack_with(after_us, Ack { bytes: MSS, rtt_us, in_flight, ..Ack::default() }, |prims| {
            prims.set(Prim::FlowRateIncoming, in_flight * 1_000_000 / rtt_us);
        });
    }

    #[test]
    fn slow_start_doubles_until_the_rate_is_above_its_target() {
        let mut bench = start(10);
        round(&mut bench, BASE_US);
        round(&mut bench, BASE_US);
        assert_eq!((bench.cwnd(), bench.reg("Report.slow_start")), (40 * MSS, 1));
        // 40 segments per 42 ms against 2 per (42 - 40) ms.
        // The smallest of srtt / 2 says so after some more.
        round(&mut bench, BASE_US + 2_000);
        assert_eq!(bench.reg("Report.slow_start"), 0);
        assert_eq!(bench.cwnd() / MSS, 54, "the smallest of srtt / 2 takes its time");
    }

    #[test]
    fn the_window_moves_by_v_over_delta_packets_per_window_towards_the_target() {
        let mut bench = steady(100);
        round(&mut bench, BASE_US);
        // Two segments per window; a little less as the window grows.
        let grown = bench.cwnd() - 100 * MSS;
        assert!((2 * MSS - 60..=2 * MSS).contains(&grown), "{grown}");
        // dq = 10 ms: 100 segments per 50 ms against 2 per 10 ms; standing RTT follows within srtt / 2.
        round(&mut bench, BASE_US + 10_000);
        let from = bench.cwnd();
        round(&mut bench, BASE_US + 10_000);
        let shrunk = from - bench.cwnd();
        assert!((2 * MSS - 60..=2 * MSS + 60).contains(&shrunk), "{shrunk}");
    }

    #[test]
    fn velocity_doubles_after_three_windows_of_one_direction_and_falls_with_another() {
        let mut bench = steady(200);
        let mut velocities = vec![];
        for _ in 0..8 {
            round(&mut bench, BASE_US);
            velocities.push(bench.reg("Report.velocity"));
        }
        assert_eq!(velocities, [1, 1, 1, 2, 4, 8, 16, 32]);
        // The first ACK above the target, before the window ends.
        bench.set("stand_was", BASE_US + 20_000);
        bench.set("stand_is", BASE_US + 20_000);
        bench.set("stand_at", bench.now_us + 10_000);
        one(&mut bench, 100, BASE_US + 20_000);
        assert_eq!((bench.reg("Report.over"), bench.reg("Report.velocity")), (1, 1));
    }

    #[test]
    fn an_ack_moves_the_window_by_at_most_half_of_its_bytes() {
        let mut bench = steady(10);
        bench.set("Report.velocity", 1 << 16);
        bench.set("Report.inverse_delta", 1 << 14);
        let from = bench.cwnd();
        one(&mut bench, 100, BASE_US);
        assert_eq!(bench.cwnd() - from, MSS / 2);
    }

    #[test]
    fn paces_at_twice_the_window_per_standing_rtt() {
        let mut bench = steady(100);
        round(&mut bench, BASE_US);
        assert_eq!(bench.rate(), bench.cwnd() * 2_000_000 / BASE_US);
    }

    #[test]
    fn the_standing_rtt_is_the_smallest_of_half_an_srtt() {
        let mut bench = steady(10);
        for (after_us, rtt_us, standing_us) in [
            (1_000, 45_000, 40_000),
            (11_000, 50_000, 40_000),
            (11_000, 55_000, 50_000),
            (1_000, 47_000, 47_000),
            (12_000, 60_000, 47_000),
            (12_000, 60_000, 60_000),
        ] {
            one(&mut bench, after_us, rtt_us);
            assert_eq!(bench.reg("Report.standing_us"), standing_us, "{after_us} {rtt_us}");
        }
        assert_eq!(bench.reg("Report.min_us"), BASE_US);
    }

    #[test]
    fn the_smallest_rtt_is_forgotten_after_ten_seconds() {
        let mut bench = steady(10);
        for _ in 0..4 {
            one(&mut bench, 1_200_000, 50_000);
            assert_eq!(bench.reg("Report.min_us"), BASE_US);
        }
        (0..6).for_each(|_| one(&mut bench, 1_200_000, 50_000));
        assert_eq!(bench.reg("Report.min_us"), 50_000);
    }

    /// A queue that has been full for a while: competitive.
    fn competitive() -> Bench {
        let mut bench = steady(100);
        round(&mut bench, BASE_US);
        (0..8).for_each(|_| round(&mut bench, 2 * BASE_US));
        assert_eq!(bench.reg("Report.competitive"), 1);
        bench
    }

    #[test]
    fn a_queue_that_is_not_seen_empty_for_five_round_trips_means_competition() {
        let mut bench = steady(100);
        (0..6).for_each(|_| round(&mut bench, 2 * BASE_US));
        assert_eq!(bench.reg("Report.competitive"), 0, "srtt has still to rise");
        (0..4).for_each(|_| round(&mut bench, 2 * BASE_US));
        assert_eq!(bench.reg("Report.competitive"), 1);
        // 1/delta grows by one per round trip, until the queue is seen empty.
        let inverse_delta = bench.reg("Report.inverse_delta");
        round(&mut bench, 2 * BASE_US);
        assert!(inverse_delta > 3 && bench.reg("Report.inverse_delta") == inverse_delta + 1);
        (0..2).for_each(|_| round(&mut bench, BASE_US));
        assert_eq!((bench.reg("Report.competitive"), bench.reg("Report.inverse_delta")), (0, 2));
    }

    #[test]
    fn in_competitive_mode_a_loss_halves_one_over_delta_once_per_round_trip() {
        let mut bench = competitive();
        bench.set("Report.inverse_delta", 20);
        for _ in 0..9 {
            bench.ack(100, Ack { lost: 1, rtt_us: 2 * BASE_US, in_flight: bench.cwnd(), ..Ack::default() });
        }
        assert_eq!((bench.reg("Report.inverse_delta"), bench.reg("Report.lost")), (10, 9));
        bench
            .ack(3 * BASE_US, Ack { ecn: 1, rtt_us: 2 * BASE_US, in_flight: bench.cwnd(), ..Ack::default() });
        assert_eq!(bench.reg("Report.inverse_delta"), 5);
    }

    #[test]
    fn in_default_mode_a_loss_changes_nothing() {
        let mut bench = steady(100);
        bench.ack(100, Ack { lost: 5, rtt_us: BASE_US, in_flight: 95 * MSS, ..Ack::default() });
        assert_eq!((bench.cwnd(), bench.reg("Report.inverse_delta")), (100 * MSS, 2));
    }

    #[test]
    fn a_timeout_starts_over_from_one_segment() {
        let mut bench = steady(64);
        bench.ack(1_000_000, Ack { lost: 60, timeout: true, bytes: MSS, rtt_us: BASE_US, ..Ack::default() });
        assert_eq!((bench.cwnd(), bench.reg("Report.slow_start")), (MSS, 1));
        (0..5).for_each(|_| round(&mut bench, BASE_US));
        assert_eq!(bench.cwnd(), 32 * MSS);
    }

    #[test]
    fn an_unused_window_does_not_grow() {
        let mut bench = steady(20);
        bench.unused_window(BASE_US);
        assert_eq!((bench.cwnd(), bench.reg("Report.velocity")), (20 * MSS, 1));
    }

    #[test]
    fn plans_set_delta() {
        let values = [("inverse_delta_packets", 10), ("report_us", 0)];
        let bench = Bench::configured(COPA, &values, MSS as u32, 10 * MSS);
        assert_eq!((bench.reg("inverse_delta"), bench.reg("report_us")), (10, 0));
    }

    #[test]
    fn windows_follow_the_golden_trajectory() {
        // A path of 60 segments: what a window has beyond them is queued. A timeout opens round 30.
        let mut bench = start(10);
        let mut windows = vec![];
        for n in 0..45 {
            if n == 30 {
                bench.ack(400_000, Ack { timeout: true, lost: 9, ..Ack::default() });
            }
            let segments = bench.cwnd() / MSS;
            round(&mut bench, BASE_US * segments.max(60) / 60);
            windows.push(bench.cwnd());
        }
        assert_eq!(windows, GOLDEN);
    }

    #[rustfmt::skip]
    const GOLDEN: [i64; 45] = [
        28960, 57920, 115840, 165383, // slow start, to 54 segments beyond the path
        162467, 159550, 156633, 153714, 147847, 129472, // two segments a window, then 4, 12, 39
        72915, 75792, 78617, 81448, 84282, 89825, 92633, 89736, 92543, 92497, 89596, 92407, 91359, 88421, 91269, 90671,
        89836, 89838, 89839, 89840, // 62 segments: two queued
        2896, 5792, 11584, 23168, 46336, 92672, 121606, 118710, 115814, 112917, 110021, 104190, 85564, 88433, 91280,
    ];
}
