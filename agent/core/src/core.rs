//! The state machine.

use crate::catalog::{Catalog, CommandError, Compiled, Entry};
use crate::deploy::{Decision, Machine, Origin, PushRules, SlotState};
use crate::flow::{AlgorithmCounters, FlowState, FlowView, LastReport, NativeReason, Noted, Steered};
use crate::queue::{Queue, Waiting};
use crate::rows::Rows;
use crate::rules::{NATIVE, Rules, RulesError};
use crate::shield::shield;
use crate::variants::variants;
use crate::{
    Action, ActionId, Candidate, Command, DatapathId, MAX_COMMANDS_PER_CALL, MAX_DATAPATHS, MAX_FLOWS,
};
use ccplane_alg::{Algorithm, Control, Report, Request, Row};
use ccplane_contract::{Capabilities, DatapathError, Event, FlowId, FlowInfo, FlowStats, ProgramUid};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::num::NonZeroU32;
use std::sync::Arc;

/// Limits and periods.
#[derive(Clone, PartialEq, Debug)]
pub struct Config {
    /// Flows known at once, on all datapaths; further ones run their native algorithm.
    pub max_flows: usize,
    /// Time between two heartbeats to a datapath, microseconds. At most half the datapath's timeout.
    pub heartbeat_us: u64,
    /// Time between two batches of rows, microseconds.
    pub batch_us: u64,
    /// Time between two looks at slots and flows while nothing is on trial, microseconds; at least `batch_us`.
    pub look_us: u64,
    /// Deployments are numbered from here, and beyond any that a datapath holds when it is attached: so that no number
    /// comes twice, an agent derives it from the time of its start.
    pub first_deployment: u32,
    /// When to push snapshots, and how to try them.
    pub push: PushRules,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            max_flows: MAX_FLOWS,
            heartbeat_us: 100_000,
            batch_us: 200_000,
            look_us: 1_000_000,
            first_deployment: 1,
            push: PushRules::default(),
        }
    }
}

/// What was counted since the core was made.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Counters {
    /// Flows that were taken in.
    pub flows_created: u64,
    /// Flows that ended.
    pub flows_closed: u64,
    /// Flows left to their native algorithm because the table was full.
    pub flows_refused: u64,
    /// Reports given to an algorithm.
    pub reports: u64,
    /// Reports of flows that are not known, or not steered any more.
    pub stray_reports: u64,
    /// Events that datapaths dropped.
    pub dropped_events: u64,
    /// Panics of algorithms.
    pub panics: u64,
    /// Actions that datapaths refused.
    pub refused_actions: u64,
    /// Intervals taken in for learners.
    pub rows: u64,
    /// Those that were not taken in time.
    pub dropped_rows: u64,
}

/// How a program stands with a datapath.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum InstallState {
    /// On its way.
    Pending,
    /// It may be set on flows.
    Installed,
    /// Flows of its algorithm run the native algorithm there.
    Refused(Arc<DatapathError>),
}

/// A program on a datapath.
#[derive(Clone, Copy, Debug)]
pub struct InstallView<'a> {
    /// The datapath.
    pub datapath: DatapathId,
    /// The program.
    pub program: &'a Compiled,
    /// How it stands.
    pub state: &'a InstallState,
}

/// Why a datapath cannot be attached.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum AttachError {
    /// The name is in use.
    #[error("datapath {0:?} is attached already")]
    Attached(DatapathId),
    /// Too many.
    #[error("{limit} datapaths are attached, the most there may be")]
    TooMany {
        /// How many may be.
        limit: usize,
    },
    /// The agent stops.
    #[error("the agent stops")]
    Stopping,
}

pub(crate) struct Attached {
    pub capabilities: Capabilities,
    programs: BTreeMap<ProgramUid, (Arc<Compiled>, InstallState)>,
    pub slots: BTreeMap<u8, Machine>,
    pub queue: Queue,
    /// Events were dropped since the flows were last reconciled.
    missed: bool,
    next_heartbeat_us: u64,
    pub next_batch_us: u64,
    pub next_look_us: u64,
}

impl Attached {
    /// Asks for the policies and programs of an algorithm that it does not have.
    fn install(&mut self, entry: &Entry, deploy: &mut Deploy<'_>) {
        if self.lacks(entry) {
            return;
        }
        for policy in &entry.policies {
            let slots = &mut self.slots;
            slots.entry(policy.slot()).or_insert_with(|| {
                let (slot, snapshot) = (policy.slot(), policy.snapshot().clone());
                let rules = deploy.rules.clone();
                let (shape, batch_us) = (*snapshot.shape(), deploy.batch_us);
                let mut machine = Machine::new(deploy.datapath, entry.name, slot, shape, rules, batch_us);
                // An earlier agent's slot keeps what it holds: it is looked at before anything is pushed.
                self.next_look_us = deploy.now_us;
                self.queue.push(machine.define());
                let first = Candidate { snapshot, origin: Origin::Shipped };
                let mut uid = || next_uid(deploy.next_uid);
                if let Some(push) = machine.propose(first, &[], &mut uid, deploy.now_us) {
                    self.queue.push(push);
                }
                machine
            });
        }
        for program in &entry.programs {
            self.programs.entry(program.uid()).or_insert_with(|| {
                let install = Command::Install { uid: program.uid(), program: program.program().clone() };
                self.queue.push(install);
                (program.clone(), InstallState::Pending)
            });
        }
    }

    /// Whether the algorithm asks policies and the datapath runs none.
    fn lacks(&self, entry: &Entry) -> bool {
        !entry.policies.is_empty() && !self.capabilities.policy
    }

    /// Why an algorithm's flows cannot be steered here.
    fn refusal(&self, entry: &Entry) -> Option<NativeReason> {
        if self.lacks(entry) {
            return Some(NativeReason::NoPolicies { kind: self.capabilities.kind });
        }
        let refused = entry.policies.iter().find_map(|p| match &self.slots.get(&p.slot())?.state {
            SlotState::Refused(error) => {
                Some(NativeReason::SlotRefused { slot: p.slot(), error: error.clone() })
            }
            SlotState::Pending | SlotState::Defined => None,
        });
        if refused.is_some() {
            return refused;
        }
        entry.programs.iter().find_map(|p| match self.programs.get(&p.uid()) {
            Some((_, InstallState::Refused(error))) => {
                Some(NativeReason::InstallRefused { program: p.name(), error: error.clone() })
            }
            _ => None,
        })
    }
}

/// What installing policies needs of the core.
struct Deploy<'a> {
    datapath: DatapathId,
    rules: &'a Arc<PushRules>,
    next_uid: &'a mut u32,
    batch_us: u64,
    now_us: u64,
}

/// The next deployment's number.
pub(crate) fn next_uid(next: &mut u32) -> NonZeroU32 {
    let uid = NonZeroU32::new(*next).unwrap_or(NonZeroU32::MIN);
    *next = uid.get().wrapping_add(1);
    uid
}

/// The agent's state. See the [crate]'s page.
pub struct Core {
    pub(crate) config: Config,
    push_rules: Arc<PushRules>,
    pub(crate) catalog: Catalog,
    rules: Rules,
    /// Each rule's algorithm.
    variants: Vec<Option<Arc<dyn Algorithm>>>,
    pub(crate) datapaths: BTreeMap<DatapathId, Attached>,
    pub(crate) flows: BTreeMap<(DatapathId, FlowId), FlowState>,
    pub(crate) rows: Rows,
    /// Whether a batch interval has ended since rows were last taken.
    pub(crate) rows_due: bool,
    /// Those that are kept.
    pub(crate) decisions: VecDeque<Decision>,
    /// Those that were not taken yet.
    pub(crate) decided: VecDeque<Decision>,
    pub(crate) next_uid: u32,
    /// The latest time that it heard.
    pub(crate) now_us: u64,
    /// A datapath has dropped events since its flows were last reconciled.
    some_missed: bool,
    /// Before then a tick has nothing to do, and no datapath has slots.
    pub(crate) nothing_until_us: u64,
    stopping: bool,
    /// Actions of a datapath that is attached from now on are numbered from here: numbers are never reused.
    first_action: u64,
    pub(crate) counters: Counters,
    /// Room for the events of one turn.
    pub(crate) events: Vec<Event>,
    /// Room for what one call of an algorithm asks for.
    control: Control,
    /// By algorithm: flows that were created and closed, and the sums of those that are gone.
    algorithms: BTreeMap<&'static str, AlgorithmCounters>,
}

impl Core {
    /// A core without datapaths.
    ///
    /// # Errors
    /// The rules name an algorithm that the catalog lacks, or are too many.
    pub fn new(catalog: Catalog, rules: Rules, config: Config) -> Result<Core, RulesError> {
        rules.check(&catalog.names())?;
        let variants = variants(&catalog, &rules)?;
        Ok(Core {
            next_uid: config.first_deployment,
            push_rules: Arc::new(config.push.clone()),
            config,
            catalog,
            rules,
            variants,
            rows: Rows::default(),
            rows_due: false,
            decisions: VecDeque::new(),
            decided: VecDeque::new(),
            now_us: 0,
            datapaths: BTreeMap::new(),
            flows: BTreeMap::new(),
            some_missed: false,
            nothing_until_us: 0,
            stopping: false,
            first_action: 0,
            counters: Counters::default(),
            events: Vec::new(),
            control: Control::default(),
            algorithms: BTreeMap::new(),
        })
    }

    /// Takes a datapath in and asks it to install the programs of the algorithms that the rules name.
    ///
    /// # Errors
    /// The name is in use, there are [`MAX_DATAPATHS`], or the agent stops; nothing is changed then.
    pub fn attach(
        &mut self,
        id: DatapathId,
        capabilities: Capabilities,
        now_us: u64,
    ) -> Result<(), AttachError> {
        if self.stopping {
            return Err(AttachError::Stopping);
        }
        if self.datapaths.contains_key(&id) {
            return Err(AttachError::Attached(id));
        }
        if self.datapaths.len() >= MAX_DATAPATHS {
            return Err(AttachError::TooMany { limit: MAX_DATAPATHS });
        }
        self.now_us = self.now_us.max(now_us);
        let mut attached = Attached {
            capabilities,
            programs: BTreeMap::new(),
            slots: BTreeMap::new(),
            queue: Queue::new(id, self.first_action),
            missed: false,
            next_heartbeat_us: now_us,
            next_batch_us: now_us.saturating_add(self.config.batch_us),
            next_look_us: now_us,
        };
        let batch_us = self.config.batch_us;
        let mut deploy =
            Deploy { datapath: id, rules: &self.push_rules, next_uid: &mut self.next_uid, batch_us, now_us };
        for entry in self.rules.names().filter_map(|name| self.catalog.entry(name)) {
            attached.install(entry, &mut deploy);
        }
        self.datapaths.insert(id, attached);
        self.nothing_until_us = 0;
        Ok(())
    }

    /// Forgets a datapath, its flows and what was queued for it.
    pub fn detach(&mut self, id: DatapathId) {
        let flows: Vec<FlowId> = self.flow_ids(id);
        for flow in flows {
            self.close(id, flow);
        }
        let now_us = self.now_us;
        if let Some(attached) = self.datapaths.get_mut(&id) {
            attached.slots.values_mut().for_each(|slot| slot.gone(now_us));
        }
        self.collect();
        if let Some(attached) = self.datapaths.remove(&id) {
            self.first_action = self.first_action.max(attached.queue.next_number());
        }
        self.rows.forget(id);
    }

    /// Replaces the rules. Flows that run keep their algorithm; new ones follow the new rules.
    ///
    /// # Errors
    /// They name an algorithm that there is not, or are too many; nothing is changed then.
    pub fn set_rules(&mut self, rules: Rules) -> Result<(), RulesError> {
        rules.check(&self.catalog.names())?;
        self.variants = variants(&self.catalog, &rules)?;
        self.rules = rules;
        let (now_us, batch_us) = (self.now_us, self.config.batch_us);
        self.nothing_until_us = 0;
        for entry in self.rules.names().filter_map(|name| self.catalog.entry(name)) {
            for (id, attached) in &mut self.datapaths {
                let (rules, next_uid) = (&self.push_rules, &mut self.next_uid);
                attached.install(entry, &mut Deploy { datapath: *id, rules, next_uid, batch_us, now_us });
            }
        }
        Ok(())
    }

    /// Hands every flow to its native algorithm and takes no more in. What that asks of datapaths is queued;
    /// [`Core::is_idle`] says when all of it is done.
    pub fn shutdown(&mut self) {
        self.stopping = true;
        let flows: Vec<_> = self.flows.keys().copied().collect();
        for (id, flow) in flows {
            self.go_native(id, flow, NativeReason::Stopping);
        }
    }

    /// Whether nothing is queued and every action has ended.
    pub fn is_idle(&self) -> bool {
        self.datapaths.values().all(|d| d.queue.is_idle())
    }

    /// Does what is due at `now_us`: heartbeats, batches, commands that a datapath was too busy for.
    #[inline]
    pub fn tick(&mut self, now_us: u64) {
        self.now_us = self.now_us.max(now_us);
        if now_us >= self.nothing_until_us {
            self.tick_all(now_us);
        }
    }

    fn tick_all(&mut self, now_us: u64) {
        for attached in self.datapaths.values_mut() {
            if now_us >= attached.next_heartbeat_us && !self.stopping {
                attached.next_heartbeat_us = now_us.saturating_add(self.config.heartbeat_us);
                attached.queue.heartbeat();
            }
        }
        if !self.stopping {
            self.tick_slots(now_us);
        }
        // What slots wait for may come at any moment.
        let quiet = self.datapaths.values().all(|d| d.slots.is_empty());
        self.nothing_until_us = if quiet { self.next_tick_us().unwrap_or(u64::MAX) } else { 0 };
    }

    /// When [`Core::tick`] is to be called next, microseconds; `None` if nothing is due ever.
    pub fn next_tick_us(&self) -> Option<u64> {
        let due = |d: &Attached| {
            if d.slots.is_empty() { d.next_heartbeat_us } else { d.next_heartbeat_us.min(d.next_batch_us) }
        };
        self.datapaths.values().map(due).min().filter(|_| !self.stopping)
    }

    /// Takes in what happened in a datapath.
    pub fn event(&mut self, id: DatapathId, event: Event, now_us: u64) {
        self.now_us = self.now_us.max(now_us);
        match event {
            Event::Created { flow, info } => self.create(id, flow, info, now_us),
            Event::Report { flow, program, seq, at_us, values } => {
                self.report(id, flow, program, seq, at_us, &values);
            }
            Event::Closed { flow } => self.close(id, flow),
            Event::Dropped { count } => {
                self.counters.dropped_events = self.counters.dropped_events.saturating_add(count);
                if let Some(attached) = self.datapaths.get_mut(&id) {
                    attached.missed = true;
                    self.some_missed = true;
                }
            }
        }
    }

    /// Whether a datapath has dropped events since the last call.
    #[inline]
    pub fn take_missed(&mut self, id: DatapathId) -> bool {
        self.some_missed && self.take_missed_of(id)
    }

    fn take_missed_of(&mut self, id: DatapathId) -> bool {
        self.some_missed = self.datapaths.iter().any(|(other, d)| d.missed && *other != id);
        self.datapaths.get_mut(&id).is_some_and(|d| std::mem::take(&mut d.missed))
    }

    /// Takes in all flows that a datapath has, after it dropped events: what is not known is created, what is
    /// not listed is closed.
    pub fn reconcile(&mut self, id: DatapathId, listed: Vec<FlowStats>, now_us: u64) {
        let live: BTreeSet<FlowId> = listed.iter().map(|f| f.flow).collect();
        for flow in self.flow_ids(id) {
            if !live.contains(&flow) {
                self.close(id, flow);
            }
        }
        for stats in listed {
            self.create(id, stats.flow, stats.info, now_us);
        }
    }

    /// The next action for a datapath. Every action that is taken must be answered by [`Core::result`].
    pub fn next_action(&mut self, id: DatapathId) -> Option<Action> {
        let flows = &self.flows;
        // What was queued for a flow that has since ended or gone native is void.
        let void = |flow: FlowId| flows.get(&(id, flow)).is_none_or(|f| f.steered.is_err());
        let Attached { queue, slots, .. } = self.datapaths.get_mut(&id)?;
        queue.pop(|command| match command {
            Command::SetProgram { flow, .. } | Command::Update { flow, .. } => !void(*flow),
            Command::DefineSlot { slot, .. }
            | Command::Push { slot, .. }
            | Command::Share { slot, .. }
            | Command::Promote { slot }
            | Command::Rollback { slot } => slots.get(slot).is_some_and(|s| s.wants(command)),
            Command::Install { .. } | Command::Release { .. } | Command::Heartbeat => true,
        })
    }

    /// How an action ended.
    pub fn result(&mut self, id: ActionId, result: Result<(), DatapathError>) {
        let Some(attached) = self.datapaths.get_mut(&id.datapath) else { return };
        let Some(waiting) = attached.queue.answered(id) else { return };
        if let Waiting::DefineSlot(slot) | Waiting::Deploy(slot) = waiting {
            let refused = result.as_ref().is_err_and(|e| !matches!(e, DatapathError::SlotBusy { .. }));
            self.counters.refused_actions += u64::from(refused);
            return self.slot_result(id.datapath, slot, matches!(waiting, Waiting::Deploy(_)), result);
        }
        let Err(error) = result else {
            if let Waiting::Install(uid) = waiting
                && let Some((_, state)) = attached.programs.get_mut(&uid)
            {
                *state = InstallState::Installed;
            }
            return;
        };
        self.counters.refused_actions += 1;
        match waiting {
            Waiting::Install(uid) => self.install_refused(id.datapath, uid, error),
            // The flow has just ended; its `Closed` is on its way.
            Waiting::SetProgram(_) | Waiting::Update(_) if matches!(error, DatapathError::NoFlow(_)) => {}
            Waiting::SetProgram(flow) => self.go_native(id.datapath, flow, NativeReason::SetRefused(error)),
            Waiting::Update(flow) => {
                if let Some(state) = self.flows.get_mut(&(id.datapath, flow)) {
                    let FlowState { counters, last_error, .. } = state;
                    Noted { counters, last_error }.refuse(CommandError::Datapath(error));
                }
            }
            Waiting::Release | Waiting::Heartbeat | Waiting::DefineSlot(_) | Waiting::Deploy(_) => {}
        }
    }

    /// Every flow, by datapath and name.
    pub fn flows(&self) -> impl Iterator<Item = FlowView<'_>> {
        self.flows.iter().map(|((datapath, flow), state)| FlowView {
            datapath: *datapath,
            flow: *flow,
            state,
        })
    }

    /// One flow.
    pub fn flow(&self, datapath: DatapathId, flow: FlowId) -> Option<FlowView<'_>> {
        self.flows.get(&(datapath, flow)).map(|state| FlowView { datapath, flow, state })
    }

    /// Every program on every datapath.
    pub fn installs(&self) -> impl Iterator<Item = InstallView<'_>> {
        self.datapaths.iter().flat_map(|(datapath, attached)| {
            let view = |(program, state)| InstallView { datapath: *datapath, program, state };
            attached.programs.values().map(|(program, state)| (&**program, state)).map(view)
        })
    }

    /// The attached datapaths.
    pub fn datapaths(&self) -> impl Iterator<Item = (DatapathId, &Capabilities)> {
        self.datapaths.iter().map(|(id, attached)| (*id, &attached.capabilities))
    }

    /// The algorithms and their programs.
    pub fn catalog(&self) -> &Catalog {
        &self.catalog
    }

    /// The rules in force.
    pub fn rules(&self) -> &Rules {
        &self.rules
    }

    /// What was counted.
    pub fn counters(&self) -> Counters {
        Counters { rows: self.rows.taken, dropped_rows: self.rows.dropped, ..self.counters }
    }

    /// What was counted of each algorithm that has had flows, the native one included.
    pub fn algorithms(&self) -> BTreeMap<&'static str, AlgorithmCounters> {
        let mut sums = self.algorithms.clone();
        for state in self.flows.values() {
            sums.entry(state.algorithm).or_default().flows += state.counters;
        }
        sums
    }

    pub(crate) fn flow_ids(&self, id: DatapathId) -> Vec<FlowId> {
        let range = (id, FlowId(u64::MIN))..=(id, FlowId(u64::MAX));
        self.flows.range(range).map(|((_, flow), _)| *flow).collect()
    }

    /// Takes a flow in. A flow that is known already stays as it is: datapaths may tell twice.
    fn create(&mut self, id: DatapathId, flow: FlowId, info: FlowInfo, now_us: u64) {
        let Some(attached) = self.datapaths.get_mut(&id) else { return };
        if self.flows.contains_key(&(id, flow)) {
            return;
        }
        if self.stopping || self.flows.len() >= self.config.max_flows {
            self.counters.flows_refused += 1;
            attached.queue.push(Command::Release { flow });
            return;
        }
        self.counters.flows_created += 1;
        let mut state = FlowState {
            info,
            algorithm: NATIVE,
            steered: Err(Box::new(NativeReason::Rule)),
            created_us: now_us,
            last_seq: None,
            last_report: None,
            last_error: None,
            counters: Default::default(),
            acted: None,
            restarted_for: 0,
        };
        // The rules were checked against the catalog: a name that it lacks is `NATIVE`.
        if let Some(entry) = self.catalog.entry(self.rules.choose(&state.info)) {
            state.algorithm = entry.name;
            let variant = self.rules.position(&state.info).and_then(|n| self.variants.get(n)?.as_ref());
            let algorithm = variant.unwrap_or(&entry.algorithm).clone();
            state.steered = start(entry, algorithm, attached, flow, &mut state).map_err(Box::new);
            if matches!(state.steered.as_ref().map_err(|r| &**r), Err(NativeReason::Panicked(_))) {
                self.counters.panics += 1;
            }
        }
        if state.steered.is_err() {
            attached.queue.push(Command::Release { flow });
        }
        self.algorithms.entry(state.algorithm).or_default().flows_created += 1;
        self.flows.insert((id, flow), state);
    }

    fn report(
        &mut self,
        id: DatapathId,
        flow: FlowId,
        program: ProgramUid,
        seq: u32,
        at_us: u64,
        values: &[i64],
    ) {
        let state = self.flows.get_mut(&(id, flow)).filter(|f| f.steered.is_ok());
        let (Some(attached), Some(state)) = (self.datapaths.get_mut(&id), state) else {
            self.counters.stray_reports += 1;
            return;
        };
        let Some(lost) = state.take_seq(seq) else { return };
        let Ok(steered) = &mut state.steered else { return };
        if lost > 0 {
            // What the policy did in between is not known.
            state.acted = None;
            if let Err(message) = shield(|| steered.code.on_lost_reports(lost)) {
                self.counters.panics += 1;
                return self.go_native(id, flow, NativeReason::Panicked(message));
            }
        }
        if steered.program.uid() != program {
            state.counters.stale_reports += 1;
            return;
        }
        if steered.program.report_names().len() != values.len() {
            state.counters.malformed_reports += 1;
            return;
        }
        state.counters.reports += 1;
        self.counters.reports += 1;
        let names = steered.program.report_names();
        let report = Report { program: steered.program.name(), names, values, truth: None };
        let control = &mut self.control;
        let outcome = shield(|| steered.code.on_report(at_us, &report, control));
        match &mut state.last_report {
            Some(last) if Arc::ptr_eq(&last.program, &steered.program) => {
                last.at_us = at_us;
                last.values.clear();
                last.values.extend_from_slice(values);
            }
            last => {
                let (program, values) = (steered.program.clone(), values.to_vec());
                *last = Some(LastReport { at_us, program, values });
            }
        }
        if let Err(message) = outcome {
            self.control = Control::default();
            self.counters.panics += 1;
            return self.go_native(id, flow, NativeReason::Panicked(message));
        }
        if self.control.has_rows() {
            let rows = self.control.take_rows();
            let taken = take_rows(&mut self.rows, attached, (id, flow), state, rows, self.now_us);
            state.counters.rows += taken;
        }
        let FlowState { algorithm, steered, counters, last_error, .. } = state;
        let find = |name| self.catalog.entry(algorithm)?.program(name);
        let noted = Noted { counters, last_error };
        if let Ok(steered) = steered
            && let running = Some(&*steered.program)
            && let Some(program) = obey(find, &self.control, running, flow, &mut attached.queue, noted)
        {
            steered.program = program;
        }
        self.control.clear();
    }

    fn close(&mut self, id: DatapathId, flow: FlowId) {
        let Some(state) = self.flows.remove(&(id, flow)) else { return };
        self.counters.flows_closed += 1;
        if let Some(attached) = self.datapaths.get_mut(&id) {
            attached.slots.values_mut().for_each(|s| s.forget(flow));
        }
        let sums = self.algorithms.entry(state.algorithm).or_default();
        sums.flows_closed += 1;
        sums.flows += state.counters;
        if let Ok(steered) = state.steered {
            self.end(steered);
        }
    }

    /// Lets the algorithm's code see the end of its flow, and drops it.
    pub(crate) fn end(&mut self, steered: Steered) {
        let Steered { mut code, .. } = steered;
        let ended = shield(move || {
            code.on_close();
            drop(code);
        });
        self.counters.panics += u64::from(ended.is_err());
    }

    pub(crate) fn go_native(&mut self, id: DatapathId, flow: FlowId, reason: NativeReason) {
        let Some(state) = self.flows.get_mut(&(id, flow)) else { return };
        if state.steered.is_err() {
            return;
        }
        let broken = matches!(reason, NativeReason::Panicked(_));
        let steered = std::mem::replace(&mut state.steered, Err(Box::new(reason)));
        if let Some(attached) = self.datapaths.get_mut(&id) {
            attached.queue.push(Command::Release { flow });
        }
        match steered {
            // After a panic its state may be anything: nothing more of it is called, but for its drop.
            Ok(steered) if broken => {
                self.counters.panics += u64::from(shield(move || drop(steered)).is_err())
            }
            Ok(steered) => self.end(steered),
            Err(_) => {}
        }
    }

    fn install_refused(&mut self, id: DatapathId, uid: ProgramUid, error: DatapathError) {
        let Some(attached) = self.datapaths.get_mut(&id) else { return };
        let Some((program, state)) = attached.programs.get_mut(&uid) else { return };
        let error = Arc::new(error);
        *state = InstallState::Refused(error.clone());
        let program = program.clone();
        for flow in self.flow_ids(id) {
            if self.flows.get(&(id, flow)).is_some_and(|f| f.algorithm == program.algorithm()) {
                let error = error.clone();
                self.go_native(id, flow, NativeReason::InstallRefused { program: program.name(), error });
            }
        }
    }
}

/// Starts an algorithm on a flow. `algorithm`: the entry's, or a variant of it.
pub(crate) fn start(
    entry: &Entry,
    algorithm: Arc<dyn Algorithm>,
    attached: &mut Attached,
    flow: FlowId,
    state: &mut FlowState,
) -> Result<Steered, NativeReason> {
    if let Some(refusal) = attached.refusal(entry) {
        return Err(refusal);
    }
    let mut control = Control::default();
    let code = shield(|| algorithm.flow(&state.info, &mut control)).map_err(NativeReason::Panicked)?;
    let find = |name| entry.program(name);
    let noted = Noted { counters: &mut state.counters, last_error: &mut state.last_error };
    match obey(find, &control, None, flow, &mut attached.queue, noted) {
        Some(program) => Ok(Steered { code, algorithm, program }),
        None => {
            // A destructor that panics here is the panic of an algorithm that goes native anyway.
            shield(move || drop(code)).map_err(NativeReason::Panicked)?;
            Err(NativeReason::NoProgram)
        }
    }
}

/// Keeps a flow's intervals for its learner, and counts their rewards; how many there were. A reward is that of the
/// flow's action before this one, if that is known.
fn take_rows(
    to: &mut Rows,
    attached: &mut Attached,
    (id, flow): (DatapathId, FlowId),
    state: &mut FlowState,
    rows: Vec<Row>,
    now_us: u64,
) -> u64 {
    let mut count = 0;
    for mut row in rows {
        let machine = attached.slots.get_mut(&row.slot);
        let (true, Some(machine)) = (row.reward.is_finite(), machine) else {
            // Nobody hears of this action: the next reward is not that of the one before it.
            state.acted = None;
            continue;
        };
        let before = state.acted.replace((row.slot, row.snapshot)).filter(|(slot, _)| *slot == row.slot);
        if let Some((_, uid)) = before {
            machine.reward(flow, uid, f64::from(row.reward), now_us);
        }
        row.follows &= before.is_some();
        to.push(id, state.algorithm, flow, row);
        count += 1;
    }
    count
}

/// Queues what an algorithm asks for its flow. `find`: its programs by name; `running`: the one that the flow runs. What
/// cannot be carried out is noted. The program that is set last, if one is.
fn obey<'a>(
    find: impl Fn(&'static str) -> Option<&'a Arc<Compiled>>,
    control: &Control,
    running: Option<&Compiled>,
    flow: FlowId,
    queue: &mut Queue,
    mut noted: Noted<'_>,
) -> Option<Arc<Compiled>> {
    let found = control.requests().len();
    let mut set: Option<&Arc<Compiled>> = None;
    for (n, Request { program, fields }) in control.requests().enumerate() {
        if n == MAX_COMMANDS_PER_CALL {
            noted.refuse(CommandError::TooManyCommands { found, limit: MAX_COMMANDS_PER_CALL });
            break;
        }
        let queued = match program {
            Some(name) => {
                find(name).ok_or(CommandError::UnknownProgram { program: name }).and_then(|wanted| {
                    let fields = wanted.resolve(fields)?;
                    queue.push_bounded(Command::SetProgram { flow, uid: wanted.uid(), fields })?;
                    set = Some(wanted);
                    noted.counters.program_changes += 1;
                    Ok(())
                })
            }
            None => set.map(|set| &**set).or(running).ok_or(CommandError::NoProgram).and_then(|running| {
                let fields = running.resolve(fields)?;
                queue.push_bounded(Command::Update { flow, fields })?;
                noted.counters.updates += 1;
                Ok(())
            }),
        };
        if let Err(error) = queued {
            noted.refuse(error);
        }
    }
    set.cloned()
}
