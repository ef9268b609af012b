//! What a datapath shim must do.
//!
//! A shim carries flows, runs installed programs on their ACKs, and speaks with the agent only through
//! [`Datapath`]: commands go in, [`Event`]s come out. Its promises:
//!
//! 1. A program's effects are those of [`ccplane_program::vm`], bit for bit.
//! 2. Field updates and program changes take effect together, before the flow's next ACK is processed.
//! 3. A flow whose program is missing, or whose agent has been silent for longer than the heartbeat
//!    timeout, runs a native algorithm, starting from its current window; when the agent is back, the
//!    program resumes from the window that the flow then has.
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
//! 9. What leaves at once follows rate and queue: below 24 Mb/s a paced flow whose queue (smoothed less smallest RTT, times its
//!    rate) holds less than four segments sends them one by one, so that a link with room for one packet loses none.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod fields;
mod forward;
pub mod slots;
pub mod suite;

pub use fields::{MSS_REGISTER, apply_fields, check_fields, mss_register};
pub use forward::Forward;
pub use slots::SlotTable;

pub use ccplane_alg::FlowInfo;
use ccplane_infer::image::NAME_WORDS;
use ccplane_infer::{FlowPolicy, Shape};
use ccplane_program::ir::{Program, RegId};
use smallvec::SmallVec;

/// Names a flow within one datapath. Never reused while the datapath lives.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct FlowId(pub u64);

/// Names an installed program. Chosen by the agent; never reused by it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct ProgramUid(pub u32);

/// Names one snapshot pushed into one slot: what an image carries as its uid. Chosen by the agent, above 0; never
/// reused by it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct SnapshotUid(pub u32);

/// What a snapshot is pushed for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Part {
    /// All flows of the slot. What was active becomes the last good one; a canary is dropped.
    Active,
    /// This share of the flows, in 2^-16, chosen by their ids. A canary that there is already is dropped.
    Canary {
        /// The share.
        share: u16,
    },
}

/// A slot, as the agent sees it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SlotStats {
    /// Its number in programs.
    pub slot: u8,
    /// What all its snapshots are.
    pub shape: Shape,
    /// What flows decide by.
    pub active: Option<SnapshotUid>,
    /// The name in the head of its image ([`image::NAME`](ccplane_infer::image::NAME)); 0 for none.
    pub active_name: [u64; NAME_WORDS],
    /// What a share of the flows decides by.
    pub canary: Option<SnapshotUid>,
    /// That share, in 2^-16.
    pub canary_share: u16,
    /// What flows fall back to.
    pub last_good: Option<SnapshotUid>,
}

/// What the agent may set from outside.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Field {
    /// A control register of the flow's program.
    Reg(RegId),
    /// Congestion window, bytes.
    Cwnd,
    /// Pacing rate, bytes per second.
    Rate,
}

/// What a datapath can do; fixed while it is attached.
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
}

/// How a flow is steered at the moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// By its program.
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
    /// Its name.
    pub flow: FlowId,
    /// What was known when it started.
    pub info: FlowInfo,
    /// How it is steered.
    pub mode: Mode,
    /// The program set on it, if any.
    pub program: Option<ProgramUid>,
    /// Congestion window, packets.
    pub snd_cwnd: u32,
    /// Slow start threshold, packets; `u32::MAX` when none was set.
    pub snd_ssthresh: u32,
    /// Maximum segment size, bytes.
    pub mss_bytes: u32,
    /// Smoothed round-trip time, microseconds; 0 before the first sample.
    pub srtt_us: u32,
    /// Smallest round-trip time, microseconds; 0 before the first sample.
    pub min_rtt_us: u32,
    /// Pacing rate in force, bytes per second.
    pub pacing_rate: u64,
    /// Bytes acknowledged since the flow started.
    pub bytes_acked: u64,
    /// Packets delivered since the flow started.
    pub delivered: u64,
    /// Packets marked lost since the flow started.
    pub lost: u64,
    /// Packets in flight.
    pub unacked: u32,
    /// Saturations and divisions by zero in its programs.
    pub faults: u64,
    /// Reports sent.
    pub reports: u64,
    /// What its policy has decided, where its program asks one.
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

/// What happened in a datapath.
#[derive(Clone, PartialEq, Debug)]
pub enum Event {
    /// A flow started (or was adopted, or was found running after the agent restarted).
    Created {
        /// Its name.
        flow: FlowId,
        /// What is known of it.
        info: FlowInfo,
    },
    /// A program executed `(report)`.
    Report {
        /// The flow.
        flow: FlowId,
        /// The program that reported.
        program: ProgramUid,
        /// Counts the flow's reports from 1; a gap means that the datapath dropped some.
        seq: u32,
        /// The datapath's clock at the ACK, microseconds.
        at_us: u64,
        /// The report registers.
        values: Values,
    },
    /// A flow ended.
    Closed {
        /// Its name.
        flow: FlowId,
    },
    /// Events that did not fit the channel since the last of these.
    Dropped {
        /// How many.
        count: u64,
    },
}

/// Why a datapath refused a command.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum DatapathError {
    /// The program uses something that this datapath cannot run.
    #[error("this datapath cannot run {feature}")]
    Unsupported {
        /// The language feature, as programs spell it.
        feature: String,
    },
    /// The table of programs is full.
    #[error("{limit} programs are installed, the most this datapath holds")]
    ProgramsFull {
        /// Its size.
        limit: usize,
    },
    /// No such slot, or it was never defined.
    #[error("policy slot {0} is not defined")]
    NoSlot(u8),
    /// The slot is defined, with another shape.
    #[error("policy slot {slot} holds snapshots of another shape")]
    OtherShape {
        /// The slot.
        slot: u8,
    },
    /// Nothing to promote or to go back to.
    #[error("policy slot {slot} holds no {what}")]
    NoSnapshot {
        /// The slot.
        slot: u8,
        /// What is missing.
        what: &'static str,
    },
    /// Every buffer of the slot may still be read. Try again in a millisecond.
    #[error("every buffer of policy slot {slot} is in use")]
    SlotBusy {
        /// The slot.
        slot: u8,
    },
    /// The image is not what a datapath takes.
    #[error("not an image: {reason}")]
    BadImage {
        /// What is wrong.
        reason: String,
    },
    /// No such program.
    #[error("program {0:?} is not installed")]
    NoProgram(ProgramUid),
    /// The program is in use.
    #[error("program {uid:?} runs on {flows} flows")]
    ProgramInUse {
        /// The program.
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
    /// The operating system said no.
    #[error("{what}: {errno}")]
    Os {
        /// What was tried.
        what: String,
        /// The error.
        errno: std::io::ErrorKind,
    },
}

/// The agent's handle on a datapath. No call waits for a packet, and no packet waits for a call.
pub trait Datapath {
    /// What it can do.
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

    /// Says that the agent is alive. To be called at least twice per heartbeat timeout.
    fn heartbeat(&mut self);

    /// The flows that it steers, with their last sample.
    fn flows(&mut self) -> Vec<FlowStats>;

    /// Takes what happened since the last call, oldest first, at most `max` events; appends to `events` and
    /// returns how many.
    fn poll(&mut self, max: usize, events: &mut Vec<Event>) -> usize;
}
