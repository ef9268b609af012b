//! How flows start, end, and go to their native algorithm.

use crate::attached::Attached;
use crate::catalog::Entry;
use crate::choosing::begin;
use crate::core::Core;
use crate::flow::{FlowState, NativeReason, Noted, Steered};
use crate::requests::obey;
use crate::rules::NATIVE;
use crate::shield::shield;
use crate::{Command, DatapathId};
use ccplane_alg::{Algorithm, Control, Handover};
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
            chooser: None,
        };
        // The rules were checked against the catalog: a name that it lacks is `NATIVE`.
        if let Some(entry) = self.catalog.entry(self.rules.choose(&state.info)) {
            state.algorithm = entry.name;
            let variant = self.rules.position(&state.info).and_then(|n| self.variants.get(n)?.as_ref());
            let algorithm = variant.unwrap_or(&entry.algorithm).clone();
            let started = if entry.arms.is_empty() {
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
        if state.steered.is_err() {
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
        self.counters.flows_closed += 1;
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
        let chooser = state.chooser.take();
        let steered = std::mem::replace(&mut state.steered, Err(Box::new(reason)));
        if let Some(attached) = self.datapaths.get_mut(&id) {
            attached.queue.push(Command::Release { flow });
            attached.choosing.remove(&flow);
        }
        if let Some(chooser) = chooser {
            self.end_chooser(chooser, broken);
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
}

/// Starts an algorithm on a flow. `algorithm`: the entry's, or a variant of it; `from`: what it takes over from another one.
pub(crate) fn start(
    entry: &Entry,
    algorithm: Arc<dyn Algorithm>,
    attached: &mut Attached,
    flow: FlowId,
    state: &mut FlowState,
    from: Option<&Handover>,
) -> Result<Steered, NativeReason> {
    if let Some(refusal) = attached.refusal(entry) {
        return Err(refusal);
    }
    let mut control = Control::default();
    let make = || match from {
        Some(from) => algorithm.resume(&state.info, from, &mut control),
        None => algorithm.flow(&state.info, &mut control),
    };
    let code = shield(make).map_err(NativeReason::Panicked)?;
    let find = |name| entry.program(name);
    let noted = Noted { counters: &mut state.counters, last_error: &mut state.last_error };
    match obey(find, &control, None, flow, &mut attached.queue, noted) {
        Some(program) => Ok(Steered { code, name: entry.name, algorithm, program }),
        None => {
            // A destructor that panics here is the panic of an algorithm that goes native anyway.
            shield(move || drop(code)).map_err(NativeReason::Panicked)?;
            Err(NativeReason::NoProgram)
        }
    }
}
