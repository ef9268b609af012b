//! Whatever happens, in whatever order: one canary at a time, nothing unsafe, and a roll-back restores what was.

use crate::common::learned::{WORTHY, learned, snapshot};
use crate::common::{DP, Fake, core_with, created};
use ccplane_contract::{Datapath, Event, FlowId, Mode, ProgramUid, SnapshotUid};
use ccplane_core::{Candidate, Core, Evidence, Origin, Verdict, Why, drive};
use ccplane_infer::{FlowPolicy, Level};
use ccplane_snapshot::TrustedSnapshot;
use proptest::prelude::*;
use std::sync::LazyLock;

const FLOWS: u64 = 6;
/// By place: good ones, one that is unsafe, and one that is not worth it.
static SNAPSHOTS: LazyLock<Vec<TrustedSnapshot>> = LazyLock::new(|| (1..=5).map(snapshot).collect());
const UNSAFE: usize = 3;
const USELESS: usize = 4;

#[derive(Clone, Debug)]
enum Step {
    Learned(usize),
    Operator(usize, bool),
    /// A batch interval in which flows on the newest deployment get this much, and others 1000.
    Batches(u8, i64),
    Trip(u64),
    Healthy,
    RollBack,
    Busy(usize),
    Ends(u64),
    Starts(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let flow = 0..FLOWS;
    let step = prop_oneof![
        4 => (0..SNAPSHOTS.len()).prop_map(Step::Learned),
        1 => (0..UNSAFE, any::<bool>()).prop_map(|(n, force)| Step::Operator(n, force)),
        6 => (1..200u8, prop_oneof![Just(400), Just(1000), Just(2000)]).prop_map(|(n, r)| Step::Batches(n, r)),
        1 => flow.clone().prop_map(Step::Trip),
        1 => Just(Step::Healthy),
        1 => Just(Step::RollBack),
        1 => (1..3usize).prop_map(Step::Busy),
        1 => flow.clone().prop_map(Step::Ends),
        1 => flow.prop_map(Step::Starts),
    ];
    prop::collection::vec(step, 1..60)
}

fn candidate(n: usize) -> Candidate {
    let evidence = Evidence {
        fidelity_mean: if n == USELESS { 0.01 } else { WORTHY.fidelity_mean },
        safe: n != UNSAFE,
        ..WORTHY
    };
    Candidate { snapshot: SNAPSHOTS[n].clone(), origin: Origin::Learned(evidence) }
}

struct World {
    core: Core,
    fake: Fake,
    now_us: u64,
    seq: u32,
    /// The active snapshot when the trial under way began.
    before: Option<SnapshotUid>,
    /// Candidates that were offered, and decisions that ended one.
    offered: usize,
    ended: usize,
}

impl World {
    fn new() -> World {
        let fake = Fake { policies: Some(0), ..Fake::default() };
        let core = core_with(vec![learned("a")]);
        let mut world = World { core, fake, now_us: 0, seq: 0, before: None, offered: 0, ended: 0 };
        world.core.attach(DP, world.fake.capabilities(), 0).unwrap();
        (0..FLOWS).for_each(|f| world.start(f));
        world.turn(vec![]);
        world
    }

    fn start(&mut self, flow: u64) {
        let Event::Created { info, .. } = created(flow) else { unreachable!() };
        self.fake.listed.insert(flow, info);
        self.turn(vec![created(flow)]);
    }

    fn turn(&mut self, events: Vec<Event>) {
        let active = self.fake.slots.get(&3).and_then(|s| s.active);
        self.fake.events = events;
        drive(&mut self.core, DP, &mut self.fake, self.now_us);
        self.fake.take_calls();
        self.hear(active);
        self.check();
    }

    fn hear(&mut self, active: Option<SnapshotUid>) {
        for decision in self.core.take_decisions() {
            // What was promoted may be rolled back later on.
            let again = matches!(decision.verdict, Verdict::RolledBack(_)) && self.before.is_none();
            let offered = !matches!(decision.origin, Origin::Shipped) && !again;
            self.ended += usize::from(offered && !matches!(decision.verdict, Verdict::Trial { .. }));
            match decision.verdict {
                Verdict::Trial { .. } => self.before = active,
                Verdict::RolledBack(Why::Gone) => self.before = None,
                Verdict::RolledBack(_) if self.before.is_some() => {
                    let now = self.fake.slots[&3].active;
                    assert_eq!(now, self.before.take(), "a roll-back of a trial restores what was");
                }
                Verdict::Promoted | Verdict::Pushed => self.before = None,
                _ => {}
            }
        }
    }

    fn check(&self) {
        let bad = [SNAPSHOTS[UNSAFE].hash(), SNAPSHOTS[USELESS].hash()];
        let Some(stats) = self.fake.slots.get(&3) else { return };
        let view = self.core.slots().next().unwrap();
        for deployment in [view.active, view.canary, view.last_good].into_iter().flatten() {
            let hash = deployment.snapshot.unwrap();
            assert!(!bad.contains(&hash), "what must not be pushed was");
        }
        let uid = |d: Option<&ccplane_core::Deployment>| d.map(|d| d.uid);
        // Nothing is on its way after a turn, unless the slot was busy.
        if self.fake.policies == Some(0) {
            assert_eq!((uid(view.active), uid(view.canary)), (stats.active, stats.canary));
            assert_eq!(uid(view.last_good), stats.last_good);
        }
    }

    fn step(&mut self, step: &Step) {
        match step {
            Step::Learned(n) => {
                self.core.propose("a", 3, &candidate(*n), self.now_us);
                self.offered += 1;
            }
            Step::Operator(n, force) => {
                let origin = Origin::Operator { share: None, force: *force };
                let candidate = Candidate { snapshot: SNAPSHOTS[*n].clone(), origin };
                self.core.propose("a", 3, &candidate, self.now_us);
                self.offered += 1;
            }
            Step::Batches(count, reward) => (0..*count).for_each(|_| self.batch(*reward)),
            Step::Trip(flow) => {
                let slot = &self.fake.slots[&3];
                let level_uid = slot.canary.or(slot.active).map_or(0, |uid| uid.0);
                let policy = FlowPolicy { level: Level::LastGood, level_uid, ..FlowPolicy::default() };
                self.fake.watched.insert(*flow, (Mode::Program, policy));
            }
            Step::Healthy => self.fake.watched.clear(),
            Step::RollBack => drop(self.core.roll_back(3)),
            Step::Busy(times) => self.fake.policies = Some(*times),
            Step::Ends(flow) => {
                self.fake.listed.remove(flow);
                return self.turn(vec![Event::Closed { flow: FlowId(*flow) }]);
            }
            Step::Starts(flow) => return self.start(*flow),
        }
        self.turn(vec![]);
    }

    fn batch(&mut self, reward: i64) {
        self.now_us += 200_000;
        self.seq += 1;
        let slot = self.fake.slots[&3].clone();
        let row = |flow: u64| {
            let tries = (ccplane_infer::spread(flow) >> 48) < u64::from(slot.canary_share);
            let uid = slot.canary.filter(|_| tries).or(slot.active).map_or(0, |uid| uid.0);
            let newest = slot.canary.or(slot.active).map_or(0, |uid| uid.0) == uid;
            let noise = i64::from(self.seq.wrapping_mul(2_654_435_761).wrapping_add(flow as u32 * 77) >> 27);
            let values = vec![if newest { reward } else { 1000 } + noise, i64::from(uid)];
            Event::Report {
                flow: FlowId(flow),
                program: ProgramUid(10),
                seq: self.seq,
                at_us: 0,
                values: values.into(),
            }
        };
        let rows = self.fake.listed.keys().copied().collect::<Vec<u64>>().into_iter().map(row).collect();
        self.turn(rows);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]
    #[test]
    fn pushes_keep_their_rules(steps in steps()) {
        let mut world = World::new();
        for step in &steps {
            world.step(step);
        }
        world.core.detach(DP);
        world.hear(None);
        assert_eq!(world.ended, world.offered, "each candidate ends in one decision");
    }
}
