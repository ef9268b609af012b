//! A datapath: the engine of those in user space, its flows' ACKs, and what goes wrong with it.

use crate::algorithms::SLOT;
use crate::say;
use crate::tools::{Random, Trace};
use ccplane_contract::{
    Capabilities, Datapath, DatapathError, Event, Field, FlowId, FlowStats, Mode, Part, ProgramUid,
    SlotStats, SnapshotUid,
};
use ccplane_core::{Command, DatapathId};
use ccplane_engine::{Ack, Engine, EngineConfig, FlowEngine, Handle, Sampled, engine_with_clock};
use ccplane_infer::{Shape, image, spread};
use ccplane_program::ir::{Prim, Program};
use ccplane_program::vm::Prims;
use std::collections::{BTreeMap, BTreeSet};
use std::io::ErrorKind;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// Silence of the agent after which flows run natively, microseconds.
pub const HEARTBEAT_TIMEOUT_US: u64 = 500_000;

/// The chance of each fault, per thousand.
#[derive(Clone, Copy, Default)]
pub struct Weather {
    /// A command is refused for no lasting reason.
    pub refuse: u64,
    /// A slot's buffers are all in use.
    pub busy: u64,
    /// A command is lost, or its result is.
    pub lose: u64,
    /// A flow's ACK is far out of what its policy was made for.
    pub strange: u64,
    /// An event is garbage.
    pub garbage: u64,
}

/// The settings of a datapath, fixed while it lives.
#[derive(Clone, Copy, Debug)]
pub struct Traits {
    /// Results come at once; else over a [`Link`](crate::link::Link).
    pub direct: bool,
    pub policy: bool,
    pub max_flows: usize,
    pub max_programs: usize,
    pub event_capacity: usize,
    /// Refuses every program whose number has this remainder by 5.
    pub refuses: Option<u32>,
    pub refuses_slot: bool,
}

/// Commands of the present agent that the datapath refused.
#[derive(Default)]
pub struct Refused {
    pub installs: BTreeSet<ProgramUid>,
    pub sets: BTreeSet<FlowId>,
    pub slots: BTreeSet<u8>,
}

/// A program that an agent installed.
struct Installed {
    program: Program,
    /// By the present agent.
    wanted: bool,
}

pub struct Place {
    pub id: DatapathId,
    pub traits: Traits,
    pub weather: Weather,
    pub refused: Refused,
    /// Deployments that the agent has said are rolled back, and that nobody pushed since.
    pub rolled_back: BTreeSet<SnapshotUid>,
    pub pushes: u64,
    handle: Handle,
    engine: Engine,
    clock: Arc<AtomicU64>,
    flows: BTreeMap<FlowId, FlowEngine>,
    programs: BTreeMap<ProgramUid, Installed>,
    /// Flows whose start, and whose end, the present agent was told of.
    told: BTreeSet<FlowId>,
    ended: BTreeSet<FlowId>,
    /// Events were dropped, so that the next list of flows tells of starts and ends.
    listing: bool,
    random: Random,
    trace: Trace,
}

impl Place {
    pub fn new(id: DatapathId, traits: Traits, now_us: u64, mut random: Random, trace: Trace) -> Place {
        let config = EngineConfig {
            max_flows: traits.max_flows,
            max_programs: traits.max_programs,
            event_capacity: traits.event_capacity,
            heartbeat_timeout_us: HEARTBEAT_TIMEOUT_US,
            ..EngineConfig::new("simulated")
        };
        let clock = Arc::new(AtomicU64::new(now_us + random.below(1 << 40)));
        let read = Arc::clone(&clock);
        let (engine, handle) =
            engine_with_clock(config, Arc::new(|| ()), Arc::new(move || read.load(Relaxed)));
        say!(trace, "datapath {} starts: {traits:?}", id.0);
        Place {
            id,
            traits,
            weather: Weather::default(),
            refused: Refused::default(),
            rolled_back: BTreeSet::new(),
            pushes: 0,
            handle,
            engine,
            clock,
            flows: BTreeMap::new(),
            programs: BTreeMap::new(),
            told: BTreeSet::new(),
            ended: BTreeSet::new(),
            listing: false,
            random,
            trace,
        }
    }

    /// Another agent begins, which knows nothing.
    pub fn new_agent(&mut self) {
        self.refused = Refused::default();
        self.programs.values_mut().for_each(|p| p.wanted = false);
        self.told.clear();
        self.ended.clear();
        self.listing = false;
    }

    /// Time passes by its own clock.
    pub fn pass(&mut self, us: u64) {
        self.clock.fetch_add(us, Relaxed);
    }

    /// Its clock is set to another time.
    pub fn jump(&mut self, us: i64) {
        say!(self.trace, "datapath {}: clock jumps by {us} us", self.id.0);
        self.clock.store(self.clock.load(Relaxed).saturating_add_signed(us), Relaxed);
    }

    pub fn open(&mut self, port: u16) {
        let info = crate::common::info(port);
        let flow = self.engine.flow(info, self.clock.load(Relaxed));
        say!(self.trace, "datapath {}: flow {} to port {port} starts", self.id.0, flow.id().0);
        self.flows.insert(flow.id(), flow);
    }

    pub fn close(&mut self, flow: FlowId) {
        say!(self.trace, "datapath {}: flow {} ends", self.id.0, flow.0);
        self.flows.remove(&flow);
    }

    pub fn flow_ids(&self) -> Vec<FlowId> {
        self.flows.keys().copied().collect()
    }

    /// One ACK of a flow. How much it acknowledges is how well the last decision did, where a policy decides.
    pub fn ack(&mut self, id: FlowId) {
        let Some(flow) = self.flows.get_mut(&id) else { return };
        let noise = self.random.below(200);
        let decided = flow.last_decision().snapshot.map_or(0, |uid| spread(u64::from(uid.0)) % 8);
        let mut bytes = 5000 + 100 * decided as i64 + noise as i64;
        if self.weather.strange > 0 && self.random.chance(self.weather.strange) {
            bytes = i64::from(i32::MAX);
        }
        let mut prims = Prims::default();
        prims.set(Prim::AckNow, self.clock.load(Relaxed) as i64);
        prims.set(Prim::AckBytesAcked, bytes).set(Prim::FlowRttSampleUs, 20_000);
        flow.on_ack(&Ack {
            prims,
            packets: 4,
            new_loss_episode: false,
            timeout: false,
            window_limited: true,
            sampled: Sampled { srtt_us: 20_000, min_rtt_us: 20_000, ..Sampled::default() },
        });
    }

    /// The agent takes a command for it: of a flow that it was told of, and not told the end of.
    pub fn check_taken(&self, command: &Command) {
        let flow = match command {
            Command::SetProgram { flow, .. } | Command::Update { flow, .. } | Command::Release { flow } => {
                flow
            }
            _ => return,
        };
        assert!(self.told.contains(flow), "{command:?} for a flow that the agent was never told of");
        assert!(!self.ended.contains(flow), "{command:?} for a flow whose end the agent was told of");
    }

    /// The agent is told of an event.
    pub fn note_event(&mut self, event: &Event) {
        match event {
            Event::Report { .. } => {}
            Event::Created { flow, .. } => {
                say!(self.trace, "agent hears of flow {} of {}", flow.0, self.id.0)
            }
            other => say!(self.trace, "agent hears of {other:?} of {}", self.id.0),
        }
        match event {
            Event::Created { flow, .. } => drop(self.told.insert(*flow)),
            Event::Closed { flow } => drop(self.ended.insert(*flow)),
            Event::Report { .. } => {}
            Event::Dropped { .. } => self.listing = true,
        }
    }

    /// The agent is told which flows there are.
    pub fn note_list(&mut self, listed: &[FlowStats]) {
        self.listing = false;
        say!(self.trace, "agent hears of a list of {} flows of {}", listed.len(), self.id.0);
        let listed: BTreeSet<FlowId> = listed.iter().map(|s| s.flow).collect();
        self.ended.extend(self.told.difference(&listed));
        self.told.extend(listed);
    }

    /// Events so far, perhaps with garbage among them.
    pub fn take_events(&mut self, max: usize, events: &mut Vec<Event>) -> usize {
        let taken = self.handle.poll(max, events);
        if taken < max && self.random.chance(self.weather.garbage) {
            let garbage = self.garbage();
            say!(self.trace, "datapath {}: garbage {garbage:?}", self.id.0);
            events.push(garbage);
            return taken + 1;
        }
        taken
    }

    fn garbage(&mut self) -> Event {
        let known = self.flow_ids();
        let random = &mut self.random;
        let flow = random.pick(&known).filter(|_| random.chance(700)).unwrap_or(FlowId(random.next()));
        let program = random.pick(&self.programs.keys().copied().collect::<Vec<_>>());
        let program = program.filter(|_| random.chance(800)).unwrap_or(ProgramUid(random.next() as u32));
        let values = (0..random.below(4)).map(|_| random.next() as i64).collect();
        let seq = if random.chance(500) { random.next() as u32 } else { random.below(1000) as u32 };
        Event::Report { flow, program, seq, at_us: random.next(), values }
    }

    /// Drops programs that no agent wants and no flow runs, as the channel's end does.
    fn tidy(&mut self) {
        let handle = &mut self.handle;
        self.programs.retain(|uid, p| p.wanted || handle.remove(*uid).is_err());
    }

    /// Asserts the invariants that hold after every step.
    pub fn check(&mut self) {
        assert!(self.programs.len() <= self.traits.max_programs, "more programs than fit");
        for slot in self.handle.slots() {
            for uid in [slot.active, slot.canary].into_iter().flatten() {
                assert!(!self.rolled_back.contains(&uid), "{uid:?} decides, and was rolled back");
            }
            assert!(slot.active.is_some() || slot.canary.is_none(), "a trial against nothing");
        }
    }

    fn fails(&mut self, what: &str) -> Result<(), DatapathError> {
        let refuse = self.weather.refuse;
        if refuse > 0 && self.random.chance(refuse) {
            return Err(DatapathError::Os { what: what.to_owned(), errno: ErrorKind::OutOfMemory });
        }
        Ok(())
    }

    fn is_busy(&mut self, slot: u8) -> Result<(), DatapathError> {
        let busy = self.weather.busy;
        if busy > 0 && self.random.chance(busy) { Err(DatapathError::SlotBusy { slot }) } else { Ok(()) }
    }

    /// Notes how a command ended as far as it bears on what flows may run.
    pub fn note(&mut self, command: &Command, result: &Result<(), DatapathError>) {
        say!(self.trace, "datapath {}: {} {result:?}", self.id.0, Short(command));
        let Err(error) = result else { return };
        match command {
            Command::Install { uid, .. } => drop(self.refused.installs.insert(*uid)),
            Command::SetProgram { flow, .. } => drop(self.refused.sets.insert(*flow)),
            Command::DefineSlot { slot, .. } => drop(self.refused.slots.insert(*slot)),
            Command::Push { slot, .. } if !matches!(error, DatapathError::SlotBusy { .. }) => {
                self.refused.slots.insert(*slot);
            }
            _ => {}
        }
    }

    fn now(&mut self, command: Command, result: Result<(), DatapathError>) -> Result<(), DatapathError> {
        if self.traits.direct {
            self.check_taken(&command);
            self.note(&command, &result);
        }
        result
    }

    fn try_install(&mut self, uid: ProgramUid, program: &Program) -> Result<(), DatapathError> {
        self.fails("install")?;
        if self.traits.refuses == Some(uid.0 % 5) {
            return Err(DatapathError::Refused { at: None, reason: "not this one".to_owned() });
        }
        if let Some(there) = self.programs.get_mut(&uid)
            && !there.wanted
            && there.program == *program
        {
            there.wanted = true;
            return Ok(());
        }
        let mut installed = self.handle.install(uid, program);
        if matches!(installed, Err(DatapathError::ProgramsFull { .. })) {
            self.tidy();
            installed = self.handle.install(uid, program);
        }
        installed?;
        self.programs.insert(uid, Installed { program: program.clone(), wanted: true });
        Ok(())
    }

    /// Its flows and what they run, for the checks of a quiet end.
    pub fn stats(&mut self) -> Vec<FlowStats> {
        self.handle.flows()
    }

    /// Whether flows find their agent silent.
    pub fn is_silent(&mut self) -> bool {
        self.handle.flows().iter().any(|f| f.mode == Mode::NativeAgentSilent)
    }
}

/// A command in a few words.
struct Short<'a>(&'a Command);

impl std::fmt::Display for Short<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            Command::Install { uid, .. } => write!(f, "install {}", uid.0),
            Command::Push { slot, image, part } => {
                write!(f, "push {slot} {} {part:?}", image::u32_at(image, image::UID))
            }
            Command::DefineSlot { slot, .. } => write!(f, "define {slot}"),
            other => write!(f, "{other:?}"),
        }
    }
}

impl Datapath for Place {
    fn capabilities(&self) -> Capabilities {
        Capabilities { policy: self.traits.policy, ..self.handle.capabilities() }
    }

    fn install(&mut self, uid: ProgramUid, program: &Program) -> Result<(), DatapathError> {
        let result = self.try_install(uid, program);
        self.now(Command::Install { uid, program: Arc::new(program.clone()) }, result)
    }

    fn remove(&mut self, uid: ProgramUid) -> Result<(), DatapathError> {
        self.handle.remove(uid)
    }

    fn set_program(
        &mut self,
        flow: FlowId,
        uid: ProgramUid,
        fields: &[(Field, i64)],
    ) -> Result<(), DatapathError> {
        let result = self.fails("set").and_then(|()| self.handle.set_program(flow, uid, fields));
        self.now(Command::SetProgram { flow, uid, fields: fields.into() }, result)
    }

    fn update(&mut self, flow: FlowId, fields: &[(Field, i64)]) -> Result<(), DatapathError> {
        let result = self.fails("update").and_then(|()| self.handle.update(flow, fields));
        self.now(Command::Update { flow, fields: fields.into() }, result)
    }

    fn release(&mut self, flow: FlowId) -> Result<(), DatapathError> {
        let result = self.handle.release(flow);
        self.now(Command::Release { flow }, result)
    }

    fn define_slot(&mut self, slot: u8, shape: &Shape) -> Result<(), DatapathError> {
        let refused = if self.traits.refuses_slot { Err(DatapathError::NoSlot(slot)) } else { Ok(()) };
        let result = refused.and_then(|()| self.fails("define"));
        let result = result.and_then(|()| self.handle.define_slot(slot, shape));
        self.now(Command::DefineSlot { slot, shape: *shape }, result)
    }

    fn push(&mut self, slot: u8, image: &[u64], part: Part) -> Result<(), DatapathError> {
        let fails = self.is_busy(slot).and_then(|()| self.fails("push"));
        let result = fails.and_then(|()| self.handle.push(slot, image, part));
        if result.is_ok() {
            self.pushes += 1;
            self.rolled_back.remove(&SnapshotUid(image::u32_at(image, image::UID)));
        }
        self.now(Command::Push { slot, image: image.into(), part }, result)
    }

    fn share(&mut self, slot: u8, share: u16) -> Result<(), DatapathError> {
        let result = self.fails("share").and_then(|()| self.handle.share(slot, share));
        self.now(Command::Share { slot, share }, result)
    }

    fn promote(&mut self, slot: u8) -> Result<(), DatapathError> {
        let fails = self.is_busy(slot).and_then(|()| self.fails("promote"));
        let result = fails.and_then(|()| self.handle.promote(slot));
        self.now(Command::Promote { slot }, result)
    }

    fn rollback(&mut self, slot: u8) -> Result<(), DatapathError> {
        let fails = self.is_busy(slot).and_then(|()| self.fails("rollback"));
        let result = fails.and_then(|()| self.handle.rollback(slot));
        self.now(Command::Rollback { slot }, result)
    }

    fn slots(&mut self) -> Vec<SlotStats> {
        let slots = self.handle.slots();
        debug_assert!(slots.iter().all(|s| s.slot == SLOT));
        slots
    }

    fn heartbeat(&mut self) {
        self.handle.heartbeat();
        self.tidy();
    }

    fn flows(&mut self) -> Vec<FlowStats> {
        let flows = self.handle.flows();
        if self.traits.direct && self.listing {
            self.note_list(&flows);
        }
        flows
    }

    fn poll(&mut self, max: usize, events: &mut Vec<Event>) -> usize {
        let before = events.len();
        let taken = self.take_events(max, events);
        for event in events.get(before..).unwrap_or_default() {
            self.note_event(event);
        }
        taken
    }
}
