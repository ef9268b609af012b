//! The way of a report: to its flow's algorithm, and what follows from it to the datapath's queue and to the learner. The
//! core's busiest.

use crate::action::DatapathId;
use crate::attached::Attached;
use crate::core::Core;
use crate::flow::{FlowLog, FlowState, LastReport, NativeReason};
use crate::panics::catch;
use crate::requests::queue_requests;
use crate::rows::Rows;
use ccplane_alg::{Control, Report, Row};
use ccplane_contract::{FlowId, ProgramUid};
use std::sync::Arc;

impl Core {
    /// Passes a report to its flow's algorithm, and queues the updates that it asks for. A report of a replaced program is dropped.
    pub(crate) fn report(
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
            if let Err(message) = catch(|| steered.code.on_lost_reports(lost)) {
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
        let outcome = catch(|| steered.code.on_report(at_us, &report, control));
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
        let FlowState { steered, counters, last_error, .. } = state;
        let log = FlowLog { counters, last_error };
        if let Ok(steered) = steered
            && let running = Some(&*steered.program)
            && let find = (|name| self.catalog.entry(steered.name)?.program(name))
            && let Some(program) =
                queue_requests(find, &self.control, running, flow, &mut attached.queue, log)
        {
            steered.program = program;
        }
        self.control.clear();
    }
}

/// The name under which flows are compared that are judged once each, when they have ended: all of them together.
const EVERY_FLOW: FlowId = FlowId(u64::MAX);

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
        let slot_deployment = attached.slots.get_mut(&row.slot);
        let (true, Some(slot_deployment)) = (row.reward.is_finite(), slot_deployment) else {
            // Nobody hears of this action: the next reward is not that of the one before it.
            state.acted = None;
            continue;
        };
        let own = Some((row.slot, row.snapshot)).filter(|_| row.target_q16.is_some());
        let before = state.acted.replace((row.slot, row.snapshot)).filter(|(slot, _)| *slot == row.slot);
        let before = own.or(before);
        if let Some((_, uid)) = before {
            let compared = if row.target_q16.is_some() { EVERY_FLOW } else { flow };
            slot_deployment.reward(compared, uid, f64::from(row.reward), now_us);
        }
        row.follows &= before.is_some();
        to.push(id, slot_deployment.algorithm(), flow, row);
        count += 1;
    }
    count
}
