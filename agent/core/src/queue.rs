//! The actions of one datapath: those that wait, and those whose end is not known yet.

use crate::action::{Action, ActionId, Command, DatapathId, Fields};
use crate::catalog::CommandError;
use crate::limits::MAX_QUEUED_COMMANDS;
use ccplane_contract::{FlowId, ProgramUid};
use std::collections::{BTreeMap, VecDeque};

/// An action that was taken, as far as its result matters.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Waiting {
    Install(ProgramUid),
    Remove(ProgramUid),
    SetProgram(FlowId),
    Update(FlowId),
    SetFirst(ProgramUid),
    ClearFirst,
    Release(FlowId),
    Heartbeat,
    DefineSlot(u8),
    /// A push, another share, a promotion or a roll-back.
    Deploy(u8),
}

pub(crate) struct Queue {
    datapath: DatapathId,
    next: u64,
    /// Releases and installs are as many as flows and programs, which are bounded; a slot has two of its own at most.
    actions: VecDeque<Action>,
    /// By number, ascending, as they were taken.
    waiting: VecDeque<(u64, Waiting)>,
    heartbeat_queued: bool,
    releases: usize,
    /// Flows whose release was taken, and whether it has failed.
    releasing: BTreeMap<FlowId, bool>,
}

impl Queue {
    pub fn new(datapath: DatapathId, first: u64) -> Queue {
        Queue {
            datapath,
            next: first,
            actions: VecDeque::new(),
            waiting: VecDeque::new(),
            heartbeat_queued: false,
            releases: 0,
            releasing: BTreeMap::new(),
        }
    }

    #[inline]
    pub fn push(&mut self, command: Command) {
        let id = ActionId { datapath: self.datapath, number: self.next };
        self.next += 1;
        self.releases += usize::from(matches!(command, Command::Release { .. }));
        self.actions.push_back(Action { id, command });
    }

    /// Flows have ended, or are taken in after all: they need no release any more.
    pub fn forget(&mut self, is_over: impl Fn(FlowId) -> bool) {
        self.releasing.retain(|flow, _| !is_over(*flow));
        if self.releases > 0 {
            let before = self.actions.len();
            self.actions.retain(|a| !matches!(a.command, Command::Release { flow } if is_over(flow)));
            self.releases -= before - self.actions.len();
        }
    }

    /// Drops what was asked for a flow's program before, since another algorithm takes the flow.
    pub fn drop_commands(&mut self, of: FlowId) {
        self.actions.retain(|a| match a.command {
            Command::SetProgram { flow, .. }
            | Command::EnsureProgram { flow, .. }
            | Command::Update { flow, .. } => flow != of,
            _ => true,
        });
    }

    /// Takes the result of a release. If it failed and the flow lives, the next heartbeat asks again.
    pub fn released(&mut self, flow: FlowId, failed: bool) {
        if failed {
            self.releasing.entry(flow).and_modify(|failed| *failed = true);
        } else {
            self.releasing.remove(&flow);
        }
    }

    fn release_again(&mut self) {
        let failed: Vec<FlowId> =
            self.releasing.iter().filter(|(_, failed)| **failed).map(|(flow, _)| *flow).collect();
        self.releasing.retain(|_, failed| !*failed);
        failed.into_iter().for_each(|flow| self.push(Command::Release { flow }));
    }

    /// Pushes a command of an algorithm, whose fields `fill` writes; unless it fails, or too many wait.
    #[inline]
    pub fn push_bounded(
        &mut self,
        command: Command,
        fill: impl FnOnce(&mut Fields) -> Result<(), CommandError>,
    ) -> Result<(), CommandError> {
        let is_full = self.actions.len() >= MAX_QUEUED_COMMANDS;
        self.push(command);
        // Filled where they wait: a copy of what was just written, at another width, waits until all of it is written.
        let filled = match self.actions.back_mut().map(|action| &mut action.command) {
            Some(
                Command::SetProgram { fields, .. }
                | Command::EnsureProgram { fields, .. }
                | Command::Update { fields, .. }
                | Command::SetFirst { fields, .. },
            ) => fill(fields),
            _ => Ok(()),
        };
        let full = || Err(CommandError::QueueFull { limit: MAX_QUEUED_COMMANDS });
        let pushed = filled.and_then(|()| if is_full { full() } else { Ok(()) });
        if pushed.is_err() {
            self.actions.pop_back();
            self.next -= 1;
        }
        pushed
    }

    /// Queues a heartbeat, unless one waits already, and the releases that have failed.
    pub fn heartbeat(&mut self) {
        self.release_again();
        if !std::mem::replace(&mut self.heartbeat_queued, true) {
            self.push(Command::Heartbeat);
        }
    }

    /// The next action that is still valid.
    #[inline]
    pub fn pop(&mut self, mut valid: impl FnMut(&Command) -> bool) -> Option<Action> {
        loop {
            let action = self.actions.front()?;
            if !valid(&action.command) {
                self.actions.pop_front();
                continue;
            }
            let waiting = match action.command {
                Command::Update { flow, .. } => Waiting::Update(flow),
                Command::Install { uid, .. } => Waiting::Install(uid),
                Command::Remove { uid } => Waiting::Remove(uid),
                Command::SetProgram { flow, .. } | Command::EnsureProgram { flow, .. } => {
                    Waiting::SetProgram(flow)
                }
                Command::SetFirst { uid, .. } => Waiting::SetFirst(uid),
                Command::ClearFirst { .. } => Waiting::ClearFirst,
                Command::Release { flow } => {
                    self.releases -= 1;
                    self.releasing.insert(flow, false);
                    Waiting::Release(flow)
                }
                Command::Heartbeat => {
                    self.heartbeat_queued = false;
                    Waiting::Heartbeat
                }
                Command::DefineSlot { slot, .. } => Waiting::DefineSlot(slot),
                Command::Push { slot, .. }
                | Command::Share { slot, .. }
                | Command::Promote { slot }
                | Command::Rollback { slot } => Waiting::Deploy(slot),
            };
            self.waiting.push_back((action.id.number, waiting));
            return self.actions.pop_front();
        }
    }

    /// Takes the action off the list of those unanswered; `None` if it is not there.
    pub fn answered(&mut self, id: ActionId) -> Option<Waiting> {
        // Almost always the one that was taken last.
        if self.waiting.back().is_some_and(|(number, _)| *number == id.number) {
            return self.waiting.pop_back().map(|(_, waiting)| waiting);
        }
        let at = self.waiting.binary_search_by_key(&id.number, |(number, _)| *number).ok()?;
        self.waiting.remove(at).map(|(_, waiting)| waiting)
    }

    pub fn next_number(&self) -> u64 {
        self.next
    }

    /// Actions that wait, and those that were taken and not answered.
    pub fn len(&self) -> (usize, usize) {
        let failed = self.releasing.values().filter(|failed| **failed).count();
        (self.actions.len() + failed, self.waiting.len())
    }

    pub fn is_idle(&self) -> bool {
        self.actions.is_empty() && self.waiting.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ccplane_contract::Field;

    fn update() -> Command {
        Command::Update { flow: FlowId(1), fields: Fields::new() }
    }

    /// A command whose fields cannot be filled takes neither room nor a number.
    #[test]
    fn a_command_that_cannot_be_filled_is_not_there() {
        let mut queue = Queue::new(DatapathId(3), 7);
        let refused = queue.push_bounded(update(), |fields| {
            fields.push((Field::Cwnd, 1));
            Err(CommandError::NoProgram)
        });
        assert_eq!(refused, Err(CommandError::NoProgram));
        assert!(queue.is_idle());
        let fill = |fields: &mut Fields| {
            fields.push((Field::Rate, 9));
            Ok(())
        };
        queue.push_bounded(update(), fill).unwrap();
        let action = queue.pop(|_| true).unwrap();
        assert_eq!(action.id.number, 7);
        assert_eq!(
            action.command,
            Command::Update { flow: FlowId(1), fields: Fields::from_slice(&[(Field::Rate, 9)]) }
        );
        assert_eq!(queue.answered(action.id), Some(Waiting::Update(FlowId(1))));
    }

    #[test]
    fn a_full_queue_takes_no_more_of_algorithms() {
        let mut queue = Queue::new(DatapathId(3), 0);
        for _ in 0..MAX_QUEUED_COMMANDS {
            queue.push_bounded(update(), |_| Ok(())).unwrap();
        }
        let full = Err(CommandError::QueueFull { limit: MAX_QUEUED_COMMANDS });
        assert_eq!(queue.push_bounded(update(), |_| Ok(())), full);
        assert_eq!(
            queue.push_bounded(update(), |_| Err(CommandError::NoProgram)),
            Err(CommandError::NoProgram)
        );
        assert_eq!(queue.next_number(), MAX_QUEUED_COMMANDS as u64);
        queue.push(Command::Release { flow: FlowId(1) });
        assert_eq!(queue.actions.len(), MAX_QUEUED_COMMANDS + 1);
    }
}
