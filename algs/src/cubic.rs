//! CUBIC (RFC 9438) with HyStart, as Linux has them (`net/ipv4/tcp_cubic.c`); slow start and ECN as in [`crate::RENO`].
//!
//! What `cubic.fold` does, in integers; windows in bytes, `C = 0.4`, `beta = 0.7`:
//!
//! - **HyStart** (Ha and Rhee, "Taming the Elephants", 2011; Linux's thresholds): from 16 segments on, either of two
//!   signs ends slow start. The first is a round's train of ACKs, each within 2 ms of the one before: it has come for
//!   half of (smallest RTT + what segmentation offload may add, at most 1 ms). The second is the smallest RTT of a
//!   round's first nine samples or more: it exceeds the flow's smallest by an eighth (4 to 16 ms). A round ends when
//!   what was in flight at its start is acknowledged.
//! - **Decrease** (RFC sections 4.6, 4.7): `w_max = Cwnd`, or `0.85 Cwnd` if `Cwnd < w_max` (fast convergence);
//!   `ssthresh = max(0.7 Cwnd, 2 segments)`, `Cwnd = ssthresh`. One per episode, guarded by time as in Reno.
//!   As section 4.6 allows, `Cwnd` stands for flight_size: it only grows while used.
//! - **K** (section 4.2, figure 2): `cbrt((w_max - Cwnd) / (0.4 mss))` seconds, kept in milliseconds:
//!   `k_ms^3 = 2.5e9 (w_max - Cwnd) / mss`. A seed within [1/2.6, 3.1] of the root is followed by six Newton steps, one
//!   per ACK while the window may not grow yet. They end within 1 ms of the root for every K from 0.1 s to 512 s;
//!   below, the cubic term is under a thousandth of a segment anyway. Until then K is too long, so growth waits. A
//!   window of 1 GiB has K = 122 s at 1448-byte segments.
//! - **W_cubic(t)** (figure 1): `w_max ± (|t - k|^3 / 1e6) mss / 2500` with t and k in milliseconds, capped at
//!   |t - k| = 1000 s: the cube stays below 2^60 and is rounded by less than a byte; time is rounded by 1 ms.
//! - **Target** (section 4.2): W_cubic(t + RTT) clamped to [Cwnd, 1.5 Cwnd]; `Cwnd` grows by
//!   `(target - Cwnd) / Cwnd` per byte acknowledged (sections 4.4, 4.5). `rest` carries the remainder. As in Linux, it
//!   grows by at least 1/20 per window until the first loss, and again after a timeout: HyStart may have been early.
//! - **Reno-friendly region** (section 4.3): `w_est`, in 1/1024 byte, grows by `alpha mss / Cwnd` per byte
//!   acknowledged. `Cwnd` is raised to it where it is below; an ACK never shrinks the window.
//!   `alpha` is Linux's 8/15 (for `3 (1 - beta) / (1 + beta) = 9/17`) throughout: Linux does not raise it to 1 past the
//!   window of the decrease.
//! - **Timeout** (section 4.8) and slow start's end without loss (section 4.10): K = 0 and `w_max` = `Cwnd` when
//!   congestion avoidance starts.
//! - **Application-limited flows** (section 5.8): neither growth nor time (`t_us`) counts unless at least half
//!   of `Cwnd` was in flight; silence counts for at most two RTTs.
//!
//! It reports Reno's values, the cubic's (`w_max`, `k_ms`, `t_us`, `w_est`) and HyStart's.
//!
//! Growth is computed sixteen times per window (on every ACK while the window is below 16 segments), so the common
//! ACK costs what Reno's does. Spurious decreases are undone where the datapath does it (section 4.9).
//!
//! Against that in floating point, applied on every ACK, windows stay within 0.2 % (0.3 % at ten segments).
//!
//! Bounds: the program keeps `Cwnd` within 1 GiB and segments are at most 64 KiB, so no product passes 2^63.

use crate::parameters::{MSS_BYTES, REPORT, REPORT_US, SSTHRESH, SSTHRESH_BYTES, window};
use ccplane_alg::FoldAlgorithm;

/// CUBIC with HyStart, which reports decreases at once.
pub const CUBIC: FoldAlgorithm = FoldAlgorithm {
    name: "cubic",
    source: include_str!("cubic.fold"),
    parameters: &[SSTHRESH_BYTES, REPORT_US],
    registers: &[MSS_BYTES, SSTHRESH, REPORT],
    // Past slow start; nothing paces the flow that another algorithm paced. It grows by at least a hundredth a round trip
    // and not by a twentieth, as after a slow start that ended early: others have found this window.
    resumed: &[("ssthresh", window), ("slowest", |_, _| 100), ("Cwnd", window), ("Rate", |_, _| 0)],
};

// Tests

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Ack, Bench, MSS};
    use proptest::prelude::*;

    const RTT_US: i64 = 100_000;

    /// ACKs until just after an episode's end, enough of them for K.
    fn pass_episode(bench: &mut Bench, rtt_us: i64) {
        const ACKS: i64 = 5;
        for _ in 0..ACKS {
            bench.ack((rtt_us + rtt_us / 2) / ACKS, Ack { rtt_us, ..Ack::default() });
        }
        bench.ack(ACKS, Ack { rtt_us, ..Ack::default() });
    }

    fn start(cwnd_segments: i64) -> Bench {
        Bench::new(&CUBIC, MSS as u32, cwnd_segments * MSS)
    }

    /// A flow that just lost at `cwnd_segments`, for the first time; its episode is over.
    fn after_loss(cwnd_segments: i64, rtt_us: i64) -> Bench {
        let mut bench = start(cwnd_segments);
        lose(&mut bench, rtt_us);
        pass_episode(&mut bench, rtt_us);
        bench
    }

    fn lose(bench: &mut Bench, rtt_us: i64) {
        bench.ack(100, Ack { lost: 1, in_flight: bench.cwnd(), rtt_us, ..Ack::default() });
    }

    /// RFC 9438 with Linux's alpha in floating point, window in segments, per ACK and not per step.
    struct Model {
        cwnd: f64,
        w_max: f64,
        k: f64,
        t: f64,
        w_est: f64,
    }

    impl Model {
        /// Sections 4.6 and 4.7.
        fn lose(cwnd: f64, w_max: f64) -> Model {
            let w_max = if cwnd < w_max { cwnd * (1.0 + 0.7) / 2.0 } else { cwnd };
            let next = (0.7 * cwnd).max(2.0);
            Model { cwnd: next, w_max, k: ((w_max - next) / 0.4).cbrt(), t: 0.0, w_est: next }
        }

        /// W_cubic(t) of figure 1, segments.
        fn w_cubic(&self, t: f64) -> f64 {
            0.4 * (t - self.k).powi(3) + self.w_max
        }

        /// Sections 4.2 to 4.5: `segments` newly acknowledged, `after` seconds since the last ACK.
        fn ack(&mut self, segments: f64, after: f64, rtt: f64) {
            self.t += after;
            self.w_est += 8.0 / 15.0 * segments / self.cwnd;
            let target = self.w_cubic(self.t + rtt).clamp(self.cwnd, 1.5 * self.cwnd);
            self.cwnd += (target - self.cwnd) / self.cwnd * segments;
            self.cwnd = self.cwnd.max(self.w_est);
        }
    }

    /// Runs program and model on the same ACKs from a loss at `cwnd_segments` for `rounds` round trips, with
    /// another loss every `loss_every`; returns the largest |program - model| / model.
    fn worst_error(cwnd_segments: i64, rtt_us: i64, rounds: usize, loss_every: usize) -> f64 {
        let mut bench = after_loss(cwnd_segments, rtt_us);
        let mut model = Model::lose(cwnd_segments as f64, 0.0);
        let mut worst = 0f64;
        for round in 1..=rounds {
            if round % loss_every == 0 {
                model = Model::lose(model.cwnd, model.w_max);
                lose(&mut bench, rtt_us);
                pass_episode(&mut bench, rtt_us);
            }
            // ACKs of 1/64 window, at least two segments: a receiver that coalesces.
            let bytes = (bench.cwnd() / 64).max(2 * MSS);
            let acks = (bench.cwnd() / bytes).max(1);
            for _ in 0..acks {
                let in_flight = bench.cwnd() - bytes;
                bench.ack(rtt_us / acks, Ack { bytes, rtt_us, in_flight, ..Ack::default() });
                model.ack(bytes as f64 / MSS as f64, (rtt_us / acks) as f64 * 1e-6, rtt_us as f64 * 1e-6);
                let window = bench.cwnd() as f64 / MSS as f64;
                worst = worst.max((window - model.cwnd).abs() / model.cwnd);
            }
        }
        worst
    }

    #[test]
    fn windows_follow_the_rfc() {
        // (window at the loss in segments, RTT, round trips, a loss every so many, allowed relative error)
        for (cwnd, rtt_us, rounds, loss_every, allowed) in [
            (10, 10_000, 2_000, 500, 0.003),
            (100, 40_000, 1_000, 400, 0.002),
            (1_000, 100_000, 600, 250, 0.002),
            (10_000, 100_000, 800, 300, 0.002),
            (100_000, 200_000, 800, 450, 0.002),
            (400_000, 50_000, 2_000, 1_200, 0.002),
        ] {
            let worst = worst_error(cwnd, rtt_us, rounds, loss_every);
            eprintln!("{cwnd} segments, {rtt_us} us: {:.3} %", 100.0 * worst);
            assert!(worst < allowed, "{cwnd} segments, {rtt_us} us: {worst}");
        }
    }

    #[test]
    fn a_loss_takes_three_tenths_and_sets_the_epoch() {
        let bench = after_loss(100, RTT_US);
        assert_eq!((bench.cwnd(), bench.reg("ssthresh")), (70 * MSS, 70 * MSS));
        // cbrt(30 / 0.4) = 4.217 s.
        assert_eq!((bench.reg("Report.w_max"), bench.reg("Report.k_ms")), (100 * MSS, 4217));
        assert_eq!(bench.reg("Report.t_us"), 0);
    }

    #[test]
    fn fast_convergence_gives_way() {
        let mut bench = after_loss(100, RTT_US);
        lose(&mut bench, RTT_US);
        assert_eq!((bench.cwnd(), bench.reg("Report.w_max")), (49 * MSS, 70 * MSS * 17 / 20));
        // Grown past w_max again: no convergence.
        pass_episode(&mut bench, RTT_US);
        bench.set_cwnd(60 * MSS);
        lose(&mut bench, RTT_US);
        assert_eq!(bench.reg("Report.w_max"), 60 * MSS);
    }

    #[test]
    fn an_episode_decreases_once_and_does_not_grow() {
        let mut bench = start(100);
        for _ in 0..50 {
            lose(&mut bench, RTT_US);
        }
        bench.ack(RTT_US / 2, Ack { bytes: 90 * MSS, in_flight: 90 * MSS, ..Ack::default() });
        assert_eq!((bench.cwnd(), bench.reg("Report.lost"), bench.reg("Report.t_us")), (70 * MSS, 50, 0));
        bench.ack(RTT_US, Ack { lost: 1, ..Ack::default() });
        assert_eq!(bench.cwnd(), 49 * MSS);
    }

    #[test]
    fn growth_is_at_most_half_a_window_per_window() {
        // Long past K the cubic's target is far above; section 4.2 clamps it to 1.5 windows.
        let mut bench = after_loss(1_000, RTT_US);
        bench.set("Report.t_us", 100_000_000);
        let from = bench.cwnd();
        bench.round(RTT_US);
        let grown = bench.cwnd() as f64 / from as f64;
        assert!((1.47..=1.5).contains(&grown), "{grown}");
    }

    #[test]
    fn a_timeout_starts_over_and_avoidance_has_no_k() {
        let mut bench = after_loss(100, RTT_US);
        bench.ack(1_000_000, Ack { bytes: MSS, lost: 60, timeout: true, rtt_us: RTT_US, ..Ack::default() });
        assert_eq!((bench.cwnd(), bench.reg("ssthresh")), (MSS, 49 * MSS));
        for segments in [2, 4, 8, 16, 32] {
            bench.round(RTT_US);
            assert_eq!(bench.cwnd(), segments * MSS);
        }
        bench.round(RTT_US);
        let start = bench.reg("Report.w_max");
        assert_eq!((start, bench.reg("Report.k_ms")), (49 * MSS, 0));
        // As slow start ended without a loss, by a twentieth per window at least.
        for _ in 0..30 {
            bench.round(RTT_US);
        }
        let t = bench.reg("Report.t_us") as f64 * 1e-6;
        assert!((2.5..3.1).contains(&t), "{t}");
        let expected = 49.0 * 1.05f64.powi(30);
        let grown = bench.cwnd() as f64 / MSS as f64;
        assert!((grown - expected).abs() < 0.02 * expected, "{grown} {expected}");
        // After a loss, the cubic alone.
        lose(&mut bench, RTT_US);
        pass_episode(&mut bench, RTT_US);
        let from = bench.cwnd();
        bench.set("Report.t_us", bench.reg("Report.k_ms") * 1000);
        bench.set("Report.w_max", from);
        bench.round(RTT_US);
        assert!(bench.cwnd() < from + MSS, "{}", bench.cwnd() - from);
    }

    /// One round of slow start at a window of `segments`: an ACK of a segment every `gap_us`.
    fn slow_start_round(segments: i64, gap_us: i64, rtt_us: impl Fn(i64) -> i64) -> Bench {
        let mut bench = start(segments);
        // The round before, at once: what follows is one round, of which the smallest RTT is known.
        let rest = Ack { bytes: MSS, rtt_us: RTT_US, in_flight: (segments - 1) * MSS, ..Ack::default() };
        bench.ack(RTT_US, rest);
        for n in 1..segments {
            let in_flight = bench.cwnd() - MSS;
            bench.ack(gap_us, Ack { bytes: MSS, rtt_us: rtt_us(n), in_flight, ..Ack::default() });
        }
        bench
    }

    #[test]
    fn slow_start_ends_when_the_rtt_grows() {
        // An eighth of 100 ms is 12.5 ms; gaps of 3 ms make no train.
        let bench = slow_start_round(30, 3_000, |_| RTT_US + 12_500);
        assert_eq!((bench.reg("ssthresh"), bench.cwnd()), (1 << 30, 60 * MSS));
        // The round began with the sample of 100 ms, which is its smallest.
        let mut bench = slow_start_round(30, 3_000, |_| RTT_US + 12_501);
        for _ in 0..9 {
            assert_eq!(bench.reg("ssthresh"), 1 << 30);
            let in_flight = bench.cwnd() - MSS;
            bench.ack(3_000, Ack { bytes: MSS, rtt_us: RTT_US + 12_501, in_flight, ..Ack::default() });
        }
        let past = bench.cwnd() - bench.reg("ssthresh");
        assert!((0..MSS).contains(&past), "at the ninth sample of the next round: {past}");
        // Then by a twentieth per window, until a loss tells more.
        let from = bench.cwnd();
        bench.round(RTT_US + 12_501);
        let grown = bench.cwnd() as f64 / from as f64;
        assert!((1.03..1.06).contains(&grown), "{grown}");
    }

    #[test]
    fn slow_start_ends_when_acks_come_in_a_train_of_half_the_rtt() {
        // Half of 100 ms and 1 ms: 51 ACKs, 1 ms apart.
        let bench = slow_start_round(51, 1_000, |_| RTT_US);
        assert_eq!(bench.reg("ssthresh"), 1 << 30);
        let bench = slow_start_round(60, 1_000, |_| RTT_US);
        assert_eq!(bench.reg("ssthresh"), (60 + 51) * MSS);
        assert!(bench.cwnd() < (60 + 52) * MSS, "{}", bench.cwnd());
        // A gap ends the train for the rest of the round.
        let bench = slow_start_round(49, 2_001, |_| RTT_US);
        assert_eq!(bench.reg("ssthresh"), 1 << 30);
        // Nor below 16 segments.
        let bench = slow_start_round(7, 1_900, |_| 10_000);
        assert_eq!(bench.reg("ssthresh"), 1 << 30);
    }

    #[test]
    fn short_round_trips_are_reno_friendly() {
        let mut bench = after_loss(20, 5_000);
        let (from, mut windows) = (bench.cwnd(), 0.0);
        for _ in 0..10 {
            bench.round(5_000);
            windows += 1.0;
        }
        // 8/15 of a segment per window.
        let grown = (bench.cwnd() - from) as f64 / MSS as f64;
        assert!((grown - windows * 8.0 / 15.0).abs() < 0.3, "{grown} after {windows} windows");
    }

    #[test]
    fn neither_idle_nor_unused_time_counts() {
        let mut bench = after_loss(1_000, RTT_US);
        for _ in 0..5 {
            bench.round(RTT_US);
        }
        let (cwnd, t_us) = (bench.cwnd(), bench.reg("Report.t_us"));
        for _ in 0..100 {
            let in_flight = bench.cwnd() / 3;
            bench.ack(RTT_US, Ack { bytes: bench.cwnd() / 8, rtt_us: RTT_US, in_flight, ..Ack::default() });
        }
        assert_eq!((bench.cwnd(), bench.reg("Report.t_us")), (cwnd, t_us));
        bench.ack(60_000_000, Ack { bytes: cwnd / 4, rtt_us: RTT_US, in_flight: cwnd, ..Ack::default() });
        assert_eq!(bench.reg("Report.t_us"), t_us + 2 * RTT_US);
    }

    #[test]
    fn windows_follow_the_golden_trajectory() {
        // Window in bytes after every tenth round trip of 100 ms from a loss at 200 segments; a loss opens
        // round 80.
        let mut bench = after_loss(200, RTT_US);
        let mut windows = vec![];
        for round in 0..160 {
            if round == 80 {
                lose(&mut bench, RTT_US);
            }
            bench.round(RTT_US);
            if round % 10 == 9 {
                windows.push(bench.cwnd());
            }
        }
        assert_eq!(windows, GOLDEN);
    }

    const GOLDEN: [i64; 16] = [
        243185, 268549, 282401, 288260, 289576, 289796, 292397, 300872, // w_max 289600, K 5.313 s
        247062, 275296, 291443, 298755, 300774, 300938, 302728, 309589, // w_max 300872
    ];

    proptest! {
        /// K against the floating-point cube root, over all windows up to 1 GiB.
        #[test]
        fn k_is_the_cube_root(mss in 88..=65_535u32, exponent in 11.0..30.0f64, w_max in 0..1i64 << 30) {
            let cwnd = (exponent.exp2() as i64).max(3 * i64::from(mss)).min(1 << 30);
            let mut bench = Bench::new(&CUBIC, mss, cwnd);
            bench.set("Report.w_max", w_max);
            lose(&mut bench, RTT_US);
            pass_episode(&mut bench, RTT_US);
            let segments = (bench.reg("Report.w_max") - bench.cwnd()) as f64 / f64::from(mss);
            let k_ms = 1000.0 * (segments / 0.4).cbrt();
            prop_assume!(k_ms >= 100.0);
            let error = (bench.reg("Report.k_ms") as f64 - k_ms).abs();
            prop_assert!(error <= 1.0, "{} for {k_ms}", bench.reg("Report.k_ms"));
        }
    }
}
