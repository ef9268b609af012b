//! Trials on flows that differ, drift, fall idle and end: what is decided, how often, and when.

use crate::common::learned::{WORTHY, candidate, learned, learned_from};
use crate::common::{DP, Fake, Told, created};
use ccplane_alg::Algorithm;
use ccplane_contract::{Datapath, Event, FlowId, ProgramUid, SnapshotUid};
use ccplane_core::{
    Candidate, Catalog, Comparison, Config, Core, Decision, Evidence, Finding, MAX_PAIRS, Origin, PushRules,
    Rules, Verdict, Why, drive,
};
use ccplane_testing::fuzz::Draw;
use std::sync::Arc;

const BATCH_US: u64 = 200_000;
/// The first deployments of a core: what it ships, and what is tried.
const SHIPPED: u32 = 1;
const TRIED: u32 = 2;
/// Rows of a flow in one batch interval, as a flow has them whose round trip is 50 ms.
const ROWS: u32 = 4;

/// Flows on a core, and a clock.
struct World {
    core: Core,
    fake: Fake,
    flows: Vec<u64>,
    batch_us: u64,
    now_us: u64,
    seq: u32,
    random: Draw,
    /// The gain that the learner expects of the candidate.
    gain: Option<f64>,
}

/// One flow's mean reward over a batch interval: of the flow, the deployment that acts, the time in seconds since the
/// trial began, and a standard normal number.
type Reward<'a> = &'a dyn Fn(u64, u32, f64, f64) -> Option<f64>;

/// A trial that has ended.
struct Ended {
    verdict: Verdict,
    comparison: Option<Comparison>,
    took_us: u64,
}

impl World {
    fn new(flows: &[u64], batch_us: u64, seed: u64) -> World {
        World::under(learned("a"), flows, batch_us, seed)
    }

    fn under(algorithm: Told, flows: &[u64], batch_us: u64, seed: u64) -> World {
        let catalog = Catalog::new(vec![Arc::new(algorithm) as Arc<dyn Algorithm>], 10).unwrap();
        let config = Config { batch_us, ..Config::default() };
        let core = Core::new(catalog, Rules::all("a"), config).unwrap();
        let fake = Fake { policies: Some(0), ..Fake::default() };
        let flows = flows.to_vec();
        let mut world =
            World { core, fake, flows, batch_us, now_us: 0, seq: 0, random: Draw::new(seed), gain: None };
        world.core.attach(DP, world.fake.capabilities(), 0).unwrap();
        for flow in world.flows.clone() {
            let event = created(flow);
            let Event::Created { info, .. } = &event else { unreachable!() };
            world.fake.listed.insert(flow, info.clone());
            world.turn(vec![event]);
        }
        world.turn(vec![]);
        world
    }

    fn turn(&mut self, events: Vec<Event>) {
        self.fake.events = events;
        // More events than one turn takes.
        while drive(&mut self.core, DP, &mut self.fake, self.now_us).events > 0 {}
        self.fake.take_calls();
    }

    /// Returns the deployment that decides a flow's next action.
    fn decides(&self, flow: u64) -> u32 {
        let slot = &self.fake.slots[&3];
        let tries = (ccplane_infer::spread(flow) >> 48) < u64::from(slot.canary_share);
        slot.canary.filter(|_| tries).or(slot.active).unwrap().0
    }

    fn batch(&mut self, began_us: u64, reward: Reward<'_>) {
        self.now_us += self.batch_us;
        let at_s = self.now_us.saturating_sub(began_us) as f64 / 1e6;
        let mut rows = Vec::new();
        for _ in 0..ROWS {
            self.seq += 1;
            for flow in self.flows.clone() {
                let uid = self.decides(flow);
                // The mean of a batch's rows is to have the deviation that is asked for.
                let noise = self.random.normal() * f64::from(ROWS).sqrt();
                let Some(reward) = reward(flow, uid, at_s, noise) else { continue };
                let values = vec![(1000.0 * reward) as i64, i64::from(uid)];
                let (flow, program, seq) = (FlowId(flow), ProgramUid(10), self.seq);
                rows.push(Event::Report { flow, program, seq, at_us: 0, values: values.into() });
            }
        }
        self.turn(rows);
    }

    /// Flows that start, report once and end, all within a batch interval; each has the reward of its deployment and some noise.
    fn batch_of_short_flows(&mut self, count: u64, more: f64) {
        self.now_us += self.batch_us;
        let mut events = Vec::new();
        for _ in 0..count {
            self.seq += 1;
            let flow = u64::from(self.seq);
            let uid = self.decides(flow);
            let reward = self.random.normal() + if uid == TRIED { more } else { 0.0 };
            let values = vec![(1000.0 * reward) as i64, i64::from(uid)];
            let (flow, program) = (FlowId(flow), ProgramUid(10));
            events.push(created(flow.0));
            events.push(Event::Report { flow, program, seq: 1, at_us: 0, values: values.into() });
            events.push(Event::Closed { flow });
        }
        self.turn(events);
    }

    fn propose(&mut self) {
        let mut candidate = candidate(9);
        candidate.origin = Origin::Learned(Evidence { gain: self.gain, ..WORTHY });
        assert!(self.core.propose("a", 3, &candidate, self.now_us));
        self.turn(vec![]);
    }

    fn decisions(&mut self) -> Vec<Decision> {
        let of = Some(candidate(9).snapshot.hash());
        self.core.take_decisions().into_iter().filter(|d| d.snapshot == of).collect()
    }

    /// Two seconds without a trial, then one until its end.
    fn trial(&mut self, reward: Reward<'_>) -> Ended {
        let warm = 2_000_000 / self.batch_us;
        (0..warm).for_each(|_| self.batch(u64::MAX, reward));
        let began_us = self.now_us;
        self.propose();
        let first = self.decisions();
        assert!(matches!(first[..], [Decision { verdict: Verdict::Trial { .. }, .. }]), "{first:?}");
        let longest_us = PushRules::default().longest_trial_us(self.batch_us);
        loop {
            self.batch(began_us, reward);
            let took_us = self.now_us - began_us;
            if let [end] = &self.decisions()[..] {
                return Ended { verdict: end.verdict.clone(), comparison: end.comparison, took_us };
            }
            assert!(took_us <= longest_us, "on trial for longer than trials are");
        }
    }
}

fn ended(flows: &[u64], seed: u64, reward: Reward<'_>) -> Ended {
    World::new(flows, BATCH_US, seed).trial(reward)
}

/// Counts how trials of `flows` with these rewards end, over many seeds: promoted as better, promoted as no worse,
/// found worse, and neither.
fn counts(flows: &[u64], seeds: u64, reward: Reward<'_>) -> [u64; 4] {
    let mut counts = [0; 4];
    for seed in 0..seeds {
        let ended = ended(flows, seed, reward);
        let place = match (ended.verdict, ended.comparison.map(|c| c.finding)) {
            (Verdict::Promoted, Some(Finding::Better)) => 0,
            (Verdict::Promoted, _) => 1,
            (Verdict::RolledBack(Why::Worse), _) => 2,
            (Verdict::RolledBack(Why::Inconclusive), _) => 3,
            (other, _) => panic!("{other:?}"),
        };
        counts[place] += 1;
    }
    counts
}

/// The median and the longest time to the end, seconds.
fn times(flows: &[u64], seeds: u64, reward: Reward<'_>) -> (f64, f64) {
    let mut took: Vec<f64> = (0..seeds).map(|s| ended(flows, s, reward).took_us as f64 / 1e6).collect();
    took.sort_by(f64::total_cmp);
    (took[took.len() / 2], took[took.len() - 1])
}

/// 1 apart from noise of this deviation, and `more` for the candidate.
fn lasting(more: f64, deviation: f64) -> impl Fn(u64, u32, f64, f64) -> Option<f64> {
    move |_, uid, _, noise| Some(1.0 + deviation * noise + if uid == TRIED { more } else { 0.0 })
}

#[test]
fn the_same_policy_on_unequal_flows_is_found_better_or_worse_as_seldom_as_stated() {
    // A lossy path and a clean one.
    let unequal = |flow, _, _, noise| Some(if flow == 1 { -3.0 + 0.5 * noise } else { 1.0 + 0.1 * noise });
    let seeds = 400;
    let [better, no_worse, worse, open] = counts(&[1, 2], seeds, &unequal);
    eprintln!(
        "two unequal flows: {better} better, {no_worse} no worse, {worse} worse, {open} open of {seeds}"
    );
    // As is stated, and 2.5 deviations of that count beyond.
    assert!(better <= 31 && worse <= 100, "{better} better, {worse} worse");
    // Eight flows: two try it, six show what changes meanwhile.
    let eight: Vec<u64> = (0..8).collect();
    let [better, _, worse, _] =
        counts(&eight, seeds, &|flow, _, _, noise| Some(-(flow as f64) + 0.2 * noise));
    assert!(better <= 31 && worse <= 100, "{better} better, {worse} worse");
}

#[test]
fn the_same_policy_in_little_noise_is_taken_in_the_end() {
    let [better, no_worse, worse, open] = counts(&[1], 100, &lasting(0.0, 0.05));
    assert!(
        better + no_worse >= 75 && open == 0,
        "{better} better, {no_worse} no worse, {worse} worse, {open} open"
    );
    let ended = ended(&[1], 1, &lasting(0.0, 0.0));
    assert_eq!((ended.verdict, ended.comparison.unwrap().pairs), (Verdict::Promoted, MAX_PAIRS));
}

#[test]
fn a_lasting_gain_is_promoted_and_a_lasting_loss_rolled_back() {
    let four = [1, 2, 3, 4];
    for flows in [&four[..1], &four] {
        let [better, no_worse, worse, open] = counts(flows, 100, &lasting(0.1, 0.3));
        let promoted = better + no_worse;
        let least = if flows.len() == 1 { 55 } else { 97 };
        assert!(promoted >= least && worse == 0, "{promoted} promoted, {worse} worse, {open} open");
        let [better, no_worse, worse, open] = counts(flows, 100, &lasting(-0.2, 0.3));
        let least = if flows.len() == 1 { 75 } else { 99 };
        assert!(worse >= least && better + no_worse == 0, "{worse} worse, {open} open");
    }
}

#[test]
fn a_large_effect_is_decided_early() {
    let ln_2 = std::f64::consts::LN_2;
    for (more, deviation) in [(0.05, 0.1), (0.1, 0.1), (0.2, 0.1), (0.1, 0.3), (ln_2, 0.1), (ln_2, 0.3)] {
        for flows in [&[1][..], &[1, 2, 3, 4]] {
            let (median_s, longest_s) = times(flows, 50, &lasting(more, deviation));
            let count = flows.len();
            eprintln!("+{more:.2} in {deviation}, {count} flows: {median_s} s, at most {longest_s} s");
        }
    }
    let (median_s, longest_s) = times(&[1], 50, &lasting(ln_2, 0.1));
    assert!(median_s <= 32.2 && longest_s <= 40.2, "twice the rate: {median_s} s, at most {longest_s} s");
    // All of it lost: in the candidate's first window.
    let ended = ended(&[1], 1, &lasting(-3.0, 0.3));
    assert_eq!((ended.verdict, ended.comparison), (Verdict::RolledBack(Why::Worse), None));
    assert!(ended.took_us <= 4_200_000, "{} us", ended.took_us);
}

/// A flow that has come down rises slowly under the candidate: to take turns would take it down again each time.
#[test]
fn a_rescue_that_is_expected_and_seen_takes_no_turns() {
    let down = |_, uid, at_s: f64, noise| {
        let rises = if uid == TRIED { (0.4 * at_s).min(3.0) } else { 0.0 };
        Some(-3.0 + rises + 0.1 * noise)
    };
    let with = |gain, reward: Reward<'_>| {
        let mut world = World::new(&[1], BATCH_US, 1);
        world.gain = gain;
        world.trial(reward)
    };
    let rescued = with(Some(1.0), &down);
    assert_eq!(rescued.verdict, Verdict::Promoted);
    assert!(rescued.took_us <= 8_400_000, "{} us", rescued.took_us);
    // Where little is expected, or nothing is seen, turns are taken.
    let (unexpected, unseen) = (with(Some(0.1), &down), with(Some(1.0), &lasting(0.1, 0.05)));
    for taken in [unexpected, unseen] {
        assert!(taken.comparison.is_some() && taken.took_us > 20_000_000, "{} us", taken.took_us);
    }
}

#[test]
fn harm_is_ended_sooner_than_help_is_taken() {
    for (size, deviation) in [(0.2, 0.3), (0.2, 0.5), (0.7, 0.5)] {
        let mean = |more| {
            let took = (0..60).map(|seed| ended(&[1], seed, &lasting(more, deviation)).took_us as f64 / 1e6);
            took.sum::<f64>() / 60.0
        };
        let (help, harm) = (mean(size), mean(-size));
        eprintln!("{size} in {deviation}: help {help:.1} s, harm {harm:.1} s");
        assert!(harm < 0.9 * help, "{size} in {deviation}: help {help:.1} s, harm {harm:.1} s");
    }
}

/// Flows that decide often have short windows; a window takes four seconds where they decide seldom.
#[test]
fn a_window_lasts_as_long_as_its_flows_need() {
    let took = |batch_us: u64| {
        // As many rows in each batch interval, whatever its length.
        let mut world = World::new(&[1], batch_us, 1);
        world.trial(&lasting(0.5, 0.05)).took_us as f64 / 1e6
    };
    let [often, seldom] = [50_000, 400_000].map(took);
    assert!(often < 0.4 * seldom && seldom <= 40.4, "{often} s, {seldom} s");
}

#[test]
fn a_change_of_the_link_decides_nothing() {
    // At any time of the trial, under both, either way.
    let stepped = |seed: u64, deviation: f64| {
        let (change_s, step) = (0.4 * seed as f64, if seed.is_multiple_of(2) { -1.0 } else { 1.0 });
        move |_, _, at_s: f64, noise: f64| Some(deviation * noise + if at_s > change_s { step } else { 0.0 })
    };
    let decided = |seed: u64, deviation: f64| {
        let finding = ended(&[1], seed, &stepped(seed, deviation)).comparison.map(|c| c.finding);
        matches!(finding, Some(Finding::Better | Finding::Worse))
    };
    for seed in 0..120 {
        assert!(!decided(seed, 0.0), "by the change at {} s alone", 0.4 * seed as f64);
    }
    // Of noise there may be 5 % and 20 %.
    let by_chance = (0..120).filter(|seed| decided(*seed, 0.1)).count();
    assert!(by_chance <= 40, "{by_chance} of 120");
}

#[test]
fn a_drift_decides_nothing() {
    for (per_s, deviation) in [(0.01, 0.0), (-0.01, 0.0), (0.01, 0.05), (-0.01, 0.05), (0.1, 0.0)] {
        let drift = move |_, _, at_s: f64, noise| Some(per_s * at_s + deviation * noise);
        let seeds = 60;
        let [better, _, worse, _] = counts(&[1], seeds, &drift);
        // None is due to the drift: of noise there may be as many as is stated.
        let (help, harm) = if deviation > 0.0 { (8, 20) } else { (0, 0) };
        assert!(better <= help && worse <= harm, "{per_s}/s in {deviation}: {better} better, {worse} worse");
    }
}

/// A drop that all flows share, at the same place of each pair, is taken off where others show it.
#[test]
fn what_others_feel_too_is_taken_off() {
    let flows: Vec<u64> = (0..16).collect();
    let mut world = World::new(&flows, BATCH_US, 1);
    // As bad luck has it, each window of the candidate is in a bad time.
    let mut bad = false;
    for _ in 0..10 {
        world.batch(0, &|_, _, _, _| Some(1.0));
    }
    world.propose();
    world.decisions();
    let end = loop {
        let share = world.fake.slots[&3].canary_share;
        bad = if world.fake.slots[&3].canary.is_some() { share > 0 } else { bad };
        world.batch(0, &move |_, _, _, noise| Some(if bad { -1.0 } else { 1.0 } + 0.02 * noise));
        if let [end] = &world.decisions()[..] {
            break end.clone();
        }
    };
    let comparison = end.comparison.unwrap();
    assert!(comparison.controls >= 8 && comparison.flows >= 2, "{comparison:?}");
    assert!(comparison.difference.abs() < 0.05 && comparison.canary_mean < -0.9, "{comparison:?}");
    assert_eq!(end.verdict, Verdict::Promoted);
}

#[test]
fn idle_flows_are_neither_canaries_nor_counted() {
    // Only the last of forty has anything to send.
    let flows: Vec<u64> = (0..40).collect();
    for busy in [0, 17, 39] {
        let reward = |flow, uid, _, noise| {
            (flow == busy).then_some(0.05 * noise + if uid == TRIED { 0.5 } else { 0.0 })
        };
        let ended = ended(&flows, busy, &reward);
        let comparison = ended.comparison.unwrap();
        assert_eq!((ended.verdict, comparison.flows, comparison.controls), (Verdict::Promoted, 1, 0));
        assert!((comparison.difference - 0.5).abs() < 0.1, "{comparison:?}");
    }
}

#[test]
fn rows_of_a_whole_second_reach_every_look() {
    for batch_us in [100_000, 300_000, 700_000, 1_000_000] {
        let mut world = World::new(&[1], batch_us, 1);
        let same = world.trial(&lasting(0.0, 0.0));
        assert_eq!((same.verdict, same.comparison.unwrap().pairs), (Verdict::Promoted, MAX_PAIRS));
        assert!(same.took_us < PushRules::default().longest_trial_us(batch_us), "with pairs to spare");
    }
    assert_eq!(PushRules::default().longest_trial_us(200_000), 136_000_000);
    assert_eq!(PushRules::default().longest_trial_us(1_000_000), 170_000_000);
}

/// With the flows that there were, with the only one, and with none from the start; nothing but the core's own clock
/// moves it.
#[test]
fn a_trial_without_rows_ends_in_its_time() {
    let longest_us = PushRules::default().longest_trial_us(BATCH_US);
    for count in [8, 1, 0] {
        let mut world = World::new(&(0..count).collect::<Vec<u64>>(), BATCH_US, 1);
        world.propose();
        assert_eq!(world.fake.slots[&3].canary, Some(SnapshotUid(TRIED)), "{count} flows");
        world.fake.listed.clear();
        world.turn((0..count).map(|f| Event::Closed { flow: FlowId(f) }).collect());
        assert_eq!(world.core.flows().count(), 0);
        while world.fake.slots[&3].canary.is_some() {
            assert!(world.now_us <= longest_us, "{count} flows: still on trial at {}", world.now_us);
            world.now_us = world.core.next_tick_us().unwrap();
            world.turn(vec![]);
        }
        assert_eq!(world.decisions().last().unwrap().verdict, Verdict::RolledBack(Why::Inconclusive));
        assert_eq!(world.fake.slots[&3].active, Some(SnapshotUid(SHIPPED)));
        assert!(world.core.slots().next().unwrap().canary.is_none());
    }
}

#[test]
fn a_datapath_that_goes_ends_what_was_on_trial_or_on_its_way() {
    let mut world = World::new(&[1], BATCH_US, 1);
    world.propose();
    world.decisions();
    world.core.detach(DP);
    let verdicts: Vec<Verdict> = world.decisions().into_iter().map(|d| d.verdict).collect();
    assert_eq!(verdicts, [Verdict::RolledBack(Why::Gone)]);
    // It was not carried out yet.
    let mut world = World::new(&[1], BATCH_US, 1);
    assert!(world.core.propose("a", 3, &candidate(9), 0));
    world.core.detach(DP);
    let verdicts: Vec<Verdict> = world.decisions().into_iter().map(|d| d.verdict).collect();
    assert_eq!(verdicts, [Verdict::NoSlot]);
}

#[test]
fn pinned_flows_try_nothing() {
    let catalog = Catalog::new(vec![Arc::new(learned("a")) as Arc<dyn Algorithm>], 10).unwrap();
    let push = PushRules { pin: true, ..PushRules::default() };
    let core = Core::new(catalog, Rules::all("a"), Config { push, ..Config::default() }).unwrap();
    let mut world = World::new(&[], BATCH_US, 1);
    world.core = core;
    world.fake = Fake { policies: Some(0), ..Fake::default() };
    world.core.attach(DP, world.fake.capabilities(), 0).unwrap();
    world.turn(vec![created(1)]);
    world.propose();
    let forced = Origin::Operator { share: None, force: true };
    world.core.propose("a", 3, &Candidate { origin: forced, ..candidate(9) }, 0);
    world.turn(vec![]);
    let verdicts: Vec<Verdict> = world.decisions().into_iter().map(|d| d.verdict).collect();
    assert_eq!(verdicts, [Verdict::Pinned, Verdict::Pushed]);
}

/// Flows are on both sides of each trial: exactly one decision ends it, and it is told by the numbers of its last look.
#[test]
fn windows_alternate_in_balanced_blocks() {
    let mut world = World::new(&[1], BATCH_US, 1);
    for _ in 0..10 {
        world.batch(0, &lasting(0.0, 0.0));
    }
    world.propose();
    let mut windows = Vec::new();
    while world.fake.slots[&3].canary.is_some() {
        windows.push(world.fake.slots[&3].canary_share > 0);
        (0..20).for_each(|_| world.batch(0, &lasting(0.0, 0.0)));
    }
    assert_eq!(windows.drain(..2).collect::<Vec<bool>>(), [true; 2], "the candidate leads");
    assert_eq!(windows.len(), 2 * MAX_PAIRS as usize);
    for block in windows.chunks(4) {
        assert!(block[0] == block[3] && block[1] == block[2] && block[0] != block[1], "{windows:?}");
    }
    let outer = windows.chunks(4).filter(|block| block[0]).count();
    assert!((1..6).contains(&outer), "both orders: {windows:?}");
}

/// Flows that are judged once, when they have ended, and of which none is there in two windows.
#[test]
fn short_flows_are_compared_all_together() {
    const FLOWS: u64 = 50;
    for (more, verdict) in [(0.6, Verdict::Promoted), (-0.6, Verdict::RolledBack(Why::Worse))] {
        for seed in 0..8 {
            let mut world = World::under(learned_from("a", Some(0)), &[], BATCH_US, seed);
            (0..10).for_each(|_| world.batch_of_short_flows(FLOWS, more));
            world.propose();
            let first = world.decisions();
            assert!(matches!(first[..], [Decision { verdict: Verdict::Trial { .. }, .. }]), "{first:?}");
            let batches = PushRules::default().longest_trial_us(BATCH_US) / BATCH_US;
            let ended = (0..=batches).find_map(|_| {
                world.batch_of_short_flows(FLOWS, more);
                world.decisions().pop()
            });
            let ended = ended.expect("it ends");
            assert_eq!(ended.verdict, verdict, "{seed}: {ended:?}");
            let comparison = ended.comparison.unwrap();
            assert!((comparison.difference - more).abs() < 0.3, "{comparison:?}");
        }
    }
}
