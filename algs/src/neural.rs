//! Neural: a network that judges, once per interval, whether flows that fill the queue share the path; `dual` acts on its verdict.
//!
//! Its program is `dual.fold` with `neural.fold` before the modes: eight features of an interval of four `srtt`s, a history of eight
//! intervals, and `(policy 3)`. The network's action is the logarithm of the odds that loss-based rivals are there (RFC 9743's
//! standard algorithms); `verdict`, in `dual.fold`, is the mean of the last verdict and this one. An action of 0 is no opinion, and the
//! verdict is 0 then at once:
//!
//! | verdict | dual does |
//! |---|---|
//! | above 1.5 | competes without a test |
//! | above 0.5 | does not believe a test that says that nobody is there |
//! | below -1.5 | keeps its delay mode though a test says that the queue stayed |
//! | below -3 | leaves competition without a test |
//!
//! Between -1.5 and 0.5 and before the first interval it is `dual`: the network can neither set a rate nor a window,
//! and each of dual's own bounds holds. So it is outside of the network's calibration: the ranges of inputs are those
//! of all but a thousandth of the values that training saw. Training also sets how many inputs may be beyond them, so
//! that all but a thousandth of its intervals pass; where more are, the action is 0 (`nn-inkernel/ARITHMETIC.md`). What
//! the network learned from and how: `algs/policies/README.md`.
//!
//! # Placements
//! - `neural`: the datapath asks the network.
//! - `neural-agent`: the datapath reports the features, the agent asks the same snapshot by the same arithmetic and sets `verdict`. Any
//!   other [`Judge`] can be in its place: training uses that.

use crate::dual::{Dual, DualConfig};
use crate::parameters::DEFAULT_REPORT_US;
use crate::policy_program::PolicyProgram;
use ccplane_alg::{
    Algorithm, Control, Flow, FlowInfo, Handover, Parameter, PolicySource, ProgramSource, Report,
};
use ccplane_infer::Model;
use ccplane_program::lang::parse;
use ccplane_snapshot::{DeployOptions, Snapshot};
use std::sync::{Arc, LazyLock};

/// The slot that its program asks.
const SLOT: u8 = 3;
/// Intervals that the network sees.
pub const DEPTH: usize = 8;
/// The features of an interval, in the order of their history: registers of the program's report, Q16, -1 to 1.
pub const FEATURES: [&str; 8] =
    ["level", "spread", "lost_share", "used", "slope", "competing", "room", "drained"];
/// Inputs of the network.
pub const INPUTS: usize = DEPTH * FEATURES.len();
/// The largest verdict either way, Q16.
pub const BOUND_Q16: i32 = 16 << 16;
/// Clauses of `dual.fold` that measure; the modes follow them.
const MEASURING_CLAUSES: usize = 3;

// State

/// The agent's side of a flow that the agent judges.
struct JudgedFlow {
    dual: Box<dyn Flow>,
    judge: Arc<dyn Judge>,
    info: FlowInfo,
    /// The last report's count of intervals.
    intervals: i64,
    /// Oldest interval first, as a datapath keeps them.
    cells: [i32; INPUTS],
    verdict_q16: i64,
}

// Behaviour

impl Flow for JudgedFlow {
    fn on_report(&mut self, now_us: u64, report: &Report<'_>, control: &mut Control) {
        self.dual.on_report(now_us, report, control);
        let intervals = report.get("intervals").unwrap_or(self.intervals);
        if intervals == self.intervals {
            return;
        }
        self.intervals = intervals;
        self.cells.rotate_left(FEATURES.len());
        for (cell, name) in self.cells[INPUTS - FEATURES.len()..].iter_mut().zip(FEATURES) {
            *cell = report.get(name).unwrap_or(0).clamp(i32::MIN.into(), i32::MAX.into()) as i32;
        }
        let action_q16 = i64::from(self.judge.action_q16(&self.info, now_us, &self.cells));
        self.verdict_q16 = if action_q16 == 0 { 0 } else { (self.verdict_q16 + action_q16) / 2 };
        control.update(&[("verdict", self.verdict_q16)]);
    }

    fn rivals(&self) -> Option<bool> {
        self.dual.rivals()
    }

    fn kept(&self) -> Vec<(&'static str, i64)> {
        self.dual.kept()
    }

    fn state(&self) -> Option<&'static str> {
        self.dual.state()
    }
}

/// Says whether rivals are there.
pub trait Judge: Send + Sync {
    /// The logarithm of the odds that flows which fill the queue share this flow's path, Q16, from [`DEPTH`] intervals of [`FEATURES`];
    /// 0 for no opinion.
    fn action_q16(&self, info: &FlowInfo, now_us: u64, cells: &[i32; INPUTS]) -> i32;
}

/// The shipped snapshot as a judge.
struct Shipped(Snapshot, Vec<u64>);

impl Judge for Shipped {
    fn action_q16(&self, _info: &FlowInfo, _now_us: u64, cells: &[i32; INPUTS]) -> i32 {
        let Some(model) = Model::new(self.0.shape(), &self.1) else { return 0 };
        let inference = model.infer(cells);
        if inference.clipped_inputs > self.0.guards().clip_limit {
            return 0;
        }
        inference.action_q16.clamp((-BOUND_Q16).into(), BOUND_Q16.into()) as i32
    }
}

// Config, defaults: dual's.

// Factory

/// Makes flows whose datapath judges.
#[derive(Clone, Default, Debug)]
pub struct Neural {
    /// For every flow that starts.
    pub config: DualConfig,
}

/// Makes flows that the agent judges.
#[derive(Clone)]
pub struct NeuralInAgent {
    /// For every flow that starts.
    pub config: DualConfig,
    judge: Arc<dyn Judge>,
}

impl NeuralInAgent {
    /// Judged by the shipped snapshot; `None` without one.
    #[must_use]
    pub fn shipped() -> Option<NeuralInAgent> {
        let snapshot = Snapshot::built_in(SNAPSHOT).ok()?;
        let image = snapshot.image(&DeployOptions::ONLY);
        Some(NeuralInAgent::new(Arc::new(Shipped(snapshot, image))))
    }

    /// Makes an algorithm whose flows `judge` judges.
    #[must_use]
    pub fn new(judge: Arc<dyn Judge>) -> NeuralInAgent {
        NeuralInAgent { config: DualConfig::default(), judge }
    }
}

const SNAPSHOT: &[u8] = include_bytes!("../policies/neural.snapshot");

/// Dual's program with the features, and what follows them in their last clause.
fn program(verdict: &str) -> Option<String> {
    let mut source = parse(Dual::default().programs().first()?.source).ok()?;
    let at = source.clauses.len().min(MEASURING_CLAUSES);
    let mut added = parse(include_str!("neural.fold")).ok()?;
    let last = added.clauses.last_mut()?;
    last.body.extend(PolicyProgram::statements(verdict)?);
    source.decls.extend(added.decls);
    source.clauses.splice(at..at, added.clauses);
    Some(source.to_string())
}

/// The fields of a flow that starts, and dual's side of it.
fn start(config: &DualConfig, name: &'static str, info: &FlowInfo, control: &mut Control) -> Box<dyn Flow> {
    let mut asked = Control::default();
    let flow = Dual { config: config.clone() }.flow(info, &mut asked);
    let set = asked.requests().find(|request| request.program.is_some());
    control.set_program(name, set.map_or(&[], |request| request.fields));
    flow
}

fn configured(values: &[(&'static str, i64)]) -> DualConfig {
    let report_us = values.iter().rev().find(|(name, _)| *name == "report_us");
    let report_us = report_us.and_then(|(_, value)| u32::try_from(*value).ok()).unwrap_or(DEFAULT_REPORT_US);
    DualConfig { report_us }
}

impl Algorithm for Neural {
    fn name(&self) -> &'static str {
        "neural"
    }

    fn programs(&self) -> Vec<ProgramSource> {
        static PROGRAM: LazyLock<Option<String>> = LazyLock::new(|| {
            let history = FEATURES.map(|name| format!("Report.{name}")).join(" ");
            program(&format!(
                "(history {DEPTH} {history}) (policy {SLOT}) (:= turn (== Policy.action 0))
                 (:= verdict (/ (+ verdict Policy.action) 2)) (:= verdict (if turn 0))"
            ))
        });
        PROGRAM.iter().map(|source| ProgramSource { name: "neural", source }).collect()
    }

    fn flow(&self, info: &FlowInfo, control: &mut Control) -> Box<dyn Flow> {
        start(&self.config, "neural", info, control)
    }

    fn take_up(&self, info: &FlowInfo, from: &Handover, control: &mut Control) {
        Dual::start_from(from, info, control);
    }

    fn policies(&self) -> Vec<PolicySource> {
        // Without a float policy: live flows cannot tell whether rivals were there, so nothing is learned from them.
        vec![PolicySource { slot: SLOT, snapshot: SNAPSHOT, policy: Arc::new([]) }]
    }

    fn parameters(&self) -> &'static [Parameter] {
        Dual::PARAMETERS
    }

    fn configured(&self, values: &[(&'static str, i64)]) -> Option<Arc<dyn Algorithm>> {
        Some(Arc::new(Neural { config: configured(values) }))
    }
}

impl Algorithm for NeuralInAgent {
    fn name(&self) -> &'static str {
        "neural-agent"
    }

    fn programs(&self) -> Vec<ProgramSource> {
        static PROGRAM: LazyLock<Option<String>> = LazyLock::new(|| program(""));
        PROGRAM.iter().map(|source| ProgramSource { name: "neural-agent", source }).collect()
    }

    fn flow(&self, info: &FlowInfo, control: &mut Control) -> Box<dyn Flow> {
        Box::new(JudgedFlow {
            dual: start(&self.config, "neural-agent", info, control),
            judge: Arc::clone(&self.judge),
            info: info.clone(),
            intervals: 0,
            cells: [0; INPUTS],
            verdict_q16: 0,
        })
    }

    fn take_up(&self, info: &FlowInfo, from: &Handover, control: &mut Control) {
        Dual::start_from(from, info, control);
    }

    fn parameters(&self) -> &'static [Parameter] {
        Dual::PARAMETERS
    }

    fn configured(&self, values: &[(&'static str, i64)]) -> Option<Arc<dyn Algorithm>> {
        Some(Arc::new(NeuralInAgent { config: configured(values), judge: Arc::clone(&self.judge) }))
    }
}

// Tests

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Ack, Bench, Extremes, MSS, rated_acks, reported};
    use ccplane_program::ir::{MAX_INSTS, MAX_REGS, Prim};
    use proptest::prelude::*;

    /// A judge of one mind.
    struct Always(i32);

    impl Judge for Always {
        fn action_q16(&self, _info: &FlowInfo, _now_us: u64, _cells: &[i32; INPUTS]) -> i32 {
            self.0
        }
    }

    fn judged(action_q16: i32) -> NeuralInAgent {
        NeuralInAgent::new(Arc::new(Always(action_q16)))
    }

    #[test]
    fn its_programs_are_duals_with_the_features_before_the_modes() {
        let dual = parse(Dual::default().programs()[0].source).unwrap();
        let delay = dual.clauses[MEASURING_CLAUSES].to_string();
        assert!(delay.contains("Report.mode 0") && delay.contains("Cwnd w"), "{delay}");
        for (algorithm, asks) in [(&Neural::default() as &dyn Algorithm, true), (&judged(0), false)] {
            let source = algorithm.programs()[0].source;
            let program = ccplane_program::compile(source).unwrap_or_else(|e| panic!("{e:?}\n{source}"));
            assert_eq!(
                (program.uses_policy(), program.policy_inputs()),
                (asks, if asks { INPUTS } else { 0 })
            );
            assert!(program.regs().len() <= MAX_REGS && program.insts().len() <= MAX_INSTS);
        }
    }

    #[test]
    fn the_shipped_network_sees_these_features_and_says_a_verdict() {
        let snapshot = Snapshot::built_in(SNAPSHOT).unwrap();
        let names: Vec<&str> = snapshot.spec().inputs().iter().map(|input| input.name.as_str()).collect();
        let expected: Vec<String> =
            (0..DEPTH).flat_map(|n| FEATURES.map(|name| format!("{name}[{n}]"))).collect();
        assert_eq!(names, expected);
        assert_eq!(snapshot.spec().action().bound_q16, BOUND_Q16 as u32);
        let shipped = NeuralInAgent::shipped().unwrap();
        // An empty link.
        let says = |interval: [i32; 8]| {
            let mut cells = [0; INPUTS];
            cells.chunks_exact_mut(FEATURES.len()).for_each(|to| to.copy_from_slice(&interval));
            shipped.judge.action_q16(&FlowInfo::example(1448, 14_480), 0, &cells)
        };
        let (one, none) = (1 << 16, 0);
        assert!(says([none, none, none, one, none, none, one, none]) < -2 * one);
    }

    /// So many inputs of a decision may be beyond the ranges of training; of one more there is no opinion.
    #[test]
    fn outside_its_calibration_the_network_has_no_opinion() {
        let limit = Snapshot::built_in(SNAPSHOT).unwrap().guards().clip_limit as usize;
        let shipped = NeuralInAgent::shipped().unwrap();
        let says = |beyond: usize| {
            let mut cells = [0; INPUTS];
            cells[..beyond].fill(i32::MAX);
            shipped.judge.action_q16(&FlowInfo::example(1448, 14_480), 0, &cells)
        };
        assert!(limit < INPUTS, "{limit}");
        assert_ne!(says(limit), 0);
        assert_eq!(says(limit + 1), 0);
    }

    #[test]
    fn each_interval_is_judged_once_and_half_of_the_last_verdict_stays() {
        let (placed, mut control) = (judged(4 << 16), Control::default());
        let program = ccplane_program::compile(placed.programs()[0].source).unwrap();
        let names = reported(&program);
        let mut flow = placed.flow(&FlowInfo::example(1448, 14_480), &mut control);
        for (interval, verdict) in [(1, Some(2)), (1, None), (2, Some(3))] {
            control.clear();
            let values: Vec<i64> =
                names.iter().map(|name| if name == "intervals" { interval } else { 7 }).collect();
            let report = Report { program: "neural-agent", names: &names, values: &values, truth: None };
            flow.on_report(1, &report, &mut control);
            let set = control.requests().next().map(|request| request.fields.to_vec());
            assert_eq!(set, verdict.map(|verdict| vec![("verdict", verdict << 16)]));
        }
    }

    proptest! {
        /// With no verdict the program is dual, to the byte.
        #[test]
        fn without_a_verdict_it_is_dual(
            mss in 1..=9000u32,
            cwnd in 10_000..1i64 << 24,
            stream in prop::collection::vec(rated_acks(Extremes::USUAL), 1..200),
        ) {
            let (mut dual, mut neural) =
                (Bench::new(&Dual::default(), mss, cwnd), Bench::new(&judged(0), mss, cwnd));
            for (after_us, ack, rate) in stream {
                for bench in [&mut dual, &mut neural] {
                    bench.ack_with(after_us, ack, |prims| {
                        prims.set(Prim::FlowRateIncoming, rate);
                    });
                }
                prop_assert_eq!((dual.cwnd(), dual.rate()), (neural.cwnd(), neural.rate()));
                prop_assert_eq!(dual.reg("Report.mode"), neural.reg("Report.mode"));
            }
        }

        /// Whatever the verdict, dual's bounds hold, and every feature is one that the network knows.
        #[test]
        fn any_stream_and_any_verdict_keep_the_bounds(
            mss in 1..=65_535u32,
            cwnd in 1..1i64 << 30,
            stream in prop::collection::vec((rated_acks(Extremes::USUAL), -BOUND_Q16..=BOUND_Q16), 1..200),
        ) {
            let mut bench = Bench::new(&judged(0), mss, cwnd);
            for ((after_us, ack, rate), verdict) in stream {
                bench.set("verdict", verdict.into());
                bench.ack_with(after_us, ack, |prims| {
                    prims.set(Prim::FlowRateIncoming, rate);
                });
                prop_assert!((i64::from(mss)..=1 << 30).contains(&bench.cwnd()), "{}", bench.cwnd());
                prop_assert!((0..=5).contains(&bench.reg("Report.mode")));
                for name in FEATURES {
                    let feature = bench.reg(&format!("Report.{name}"));
                    prop_assert!((-(1 << 16)..=1 << 16).contains(&feature), "{name} {feature}");
                }
            }
        }
    }

    #[test]
    fn a_verdict_starts_and_ends_competition() {
        let mut bench = Bench::new(&judged(0), MSS as u32, 10 * MSS);
        // A path of 100 segments, on which a test finds nobody.
        let rounds = |bench: &mut Bench, verdict: i64| {
            bench.set("verdict", verdict << 16);
            for _ in 0..60 {
                let window = bench.cwnd().min(400 * MSS);
                let rtt_us = 40_000 * window.max(100 * MSS) / (100 * MSS);
                for _ in 0..window / MSS {
                    let ack = Ack { bytes: MSS, rtt_us, in_flight: window, ..Ack::default() };
                    bench.ack_with(rtt_us * MSS / window, ack, |prims| {
                        prims.set(Prim::FlowRateIncoming, window * 1_000_000 / rtt_us);
                    });
                }
            }
            bench.reg("Report.mode")
        };
        assert_eq!(rounds(&mut bench, 0), 0);
        let mode = rounds(&mut bench, 8);
        assert!([1, 3].contains(&mode), "{mode}");
        assert_eq!(rounds(&mut bench, -8), 0);
    }
}
