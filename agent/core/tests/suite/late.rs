//! Results that come late, in another order, or wrong: what the simulation in `endurance` has found, one by one.

use crate::common::learned::{candidate, learned, snapshot};
use crate::common::{DP, Fake, Told, core_with, created};
use ccplane_contract::{Datapath, DatapathError, Event, FlowId, SlotStats, SnapshotUid};
use ccplane_core::{Action, Command, Config, Core, NATIVE, NativeReason, Rules, Verdict};
use std::io::ErrorKind;

fn failed() -> Result<(), DatapathError> {
    Err(DatapathError::Os { what: "send".to_owned(), errno: ErrorKind::TimedOut })
}

fn closed(flow: u64) -> Event {
    Event::Closed { flow: FlowId(flow) }
}

/// The actions that wait, but for heartbeats.
fn take(core: &mut Core) -> Vec<Action> {
    let all = std::iter::from_fn(|| core.next_action(DP));
    all.filter(|action| action.command != Command::Heartbeat).collect()
}

fn release(flow: u64) -> Command {
    Command::Release { flow: FlowId(flow) }
}

fn commands(actions: &[Action]) -> Vec<Command> {
    actions.iter().map(|action| action.command.clone()).collect()
}

/// A core that leaves all flows to their native algorithm.
fn native() -> Core {
    let mut core = core_with(vec![Told::new("a")]);
    core.set_rules(Rules::all(NATIVE)).unwrap();
    core.attach(DP, Fake::default().capabilities(), 0).unwrap();
    take(&mut core);
    core
}

#[test]
fn a_flow_that_has_ended_is_not_released() {
    let mut core = native();
    core.event(DP, created(1), 0);
    core.event(DP, created(2), 0);
    core.event(DP, closed(1), 0);
    assert_eq!(commands(&take(&mut core)), [release(2)]);
}

#[test]
fn a_flow_that_was_never_taken_in_and_has_ended_is_not_released() {
    let catalog = ccplane_core::Catalog::new(vec![std::sync::Arc::new(Told::new("a"))], 10).unwrap();
    let config = Config { max_flows: 0, ..Config::default() };
    let mut core = Core::new(catalog, Rules::all(NATIVE), config).unwrap();
    core.attach(DP, Fake::default().capabilities(), 0).unwrap();
    for flow in 1..=3 {
        core.event(DP, created(flow), 0);
    }
    core.event(DP, closed(1), 0);
    let mut fake = Fake { listed: [(2, crate::common::info(443))].into(), ..Fake::default() };
    core.reconcile(DP, fake.flows(), 0);
    // Listed, it is refused once more, and released once.
    assert_eq!(commands(&take(&mut core)), [release(2)]);
}

#[test]
fn a_release_that_failed_is_asked_for_again() {
    let mut core = native();
    core.event(DP, created(1), 0);
    core.event(DP, created(2), 0);
    for now_us in [1_000_000, 2_000_000] {
        let taken = take(&mut core);
        assert_eq!(commands(&taken), [release(1), release(2)]);
        taken.iter().for_each(|action| core.result(action.id, failed()));
        assert_eq!(take(&mut core), [], "not before the next heartbeat");
        core.tick(now_us);
    }
    core.event(DP, closed(1), 2_000_000);
    let taken = take(&mut core);
    assert_eq!(commands(&taken), [release(2)]);
    core.result(taken[0].id, Ok(()));
    core.tick(3_000_000);
    assert_eq!(take(&mut core), []);
    assert_eq!(core.table_sizes().queued, 0);
}

/// The definition of a slot and the push into it, on their way.
fn defined_and_pushed() -> (Core, Action, Action) {
    let mut core = core_with(vec![learned("a")]);
    core.attach(DP, Fake { policies: Some(0), ..Fake::default() }.capabilities(), 0).unwrap();
    let slot = |action: &Action| matches!(action.command, Command::DefineSlot { .. } | Command::Push { .. });
    let slots: Vec<Action> = take(&mut core).into_iter().filter(slot).collect();
    let [define, push] = <[Action; 2]>::try_from(slots).unwrap();
    (core, define, push)
}

#[test]
fn a_slot_whose_push_was_refused_stays_so_when_its_definition_ends_later() {
    let (mut core, define, push) = defined_and_pushed();
    core.result(push.id, failed());
    core.result(define.id, Ok(()));
    core.event(DP, created(1), 0);
    let flow = core.flow(DP, FlowId(1)).unwrap();
    assert!(matches!(flow.native(), Some(NativeReason::SlotRefused { slot: 3, .. })), "{:?}", flow.native());
}

/// Refused while the table was full, it is taken in when there is room: what it once was to be released is void.
#[test]
fn a_flow_that_is_taken_in_after_all_is_not_released() {
    let catalog = ccplane_core::Catalog::new(vec![std::sync::Arc::new(Told::new("a"))], 10).unwrap();
    let config = Config { max_flows: 1, ..Config::default() };
    let mut core = Core::new(catalog, Rules::all("a"), config).unwrap();
    core.attach(DP, Fake::default().capabilities(), 0).unwrap();
    take(&mut core);
    core.event(DP, created(1), 0);
    core.event(DP, created(2), 0);
    core.event(DP, closed(1), 0);
    core.event(DP, created(2), 0);
    let taken = take(&mut core);
    assert!(
        matches!(taken[..], [Action { command: Command::SetProgram { flow: FlowId(2), .. }, .. }]),
        "{taken:?}"
    );
}

/// The slot cannot be defined, and holds another agent's canary: its roll-back stands.
#[test]
fn a_definition_that_is_refused_leaves_what_is_asked_of_the_slot() {
    let (mut core, mut fake) = (core_with(vec![learned("a")]), Fake { policies: Some(0), ..Fake::default() });
    core.attach(DP, fake.capabilities(), 0).unwrap();
    let stats = SlotStats {
        slot: 3,
        shape: *snapshot(0).shape(),
        active: Some(SnapshotUid(7)),
        active_name: [0; 4],
        canary: Some(SnapshotUid(8)),
        canary_share: 1,
        last_good: None,
    };
    fake.slots.insert(3, stats);
    fake.refuse_slot = Some(DatapathError::NoSlot(3));
    ccplane_core::drive(&mut core, DP, &mut fake, 0);
    assert_eq!((fake.slots[&3].active, fake.slots[&3].canary), (Some(SnapshotUid(7)), None));
}

/// The canary may be there still: to roll back would drop that, and be taken for the active snapshot's end.
#[test]
fn nothing_is_rolled_back_by_hand_before_a_look_at_what_a_failed_command_has_done() {
    let (mut core, mut fake) = (core_with(vec![learned("a")]), Fake { policies: Some(0), ..Fake::default() });
    core.attach(DP, fake.capabilities(), 0).unwrap();
    ccplane_core::drive(&mut core, DP, &mut fake, 0);
    let by_hand = ccplane_core::Origin::Operator { share: None, force: true };
    let forced = ccplane_core::Candidate { snapshot: snapshot(9), origin: by_hand };
    core.propose("a", 3, &forced, 0);
    core.propose("a", 3, &candidate(20), 0);
    ccplane_core::drive(&mut core, DP, &mut fake, 0);
    core.propose("a", 3, &candidate(20), 0);
    ccplane_core::drive(&mut core, DP, &mut fake, 0);
    core.roll_back(3).unwrap();
    take(&mut core).iter().for_each(|action| core.result(action.id, failed()));
    assert_eq!(core.roll_back(3), Err(Some(Verdict::Busy)));
    for now_us in [2_000_000, 4_000_000] {
        ccplane_core::drive(&mut core, DP, &mut fake, now_us);
    }
    assert_eq!(fake.slots[&3].canary, None, "the look has found it");
    assert_eq!(core.roll_back(3), Ok(()));
}

/// A push that is on its way cannot be taken back, so nothing else is pushed until it has ended.
#[test]
fn a_look_at_a_slot_does_not_end_a_push_that_is_on_its_way() {
    let (mut core, define, push) = defined_and_pushed();
    let stats = SlotStats {
        slot: 3,
        shape: *snapshot(0).shape(),
        active: Some(SnapshotUid(1)),
        active_name: [0; 4],
        canary: None,
        canary_share: 0,
        last_good: None,
    };
    core.observe_slots(DP, &[stats], &[], 0);
    core.propose("a", 3, &candidate(9), 0);
    core.result(define.id, Ok(()));
    core.result(push.id, Ok(()));
    let verdicts: Vec<_> = core.take_decisions().into_iter().map(|d| d.verdict).collect();
    assert_eq!(verdicts, [Verdict::Busy, Verdict::Pushed]);
}
