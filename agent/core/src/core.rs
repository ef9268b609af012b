//! The state machine: datapaths come and go, events and the time go in. What follows from them is elsewhere: flows in
//! `lifecycle`, reports in `reports`, and what an algorithm asks for in `requests`. Actions and their results are in
//! `results`, a datapath's programs and slots in `attached`, deployments in `learning`.

use crate::action::DatapathId;
use crate::attached::{Attached, Deploy, InstallView};
use crate::catalog::Catalog;
use crate::deploy::{Decision, PushRules};
use crate::fallback::{Fallback, Fallbacks};
use crate::flow::{AlgorithmCounters, FlowState, FlowView, NativeReason};
use crate::host::Hosts;
use crate::limits::{MAX_DATAPATHS, MAX_FLOWS};
use crate::queue::Queue;
use crate::rows::Rows;
use crate::rules::FALLBACK;
use crate::rules::{Rules, RulesError};
use crate::variants::variants;
use ccplane_alg::{Algorithm, Control};
use ccplane_contract::{Capabilities, Event, FlowId, FlowStats};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::AddAssign;
use std::sync::Arc;

/// Limits of the core, and its periods in microseconds.
#[derive(Clone, PartialEq, Debug)]
pub struct Config {
    /// Flows known at once, on all datapaths; further ones run their native algorithm.
    pub max_flows: usize,
    /// Time between two heartbeats to a datapath, microseconds. At most half the datapath's timeout.
    pub heartbeat_us: u64,
    /// Time between two batches of rows, microseconds.
    pub batch_us: u64,
    /// Time between two looks at slots and flows while nothing is on trial, microseconds; at least `batch_us`.
    pub slots_every_us: u64,
    /// Time between two samples of the flows that may change their arm, microseconds.
    pub sample_us: u64,
    /// Deployments are numbered from here, and beyond any that a datapath holds when it is attached: so that no number
    /// comes twice, an agent derives it from the time of its start.
    pub first_deployment: u32,
    /// When to push snapshots, and how to try them.
    pub push: PushRules,
    /// The algorithm of flows that no rule matches, on datapaths that decide on packets; `None` for the rules' default.
    pub on_packets: Option<String>,
}

impl Config {
    /// Returns the name of the algorithm of a datapath's flows that no rule matches.
    pub(crate) fn default_for<'a>(&'a self, rules: &'a Rules, datapath: &Capabilities) -> &'a str {
        let on_packets = self.on_packets.as_deref().filter(|_| datapath.decides_on_packets());
        on_packets.unwrap_or(&rules.default)
    }
}

impl Default for Config {
    fn default() -> Self {
        Config {
            max_flows: MAX_FLOWS,
            heartbeat_us: 100_000,
            batch_us: 200_000,
            slots_every_us: 1_000_000,
            sample_us: 100_000,
            first_deployment: 1,
            push: PushRules::default(),
            on_packets: None,
        }
    }
}

/// Events counted since the core was made.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct Counters {
    /// Flows that were taken in.
    pub flows_created: u64,
    pub flows_closed: u64,
    /// Flows left to their native algorithm because the table was full.
    pub flows_refused: u64,
    /// Reports given to an algorithm.
    pub reports: u64,
    /// Reports of flows that are not known, or not steered any more.
    pub stray_reports: u64,
    /// Events that datapaths dropped.
    pub dropped_events: u64,
    pub panics: u64,
    /// Commands that datapaths refused.
    pub refused_commands: u64,
    /// Intervals taken in for learners.
    #[serde(default)]
    pub rows: u64,
    /// Those that were not taken in time.
    #[serde(default)]
    pub dropped_rows: u64,
}

impl AddAssign for Counters {
    fn add_assign(&mut self, other: Counters) {
        let Counters {
            flows_created,
            flows_closed,
            flows_refused,
            reports,
            stray_reports,
            dropped_events,
            panics,
            refused_commands,
            rows,
            dropped_rows,
        } = other;
        self.flows_created += flows_created;
        self.flows_closed += flows_closed;
        self.flows_refused += flows_refused;
        self.reports += reports;
        self.stray_reports += stray_reports;
        self.dropped_events += dropped_events;
        self.panics += panics;
        self.refused_commands += refused_commands;
        self.rows += rows;
        self.dropped_rows += dropped_rows;
    }
}

/// Reasons why a datapath cannot be attached.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AttachError {
    /// The name is in use.
    #[error("datapath {0:?} is attached already")]
    Attached(DatapathId),
    #[error("{limit} datapaths are attached, the most there may be")]
    TooMany { limit: usize },
    #[error("the agent stops")]
    Stopping,
}

/// The agent's state. See the [crate]'s page.
pub struct Core {
    pub(crate) config: Config,
    push_rules: Arc<PushRules>,
    pub(crate) catalog: Catalog,
    pub(crate) rules: Rules,
    pub(crate) variants: Vec<Option<Arc<dyn Algorithm>>>,
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
    /// The latest time that a caller gave, microseconds.
    pub(crate) now_us: u64,
    /// A datapath has dropped events since its flows were last reconciled.
    some_missed: bool,
    /// Before then a tick has nothing to do, and no datapath has slots.
    pub(crate) nothing_until_us: u64,
    pub(crate) stopping: bool,
    /// Actions of a datapath that is attached from now on are numbered from here: numbers are never reused.
    first_action: u64,
    pub(crate) counters: Counters,
    /// Room for the events of one turn.
    pub(crate) events: Vec<Event>,
    /// Room for what one call of an algorithm asks for.
    pub(crate) control: Control,
    pub(crate) fallbacks: Fallbacks,
    /// A flow that is about to be created, and the congestion control that its owner asks for.
    pub(crate) requested: Option<(DatapathId, FlowId, Box<str>)>,
    /// By algorithm: flows that were created and closed, and the sums of those that are gone.
    pub(crate) algorithms: BTreeMap<&'static str, AlgorithmCounters>,
    pub(crate) hosts: Hosts,
}

impl Core {
    /// A core without datapaths.
    ///
    /// # Errors
    /// The rules or the configuration name an algorithm that the catalog lacks, or the rules are too many.
    pub fn new(catalog: Catalog, rules: Rules, config: Config) -> Result<Core, RulesError> {
        rules.check(&catalog.names())?;
        if let Some(name) = &config.on_packets {
            Rules::all(name).check(&catalog.names())?;
        }
        let variants = variants(&catalog, &rules)?;
        Ok(Core {
            hosts: Hosts::new(catalog.hosted()),
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
            fallbacks: Fallbacks::default(),
            requested: None,
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
            first: Vec::new(),
            missed: false,
            next_heartbeat_us: now_us,
            next_batch_us: now_us.saturating_add(self.config.batch_us),
            next_slots_us: now_us,
            choosing: BTreeSet::new(),
            next_sample_us: now_us,
            announce: BTreeSet::new(),
        };
        let batch_us = self.config.batch_us;
        let mut deploy =
            Deploy { datapath: id, rules: &self.push_rules, next_uid: &mut self.next_uid, batch_us, now_us };
        let fallback = (!attached.capabilities.has_native()).then_some(FALLBACK);
        let names = self.rules.names().chain(self.config.on_packets.as_deref()).chain(fallback);
        for entry in names.flat_map(|name| self.catalog.with_arms(name)) {
            if entry.is_for(&attached.capabilities) {
                attached.install(entry, &mut deploy);
            }
        }
        let default = self.config.default_for(&self.rules, &attached.capabilities);
        attached.install_first(self.catalog.entry(default));
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
        for entry in self.rules.names().flat_map(|name| self.catalog.with_arms(name)) {
            for (id, attached) in &mut self.datapaths {
                if !entry.is_for(&attached.capabilities) {
                    continue;
                }
                let (rules, next_uid) = (&self.push_rules, &mut self.next_uid);
                attached.install(entry, &mut Deploy { datapath: *id, rules, next_uid, batch_us, now_us });
            }
        }
        for attached in self.datapaths.values_mut() {
            let default = self.config.default_for(&self.rules, &attached.capabilities);
            attached.install_first(self.catalog.entry(default));
        }
        Ok(())
    }

    /// Hands every flow to its native algorithm and takes no more in. What that asks of datapaths is queued;
    /// [`Core::is_idle`] says when all of it is done.
    pub fn shutdown(&mut self) {
        self.stopping = true;
        self.datapaths.values_mut().for_each(|attached| attached.install_first(None));
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
            let batch_us = if d.slots.is_empty() { u64::MAX } else { d.next_batch_us };
            let sample_us = if d.choosing.is_empty() { u64::MAX } else { d.next_sample_us };
            d.next_heartbeat_us.min(batch_us).min(sample_us)
        };
        self.datapaths.values().map(due).min().filter(|_| !self.stopping)
    }

    /// Notes, before a flow's `Created`, the congestion control that its owner asks for by name.
    pub fn request(&mut self, id: DatapathId, flow: FlowId, name: &str) {
        self.requested = Some((id, flow, name.into()));
    }

    /// Handles an event of a datapath.
    pub fn event(&mut self, id: DatapathId, event: Event, now_us: u64) {
        self.now_us = self.now_us.max(now_us);
        match event {
            Event::Created { flow, info } => self.create(id, flow, info, now_us),
            // Not moved: it was written word by word a moment ago, and a copy would wait for all of that.
            Event::Report { flow, program, seq, at_us, ref values } => {
                self.report(id, flow, program, seq, at_us, values);
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

    /// Compares the core's flows with the list of a datapath that dropped events: unknown ones are created,
    /// and missing ones closed.
    pub fn reconcile(&mut self, id: DatapathId, listed: Vec<FlowStats>, now_us: u64) {
        let live: BTreeSet<FlowId> = listed.iter().map(|f| f.flow).collect();
        for flow in self.flow_ids(id) {
            if !live.contains(&flow) {
                self.close(id, flow);
            }
        }
        // Those that were never taken in have ended, too.
        if let Some(attached) = self.datapaths.get_mut(&id) {
            attached.queue.forget(|flow| !live.contains(&flow));
        }
        for stats in listed {
            self.create(id, stats.flow, stats.info, now_us);
        }
    }

    /// Takes the fallbacks since the last call: algorithms without a native substitute that a datapath cannot run, and those
    /// whose code failed.
    pub fn take_fallbacks(&mut self) -> Vec<Fallback> {
        self.fallbacks.take()
    }

    /// Every flow, by datapath and name.
    pub fn flows(&self) -> impl Iterator<Item = FlowView<'_>> {
        self.flows.iter().map(|((datapath, flow), state)| FlowView {
            datapath: *datapath,
            flow: *flow,
            state,
        })
    }

    /// Returns the view of one flow, if the core knows it.
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

    /// Iterates over the attached datapaths and their capabilities.
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

    /// Returns the counters since the core was made.
    pub fn counters(&self) -> Counters {
        Counters { rows: self.rows.taken, dropped_rows: self.rows.dropped, ..self.counters }
    }

    /// Returns the counters of each algorithm that has had flows, the native one included.
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
}
