//! The refusals of datapaths.

use crate::command::Field;
use crate::ids::{FlowId, ProgramUid};

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
