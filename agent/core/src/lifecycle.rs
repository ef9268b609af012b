//! Flows start, end, and go to their native algorithm.

use crate::action::{Command, DatapathId};
use crate::choosing::begin;
use crate::core::Core;
use crate::flow::{FlowState, NativeReason, RunningAlgorithm};
use crate::host::HostedFlow;
use crate::panics::catch;
use crate::rules::NATIVE;
use crate::start::start;
use ccplane_contract::{FlowId, FlowInfo};
use std::sync::Arc;

impl Core {
    /// Takes a flow in. A flow that is known already stays as it is: datapaths may tell twice.
    pub(crate) fn create(&mut self, id: DatapathId, flow: FlowId, info: FlowInfo, now_us: u64) {
        let Some(attached) = self.datapaths.get_mut(&id) else { return };
        if self.flows.contains_key(&(id, flow)) {
            return;
        }
        // It may have been refused before.
        attached.queue.forget(|steered| steered == flow);
        if self.stopping || self.flows.len() >= self.config.max_flows {
            self.counters.flows_refused += 1;
            attached.queue.push(Command::Release { flow });
            return;
        }
        self.counters.flows_created += 1;
        let requested = self.requested.take().filter(|(at, of, _)| (*at, *of) == (id, flow));
        let requested = requested.as_ref().map(|(_, _, name)| &**name);
        let (catalog, capabilities) = (&self.catalog, &attached.capabilities);
        let entry_here = |name: &str| catalog.entry(name).filter(|entry| entry.is_for(capabilities));
        // A rule for what is decided elsewhere, on ACKs or on packets, says nothing here.
        let counts = |name: &str| name == NATIVE || entry_here(name).is_some();
        let rule = self.rules.position(&info, requested, counts);
        let mut state = FlowState {
            info,
            requested: None,
            algorithm: NATIVE,
            steered: Err(Box::new(NativeReason::Rule)),
            fell_back: None,
            created_us: now_us,
            last_seq: None,
            last_report: None,
            last_error: None,
            counters: Default::default(),
            acted: None,
            restarted_for: 0,
            chooser: None,
            kept: Vec::new(),
        };
        // The rules were checked against the catalog: a name that it lacks is `NATIVE`.
        let name = match rule {
            Some(_) => self.rules.name(rule),
            None => self.config.default_for(&self.rules, capabilities),
        };
        if let Some(entry) = entry_here(name) {
            state.algorithm = entry.name;
            let variant = rule.and_then(|n| self.variants.get(n)?.as_ref());
            let algorithm = variant.unwrap_or(&entry.algorithm).clone();
            let started = if let Some(host) = self.hosts.get(entry.name) {
                state.requested = requested.map(Arc::from);
                let hosted = HostedFlow { datapath: id, flow };
                Err(NativeReason::Hosted(host.begin(hosted, &state.info, state.requested.as_ref())))
            } else if entry.arms.is_empty() {
                start(entry, algorithm, attached, flow, &mut state, None)
            } else {
                self.nothing_until_us = 0;
                begin(&self.catalog, &*algorithm, attached, flow, &mut state)
            };
            state.steered = started.map_err(Box::new);
            if matches!(state.steered.as_ref().map_err(|r| &**r), Err(NativeReason::Panicked(_))) {
                self.counters.panics += 1;
            }
        }
        let refused = state.steered.as_ref().err().map(|reason| (**reason).clone());
        if let Some(reason) = refused
            && !self.fallbacks.fall_back(&self.catalog, attached, flow, &mut state, reason)
        {
            attached.queue.push(Command::Release { flow });
        }
        self.algorithms.entry(state.algorithm).or_default().flows_created += 1;
        self.flows.insert((id, flow), state);
    }

    pub(crate) fn close(&mut self, id: DatapathId, flow: FlowId) {
        if let Some(attached) = self.datapaths.get_mut(&id) {
            attached.queue.forget(|ended| ended == flow);
            attached.slots.values_mut().for_each(|s| s.forget(flow));
        }
        let Some(mut state) = self.flows.remove(&(id, flow)) else { return };
        self.end_choice(id, flow, &mut state);
        if let Some(host) = self.hosts.get(state.algorithm) {
            host.ended(HostedFlow { datapath: id, flow });
        }
        self.counters.flows_closed += 1;
        let sums = self.algorithms.entry(state.algorithm).or_default();
        sums.flows_closed += 1;
        sums.flows += state.counters;
        if let Ok(steered) = state.steered {
            self.end(steered, false);
        }
    }

    /// Lets the algorithm's code see the end of its flow, and drops it. `broken`: after a panic its state may be anything, and nothing
    /// of it is called but its drop.
    pub(crate) fn end(&mut self, steered: RunningAlgorithm, broken: bool) {
        let RunningAlgorithm { mut code, .. } = steered;
        let ended = catch(move || {
            if !broken {
                code.on_close();
            }
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
        let chooser = state.chooser.take();
        let steered = std::mem::replace(&mut state.steered, Err(Box::new(reason.clone())));
        if let Some(attached) = self.datapaths.get_mut(&id) {
            attached.choosing.remove(&flow);
            if !self.fallbacks.fall_back(&self.catalog, attached, flow, state, reason) {
                attached.queue.push(Command::Release { flow });
            }
        }
        if let Some(chooser) = chooser {
            self.end_chooser(chooser, broken);
        }
        if let Ok(steered) = steered {
            self.end(steered, broken);
        }
    }
}
