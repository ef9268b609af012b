//! Commands of the core to a datapath, and their numbers.

use ccplane_contract::{Datapath, DatapathError, Field, FlowId, Part, ProgramUid};
use ccplane_infer::Shape;
use ccplane_program::ir::{Hook, Program};
use smallvec::SmallVec;
use std::sync::Arc;

/// Names an attached datapath. Chosen by the driver.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct DatapathId(pub u32);

/// Names one action, for [`Core::result`](crate::Core::result).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct ActionId {
    pub(crate) datapath: DatapathId,
    pub(crate) number: u64,
}

/// Fields of one command; the few that most have are no allocation.
pub type Fields = SmallVec<[(Field, i64); 2]>;

/// One command for one datapath.
#[derive(Clone, PartialEq, Debug)]
pub struct Action {
    pub id: ActionId,
    pub command: Command,
}

/// The calls of [`Datapath`].
#[derive(Clone, PartialEq, Debug)]
pub enum Command {
    Install {
        uid: ProgramUid,
        program: Arc<Program>,
    },
    Remove {
        uid: ProgramUid,
    },
    SetProgram {
        flow: FlowId,
        uid: ProgramUid,
        /// Registers, window or rate to set with it.
        fields: Fields,
    },
    Update {
        flow: FlowId,
        /// Registers, window or rate to set.
        fields: Fields,
    },
    /// Does what `SetProgram` does, unless the flow runs the program already.
    EnsureProgram {
        flow: FlowId,
        uid: ProgramUid,
        /// Registers to set with it.
        fields: Fields,
    },
    /// Flows to come start with the program.
    SetFirst {
        uid: ProgramUid,
        /// Registers to set with it.
        fields: Fields,
    },
    /// Flows to come start without a program of the hook.
    ClearFirst {
        hook: Hook,
    },
    Release {
        flow: FlowId,
    },
    Heartbeat,
    DefineSlot {
        slot: u8,
        shape: Shape,
    },
    Push {
        slot: u8,
        image: Arc<[u64]>,
        part: Part,
    },
    Share {
        slot: u8,
        /// The canary's share of the flows, in 2^-16.
        share: u16,
    },
    Promote {
        slot: u8,
    },
    Rollback {
        slot: u8,
    },
}

impl Command {
    /// Calls the method of `datapath` that this command stands for.
    ///
    /// # Errors
    /// The datapath refuses the command.
    pub fn execute(&self, datapath: &mut dyn Datapath) -> Result<(), DatapathError> {
        match self {
            Command::Install { uid, program } => datapath.install(*uid, program),
            Command::Remove { uid } => datapath.remove(*uid),
            Command::SetProgram { flow, uid, fields } => datapath.set_program(*flow, *uid, fields),
            Command::Update { flow, fields } => datapath.update(*flow, fields),
            Command::EnsureProgram { flow, uid, fields } => {
                datapath.ensure_program(*flow, *uid, fields).map(|_| ())
            }
            Command::SetFirst { uid, fields } => datapath.set_first(*uid, fields),
            Command::ClearFirst { hook } => {
                datapath.clear_first(*hook);
                Ok(())
            }
            Command::Release { flow } => datapath.release(*flow),
            Command::Heartbeat => {
                datapath.heartbeat();
                Ok(())
            }
            Command::DefineSlot { slot, shape } => datapath.define_slot(*slot, shape),
            Command::Push { slot, image, part } => datapath.push(*slot, image, *part),
            Command::Share { slot, share } => datapath.share(*slot, *share),
            Command::Promote { slot } => datapath.promote(*slot),
            Command::Rollback { slot } => datapath.rollback(*slot),
        }
    }
}
