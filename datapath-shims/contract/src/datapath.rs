//! The agent's handle on a datapath, and what the datapath says of itself.

use crate::command::{Field, Part};
use crate::error::DatapathError;
use crate::event::Event;
use crate::flow::FlowStats;
use crate::ids::{FlowId, ProgramUid, SnapshotUid};
use ccplane_infer::Shape;
use ccplane_infer::image::NAME_WORDS;
use ccplane_program::ir::{Hook, Program};

/// A slot, as the agent sees it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SlotStats {
    /// Its number in programs.
    pub slot: u8,
    /// The shape of all snapshots in the slot.
    pub shape: Shape,
    /// The snapshot that decides for all flows but the canary's.
    pub active: Option<SnapshotUid>,
    /// The name in the head of its image ([`image::NAME`](ccplane_infer::image::NAME)); 0 for none.
    pub active_name: [u64; NAME_WORDS],
    /// The snapshot that decides for a share of the flows.
    pub canary: Option<SnapshotUid>,
    /// The canary's share of the flows, in units of 2^-16.
    pub canary_share: u16,
    /// The snapshot that flows fall back to.
    pub last_good: Option<SnapshotUid>,
}

/// The hooks of a datapath that decides on ACKs.
pub const ON_ACKS: &[Hook] = &[Hook::Ack];
/// The hooks of a datapath that decides on packets on their way out.
pub const ON_PACKETS: &[Hook] = &[Hook::Send, Hook::Connect];

/// The abilities of a datapath; fixed while it is attached.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Capabilities {
    /// "sim", "ebpf", "ccp-v1" ...
    pub kind: &'static str,
    /// Programs that can be installed at once.
    pub max_programs: usize,
    /// Flows that can be steered at once; further ones run the native algorithm.
    pub max_flows: usize,
    /// Whether it runs `(policy ...)` and `(history ...)`.
    pub policy: bool,
    /// Whether it runs all of the language, or only what stock CCP bytecode expresses.
    pub full_language: bool,
    /// The hooks whose programs it runs.
    pub hooks: &'static [Hook],
}

impl Capabilities {
    /// Whether flows without a program run a native algorithm; stock CCP datapaths have none and keep the window.
    pub fn has_native(&self) -> bool {
        self.full_language
    }

    /// Whether it decides on packets on their way out, and not on ACKs.
    pub fn decides_on_packets(&self) -> bool {
        self.hooks.iter().any(|hook| !hook.sets_window())
    }
}

/// The agent's handle on a datapath. No call waits for a packet, and no packet waits for a call.
pub trait Datapath {
    /// Returns the datapath's kind, limits and abilities.
    fn capabilities(&self) -> Capabilities;

    /// Installs a program under a new uid.
    ///
    /// # Errors
    /// `Unsupported`, `ProgramsFull`, `NoSlot`, `Refused` or `Os`; nothing is changed then.
    fn install(&mut self, uid: ProgramUid, program: &Program) -> Result<(), DatapathError>;

    /// Removes a program that no flow runs.
    ///
    /// # Errors
    /// `NoProgram`, `ProgramInUse`, `Os`.
    fn remove(&mut self, uid: ProgramUid) -> Result<(), DatapathError>;

    /// At the flow's next ACK: starts `uid` from its initial state, then sets `fields`.
    ///
    /// # Errors
    /// `NoProgram`, `NoFlow`, `BadField`; nothing is changed then.
    fn set_program(
        &mut self,
        flow: FlowId,
        uid: ProgramUid,
        fields: &[(Field, i64)],
    ) -> Result<(), DatapathError>;

    /// At the flow's next ACK: sets `fields` of the running program.
    ///
    /// # Errors
    /// `NoFlow`, `BadField`; nothing is changed then.
    fn update(&mut self, flow: FlowId, fields: &[(Field, i64)]) -> Result<(), DatapathError>;

    /// Starts flows to come with this program and these fields, before the agent hears of them; in place of the one of the same
    /// hook that was set before. A program of [`Hook::Connect`] runs once on each of them.
    ///
    /// # Errors
    /// `NoProgram`, `BadField`, `Unsupported`; nothing is changed then.
    fn set_first(&mut self, uid: ProgramUid, fields: &[(Field, i64)]) -> Result<(), DatapathError> {
        let _ = (uid, fields);
        Err(DatapathError::Unsupported { feature: "a program that flows start with".to_owned() })
    }

    /// Whether the flow runs the program already, as one that it started with may.
    ///
    /// # Errors
    /// `NoProgram` or `NoFlow`, where the datapath has no such program or flow.
    fn is_running(&mut self, flow: FlowId, uid: ProgramUid) -> Result<bool, DatapathError> {
        let _ = (flow, uid);
        Ok(false)
    }

    /// Sets a program as [`Datapath::set_program`] does, unless [the flow runs it already](Datapath::is_running). Returns
    /// whether it had to be set.
    ///
    /// # Errors
    /// The errors of [`Datapath::set_program`].
    fn ensure_program(
        &mut self,
        flow: FlowId,
        uid: ProgramUid,
        fields: &[(Field, i64)],
    ) -> Result<bool, DatapathError> {
        if self.is_running(flow, uid)? {
            return Ok(false);
        }
        self.set_program(flow, uid, fields).map(|()| true)
    }

    /// Starts flows to come without a program of this hook.
    fn clear_first(&mut self, hook: Hook) {
        let _ = hook;
    }

    /// Hands the flow to the native algorithm.
    ///
    /// # Errors
    /// `NoFlow` where the datapath has no such flow.
    fn release(&mut self, flow: FlowId) -> Result<(), DatapathError>;

    /// Defines the shape of a slot's snapshots, before any program that asks the slot is installed. The same definition may be
    /// repeated.
    ///
    /// # Errors
    /// `NoSlot`, `OtherShape`, `Unsupported`.
    fn define_slot(&mut self, slot: u8, shape: &Shape) -> Result<(), DatapathError> {
        let _ = (slot, shape);
        Err(DatapathError::Unsupported { feature: "(policy ...)".to_owned() })
    }

    /// Puts a snapshot into a free buffer of a slot, then into its part, at once for every flow: each follows at its
    /// next decision, unless it is pinned.
    ///
    /// # Errors
    /// `NoSlot`, `OtherShape`, `BadImage`, `SlotBusy`; nothing is changed then.
    fn push(&mut self, slot: u8, image: &[u64], part: Part) -> Result<(), DatapathError> {
        let _ = (image, part);
        Err(DatapathError::NoSlot(slot))
    }

    /// Changes the canary's share of the flows, in 2^-16, at once for every flow. With 0 it stays where it is, and no
    /// flow decides by it.
    ///
    /// # Errors
    /// `NoSlot` where the slot is not defined, `NoSnapshot` where it lacks the snapshot.
    fn share(&mut self, slot: u8, share: u16) -> Result<(), DatapathError> {
        let _ = share;
        Err(DatapathError::NoSlot(slot))
    }

    /// Makes the canary active; what was active becomes the last good one.
    ///
    /// # Errors
    /// `NoSlot` where the slot is not defined, `NoSnapshot` where it lacks the snapshot.
    fn promote(&mut self, slot: u8) -> Result<(), DatapathError> {
        Err(DatapathError::NoSlot(slot))
    }

    /// Drops the canary; where there is none, makes the last good snapshot active again. What is taken back decides for no
    /// flow any more, pinned ones included.
    ///
    /// # Errors
    /// `NoSlot` where the slot is not defined, `NoSnapshot` where it lacks the snapshot.
    fn rollback(&mut self, slot: u8) -> Result<(), DatapathError> {
        Err(DatapathError::NoSlot(slot))
    }

    /// The slots that were defined.
    fn slots(&mut self) -> Vec<SlotStats> {
        Vec::new()
    }

    /// The congestion control that a flow's owner asked the datapath for by name; `None` where it asked for none.
    fn requested(&self, flow: FlowId) -> Option<&str> {
        let _ = flow;
        None
    }

    /// Says that the agent is alive. To be called at least twice per heartbeat timeout.
    fn heartbeat(&mut self);

    /// The flows that it steers, with their last sample.
    fn flows(&mut self) -> Vec<FlowStats>;

    /// Moves the events since the last call to the end of `events`, oldest first and at most `max`. Returns how many it
    /// moved.
    fn poll(&mut self, max: usize, events: &mut Vec<Event>) -> usize;
}
