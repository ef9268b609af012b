//! Dual: a delay-based mode that keeps queues short, a competitive mode that is CUBIC, and an active test that decides
//! between them. They follow Copa's mode switching (Arun and Balakrishnan, NSDI 2018) and Nimbus's question whether
//! cross traffic gives way (Goyal et al., SIGCOMM 2022). BBR's rate times min RTT (Cardwell et al., ACM Queue 14(5),
//! 2016) and CUBIC (RFC 9438) are the others.
//!
//! # What is measured
//! - **Rate** `bw`: the largest delivery rate of the last one to two `srtt`s.
//! - **Queue** `queue_us`: the standing RTT (the smallest of a quarter to half an `srtt`) less `min_us`, the smallest of 15 to 30 s.
//! - **Noise** `var`: how far the mean RTT of a quarter of an `srtt` lies above its smallest, averaged over eight quarters. Jitter,
//!   aggregated frames and segments that leave in trains show here; a queue that stands or a rate that changes slowly does not.
//! - **ACK gap** `gap`: the time for which ACKs stay away, beyond two packets' time, in each of two rounds (receive offload, Wi-Fi, a
//!   lumpy way back); at most `2 min_us` or 250 ms.
//!   Where gaps of successive rounds differ by less than an eighth (`lumps` counts such rounds of DELAY up to 9, and all others down; more than
//!   4 count), the way back lets ACKs through at fixed times; in the other modes it may be rivals that space them. What ACKs wait there spreads
//!   RTTs evenly over the gap, so half of the gap counts as no noise. A gap longer than `min_us` then counts beyond two packets' time at `top`:
//!   at `bw`, a flow that the gap starves would see none.
//! - **Allowed queue** `own`: `k` packets at the flow's rate and half of the gap. `k` is the larger of two and half of
//!   the square root of `bw min_us` in packets, and twice the noise. There `min_us` counts as 40 ms at most, so that
//!   long paths do not get more; at least what 250 us carry, as hosts' own noise on paths of microseconds is that
//!   large.
//! - **Limit**: twice the time of `k` packets at `top` (the largest rate so far, halved each 15 s) and a millisecond; at most half of
//!   `min_us` and 10 ms; and half of the gap, or all of it where it is longer than `min_us`. `top` stands here in the place of `bw`
//!   since a starved flow would take the rivals' queue for its own.
//!
//! # Modes
//! ```text
//!            the start is over, or the queue is above the limit for an srtt
//!     ┌─► DELAY 0 ────────────────────────────────► SUSPECT 2 ──queue went──► DELAY
//!     │     │ ▲ └─loss─► LOOK 5 ─► back               │ queue stayed
//!     │     │ └──────── RTT stays too: path is longer ── DEEP 4 (not at the start)
//!     │                                               │ RTT changes: a rival
//!     ├── need ─── queue went ── CHECK 3 ◄──time── COMPETE 1 ◄─┘
//!     │                            └─queue stayed───►┘ │
//!     └───────────── carries less than half of before ─┘
//! ```
//! - **DELAY** (0): the window is `bw (min_us + gap)` and `k` packets, the pacing rate 1.05 `bw`. While the queue is shorter than half of
//!   what is allowed a gain grows from 1/32 to 1 and doubles each round: so the flow starts, and finds new room. A round in which an
//!   eighth of the window was lost keeps the gain at 1/16 for four `srtt`s. Above three times the allowed queue the window follows 15/16
//!   of the latest rate. A congestion mark does so for an `srtt`. Losses alone change nothing else.
//! - **SUSPECT** (2): the flow drains its own share of the queue: 0.83 `bw min_us` for at most 8 `srtt`s. Flows of this kind see the
//!   same queue and drain it together, so it goes within half of the limit (or 1.25 packets' time): nobody else holds it up, and the
//!   rate from before the test is taken up again.
//! - **DEEP** (4): a quarter of the window for two `srtt`s. A steady RTT changed by less than 1/64 during the last
//!   three `srtt`s of SUSPECT and by less than 1/32 now. If the flow is not starved then, there was no queue: the
//!   path is longer, and `min_us` starts anew.
//! - **COMPETE** (1): CUBIC with the window from before the test; at the flow's start with four times that, which
//!   others have filled. Where it loses more than 3 % (an average over 32 rounds), the rivals do not yield to losses
//!   and would starve CUBIC. The flow then is as BBR: its window is 2.6 `rate min_us`. It is paced at 2.89 times the
//!   rate until three rounds let that grow by less than a quarter, then by BBR's eight phases. This rate is the largest
//!   of 8 to 16 `min_us`.
//! - **CHECK** (3): as SUSPECT for 2.5 `srtt`s, out of competition: when CUBIC is back at its last maximum or is late by 2 s, first
//!   after 6 round trips, then up to 8 s. A loss ends it. `need` successes in a row lead back to DELAY: two, and two more (up to 8) each
//!   time that DELAY suspected a rival again before it had lasted 3 s. A test follows a success by 6 round trips, or 2 s.
//! - **LOOK** (5): who joins a queue that never empties takes it for the path, and so does a flow whose own queue never does. So the flow
//!   halves its window for two `srtt`s, once a second or less often: where it hogs the link, that alone shows a smaller `min_us`, and
//!   the queue then counts. It looks on a loss in DELAY; and where the gain is 0 in the last 5 s of 15 whose smallest RTT is above that
//!   of the 15 before.
//!
//! # Registers that are not named so in a paper
//! `hold`: the window to come back to. `bw_hold`: the rate before a suspicion. `boost`: the gain, in 1/1024. `pint`: round trips between
//! two checks, doubled by each that failed. `verdict`: 0; a network's opinion where the program is `neural`'s (neural.rs). `base`: in SUSPECT and DEEP the RTT to compare with, in LOOK `min_us`, in COMPETE and CHECK
//! the checks that succeeded. `lossy`: the share that competition loses, Q16. `phase`: 0 to 7 of BBR's cycle, 16 to 18 while it starts.
//! `look`: seconds between two looks. `pkt`: 1.25 packets' time at the rate before a test.
//!
//! # Known weaknesses
//! Beside CUBIC two links of three end outside 0.8 to 1.25 of the fair share; beside BBR three of five do. A flow
//! that joins CUBIC in a deep queue never sees the path's own RTT. It takes the least that CUBIC leaves for it, and
//! so returns to DELAY too often: 0.46 of the fair share on 24 Mb/s, 40 ms and two BDPs of queue, simulated. A way
//! back that lets ACKs through each 250 ms or less often starves the flow. Behind queues of one or two packets 10
//! to 20 % are lost. A cellular link that stops for seconds can leave the flow in competition with itself until a
//! check succeeds. Some groups of more than eight flows of its own kind take each other for rivals.
//!
//! Beyond stock CCP's registers and instructions. The agent decides nothing.

use crate::parameters::{DEFAULT_REPORT_US, MAX_MSS_BYTES, REPORT_US, bounded_rate, window_of};
use ccplane_alg::{Algorithm, Control, Flow, FlowInfo, Handover, Parameter, RESUMES_WITHIN_US, Report};
use std::sync::Arc;

// State

/// The program counts rounds in which ACKs come at fixed times no further than this.
const MOST_LUMPS: i64 = 9;
/// The program's smallest round trip before it has seen one, microseconds.
const NO_RTT_US: i64 = 50_000_000;

/// The agent's side of a flow. Every decision is the program's, so it only remembers what the last report said.
#[derive(Default)]
struct DualFlow {
    mode: Option<i64>,
    /// `bw`, `min_us` and `gap_us` of the last report of DELAY with a round trip.
    delay: Option<[i64; 3]>,
    /// When that report was made, microseconds.
    delay_at_us: u64,
}

// Behaviour

impl Flow for DualFlow {
    /// Reports are for those who watch: `acked`, `lost`; `srtt_us`, `min_us`, `standing_us`, `queue_us`; `bw`, `mode`, `boost`, `hold`;
    /// `gap_us`, 0 unless ACKs come at fixed times.
    fn on_report(&mut self, now_us: u64, report: &Report<'_>, _control: &mut Control) {
        self.mode = report.get("mode");
        if self.mode == Some(0) && report.get("min_us").is_some_and(|min_us| min_us < NO_RTT_US) {
            self.delay = Some(["bw", "min_us", "gap_us"].map(|name| report.get(name).unwrap_or(0)));
            self.delay_at_us = now_us;
        } else if now_us.saturating_sub(self.delay_at_us) >= RESUMES_WITHIN_US {
            // Rivals that have been there for so long have left nothing of it.
            self.delay = None;
        }
    }

    fn rivals(&self) -> Option<bool> {
        // COMPETE and CHECK.
        self.mode.map(|mode| mode == 1 || mode == 3)
    }

    /// The largest rate is a multiple of the mean one, which a hand-over has, where the way back gathers ACKs.
    fn kept(&self) -> Vec<(&'static str, i64)> {
        let Some([bw, min_us, gap]) = self.delay else { return Vec::new() };
        let window = i128::from(bw) * (i128::from(min_us) + i128::from(gap)) / 1_000_000;
        let window = window_of(u64::try_from(window.max(0)).unwrap_or(u64::MAX));
        let rates = [("bw_is", bw), ("bw_was", bw), ("top", bw)];
        let gaps = [("gap", gap), ("gap_was", gap), ("lumps", if gap > 0 { MOST_LUMPS } else { 0 })];
        rates.into_iter().chain(gaps).chain([("Cwnd", window)]).collect()
    }

    fn state(&self) -> Option<&'static str> {
        self.mode.map(|mode| match mode {
            0 => "short queue",
            1 => "competes",
            2 | 3 => "tests for rivals",
            _ => "probes the path",
        })
    }
}

// Config

/// The parameters of dual.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DualConfig {
    /// Least time between two reports of a flow, microseconds.
    pub report_us: u32,
}

// Defaults

impl Default for DualConfig {
    fn default() -> Self {
        DualConfig { report_us: DEFAULT_REPORT_US }
    }
}

// Factory

/// Makes flows of two modes.
#[derive(Clone, Default, Debug)]
pub struct Dual {
    /// For every flow that starts.
    pub config: DualConfig,
}

impl Dual {
    pub(crate) const PARAMETERS: &[Parameter] = &[REPORT_US];

    /// Takes up what another program hands over; a largest window says that the start is over.
    pub(crate) fn start_from(from: &Handover, info: &FlowInfo, control: &mut Control) {
        let (window, min_us) = (window_of(from.drained_window_bytes(info.mss_bytes)), from.min_rtt_us.into());
        control.update(&[
            ("min_is", min_us),
            ("min_was", min_us),
            ("w_max", window),
            ("top", bounded_rate(from.rate_bytes_per_s)),
            ("Cwnd", window),
        ]);
    }
}

impl Algorithm for Dual {
    ccplane_alg::one_program!("dual", "dual.fold");

    fn flow(&self, info: &FlowInfo, control: &mut Control) -> Box<dyn Flow> {
        let fields = [
            ("mss", i64::from(info.mss_bytes.clamp(1, MAX_MSS_BYTES))),
            ("report_us", i64::from(self.config.report_us)),
        ];
        control.set_program("dual", &fields);
        Box::new(DualFlow::default())
    }

    fn take_up(&self, info: &FlowInfo, from: &Handover, control: &mut Control) {
        Dual::start_from(from, info, control);
    }

    fn parameters(&self) -> &'static [Parameter] {
        Dual::PARAMETERS
    }

    fn configured(&self, values: &[(&'static str, i64)]) -> Option<Arc<dyn Algorithm>> {
        let mut config = DualConfig::default();
        for (name, value) in values {
            if *name == "report_us" {
                config.report_us = u32::try_from(*value).unwrap_or(DEFAULT_REPORT_US);
            }
        }
        Some(Arc::new(Dual { config }))
    }
}

// Tests

#[cfg(test)]
mod tests {
    use super::*;
    use crate::neural::{Neural, NeuralInAgent};
    use crate::testing::{Ack, Bench, Extremes, MSS, rated_acks, reported};
    use ccplane_alg::configure;
    use ccplane_program::compile;
    use ccplane_program::ir::{Prim, RegKind};
    use proptest::prelude::*;

    const BASE_US: i64 = 40_000;
    const DELAY: i64 = 0;
    const COMPETE: i64 = 1;
    const SUSPECT: i64 = 2;
    const CHECK: i64 = 3;
    const LOOK: i64 = 5;

    /// A path of 100 segments; more in flight, of this flow and others, is queued.
    struct Path {
        bench: Bench,
        base_us: i64,
        /// Segments of this flow in flight: each ACK sends none, one or two, until the window is full.
        flight: i64,
        others: i64,
        /// A bit for each mode of the last round.
        seen: u32,
    }

    impl Path {
        fn new() -> Path {
            let bench = Bench::new(&Dual::default(), MSS as u32, 10 * MSS);
            Path { bench, base_us: BASE_US, flight: 10, others: 0, seen: 0 }
        }

        /// A round trip's ACKs.
        fn round(&mut self) {
            self.seen = 0;
            for _ in 0..self.flight {
                let room = 100 * self.base_us / BASE_US;
                let rtt_us = self.base_us * (self.flight + self.others).max(room) / room;
                self.one(rtt_us / self.flight, rtt_us, self.flight * MSS * 1_000_000 / rtt_us, 0);
                self.seen |= 1 << self.mode();
                self.flight += (self.bench.cwnd() / MSS - self.flight).clamp(-1, 1);
            }
        }

        fn one(&mut self, after_us: i64, rtt_us: i64, rate: i64, lost: i64) {
            let in_flight = self.flight * MSS;
            self.bench.ack_with(
                after_us,
                Ack { bytes: MSS, rtt_us, in_flight, lost, ..Ack::default() },
                |prims| {
                    prims.set(Prim::FlowRateIncoming, rate);
                },
            );
        }

        fn lose(&mut self, rtt_us: i64) {
            let rate = self.bench.reg("Report.bw");
            self.one(100, rtt_us, rate, 1);
        }

        fn mode(&self) -> i64 {
            self.bench.reg("Report.mode")
        }

        /// Plays rounds until one has this mode, and says how many they were.
        fn until(&mut self, mode: i64) -> u32 {
            self.seen = 0;
            for n in 0..400 {
                if self.mode() == mode || self.seen & (1 << mode) != 0 {
                    return n;
                }
                self.round();
            }
            panic!("mode {} for 400 rounds", self.mode());
        }

        /// A rival comes and grows until the flow competes.
        fn rival_comes(&mut self) {
            for _ in 0..30 {
                self.others = (self.others + 10).min(200);
                self.round();
                if self.mode() == COMPETE {
                    return;
                }
            }
            panic!("mode {} beside a rival", self.mode());
        }

        fn settled() -> Path {
            let mut path = Path::new();
            path.until(SUSPECT);
            path.until(DELAY);
            (0..20).for_each(|_| path.round());
            path
        }
    }

    #[test]
    fn alone_it_starts_fast_tests_once_and_queues_a_few_packets() {
        let mut path = Path::new();
        assert!(path.until(SUSPECT) <= 8);
        assert!(path.until(DELAY) <= 5);
        for _ in 0..100 {
            path.round();
            assert_eq!(path.mode(), DELAY);
            assert!((98..=112).contains(&(path.bench.cwnd() / MSS)), "{}", path.bench.cwnd() / MSS);
        }
    }

    #[test]
    fn a_queue_that_stays_is_a_rival_and_one_that_goes_leads_back_in_five_seconds() {
        let mut path = Path::settled();
        path.rival_comes();
        assert!(path.bench.cwnd() >= 90 * MSS, "{}", path.bench.cwnd() / MSS);
        // It stays, so do we, whatever is checked.
        for _ in 0..60 {
            path.round();
            assert!([COMPETE, CHECK].contains(&path.mode()));
            if path.mode() == COMPETE && path.bench.cwnd() > 150 * MSS {
                path.lose(2 * BASE_US);
            }
        }
        path.others = 0;
        let from_us = path.bench.now_us;
        path.until(DELAY);
        let took_us = path.bench.now_us - from_us;
        assert!(took_us < 5_000_000, "{took_us}");
    }

    /// Two checks in a row have to succeed, and two more each time that a rival is there again within 3 s, eight at most. Those of the
    /// competition before do not count.
    #[test]
    fn checks_are_counted_anew_in_each_competition_and_more_are_asked_for_where_it_comes_back() {
        let mut path = Path::settled();
        for (needed, delay_us) in [(2, 0), (4, 0), (6, 0), (8, 0), (8, 4_000_000), (2, 0)] {
            path.rival_comes();
            assert_eq!(path.bench.reg("base"), 0, "of {needed}");
            path.others = 0;
            let mut once = false;
            for _ in 0..400 {
                path.round();
                once |= path.mode() == COMPETE && path.bench.reg("base") == 1;
                if path.mode() == DELAY {
                    break;
                }
            }
            assert_eq!((path.mode(), once), (DELAY, true), "of {needed}");
            assert_eq!(path.bench.reg("base"), needed);
            let until_us = path.bench.now_us + delay_us.max(20 * BASE_US);
            while path.bench.now_us < until_us {
                path.round();
            }
        }
    }

    #[test]
    fn a_path_that_becomes_longer_is_not_a_rival() {
        let mut path = Path::settled();
        let rtt_us = 2 * BASE_US;
        path.base_us = rtt_us;
        let mut competed = 0;
        for _ in 0..40 {
            path.round();
            competed += i64::from(path.mode() == COMPETE);
        }
        assert_eq!((competed, path.mode()), (0, DELAY));
        assert!((rtt_us..rtt_us * 11 / 10).contains(&path.bench.reg("Report.min_us")));
    }

    #[test]
    fn a_loss_in_delay_mode_has_it_look_for_a_smaller_rtt_and_nothing_else() {
        let mut path = Path::settled();
        let before = path.bench.cwnd();
        path.lose(BASE_US);
        assert_eq!((path.mode(), path.bench.cwnd()), (LOOK, before / 2));
        assert!(path.until(DELAY) <= 5);
        path.round();
        assert!(path.bench.cwnd() > before * 9 / 10, "{} of {before}", path.bench.cwnd());
        path.lose(BASE_US);
        assert_eq!(path.mode(), DELAY, "not again so soon");
    }

    #[test]
    fn a_flow_that_joined_a_full_queue_finds_out_by_looking() {
        let mut path = Path::settled();
        path.bench.set("Report.min_us", 2 * BASE_US);
        path.bench.set("min_is", 2 * BASE_US);
        path.bench.set("min_was", 2 * BASE_US);
        path.others = 100;
        (0..5).for_each(|_| path.round());
        path.until(DELAY);
        path.lose(2 * BASE_US);
        assert_eq!(path.mode(), LOOK);
        path.until(DELAY);
        let min_us = path.bench.reg("Report.min_us");
        assert!(min_us < 2 * BASE_US * 7 / 8, "{min_us}");
    }

    #[test]
    fn rivals_that_do_not_yield_to_losses_are_met_as_bbr_would() {
        let compete = |lost_of_64: usize| {
            let mut path = Path::settled();
            path.bench.set("Report.mode", COMPETE);
            let mut paced = 0;
            for n in 0..4000 {
                // Half of the link for this flow, a full queue; no test.
                path.bench.set("test_at", 1 << 40);
                path.flight = path.bench.cwnd() / MSS;
                path.one(800, 2 * BASE_US, 50 * MSS * 1_000_000 / BASE_US, i64::from(n % 64 < lost_of_64));
                paced += i64::from(n >= 3000 && path.bench.rate() > 0);
            }
            assert_eq!(path.mode(), COMPETE);
            (paced, path.bench.reg("lossy"))
        };
        let (few, many) = (compete(1), compete(4));
        assert!(few.0 == 0 && few.1 < 1966, "{few:?}");
        assert!(many.0 == 1000 && many.1 > 1966, "{many:?}");
    }

    #[test]
    fn acks_at_fixed_times_are_waited_for_in_delay_mode_by_a_starved_flow_too() {
        // Four packets for each time that the way back lets ACKs through: rounds that agree, the gap, the mode.
        let gaps = |gaps_us: [i64; 2], queue: bool| {
            let mut path = Path::settled();
            for gap_us in gaps_us.repeat(20) {
                for n in 0..4 {
                    let after_us = if n == 0 { gap_us } else { 10 };
                    // The last packet arrives just before its ACK leaves, unless a queue held all of them up.
                    let waited_us = if queue { gap_us } else { gap_us * (3 - n) / 4 };
                    path.one(after_us, BASE_US + waited_us, 4 * MSS * 1_000_000 / gap_us, 0);
                }
                path.flight = 4;
            }
            (path.bench.reg("lumps"), path.bench.reg("gap"), path.mode())
        };
        // Two packets take 75 ms at the rate that the gap leaves.
        let fixed = gaps([150_000; 2], false);
        assert!((5..=MOST_LUMPS).contains(&fixed.0) && fixed.1 > 120_000 && fixed.2 == DELAY, "{fixed:?}");
        let varying = gaps([100_000, 200_000], false);
        assert!(varying.0 <= 4 && varying.2 == DELAY, "{varying:?}");
        let beside_others = gaps([150_000; 2], true);
        assert!(
            beside_others.0 <= 4 && beside_others.1 <= 75_000 && beside_others.2 != DELAY,
            "{beside_others:?}"
        );
    }

    /// With a field that its program lacks, the whole update would be refused.
    #[test]
    fn it_keeps_registers_of_its_own_program_and_none_before_it_has_seen_a_round_trip() {
        let in_agent = NeuralInAgent::shipped().unwrap();
        for algorithm in [&Dual::default() as &dyn Algorithm, &Neural::default(), &in_agent] {
            let source = algorithm.programs().remove(0);
            let program = compile(source.source).unwrap();
            let names = reported(&program);
            let mut control = Control::default();
            let mut flow = algorithm.flow(&FlowInfo::example(MSS as u32, 14_480), &mut control);
            for (min_us, keeps) in [(NO_RTT_US, false), (BASE_US, true)] {
                let value = |name: &String| match name.as_str() {
                    "mode" => DELAY,
                    "min_us" => min_us,
                    _ => 1000,
                };
                let values: Vec<i64> = names.iter().map(value).collect();
                let report = Report { program: source.name, names: &names, values: &values, truth: None };
                flow.on_report(1, &report, &mut control);
                assert_eq!(!flow.kept().is_empty(), keeps, "{} {min_us}", source.name);
            }
            for (name, _) in flow.kept() {
                let kind = program.reg(name).map(|reg| program.regs()[usize::from(reg)].kind);
                assert!(name == "Cwnd" || kind == Some(RegKind::Control), "{}: {name}", source.name);
            }
        }
        assert_eq!(Bench::new(&Dual::default(), MSS as u32, 10 * MSS).reg("Report.min_us"), NO_RTT_US);
    }

    #[test]
    fn after_long_competition_it_keeps_nothing_from_before() {
        let names = ["mode", "min_us", "bw", "gap_us"].map(str::to_owned);
        for (competes_us, keeps) in [(RESUMES_WITHIN_US - 1, true), (RESUMES_WITHIN_US, false)] {
            let mut flow = DualFlow::default();
            for (at_us, mode) in [(1, DELAY), (1 + competes_us, COMPETE)] {
                let values = [mode, BASE_US, 1_000_000, 0];
                let report = Report { program: "dual", names: &names, values: &values, truth: None };
                flow.on_report(at_us, &report, &mut Control::default());
            }
            assert_eq!(!flow.kept().is_empty(), keeps, "{competes_us} us");
        }
    }

    #[test]
    fn its_state_is_told_in_words() {
        let told = |mode| DualFlow { mode, ..DualFlow::default() }.state();
        assert_eq!(told(None), None);
        let words: Vec<&str> = (0..=5).filter_map(|mode| told(Some(mode))).collect();
        assert_eq!(words[..2], ["short queue", "competes"]);
        assert_eq!([words[SUSPECT as usize], words[CHECK as usize]], ["tests for rivals"; 2]);
        assert_eq!([words[4], words[LOOK as usize]], ["probes the path"; 2]);
    }

    #[test]
    fn plans_set_how_often_it_reports() {
        let dual: Arc<dyn Algorithm> = Arc::new(Dual::default());
        let set = configure(&dual, [("report_us", 0)]).unwrap();
        assert_eq!(Bench::new(&*set, MSS as u32, 10 * MSS).reg("report_us"), 0);
    }

    proptest! {
        /// Whatever a datapath says, nothing saturates ([`Bench::ack`] checks) and the bounds hold.
        #[test]
        fn any_stream_keeps_the_bounds(
            mss in 1..=65_535u32,
            cwnd in 1..1i64 << 30,
            stream in prop::collection::vec(rated_acks(Extremes::USUAL), 1..200),
        ) {
            let mut bench = Bench::new(&Dual::default(), mss, cwnd);
            for (after_us, ack, rate) in stream {
                bench.ack_with(after_us, ack, |prims| {
                    prims.set(Prim::FlowRateIncoming, rate);
                });
                prop_assert!((i64::from(mss)..=1 << 30).contains(&bench.cwnd()), "{}", bench.cwnd());
                prop_assert!((0..=5).contains(&bench.reg("Report.mode")));
                prop_assert!(bench.rate() == 0 || (1000..1 << 32).contains(&bench.rate()));
            }
        }
    }
}
