//! The loop over simulated flows: snapshots are tried, promoted and rolled back; agents come, die and come back.

use crate::common::DP;
use crate::common::learned::{candidate, learned, snapshot};
use ccplane_alg::Algorithm;
use ccplane_contract::{Datapath, Event, FlowId, Mode, SnapshotUid};
use ccplane_core::{Catalog, Config, Core, Rules, Verdict, drive};
use ccplane_netsim::{Capacity, LinkConfig, QueueLimit};
use ccplane_sim::{FlowConfig, SimConfig, SimDatapath, Source};
use std::sync::Arc;

const FLOWS: usize = 8;
/// The time between two turns of the agent, microseconds.
const TURN_US: u64 = 20_000;
/// At every tenth of a second a reward of 1, and of what the policy has just done.
const RATED: &str = "
(def (Report (volatile acked 0) (volatile snapshot 0)) (x 0))
(when (> Micros 100000)
  (:= x Ack.bytes_acked)
  (history 2 x)
  (policy 3)
  (:= Report.acked (+ 1000 (/ Policy.action 100)))
  (:= Report.snapshot Policy.snapshot)
  (:= Micros 0)
  (report))";

fn core(first_uid: u32) -> Core {
    core_with(first_uid, "a")
}

fn core_with(first_uid: u32, algorithm: &str) -> Core {
    let mut told = learned("a");
    told.programs[0].source = RATED;
    told.on_flow =
        Arc::new(|_, control| control.set_program("main", &[("Rate", 500_000), ("Cwnd", 200_000)]));
    let catalog = Catalog::new(vec![Arc::new(told) as Arc<dyn Algorithm>], first_uid).unwrap();
    let config = Config { first_deployment: first_uid, ..Config::default() };
    let mut core = Core::new(catalog, Rules::all(algorithm), config).unwrap();
    core.attach(DP, SimDatapath::new(SimConfig::new(vec![link()], 1)).unwrap().capabilities(), 0).unwrap();
    core
}

fn link() -> LinkConfig {
    LinkConfig::new(Capacity::Rate { bit_per_s: 100_000_000 }, 5_000_000, QueueLimit::Packets(1000))
}

fn sim() -> SimDatapath {
    let mut sim = SimDatapath::new(SimConfig::new(vec![link()], 1)).unwrap();
    for _ in 0..FLOWS {
        sim.add_flow(&FlowConfig::new(Source::Bulk, 5000)).unwrap();
    }
    sim
}

fn run(core: &mut Core, sim: &mut SimDatapath, seconds: u64) -> u64 {
    let until_us = sim.now_us() + seconds * 1_000_000;
    let mut rows = 0;
    while sim.now_us() < until_us {
        sim.step_until(sim.now_us() + TURN_US);
        let now_us = sim.now_us();
        drive(core, DP, sim, now_us);
        rows += core.take_rows().iter().map(|b| b.rows.len() as u64).sum::<u64>();
    }
    rows
}

fn verdicts(core: &mut Core) -> Vec<String> {
    core.take_decisions().iter().map(|d| d.verdict.to_string()).collect()
}

fn active(sim: &mut SimDatapath) -> Option<SnapshotUid> {
    sim.slots()[0].active
}

fn modes(sim: &mut SimDatapath) -> Vec<Mode> {
    let mut modes: Vec<Mode> = sim.flows().iter().map(|f| f.mode).collect();
    modes.dedup();
    modes
}

#[test]
fn what_pays_is_promoted_and_what_does_not_is_rolled_back() {
    let (mut core, mut sim) = (core(1), sim());
    let rows = run(&mut core, &mut sim, 5);
    assert!((300..=400).contains(&rows), "ten a second of each flow: {rows}");
    assert_eq!(verdicts(&mut core), ["pushed"]);
    // Speeds up by half a percent an interval.
    core.propose("a", 3, &candidate(20), sim.now_us());
    run(&mut core, &mut sim, 60);
    assert_eq!(verdicts(&mut core), ["trial on 2 of 8 flows", "promoted"]);
    assert!(sim.flows().iter().all(|f| f.policy.unwrap().uid == 2), "all follow");
    core.propose("a", 3, &candidate(-60), sim.now_us());
    run(&mut core, &mut sim, 60);
    assert_eq!(verdicts(&mut core), ["trial on 2 of 8 flows", "rolled back: worse"]);
    assert_eq!((active(&mut sim), modes(&mut sim)), (Some(SnapshotUid(2)), vec![Mode::Program]));
}

#[test]
fn an_agent_that_dies_in_a_trial_costs_the_trial_only() {
    let (mut core, mut sim) = (core(1), sim());
    run(&mut core, &mut sim, 2);
    core.propose("a", 3, &candidate(20), sim.now_us());
    run(&mut core, &mut sim, 1);
    assert!(sim.slots()[0].canary.is_some());
    drop(core);
    // Programs and policies decide on while the heartbeat is fresh, then the native algorithm does.
    sim.step_until(sim.now_us() + 100_000);
    assert_eq!(modes(&mut sim), [Mode::Program]);
    sim.step_until(sim.now_us() + 2_000_000);
    assert_eq!(modes(&mut sim), [Mode::NativeAgentSilent]);
    // The next agent finds flows and slots as they are.
    let mut core = self::core(1000);
    let now_us = sim.now_us();
    core.event(DP, Event::Dropped { count: 1 }, now_us);
    run(&mut core, &mut sim, 3);
    let taken_over = "taken over from an earlier agent";
    assert_eq!(verdicts(&mut core), [taken_over, "rolled back: left on trial by an earlier agent"]);
    let slot = &sim.slots()[0];
    assert_eq!((slot.active, slot.canary), (Some(SnapshotUid(1)), None));
    assert_eq!(modes(&mut sim), [Mode::Program]);
    assert_eq!(core.flows().count(), FLOWS);
    assert!(core.flow(DP, FlowId(0)).unwrap().counters().rows > 0);
    core.propose("a", 3, &candidate(20), sim.now_us());
    run(&mut core, &mut sim, 1);
    // The first one of its own was for a slot that was not empty.
    assert_eq!(sim.slots()[0].canary, Some(SnapshotUid(1001)), "numbers are not used twice");
}

/// Its rules first name the algorithm when the datapath has long been looked at.
#[test]
fn rules_that_come_later_take_slots_over_as_well() {
    let (mut core, mut sim) = (core(1), sim());
    run(&mut core, &mut sim, 1);
    drop(core);
    let mut core = self::core_with(1000, "native");
    run(&mut core, &mut sim, 2);
    assert_eq!(verdicts(&mut core), [""; 0]);
    core.set_rules(Rules::all("a")).unwrap();
    run(&mut core, &mut sim, 1);
    let told: Vec<_> = core.take_decisions().into_iter().map(|d| (d.verdict, d.snapshot)).collect();
    assert_eq!(told, [(Verdict::TakenOver, Some(snapshot(0).hash()))]);
    let slot = &sim.slots()[0];
    assert_eq!((slot.active, slot.last_good), (Some(SnapshotUid(1)), None), "nothing was pushed");
}
