//! Size: flows that are predicted to be small are served before those that are predicted to be large.
//!
//! Its program decides on a flow's packets on their way out. When the flow starts, and whenever it has sent as much as
//! one of the thresholds says, a network predicts the flow's size: its action is the logarithm (base 2) of the bytes,
//! less [`CENTRE`], Q16. It sees the sizes of the last four flows of the same application to the same destination. It
//! also sees what the flow has sent, and what its application has written beyond that. The flow's priority is the
//! number of thresholds that prediction or bytes sent have passed, and never becomes better. With thresholds of the
//! prediction that nothing passes it is PIAS.
//!
//! When the flow ends, its program reports how much it sent: with the inputs of each decision that is what the network learns from. How
//! long the flow took, against others of its size, is what snapshots are compared by.
//!
//! # Placements
//! - `size`: the datapath asks the network.
//! - `size-agent`: the datapath reports the inputs, the agent asks the same snapshot by the same arithmetic and sets `predicted`. Until
//!   that has arrived the flow falls by what it has sent.

use crate::pias::{Demotions, PARAMETERS, THRESHOLDS};
use crate::usual::UsualTimes;
use ccplane_alg::{
    Algorithm, Control, Flow, FlowInfo, Parameter, PolicySource, ProgramSource, Report, Row, field,
};
use ccplane_infer::Model;
use ccplane_snapshot::{DeployOptions, Snapshot};
use std::sync::{Arc, LazyLock};

/// The slot that its program asks.
const SLOT: u8 = 4;
/// The inputs of the network, in the order of their history: registers of the program's report, Q16, 0 to 1.
pub const SIZE_FEATURES: [&str; SIZE_INPUTS] = [
    "a_small",
    "a_medium",
    "a_large",
    "b_small",
    "b_medium",
    "b_large",
    "c_small",
    "c_medium",
    "c_large",
    "d_small",
    "d_medium",
    "d_large",
    "sent_small",
    "sent_medium",
    "sent_large",
    "waiting_tiny",
    "waiting_small",
    "known",
];
/// Inputs of the network.
pub const SIZE_INPUTS: usize = 18;
/// The logarithm of the size, base 2, at which the action is 0.
pub const CENTRE: i32 = 16;
/// The largest action either way, Q16.
pub const SIZE_BOUND_Q16: i32 = 16 << 16;
/// Decisions of one flow that are kept until it ends: its start and each threshold.
const MAX_DECISIONS: usize = 1 + THRESHOLDS;
/// The line of the program in whose place the policy is asked.
const ASKED_HERE: &str = "# The policy is asked here.";

const DEMOTE: [&str; THRESHOLDS] =
    ["demote_1", "demote_2", "demote_3", "demote_4", "demote_5", "demote_6", "demote_7"];
const SIZE: [&str; THRESHOLDS] = ["size_1", "size_2", "size_3", "size_4", "size_5", "size_6", "size_7"];

// State

/// A decision on a flow's size.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SizeDecision {
    /// The network's inputs.
    pub inputs: [i32; SIZE_INPUTS],
    /// Payload that the flow had sent.
    pub sent_bytes: u64,
    /// The deployment that decided; 0 for none.
    pub snapshot: u32,
    /// The prediction, Q16.
    pub action_q16: i32,
}

/// The agent's side of a flow.
struct SizedFlow {
    /// The judge in the agent, if decisions are made there.
    predictor: Option<Arc<dyn Predictor>>,
    usual: Arc<UsualTimes>,
    started_us: u64,
    decisions: Vec<SizeDecision>,
}

// Behaviour

impl Flow for SizedFlow {
    fn on_report(&mut self, now_us: u64, report: &Report<'_>, control: &mut Control) {
        let get = |name| report.get(name).unwrap_or(0);
        let sent_bytes = get("sent").unsigned_abs();
        if get("ended") != 0 {
            self.end(now_us, sent_bytes, control);
            return;
        }
        if self.decisions.is_empty() {
            self.started_us = now_us;
        }
        let saturated = |value: i64| value.clamp(i32::MIN.into(), i32::MAX.into()) as i32;
        let inputs = SIZE_FEATURES.map(|name| saturated(get(name)));
        let mut decision = SizeDecision {
            inputs,
            sent_bytes,
            snapshot: get("snapshot") as u32,
            action_q16: saturated(get("action")),
        };
        // An update of the agent runs the program again, with the same count of bytes at first.
        let is_new = self.decisions.last().is_none_or(|last| last.sent_bytes < sent_bytes);
        if let Some(predictor) = self.predictor.as_ref().filter(|_| is_new)
            && let Some(action_q16) = predictor.predict(&inputs)
        {
            decision.action_q16 = action_q16;
            control.update(&[("predicted", action_q16.into())]);
        }
        if is_new && self.decisions.len() < MAX_DECISIONS {
            self.decisions.push(decision);
        }
    }
}

impl SizedFlow {
    /// Gives the learner the flow's decisions with the size that it had, and the judge too.
    fn end(&mut self, now_us: u64, size_bytes: u64, control: &mut Control) {
        if let Some(predictor) = &self.predictor {
            predictor.ended(&self.decisions, size_bytes);
        }
        let taken_us = now_us.saturating_sub(self.started_us).max(1);
        let reward = -(self.usual.surplus_q16(size_bytes, log2_q16(taken_us)) as f32) / 65_536.0;
        for decision in self.decisions.drain(..).filter(|decision| decision.snapshot != 0) {
            control.learn(Row {
                at_us: now_us,
                slot: SLOT,
                snapshot: decision.snapshot,
                inputs: decision.inputs.to_vec(),
                action_q16: decision.action_q16,
                reward,
                follows: true,
                target_q16: Some(log2_q16(size_bytes) - (CENTRE << 16)),
            });
        }
    }
}

/// The logarithm of a number, base 2, Q16; 0 for 0. Between powers of two it is a straight line to within a tenth.
pub fn log2_q16(value: u64) -> i32 {
    let Some(whole) = value.checked_ilog2() else { return 0 };
    let mantissa = (value << (63 - whole)) >> 31;
    ((whole as i32) << 16) + ((mantissa as u32) >> 16) as i32
}

/// Predicts sizes in the agent.
pub trait Predictor: Send + Sync {
    /// The logarithm of the flow's size, base 2, less [`CENTRE`], Q16; `None` for no prediction.
    fn predict(&self, inputs: &[i32; SIZE_INPUTS]) -> Option<i32>;

    /// Hears of a flow that ended, with the decisions on it.
    fn ended(&self, decisions: &[SizeDecision], size_bytes: u64) {
        let _ = (decisions, size_bytes);
    }
}

/// A snapshot as a predictor.
pub struct SnapshotPredictor {
    snapshot: Snapshot,
    image: Vec<u64>,
}

impl SnapshotPredictor {
    /// Predicts by this snapshot.
    pub fn new(snapshot: Snapshot) -> SnapshotPredictor {
        let image = snapshot.image(&DeployOptions::ONLY);
        SnapshotPredictor { snapshot, image }
    }

    /// Predicts by the shipped snapshot; `None` without one.
    pub fn shipped() -> Option<SnapshotPredictor> {
        Snapshot::built_in(SNAPSHOT).ok().map(SnapshotPredictor::new)
    }
}

impl Predictor for SnapshotPredictor {
    fn predict(&self, inputs: &[i32; SIZE_INPUTS]) -> Option<i32> {
        let model = Model::new(self.snapshot.shape(), &self.image)?;
        Some(model.infer(inputs).action_q16.clamp((-SIZE_BOUND_Q16).into(), SIZE_BOUND_Q16.into()) as i32)
    }
}

// Config

/// The thresholds between priorities.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SizeThresholds {
    /// Of the bytes sent.
    pub demotions: Demotions,
    /// Of the prediction, Q16 as the network's action; [`SizeThresholds::NEVER`] for one that nothing passes.
    pub predicted_q16: [i32; THRESHOLDS],
}

impl SizeThresholds {
    /// A threshold that no prediction passes.
    pub const NEVER: i32 = i32::MAX;

    /// The same sizes for the prediction as for the bytes sent.
    pub fn of(demotions: Demotions) -> SizeThresholds {
        let predicted_q16 = demotions.0.map(|bytes| log2_q16(bytes) - (CENTRE << 16));
        SizeThresholds { demotions, predicted_q16 }
    }

    fn fields(&self) -> [(&'static str, i64); 2 * THRESHOLDS] {
        let mut fields = [("", 0); 2 * THRESHOLDS];
        let demotions = DEMOTE.into_iter().zip(self.demotions.0.map(field));
        let sizes = SIZE.into_iter().zip(self.predicted_q16.map(i64::from));
        for (to, from) in fields.iter_mut().zip(demotions.chain(sizes)) {
            *to = from;
        }
        fields
    }
}

// Defaults

impl Default for SizeThresholds {
    fn default() -> SizeThresholds {
        SizeThresholds::of(Demotions::default())
    }
}

// Factory

/// Makes flows whose datapath predicts their size.
#[derive(Clone, Default, Debug)]
pub struct Size {
    thresholds: SizeThresholds,
    usual: Arc<UsualTimes>,
}

impl Size {
    /// Makes an algorithm with these thresholds.
    pub fn new(thresholds: SizeThresholds) -> Size {
        Size { thresholds, usual: Arc::default() }
    }
}

/// Makes flows whose size the agent predicts.
#[derive(Clone)]
pub struct SizeInAgent {
    pub thresholds: SizeThresholds,
    predictor: Arc<dyn Predictor>,
}

impl SizeInAgent {
    /// Makes an algorithm whose flows' sizes `predictor` predicts.
    pub fn new(thresholds: SizeThresholds, predictor: Arc<dyn Predictor>) -> SizeInAgent {
        SizeInAgent { thresholds, predictor }
    }

    /// Predicted by the shipped snapshot; `None` without one.
    pub fn shipped() -> Option<SizeInAgent> {
        let predictor = Arc::new(SnapshotPredictor::shipped()?);
        Some(SizeInAgent::new(SizeThresholds::default(), predictor))
    }
}

const SNAPSHOT: &[u8] = include_bytes!("../policies/size.snapshot");
const POLICY: &[u8] = include_bytes!("../policies/size.safetensors");

/// The program of flows that the agent predicts.
const SOURCE: &str = include_str!("size.fold");

impl Algorithm for Size {
    fn name(&self) -> &'static str {
        "size"
    }

    fn programs(&self) -> Vec<ProgramSource> {
        static PROGRAM: LazyLock<String> = LazyLock::new(|| {
            let history = SIZE_FEATURES.map(|name| format!("Report.{name}")).join(" ");
            let asked = format!(
                "(history 1 {history}) (policy {SLOT}) (:= predicted Policy.action) (:= Report.snapshot Policy.snapshot)"
            );
            SOURCE.replace(ASKED_HERE, &asked)
        });
        vec![ProgramSource { name: "size", source: PROGRAM.as_str() }]
    }

    fn first(&self, control: &mut Control) {
        control.set_program("size", &self.thresholds.fields());
    }

    fn flow(&self, _info: &FlowInfo, _control: &mut Control) -> Box<dyn Flow> {
        let usual = Arc::clone(&self.usual);
        Box::new(SizedFlow { predictor: None, usual, started_us: 0, decisions: Vec::new() })
    }

    fn policies(&self) -> Vec<PolicySource> {
        vec![PolicySource { slot: SLOT, snapshot: SNAPSHOT, policy: POLICY.into() }]
    }

    fn is_supervised(&self) -> bool {
        true
    }

    fn parameters(&self) -> &'static [Parameter] {
        &PARAMETERS
    }

    fn configured(&self, values: &[(&'static str, i64)]) -> Option<Arc<dyn Algorithm>> {
        Some(Arc::new(Size::new(SizeThresholds::of(Demotions::configured(values)))))
    }
}

impl Algorithm for SizeInAgent {
    fn name(&self) -> &'static str {
        "size-agent"
    }

    fn programs(&self) -> Vec<ProgramSource> {
        vec![ProgramSource { name: "size-agent", source: SOURCE }]
    }

    fn first(&self, control: &mut Control) {
        control.set_program("size-agent", &self.thresholds.fields());
    }

    fn flow(&self, _info: &FlowInfo, _control: &mut Control) -> Box<dyn Flow> {
        Box::new(SizedFlow {
            predictor: Some(Arc::clone(&self.predictor)),
            // Its rows name no snapshot, so nobody compares them.
            usual: Arc::default(),
            started_us: 0,
            decisions: Vec::new(),
        })
    }
}

// Tests

#[cfg(test)]
mod tests {
    use super::*;
    use ccplane_program::ir::{INFINITY, MAX_REGS, Prim, Program};
    use ccplane_program::vm::{Decision, Knobs, Policies, ProgramState, SendPrims};

    /// A policy of one mind.
    struct Says(i64);

    impl Policies for Says {
        fn decide(&mut self, slot: u8, inputs: &[i32], _: &mut Knobs) -> Decision {
            assert_eq!((slot, inputs.len()), (SLOT, SIZE_INPUTS));
            Decision::Action { action_q16: self.0, snapshot: 7 }
        }
    }

    fn program(algorithm: &dyn Algorithm) -> Program {
        ccplane_program::compile(algorithm.programs()[0].source).unwrap_or_else(|e| panic!("{e:?}"))
    }

    /// Priority and next decision of a flow that has sent so much and is predicted so.
    fn level(program: &Program, flow: &mut ProgramState, sent: i64, action_q16: i64) -> (i64, i64) {
        let mut prims = SendPrims::default();
        prims.set(Prim::PacketBytes, 1448).set(Prim::FlowBytesSent, sent);
        flow.invoke_with(program, &prims, &mut Says(action_q16), &mut [0; MAX_REGS]);
        (flow.priority, flow.decide_at_bytes)
    }

    fn action(bytes: u64) -> i64 {
        i64::from(log2_q16(bytes) - (CENTRE << 16))
    }

    fn started(program: &Program, thresholds: &SizeThresholds) -> ProgramState {
        let mut flow = ProgramState::new(program, 0, 0);
        for (name, value) in thresholds.fields() {
            let at = program.regs().iter().position(|reg| &*reg.name == name).unwrap();
            flow.regs[at] = value;
        }
        flow
    }

    #[test]
    fn prediction_and_bytes_sent_each_lower_the_priority_and_nothing_raises_it() {
        let program = program(&Size::default());
        let mut flow = started(&program, &SizeThresholds::default());
        assert_eq!(level(&program, &mut flow, 0, action(100)), (0, 20_000));
        let mut flow = started(&program, &SizeThresholds::default());
        assert_eq!(level(&program, &mut flow, 0, action(100_000)), (2, 20_000));
        assert_eq!(level(&program, &mut flow, 20_000, action(1000)), (2, 60_000));
        assert_eq!(level(&program, &mut flow, 700_000, action(1000)), (4, 2_000_000));
        assert_eq!(level(&program, &mut flow, 2_000_000, action(1 << 30)), (7, 6_000_000));
        assert_eq!(level(&program, &mut flow, 20_000_000, action(1)), (7, INFINITY));
    }

    #[test]
    fn without_thresholds_of_the_prediction_it_is_pias() {
        let never = [SizeThresholds::NEVER; THRESHOLDS];
        let thresholds = SizeThresholds { predicted_q16: never, ..SizeThresholds::default() };
        let (size, pias) = (program(&Size::default()), program(&crate::Pias::default()));
        let mut sized = started(&size, &thresholds);
        let mut demoted = ProgramState::new(&pias, 0, 0);
        for sent in [0, 1448, 20_000, 59_999, 60_000, 5_000_000, 6_000_001, 1 << 35] {
            let levels = level(&size, &mut sized, sent, 16 << 16);
            assert_eq!(levels, level(&pias, &mut demoted, sent, 0), "{sent}");
        }
    }

    #[test]
    fn inputs_lie_within_what_the_network_takes_whatever_is_measured() {
        let program = program(&Size::default());
        let sizes = [Prim::PeerSize1, Prim::PeerSize2, Prim::PeerSize3, Prim::PeerSize4];
        let others = [Prim::PeerFlows, Prim::FlowBytesWaiting, Prim::FlowBytesSent];
        for value in [1, 1448, 1 << 20, 1 << 40, 1 << 46] {
            let mut prims = SendPrims::default();
            sizes.into_iter().chain(others).for_each(|prim| {
                prims.set(prim, value);
            });
            prims.set(Prim::PacketBytes, 1448);
            let mut flow = ProgramState::new(&program, 0, 0);
            flow.invoke_with(&program, &prims, &mut Says(0), &mut [0; MAX_REGS]);
            for (at, reg) in program.regs().iter().enumerate() {
                let name = reg.name.strip_prefix("Report.").unwrap_or("");
                if SIZE_FEATURES.contains(&name) {
                    assert!((0..=1 << 16).contains(&flow.regs[at]), "{name} {}", flow.regs[at]);
                }
            }
            assert_eq!(flow.faults, 0);
        }
    }

    #[test]
    fn logarithms_are_right_to_a_tenth() {
        for value in [1_u64, 2, 3, 5, 1000, 1448, 65_536, 99_999_999, 1 << 40, u64::MAX] {
            let error = f64::from(log2_q16(value)) / 65_536.0 - (value as f64).log2();
            assert!(error.abs() < 0.1, "{value}: {error}");
        }
    }

    #[test]
    fn rows_hold_what_was_seen_and_the_size_that_the_flow_had() {
        let size = Size::default();
        let program = program(&size);
        let names: Vec<String> = program.regs()[..program.report_len()]
            .iter()
            .map(|reg| reg.name.trim_start_matches("Report.").to_owned())
            .collect();
        let mut control = Control::default();
        let mut flow = size.flow(&FlowInfo::example(1448, 14_480), &mut control);
        let mut report = |now_us, set: &[(&str, i64)]| {
            let values: Vec<i64> = names
                .iter()
                .map(|name| set.iter().find(|(of, _)| of == name).map_or(0, |(_, value)| *value))
                .collect();
            let report = Report { program: "size", names: &names, values: &values, truth: None };
            flow.on_report(now_us, &report, &mut control);
        };
        report(1000, &[("a_small", 5), ("snapshot", 7), ("action", 9)]);
        report(1300, &[("sent_small", 6), ("sent", 20_000), ("snapshot", 7)]);
        report(2024, &[("sent", 65_536), ("ended", 1)]);
        report(5000, &[("snapshot", 8)]);
        report(5000 + 4096, &[("sent", 65_536), ("ended", 1)]);
        let rows = control.take_rows();
        assert_eq!(rows.len(), 3);
        assert_eq!((rows[0].inputs[0], rows[0].action_q16, rows[1].inputs[12]), (5, 9, 6));
        assert!(rows.iter().all(|row| row.target_q16 == Some(0)));
        let judged: Vec<(u32, f32)> = rows.iter().map(|row| (row.snapshot, row.reward)).collect();
        // The second flow of this size took four times as long as the first one, with which the measure begins.
        assert_eq!(judged, [(7, 0.0), (7, 0.0), (8, -2.0)]);
    }

    #[test]
    fn thresholds_are_parameters() {
        let size: Arc<dyn Algorithm> = Arc::new(Size::default());
        let other = ccplane_alg::configure(&size, [("demote_2_bytes", 1 << 17)]).unwrap();
        let mut control = Control::default();
        other.first(&mut control);
        let set = control.requests().next().unwrap().fields.to_vec();
        assert!(set.contains(&("demote_2", 1 << 17)) && set.contains(&("size_2", 1 << 16)), "{set:?}");
        assert!(set.contains(&("demote_1", 20_000)), "{set:?}");
    }

    /// Says one size and counts what it hears.
    struct Fixed(std::sync::Mutex<Vec<(usize, u64)>>);

    impl Predictor for Fixed {
        fn predict(&self, _: &[i32; SIZE_INPUTS]) -> Option<i32> {
            Some(3 << 16)
        }
        fn ended(&self, decisions: &[SizeDecision], size_bytes: u64) {
            self.0.lock().unwrap().push((decisions.len(), size_bytes));
        }
    }

    #[test]
    fn the_agent_predicts_once_for_each_count_of_bytes() {
        let fixed = Arc::new(Fixed(Default::default()));
        let placed = SizeInAgent::new(SizeThresholds::default(), Arc::clone(&fixed) as Arc<dyn Predictor>);
        assert!(!program(&placed).uses_policy() && program(&Size::default()).uses_policy());
        let names = ["sent".to_owned(), "ended".to_owned()];
        let mut control = Control::default();
        let mut flow = placed.flow(&FlowInfo::example(1448, 14_480), &mut control);
        let mut sets = Vec::new();
        for values in [[0, 0], [0, 0], [20_000, 0], [20_500, 1]] {
            control.clear();
            let report = Report { program: "size-agent", names: &names, values: &values, truth: None };
            flow.on_report(1, &report, &mut control);
            sets.push(control.requests().next().map(|request| request.fields.to_vec()));
        }
        let set = Some(vec![("predicted", 3 << 16)]);
        assert_eq!(sets, [set.clone(), None, set, None]);
        assert_eq!(*fixed.0.lock().unwrap(), [(2, 20_500)]);
    }
}
