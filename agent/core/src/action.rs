//! What the core asks of a datapath.

use ccplane_contract::{Datapath, DatapathError, Field, FlowId, ProgramUid};
use ccplane_program::ir::Program;
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
        fields: Vec<(Field, i64)>,
    },
    /// [`Datapath::update`].
    Update {
        /// The flow.
        flow: FlowId,
        /// Registers, window or rate to set.
        fields: Vec<(Field, i64)>,
    },
    /// [`Datapath::release`].
    Release {
        /// The flow.
        flow: FlowId,
    },
    /// [`Datapath::heartbeat`].
    Heartbeat,
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
        }
    }
}
