//! The registry of installed programs: it keeps them, and decides every refusal in the same order for every shim.
//!
//! A shim implements [`Shim`], which brings the three steps that differ: load, unload and stage. The
//! access to its programs may come from [`program_table!`](crate::program_table). Its
//! [`Datapath`](crate::Datapath) takes the commands on programs from [`program_commands!`](crate::program_commands), and
//! those on policy slots, where it keeps them in a [`SlotTable`](crate::SlotTable), from
//! [`slot_commands!`](crate::slot_commands).

use crate::command::Field;
use crate::datapath::ON_ACKS;
use crate::error::DatapathError;
use crate::fields::check_fields;
use crate::ids::{FlowId, ProgramUid};
use crate::slots::check_policies;
use ccplane_program::ir::Hook;
use std::collections::BTreeMap;
use std::sync::Arc;

#[doc(hidden)]
pub use ccplane_infer::Shape;
#[doc(hidden)]
pub use ccplane_program::ir::Program;

/// New values of a flow's fields, in the order in which they are set.
pub type Fields<'a> = &'a [(Field, i64)];

/// The steps of a datapath that the registry calls once a command has passed its checks.
pub trait Shim {
    /// A program in the form that this datapath runs.
    type Loaded: Clone;

    /// The programs that are installed.
    fn programs(&self) -> &Programs<Self::Loaded>;

    /// The programs that are installed, for the registry to change.
    fn programs_mut(&mut self) -> &mut Programs<Self::Loaded>;

    /// Checks that this datapath can run the program at all.
    ///
    /// # Errors
    /// `Unsupported`.
    fn check_support(&self, program: &Program) -> Result<(), DatapathError> {
        let _ = program;
        Ok(())
    }

    /// Returns the shape of a policy slot that was defined.
    fn slot_shape(&self, slot: u8) -> Option<Shape> {
        let _ = slot;
        None
    }

    /// Loads a program, so that flows can start it.
    ///
    /// # Errors
    /// The refusals of this datapath's own checker; nothing is changed then.
    fn load(&mut self, uid: ProgramUid, program: &Arc<Program>) -> Result<Self::Loaded, DatapathError>;

    /// Unloads a program that no flow uses.
    ///
    /// # Errors
    /// `Os`; the program stays installed then.
    fn unload(&mut self, uid: ProgramUid, loaded: &Self::Loaded) -> Result<(), DatapathError> {
        let _ = (uid, loaded);
        Ok(())
    }

    /// Counts the flows that run a program, or will at their next ACK.
    fn count_users(&self, uid: ProgramUid, loaded: &Self::Loaded) -> usize;

    /// Returns the program that was set last on a flow, if there is one.
    ///
    /// # Errors
    /// `NoFlow`.
    fn program_of(&mut self, flow: FlowId) -> Result<Option<ProgramUid>, DatapathError>;

    /// Stages changes for the flow's next ACK, in the order of the fields of [`Change`].
    ///
    /// # Errors
    /// `NoFlow` or `Os`; nothing is changed then.
    fn stage(&mut self, flow: FlowId, change: Change<'_, Self::Loaded>) -> Result<(), DatapathError>;
}

/// Changes to a flow at its next ACK, which have passed all checks.
#[derive(Debug)]
pub struct Change<'a, L> {
    /// The program that the fields belong to: the one to start, or else the flow's own.
    pub program: Option<(ProgramUid, Entry<L>)>,
    /// Whether the program starts anew.
    pub starts: bool,
    /// Fields to set after that.
    pub fields: Fields<'a>,
}

impl<L> Change<'_, L> {
    /// Checks that no program of [`Hook::Connect`] starts: the flow itself has started.
    ///
    /// # Errors
    /// `Refused`.
    pub fn check_started(&self) -> Result<(), DatapathError> {
        let program = self.program.as_ref().filter(|_| self.starts);
        if program.is_some_and(|(_, entry)| entry.program.hook() == Hook::Connect) {
            let reason = "a flow that runs has started: programs of (hook connect) are set for flows to come";
            return Err(DatapathError::Refused { at: None, reason: reason.to_owned() });
        }
        Ok(())
    }
}

/// An installed program.
#[derive(Clone, Debug)]
pub struct Entry<L> {
    /// The program as the agent installed it.
    pub program: Arc<Program>,
    /// The program as the shim runs it.
    pub loaded: L,
    /// The refusal that came after the program was accepted.
    refused: Option<DatapathError>,
}

/// The installed programs of one datapath, at most a fixed number.
#[derive(Debug)]
pub struct Programs<L> {
    entries: BTreeMap<ProgramUid, Entry<L>>,
    limit: usize,
    keeps_native: bool,
    hooks: &'static [Hook],
}

/// Most programs of a registry that is not told otherwise.
pub const DEFAULT_MAX_PROGRAMS: usize = 64;

impl<L> Default for Programs<L> {
    fn default() -> Self {
        Programs::new(DEFAULT_MAX_PROGRAMS)
    }
}

impl<L> Programs<L> {
    /// Creates a registry for at most `limit` programs.
    pub fn new(limit: usize) -> Programs<L> {
        Programs { entries: BTreeMap::new(), limit, keeps_native: false, hooks: ON_ACKS }
    }

    /// Refuses to set the window or rate of a flow without a program, for datapaths that cannot.
    pub fn keeping_native(self) -> Programs<L> {
        Programs { keeps_native: true, ..self }
    }

    /// Takes programs of these hooks, in place of [`Hook::Ack`]'s.
    pub fn of_hooks(self, hooks: &'static [Hook]) -> Programs<L> {
        Programs { hooks, ..self }
    }

    /// The hooks whose programs the datapath runs.
    pub fn hooks(&self) -> &'static [Hook] {
        self.hooks
    }

    /// Checks that the datapath runs programs of this one's hook.
    ///
    /// # Errors
    /// `Unsupported`.
    fn check_hook(&self, program: &Program) -> Result<(), DatapathError> {
        if self.hooks.contains(&program.hook()) {
            return Ok(());
        }
        Err(DatapathError::Unsupported { feature: format!("(hook {})", program.hook().name()) })
    }

    /// Most programs that are installed at once.
    pub fn limit(&self) -> usize {
        self.limit
    }

    /// Returns the installed programs in order of their uids.
    pub fn iter(&self) -> impl Iterator<Item = (ProgramUid, &Entry<L>)> {
        self.entries.iter().map(|(uid, entry)| (*uid, entry))
    }

    /// Returns a program that is installed and was not refused later.
    ///
    /// # Errors
    /// `NoProgram`, or the later refusal.
    pub fn get(&self, uid: ProgramUid) -> Result<&Entry<L>, DatapathError> {
        let entry = self.entries.get(&uid).ok_or(DatapathError::NoProgram(uid))?;
        entry.refused.clone().map_or(Ok(entry), Err)
    }

    /// Returns the shim's part of a program for changes.
    pub fn loaded_mut(&mut self, uid: ProgramUid) -> Option<&mut L> {
        self.entries.get_mut(&uid).map(|entry| &mut entry.loaded)
    }

    /// Notes that the datapath refused the program after it was accepted. Starting it is refused in the same words.
    pub fn refuse(&mut self, uid: ProgramUid, error: DatapathError) {
        if let Some(entry) = self.entries.get_mut(&uid) {
            entry.refused = Some(error);
        }
    }

    /// Checks that the uid is free and that another program fits.
    ///
    /// # Errors
    /// `Refused`, `ProgramsFull`.
    pub fn check_room(&self, uid: ProgramUid) -> Result<(), DatapathError> {
        if self.entries.contains_key(&uid) {
            let reason = format!("a program is already installed as {}", uid.0);
            return Err(DatapathError::Refused { at: None, reason });
        }
        if self.entries.len() >= self.limit {
            return Err(DatapathError::ProgramsFull { limit: self.limit });
        }
        Ok(())
    }

    /// Adds a program that has passed [`Programs::check_room`].
    pub fn insert(&mut self, uid: ProgramUid, program: Arc<Program>, loaded: L) {
        self.entries.insert(uid, Entry { program, loaded, refused: None });
    }
}

/// Carries out [`Datapath::install`](crate::Datapath::install).
///
/// # Errors
/// In this order: `Unsupported`; `NoSlot` or `Refused` for a policy; `Refused` for a uid in use; `ProgramsFull`; what loading
/// refuses.
pub fn install<S: Shim>(shim: &mut S, uid: ProgramUid, program: &Program) -> Result<(), DatapathError> {
    shim.programs().check_hook(program)?;
    shim.check_support(program)?;
    check_policies(program, |slot| shim.slot_shape(slot))?;
    shim.programs().check_room(uid)?;
    let program = Arc::new(program.clone());
    let loaded = shim.load(uid, &program)?;
    shim.programs_mut().insert(uid, program, loaded);
    Ok(())
}

/// Carries out [`Datapath::remove`](crate::Datapath::remove).
///
/// # Errors
/// In this order: `NoProgram`, `ProgramInUse`, what unloading refuses.
pub fn remove<S: Shim>(shim: &mut S, uid: ProgramUid) -> Result<(), DatapathError> {
    let entry = shim.programs().entries.get(&uid).ok_or(DatapathError::NoProgram(uid))?;
    let flows = shim.count_users(uid, &entry.loaded);
    if flows > 0 {
        return Err(DatapathError::ProgramInUse { uid, flows });
    }
    let loaded = entry.loaded.clone();
    shim.unload(uid, &loaded)?;
    shim.programs_mut().entries.remove(&uid);
    Ok(())
}

/// Carries out [`Datapath::set_program`](crate::Datapath::set_program).
///
/// # Errors
/// In this order: `NoProgram`, `NoFlow`, `BadField`, what staging refuses.
pub fn set_program<S: Shim>(
    shim: &mut S,
    flow: FlowId,
    uid: ProgramUid,
    fields: Fields<'_>,
) -> Result<(), DatapathError> {
    let entry = shim.programs().get(uid)?.clone();
    shim.program_of(flow)?;
    check_fields(Some(&entry.program), fields)?;
    shim.stage(flow, Change { program: Some((uid, entry)), starts: true, fields })
}

/// Carries out [`Datapath::update`](crate::Datapath::update).
///
/// # Errors
/// In this order: `NoFlow`, `BadField`, what staging refuses.
pub fn update<S: Shim>(shim: &mut S, flow: FlowId, fields: Fields<'_>) -> Result<(), DatapathError> {
    let Some(uid) = shim.program_of(flow)? else {
        if shim.programs().keeps_native {
            return fields.first().map_or(Ok(()), |(field, _)| Err(DatapathError::BadField(*field)));
        }
        check_fields(None, fields)?;
        return shim.stage(flow, Change { program: None, starts: false, fields });
    };
    let entry = shim.programs().get(uid)?.clone();
    check_fields(Some(&entry.program), fields)?;
    shim.stage(flow, Change { program: Some((uid, entry)), starts: false, fields })
}

/// Writes the access to programs of a [`Shim`] that keeps them in this field.
#[macro_export]
macro_rules! program_table {
    ($programs:ident) => {
        fn programs(&self) -> &$crate::registry::Programs<Self::Loaded> {
            &self.$programs
        }
        fn programs_mut(&mut self) -> &mut $crate::registry::Programs<Self::Loaded> {
            &mut self.$programs
        }
    };
}

/// Writes the commands on programs of a [`Datapath`](crate::Datapath) that is a [`Shim`].
#[macro_export]
macro_rules! program_commands {
    () => {
        fn install(
            &mut self,
            uid: $crate::ProgramUid,
            program: &$crate::registry::Program,
        ) -> Result<(), $crate::DatapathError> {
            $crate::registry::install(self, uid, program)
        }
        fn remove(&mut self, uid: $crate::ProgramUid) -> Result<(), $crate::DatapathError> {
            $crate::registry::remove(self, uid)
        }
        fn set_program(
            &mut self,
            flow: $crate::FlowId,
            uid: $crate::ProgramUid,
            fields: $crate::registry::Fields<'_>,
        ) -> Result<(), $crate::DatapathError> {
            $crate::registry::set_program(self, flow, uid, fields)
        }
        fn update(
            &mut self,
            flow: $crate::FlowId,
            fields: $crate::registry::Fields<'_>,
        ) -> Result<(), $crate::DatapathError> {
            $crate::registry::update(self, flow, fields)
        }
    };
}

/// Writes the commands on policy slots of a [`Datapath`](crate::Datapath) that keeps a [`SlotTable`](crate::SlotTable) in
/// this field.
#[macro_export]
macro_rules! slot_commands {
    ($slots:ident) => {
        fn define_slot(
            &mut self,
            slot: u8,
            shape: &$crate::registry::Shape,
        ) -> Result<(), $crate::DatapathError> {
            self.$slots.define(slot, shape)
        }
        fn push(&mut self, slot: u8, image: &[u64], part: $crate::Part) -> Result<(), $crate::DatapathError> {
            self.$slots.push(slot, image, part)
        }
        fn share(&mut self, slot: u8, share: u16) -> Result<(), $crate::DatapathError> {
            self.$slots.share(slot, share)
        }
        fn promote(&mut self, slot: u8) -> Result<(), $crate::DatapathError> {
            self.$slots.promote(slot)
        }
        fn rollback(&mut self, slot: u8) -> Result<(), $crate::DatapathError> {
            self.$slots.rollback(slot)
        }
        fn slots(&mut self) -> Vec<$crate::SlotStats> {
            self.$slots.stats()
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    const FLOW: FlowId = FlowId(1);
    const A: ProgramUid = ProgramUid(1);
    const B: ProgramUid = ProgramUid(2);
    const BAD: (Field, i64) = (Field::Reg(63), 0);

    /// One flow, and a log of the steps.
    struct OneFlow {
        programs: Programs<u32>,
        set: Option<ProgramUid>,
        steps: Vec<String>,
    }

    impl Shim for OneFlow {
        type Loaded = u32;

        program_table!(programs);
        fn check_support(&self, program: &Program) -> Result<(), DatapathError> {
            let feature = "histories".to_owned();
            if program.policy_inputs() > 0 { Err(DatapathError::Unsupported { feature }) } else { Ok(()) }
        }
        fn load(&mut self, uid: ProgramUid, _: &Arc<Program>) -> Result<u32, DatapathError> {
            self.steps.push(format!("load {}", uid.0));
            Ok(uid.0)
        }
        fn unload(&mut self, _: ProgramUid, loaded: &u32) -> Result<(), DatapathError> {
            self.steps.push(format!("unload {loaded}"));
            Ok(())
        }
        fn count_users(&self, uid: ProgramUid, _: &u32) -> usize {
            usize::from(self.set == Some(uid))
        }
        fn program_of(&mut self, flow: FlowId) -> Result<Option<ProgramUid>, DatapathError> {
            if flow == FLOW { Ok(self.set) } else { Err(DatapathError::NoFlow(flow)) }
        }
        fn stage(&mut self, _: FlowId, change: Change<'_, u32>) -> Result<(), DatapathError> {
            let uid = change.program.map(|(uid, _)| uid);
            self.steps.push(format!(
                "stage {:?} {} {}",
                uid.map(|u| u.0),
                change.starts,
                change.fields.len()
            ));
            self.set = uid;
            Ok(())
        }
    }

    fn one_flow(limit: usize) -> OneFlow {
        OneFlow { programs: Programs::new(limit), set: None, steps: Vec::new() }
    }

    fn program(source: &str) -> Program {
        ccplane_program::compile(source).unwrap()
    }

    const PLAIN: &str = "(def (x 0)) (when true (:= x 1))";
    const HISTORY: &str = "(def (Report (x 0))) (when true (history 4 Report.x))";
    const POLICY: &str = "(def (Report (x 0))) (when true (history 4 Report.x) (policy 0))";

    #[test]
    fn refusals_come_in_one_order_and_before_every_step() {
        let mut shim = one_flow(1);
        let unsupported = install(&mut shim, A, &program(POLICY));
        assert!(matches!(unsupported, Err(DatapathError::Unsupported { .. })), "before the missing slot");
        assert!(install(&mut shim, A, &program(HISTORY)).is_err());
        let elsewhere = install(&mut shim, A, &program("(hook send) (def) (when true (:= Path 1))"));
        assert_eq!(elsewhere, Err(DatapathError::Unsupported { feature: "(hook send)".to_owned() }));
        install(&mut shim, A, &program(PLAIN)).unwrap();
        let twice = install(&mut shim, A, &program(PLAIN)).unwrap_err().to_string();
        assert_eq!(twice, "refused by the datapath: a program is already installed as 1", "before the limit");
        assert_eq!(install(&mut shim, B, &program(PLAIN)), Err(DatapathError::ProgramsFull { limit: 1 }));

        let nobody = FlowId(9);
        assert_eq!(set_program(&mut shim, nobody, B, &[BAD]), Err(DatapathError::NoProgram(B)));
        assert_eq!(set_program(&mut shim, nobody, A, &[BAD]), Err(DatapathError::NoFlow(nobody)));
        assert_eq!(set_program(&mut shim, FLOW, A, &[BAD]), Err(DatapathError::BadField(BAD.0)));
        assert_eq!(update(&mut shim, nobody, &[BAD]), Err(DatapathError::NoFlow(nobody)));
        assert_eq!(update(&mut shim, FLOW, &[BAD]), Err(DatapathError::BadField(BAD.0)));
        assert_eq!(remove(&mut shim, B), Err(DatapathError::NoProgram(B)));
        assert_eq!(shim.steps, ["load 1"], "what is refused takes no step");

        set_program(&mut shim, FLOW, A, &[(Field::Cwnd, 1)]).unwrap();
        assert_eq!(remove(&mut shim, A), Err(DatapathError::ProgramInUse { uid: A, flows: 1 }));
        update(&mut shim, FLOW, &[]).unwrap();
        shim.set = None;
        remove(&mut shim, A).unwrap();
        assert_eq!(shim.steps[1..], ["stage Some(1) true 1", "stage Some(1) false 0", "unload 1"]);
    }

    #[test]
    fn a_flow_without_a_program_takes_fields_only_where_the_datapath_can() {
        let mut shim = one_flow(1);
        update(&mut shim, FLOW, &[(Field::Cwnd, 1)]).unwrap();
        assert_eq!(shim.steps, ["stage None false 1"]);
        shim.programs = Programs::new(1).keeping_native();
        let refused = update(&mut shim, FLOW, &[(Field::Cwnd, 1)]);
        assert_eq!(refused, Err(DatapathError::BadField(Field::Cwnd)));
        update(&mut shim, FLOW, &[]).unwrap();
        assert_eq!(shim.steps.len(), 1, "nothing was staged");
    }

    #[test]
    fn a_program_refused_later_cannot_start_and_can_be_removed() {
        let mut shim = one_flow(1);
        install(&mut shim, A, &program(PLAIN)).unwrap();
        let why = DatapathError::Unsupported { feature: "x".to_owned() };
        shim.programs.refuse(A, why.clone());
        assert_eq!(set_program(&mut shim, FLOW, A, &[]), Err(why));
        remove(&mut shim, A).unwrap();
    }
}
