//! One turn of the loop around a datapath.

use crate::action::DatapathId;
use crate::core::Core;
use crate::limits::MAX_EVENTS_PER_DRIVE;
use ccplane_contract::{Datapath, Event};

/// Work done in one turn.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Driven {
    /// Events taken. [`MAX_EVENTS_PER_DRIVE`] means that more may wait.
    pub events: usize,
    pub actions: usize,
    /// Those among them that the datapath refused.
    pub refused: usize,
}

/// Passes the datapath's events to the core, and carries out the core's commands.
///
/// If the datapath dropped events, the core is given the list of its flows. The states of policies, and flows that may
/// change their arm, are polled from time to time.
pub fn drive(core: &mut Core, id: DatapathId, datapath: &mut dyn Datapath, now_us: u64) -> Driven {
    let mut events = std::mem::take(&mut core.events);
    let mut driven = Driven { events: datapath.poll(MAX_EVENTS_PER_DRIVE, &mut events), ..Driven::default() };
    for event in events.drain(..) {
        if let Event::Created { flow, .. } = &event
            && let Some(name) = datapath.requested(*flow)
        {
            core.request(id, *flow, name);
        }
        core.event(id, event, now_us);
    }
    core.events = events;
    if core.take_missed(id) {
        core.reconcile(id, datapath.flows(), now_us);
    }
    core.tick(now_us);
    if core.wants_slots(id, now_us) {
        core.observe_slots(id, &datapath.slots(), &datapath.flows(), now_us);
    }
    if core.wants_sample(id, now_us) {
        core.sample(id, &datapath.flows(), now_us);
    }
    if core.wants_windows(id) {
        core.announce(id, &datapath.flows());
    }
    while let Some(action) = core.next_action(id) {
        let result = action.command.execute(datapath);
        driven.actions += 1;
        driven.refused += usize::from(result.is_err());
        core.result(action.id, result);
    }
    driven
}

/// Code that runs after each turn of a core in the core's own time, such as a learner beside simulated flows.
pub trait Companion {
    /// Takes rows and decisions from `core` and may propose snapshots; `now_us` is the core's time, microseconds.
    fn after_turn(&mut self, core: &mut Core, now_us: u64);

    /// Makes the turn: as [`drive`], but for a companion that watches what passes between the core and the datapath.
    fn drive(&mut self, core: &mut Core, id: DatapathId, datapath: &mut dyn Datapath, now_us: u64) -> Driven {
        drive(core, id, datapath, now_us)
    }
}
