//! What a flow and the agent's handle share: a desk where the agent leaves what it stages, and the flow's samples.

use crate::helm::Helm;
use crate::program::{Installed, Loaded};
use crate::sample::{Sample, SampleCell};
use crate::steering::{Ready, Staged};
use crate::sync::Ordering::{Acquire, Release};
use crate::sync::{AtomicBool, Mutex, MutexGuard};
use ccplane_contract::{FlowId, FlowInfo, Mode, ProgramUid};
use ccplane_infer::FlowPolicy;
use std::sync::{Arc, PoisonError, TryLockError};

/// One flow, as both sides see it.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) id: FlowId,
    pub(crate) info: FlowInfo,
    pub(crate) samples: SampleCell,
    /// Something lies on the desk. Changed only with the desk locked.
    has_news: AtomicBool,
    desk: Mutex<Desk>,
}

/// Where the agent leaves what it stages.
#[derive(Default, Debug)]
pub(crate) struct Desk {
    pub(crate) staged: Staged<Loaded>,
    /// The flow's program is to be forgotten, before what is staged is looked at.
    released: bool,
    /// What the agent set last; the handle's own.
    pub(crate) set: Option<Arc<Installed>>,
    /// What runs on the flow.
    running: Option<ProgramUid>,
    /// What ran on it, for the handle to drop. At most one is left between two looks of the handle.
    spent: Option<Loaded>,
}

/// What the handle is to drop, with the desk unlocked.
pub(crate) struct Spent {
    _programs: [Option<Loaded>; 2],
    _set: Option<Arc<Installed>>,
}

impl Desk {
    /// Stages a program and its fields, which must have passed [`ccplane_contract::check_fields`].
    pub(crate) fn set(&mut self, program: Arc<Installed>, loaded: Loaded, fields: Fields<'_>) -> Spent {
        let unused = self.staged.stage_program(loaded, fields);
        Spent { _programs: [unused, self.spent.take()], _set: self.set.replace(program) }
    }

    /// Stages that the program is forgotten.
    pub(crate) fn release(&mut self) -> Spent {
        self.released = true;
        Spent { _programs: [self.staged.clear(), self.spent.take()], _set: self.set.take() }
    }

    /// What the flow left to be dropped.
    pub(crate) fn sweep(&mut self) -> Spent {
        Spent { _programs: [None, self.spent.take()], _set: None }
    }

    /// Whether the flow runs the program, or is about to.
    pub(crate) fn uses(&self, uid: ProgramUid) -> bool {
        let running = self.running.filter(|_| !self.released);
        running == Some(uid) || self.set.as_ref().is_some_and(|set| set.uid == uid)
    }
}

/// Fields and their values.
pub(crate) type Fields<'a> = &'a [(ccplane_contract::Field, i64)];

impl Shared {
    pub(crate) fn new(id: FlowId, info: FlowInfo, now_us: u64) -> Shared {
        let mss_bytes = info.mss_bytes.max(1);
        let sample = Sample {
            mode: Mode::NativeNoProgram,
            at_us: now_us,
            snd_cwnd: (info.init_cwnd_bytes / u64::from(mss_bytes)).max(1),
            snd_ssthresh: u64::MAX,
            mss_bytes,
            srtt_us: info.min_rtt_us.unwrap_or(0),
            min_rtt_us: info.min_rtt_us.unwrap_or(0),
            pacing_rate: 0,
            bytes_acked: 0,
            delivered: 0,
            lost: 0,
            unacked: 0,
            faults: 0,
            reports: 0,
            policy: FlowPolicy::default(),
        };
        Shared {
            id,
            info,
            samples: SampleCell::new(sample),
            has_news: AtomicBool::new(false),
            desk: Mutex::default(),
        }
    }

    /// The handle at the desk, to stage something.
    pub(crate) fn stage<T>(&self, stage: impl FnOnce(&mut Desk) -> T) -> T {
        let mut desk = self.lock();
        let staged = stage(&mut desk);
        self.has_news.store(desk.released || !desk.staged.is_empty(), Release);
        staged
    }

    /// The handle at the desk.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Desk> {
        self.desk.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the flow has something to take.
    #[inline]
    pub(crate) fn has_news(&self) -> bool {
        self.has_news.load(Acquire)
    }

    /// The flow at its desk, at an ACK of this time: who steers, and what that takes. While the handle is there, the next ACK
    /// does it.
    #[cold]
    pub(crate) fn take(&self, helm: &mut Helm<Loaded>, agent_silent: bool, now_us: i64) {
        let mut desk = match self.desk.try_lock() {
            Ok(desk) => desk,
            Err(TryLockError::Poisoned(error)) => error.into_inner(),
            Err(TryLockError::WouldBlock) => return helm.choose(helm.mode_now(agent_silent, false)),
        };
        if std::mem::take(&mut desk.released) {
            desk.spent = helm.release();
        }
        let mode = helm.mode_now(agent_silent, desk.staged.program().is_some());
        helm.choose(mode);
        if mode == Mode::Program
            && let Some(before) = helm.take(&mut desk.staged, now_us)
        {
            desk.spent = Some(before);
        }
        desk.running = helm.steering().running().map(Ready::uid);
        // What a silent agent or one without a program left stays for later.
        self.has_news.store(!desk.staged.is_empty(), Release);
    }
}
