//! Tests of the algorithms that are declared as data: what all of them keep to, and each one's own bounds.

use crate::bbr::BBR;
use crate::constant::CONSTANT;
use crate::copa::COPA;
use crate::cubic::CUBIC;
use crate::parameters::MAX_WINDOW_BYTES;
use crate::reno::RENO;
use crate::testing::{Ack, Bench, Extremes, MSS, assert_stock_limits, rated_acks};
use crate::vegas::VEGAS;
use ccplane_alg::{Algorithm, Control, FlowInfo, FoldAlgorithm, Handover};
use ccplane_program::ir::Prim;
use ccplane_program::stock::lower;
use proptest::prelude::*;

const MAX_WINDOW: i64 = MAX_WINDOW_BYTES as i64;

/// A flow before and after an ACK.
struct Step<'a> {
    bench: &'a Bench,
    mss: i64,
    /// Window before the ACK, bytes.
    before: i64,
    /// Pacing rate before the ACK, bytes per second.
    paced: i64,
    ack: Ack,
}

/// Whether a step keeps the bounds of one algorithm.
type Bounds = fn(&Step<'_>) -> bool;
type Declared = (FoldAlgorithm, Extremes, Bounds);
/// Parameters by name.
type Values = Vec<(&'static str, i64)>;
/// ACKs with the bytes that are pending at each.
type Stream = Vec<((i64, Ack, i64), i64)>;

/// Each algorithm with its bounds and the extremes that its streams reach.
const DECLARED: [Declared; 6] = [
    (RENO, Extremes::USUAL, |step| {
        step.bench.cwnd() <= (2 * step.before).max(step.before + step.mss) && step.decreases()
    }),
    // K grows with the time since the last congestion event.
    (CUBIC, Extremes { silence_us: 2_000_000_000, ..Extremes::USUAL }, |step| {
        let after = step.bench.cwnd();
        after <= MAX_WINDOW && after <= 2 * step.before.max(step.mss) && step.decreases()
    }),
    (VEGAS, Extremes::USUAL, |step| {
        let after = step.bench.cwnd();
        after <= (2 * step.before + step.mss).min(MAX_WINDOW) && step.decreases()
    }),
    (COPA, Extremes::USUAL, |step| {
        let (after, inverse_delta) = (step.bench.cwnd(), step.bench.reg("Report.inverse_delta"));
        let sampled = step.bench.reg("Report.standing_us") < 2_147_483_647;
        after <= (2 * step.before).min(MAX_WINDOW)
            && (2 * after >= step.before || step.ack.timeout)
            && (step.bench.reg("inverse_delta").min(2)..=16_384).contains(&inverse_delta)
            && (!sampled || step.bench.rate() > 0)
    }),
    (CONSTANT, Extremes::USUAL, |step| {
        step.bench.cwnd() == step.bench.reg("fixed_cwnd") && step.bench.rate() == step.bench.reg("fixed_rate")
    }),
    // Products of rates and times saturate.
    (BBR, Extremes { rate: i64::MAX / 4, ..Extremes::USUAL }, |step| {
        const STARTUP: i64 = 0;
        const PROBE_RTT: i64 = 3;
        let mode = step.bench.reg("Report.mode");
        let delivered = step.ack.bytes / MSS * step.mss;
        let restored = step.before.max(step.bench.reg("prior_cwnd")).max(step.ack.in_flight) + delivered;
        step.bench.cwnd() <= restored.max(4 * step.mss)
            && (step.paced == 0 || step.bench.rate() > 0)
            && (STARTUP..=PROBE_RTT).contains(&mode)
            && (0..8).contains(&step.bench.reg("Report.phase"))
            && (mode == STARTUP || mode == PROBE_RTT || step.bench.reg("full_rounds") == 3)
    }),
];

impl Step<'_> {
    /// Whether a congestion event leaves the window at most at the slow start threshold, unless it was below it.
    fn decreases(&self) -> bool {
        let ssthresh = self.bench.reg("ssthresh");
        ssthresh > 0 && (self.ack.lost + self.ack.ecn == 0 || self.bench.cwnd() <= self.before.max(ssthresh))
    }
}

#[test]
fn all_but_bbr_keep_within_stock_ccp() {
    for (algorithm, ..) in DECLARED {
        let program = Bench::new(&algorithm, MSS as u32, 10 * MSS).program;
        match algorithm.name {
            "bbr" => assert!(lower(&program).is_err()),
            _ => assert_stock_limits(&program),
        }
    }
}

#[test]
fn every_parameter_reaches_the_program() {
    for (algorithm, ..) in DECLARED {
        for parameter in algorithm.parameters {
            let registers = |value| {
                let bench = Bench::configured(algorithm, &[(parameter.name, value)], MSS as u32, 10 * MSS);
                bench.flow.regs
            };
            // A minimum of 0 may mean no limit.
            let [default, least, most] = [parameter.default, parameter.min + 1, parameter.max].map(registers);
            assert_ne!(least, most, "{} {}", algorithm.name, parameter.name);
            assert_eq!(default, Bench::new(&algorithm, MSS as u32, 10 * MSS).flow.regs, "{}", parameter.name);
        }
    }
}

#[test]
fn reports_are_ten_milliseconds_apart_unless_set() {
    for (algorithm, ..) in DECLARED {
        for (values, report_us) in [(&[][..], 10_000), (&[("report_us", 7)], 7)] {
            let bench = Bench::configured(algorithm, values, MSS as u32, MSS);
            assert_eq!(bench.reg("report_us"), report_us, "{}", algorithm.name);
        }
    }
}

#[test]
fn a_flow_is_taken_over_at_its_own_speed() {
    // 1 MB/s over 40 ms, of which 10 ms are queue.
    let from = Handover { at_us: 1, rate_bytes_per_s: 1_000_000, srtt_us: 40_000, min_rtt_us: 30_000 };
    for (algorithm, ..) in DECLARED {
        let program = Bench::new(&algorithm, MSS as u32, 10 * MSS).program;
        let mut control = Control::default();
        algorithm.resume(&FlowInfo::example(MSS as u32, 14_480), &from, &mut control);
        let fields: Vec<_> = control.requests().flat_map(|request| request.fields.to_vec()).collect();
        let window = fields.iter().rev().find(|(name, _)| *name == "Cwnd").unwrap().1;
        assert!([30_000, 40_000].contains(&window), "{}: {window}", algorithm.name);
        for (name, _) in fields {
            assert!(["Cwnd", "Rate"].contains(&name) || program.reg(name).is_some(), "{name}");
        }
    }
}

prop_compose! {
    /// A declared algorithm with its extremes and bounds, and some of its parameters anywhere within their ranges.
    fn configured()(
        declared in prop::sample::select(DECLARED.to_vec()),
        parts in prop::collection::vec(prop::option::of(0..=1000i64), 8),
    ) -> (Declared, Values) {
        let parameters = declared.0.parameters.iter().zip(parts);
        let values = parameters.filter_map(|(p, part)| Some((p.name, p.min + (p.max - p.min) / 1000 * part?)));
        (declared, values.collect())
    }
}

prop_compose! {
    /// A configured algorithm and a stream of ACKs that reaches its extremes.
    fn streams()((declared, values) in configured())(
        stream in prop::collection::vec((rated_acks(declared.1), 0..1i64 << 32), 1..200),
        declared in Just(declared),
        values in Just(values),
    ) -> (Declared, Values, Stream) {
        (declared, values, stream)
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256 * DECLARED.len() as u32))]

    /// Whatever a datapath measures, stock CCP would not abort ([`Bench::ack`] checks) and the bounds hold.
    #[test]
    fn any_stream_keeps_the_bounds(
        ((algorithm, _, bounds), values, stream) in streams(),
        mss in 1..=65_535u32,
        cwnd in 1..1i64 << 30,
    ) {
        let mut bench = Bench::configured(algorithm, &values, mss, cwnd);
        let mss = i64::from(mss);
        for ((after_us, ack, rate), pending) in stream {
            let (before, paced) = (bench.cwnd(), bench.rate());
            bench.ack_with(after_us, ack, |prims| {
                prims.set(Prim::FlowRateIncoming, rate).set(Prim::FlowBytesPending, pending);
            });
            prop_assert!(bench.cwnd() >= mss.min(cwnd), "{}: {}", algorithm.name, bench.cwnd());
            let step = Step { bench: &bench, mss, before, paced, ack };
            prop_assert!(bounds(&step), "{}: {before} to {} at {ack:?}", algorithm.name, bench.cwnd());
        }
    }
}
