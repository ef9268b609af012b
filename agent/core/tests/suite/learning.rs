//! Policies in slots, rows to learners, flows whose policy had no answer.

use crate::common::learned::{WORTHY, candidate, learned, snapshot};
use crate::common::{DP, Fake, Told, core_with, created, info};
use ccplane_alg::{Algorithm, Control, Flow, FlowInfo, Parameter, ProgramSource};
use ccplane_contract::ProgramUid;
use ccplane_contract::{Datapath, DatapathError, Event, FlowId, Mode, SlotStats, SnapshotUid};
use ccplane_core::{
    Candidate, Catalog, CatalogError, Config, Core, Evidence, Origin, Rules, Verdict, Why, drive,
};
use ccplane_infer::{FlowPolicy, Level};
use std::sync::Arc;

fn core() -> Core {
    core_with(vec![learned("a")])
}

fn fake() -> Fake {
    Fake { policies: Some(0), ..Fake::default() }
}

/// Attaches where needed, hands over `events` and turns the loop once at `now_us`.
fn turn(core: &mut Core, fake: &mut Fake, now_us: u64, events: Vec<Event>) -> Vec<String> {
    if core.datapaths().next().is_none() {
        core.attach(DP, fake.capabilities(), now_us).unwrap();
    }
    for event in &events {
        if let Event::Created { flow, info } = event {
            fake.listed.insert(flow.0, info.clone());
        }
    }
    fake.events = events;
    drive(core, DP, fake, now_us);
    fake.take_calls()
}

/// A row of `flow`: its reward in thousandths, and whose its next action is.
fn row(flow: u64, seq: u32, reward: i64, snapshot: u32) -> Event {
    let values = vec![reward, i64::from(snapshot)];
    Event::Report { flow: FlowId(flow), program: ProgramUid(10), seq, at_us: 0, values: values.into() }
}

fn verdicts(core: &mut Core) -> Vec<String> {
    core.take_decisions().iter().map(|d| d.verdict.to_string()).collect()
}

#[test]
fn a_slot_is_filled_before_its_programs_are_installed() {
    let (mut core, mut fake) = (core(), fake());
    assert_eq!(
        turn(&mut core, &mut fake, 0, vec![created(5)]),
        ["define 3", "push 3 1 Active", "install 10", "set 5 10 [(Cwnd, 14000)]"]
    );
    let slot = core.slots().next().unwrap();
    assert_eq!((slot.slot, slot.algorithm, slot.active.unwrap().uid), (3, "a", SnapshotUid(1)));
    assert_eq!(verdicts(&mut core), ["pushed"]);
}

#[test]
fn a_busy_slot_is_tried_again_at_the_next_tick() {
    let (mut core, mut fake) = (core(), Fake { policies: Some(2), ..Fake::default() });
    assert_eq!(turn(&mut core, &mut fake, 0, vec![]), ["define 3", "busy 3", "install 10"]);
    assert_eq!(turn(&mut core, &mut fake, 1, vec![]), ["busy 3"]);
    assert_eq!(turn(&mut core, &mut fake, 2, vec![]), ["push 3 1 Active"]);
    assert_eq!(turn(&mut core, &mut fake, 3, vec![]), [""; 0]);
    assert_eq!(core.counters().refused_commands, 0);
}

#[test]
fn flows_go_native_where_policies_do_not_run() {
    let (mut core, mut plain) = (core(), Fake::default());
    assert_eq!(turn(&mut core, &mut plain, 0, vec![created(5)]), ["release 5"]);
    assert_eq!(
        core.flow(DP, FlowId(5)).unwrap().native().unwrap().to_string(),
        "the algorithm asks policies, and a datapath of kind fake runs none"
    );
    let mut core = self::core();
    let mut refusing = Fake { refuse_slot: Some(DatapathError::OtherShape { slot: 3 }), ..fake() };
    turn(&mut core, &mut refusing, 0, vec![created(5)]);
    turn(&mut core, &mut refusing, 1, vec![created(6)]);
    for flow in [5, 6] {
        assert_eq!(
            core.flow(DP, FlowId(flow)).unwrap().native().unwrap().to_string(),
            "the datapath refused policy slot 3: policy slot 3 holds snapshots of another shape"
        );
    }
}

#[test]
fn bad_policies_are_refused_when_the_catalog_is_made() {
    let refused = |algorithms: Vec<Told>| {
        let algorithms = algorithms.into_iter().map(|a| Arc::new(a) as Arc<dyn Algorithm>).collect();
        Catalog::new(algorithms, 1).err().unwrap()
    };
    assert_eq!(
        refused(vec![learned("a"), learned("b")]).to_string(),
        "algorithms `a` and `b` both use policy slot 3"
    );
    let mut broken = learned("a");
    let mut bytes = broken.policies[0].snapshot.to_vec();
    *bytes.last_mut().unwrap() ^= 1;
    broken.policies[0].snapshot = bytes.leak();
    assert!(matches!(refused(vec![broken]), CatalogError::Snapshot { algorithm: "a", slot: 3, .. }));
    let mut far = learned("a");
    far.policies[0].slot = 16;
    assert_eq!(refused(vec![far]).to_string(), "algorithm `a` uses policy slot 16: there are slots 0 to 15");
    let mut other = learned("a");
    other.programs[0].source = "(def (Report (a 0)) (x 0)) (when true (history 3 x) (policy 3) (report))";
    assert!(matches!(refused(vec![other]), CatalogError::Inputs { cells: 3, inputs: 2, .. }));
}

#[test]
fn rows_come_in_batches_and_lost_reports_are_told() {
    let told = learned("a");
    let log = told.log.clone();
    let (mut core, mut fake) = (core_with(vec![told]), fake());
    turn(&mut core, &mut fake, 0, vec![created(5), created(6), row(5, 1, 100, 1), row(6, 1, 7, 1)]);
    turn(&mut core, &mut fake, 100_000, vec![row(5, 4, 200, 1)]);
    assert!(core.take_rows().is_empty(), "not before the interval is over");
    assert_eq!(core.next_tick_us(), Some(200_000));
    turn(&mut core, &mut fake, 200_000, vec![]);
    let batches = core.take_rows();
    let rewards: Vec<_> = batches[0].rows.iter().map(|(flow, row)| (flow.0, row.reward)).collect();
    assert_eq!(rewards, [(5, 0.1), (6, 0.007), (5, 0.2)]);
    assert_eq!((batches.len(), batches[0].algorithm, batches[0].slot, batches[0].dropped), (1, "a", 3, 0));
    assert!(log.lock().unwrap().contains(&"2 lost".to_owned()));
    assert_eq!(core.counters().rows, 3);
    assert!(core.take_rows().is_empty());
}

/// Returns for each row whether it follows the one before, as a flow's learner and trial are told.
fn follows(events: Vec<Event>) -> Vec<bool> {
    let (mut core, mut fake) = (core(), fake());
    turn(&mut core, &mut fake, 0, vec![created(5)]);
    turn(&mut core, &mut fake, 1, events);
    turn(&mut core, &mut fake, 200_000, vec![]);
    core.take_rows()[0].rows.iter().map(|(_, row)| row.follows).collect()
}

#[test]
fn a_reward_is_not_credited_across_a_gap() {
    assert_eq!(follows(vec![row(5, 1, 1, 1), row(5, 2, 1, 1), row(5, 3, 1, 1)]), [false, true, true]);
    assert_eq!(follows(vec![row(5, 1, 1, 1), row(5, 3, 1, 1), row(5, 4, 1, 1)]), [false, false, true]);
    // A reward that is no number: neither that row nor what its action came to is known.
    assert_eq!(follows(vec![row(5, 1, 1, 1), row(5, 2, i64::MAX, 1), row(5, 3, 1, 1)]), [false, false]);
}

#[test]
fn rows_that_nobody_takes_are_bounded() {
    let (mut core, mut fake) = (core(), fake());
    turn(&mut core, &mut fake, 0, vec![created(5)]);
    let many = ccplane_core::MAX_ROWS as u32 + 10;
    for seq in 1..=many {
        core.event(DP, row(5, seq, i64::from(seq), 1), 0);
    }
    core.tick(200_000);
    let batch = core.take_rows().remove(0);
    assert_eq!((batch.rows.len(), batch.dropped), (ccplane_core::MAX_ROWS, 10));
    assert_eq!(batch.rows[0].1.reward, 0.011);
    assert_eq!(core.counters().dropped_rows, 10);
}

#[test]
fn a_flow_without_an_answer_gets_its_program_again_with_the_next_snapshot() {
    let (mut core, mut fake) = (core(), fake());
    turn(&mut core, &mut fake, 0, vec![created(5), created(6)]);
    let policy = FlowPolicy { level: Level::Native, level_uid: 1, trips: 2, ..FlowPolicy::default() };
    fake.watched.insert(5, (Mode::NativePolicy, policy));
    assert_eq!(turn(&mut core, &mut fake, 1_000_000, vec![]), [""; 0], "it failed on this one");
    let origin = Origin::Operator { share: None, force: true };
    assert!(core.propose("a", 3, &Candidate { snapshot: snapshot(9), origin }, 1_000_001));
    assert_eq!(turn(&mut core, &mut fake, 1_000_001, vec![]), ["push 3 2 Active"]);
    assert_eq!(turn(&mut core, &mut fake, 2_100_000, vec![]), ["set 5 10 [(Cwnd, 14000)]"]);
    assert_eq!(turn(&mut core, &mut fake, 3_200_000, vec![]), [""; 0], "once");
    assert_eq!(core.flow(DP, FlowId(5)).unwrap().counters().restarts, 1);
}

#[test]
fn the_next_agent_takes_over_what_slots_hold() {
    let mut fake = fake();
    let held = SlotStats {
        slot: 3,
        shape: *snapshot(0).shape(),
        active: Some(SnapshotUid(70)),
        active_name: [1, 2, 3, 4],
        canary: Some(SnapshotUid(71)),
        canary_share: 99,
        last_good: None,
    };
    fake.slots.insert(3, held);
    let mut core = core();
    assert_eq!(turn(&mut core, &mut fake, 0, vec![created(5)])[..2], ["define 3", "install 10"]);
    assert!(fake.slots[&3].canary.is_none(), "a trial that nobody follows is over");
    let slot = core.slots().next().unwrap();
    assert_eq!(slot.active.map(|d| (d.uid, d.origin)), Some((SnapshotUid(70), Origin::TakenOver)));
    let taken_over = "taken over from an earlier agent";
    assert_eq!(verdicts(&mut core), [taken_over, "rolled back: left on trial by an earlier agent"]);
    let told = core.decisions().next().unwrap();
    let name = |n: usize| if n.is_multiple_of(8) { n as u8 / 8 + 1 } else { 0 };
    assert_eq!((told.origin, told.snapshot.unwrap().0), (Origin::TakenOver, std::array::from_fn(name)));
    assert!(core.propose("a", 3, &candidate(9), 1));
    let calls = turn(&mut core, &mut fake, 1, vec![]);
    assert!(calls[0].starts_with("push 3 72 Canary"), "numbers are not used twice: {calls:?}");
}

#[test]
fn an_agent_whose_numbers_were_used_before_takes_the_slot_over_too() {
    let (mut first, mut fake) = (core(), fake());
    turn(&mut first, &mut fake, 0, vec![created(5)]);
    assert_eq!(fake.slots[&3].active, Some(SnapshotUid(1)));
    let mut next = core();
    assert_eq!(
        turn(&mut next, &mut fake, 0, vec![created(5)]),
        ["define 3", "install 10", "set 5 10 [(Cwnd, 14000)]"]
    );
    assert!(next.flow(DP, FlowId(5)).unwrap().native().is_none());
    let held = next.slots().next().unwrap().active.map(|d| (d.uid, d.origin));
    assert_eq!(held, Some((SnapshotUid(1), Origin::TakenOver)));
    assert!(next.propose("a", 3, &candidate(9), 1));
    let calls = turn(&mut next, &mut fake, 1, vec![]);
    assert!(calls[0].starts_with("push 3 2 Canary"), "numbers are not used twice: {calls:?}");
}

#[test]
fn a_trip_of_the_monitor_ends_a_trial_at_once() {
    let (mut core, mut fake) = (core(), fake());
    turn(&mut core, &mut fake, 0, (0..8).map(created).collect());
    core.propose("a", 3, &candidate(9), 0);
    turn(&mut core, &mut fake, 1, vec![]);
    verdicts(&mut core);
    let policy = FlowPolicy { level: Level::LastGood, level_uid: 2, trips: 1, ..FlowPolicy::default() };
    fake.watched.insert(5, (Mode::Program, policy));
    assert_eq!(turn(&mut core, &mut fake, 1_000_000, vec![]), ["rollback 3"]);
    assert_eq!(verdicts(&mut core), ["rolled back: the monitor tripped"]);
    assert_eq!(core.decisions().last().unwrap().verdict, Verdict::RolledBack(Why::Tripped));
}

#[test]
fn what_need_not_or_must_not_be_pushed_is_not() {
    let (mut core, mut fake) = (core(), fake());
    turn(&mut core, &mut fake, 0, vec![created(1)]);
    for evidence in [
        Evidence { safe: false, ..WORTHY },
        Evidence { converged: false, ..WORTHY },
        Evidence { fidelity_mean: 0.05, ..WORTHY },
        Evidence { fidelity_mean: f64::NAN, ..WORTHY },
        Evidence { quantisation_error: WORTHY.fidelity_mean / 2.0, ..WORTHY },
        Evidence { quantisation_error: f64::NAN, ..WORTHY },
        Evidence { gain: Some(0.0), ..WORTHY },
    ] {
        core.propose("a", 3, &Candidate { snapshot: snapshot(9), origin: Origin::Learned(evidence) }, 1);
        assert_eq!(turn(&mut core, &mut fake, 1, vec![]), [""; 0]);
    }
    assert_eq!(
        verdicts(&mut core)[1..],
        [["unsafe", "not-converged"].as_slice(), &["not-necessary"; 5]].concat()
    );
    core.propose("a", 3, &candidate(9), 1);
    core.propose("a", 3, &candidate(8), 1);
    assert_eq!(verdicts(&mut core), ["busy"]);
    assert!(!core.propose("b", 3, &candidate(9), 1));
}

#[test]
fn by_hand_to_the_last_good_one() {
    let (mut core, mut fake) = (core(), fake());
    turn(&mut core, &mut fake, 0, vec![created(1)]);
    assert!(matches!(core.roll_back(3), Err(Some(Verdict::Refused(_)))));
    assert_eq!(core.roll_back(4), Err(None));
    let origin = Origin::Operator { share: None, force: true };
    core.propose("a", 3, &Candidate { snapshot: snapshot(9), origin }, 1);
    turn(&mut core, &mut fake, 1, vec![]);
    core.roll_back(3).unwrap();
    assert_eq!(turn(&mut core, &mut fake, 2, vec![]), ["rollback 3"]);
    assert_eq!(core.slots().next().unwrap().active.unwrap().uid, SnapshotUid(1));
    assert_eq!(verdicts(&mut core), ["pushed", "pushed", "rolled back by hand"]);
}

/// Takes a window for its flows, up to 99 bytes; above 9 its program would be another.
struct Tuned(i64);

impl Algorithm for Tuned {
    fn name(&self) -> &'static str {
        "tuned"
    }

    fn programs(&self) -> Vec<ProgramSource> {
        let source =
            if self.0 > 9 { "(def (a 1)) (when true (report))" } else { "(def (a 0)) (when true (report))" };
        vec![ProgramSource { name: "tuned", source }]
    }

    fn flow(&self, _info: &FlowInfo, control: &mut Control) -> Box<dyn Flow> {
        control.set_program("tuned", &[("Cwnd", self.0)]);
        learned("a").flow(&info(1), &mut Control::default())
    }

    fn parameters(&self) -> &'static [Parameter] {
        &[Parameter { name: "window_bytes", about: "", default: 1, min: 1, max: 99 }]
    }

    fn configured(&self, values: &[(&'static str, i64)]) -> Option<Arc<dyn Algorithm>> {
        values.last().map(|(_, value)| Arc::new(Tuned(*value)) as Arc<dyn Algorithm>)
    }
}

#[test]
fn rules_carry_parameters() {
    let core = |name: &str, value: i64| {
        let mut rule = ccplane_core::Rule::any("tuned");
        rule.parameters = vec![(name.to_owned(), value)];
        let catalog = Catalog::new(vec![Arc::new(Tuned(1))], 10).unwrap();
        Core::new(catalog, Rules { rules: vec![rule], default: "native".to_owned() }, Config::default())
    };
    let refused = |name, value| core(name, value).err().unwrap().to_string();
    assert_eq!(refused("speed", 3), "rule 0: no parameter `speed`; there are window_bytes");
    assert_eq!(refused("window_bytes", 0), "rule 0: window_bytes is 0, allowed are 1..=99");
    assert_eq!(refused("window_bytes", 100), "rule 0: window_bytes is 100, allowed are 1..=99");
    let other = refused("window_bytes", 10);
    assert!(other.contains("its programs would be others"), "{other}");
    let started = turn(&mut core("window_bytes", 7).unwrap(), &mut fake(), 0, vec![created(5)]);
    assert_eq!(started, ["install 10", "set 5 10 [(Cwnd, 7)]"]);
}
