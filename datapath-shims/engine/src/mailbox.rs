//! The state that a flow shares with the agent's handle: a mailbox of pending updates, and the flow's samples.

use crate::controller::FlowController;
use crate::program::{Installed, Loaded};
use crate::runner::{Runnable, Staged};
use crate::sample::{Sample, SampleCell};
use crate::sync::Ordering::{Acquire, Release};
use crate::sync::{AtomicBool, Mutex, MutexGuard};
use ccplane_contract::registry::Fields;
use ccplane_contract::{FlowId, FlowInfo, Mode, ProgramUid, TransportStats};
use ccplane_infer::FlowPolicy;
use std::sync::{Arc, PoisonError, TryLockError};

/// One flow, shared between its own thread and the agent's.
#[derive(Debug)]
pub(crate) struct SharedFlow {
    pub(crate) id: FlowId,
    pub(crate) info: FlowInfo,
    pub(crate) samples: SampleCell,
    /// Whether the mailbox holds anything. Changed only while the mailbox is locked.
    has_updates: AtomicBool,
    mailbox: Mutex<Mailbox>,
}

/// Updates that the agent has staged and the flow has not taken yet.
#[derive(Default, Debug)]
pub(crate) struct Mailbox {
    pub(crate) staged: Staged<Loaded>,
    /// Whether the flow is to drop its program, before it takes what is staged.
    released: bool,
    /// The program that the agent set last; only the handle uses it.
    pub(crate) set: Option<Arc<Installed>>,
    /// The program that runs on the flow.
    running: Option<ProgramUid>,
    /// The program that ran before, which the handle drops. There is at most one between two visits of the handle.
    discarded: Option<Loaded>,
}

/// Programs that the handle drops after it has unlocked the mailbox.
pub(crate) struct Discarded {
    _programs: [Option<Loaded>; 2],
    _set: Option<Arc<Installed>>,
}

impl Mailbox {
    /// Stages a program and its fields, which must have passed [`ccplane_contract::check_fields`].
    pub(crate) fn set(&mut self, program: Arc<Installed>, loaded: Loaded, fields: Fields<'_>) -> Discarded {
        let unused = self.staged.stage_program(loaded, fields);
        Discarded { _programs: [unused, self.discarded.take()], _set: self.set.replace(program) }
    }

    /// Stages the removal of the program.
    pub(crate) fn release(&mut self) -> Discarded {
        self.released = true;
        Discarded { _programs: [self.staged.clear(), self.discarded.take()], _set: self.set.take() }
    }

    /// Takes the program that the flow no longer runs.
    pub(crate) fn take_discarded(&mut self) -> Discarded {
        Discarded { _programs: [None, self.discarded.take()], _set: None }
    }

    /// Whether the flow runs the program, or will at its next ACK.
    pub(crate) fn uses(&self, uid: ProgramUid) -> bool {
        let running = self.running.filter(|_| !self.released);
        running == Some(uid) || self.set.as_ref().is_some_and(|set| set.named.uid == uid)
    }
}

/// The part of a flow that takes the changes which the agent has staged.
pub(crate) trait TakesChanges {
    /// Removes the program and returns it.
    fn drop_program(&mut self) -> Option<Loaded>;

    /// Goes over to the mode in which the flow would run now, and returns it; `has_next` says that a program is staged.
    fn enter_mode(&mut self, agent_silent: bool, has_next: bool) -> Mode;

    /// Applies staged changes at this time, microseconds. Returns the program that another one replaced.
    fn take_staged(&mut self, staged: &mut Staged<Loaded>, now_us: i64) -> Option<Loaded>;

    /// The program that runs.
    fn running_uid(&self) -> Option<ProgramUid>;
}

impl TakesChanges for FlowController<Loaded> {
    fn drop_program(&mut self) -> Option<Loaded> {
        self.release()
    }

    fn enter_mode(&mut self, agent_silent: bool, has_next: bool) -> Mode {
        let mode = self.mode_now(agent_silent, has_next);
        self.choose(mode);
        mode
    }

    fn take_staged(&mut self, staged: &mut Staged<Loaded>, now_us: i64) -> Option<Loaded> {
        self.take(staged, now_us)
    }

    fn running_uid(&self) -> Option<ProgramUid> {
        self.runner().running().map(Runnable::uid)
    }
}

impl SharedFlow {
    pub(crate) fn new(id: FlowId, info: FlowInfo, now_us: u64) -> SharedFlow {
        let mss_bytes = info.mss_bytes.max(1);
        let cwnd_packets = (info.init_cwnd_bytes / u64::from(mss_bytes)).max(1);
        let rtt_us = info.min_rtt_us.unwrap_or(0);
        let sample = Sample {
            mode: Mode::NativeNoProgram,
            at_us: now_us,
            transport: TransportStats {
                srtt_us: rtt_us,
                min_rtt_us: rtt_us,
                ..TransportStats::new(mss_bytes, u32::try_from(cwnd_packets).unwrap_or(u32::MAX))
            },
            policy: FlowPolicy::default(),
        };
        SharedFlow {
            id,
            info,
            samples: SampleCell::new(sample),
            has_updates: AtomicBool::new(false),
            mailbox: Mutex::default(),
        }
    }

    /// Locks the mailbox to stage something.
    pub(crate) fn stage<T>(&self, stage: impl FnOnce(&mut Mailbox) -> T) -> T {
        let mut mailbox = self.lock();
        let staged = stage(&mut mailbox);
        self.has_updates.store(mailbox.released || !mailbox.staged.is_empty(), Release);
        staged
    }

    /// Locks the mailbox for the handle.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Mailbox> {
        self.mailbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the mailbox holds anything for the flow.
    #[inline]
    pub(crate) fn has_updates(&self) -> bool {
        self.has_updates.load(Acquire)
    }

    /// Takes the updates at this time, microseconds, and chooses the mode, which is returned. If the handle holds the lock,
    /// the next ACK or packet does it.
    #[cold]
    pub(crate) fn take(&self, flow: &mut impl TakesChanges, agent_silent: bool, now_us: i64) -> Mode {
        let mut mailbox = match self.mailbox.try_lock() {
            Ok(mailbox) => mailbox,
            Err(TryLockError::Poisoned(error)) => error.into_inner(),
            Err(TryLockError::WouldBlock) => {
                return flow.enter_mode(agent_silent, false);
            }
        };
        if std::mem::take(&mut mailbox.released) {
            mailbox.discarded = flow.drop_program();
        }
        let mode = flow.enter_mode(agent_silent, mailbox.staged.program().is_some());
        if mode == Mode::Program
            && let Some(before) = flow.take_staged(&mut mailbox.staged, now_us)
        {
            mailbox.discarded = Some(before);
        }
        mailbox.running = flow.running_uid();
        // What a silent agent or one without a program left stays for later.
        self.has_updates.store(!mailbox.staged.is_empty(), Release);
        mode
    }
}
