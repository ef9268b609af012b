//! The core's work for hosted algorithms: their programs come while flows run, and their commands at any time.
//!
//! The core tells each host of the algorithm's flows as [`HostEvent`]s, and takes the host's commands through the methods here. A flow
//! runs its native algorithm, for a stated [`HostReason`], until the host sets a program on it, and again while the host is away.

use crate::action::{Command, DatapathId, Fields};
use crate::catalog::CommandError;
use crate::core::Core;
use crate::flow::{FlowLog, FlowState, NativeReason, RunningAlgorithm};
use crate::host::{HostError, HostEvent, HostReason, HostedFlow};
use crate::limits::MAX_FIELDS;
use ccplane_contract::{Field, FlowId, FlowStats, ProgramUid};
use ccplane_program::ir::Program;
use std::collections::BTreeSet;

/// Programs of one hosted algorithm that are kept at once.
pub const MAX_HOSTED_PROGRAMS: usize = 32;

impl Core {
    /// Whether rules give flows to this hosted algorithm, or did and these still run.
    pub fn wants_host(&self, algorithm: &str) -> bool {
        let is_named = || self.rules.names().any(|name| name == algorithm);
        let has_flows = || self.flows.values().any(|f| f.algorithm == algorithm);
        self.hosts.get(algorithm).is_some() && (is_named() || has_flows())
    }

    /// Says that a host is there: its flows are told of with the next [`drive`](crate::drive), with their windows.
    pub fn host_arrived(&mut self, algorithm: &str) {
        let Some(host) = self.hosts.get(algorithm) else { return };
        let algorithm = host.algorithm;
        if host.present.is_ok() {
            self.host_left(algorithm, HostReason::NoProgramYet { algorithm });
        }
        let Some(host) = self.hosts.get_mut(algorithm) else { return };
        host.present = Ok(());
        for attached in self.datapaths.values_mut() {
            attached.announce.insert(algorithm);
        }
    }

    /// Says that a host is gone: its flows go to their native algorithm for this reason.
    pub fn host_left(&mut self, algorithm: &str, reason: HostReason) {
        let hosted: Vec<_> =
            self.flows.iter().filter(|(_, f)| f.algorithm == algorithm).map(|(key, _)| *key).collect();
        for (id, flow) in hosted {
            self.leave_host(id, flow, &reason);
        }
        let Some(host) = self.hosts.get_mut(algorithm) else { return };
        host.present = Err(reason);
        // Nobody is to be told of what was before.
        while host.events.try_recv().is_ok() {}
    }

    /// Takes the next event for a host.
    pub fn next_host_event(&mut self, algorithm: &str) -> Option<HostEvent> {
        self.hosts.get(algorithm)?.events.try_recv().ok()
    }

    pub(crate) fn wants_windows(&self, id: DatapathId) -> bool {
        self.datapaths.get(&id).is_some_and(|attached| !attached.announce.is_empty())
    }

    /// Tells hosts that arrived of all flows of a datapath that are theirs.
    pub(crate) fn announce(&mut self, id: DatapathId, listed: &[FlowStats]) {
        let Some(attached) = self.datapaths.get_mut(&id) else { return };
        let arrived = std::mem::take(&mut attached.announce);
        for stats in listed {
            let state = self.flows.get_mut(&(id, stats.flow)).filter(|f| arrived.contains(f.algorithm));
            let Some(state) = state.filter(|f| f.steered.is_err()) else { continue };
            let algorithm = state.algorithm;
            let Some(host) = self.hosts.get(algorithm) else { continue };
            state.steered = Err(Box::new(NativeReason::Hosted(HostReason::NoProgramYet { algorithm })));
            let cwnd_bytes = u64::from(stats.transport.snd_cwnd) * u64::from(stats.transport.mss_bytes);
            let flow = HostedFlow { datapath: id, flow: stats.flow };
            let cwnd_bytes = if cwnd_bytes == 0 { state.info.init_cwnd_bytes } else { cwnd_bytes };
            let (info, requested) = (state.info.clone(), state.requested.clone());
            host.send_event(HostEvent::Started { flow, info, cwnd_bytes, requested });
        }
    }

    /// Takes a program of a host, and has every datapath install it. A program that is there already keeps its uid. `in_use`: what
    /// the host may set, beside the programs that flows run; others make room.
    ///
    /// # Errors
    /// `NoHost`; `ProgramsFull` where all are in use.
    pub fn host_install(
        &mut self,
        algorithm: &str,
        name: &str,
        program: Program,
        in_use: &BTreeSet<ProgramUid>,
    ) -> Result<ProgramUid, HostError> {
        let algorithm = self.hosts.get(algorithm).ok_or(HostError::NoHost)?.algorithm;
        let entry = self.catalog.entry(algorithm).ok_or(HostError::NoHost)?;
        if let Some(known) = entry.programs.iter().find(|p| **p.program() == program) {
            return Ok(known.uid());
        }
        if entry.programs.len() >= MAX_HOSTED_PROGRAMS {
            let mut used = in_use.clone();
            used.extend(self.flows.values().filter_map(|f| f.steered.as_ref().ok()).map(|s| s.program.uid()));
            let unused = entry.programs.iter().map(|p| p.uid()).find(|uid| !used.contains(uid));
            self.remove_program(
                algorithm,
                unused.ok_or(HostError::ProgramsFull { limit: MAX_HOSTED_PROGRAMS })?,
            );
        }
        let program = self.catalog.add(algorithm, name.to_owned(), program).ok_or(HostError::NoHost)?;
        for attached in self.datapaths.values_mut() {
            attached.install_program(&program);
        }
        Ok(program.uid())
    }

    fn remove_program(&mut self, algorithm: &'static str, uid: ProgramUid) {
        self.catalog.remove(algorithm, uid);
        for attached in self.datapaths.values_mut() {
            if attached.programs.contains_key(&uid) {
                attached.queue.push(Command::Remove { uid });
            }
        }
    }

    /// Runs a program of its host on a flow, from its initial state, with these fields set. What cannot be done is logged with the
    /// flow; a program that its datapath refuses leaves the flow native.
    pub fn host_set_program(&mut self, flow: HostedFlow, uid: ProgramUid, fields: &[(Field, i64)]) {
        let HostedFlow { datapath: id, flow } = flow;
        let Some(algorithm) = self.flows.get(&(id, flow)).map(|state| state.algorithm) else { return };
        let Some(host) = self.hosts.get(algorithm) else { return };
        let Some(entry) = self.catalog.entry(algorithm) else { return };
        let Some(program) = entry.programs.iter().find(|p| p.uid() == uid).cloned() else { return };
        let ours = entry.algorithm.clone();
        let (Some(attached), Some(state)) = (self.datapaths.get_mut(&id), self.flows.get_mut(&(id, flow)))
        else {
            return;
        };
        if self.stopping {
            return;
        }
        if let Some(reason) = attached.refusal_of(&program) {
            if state.steered.is_ok() {
                return self.go_native(id, flow, reason);
            }
            state.steered = Err(Box::new(reason));
            return host.ended(HostedFlow { datapath: id, flow });
        }
        let FlowState { counters, last_error, .. } = state;
        let mut log = FlowLog { counters, last_error };
        let command = Command::SetProgram { flow, uid, fields: Fields::new() };
        match attached.queue.push_bounded(command, |to| copy(fields, to)) {
            Err(error) => return log.refuse(error),
            Ok(()) => log.counters.program_changes += 1,
        }
        let code = host.forward(HostedFlow { datapath: id, flow }, uid);
        state.steered = Ok(RunningAlgorithm { code, name: algorithm, algorithm: ours, program });
    }

    /// Sets fields of the program that a flow runs for the host.
    pub fn host_update(&mut self, flow: HostedFlow, fields: &[(Field, i64)]) {
        let HostedFlow { datapath: id, flow } = flow;
        let Some(attached) = self.datapaths.get_mut(&id) else { return };
        let state = self.flows.get_mut(&(id, flow)).filter(|f| self.hosts.get(f.algorithm).is_some());
        let Some(state) = state.filter(|f| f.steered.is_ok()) else { return };
        let FlowState { counters, last_error, .. } = state;
        let mut log = FlowLog { counters, last_error };
        let command = Command::Update { flow, fields: Fields::new() };
        match attached.queue.push_bounded(command, |to| copy(fields, to)) {
            Err(error) => log.refuse(error),
            Ok(()) => log.counters.updates += 1,
        }
    }

    /// Leaves one flow to its native algorithm for a reason that the host has; the host is not told.
    pub fn host_release(&mut self, flow: HostedFlow, reason: HostReason) {
        self.leave_host(flow.datapath, flow.flow, &reason);
    }

    fn leave_host(&mut self, id: DatapathId, flow: FlowId, reason: &HostReason) {
        let state = self.flows.get_mut(&(id, flow)).filter(|f| self.hosts.get(f.algorithm).is_some());
        let Some(state) = state else { return };
        let reason = Box::new(NativeReason::Hosted(reason.clone()));
        let was_steered = std::mem::replace(&mut state.steered, Err(reason)).is_ok();
        if was_steered && let Some(attached) = self.datapaths.get_mut(&id) {
            attached.queue.push(Command::Release { flow });
        }
    }
}

fn copy(fields: &[(Field, i64)], to: &mut Fields) -> Result<(), CommandError> {
    if fields.len() > MAX_FIELDS {
        return Err(CommandError::TooManyFields { found: fields.len(), limit: MAX_FIELDS });
    }
    to.extend_from_slice(fields);
    Ok(())
}
