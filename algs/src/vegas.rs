//! Vegas (Brakmo and Peterson, "TCP Vegas: End to End Congestion Avoidance on a Global Internet", IEEE JSAC 13(8),
//! 1995), with Linux's `tcp_vegas.c` as the second reference.
//!
//! What `vegas.fold` does, once per round. A round ends with the first ACK of what was sent after its start:
//!
//! - **Queued** (section IV-A): `Diff = Expected - Actual`, times the base RTT: `Cwnd (RTT - base) / RTT` bytes wait
//!   in a queue. `RTT` is the round's smallest, as in Linux; the paper takes that of one distinguished segment.
//!   Linux divides by `base`, which counts more packets than there are.
//! - **Base RTT** (section IV-A): the smallest RTT of the connection. It never expires, as in both references, so a
//!   path that gets longer is taken for a queue.
//! - **Congestion avoidance** (section IV-A): a segment more below `alpha` segments queued, one less above `beta`,
//!   at the round's end; the paper spreads the step over the next round.
//! - **Slow start** (section IV-B): exponential growth every other round; it is over with more than `gamma` queued at
//!   the end of a round without growth. It ends at the window that would queue nothing plus one segment (Linux's).
//! - **Few samples** (Linux): a round of less than three RTT samples may be one of delayed ACKs only. Then the flow
//!   is Reno, a segment per round, until the window is large enough to be judged.
//! - **Loss, ECN, timeout**: as [`crate::RENO`] and as Linux's Vegas, halving once per episode. The paper's finer
//!   retransmission timer (section III) is the transport's business; that only losses at the current rate count is
//!   what the episode says.
//! - **Application-limited flows**: no growth at the end of a round before which less than half of `Cwnd` was in flight.
//!   Neither reference says; as RFC 7661 does for Reno.
//!
//! A late-comer that never sees the path empty takes the others' packets for part of its base RTT and gets more than its
//! share: Vegas as it is.
//!
//! It reports Reno's values, `base_us`, and the bytes `queued` in the last round.
//!
//! It keeps within stock CCP's language and limits, so it also runs on libccp.

use crate::parameters::{MAX_WINDOW_BYTES, MSS_BYTES, REPORT, REPORT_US, drained_window};
use ccplane_alg::{FoldAlgorithm, Parameter};

const fn packets(name: &'static str, about: &'static str, default: i64) -> Parameter {
    Parameter { name, about, default, min: 0, max: 10_000 }
}

// Linux's thresholds.
const ALPHA: Parameter = packets("alpha_packets", "with fewer packets queued the window grows", 2);
const BETA: Parameter = packets("beta_packets", "with more packets queued it shrinks; at least alpha", 4);
const GAMMA: Parameter = packets("gamma_packets", "with more packets queued slow start ends", 1);

/// Vegas with Linux's thresholds, which reports decreases at once.
pub const VEGAS: FoldAlgorithm = FoldAlgorithm {
    name: "vegas",
    source: include_str!("vegas.fold"),
    parameters: &[ALPHA, BETA, GAMMA, REPORT_US],
    registers: &[
        MSS_BYTES,
        ("ssthresh", |_| MAX_WINDOW_BYTES as i64),
        REPORT,
        ("alpha", |start| start.value(&ALPHA)),
        ("beta", |start| start.value(&BETA).max(start.value(&ALPHA))),
        ("gamma", |start| start.value(&GAMMA)),
    ],
    // Without its own queue it sees the smallest round trip at once.
    resumed: &[("ssthresh", drained_window), ("Cwnd", drained_window), ("Rate", |_, _| 0)],
};

// Tests

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Ack, Bench, MSS};

    const BASE_US: i64 = 40_000;

    fn start(cwnd_segments: i64) -> Bench {
        Bench::new(&VEGAS, MSS as u32, cwnd_segments * MSS)
    }

    /// The RTT at which of this window so many segments are queued.
    fn rtt_us(cwnd_segments: i64, queued: i64) -> i64 {
        // Rounded up: at least so many.
        (BASE_US * cwnd_segments + cwnd_segments - queued - 1) / (cwnd_segments - queued)
    }

    /// One round of three RTT samples and the ACK that ends it.
    fn judge(bench: &mut Bench, rtt_us: i64) {
        for _ in 0..3 {
            bench.ack(rtt_us / 4, Ack { rtt_us, in_flight: bench.cwnd(), ..Ack::default() });
        }
        let bytes = bench.reg("round_end") - bench.reg("Report.acked") + 1;
        bench.ack(rtt_us / 4, Ack { bytes, in_flight: bench.cwnd(), ..Ack::default() });
    }

    /// A flow in congestion avoidance, outside recovery, that has seen its base RTT, at the start of a round.
    fn avoiding(cwnd_segments: i64) -> Bench {
        let mut bench = start(cwnd_segments);
        bench.set("ssthresh", cwnd_segments * MSS);
        judge(&mut bench, BASE_US);
        bench.set_cwnd(cwnd_segments * MSS);
        bench.set("ssthresh", cwnd_segments * MSS);
        bench
    }

    /// Windows after rounds of so many segments queued.
    fn windows(bench: &mut Bench, queued: &[i64]) -> Vec<i64> {
        let mut window = |queued: &i64| {
            judge(bench, rtt_us(bench.cwnd() / MSS, *queued));
            bench.cwnd() / MSS
        };
        queued.iter().map(&mut window).collect()
    }

    #[test]
    fn between_alpha_and_beta_the_window_stays() {
        let mut bench = avoiding(20);
        assert_eq!(windows(&mut bench, &[0, 1, 1, 2, 3, 3]), [21, 22, 23, 23, 23, 23]);
        assert_eq!(windows(&mut bench, &[5, 6, 5, 3, 2]), [22, 21, 20, 20, 20]);
        assert_eq!(bench.reg("Report.base_us"), BASE_US);
        assert_eq!(bench.reg("Report.queued") / MSS, 2);
    }

    #[test]
    fn slow_start_grows_every_other_round() {
        let mut bench = start(10);
        let mut windows = vec![];
        for _ in 0..6 {
            bench.round(BASE_US);
            windows.push(bench.cwnd() / MSS);
        }
        // The program's first ACK ends a round without growth.
        assert_eq!(windows, [19, 20, 39, 40, 79, 80]);
    }

    #[test]
    fn slow_start_ends_above_gamma_in_a_round_without_growth() {
        let mut bench = start(40);
        // Two queued in the round of growth: nothing.
        assert_eq!(windows(&mut bench, &[0, 2, 0]), [40, 80, 80]);
        assert_eq!(bench.reg("ssthresh"), 1 << 30);
        // Sixty queued in the next without: to the 100 that the path holds, and one.
        assert_eq!(windows(&mut bench, &[0, 60]), [160, 101]);
        assert_eq!(bench.reg("ssthresh"), bench.cwnd());
    }

    #[test]
    fn a_round_of_few_samples_grows_as_reno() {
        let mut bench = avoiding(20);
        for _ in 0..3 {
            let bytes = bench.reg("round_end") - bench.reg("Report.acked") + 1;
            let in_flight = bench.cwnd();
            bench.ack(BASE_US, Ack { bytes, rtt_us: 3 * BASE_US, in_flight, ..Ack::default() });
        }
        assert_eq!(bench.cwnd(), 23 * MSS);
    }

    #[test]
    fn a_loss_halves_once_per_episode_and_starts_a_round() {
        let mut bench = avoiding(20);
        for _ in 0..9 {
            bench.ack(100, Ack { lost: 1, rtt_us: BASE_US, in_flight: 19 * MSS, ..Ack::default() });
        }
        assert_eq!((bench.cwnd(), bench.reg("ssthresh")), (10 * MSS, 10 * MSS));
        bench.ack(2 * BASE_US, Ack { ecn: 1, ..Ack::default() });
        assert_eq!(bench.cwnd(), 5 * MSS);
    }

    #[test]
    fn a_timeout_starts_over_from_one_segment() {
        let mut bench = avoiding(64);
        bench.ack(1_000_000, Ack { lost: 60, timeout: true, rtt_us: BASE_US, ..Ack::default() });
        assert_eq!((bench.cwnd(), bench.reg("ssthresh")), (MSS, 32 * MSS));
        for _ in 0..14 {
            bench.round(BASE_US);
        }
        assert!(bench.cwnd() >= 30 * MSS, "{}", bench.cwnd() / MSS);
    }

    #[test]
    fn the_window_never_falls_below_two_segments() {
        let mut bench = avoiding(8);
        for _ in 0..20 {
            bench.round(40 * BASE_US);
        }
        assert!((2 * MSS..=4 * MSS).contains(&bench.cwnd()), "{}", bench.cwnd());
    }

    #[test]
    fn an_unused_window_does_not_grow() {
        let mut bench = avoiding(20);
        bench.unused_window(BASE_US);
        assert_eq!(bench.cwnd(), 20 * MSS);
    }

    #[test]
    fn plans_set_the_thresholds() {
        let bench =
            Bench::configured(VEGAS, &[("alpha_packets", 8), ("beta_packets", 3)], MSS as u32, 10 * MSS);
        assert_eq!((bench.reg("alpha"), bench.reg("beta"), bench.reg("gamma")), (8, 8, 1));
    }

    #[test]
    fn windows_follow_the_golden_trajectory() {
        // A path of 30 segments: what a window has beyond them is queued. A loss opens round 30, a timeout round 40.
        let mut bench = start(10);
        let mut windows = vec![];
        for round in 0..60 {
            match round {
                30 => bench
                    .ack(100, Ack { lost: 1, in_flight: bench.cwnd(), rtt_us: BASE_US, ..Ack::default() }),
                40 => bench.ack(400_000, Ack { timeout: true, lost: 9, ..Ack::default() }),
                _ => {}
            }
            let segments = bench.cwnd() / MSS;
            bench.round(BASE_US * segments.max(30) / 30);
            windows.push(bench.cwnd() / MSS);
        }
        assert_eq!(windows, GOLDEN);
    }

    #[rustfmt::skip]
    const GOLDEN: [i64; 60] = [
        // Slow start ends with ten queued, one stays; then up to between two and four.
        19, 20, 39, 40, 31, 32, 33, 33, 33, 33, 33, 33, 33, 33, 33, 33, 33, 33, 33, 33, 33, 33, 33, 33, 33, 33, 33, 33, 33, 33,
        16, 16, 17, 18, 19, 20, 21, 22, 23, 24,
        // Slow start to half of 24, then a segment a round.
        2, 3, 4, 7, 8, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26,
    ];
}
