//! The contract that every datapath shim keeps.
//!
//! A shim carries flows, runs installed programs on their ACKs, and speaks with the agent only through
//! [`Datapath`]: commands go in, [`Event`]s come out. Its promises:
//!
//! 1. A program's effects are those of [`ccplane_program::vm`], bit for bit.
//! 2. Field updates and program changes take effect together, before the flow's next ACK is processed.
//! 3. A flow runs a native algorithm when its program is missing, or its agent has been silent for
//!    longer than the heartbeat timeout. It starts from its current window; when the agent is back,
//!    the program resumes from the window that the flow then has.
//! 4. Everything is bounded: flows, programs, report sizes, queued events. What does not fit is counted.
//! 5. `Cwnd` and `Rate` are applied after each invocation within the shim's own bounds (at least one
//!    segment, at most the transport's limits); the registers keep their exact values.
//! 6. `(policy slot)` does what [`ccplane_infer::Slot::decide`] does, with the flow's id as key, on the slot's control
//!    word as it stood when the decision began. No decision sees half of a snapshot. A flow's [`FlowPolicy`] lives as
//!    long as the flow, over changes of its program. A program is installed only if its slots are defined and take as
//!    many inputs as its histories have cells; where a policy has no answer, the invocation's effects stand and
//!    the native algorithm goes on from its window.
//! 7. A report of an invocation that asked a policy is a row of a batch: it wakes nobody.
//! 8. A path's MTU is found while the flow runs: what a program keeps in [`MSS_REGISTER`] follows the flow's segment size
//!    for as long as it is that size. At each invocation, after what was staged, a register that holds the size of the
//!    invocation before becomes that of now; one that its program's start left at the size of the flow's start does too.
//!    (Datapaths of the [full language](Capabilities::full_language); a stock CCP one cannot.)
//! 9. Below [`PAIRED_BYTES_PER_S`] (24 Mb/s) a paced flow sends them one by one while its queue holds less than
//!    [`PAIRED_QUEUE_SEGMENTS`]. Its queue is the smoothed less the smallest RTT, times its rate. So a link with room
//!    for one packet loses none.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod code_points;
pub mod fake;
mod fields;
mod forward;
mod pairing;
pub mod registry;
pub mod slots;
pub mod suite;
mod transport;

pub use code_points::{CodePoints, MAX_DSCP, PRIORITIES, traffic_class};
pub use fields::{MSS_REGISTER, apply_fields, check_fields, mss_register};
pub use forward::{Accepted, Forward};
pub use pairing::{PAIRED_BYTES_PER_S, PAIRED_QUEUE_SEGMENTS};
pub use slots::SlotTable;
pub use transport::{INFINITE_SSTHRESH, KnownStats, StatInfo, TransportStats};

use ccplane_infer::image::NAME_WORDS;
use ccplane_infer::{FlowPolicy, Shape};
use ccplane_program::ir::{Hook, Program, RegId};
use smallvec::SmallVec;
use std::net::SocketAddr;

/// Names a flow within one datapath. Never reused while the datapath lives.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct FlowId(pub u64);

/// Facts about a flow that are known when it starts.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FlowInfo {
    /// Maximum segment size, bytes of payload.
    pub mss_bytes: u32,
    /// Congestion window when the algorithm takes over, bytes.
    pub init_cwnd_bytes: u64,
    pub local: SocketAddr,
    pub remote: SocketAddr,
    /// The cgroup (v2 id) that the socket belongs to, where the datapath knows.
    pub cgroup: Option<u64>,
    /// The smallest round-trip time so far, that of the handshake, microseconds; where the datapath knows.
    pub min_rtt_us: Option<u32>,
}

impl FlowInfo {
    /// Returns an example for tests and benches: a flow from 10.0.0.1:40000 to 10.0.0.2:5001.
    pub fn example(mss_bytes: u32, init_cwnd_bytes: u64) -> FlowInfo {
        FlowInfo {
            mss_bytes,
            init_cwnd_bytes,
            local: ([10, 0, 0, 1], 40_000).into(),
            remote: ([10, 0, 0, 2], 5001).into(),
            cgroup: None,
            min_rtt_us: None,
        }
    }
}

/// Names an installed program. Chosen by the agent; never reused by it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct ProgramUid(pub u32);

/// Names one snapshot pushed into one slot: what an image carries as its uid. Chosen by the agent, above 0; never
/// reused by it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct SnapshotUid(pub u32);

/// The part that a pushed snapshot plays in its slot.
// Exhaustive: a new one has to be handled by every datapath, message and trace, which the compiler names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Part {
    /// All flows of the slot. What was active becomes the last good one; a canary is dropped.
    Active,
    /// A share of the flows, chosen by their ids, tries the snapshot. An earlier canary is dropped.
    Canary {
        /// The share of the flows, in units of 2^-16.
        share: u16,
    },
}

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

/// A value of a flow that the agent may set from outside.
// Exhaustive: a new one has to be handled by every datapath, message and trace, which the compiler names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Field {
    /// A control register of the flow's program.
    Reg(RegId),
    /// Congestion window, bytes.
    Cwnd,
    /// Pacing rate, bytes per second.
    Rate,
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

/// The ways in which a flow can be steered.
// Exhaustive: a new one has to be handled by every datapath, message and trace, which the compiler names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    Program,
    /// By the native algorithm, because no program was set, or has started yet: [`FlowStats::waits_for_ack`].
    NativeNoProgram,
    /// By the native algorithm, because the agent's heartbeat is late.
    NativeAgentSilent,
    /// By the native algorithm, because a policy had no answer: its slot was empty, or the monitor tripped. Until a
    /// program is set again.
    NativePolicy,
}

/// One flow as its datapath last sampled it, in `tcp_info`'s vocabulary.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FlowStats {
    pub flow: FlowId,
    pub info: FlowInfo,
    pub mode: Mode,
    /// The program set on it, if any.
    pub program: Option<ProgramUid>,
    pub transport: TransportStats,
    /// The state of its policy, where its program asks one.
    pub policy: Option<FlowPolicy>,
    /// The datapath's clock at the sample, microseconds.
    pub sampled_at_us: u64,
}

impl FlowStats {
    /// Whether a program is set that starts at the flow's next ACK. A flow that sends nothing, such as the receiving
    /// side of a connection, may stay so for as long as it lives.
    pub fn waits_for_ack(&self) -> bool {
        self.mode == Mode::NativeNoProgram && self.program.is_some()
    }
}

/// The values of a report: no allocation where a program has no more report registers than most.
pub type Values = SmallVec<[i64; 8]>;

/// An event in a datapath.
// Exhaustive: a new one has to be handled by every datapath, message and trace, which the compiler names.
#[derive(Clone, PartialEq, Debug)]
pub enum Event {
    /// A flow started (or was adopted, or was found running after the agent restarted).
    Created {
        flow: FlowId,
        info: FlowInfo,
    },
    /// A program executed `(report)`.
    Report {
        flow: FlowId,
        /// The program that reported.
        program: ProgramUid,
        /// Counts the flow's reports from 1; a gap means that the datapath dropped some.
        seq: u32,
        /// The datapath's clock at the ACK, microseconds.
        at_us: u64,
        values: Values,
    },
    Closed {
        flow: FlowId,
    },
    /// Events that did not fit the channel since the last of these.
    Dropped {
        count: u64,
    },
}

/// Reasons why a datapath refused a command.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DatapathError {
    /// The program uses something that this datapath cannot run.
    #[error("this datapath cannot run {feature}")]
    Unsupported {
        /// The language feature, as programs spell it.
        feature: String,
    },
    /// The table of programs is full.
    #[error("{limit} programs are installed, the most this datapath holds")]
    ProgramsFull { limit: usize },
    /// No such slot, or it was never defined.
    #[error("policy slot {0} is not defined")]
    NoSlot(u8),
    /// The slot is defined, with another shape.
    #[error("policy slot {slot} holds snapshots of another shape")]
    OtherShape { slot: u8 },
    /// Nothing to promote or to go back to.
    #[error("policy slot {slot} holds no {what}")]
    NoSnapshot { slot: u8, what: &'static str },
    /// Every buffer of the slot may still be read. Try again in a millisecond.
    #[error("every buffer of policy slot {slot} is in use")]
    SlotBusy { slot: u8 },
    /// The image is malformed, or not of the slot's shape.
    #[error("not an image: {reason}")]
    BadImage { reason: String },
    /// The program is not installed.
    #[error("program {0:?} is not installed")]
    NoProgram(ProgramUid),
    /// The program is in use.
    #[error("program {uid:?} runs on {flows} flows")]
    ProgramInUse {
        uid: ProgramUid,
        /// Flows that run it.
        flows: usize,
    },
    /// No such flow; it may have just ended.
    #[error("flow {0:?} is not known")]
    NoFlow(FlowId),
    /// The field is not a control register of the program.
    #[error("field {0:?} is not a control register of the flow's program")]
    BadField(Field),
    /// The datapath's own checker refused the program: its words, and the instruction of ours it points at.
    #[error("refused by the datapath{}: {reason}", at.map(|i| format!(" at instruction {i}")).unwrap_or_default())]
    Refused {
        /// Index into the program's instructions, where known.
        at: Option<usize>,
        /// The checker's last words.
        reason: String,
    },
    /// A system call failed.
    #[error("{what}: {errno}")]
    Os {
        /// The operation that failed.
        what: String,
        errno: std::io::ErrorKind,
    },
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
    /// As [`Datapath::set_program`].
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
    /// `NoFlow`.
    fn release(&mut self, flow: FlowId) -> Result<(), DatapathError>;

    /// Says what the snapshots of a slot are. Before any program that asks the slot is installed; saying it again
    /// changes nothing.
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
    /// `NoSlot`, `NoSnapshot`.
    fn share(&mut self, slot: u8, share: u16) -> Result<(), DatapathError> {
        let _ = share;
        Err(DatapathError::NoSlot(slot))
    }

    /// Makes the canary active; what was active becomes the last good one.
    ///
    /// # Errors
    /// `NoSlot`, `NoSnapshot`.
    fn promote(&mut self, slot: u8) -> Result<(), DatapathError> {
        Err(DatapathError::NoSlot(slot))
    }

    /// Drops the canary; where there is none, makes the last good snapshot active again. What is taken back decides for no
    /// flow any more, pinned ones included.
    ///
    /// # Errors
    /// `NoSlot`, `NoSnapshot`.
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

    /// Takes the events since the last call, oldest first and at most `max`; appends them to `events` and returns
    /// their number.
    fn poll(&mut self, max: usize, events: &mut Vec<Event>) -> usize;
}

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
