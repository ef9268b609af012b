//! Datapaths, agents that come and go, a learner, and what goes wrong, in virtual time.

use crate::algorithms::{self, NAMES, PANIC, SLOT, SNAPSHOTS};
use crate::ledger::Ledger;
use crate::link::Link;
use crate::place::{Place, Traits, Weather};
use crate::say;
use crate::tools::{Random, Trace};
use ccplane_contract::{Datapath, Event, FlowId, FlowStats, Mode};
use ccplane_core::{
    Candidate, Catalog, Config, Core, DatapathId, Evidence, FlowView, NATIVE, NativeReason, Origin,
    PushRules, Rule, Rules, TableSizes, drive,
};
use ccplane_infer::Level;
use std::collections::BTreeMap;

/// Time after the last fault until every flow runs what its rule says, microseconds.
pub const SETTLE_US: u64 = 6_000_000;
/// Time without ACKs, until all that was asked for has arrived, microseconds.
const QUIET_US: u64 = 1_500_000;
/// Batches of rows end with the first turn after they are due, and turns are as far apart as batches.
const SLACK: u64 = 2;
/// Snapshots that are offered before a look at whether trials end.
const OFFERS: u32 = 4;
/// Turns in which an agent that stops hands its flows over.
const HAND_OVER_TURNS: u32 = 40;
const MAX_PLACES: usize = 3;
/// Flows of one datapath that are opened at most.
const MAX_FLOWS: usize = 24;

/// A datapath and the way to it.
struct Station {
    place: Place,
    link: Option<Link>,
}

impl Station {
    /// One ACK of each flow.
    fn ack(&mut self) {
        self.place.flow_ids().into_iter().for_each(|flow| self.place.ack(flow));
    }
}

/// An agent: a core, and what it has decided.
struct Agent {
    core: Core,
    ledger: Ledger,
    /// The agent takes no turns before this time, microseconds.
    hangs_until_us: u64,
    /// Its learner takes no rows before then.
    learner_hangs_until_us: u64,
    /// The algorithm that each flow was given when it was taken in.
    given: BTreeMap<(DatapathId, FlowId), &'static str>,
}

/// One run from one seed.
pub struct World {
    random: Random,
    trace: Trace,
    now_us: u64,
    /// The longest step, microseconds.
    step_us: u64,
    weather: Weather,
    /// No flow has anything to send.
    quiet: bool,
    config: Config,
    stations: Vec<Station>,
    next_datapath: u32,
    agent: Option<Agent>,
    /// When the next agent starts.
    away_until_us: u64,
    first_uid: u32,
    /// The most that a core may hold by its limits.
    most: TableSizes,
    /// Counts of what happened, for a look at whether a run tries what it should.
    pub tally: BTreeMap<&'static str, u64>,
}

impl World {
    pub fn new(seed: u64, trace: Trace) -> World {
        let mut random = Random::new(seed);
        let weather = Weather {
            refuse: random.pick(&[0, 0, 5, 100]).unwrap_or(0),
            busy: random.pick(&[0, 100, 500]).unwrap_or(0),
            lose: random.pick(&[0, 0, 20, 200]).unwrap_or(0),
            strange: random.pick(&[0, 0, 10, 700]).unwrap_or(0),
            garbage: random.pick(&[0, 20, 300]).unwrap_or(0),
        };
        let push = PushRules { settle_us: 400_000, pin: random.chance(50), ..PushRules::default() };
        let config = Config {
            max_flows: random.pick(&[4, 12, 1000]).unwrap_or(4),
            batch_us: random.pick(&[200_000, 400_000]).unwrap_or(200_000),
            push,
            ..Config::default()
        };
        let first_uid = if random.chance(50) { u32::MAX - 20 } else { 1 };
        let step_us = random.pick(&[20_000, 60_000, 200_000]).unwrap_or(60_000);
        let now_us = random.below(1 << 40);
        trace.at(now_us);
        let mut world = World {
            random,
            trace,
            now_us,
            step_us,
            weather,
            quiet: false,
            config,
            stations: Vec::new(),
            next_datapath: 1,
            agent: None,
            away_until_us: now_us,
            first_uid,
            most: TableSizes::default(),
            tally: BTreeMap::new(),
        };
        (0..world.random.between(1, MAX_PLACES as u64)).for_each(|_| world.add_station(None));
        world
    }

    fn count(&mut self, what: &'static str) {
        *self.tally.entry(what).or_default() += 1;
    }

    /// Faults of all kinds, then none; then every flow runs what its rule says; then all flows end, and nothing is left.
    pub fn run(&mut self) {
        let permille = self.random.pick(&[1000, 300, 30]).unwrap_or(1000);
        for _ in 0..self.random.between(100, 400) * (1000 / permille).min(5) {
            if self.random.chance(permille) {
                self.fault();
            }
            self.step();
        }
        self.weather = Weather::default();
        if self.random.chance(50) {
            // Long enough for every trial.
            self.step_us = 200_000;
            self.pass(SETTLE_US);
            (0..OFFERS).for_each(|_| self.offer());
            let longest_us = self.config.push.longest_trial_us(self.config.batch_us);
            self.pass(SLACK * longest_us + SETTLE_US);
            self.check_no_trial();
        }
        self.pass(SETTLE_US);
        self.quiet = true;
        self.pass(QUIET_US);
        self.stations.iter_mut().for_each(Station::ack);
        self.check_alive();
        self.step_us = 200_000;
        for n in 0..self.stations.len() {
            let flows = self.stations[n].place.flow_ids();
            flows.into_iter().for_each(|flow| self.stations[n].place.close(flow));
        }
        // A trial keeps what flows were worth for two windows.
        self.pass(SLACK * SETTLE_US);
        self.check_empty();
    }

    /// Time passes without faults.
    fn pass(&mut self, us: u64) {
        let until_us = self.now_us + us;
        while self.now_us < until_us {
            self.step();
        }
    }

    fn step(&mut self) {
        let us = self.random.between(1000, self.step_us);
        self.now_us += us;
        self.trace.at(self.now_us);
        for station in &mut self.stations {
            station.place.pass(us);
            station.place.weather = self.weather;
            if !self.quiet {
                station.ack();
            }
        }
        if self.agent.is_none() && self.now_us >= self.away_until_us {
            self.start_agent();
        }
        self.turn();
        self.check();
    }

    // ---- Datapaths and flows

    fn add_station(&mut self, id: Option<DatapathId>) {
        let random = &mut self.random;
        let id = id.unwrap_or_else(|| {
            self.next_datapath += 1;
            DatapathId(self.next_datapath)
        });
        let traits = Traits {
            direct: random.chance(600),
            policy: random.chance(900),
            max_flows: random.pick(&[3, 16, 100]).unwrap_or(3),
            max_programs: random.pick(&[3, 10, 64]).unwrap_or(3),
            event_capacity: random.pick(&[8, 64, 4096]).unwrap_or(8),
            refuses: random.chance(100).then(|| random.below(5) as u32),
            refuses_slot: random.chance(50),
        };
        let place = Place::new(id, traits, self.now_us, random.fork(), self.trace.clone());
        self.stations.push(Station { place, link: None });
        self.attach(self.stations.len() - 1);
    }

    /// The agent, if there is one, is told of a datapath.
    fn attach(&mut self, n: usize) {
        let (Some(agent), Some(Station { place, link })) = (&mut self.agent, self.stations.get_mut(n)) else {
            return;
        };
        place.new_agent();
        agent.core.attach(place.id, place.capabilities(), self.now_us).expect("it is attached once");
        assert!(
            agent.core.attach(place.id, place.capabilities(), self.now_us).is_err(),
            "it is attached twice"
        );
        agent.ledger.attached(place.id);
        if !place.traits.direct {
            *link = Some(Link::new(place, self.random.fork(), self.trace.clone()));
        } else if self.random.chance(500) {
            for FlowStats { flow, info, .. } in place.stats() {
                let event = Event::Created { flow, info };
                place.note_event(&event);
                agent.core.event(place.id, event, self.now_us);
            }
        } else {
            let event = Event::Dropped { count: 1 };
            place.note_event(&event);
            agent.core.event(place.id, event, self.now_us);
        }
    }

    fn restart_datapath(&mut self) {
        let n = self.random.below(self.stations.len() as u64) as usize;
        let id = self.stations.remove(n).place.id;
        say!(self.trace, "datapath {} dies", id.0);
        self.count("datapath dies");
        if let Some(agent) = &mut self.agent {
            agent.core.detach(id);
            self.collect();
        }
        if let Some(agent) = &mut self.agent {
            agent.ledger.detached(id);
            agent.given.retain(|(at, _), _| *at != id);
        }
        let same = self.random.chance(500).then_some(id);
        self.add_station(same);
    }

    fn flows_come_and_go(&mut self) {
        let n = self.random.below(self.stations.len() as u64) as usize;
        let burst = if self.random.chance(100) { MAX_FLOWS as u64 } else { 1 };
        let place = &mut self.stations[n].place;
        let live = place.flow_ids();
        if self.random.chance(600) {
            for _ in 0..burst {
                if place.flow_ids().len() < MAX_FLOWS {
                    place.open(self.random.below(32) as u16);
                }
            }
        } else {
            for _ in 0..burst {
                self.random.pick(&live).into_iter().for_each(|flow| place.close(flow));
            }
        }
    }

    // ---- Agents

    fn start_agent(&mut self) {
        // Agents that start within the same second count from the same number.
        if !self.random.chance(200) {
            self.first_uid = self.first_uid.wrapping_add(1000);
        }
        let config = Config { first_deployment: self.first_uid, ..self.config.clone() };
        let catalog = Catalog::new(algorithms::all(), self.first_uid).expect("they are sound");
        let core = Core::new(catalog, self.random_rules(), config).expect("the rules are sound");
        say!(self.trace, "agent starts, counting from {}", self.first_uid);
        self.count("agent starts");
        self.agent = Some(Agent {
            core,
            ledger: Ledger::default(),
            hangs_until_us: 0,
            learner_hangs_until_us: 0,
            given: BTreeMap::new(),
        });
        (0..self.stations.len()).for_each(|n| self.attach(n));
    }

    fn random_rules(&mut self) -> Rules {
        let to_ports = |algorithm: &str, ports| Rule { remote_port: Some(ports), ..Rule::any(algorithm) };
        match self.random.below(6) {
            0 => Rules::all(NATIVE),
            1 => Rules::all("plain"),
            2 => Rules::all("rude"),
            3 => Rules::all("learned"),
            _ => Rules {
                rules: vec![to_ports("plain", 0..=7), to_ports("rude", 8..=11), to_ports(NATIVE, 12..=15)],
                default: "learned".to_owned(),
            },
        }
    }

    fn kill_agent(&mut self) {
        let Some(_) = self.agent.take() else { return };
        say!(self.trace, "agent is killed");
        self.count("agent is killed");
        self.gone();
    }

    /// The agent stops as it should.
    fn stop_agent(&mut self) {
        let Some(agent) = &mut self.agent else { return };
        *self.tally.entry("agent stops").or_default() += 1;
        say!(self.trace, "agent stops");
        agent.hangs_until_us = 0;
        agent.core.shutdown();
        for _ in 0..HAND_OVER_TURNS {
            self.now_us += 100_000;
            self.trace.at(self.now_us);
            self.stations.iter_mut().for_each(|s| s.place.pass(100_000));
            self.turn();
        }
        let Some(agent) = self.agent.take() else { return };
        assert!(
            agent.core.is_idle(),
            "an agent that stops has left something undone: {:?}",
            agent.core.table_sizes()
        );
        let known = |id, flow| agent.core.flow(id, flow).is_some();
        for Station { place, .. } in self.stations.iter_mut().filter(|s| s.place.traits.direct) {
            let id = place.id;
            let steered = place.stats().into_iter().find(|s| s.program.is_some() && known(id, s.flow));
            assert_eq!(steered, None, "an agent that stops leaves a program on a flow");
        }
        self.gone();
    }

    fn gone(&mut self) {
        for Station { place, link } in &mut self.stations {
            if let Some(mut link) = link.take() {
                link.orphaned(place);
            }
            // What the next agent does with a slot is its own.
            place.rolled_back.clear();
        }
        self.away_until_us = self.now_us + self.random.between(1, 3_000_000);
    }

    fn turn(&mut self) {
        let now_us = self.now_us;
        for Station { place, link } in &mut self.stations {
            if let Some(link) = link {
                link.turn_place(place, now_us);
            }
        }
        let Some(agent) = self.agent.as_mut().filter(|a| now_us >= a.hangs_until_us) else { return };
        for Station { place, link } in &mut self.stations {
            match link {
                Some(link) => link.turn_core(&mut agent.core, place, now_us),
                None => drop(drive(&mut agent.core, place.id, place, now_us)),
            }
        }
        if now_us >= agent.learner_hangs_until_us {
            let rows: usize = agent.core.take_rows().iter().map(|b| b.rows.len()).sum();
            *self.tally.entry("rows").or_default() += rows as u64;
        }
        self.collect();
    }

    /// Takes what was decided.
    fn collect(&mut self) {
        let Some(agent) = &mut self.agent else { return };
        for decision in agent.core.take_decisions() {
            say!(self.trace, "decided on {:?}: {} ({:?})", decision.uid, decision.verdict, decision.origin);
            *self.tally.entry(decision.verdict.name()).or_default() += 1;
            if let Some((id, uid)) = agent.ledger.decided(&decision)
                && let Some(station) = self.stations.iter_mut().find(|s| s.place.id == id)
            {
                station.place.rolled_back.insert(uid);
            }
        }
    }

    // ---- What goes wrong

    fn fault(&mut self) {
        match self.random.below(1000) {
            0..250 => self.flows_come_and_go(),
            250..300 => self.offer(),
            300..310 => self.withdraw(),
            310..315 => self.roll_back(),
            315..320 => self.kill_agent(),
            320..323 => self.stop_agent(),
            323..326 => self.restart_datapath(),
            326..331 => self.hang(),
            331..333 => self.jump(),
            333..338 => self.set_rules(),
            338..340 if self.stations.len() < MAX_PLACES => self.add_station(None),
            _ => {}
        }
    }

    fn hang(&mut self) {
        let us = self.random.between(1, 5_000_000);
        let learner = self.random.chance(500);
        say!(self.trace, "{} hangs for {us} us", if learner { "learner" } else { "agent" });
        let until_us = self.now_us + us;
        let Some(agent) = &mut self.agent else { return };
        if learner {
            agent.learner_hangs_until_us = until_us;
        } else {
            agent.hangs_until_us = until_us;
        }
        self.count("hang");
    }

    fn jump(&mut self) {
        self.count("clock jumps");
        let longest = 1 << self.random.between(10, 40);
        let us = self.random.below(longest);
        if self.random.chance(500) {
            // The machine slept: everyone's clock has gone on.
            say!(self.trace, "everyone's clock jumps by {us} us");
            self.now_us += us;
            self.stations.iter_mut().for_each(|s| s.place.pass(us));
        } else {
            let n = self.random.below(self.stations.len() as u64) as usize;
            let back = self.random.chance(500);
            self.stations[n].place.jump(if back { -(us as i64) } else { us as i64 });
        }
    }

    fn set_rules(&mut self) {
        let rules = self.random_rules();
        let Some(agent) = &mut self.agent else { return };
        say!(self.trace, "rules: {rules:?}");
        agent.core.set_rules(rules).expect("they are sound");
        let before = agent.core.rules().clone();
        assert!(agent.core.set_rules(Rules::all("none")).is_err());
        assert_eq!(*agent.core.rules(), before);
    }

    fn offer(&mut self) {
        let random = &mut self.random;
        let Some(snapshot) = random.pick(&[0, 1, 2, 3, 4, 5, 6, 7]).map(|n: usize| SNAPSHOTS[n].clone())
        else {
            return;
        };
        let numbers = [0.2, 0.2, 0.2, 0.001, f64::NAN, f64::INFINITY, -1.0];
        let evidence = Evidence {
            converged: random.chance(900),
            stability: 0.01,
            fidelity_min: 0.0,
            fidelity_mean: random.pick(&numbers).unwrap_or(0.2),
            safe: random.chance(900),
            quantisation_error: 0.001,
            gain: random.pick(&[None, None, Some(1.0), Some(0.0), Some(f64::NAN)]).flatten(),
            states: random.next(),
        };
        let share = random.pick(&[None, Some(0.5), Some(f64::NAN), Some(-3.0), Some(9.0)]).flatten();
        let by_hand = Origin::Operator { share, force: random.chance(300) };
        let origin = if random.chance(700) { Origin::Learned(evidence) } else { by_hand };
        let slot = if random.chance(950) { SLOT } else { SLOT + 1 };
        let Some(agent) = &mut self.agent else { return };
        let has = |s: &ccplane_core::SlotView<'_>| s.algorithm == "learned" && s.slot == slot;
        let to: Vec<DatapathId> = agent.core.slots().filter(has).map(|s| s.datapath).collect();
        say!(self.trace, "offer of {} to slot {slot} of {to:?}: {origin:?}", snapshot.hash());
        to.iter().for_each(|id| agent.ledger.offered(*id));
        let found = agent.core.propose("learned", slot, &Candidate { snapshot, origin }, self.now_us);
        assert_eq!(found, !to.is_empty());
        self.collect();
    }

    fn withdraw(&mut self) {
        let Some(snapshot) = self.random.pick(&[1usize, 3, 5]).map(|n| SNAPSHOTS[n].hash()) else { return };
        say!(self.trace, "{snapshot} is withdrawn");
        if let Some(agent) = &mut self.agent {
            agent.core.withdraw("learned", SLOT, snapshot);
        }
    }

    fn roll_back(&mut self) {
        let Some(agent) = &mut self.agent else { return };
        let done = agent.core.roll_back(SLOT);
        say!(self.trace, "roll back by hand: {done:?}");
    }

    // ---- What holds

    /// Checks the invariants that hold after every step.
    fn check(&mut self) {
        self.stations.iter_mut().for_each(|s| s.place.check());
        let Some(agent) = &mut self.agent else { return };
        let core = &agent.core;
        let counters = core.counters();
        let live = core.flows().count();
        assert_eq!(counters.flows_created, counters.flows_closed + live as u64, "flows are counted");
        assert!(live <= self.config.max_flows, "more flows than allowed");
        for flow in core.flows() {
            let key = (flow.datapath(), flow.flow());
            assert!(core.datapaths().any(|(id, _)| id == key.0), "a flow without a datapath");
            assert!(flow.program().is_some() != flow.native().is_some(), "{key:?}: one program, or native");
            assert!(flow.program().is_none_or(|p| p.algorithm() == flow.algorithm()), "another's program");
            let chosen = NAMES
                .into_iter()
                .find(|name| core.rules().choose(flow.info(), None) == *name)
                .unwrap_or(NATIVE);
            let given = *agent.given.entry(key).or_insert(chosen);
            assert_eq!(flow.algorithm(), given, "{key:?} runs what the rules said when it was taken in");
        }
        agent.given.retain(|(id, flow), _| core.flow(*id, *flow).is_some());
        let held = core.table_sizes();
        // Of each flow a slot keeps when it was last worth something, whether it tripped, and two sums of a trial.
        assert!(held.slot_flows <= 4 * live + 2 * 64 * self.stations.len(), "{held:?} of {live} flows");
        assert!(held.rows <= ccplane_core::MAX_ROWS * self.stations.len(), "{held:?}");
        self.most.queued = self.most.queued.max(held.queued);
    }

    /// Without faults all is as it should be.
    fn check_alive(&mut self) {
        let agent = self.agent.as_mut().expect("one has started");
        for Station { place, link } in &mut self.stations {
            let id = place.id;
            assert!(!place.is_silent(), "datapath {}: the agent is silent", id.0);
            assert!(agent.ledger.is_settled(id), "datapath {}: an offer has no decision", id.0);
            let stats = place.stats();
            let known = agent.core.flows().filter(|f| f.datapath() == id).count();
            let listed = stats.iter().filter(|s| agent.core.flow(id, s.flow).is_some()).count();
            assert_eq!(known, listed, "datapath {}: flows that are no more", id.0);
            for stats in &stats {
                match agent.core.flow(id, stats.flow) {
                    Some(flow) => check_flow(place, stats, flow),
                    None => {
                        assert!(agent.core.counters().flows_refused > 0, "{:?} is not known", stats.flow);
                        assert_eq!(stats.program, None, "{:?} is refused, and steered", stats.flow);
                    }
                }
            }
            let theirs = place.slots().into_iter().map(|s| (s.active, s.canary, s.last_good));
            let uid = |d: Option<&ccplane_core::Deployment>| d.map(|d| d.uid);
            let ours = agent.core.slots().filter(|s| s.datapath == id);
            let ours: Vec<_> = ours.map(|s| (uid(s.active), uid(s.canary), uid(s.last_good))).collect();
            let theirs: Vec<_> = theirs.filter(|_| !ours.is_empty()).collect();
            let moving = link.as_ref().is_some_and(Link::moves_snapshots);
            let slot_refused = place.refused.slots.contains(&SLOT);
            assert!(
                ours == theirs || slot_refused || moving,
                "datapath {}: slots {ours:?} and {theirs:?}",
                id.0
            );
        }
    }

    fn check_no_trial(&mut self) {
        let agent = self.agent.as_ref().expect("one has started");
        let open = self.stations.iter().find(|s| agent.ledger.has_trial(s.place.id));
        assert!(open.is_none(), "a trial has no end");
    }

    /// Without flows, nothing of any is left.
    fn check_empty(&mut self) {
        let direct = self.stations.iter().all(|s| s.place.traits.direct);
        let beats: usize = self.stations.iter().filter_map(|s| Some(s.link.as_ref()?.pending())).sum();
        let agent = self.agent.as_mut().expect("one has started");
        agent.core.take_rows();
        let held = agent.core.table_sizes();
        let expected = TableSizes {
            queued: held.queued.min(beats),
            unanswered: if direct { 0 } else { beats },
            ..TableSizes::default()
        };
        assert_eq!(held, expected, "something is left of flows that have ended");
    }
}

/// A flow runs what its rule says, or natively for a reason that its datapath has given.
fn check_flow(place: &Place, stats: &FlowStats, flow: FlowView<'_>) {
    let id = stats.flow;
    let Some(program) = flow.program() else {
        let reason = flow.native().expect("it has no program");
        assert_eq!(stats.program, None, "{id:?} is native ({reason}), and has a program");
        let refused = &place.refused;
        let sound = match reason {
            NativeReason::Rule => flow.algorithm() == NATIVE,
            NativeReason::NoProgram => flow.algorithm() == "rude",
            NativeReason::Panicked(message) => flow.algorithm() == "rude" && message.contains(PANIC),
            NativeReason::InstallRefused { .. } => !refused.installs.is_empty(),
            NativeReason::NoPolicies { .. } => !place.traits.policy,
            NativeReason::SlotRefused { slot, .. } => refused.slots.contains(slot),
            NativeReason::SetRefused(_) => refused.sets.contains(&id),
            NativeReason::Stopping | NativeReason::Hosted(_) => false,
        };
        assert!(sound, "{id:?} is native for no reason: {reason}");
        return;
    };
    assert_eq!(stats.program, Some(program.uid()), "{id:?} runs another program than its algorithm has set");
    let fallen = stats.policy.is_some_and(|p| p.level == Level::Native);
    let expected = if fallen { Mode::NativePolicy } else { Mode::Program };
    assert_eq!(stats.mode, expected, "{id:?}: {:?}", stats.policy);
}
