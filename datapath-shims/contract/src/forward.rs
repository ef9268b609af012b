//! A datapath around another one.

use crate::command::{Field, Part};
use crate::datapath::{Capabilities, Datapath, SlotStats};
use crate::error::DatapathError;
use crate::event::Event;
use crate::flow::FlowStats;
use crate::ids::{FlowId, ProgramUid};
use ccplane_infer::Shape;
use ccplane_program::ir::{Hook, Program};

/// A command on a flow that the datapath behind a [`Forward`] has accepted.
// Exhaustive: a new one has to be handled by every trace, which the compiler names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Accepted<'a> {
    SetProgram { flow: FlowId, uid: ProgramUid, fields: &'a [(Field, i64)] },
    Update { flow: FlowId, fields: &'a [(Field, i64)] },
    Release { flow: FlowId },
}

/// A datapath that passes all commands on to another one, and may change the flows and events that it returns.
pub trait Forward {
    /// Returns the other datapath, for its capabilities.
    fn inner(&self) -> &dyn Datapath;

    /// Carries out the commands.
    fn inner_mut(&mut self) -> &mut dyn Datapath;

    /// Notes a command on a flow, once the other datapath has accepted it.
    fn note_accepted(&mut self, command: Accepted<'_>) {
        let _ = command;
    }

    /// Lists the flows, as [`Datapath::flows`] does.
    fn forward_flows(&mut self) -> Vec<FlowStats> {
        self.inner_mut().flows()
    }

    /// Takes events, as [`Datapath::poll`] does.
    fn forward_poll(&mut self, max: usize, events: &mut Vec<Event>) -> usize {
        self.inner_mut().poll(max, events)
    }
}

/// Writes the way of a [`Forward`] to the other datapath, which is in this field.
#[macro_export]
macro_rules! forward_to {
    ($field:tt) => {
        fn inner(&self) -> &dyn $crate::Datapath {
            &self.$field
        }

        fn inner_mut(&mut self) -> &mut dyn $crate::Datapath {
            &mut self.$field
        }
    };
}

impl<T: Forward> Datapath for T {
    fn capabilities(&self) -> Capabilities {
        self.inner().capabilities()
    }
    fn install(&mut self, uid: ProgramUid, program: &Program) -> Result<(), DatapathError> {
        self.inner_mut().install(uid, program)
    }
    fn remove(&mut self, uid: ProgramUid) -> Result<(), DatapathError> {
        self.inner_mut().remove(uid)
    }
    fn set_program(
        &mut self,
        flow: FlowId,
        uid: ProgramUid,
        fields: &[(Field, i64)],
    ) -> Result<(), DatapathError> {
        self.inner_mut().set_program(flow, uid, fields)?;
        self.note_accepted(Accepted::SetProgram { flow, uid, fields });
        Ok(())
    }
    fn update(&mut self, flow: FlowId, fields: &[(Field, i64)]) -> Result<(), DatapathError> {
        self.inner_mut().update(flow, fields)?;
        self.note_accepted(Accepted::Update { flow, fields });
        Ok(())
    }
    fn set_first(&mut self, uid: ProgramUid, fields: &[(Field, i64)]) -> Result<(), DatapathError> {
        self.inner_mut().set_first(uid, fields)
    }
    fn is_running(&mut self, flow: FlowId, uid: ProgramUid) -> Result<bool, DatapathError> {
        self.inner_mut().is_running(flow, uid)
    }
    fn ensure_program(
        &mut self,
        flow: FlowId,
        uid: ProgramUid,
        fields: &[(Field, i64)],
    ) -> Result<bool, DatapathError> {
        let was_set = self.inner_mut().ensure_program(flow, uid, fields)?;
        if was_set {
            self.note_accepted(Accepted::SetProgram { flow, uid, fields });
        }
        Ok(was_set)
    }
    fn clear_first(&mut self, hook: Hook) {
        self.inner_mut().clear_first(hook);
    }
    fn requested(&self, flow: FlowId) -> Option<&str> {
        self.inner().requested(flow)
    }
    fn release(&mut self, flow: FlowId) -> Result<(), DatapathError> {
        self.inner_mut().release(flow)?;
        self.note_accepted(Accepted::Release { flow });
        Ok(())
    }
    fn define_slot(&mut self, slot: u8, shape: &Shape) -> Result<(), DatapathError> {
        self.inner_mut().define_slot(slot, shape)
    }
    fn push(&mut self, slot: u8, image: &[u64], part: Part) -> Result<(), DatapathError> {
        self.inner_mut().push(slot, image, part)
    }
    fn share(&mut self, slot: u8, share: u16) -> Result<(), DatapathError> {
        self.inner_mut().share(slot, share)
    }
    fn promote(&mut self, slot: u8) -> Result<(), DatapathError> {
        self.inner_mut().promote(slot)
    }
    fn rollback(&mut self, slot: u8) -> Result<(), DatapathError> {
        self.inner_mut().rollback(slot)
    }
    fn slots(&mut self) -> Vec<SlotStats> {
        self.inner_mut().slots()
    }
    fn heartbeat(&mut self) {
        self.inner_mut().heartbeat();
    }
    fn flows(&mut self) -> Vec<FlowStats> {
        self.forward_flows()
    }
    fn poll(&mut self, max: usize, events: &mut Vec<Event>) -> usize {
        self.forward_poll(max, events)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::datapath::ON_ACKS;
    use crate::fake::FakeDatapath;
    use crate::flow::FlowInfo;

    const FLOW: FlowId = FlowId(7);
    const UID: ProgramUid = ProgramUid(3);
    const PROGRAM: &str = "(def (gain 3)) (when true (:= gain 4))";

    /// A datapath around a fake, whose flows start with programs; it counts the commands that reach it.
    #[derive(Default)]
    struct Starting {
        fake: FakeDatapath,
        first: Vec<ProgramUid>,
        asked: Vec<ProgramUid>,
        cleared: Vec<Hook>,
    }

    impl Datapath for Starting {
        fn capabilities(&self) -> Capabilities {
            self.fake.capabilities()
        }
        fn install(&mut self, uid: ProgramUid, program: &Program) -> Result<(), DatapathError> {
            self.fake.install(uid, program)
        }
        fn remove(&mut self, uid: ProgramUid) -> Result<(), DatapathError> {
            self.fake.remove(uid)
        }
        fn set_program(
            &mut self,
            flow: FlowId,
            uid: ProgramUid,
            fields: &[(Field, i64)],
        ) -> Result<(), DatapathError> {
            self.fake.set_program(flow, uid, fields)
        }
        fn update(&mut self, flow: FlowId, fields: &[(Field, i64)]) -> Result<(), DatapathError> {
            self.fake.update(flow, fields)
        }
        fn set_first(&mut self, uid: ProgramUid, _: &[(Field, i64)]) -> Result<(), DatapathError> {
            self.first.push(uid);
            Ok(())
        }
        fn is_running(&mut self, _: FlowId, uid: ProgramUid) -> Result<bool, DatapathError> {
            self.asked.push(uid);
            Ok(self.first.contains(&uid))
        }
        fn clear_first(&mut self, hook: Hook) {
            self.cleared.push(hook);
        }
        fn release(&mut self, flow: FlowId) -> Result<(), DatapathError> {
            self.fake.release(flow)
        }
        fn requested(&self, flow: FlowId) -> Option<&str> {
            self.fake.requested(flow)
        }
        fn heartbeat(&mut self) {
            self.fake.heartbeat();
        }
        fn flows(&mut self) -> Vec<FlowStats> {
            self.fake.flows()
        }
        fn poll(&mut self, max: usize, events: &mut Vec<Event>) -> usize {
            self.fake.poll(max, events)
        }
    }

    /// Keeps the commands that were accepted, as text.
    #[derive(Default)]
    struct Noting {
        inner: Starting,
        accepted: Vec<String>,
    }

    impl Forward for Noting {
        forward_to!(inner);
        fn note_accepted(&mut self, command: Accepted<'_>) {
            self.accepted.push(format!("{command:?}"));
        }
    }

    #[test]
    fn every_command_reaches_the_other_datapath_and_those_accepted_are_noted() {
        let mut noting = Noting::default();
        noting.inner.fake.start(FLOW, FlowInfo::example(1400, 14_000)).requested = Some("cubic".to_owned());
        let fields = [(Field::Cwnd, 9)];
        let program = ccplane_program::compile(PROGRAM).unwrap();
        assert_eq!(noting.set_program(FLOW, UID, &fields), Err(DatapathError::NoProgram(UID)));
        noting.install(UID, &program).unwrap();
        noting.set_program(FLOW, UID, &fields).unwrap();
        noting.update(FLOW, &fields).unwrap();
        assert_eq!(noting.update(FlowId(8), &fields), Err(DatapathError::NoFlow(FlowId(8))));
        assert_eq!(noting.ensure_program(FLOW, UID, &fields), Ok(true));
        noting.set_first(UID, &[]).unwrap();
        assert_eq!(noting.ensure_program(FLOW, UID, &fields), Ok(false), "it started so");
        noting.release(FLOW).unwrap();
        let names: Vec<&str> = noting.accepted.iter().filter_map(|said| said.split(' ').next()).collect();
        let expected = ["SetProgram", "Update", "SetProgram", "Release"];
        assert_eq!(names, expected, "what is refused, or need not be done, is not noted");

        noting.clear_first(Hook::Send);
        noting.heartbeat();
        assert_eq!((noting.requested(FLOW), noting.capabilities().hooks), (Some("cubic"), ON_ACKS));
        let Starting { fake, first, asked, cleared } = &noting.inner;
        assert_eq!((&first[..], &asked[..], &cleared[..]), (&[UID][..], &[UID; 2][..], &[Hook::Send][..]));
        assert_eq!((fake.heartbeats, fake.changes.len()), (1, 3));
        assert_eq!((noting.flows().len(), noting.poll(8, &mut Vec::new())), (1, 1));
    }
}
