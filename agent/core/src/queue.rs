//! The actions of one datapath: those that wait, and those whose end is not known yet.

use crate::{Action, ActionId, Command, CommandError, DatapathId, MAX_QUEUED_COMMANDS};
use ccplane_contract::{FlowId, ProgramUid};
use std::collections::VecDeque;

/// An action that was taken, as far as its result matters.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Waiting {
    Install(ProgramUid),
    SetProgram(FlowId),
    Update(FlowId),
    Release,
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
}

impl Queue {
    pub fn new(datapath: DatapathId, first: u64) -> Queue {
        Queue {
            datapath,
            next: first,
            actions: VecDeque::new(),
            waiting: VecDeque::new(),
            heartbeat_queued: false,
        }
    }

    pub fn push(&mut self, command: Command) {
        let id = ActionId { datapath: self.datapath, number: self.next };
        self.next += 1;
        self.actions.push_back(Action { id, command });
    }

    /// Pushes a command of an algorithm, unless too many wait.
    pub fn push_bounded(&mut self, command: Command) -> Result<(), CommandError> {
        if self.actions.len() >= MAX_QUEUED_COMMANDS {
            return Err(CommandError::QueueFull { limit: MAX_QUEUED_COMMANDS });
        }
        self.push(command);
        Ok(())
    }

    /// Queues a heartbeat, unless one waits already.
    pub fn heartbeat(&mut self) {
        if !std::mem::replace(&mut self.heartbeat_queued, true) {
            self.push(Command::Heartbeat);
        }
    }

    /// The next action that is still valid.
    #[inline]
    pub fn pop(&mut self, valid: impl Fn(&Command) -> bool) -> Option<Action> {
        loop {
            let action = self.actions.front()?;
            if !valid(&action.command) {
                self.actions.pop_front();
                continue;
            }
            let waiting = match action.command {
                Command::Update { flow, .. } => Waiting::Update(flow),
                Command::Install { uid, .. } => Waiting::Install(uid),
                Command::SetProgram { flow, .. } => Waiting::SetProgram(flow),
                Command::Release { .. } => Waiting::Release,
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

    /// What the action was, if its result was still owed.
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

    pub fn is_idle(&self) -> bool {
        self.actions.is_empty() && self.waiting.is_empty()
    }
}
