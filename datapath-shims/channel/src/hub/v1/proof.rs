//! The agent finds out that a datapath does not run a flow's program, because its table was full or somebody else
//! cleared it. libccp says nothing of it.

use super::V1Peer;
use super::table::{CLEAR_UID, FILLER_UID};
use ccplane_contract::{DatapathError, FlowId};
use ccplane_wire::List;
use ccplane_wire::v1::{ChangeProg, ToDatapath};
use std::collections::BTreeSet;
use tracing::{debug, warn};

/// Silence of a flow after its program was set, until the beacon is asked, microseconds.
const SILENT_US: u64 = 3_000_000;
/// The time for which reports of the program before may be on their way, microseconds.
const DOUBT_US: u64 = 1_000_000;
/// A table that lacks a program again within this time is not written once more, microseconds.
const REPAIR_EVERY_US: u64 = 60_000_000;

/// Degrees to which it is known that the datapath runs a flow's program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Proof {
    /// The program was set and has not reported; `None` until the next timeout.
    Awaited { since_us: Option<u64> },
    /// The flow was set to the beacon, which has not reported: no ACK came, or the datapath does not hold it either.
    Asked,
    /// The beacon reported, and the program was set again.
    SetAgain { at_us: u64 },
    /// The program has reported since it was set.
    Given,
}

impl Default for Proof {
    fn default() -> Proof {
        Proof::Awaited { since_us: None }
    }
}

impl Proof {
    /// Notes a report of the program.
    pub(super) fn reported(&mut self) {
        // The beacon will report, too.
        if *self != Proof::Asked {
            *self = Proof::Given;
        }
    }
}

impl V1Peer {
    /// Ends the listening that was long enough, and asks the beacon of flows that are silent.
    pub(in crate::hub) fn handle_timeout(&mut self, now_us: u64) {
        self.handle_listening_timeout(now_us);
        let mut silent = Vec::new();
        for (flow, state) in &mut self.flows {
            let Proof::Awaited { since_us } = &mut state.proof else { continue };
            let Some(uid) = state.program else { continue };
            let since_us = *since_us.get_or_insert(now_us);
            let may_report = self.programs.get(uid).is_ok_and(|entry| entry.loaded.reports);
            if may_report && now_us.saturating_sub(since_us) >= SILENT_US {
                silent.push((*flow, state.sid));
            }
        }
        // A table that was not written by this agent has no beacon.
        if !self.table.is_known() {
            return;
        }
        for (flow, sid) in silent {
            let ask = ChangeProg { sid, program_uid: CLEAR_UID, fields: List::from(&[][..]) };
            match self.link.send_surely(|out| ToDatapath::ChangeProg(ask).encode(out)) {
                Ok(()) => {
                    if let Some(state) = self.flows.get_mut(&flow) {
                        state.proof = Proof::Asked;
                    }
                }
                Err(error) => debug!(%error, sid, "ask a silent flow"),
            }
        }
    }

    /// Takes in that a flow reports another program than was set.
    pub(super) fn contradicted(&mut self, flow: FlowId, reported: u32, now_us: u64) {
        // While it listens, all flows report beacons.
        let Some(state) = self.flows.get_mut(&flow).filter(|_| self.listening.is_none()) else { return };
        let late = |since_us: u64| now_us.saturating_sub(since_us) >= DOUBT_US;
        match state.proof {
            Proof::Asked if matches!(reported, CLEAR_UID | FILLER_UID) => {
                state.proof = Proof::SetAgain { at_us: now_us };
                if let Err(error) = self.set_again(flow) {
                    debug!(%error, "set a silent flow's program again");
                }
            }
            Proof::Awaited { since_us: Some(since_us) } if late(since_us) => self.missing(flow, now_us),
            Proof::SetAgain { at_us } if late(at_us) => self.missing(flow, now_us),
            // It ran its program, and does not any more: give what is on its way time to arrive.
            Proof::Given => state.proof = Proof::SetAgain { at_us: now_us },
            Proof::Awaited { .. } | Proof::Asked | Proof::SetAgain { .. } => {}
        }
    }

    /// The datapath does not hold the program of a flow that has ACKs: writes the table anew, or gives the program up.
    fn missing(&mut self, flow: FlowId, now_us: u64) {
        let Some(wire_uid) = self.flows.get(&flow).and_then(|f| self.wire_uid_of(f)) else { return };
        let repaired = self.repaired_at_us.is_some_and(|at| now_us.saturating_sub(at) < REPAIR_EVERY_US);
        if repaired {
            return self.give_up(wire_uid);
        }
        warn!(
            "a libccp datapath does not hold a program that was sent: its table was full or cleared; it is written anew"
        );
        self.repaired_at_us = Some(now_us);
        self.table.doubted();
        for state in self.flows.values_mut().filter(|f| f.program.is_some()) {
            state.proof = Proof::default();
        }
        if let Err(error) = self.ensure_held(wire_uid) {
            warn!(%error, "write a libccp datapath's table of programs");
        }
    }

    /// Refuses a program that the datapath does not take, and has the core choose anew for its flows.
    fn give_up(&mut self, wire_uid: u32) {
        let held = self.flows.values().filter(|f| f.proof == Proof::Given);
        let limit = held.filter_map(|f| self.wire_uid_of(f)).collect::<BTreeSet<_>>().len();
        warn!(programs = limit, "a libccp datapath's table takes no more programs");
        let refused: Vec<_> = self
            .programs
            .iter()
            .filter(|(_, entry)| entry.loaded.wire_uid == wire_uid)
            .map(|(uid, _)| uid)
            .collect();
        let flows: Vec<FlowId> = self
            .flows
            .iter()
            .filter(|(_, f)| f.program.is_some_and(|uid| refused.contains(&uid)))
            .map(|(flow, _)| *flow)
            .collect();
        for uid in refused {
            self.programs.refuse(uid, DatapathError::ProgramsFull { limit });
        }
        for flow in flows {
            if let Some(state) = self.flows.get(&flow) {
                let (sid, info, announced) = (state.sid, state.info.clone(), state.announced);
                let requested = state.requested.clone();
                self.closed(sid);
                self.start(sid, info, announced, requested);
            }
        }
    }
}
