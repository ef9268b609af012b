//! The agent finds the flows that have run since before it started.
//!
//! libccp keeps the place of a flow's program, not its name: an agent that does not know which program lay where would
//! put another one under a running flow. libccp may then abort that flow at each ACK. So each place gets the beacon
//! first, and no flow is set to another program for a while. Flows without an ACK in that time are asked by their
//! numbers: libccp gives a flow the lowest that is free, so that mostly those below a known one belong to flows.

use super::table::{CLEAR_UID, PLACES, Table};
use super::{Proof, V1Flow, V1Peer};
use ccplane_contract::{DatapathError, FlowId};
use ccplane_wire::List;
use ccplane_wire::v1::{ChangeProg, Field, ToDatapath};
use std::collections::BTreeSet;
use tracing::debug;

/// The least time for which only beacons lie in the table, microseconds.
const LISTEN_US: u64 = 300_000;
/// The highest number of a flow that is asked: ccp-kernel has no higher one.
const MAX_ASKED_SID: u32 = 1024;

/// The time in which flows are heard and none gets its program.
#[derive(Debug, Default)]
pub(super) struct Listening {
    /// The time of its first timeout, microseconds.
    since_us: Option<u64>,
}

impl V1Peer {
    /// Fills the table with beacons, and starts to listen.
    pub(super) fn listen(&mut self) -> Result<(), DatapathError> {
        debug!("listen for the flows that a libccp datapath has");
        let places = Table::beacons();
        for uid in &places {
            self.send_program(*uid)?;
        }
        self.table.rewritten(places);
        self.listening = Some(Listening::default());
        Ok(())
    }

    /// Checks that there will be room for `wire_uid` beside the programs of all flows.
    pub(super) fn reserve(&self, wire_uid: u32) -> Result<(), DatapathError> {
        let mut wanted = self.in_use();
        wanted.insert(wire_uid);
        if wanted.len() < PLACES { Ok(()) } else { Err(DatapathError::ProgramsFull { limit: PLACES - 1 }) }
    }

    /// Asks the flows that were not heard of, then sets all flows to their programs once it has listened long enough.
    pub(super) fn handle_listening_timeout(&mut self, now_us: u64) {
        self.ask_unknown_flows();
        let Some(Listening { since_us }) = &mut self.listening else { return };
        let since_us = *since_us.get_or_insert(now_us);
        if now_us.saturating_sub(since_us) < LISTEN_US {
            return;
        }
        // What fails is tried again at the next timeout.
        if let Err(error) = self.fill() {
            debug!(%error, "fill a libccp datapath's table of programs");
        }
    }

    /// Sets each flow to the beacon whose number is below that of a known one.
    fn ask_unknown_flows(&mut self) {
        // A table that was not written by this agent has no beacon.
        if !self.table.is_known() {
            return;
        }
        let highest = self.highest_sid.min(MAX_ASKED_SID);
        for sid in self.asked_to_sid.saturating_add(1)..=highest {
            if self.by_sid.contains_key(&sid) {
                continue;
            }
            let ask = ChangeProg { sid, program_uid: CLEAR_UID, fields: List::from(&[][..]) };
            if let Err(error) = self.link.send_surely(|out| ToDatapath::ChangeProg(ask).encode(out)) {
                return debug!(%error, sid, "ask a flow that was not heard of");
            }
            self.asked_to_sid = sid;
        }
        self.asked_to_sid = self.asked_to_sid.max(highest);
    }

    fn fill(&mut self) -> Result<(), DatapathError> {
        let loaded = self.programs.iter().filter(|(uid, _)| self.programs.get(*uid).is_ok());
        let places = Table::filled(&self.in_use(), loaded.map(|(_, entry)| entry.loaded.wire_uid));
        debug!(flows = self.flows.len(), "write a libccp datapath's table of programs");
        for uid in &places {
            self.send_program(*uid)?;
        }
        self.table.rewritten(places);
        self.listening = None;
        let set: BTreeSet<FlowId> =
            self.flows.iter().filter(|(_, f)| f.program.is_some()).map(|(flow, _)| *flow).collect();
        for flow in set {
            // One that is not set stays with the beacon, and is noticed by its silence.
            if let Err(error) = self.set_again(flow) {
                debug!(%error, "set a flow's program after listening");
            }
            if let Some(state) = self.flows.get_mut(&flow) {
                state.proof = Proof::default();
            }
        }
        Ok(())
    }
}

impl V1Flow {
    /// Keeps a window or rate that waits for the flow's program; the last one of each counts.
    pub(super) fn keep(&mut self, set: &[(Field, u64)]) {
        for (field, value) in set {
            if matches!(field, Field::Control { .. }) {
                continue;
            }
            self.waiting.retain(|(known, _)| known != field);
            self.waiting.push((*field, *value));
        }
    }
}
