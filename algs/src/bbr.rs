//! BBR v1 (Cardwell, Cheng, Gunn, Yeganeh, Jacobson: "BBR: Congestion-Based Congestion Control", ACM Queue 14(5), 2016) as
//! Linux has it (`net/ipv4/tcp_bbr.c`).
//!
//! What `bbr.fold` does on each ACK, in integers; bytes, microseconds, bytes per second, gains in 1/256:
//!
//! - **Rate**: `bw`, the largest delivery rate of ten rounds, by the three samples of Linux's `win_minmax.c`. Samples of
//!   packets that left while the application had no more to send count only if they are larger. A round ends when the
//!   first packet that left in it is delivered.
//! - **RTT**: `min_rtt_us`, the smallest of ten seconds.
//! - **STARTUP** (`mode` 0): pacing and window gain 2/ln 2 (739), until three rounds did not bring a quarter more.
//!   **DRAIN** (1): the inverse (88), until what is in flight fits the pipe. **PROBE_BW** (2): gains 5/4, 3/4 and six
//!   times 1, each for a `min_rtt_us`. The gain of 5/4 lasts until the pipe is full or loses, 3/4 at most until it is
//!   drained; the first phase is left to chance, for which the time stands in. **PROBE_RTT** (3): four segments for 200
//!   ms and a round, where no RTT as small was seen for ten seconds.
//! - **Pacing**: `bw * gain`, less 1 %; before the pipe is full, never slower than before.
//! - **Window**: `2 bw min_rtt`, plus the largest burst of ACKs, plus three offloaded bursts, in pairs of segments.
//!   The burst of ACKs is that of five to ten rounds, at most 100 ms at `bw`. It grows by what was delivered.
//! - **Loss**: no reaction of the rate. The window goes down by what was lost, and is held to what was delivered for a
//!   round ("packet conservation"). It goes back to what it was after a round without losses.
//! - **Policers**: intervals of 4 to 16 rounds between losses are compared, each with losses of a fifth or more. Two
//!   that delivered the same rate within an eighth put that rate in place of `bw` for 48 rounds.
//!
//! Different from Linux, for what a datapath does not tell a program: the state of loss recovery is judged by rounds;
//! after idle, the first packets are paced at the gain of before; whether an ACK was delayed is not known, nor when the next
//! burst is due to leave: half a burst's time from now, on average.
//!
//! It reports `acked`, `lost`, `timeouts`, `rtt_us`, `cwnd` and `rate`, and the model: `bw`, `min_rtt_us`, `mode`, `phase`
//! and `round`.
//!
//! It does not run on stock CCP: it has some twenty control registers too many for libccp, and twice its instructions.

use crate::parameters::{MSS_BYTES, REPORT, REPORT_US, bounded_rate, window};
use ccplane_alg::{FlowInfo, FoldAlgorithm, Handover, Parameter};

/// Longest round-trip time that counts, microseconds.
const MAX_RTT_US: i64 = 50_000_000;

// Linux's values.
const CWND_GAIN: Parameter = Parameter {
    name: "cwnd_gain_percent",
    about: "window in PROBE_BW, of what the pipe holds",
    default: 200,
    min: 100,
    max: 1000,
};
const PACING_MARGIN: Parameter = Parameter {
    name: "pacing_margin_percent",
    about: "share of the rate left to the queue to drain by",
    default: 1,
    min: 0,
    max: 50,
};
const MIN_RTT_WINDOW: Parameter = Parameter {
    name: "min_rtt_window_ms",
    about: "how long the smallest RTT counts before PROBE_RTT",
    default: 10_000,
    min: 1000,
    max: 600_000,
};
const PROBE_RTT_TIME: Parameter = Parameter {
    name: "probe_rtt_ms",
    about: "how long PROBE_RTT lasts at least",
    default: 200,
    min: 1,
    max: 5000,
};

/// BBR v1, which reports losses at once.
pub const BBR: FoldAlgorithm = FoldAlgorithm {
    name: "bbr",
    source: include_str!("bbr.fold"),
    parameters: &[CWND_GAIN, PACING_MARGIN, MIN_RTT_WINDOW, PROBE_RTT_TIME, REPORT_US],
    registers: &[
        MSS_BYTES,
        REPORT,
        ("cwnd_gain", |start| start.value(&CWND_GAIN) * 256 / 100),
        ("pace_percent", |start| 100 - start.value(&PACING_MARGIN)),
        ("min_rtt_window_us", |start| start.value(&MIN_RTT_WINDOW) * 1000),
        ("probe_rtt_us", |start| start.value(&PROBE_RTT_TIME) * 1000),
        ("handshake_us", |start| start.info.min_rtt_us.map_or(MAX_RTT_US, i64::from)),
    ],
    // The filter holds the rate, and three rounds that brought no more end STARTUP.
    resumed: &[
        ("bw1", rate),
        ("bw2", rate),
        ("bw3", rate),
        ("full_bw", rate),
        ("full_rounds", |_, _| 3),
        ("handshake_us", |_, from| from.min_rtt_us.into()),
        ("Cwnd", window),
    ],
};

/// Returns the delivery rate that a flow is taken over with, bytes per second.
fn rate(_: &FlowInfo, from: &Handover) -> i64 {
    bounded_rate(from.rate_bytes_per_s)
}

// Tests

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Ack, Bench, MSS};
    use ccplane_program::ir::Prim;
    use proptest::prelude::*;

    const RTT_US: i64 = 20_000;
    /// 100 segments a round trip.
    const RATE: i64 = 100 * MSS * 1_000_000 / RTT_US;
    const STARTUP: i64 = 0;
    const DRAIN: i64 = 1;
    const PROBE_BW: i64 = 2;
    const PROBE_RTT: i64 = 3;

    fn start() -> Bench {
        Bench::new(&BBR, MSS as u32, 10 * MSS)
    }

    /// An ACK of one segment, with this delivery rate and plenty to send.
    fn ack(bench: &mut Bench, after_us: i64, rate: i64, ack: Ack) {
        bench.ack_with(after_us, ack, |prims| {
            prims.set(Prim::FlowRateIncoming, rate).set(Prim::FlowBytesPending, 1 << 40);
        });
    }

    fn segment(in_flight: i64) -> Ack {
        Ack { bytes: MSS, rtt_us: RTT_US, in_flight, ..Ack::default() }
    }

    /// A round trip: what is in flight now is delivered at `rate`, and as much again is then in flight.
    fn round(bench: &mut Bench, rate: i64, in_flight: i64) {
        let round = bench.reg("Report.round");
        let segments = in_flight / MSS;
        while bench.reg("Report.round") == round {
            ack(bench, RTT_US / segments, rate, segment(in_flight));
        }
    }

    /// A flow that knows the path, at a gain of 1.
    fn cruising() -> Bench {
        let mut bench = start();
        for _ in 0..6 {
            round(&mut bench, RATE, 100 * MSS);
        }
        ack(&mut bench, 100, RATE, segment(90 * MSS));
        assert_eq!(bench.reg("Report.mode"), PROBE_BW);
        for _ in 0..300 {
            ack(&mut bench, RTT_US / 100, RATE, segment(100 * MSS));
        }
        bench.set("Report.phase", 2);
        bench.set("gain", 256);
        bench.set("cycle_at", bench.now_us);
        bench
    }

    #[test]
    fn stock_ccp_has_no_room() {
        let bench = start();
        eprintln!("{} registers, {} instructions", bench.program.regs().len(), bench.program.insts().len());
        let refusal = ccplane_program::stock::lower(&bench.program).unwrap_err().to_string();
        assert!(refusal.contains("13 locals, stock CCP has 8"), "{refusal}");
    }

    #[test]
    fn parameters_reach_the_program() {
        let registers = ["cwnd_gain", "pace_percent", "min_rtt_window_us", "probe_rtt_us", "report_us"];
        let set = |values: &[(&'static str, i64)]| {
            let bench = Bench::configured(BBR, values, MSS as u32, MSS);
            registers.map(|name| bench.reg(name))
        };
        assert_eq!(set(&[]), [512, 99, 10_000_000, 200_000, 10_000]);
        let values = [
            ("cwnd_gain_percent", 150),
            ("pacing_margin_percent", 0),
            ("min_rtt_window_ms", 5000),
            ("probe_rtt_ms", 100),
            ("report_us", 1),
        ];
        assert_eq!(set(&values), [384, 100, 5_000_000, 100_000, 1]);
    }

    #[test]
    fn startup_paces_the_initial_window_and_doubles_it() {
        let mut bench = start();
        ack(&mut bench, RTT_US, 0, segment(9 * MSS));
        // 10 segments in 20 ms, times 739/256, less 1 %.
        assert_eq!(bench.rate(), 10 * MSS * 1_000_000 / RTT_US * 73_161 / 25_600);
        assert_eq!((bench.reg("Report.mode"), bench.cwnd()), (STARTUP, 11 * MSS));
        for segments in [20, 40, 80] {
            let rate = segments * MSS * 1_000_000 / RTT_US;
            round(&mut bench, rate, segments * MSS);
            assert_eq!((bench.reg("Report.mode"), bench.reg("bw1")), (STARTUP, rate));
            assert_eq!(bench.rate(), rate * 73_161 / 25_600, "paced at the gain of the rate");
        }
        // Slower samples change neither rate nor pace.
        ack(&mut bench, 100, RATE / 50, segment(80 * MSS));
        assert_eq!(bench.rate(), 80 * MSS * 1_000_000 / RTT_US * 73_161 / 25_600);
    }

    #[test]
    fn startup_ends_after_three_rounds_without_growth_and_drains() {
        let mut bench = start();
        let mut rounds = 0;
        while bench.reg("Report.mode") == STARTUP {
            round(&mut bench, RATE, 200 * MSS);
            rounds += 1;
        }
        // The first round is over at once, and counts as short of data, as in Linux.
        assert_eq!((rounds, bench.reg("Report.mode")), (5, DRAIN));
        assert_eq!(bench.rate(), RATE * 88 * 99 / 25_600);
        ack(&mut bench, 100, RATE, segment(150 * MSS));
        assert_eq!(bench.reg("Report.mode"), DRAIN);
        // 100 segments and three bursts.
        ack(&mut bench, 100, RATE, segment(106 * MSS));
        assert_eq!(bench.reg("Report.mode"), PROBE_BW);
        assert_ne!(bench.reg("Report.phase"), 1, "not the phase that drains");
    }

    /// So many ACKs of a flow that sends one segment at a time, as it has no more.
    fn short_of_data(bench: &mut Bench, acks: u32) {
        for _ in 0..acks {
            let few = Ack { bytes: MSS, rtt_us: RTT_US, in_flight: MSS, ..Ack::default() };
            bench.ack_with(RTT_US, few, |prims| {
                prims.set(Prim::FlowRateIncoming, RATE / 50).set(Prim::FlowBytesPending, MSS);
            });
        }
    }

    #[test]
    fn a_flow_short_of_data_does_not_end_startup() {
        let mut bench = start();
        short_of_data(&mut bench, 2_000);
        assert_eq!((bench.reg("Report.mode"), bench.reg("full_rounds")), (STARTUP, 0));
    }

    #[test]
    fn rates_of_a_flow_short_of_data_count_only_if_larger() {
        let mut bench = cruising();
        short_of_data(&mut bench, 40);
        assert_eq!(bench.reg("bw1"), RATE);
        bench.ack_with(RTT_US, segment(MSS), |prims| {
            prims.set(Prim::FlowRateIncoming, 2 * RATE).set(Prim::FlowBytesPending, MSS);
        });
        assert_eq!(bench.reg("bw1"), 2 * RATE);
    }

    #[test]
    fn the_gain_cycles_by_the_smallest_rtt() {
        let mut bench = cruising();
        let mut seen = vec![];
        for _ in 0..200 {
            // The probe fills the pipe, the phase after it drains it.
            let in_flight = [160, 130, 100, 100, 100, 100, 100, 100][bench.reg("Report.phase") as usize];
            ack(&mut bench, 1_000, RATE, segment(in_flight * MSS));
            let now = (bench.reg("Report.phase"), bench.rate());
            if seen.last() != Some(&now) {
                seen.push(now);
            }
        }
        let pace = |phase: i64| RATE * [320, 192, 256][phase.min(2) as usize] * 99 / 25_600;
        for (n, (phase, rate)) in seen.iter().enumerate() {
            assert_eq!((*phase, *rate), ((n as i64 + 2) % 8, pace(*phase)));
        }
        // 200 ms are nine times a little more than 20 ms.
        assert_eq!(seen.len(), 10);
        assert_eq!(bench.reg("Report.mode"), PROBE_BW);
    }

    #[test]
    fn a_probe_waits_for_the_pipe_or_a_loss_and_draining_ends_early() {
        let mut bench = cruising();
        bench.set("Report.phase", 0);
        bench.set("gain", 320);
        for _ in 0..100 {
            ack(&mut bench, 1_000, RATE, segment(110 * MSS));
        }
        assert_eq!(bench.reg("Report.phase"), 0, "for 100 ms");
        ack(&mut bench, 1_000, RATE, Ack { lost: 1, ..segment(110 * MSS) });
        assert_eq!((bench.reg("Report.phase"), bench.reg("gain")), (1, 192));
        ack(&mut bench, 1_000, RATE, segment(120 * MSS));
        assert_eq!(bench.reg("Report.phase"), 1);
        ack(&mut bench, 1_000, RATE, segment(99 * MSS));
        assert_eq!(bench.reg("Report.phase"), 2);
    }

    #[test]
    fn the_window_is_two_pipes_and_bursts() {
        let bench = cruising();
        // Bursts of 3 * max(2, rate / 1024 / mss) segments, in pairs, and what ACKs brought at once.
        let burst = 3 * (bench.rate() / 1024 / MSS).max(2);
        let aggregated = bench.reg("extra").max(bench.reg("extra_before")).min(RATE / 10);
        let expected = 2 * RATE * RTT_US / 1_000_000 + aggregated + burst * MSS;
        assert!((0..=4 * MSS).contains(&(bench.cwnd() - expected)), "{} {expected}", bench.cwnd());
    }

    #[test]
    fn probe_rtt_comes_every_ten_seconds_and_lasts_200_ms_and_a_round() {
        let mut bench = cruising();
        let (cwnd, since) = (bench.cwnd(), bench.reg("min_rtt_at"));
        // No sample is as small as the first.
        let queued = |in_flight| Ack { rtt_us: RTT_US + 1, ..segment(in_flight) };
        while bench.reg("Report.mode") != PROBE_RTT {
            ack(&mut bench, 10_000, RATE, queued(100 * MSS));
        }
        assert!((10_000_000..10_020_000).contains(&(bench.now_us - since)), "{}", bench.now_us - since);
        assert_eq!((bench.cwnd(), bench.rate()), (4 * MSS, RATE * 99 / 100));
        ack(&mut bench, 10_000, RATE, queued(50 * MSS));
        assert_eq!(bench.reg("probe_end"), 0, "still more in flight");
        ack(&mut bench, 10_000, RATE, segment(4 * MSS));
        let began_us = bench.now_us;
        assert_eq!(bench.reg("Report.min_rtt_us"), RTT_US);
        while bench.reg("Report.mode") == PROBE_RTT {
            assert_eq!(bench.cwnd(), 4 * MSS);
            ack(&mut bench, 10_000, RATE / 25, segment(4 * MSS));
        }
        assert!((200_000..=250_000).contains(&(bench.now_us - began_us)), "{}", bench.now_us - began_us);
        assert_eq!((bench.reg("Report.mode"), bench.reg("bw1")), (PROBE_BW, RATE), "its rates say nothing");
        assert!(bench.cwnd() >= cwnd - 10 * MSS, "{} before, {} after", cwnd, bench.cwnd());
    }

    #[test]
    fn a_smaller_rtt_in_time_puts_probe_rtt_off() {
        let mut bench = cruising();
        for _ in 0..100 {
            for _ in 0..90 {
                ack(&mut bench, 100_000, RATE, Ack { rtt_us: RTT_US + 5_000, ..segment(100 * MSS) });
            }
            ack(&mut bench, 100_000, RATE, segment(100 * MSS));
            assert_eq!(bench.reg("Report.mode"), PROBE_BW);
        }
    }

    #[test]
    fn loss_conserves_packets_for_a_round_and_is_then_forgotten() {
        let mut bench = cruising();
        let (cwnd, rate) = (bench.cwnd(), bench.reg("bw1"));
        ack(&mut bench, 100, RATE, Ack { lost: 10, ..segment(90 * MSS) });
        assert_eq!((bench.cwnd(), bench.reg("recovery")), (91 * MSS, 1), "what is in flight and one");
        ack(&mut bench, 100, RATE, segment(80 * MSS));
        assert_eq!(bench.cwnd(), 91 * MSS, "never below that");
        for _ in 0..88 {
            ack(&mut bench, 100, RATE, segment(90 * MSS));
            assert_eq!(bench.cwnd(), 91 * MSS);
        }
        // The round's end; nothing more was lost.
        ack(&mut bench, 100, RATE, segment(90 * MSS));
        ack(&mut bench, 100, RATE, segment(90 * MSS));
        assert_eq!(bench.reg("recovery"), 0);
        assert!(bench.cwnd() >= cwnd, "{} {cwnd}", bench.cwnd());
        assert_eq!((bench.reg("bw1"), bench.reg("Report.lost")), (rate, 10));
    }

    #[test]
    fn more_losses_prolong_recovery_in_slow_start() {
        let mut bench = cruising();
        let cwnd = bench.cwnd();
        ack(&mut bench, 100, RATE, Ack { lost: 10, ..segment(90 * MSS) });
        ack(&mut bench, 100, RATE, Ack { lost: 1, ..segment(89 * MSS) });
        round(&mut bench, RATE, 89 * MSS);
        assert_eq!(bench.reg("recovery"), 2);
        let held = bench.cwnd();
        ack(&mut bench, 100, RATE, segment(89 * MSS));
        assert_eq!(bench.cwnd(), held + MSS, "by what is delivered");
        round(&mut bench, RATE, 89 * MSS);
        assert_eq!(bench.reg("recovery"), 0);
        assert!(bench.cwnd() >= cwnd - 10 * MSS, "{} {cwnd}", bench.cwnd());
    }

    #[test]
    fn a_timeout_starts_from_one_segment_and_the_window_comes_back() {
        let mut bench = cruising();
        let cwnd = bench.cwnd();
        ack(&mut bench, 1_000_000, 0, Ack { lost: 100, timeout: true, ..segment(0) });
        assert!(bench.cwnd() <= 4 * MSS, "{}", bench.cwnd());
        assert_eq!((bench.reg("Report.timeouts"), bench.reg("bw1")), (1, RATE));
        for _ in 0..20 {
            round(&mut bench, RATE, 50 * MSS);
        }
        assert!(bench.cwnd() >= cwnd - 10 * MSS, "{} {cwnd}", bench.cwnd());
    }

    #[test]
    fn a_policer_s_rate_takes_over_for_48_rounds() {
        let mut bench = cruising();
        let mut rounds = 0;
        // A quarter of all packets lost, half of the rate delivered.
        while bench.reg("lt") < 2 {
            for _ in 0..5 {
                let lost =
                    Ack { bytes: 4 * MSS, lost: 2, rtt_us: RTT_US, in_flight: 20 * MSS, ..Ack::default() };
                ack(&mut bench, 4 * MSS * 1_000_000 / (RATE / 2), RATE / 2, lost);
            }
            rounds += 1;
            assert!(rounds < 40, "{}", bench.reg("lt"));
        }
        let (bw, rate) = (bench.reg("Report.bw"), bench.rate());
        assert!((bw - RATE / 2).abs() < RATE / 20, "{bw}");
        assert_eq!((rate, bench.reg("gain")), (bw * 99 / 100, 256));
        let from = bench.reg("Report.round");
        while bench.reg("lt") == 2 {
            round(&mut bench, RATE / 2, 20 * MSS);
        }
        assert_eq!(bench.reg("Report.round") - from, 48);
        assert_eq!(bench.reg("Report.bw"), bench.reg("bw1"));
    }

    /// The windowed maximum of `win_minmax.c`, in the plain form of its comments.
    #[derive(Clone, Copy, Default)]
    struct Best([(i64, i64); 3]);

    impl Best {
        fn add(&mut self, round: i64, rate: i64) {
            const WINDOW: i64 = 10;
            let (s, new) = (&mut self.0, (rate, round));
            if rate >= s[0].0 || round - s[2].1 > WINDOW {
                *s = [new; 3];
                return;
            }
            if rate >= s[1].0 {
                (s[1], s[2]) = (new, new);
            } else if rate >= s[2].0 {
                s[2] = new;
            }
            let age = round - s[0].1;
            if age > WINDOW {
                *s = [s[1], s[2], new];
                if round - s[0].1 > WINDOW {
                    *s = [s[1], s[2], new];
                }
            } else if s[1].1 == s[0].1 && age > WINDOW / 4 {
                (s[1], s[2]) = (new, new);
            } else if s[2].1 == s[1].1 && age > WINDOW / 2 {
                s[2] = new;
            }
        }
    }

    proptest! {
        #[test]
        fn the_best_rate_is_linux_s(rates in prop::collection::vec((1..100i64, 0..4u8), 1..300)) {
            let mut bench = start();
            ack(&mut bench, 1_000, 0, segment(0));
            ack(&mut bench, 1_000, 0, segment(0));
            let mut best = Best::default();
            for (rate, rounds) in rates {
                for _ in 1..rounds {
                    ack(&mut bench, 1_000, 0, segment(0));
                }
                let in_flight = if rounds > 0 { 0 } else { 10 * MSS };
                ack(&mut bench, 1_000, rate, segment(in_flight));
                best.add(bench.reg("Report.round"), rate);
                prop_assert_eq!(bench.reg("bw1"), best.0[0].0);
            }
        }
    }
}
