//! The way of what the core asks of a datapath: taken as an action, answered by how it ended.

use crate::action::{Action, ActionId, Command, DatapathId};
use crate::attached::{Attached, InstallState};
use crate::catalog::CommandError;
use crate::core::Core;
use crate::flow::{FlowLog, FlowState, NativeReason};
use crate::queue::Waiting;
use ccplane_contract::{DatapathError, FlowId, ProgramUid};
use std::sync::Arc;

impl Core {
    /// The next action for a datapath. Every action that is taken must be answered by [`Core::result`].
    pub fn next_action(&mut self, id: DatapathId) -> Option<Action> {
        let flows = &self.flows;
        // What was queued for a flow that has since ended or gone native is void.
        let void = |flow: FlowId| flows.get(&(id, flow)).is_none_or(|f| f.steered.is_err());
        let Attached { queue, slots, .. } = self.datapaths.get_mut(&id)?;
        queue.pop(|command| match command {
            Command::SetProgram { flow, .. }
            | Command::EnsureProgram { flow, .. }
            | Command::Update { flow, .. } => !void(*flow),
            Command::DefineSlot { slot, .. }
            | Command::Push { slot, .. }
            | Command::Share { slot, .. }
            | Command::Promote { slot }
            | Command::Rollback { slot } => slots.get_mut(slot).is_some_and(|s| s.send(command)),
            Command::Install { .. }
            | Command::SetFirst { .. }
            | Command::ClearFirst { .. }
            | Command::Remove { .. }
            | Command::Release { .. }
            | Command::Heartbeat => true,
        })
    }

    /// Takes the result of an action.
    pub fn result(&mut self, id: ActionId, result: Result<(), DatapathError>) {
        let Some(attached) = self.datapaths.get_mut(&id.datapath) else { return };
        let Some(waiting) = attached.queue.answered(id) else { return };
        if let Waiting::DefineSlot(slot) | Waiting::Deploy(slot) = waiting {
            let refused = result.as_ref().is_err_and(|e| !matches!(e, DatapathError::SlotBusy { .. }));
            self.counters.refused_commands += u64::from(refused);
            return self.slot_result(id.datapath, slot, matches!(waiting, Waiting::Deploy(_)), result);
        }
        if let Waiting::Release(flow) = waiting {
            let failed = result.as_ref().is_err_and(|e| !matches!(e, DatapathError::NoFlow(_)));
            attached.queue.released(flow, failed);
        }
        if let Waiting::Remove(uid) = waiting
            && !matches!(result, Err(DatapathError::ProgramInUse { .. }))
        {
            attached.programs.remove(&uid);
        }
        let Err(error) = result else {
            if let Waiting::Install(uid) = waiting
                && let Some((_, state)) = attached.programs.get_mut(&uid)
            {
                *state = InstallState::Installed;
            }
            return;
        };
        // The flow has just ended; its `Closed` is on its way.
        let of_a_flow = matches!(waiting, Waiting::SetProgram(_) | Waiting::Update(_) | Waiting::Release(_));
        if of_a_flow && matches!(error, DatapathError::NoFlow(_)) {
            return;
        }
        self.counters.refused_commands += 1;
        match waiting {
            Waiting::Install(uid) => self.install_refused(id.datapath, uid, error),
            Waiting::SetProgram(flow) => self.go_native(id.datapath, flow, NativeReason::SetRefused(error)),
            Waiting::Update(flow) => {
                if let Some(state) = self.flows.get_mut(&(id.datapath, flow)) {
                    let FlowState { counters, last_error, .. } = state;
                    FlowLog { counters, last_error }.refuse(CommandError::Datapath(error));
                }
            }
            // Flows are set to it when they start.
            Waiting::SetFirst(uid) => attached.first.retain(|(_, program)| program.uid() != uid),
            Waiting::Remove(_)
            | Waiting::ClearFirst
            | Waiting::Release(_)
            | Waiting::Heartbeat
            | Waiting::DefineSlot(_)
            | Waiting::Deploy(_) => {}
        }
    }

    fn install_refused(&mut self, id: DatapathId, uid: ProgramUid, error: DatapathError) {
        let Some(attached) = self.datapaths.get_mut(&id) else { return };
        let Some((program, state)) = attached.programs.get_mut(&uid) else { return };
        let error = Arc::new(error);
        *state = InstallState::Refused(error.clone());
        let program = program.clone();
        let host = self.hosts.get(program.algorithm());
        if let Some(host) = host {
            host.refused(uid, &error);
        }
        let hosted = host.is_some();
        for flow in self.flow_ids(id) {
            // Programs of a host come one by one: its flows that run others go on.
            let concerned = |f: &FlowState| match hosted {
                true => f.steered.as_ref().is_ok_and(|s| s.program.uid() == uid),
                false => f.runs(program.algorithm()),
            };
            if self.flows.get(&(id, flow)).is_some_and(concerned) {
                if self.leave_arm(id, flow) {
                    continue;
                }
                let (program, error) = (program.name().to_owned(), error.clone());
                self.go_native(id, flow, NativeReason::InstallRefused { program, error });
            }
        }
    }
}
