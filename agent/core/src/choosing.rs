//! Flows whose algorithm chooses among others: their start, the input of their choosers, and their changes of arm.

use crate::action::DatapathId;
use crate::attached::Attached;
use crate::catalog::{Catalog, Entry};
use crate::core::Core;
use crate::flow::{FlowState, KeptFields, NativeReason, RunningAlgorithm};
use crate::panics::catch;
use crate::start::start;
use ccplane_alg::{Algorithm, Chooser, PathSample, Switch};
use ccplane_contract::{FlowId, FlowStats, Mode};

/// Starts the arm that a new flow's chooser asks for.
pub(crate) fn begin(
    catalog: &Catalog,
    algorithm: &dyn Algorithm,
    attached: &mut Attached,
    flow: FlowId,
    state: &mut FlowState,
) -> Result<RunningAlgorithm, NativeReason> {
    let made = catch(|| algorithm.chooser(&state.info)).map_err(NativeReason::Panicked)?;
    let chooser = made.ok_or(NativeReason::NoProgram)?;
    choose(catalog, chooser, attached, flow, state)
}

/// Starts the arm that a chooser asks for first, of those that the datapath can run; keeps the chooser if one runs.
fn choose(
    catalog: &Catalog,
    mut chooser: Box<dyn Chooser>,
    attached: &mut Attached,
    flow: FlowId,
    state: &mut FlowState,
) -> Result<RunningAlgorithm, NativeReason> {
    let entry = catalog.entry(state.algorithm).ok_or(NativeReason::NoProgram)?;
    let arms = || entry.arms.iter().filter_map(|arm| catalog.entry(arm));
    let available: Vec<&Entry> = arms().filter(|arm| attached.refusal(arm).is_none()).collect();
    if available.is_empty() {
        let refused = arms().find_map(|arm| attached.refusal(arm));
        return Err(refused.unwrap_or(NativeReason::NoProgram));
    }
    let names: Vec<&'static str> = available.iter().map(|arm| arm.name).collect();
    let wanted = catch(|| chooser.first(&names)).map_err(NativeReason::Panicked)?;
    let arm = available.iter().find(|arm| arm.name == wanted).ok_or(NativeReason::NoProgram)?;
    let steered = start(arm, arm.algorithm.clone(), attached, flow, state, None)?;
    state.chooser = Some(chooser);
    attached.choosing.insert(flow);
    Ok(steered)
}

impl Core {
    /// Whether a datapath's flows are to be sampled for their choosers.
    #[inline]
    pub fn wants_sample(&self, id: DatapathId, now_us: u64) -> bool {
        now_us >= self.nothing_until_us && self.is_sample_due(id, now_us)
    }

    fn is_sample_due(&self, id: DatapathId, now_us: u64) -> bool {
        self.datapaths.get(&id).is_some_and(|d| !d.choosing.is_empty() && now_us >= d.next_sample_us)
    }

    /// Shows a datapath's flows to their choosers, and hands flows over to the arms that those ask for.
    pub fn sample(&mut self, id: DatapathId, flows: &[FlowStats], now_us: u64) {
        let Some(attached) = self.datapaths.get_mut(&id) else { return };
        attached.next_sample_us = now_us.saturating_add(self.config.sample_us);
        for stats in flows {
            let Some(state) = self.flows.get_mut(&(id, stats.flow)) else { continue };
            let (Some(chooser), Ok(steered)) = (&mut state.chooser, &state.steered) else { continue };
            // Nothing is known of a program that has not begun.
            if stats.waits_for_ack() || stats.transport.srtt_us == 0 {
                continue;
            }
            let ask = || {
                let sample = sample(stats, steered.code.rivals());
                chooser.on_sample(&sample)
            };
            match catch(ask) {
                Ok(None) => {}
                Ok(Some(switch)) => self.switch(id, stats, &switch),
                Err(message) => {
                    self.counters.panics += 1;
                    self.go_native(id, stats.flow, NativeReason::Panicked(message));
                }
            }
        }
    }

    /// Hands a running flow over to another arm.
    fn switch(&mut self, id: DatapathId, stats: &FlowStats, switch: &Switch) {
        let Some(state) = self.flows.get_mut(&(id, stats.flow)) else { return };
        let Some(attached) = self.datapaths.get_mut(&id) else { return };
        let arms = self.catalog.entry(state.algorithm).map_or(&[][..], |entry| &entry.arms);
        let arm = arms.iter().find(|arm| **arm == switch.arm).and_then(|arm| self.catalog.entry(arm));
        let arm = arm.filter(|arm| attached.refusal(arm).is_none());
        let Some(arm) = arm else {
            return self.go_native(id, stats.flow, NativeReason::NoProgram);
        };
        state.acted = None;
        state.info.mss_bytes = stats.transport.mss_bytes;
        if let Some(from) = &switch.from {
            state.info.init_cwnd_bytes = from.window_bytes(stats.transport.mss_bytes);
            state.info.min_rtt_us = Some(from.min_rtt_us);
        }
        let now_us = stats.sampled_at_us;
        state.kept.retain(|kept| kept.is_recent(now_us));
        match start(arm, arm.algorithm.clone(), attached, stats.flow, state, switch.from.as_ref()) {
            Ok(after) => {
                state.counters.switches += 1;
                if let Ok(before) = std::mem::replace(&mut state.steered, Ok(after)) {
                    state.kept.retain(|kept| kept.arm != before.name);
                    let asked = catch(|| before.code.kept());
                    let broken = asked.is_err();
                    let fields = asked.unwrap_or_default();
                    if !fields.is_empty() {
                        state.kept.push(KeptFields { arm: before.name, at_us: now_us, fields });
                    }
                    self.counters.panics += u64::from(broken);
                    self.end(before, broken);
                }
            }
            Err(reason) => {
                self.counters.panics += u64::from(matches!(reason, NativeReason::Panicked(_)));
                self.go_native(id, stats.flow, reason);
            }
        }
    }

    /// Has a flow's chooser choose anew, since the datapath has refused the arm; false where it has none, or no other arm runs.
    pub(crate) fn leave_arm(&mut self, id: DatapathId, flow: FlowId) -> bool {
        let (Some(state), Some(attached)) = (self.flows.get_mut(&(id, flow)), self.datapaths.get_mut(&id))
        else {
            return false;
        };
        let Some(chooser) = state.chooser.take() else { return false };
        match choose(&self.catalog, chooser, attached, flow, state) {
            Ok(after) => {
                if let Ok(before) = std::mem::replace(&mut state.steered, Ok(after)) {
                    self.end(before, false);
                }
                true
            }
            Err(_) => {
                attached.choosing.remove(&flow);
                false
            }
        }
    }

    /// Lets a flow's chooser see its end.
    pub(crate) fn end_choice(&mut self, id: DatapathId, flow: FlowId, state: &mut FlowState) {
        if let Some(attached) = self.datapaths.get_mut(&id) {
            attached.choosing.remove(&flow);
        }
        if let Some(chooser) = state.chooser.take() {
            self.end_chooser(chooser, false);
        }
    }

    /// `broken`: after a panic nothing of it is called but its drop.
    pub(crate) fn end_chooser(&mut self, mut chooser: Box<dyn Chooser>, broken: bool) {
        let ended = catch(move || {
            if !broken {
                chooser.on_close();
            }
            drop(chooser);
        });
        self.counters.panics += u64::from(ended.is_err());
    }
}

fn sample(stats: &FlowStats, rivals: Option<bool>) -> PathSample {
    PathSample {
        at_us: stats.sampled_at_us,
        transport: stats.transport,
        steered: stats.mode == Mode::Program,
        rivals,
    }
}
