//! What the core asks of a datapath.

use ccplane_contract::{Datapath, DatapathError, Field, FlowId, Part, ProgramUid};
use ccplane_infer::Shape;
use ccplane_program::ir::Program;
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
    /// Its name.
    pub id: ActionId,
    /// What to do.
    pub command: Command,
}

/// The calls of [`Datapath`].
#[derive(Clone, PartialEq, Debug)]
pub enum Command {
    /// [`Datapath::install`].
    Install {
        /// The program's uid.
        uid: ProgramUid,
        /// The program.
        program: Arc<Program>,
    },
    /// [`Datapath::set_program`].
    SetProgram {
        /// The flow.
        flow: FlowId,
        /// The program.
        uid: ProgramUid,
        /// Registers, window or rate to set with it.
        fields: Fields,
    },
    /// [`Datapath::update`].
    Update {
        /// The flow.
        flow: FlowId,
        /// Registers, window or rate to set.
        fields: Fields,
    },
    /// [`Datapath::release`].
    Release {
        /// The flow.
        flow: FlowId,
    },
    /// [`Datapath::heartbeat`].
    Heartbeat,
    /// [`Datapath::define_slot`].
    DefineSlot {
        /// The slot.
        slot: u8,
        /// What its snapshots are.
        shape: Shape,
    },
    /// [`Datapath::push`].
    Push {
        /// The slot.
        slot: u8,
        /// The snapshot.
        image: Arc<[u64]>,
        /// What for.
        part: Part,
    },
    /// [`Datapath::share`].
    Share {
        /// The slot.
        slot: u8,
        /// The canary's share of the flows, in 2^-16.
        share: u16,
    },
    /// [`Datapath::promote`].
    Promote {
        /// The slot.
        slot: u8,
    },
    /// [`Datapath::rollback`].
    Rollback {
        /// The slot.
        slot: u8,
    },
}

impl Command {
    /// Makes the call.
    ///
    /// # Errors
    /// The datapath's.
    pub fn execute(&self, datapath: &mut dyn Datapath) -> Result<(), DatapathError> {
        match self {
            Command::Install { uid, program } => datapath.install(*uid, program),
            Command::SetProgram { flow, uid, fields } => datapath.set_program(*flow, *uid, fields),
            Command::Update { flow, fields } => datapath.update(*flow, fields),
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
