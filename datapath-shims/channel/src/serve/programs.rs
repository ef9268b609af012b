//! The programs that agents have installed. They outlive an agent, as their flows do; the next one's take their place.

use std::collections::BTreeMap;

use ccplane_contract::{Datapath, DatapathError, ON_PACKETS, ProgramUid};
use ccplane_program::ir::Program;

/// Lets flows to come start without the programs that an agent has named.
pub(super) fn forget_first(datapath: &mut dyn Datapath) {
    ON_PACKETS.iter().for_each(|hook| datapath.clear_first(*hook));
}

#[derive(Debug)]
struct Installed {
    program: Program,
    /// Whether this conversation's agent asked for it.
    wanted: bool,
}

/// Those of one datapath.
#[derive(Debug, Default)]
pub(super) struct Programs(BTreeMap<ProgramUid, Installed>);

impl Programs {
    /// A conversation begins: what is there goes as soon as no flow runs it, unless it is asked for again. Flows to come start
    /// without a program until this agent names one.
    pub(super) fn begin(&mut self, datapath: &mut dyn Datapath) {
        forget_first(datapath);
        self.0.values_mut().for_each(|p| p.wanted = false);
    }

    /// Installs a program as [`Datapath::install`] does. An agent may ask again for what it asked for in
    /// an earlier conversation.
    pub(super) fn install(
        &mut self,
        datapath: &mut dyn Datapath,
        uid: ProgramUid,
        program: Program,
    ) -> Result<(), DatapathError> {
        if let Some(there) = self.0.get_mut(&uid)
            && !there.wanted
            && there.program == program
        {
            there.wanted = true;
            return Ok(());
        }
        let mut installed = datapath.install(uid, &program);
        if matches!(installed, Err(DatapathError::ProgramsFull { .. })) && self.tidy(datapath) {
            installed = datapath.install(uid, &program);
        }
        installed?;
        self.0.insert(uid, Installed { program, wanted: true });
        Ok(())
    }

    /// Removes a program, as [`Datapath::remove`].
    pub(super) fn remove(
        &mut self,
        datapath: &mut dyn Datapath,
        uid: ProgramUid,
    ) -> Result<(), DatapathError> {
        datapath.remove(uid)?;
        self.0.remove(&uid);
        Ok(())
    }

    /// Removes what no agent wants and no flow runs; whether there was any.
    pub(super) fn tidy(&mut self, datapath: &mut dyn Datapath) -> bool {
        let before = self.0.len();
        self.0.retain(|uid, installed| {
            installed.wanted || !matches!(datapath.remove(*uid), Ok(()) | Err(DatapathError::NoProgram(_)))
        });
        self.0.len() < before
    }
}
