//! Path: each flow takes the path on which it is predicted to end soonest, from what its host measured there lately.
//!
//! Its program decides on a flow's first packet and wherever a flowlet begins. A network scores one path at a time: its
//! action is the logarithm (base 2) of the time that a flow like this one took there. The average time of flows of its
//! size is taken off; the unit is Q16. It sees the path's round-trip time, marks, losses and bytes in flight, and how
//! much the flow has to send. The least score wins; a random part of it, which is the flow's own, keeps flows of many
//! hosts from all moving at once.
//!
//! At the next decision and at the flow's end the program reports how long the last one took and what it carried: a contextual bandit,
//! which learns from the paths that were taken. `explore` is the share of flows that take one at random.
//!
//! Where a path is a mark alone, routes lead only flows that start: with `at_start` another program chooses there, and the flow stays.
//!
//! # Placements
//! - `path`: the datapath asks the network.
//! - `path-agent`: the datapath reports what it measured, the agent asks the same snapshot by the same arithmetic and sets `wanted`. Until
//!   that has arrived the flow is on the path of its hash. Any other [`Judge`](PathJudge) can be in its place, such as [`LeastLoaded`].

mod choosing;
mod programs;

use ccplane_alg::{Algorithm, Control, Flow, FlowInfo, Parameter, PolicySource, ProgramSource, Report, Row};
use ccplane_infer::Model;
use ccplane_program::ir::MAX_PATHS;
use ccplane_snapshot::{DeployOptions, Snapshot};
use std::sync::{Arc, LazyLock};

use crate::size::log2_q16;
use crate::usual::UsualTimes;
use choosing::{Choosing, value_if_set};

pub use choosing::{AT_START, FLOWLET_GAP};

/// The slot that its program asks.
const SLOT: u8 = 5;
/// The inputs of the network, in the order of their history, Q16, 0 to 1.
pub const PATH_FEATURES: [&str; PATH_INPUTS] =
    ["rtt_short", "rtt_long", "known", "marked", "lost", "flight_small", "flight_large", "waiting"];
/// Inputs of the network.
pub const PATH_INPUTS: usize = 8;
/// The largest action either way, Q16.
pub const PATH_BOUND_Q16: i32 = 16 << 16;
/// A share of 1.
const ONE_Q16: i64 = 1 << 16;
/// Scales k of a measure x in x / (x + k), as the features name them.
const RTT_SHORT_US: i64 = 40;
const RTT_LONG_US: i64 = 300;
const LOST: i64 = 2_000;
const FLIGHT_SMALL_BYTES: i64 = 30_000;
const FLIGHT_LARGE_BYTES: i64 = 500_000;
const WAITING_BYTES: i64 = 12_000;
/// Odd multipliers that spread a flow's hash over its paths' random parts.
const SPREAD: [i64; MAX_PATHS] = [40_503, 30_011, 51_787, 62_989, 23_029, 37_813, 57_203, 45_233];

/// The measures of one path.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct PathSeen {
    /// Smoothed round-trip time, microseconds; 0 where it is not known.
    pub rtt_us: i64,
    /// Share of marked packets, Q16.
    pub marked: i64,
    /// Share of lost packets, Q16.
    pub lost: i64,
    pub bytes_in_flight: i64,
}

impl PathSeen {
    /// The network's inputs for this path, as its program computes them.
    pub fn inputs(&self, waiting_bytes: i64) -> [i32; PATH_INPUTS] {
        let share = |value: i64, scale: i64| {
            (value.saturating_mul(ONE_Q16) / (value.saturating_add(scale)).max(1)) as i32
        };
        [
            share(self.rtt_us, RTT_SHORT_US),
            share(self.rtt_us, RTT_LONG_US),
            if self.rtt_us > 0 { ONE_Q16 as i32 } else { 0 },
            self.marked.clamp(0, ONE_Q16) as i32,
            share(self.lost, LOST),
            share(self.bytes_in_flight, FLIGHT_SMALL_BYTES),
            share(self.bytes_in_flight, FLIGHT_LARGE_BYTES),
            share(waiting_bytes, WAITING_BYTES),
        ]
    }
}

/// A decision for one path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PathDecision {
    /// The network's inputs for the path that was taken.
    pub inputs: [i32; PATH_INPUTS],
    /// The deployment that decided; 0 for none.
    pub snapshot: u32,
    /// The score of the path, Q16.
    pub action_q16: i32,
}

/// The outcome of a decision.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PathOutcome {
    /// Until the next decision, or the flow's end.
    pub elapsed_us: u64,
    /// Payload that the flow sent meanwhile.
    pub bytes: u64,
}

impl PathOutcome {
    /// The logarithm of the time per byte, base 2, Q16, where a flow counts as [`PathOutcome::LEAST_BYTES`] larger than it is: round trips
    /// take their time, too.
    pub fn cost_q16(&self) -> i32 {
        log2_q16(self.elapsed_us.max(1)) - log2_q16(self.bytes + PathOutcome::LEAST_BYTES) + (12 << 16)
    }

    /// Bytes whose time is that of a round trip at 10 Gb/s.
    pub const LEAST_BYTES: u64 = 20_000;
}

/// Chooses paths in the agent.
pub trait PathJudge: Send + Sync {
    /// The number of the path to take, of those seen; `None` leaves the flow where it is.
    fn choose(&self, seen: &[PathSeen], waiting_bytes: i64, hash: u32) -> Option<usize>;

    /// Hears how a decision turned out.
    fn outcome(&self, decision: &PathDecision, outcome: &PathOutcome) {
        let _ = (decision, outcome);
    }
}

// State

/// The agent's side of a flow.
struct PathedFlow {
    /// The judge, if the agent decides or somebody listens.
    judge: Option<Arc<dyn PathJudge>>,
    usual: Arc<UsualTimes>,
    /// Whether the agent decides.
    decides: bool,
    last: Option<PathDecision>,
}

// Behaviour

impl Flow for PathedFlow {
    fn on_report(&mut self, now_us: u64, report: &Report<'_>, control: &mut Control) {
        let get = |name: &str| report.get(name).unwrap_or(0);
        if let Some(last) = self.last.take() {
            let outcome = PathOutcome {
                elapsed_us: get("elapsed_us").unsigned_abs(),
                bytes: get("bytes").unsigned_abs(),
            };
            if let Some(judge) = &self.judge {
                judge.outcome(&last, &outcome);
            }
            if last.snapshot != 0 {
                control.learn(self.row(now_us, &last, &outcome));
            }
        }
        if get("ended") != 0 {
            return;
        }
        let saturated = |value: i64| value.clamp(i32::MIN.into(), i32::MAX.into()) as i32;
        if !self.decides {
            let inputs = PATH_FEATURES.map(|name| saturated(get(name)));
            let (snapshot, action_q16) = (get("snapshot") as u32, saturated(get("action")));
            self.last = Some(PathDecision { inputs, snapshot, action_q16 });
            return;
        }
        let count = (get("count").clamp(1, MAX_PATHS as i64)) as usize;
        let seen: Vec<PathSeen> = (0..count).map(|path| seen_in(report, path)).collect();
        let (waiting, hash) = (get("waiting"), get("hash") as u32);
        let judged = self.judge.as_ref().and_then(|judge| judge.choose(&seen, waiting, hash));
        if let Some(wanted) = judged {
            control.update(&[("wanted", wanted as i64)]);
        }
        let taken = usize::try_from(get("path")).unwrap_or(0).min(count - 1);
        let inputs = seen[taken].inputs(waiting);
        self.last = Some(PathDecision { inputs, snapshot: 0, action_q16: 0 });
    }
}

fn seen_in(report: &Report<'_>, path: usize) -> PathSeen {
    let get = |what: &str| report.get(&format!("{what}{path}")).unwrap_or(0);
    PathSeen { rtt_us: get("rtt"), marked: get("marked"), lost: get("lost"), bytes_in_flight: get("flight") }
}

impl PathedFlow {
    /// The decision as its learner sees it: the right score would have been how much longer than usual what was sent took.
    fn row(&self, now_us: u64, decision: &PathDecision, outcome: &PathOutcome) -> Row {
        let surplus_q16 = self.usual.surplus_q16(outcome.bytes, outcome.cost_q16());
        Row {
            at_us: now_us,
            slot: SLOT,
            snapshot: decision.snapshot,
            inputs: decision.inputs.to_vec(),
            action_q16: decision.action_q16,
            reward: -(surplus_q16 as f32) / ONE_Q16 as f32,
            follows: false,
            target_q16: Some(surplus_q16),
        }
    }
}

/// The random part of a path's score for a flow, Q16 below 1, as its program computes it.
fn random_q16(hash: u32, path: usize) -> i64 {
    (i64::from(hash) * SPREAD[path % MAX_PATHS] / ONE_Q16) % ONE_Q16
}

/// A snapshot as a judge.
pub struct SnapshotJudge {
    snapshot: Snapshot,
    image: Vec<u64>,
    jitter_q16: i64,
}

impl SnapshotJudge {
    /// Judges by this snapshot; a path's score has a random part of up to `jitter_q16`.
    pub fn new(snapshot: Snapshot, jitter_q16: i64) -> SnapshotJudge {
        let image = snapshot.image(&DeployOptions::ONLY);
        SnapshotJudge { snapshot, image, jitter_q16 }
    }
}

impl PathJudge for SnapshotJudge {
    fn choose(&self, seen: &[PathSeen], waiting_bytes: i64, hash: u32) -> Option<usize> {
        let model = Model::new(self.snapshot.shape(), &self.image)?;
        let score = |path: usize| {
            let action = model.infer(&seen[path].inputs(waiting_bytes)).action_q16;
            action.clamp((-PATH_BOUND_Q16).into(), PATH_BOUND_Q16.into())
                + random_q16(hash, path) * self.jitter_q16 / ONE_Q16
        };
        (0..seen.len()).min_by_key(|path| score(*path))
    }
}

/// The path with the least bytes in flight, then the shortest round trip.
#[derive(Clone, Copy, Default, Debug)]
pub struct LeastLoaded;

impl PathJudge for LeastLoaded {
    fn choose(&self, seen: &[PathSeen], _waiting_bytes: i64, hash: u32) -> Option<usize> {
        let load = |path: &usize| (seen[*path].bytes_in_flight, seen[*path].rtt_us, random_q16(hash, *path));
        (0..seen.len()).min_by_key(load)
    }
}

// Config, defaults

/// The part of a path's score that is random, octaves Q16.
pub const JITTER_Q16: i64 = ONE_Q16 / 8;

// Factory

/// Makes flows whose datapath chooses their path.
#[derive(Clone)]
pub struct Path {
    /// Share of flows that take a path at random, Q16.
    pub explore_q16: i64,
    /// The random part of scores, Q16.
    pub jitter_q16: i64,
    choosing: Choosing,
    snapshot: &'static [u8],
    listener: Option<Arc<dyn PathJudge>>,
    usual: Arc<UsualTimes>,
}

impl Default for Path {
    fn default() -> Path {
        Path {
            explore_q16: 0,
            jitter_q16: JITTER_Q16,
            choosing: Choosing::default(),
            snapshot: SNAPSHOT,
            listener: None,
            usual: Arc::default(),
        }
    }
}

/// The share of flows that show what the other paths are worth.
const EXPLORE: Parameter = Parameter {
    name: "explore_permille",
    about: "share of flows that take a path at random, from which the network learns what it would not choose",
    default: 0,
    min: 0,
    max: PERMILLE,
};
const PERMILLE: i64 = 1000;

impl Path {
    /// Decides by another snapshot than the shipped one, except for a share of flows with a random path.
    /// `listener` receives the outcomes.
    #[must_use]
    pub fn in_training(
        self,
        snapshot: &'static [u8],
        explore_q16: i64,
        listener: Arc<dyn PathJudge>,
    ) -> Path {
        Path { snapshot, explore_q16, listener: Some(listener), ..self }
    }
}

/// Makes flows whose path the agent chooses.
#[derive(Clone)]
pub struct PathInAgent {
    name: &'static str,
    judge: Arc<dyn PathJudge>,
    choosing: Choosing,
}

impl PathInAgent {
    /// The agent asks `judge`.
    pub fn new(judge: Arc<dyn PathJudge>) -> PathInAgent {
        PathInAgent { name: "path-agent", judge, choosing: Choosing::default() }
    }

    /// The agent takes the least loaded path of each report.
    pub fn least_loaded() -> PathInAgent {
        PathInAgent { name: "least-loaded", judge: Arc::new(LeastLoaded), choosing: Choosing::default() }
    }

    /// Judged by the shipped snapshot; `None` without one.
    pub fn shipped() -> Option<PathInAgent> {
        let snapshot = Snapshot::built_in(SNAPSHOT).ok()?;
        Some(PathInAgent::new(Arc::new(SnapshotJudge::new(snapshot, JITTER_Q16))))
    }
}

/// Makes flows that leave a congested path at random.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Plb {
    choosing: Choosing,
}

const SNAPSHOT: &[u8] = include_bytes!("../policies/path.snapshot");
const POLICY: &[u8] = include_bytes!("../policies/path.safetensors");

impl Algorithm for Path {
    fn name(&self) -> &'static str {
        "path"
    }

    fn programs(&self) -> Vec<ProgramSource> {
        static PROGRAM: LazyLock<String> = LazyLock::new(programs::source);
        static STAYS: LazyLock<String> = LazyLock::new(programs::source_that_stays);
        static START: LazyLock<String> = LazyLock::new(programs::source_at_start);
        if self.choosing.at_start {
            let start = ProgramSource { name: "path-start", source: START.as_str() };
            return vec![ProgramSource { name: "path", source: STAYS.as_str() }, start];
        }
        vec![ProgramSource { name: "path", source: PROGRAM.as_str() }]
    }

    fn first(&self, control: &mut Control) {
        let (explore, jitter) = (("explore", self.explore_q16), ("jitter", self.jitter_q16));
        control.set_program("path", &[explore, jitter, self.choosing.register()]);
        if self.choosing.at_start {
            control.set_program("path-start", &[explore, jitter]);
        }
    }

    fn flow(&self, _info: &FlowInfo, _control: &mut Control) -> Box<dyn Flow> {
        let usual = Arc::clone(&self.usual);
        Box::new(PathedFlow { judge: self.listener.clone(), usual, decides: false, last: None })
    }

    fn policies(&self) -> Vec<PolicySource> {
        vec![PolicySource { slot: SLOT, snapshot: self.snapshot, policy: POLICY.into() }]
    }

    fn is_supervised(&self) -> bool {
        true
    }

    fn parameters(&self) -> &'static [Parameter] {
        &[EXPLORE, FLOWLET_GAP, AT_START]
    }

    fn configured(&self, values: &[(&'static str, i64)]) -> Option<Arc<dyn Algorithm>> {
        let wanted = value_if_set(&EXPLORE, values).map(|permille| permille * ONE_Q16 / PERMILLE);
        let explore_q16 = wanted.unwrap_or(self.explore_q16);
        Some(Arc::new(Path { explore_q16, choosing: self.choosing.with(values), ..self.clone() }))
    }
}

impl Algorithm for PathInAgent {
    fn name(&self) -> &'static str {
        self.name
    }

    fn programs(&self) -> Vec<ProgramSource> {
        static PROGRAM: LazyLock<String> = LazyLock::new(programs::source_of_agent);
        vec![ProgramSource { name: self.name, source: PROGRAM.as_str() }]
    }

    fn first(&self, control: &mut Control) {
        control.set_program(self.name, &[self.choosing.register()]);
    }

    fn parameters(&self) -> &'static [Parameter] {
        &[FLOWLET_GAP]
    }

    fn configured(&self, values: &[(&'static str, i64)]) -> Option<Arc<dyn Algorithm>> {
        Some(Arc::new(PathInAgent { choosing: self.choosing.with(values), ..self.clone() }))
    }

    fn flow(&self, _info: &FlowInfo, _control: &mut Control) -> Box<dyn Flow> {
        // Its rows name no snapshot, so nobody compares them.
        let (judge, usual) = (Some(Arc::clone(&self.judge)), Arc::default());
        Box::new(PathedFlow { judge, usual, decides: true, last: None })
    }
}

/// The agent's side of a flow, which has nothing to do.
struct PlbFlow;

impl Flow for PlbFlow {
    fn on_report(&mut self, _now_us: u64, _report: &Report<'_>, _control: &mut Control) {}
}

impl Algorithm for Plb {
    fn name(&self) -> &'static str {
        "plb"
    }

    fn programs(&self) -> Vec<ProgramSource> {
        static PROGRAM: LazyLock<String> = LazyLock::new(programs::source_of_plb);
        static START: LazyLock<String> = LazyLock::new(programs::source_of_plb_at_start);
        if self.choosing.at_start {
            let start = ProgramSource { name: "plb-start", source: START.as_str() };
            return vec![ProgramSource { name: "plb", source: programs::STAYS }, start];
        }
        vec![ProgramSource { name: "plb", source: PROGRAM.as_str() }]
    }

    fn first(&self, control: &mut Control) {
        if self.choosing.at_start {
            control.set_program("plb", &[]);
            control.set_program("plb-start", &[]);
        } else {
            control.set_program("plb", &[self.choosing.register()]);
        }
    }

    fn parameters(&self) -> &'static [Parameter] {
        &[FLOWLET_GAP, AT_START]
    }

    fn configured(&self, values: &[(&'static str, i64)]) -> Option<Arc<dyn Algorithm>> {
        Some(Arc::new(Plb { choosing: self.choosing.with(values) }))
    }

    fn flow(&self, _info: &FlowInfo, _control: &mut Control) -> Box<dyn Flow> {
        Box::new(PlbFlow)
    }
}

// Tests

#[cfg(test)]
mod tests {
    use super::*;
    use ccplane_program::ir::{Hook, INFINITY, MAX_REGS, Prim, Program};
    use ccplane_program::vm::{Decision, Knobs, Policies, ProgramState, SendPrims};
    use proptest::prelude::*;

    /// A policy that weighs its inputs.
    struct Weighs;

    fn weigh(inputs: &[i32]) -> i64 {
        let weights = [3, 5, -7, 11, 13, 2, 17, -1];
        inputs.iter().zip(weights).map(|(input, weight)| i64::from(*input) * weight).sum()
    }

    impl Policies for Weighs {
        fn decide(&mut self, slot: u8, inputs: &[i32], _: &mut Knobs) -> Decision {
            assert_eq!((slot, inputs.len()), (SLOT, PATH_INPUTS));
            Decision::Action { action_q16: weigh(inputs), snapshot: 7 }
        }
    }

    /// The program that the algorithm has of a hook.
    fn program(algorithm: &dyn Algorithm, hook: Hook) -> Program {
        let compiled = |source: ProgramSource| {
            ccplane_program::compile(source.source).unwrap_or_else(|e| panic!("{e:?}"))
        };
        algorithm.programs().into_iter().map(compiled).find(|program| program.hook() == hook).unwrap()
    }

    /// The algorithm whose flows choose where they start.
    fn at_start(algorithm: impl Algorithm) -> Arc<dyn Algorithm> {
        algorithm.configured(&[(AT_START.name, 1)]).unwrap()
    }

    fn prims(seen: &[PathSeen], hash: u32, waiting: i64) -> SendPrims {
        let mut prims = SendPrims::default();
        prims.set(Prim::PathCount, seen.len() as i64).set(Prim::FlowHash, hash.into());
        prims.set(Prim::PacketBytes, 1448).set(Prim::FlowBytesWaiting, waiting);
        for (path, seen) in seen.iter().enumerate() {
            let values = [seen.rtt_us, seen.marked, seen.lost, seen.bytes_in_flight];
            for (n, value) in values.into_iter().enumerate() {
                prims.set(Prim::ALL[Prim::Path0RttUs as usize + 4 * path + n], value);
            }
        }
        prims
    }

    /// A flow of a program with registers set.
    struct Ran {
        program: Program,
        flow: ProgramState,
        report: [i64; MAX_REGS],
    }

    impl Ran {
        fn new(algorithm: &dyn Algorithm, set: &[(&str, i64)]) -> Ran {
            Ran::at(Hook::Send, algorithm, set)
        }

        fn at(hook: Hook, algorithm: &dyn Algorithm, set: &[(&str, i64)]) -> Ran {
            let program = program(algorithm, hook);
            let mut flow = ProgramState::new(&program, 0, 0);
            for (name, value) in set {
                let at = program.regs().iter().position(|reg| &*reg.name == *name).unwrap();
                flow.regs[at] = *value;
            }
            Ran { program, flow, report: [0; MAX_REGS] }
        }

        fn invoke(&mut self, prims: &SendPrims) {
            self.flow.invoke_with(&self.program, prims, &mut Weighs, &mut self.report);
        }

        fn get(&self, name: &str) -> i64 {
            let at = self.program.regs().iter().position(|reg| &*reg.name == name).unwrap();
            self.flow.regs[at]
        }
    }

    fn path_seen() -> impl Strategy<Value = PathSeen> {
        (0..5000i64, 0..=ONE_Q16, 0..=ONE_Q16, 0..20_000_000i64).prop_map(
            |(rtt_us, marked, lost, bytes_in_flight)| PathSeen { rtt_us, marked, lost, bytes_in_flight },
        )
    }

    proptest! {
        #[test]
        fn the_program_takes_the_path_that_the_same_scores_in_rust_name(
            seen in prop::collection::vec(path_seen(), 1..=MAX_PATHS), hash: u32, waiting in 0..1_000_000i64,
        ) {
            let mut ran = Ran::new(&Path::default(), &[("jitter", JITTER_Q16)]);
            ran.invoke(&prims(&seen, hash, waiting));
            let inputs = |path: &usize| seen[*path].inputs(waiting + 1448);
            let score = |path: &usize| weigh(&inputs(path)) + random_q16(hash, *path) * JITTER_Q16 / ONE_Q16;
            let best = (0..seen.len()).min_by_key(score).unwrap();
            prop_assert_eq!((ran.flow.path, ran.flow.faults), (best as i64, 0));
            let told = PATH_FEATURES.map(|name| ran.get(&format!("Report.{name}")) as i32);
            prop_assert_eq!(told, inputs(&best));
            prop_assert!(told.iter().all(|input| (0..=1 << 16).contains(input)));
            prop_assert_eq!(ran.get("Report.action"), weigh(&told));
        }

        #[test]
        fn flows_that_explore_take_the_path_of_their_hash(
            seen in prop::collection::vec(path_seen(), 1..=MAX_PATHS), hash: u32,
        ) {
            let mut ran = Ran::new(&Path::default(), &[("explore", ONE_Q16)]);
            ran.invoke(&prims(&seen, hash, 0));
            prop_assert_eq!(ran.flow.path, i64::from(hash) % seen.len() as i64);
        }

        #[test]
        fn the_agent_hears_all_and_its_answer_is_taken(
            seen in prop::collection::vec(path_seen(), 1..=MAX_PATHS), hash: u32, wanted in 0..8i64,
        ) {
            let agent = PathInAgent::least_loaded();
            let mut ran = Ran::new(&agent, &[]);
            ran.invoke(&prims(&seen, hash, 99));
            for (path, seen) in seen.iter().enumerate() {
                let get = |what: &str| ran.get(&format!("Report.{what}{path}"));
                let told = (get("rtt"), get("marked"), get("lost"), get("flight"));
                prop_assert_eq!(told, (seen.rtt_us, seen.marked, seen.lost, seen.bytes_in_flight));
            }
            prop_assert_eq!(ran.get("Report.path"), i64::from(hash) % seen.len() as i64);
            let at = ran.program.regs().iter().position(|reg| &*reg.name == "wanted").unwrap();
            ran.flow.regs[at] = wanted;
            ran.invoke(&prims(&seen, hash, 99));
            prop_assert_eq!(ran.flow.path, wanted);
        }

        #[test]
        fn plb_leaves_a_path_that_marks_or_loses_and_stays_else(
            count in 2..=8i64, hash: u32, marked in 0..=ONE_Q16, lost in 0..=ONE_Q16,
        ) {
            let own = (i64::from(hash) % count) as usize;
            let mut seen = vec![PathSeen::default(); count as usize];
            seen[own] = PathSeen { marked, lost, ..PathSeen::default() };
            let mut ran = Ran::new(&Plb::default(), &[]);
            ran.invoke(&prims(&seen, hash, 0));
            ran.flow.path = own as i64;
            let mut later = prims(&seen, hash, 0);
            later.set(Prim::FlowGapUs, 499);
            ran.invoke(&later);
            prop_assert_eq!(ran.flow.path, own as i64, "within a flowlet");
            later.set(Prim::FlowGapUs, 500);
            ran.invoke(&later);
            let moves = marked > ONE_Q16 / 2 || lost > 1024;
            prop_assert_eq!(ran.flow.path != own as i64, moves, "{} of {}", ran.flow.path, count);
            prop_assert!((0..count).contains(&ran.flow.path));
        }
    }

    /// The number that is a flow's own where it starts.
    fn drawn(hash: u32, now_us: i64) -> u32 {
        ((i64::from(hash) + now_us % 65_536 * 2_654_435_761) % (1 << 32)) as u32
    }

    proptest! {
        #[test]
        fn where_a_flow_starts_the_same_scores_name_its_path(
            seen in prop::collection::vec(path_seen(), 1..=MAX_PATHS), hash: u32, now_us in 0..1_i64 << 50, before: u32,
        ) {
            let path = at_start(Path::default());
            let mut prims = prims(&seen, hash, 0);
            prims.set(Prim::Now, now_us).set(Prim::PeerSize1, before.into());
            let mut ran = Ran::at(Hook::Connect, &*path, &[("jitter", JITTER_Q16)]);
            ran.invoke(&prims);
            let draw = drawn(hash, now_us);
            let waiting = i64::from(before).min(16_384);
            let score = |path: &usize| {
                weigh(&seen[*path].inputs(waiting)) + random_q16(draw, *path) * JITTER_Q16 / ONE_Q16
            };
            let best = (0..seen.len()).min_by_key(score).unwrap();
            prop_assert_eq!((ran.flow.path, ran.flow.faults), (best as i64, 0));
            let mut explores = Ran::at(Hook::Connect, &*path, &[("explore", ONE_Q16)]);
            explores.invoke(&prims);
            prop_assert_eq!(explores.flow.path, i64::from(draw) % seen.len() as i64);
        }

        #[test]
        fn a_flow_that_started_on_a_path_keeps_it_and_tells_what_it_was_worth(
            seen in prop::collection::vec(path_seen(), 1..=MAX_PATHS), hash: u32, own: prop::sample::Index,
        ) {
            let own = own.index(seen.len());
            let mut ran = Ran::new(&*at_start(Path::default()), &[("explore", ONE_Q16)]);
            ran.flow.path = own as i64;
            let mut prims = prims(&seen, hash, 0);
            ran.invoke(&prims);
            prop_assert_eq!((ran.flow.path, ran.flow.faults), (own as i64, 0));
            let told = PATH_FEATURES.map(|name| ran.get(&format!("Report.{name}")) as i32);
            prop_assert_eq!(told, seen[own].inputs(1448));
            prims.set(Prim::FlowGapUs, 499);
            ran.invoke(&prims);
            prims.set(Prim::FlowGapUs, 60_000).set(Prim::Now, 70);
            ran.invoke(&prims);
            prop_assert_eq!((ran.flow.path, ran.get("Report.elapsed_us")), (own as i64, 70));
        }

        #[test]
        fn plb_starts_on_a_path_at_random_that_neither_marks_nor_loses(
            count in 1..=8i64, hash: u32, now_us in 0..1_i64 << 50, marked in 0..=ONE_Q16, lost in 0..=ONE_Q16,
        ) {
            let plb = at_start(Plb::default());
            let own = i64::from(drawn(hash, now_us)) % count;
            let mut seen = vec![PathSeen::default(); count as usize];
            seen[own as usize] = PathSeen { marked, lost, ..PathSeen::default() };
            let mut ran = Ran::at(Hook::Connect, &*plb, &[]);
            let mut prims = prims(&seen, hash, 0);
            prims.set(Prim::Now, now_us);
            ran.invoke(&prims);
            let moves = count > 1 && (marked > ONE_Q16 / 2 || lost > 1024);
            prop_assert_eq!(ran.flow.path != own, moves, "{} of {}", ran.flow.path, count);
            prop_assert!((0..count).contains(&ran.flow.path) && ran.flow.faults == 0);
            let mut stays = Ran::new(&*plb, &[]);
            stays.flow.path = own;
            stays.invoke(&prims);
            prop_assert_eq!((stays.flow.path, stays.flow.decide_at_bytes), (own, INFINITY));
        }
    }

    #[test]
    fn pauses_are_those_that_are_configured_and_starts_have_a_program_where_they_choose() {
        let gap = (FLOWLET_GAP.name, 70);
        let all: [Arc<dyn Algorithm>; 3] =
            [Arc::new(Path::default()), Arc::new(Plb::default()), Arc::new(PathInAgent::least_loaded())];
        for algorithm in all {
            assert_eq!(algorithm.programs().len(), 1);
            let mut control = Control::default();
            // What is set stays where only others are set later.
            let set = ccplane_alg::configure(&algorithm, [gap]).unwrap();
            let set = ccplane_alg::configure(&set, []).unwrap();
            set.first(&mut control);
            let fields: Vec<_> = control.requests().flat_map(|request| request.fields.to_vec()).collect();
            assert!(fields.contains(&("flowlet_us", 70)), "{}: {fields:?}", algorithm.name());
        }
        for (algorithm, names) in [
            (at_start(Path::default()), ["path", "path-start"]),
            (at_start(Plb::default()), ["plb", "plb-start"]),
        ] {
            let mut control = Control::default();
            algorithm.first(&mut control);
            let set: Vec<&str> = control.requests().filter_map(|request| request.program).collect();
            assert_eq!(set, names);
            assert_eq!(algorithm.programs().iter().map(|p| p.name).collect::<Vec<_>>(), names);
            program(&*algorithm, Hook::Connect);
        }
        let mut set = Ran::new(&Plb::default(), &[("flowlet_us", 70)]);
        let seen = [PathSeen { lost: ONE_Q16, ..PathSeen::default() }, PathSeen::default()];
        let mut prims = prims(&seen, 0, 0);
        set.invoke(&prims);
        for (gap_us, path) in [(69, 0), (70, 1)] {
            prims.set(Prim::FlowGapUs, gap_us);
            set.invoke(&prims);
            assert_eq!(set.flow.path, path, "{gap_us}");
        }
    }

    #[test]
    fn a_flowlet_keeps_its_path_and_the_next_one_tells_what_it_was_worth() {
        let busy = PathSeen { rtt_us: 900, marked: ONE_Q16, lost: 0, bytes_in_flight: 1 << 20 };
        let idle = PathSeen { rtt_us: 40, ..PathSeen::default() };
        let mut ran = Ran::new(&Path::default(), &[]);
        let at = |seen: [PathSeen; 2], now_us: i64, sent: i64, gap_us: i64| {
            let mut prims = prims(&seen, 5, 0);
            prims.set(Prim::Now, now_us).set(Prim::FlowBytesSent, sent).set(Prim::FlowGapUs, gap_us);
            prims
        };
        ran.invoke(&at([idle, busy], 1000, 0, 0));
        assert_eq!((ran.flow.path, ran.flow.decide_at_bytes), (0, INFINITY));
        ran.invoke(&at([busy, idle], 1400, 14_480, 400));
        assert_eq!((ran.flow.path, ran.flow.decide_at_bytes), (0, INFINITY));
        ran.invoke(&at([busy, idle], 2400, 30_000, 1000));
        assert_eq!((ran.flow.path, ran.get("Report.elapsed_us"), ran.get("Report.bytes")), (1, 1400, 30_000));
        let mut end = at([idle, busy], 2500, 31_000, 0);
        end.set(Prim::PacketBytes, 0);
        ran.invoke(&end);
        let told = ["Report.elapsed_us", "Report.bytes", "Report.ended"].map(|name| ran.get(name));
        assert_eq!(told, [100, 1000, 1]);
    }

    #[test]
    fn rows_hold_the_path_that_was_taken_and_its_cost() {
        let names: Vec<String> = PATH_FEATURES
            .iter()
            .chain(&["elapsed_us", "bytes", "ended", "action", "snapshot"])
            .map(|name| (*name).to_owned())
            .collect();
        let mut control = Control::default();
        let mut flow = Path::default().flow(&FlowInfo::example(1448, 14_480), &mut control);
        let decided = [1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0, 9, 7];
        let took = |elapsed_us| [11, 0, 0, 0, 0, 0, 0, 0, elapsed_us, 45_536, 0, 10, 7];
        for values in [decided, took(65_536), took(131_072)] {
            let report = Report { program: "path", names: &names, values: &values, truth: None };
            flow.on_report(1, &report, &mut control);
        }
        let rows = control.take_rows();
        assert_eq!(rows.len(), 2);
        assert_eq!((&*rows[0].inputs, rows[0].action_q16), (&[1, 2, 3, 4, 5, 6, 7, 8][..], 9));
        assert_eq!((rows[0].target_q16, rows[0].reward), (Some(0), 0.0), "the measure begins with it");
        // As many bytes in twice the time.
        assert_eq!((rows[1].target_q16, rows[1].reward), (Some(1 << 16), -1.0));
        // 2^16 us for 2^16 bytes with those that stand for the round trip.
        assert_eq!(PathOutcome { elapsed_us: 65_536, bytes: 45_536 }.cost_q16(), 12 << 16);
    }

    #[test]
    fn the_share_that_explores_is_a_parameter() {
        let path: Arc<dyn Algorithm> = Arc::new(Path::default());
        let explores = ccplane_alg::configure(&path, [("explore_permille", 250)]).unwrap();
        // Another one that is set leaves it as it is.
        for path in [&explores, &ccplane_alg::configure(&explores, [("flowlet_gap_us", 120)]).unwrap()] {
            let mut control = Control::default();
            path.first(&mut control);
            let set = control.requests().next().unwrap();
            assert_eq!((set.program, set.fields[0]), (Some("path"), ("explore", ONE_Q16 / 4)));
        }
    }

    #[test]
    fn the_least_loaded_path_has_the_least_in_flight_then_the_shortest_round_trip() {
        let seen = |rtt_us, bytes_in_flight| PathSeen { rtt_us, bytes_in_flight, ..PathSeen::default() };
        assert_eq!(LeastLoaded.choose(&[seen(1, 9), seen(9, 3), seen(4, 3)], 0, 1), Some(2));
    }
}
