//! The way in which a loop of the agent waits, and the cores on which its thread runs.

use crate::config::{Agent, Unix};
use crate::confine::{Role, Threads};
use crate::privileges::{NOTHING, Powers};
use ccplane_wait::affinity::{self, Pinned};
use ccplane_wait::{Class, DispatchError, Mode, Queues, Wake, Watched};
use std::io;
use std::time::Duration;
use tracing::warn;

/// Heartbeats in one heartbeat timeout: one may be late, or lost, without harm.
const HEARTBEATS_PER_TIMEOUT: u64 = 4;

/// The way in which a loop waits.
#[derive(Clone, Debug)]
pub(super) struct Pace {
    wake: Wake,
    /// Whether cores are kept from halting while there are events.
    keep_cores_awake: bool,
    /// Whether the loop runs where those that wake it do.
    follow_cores: bool,
    poll_interval: Duration,
    /// The cores that the loop keeps to; empty: all that the process may run on.
    cores: Vec<usize>,
    /// The scheduling class of the threads on a dispatcher's core.
    class: Class,
}

/// Reasons why a loop cannot run or wait as it is to.
#[derive(Debug, thiserror::Error)]
pub(super) enum PlaceError {
    /// The cores are not there, or not allowed.
    #[error("run on cores {}: {source}", list(cores))]
    Cores { cores: Vec<usize>, source: io::Error },
    /// The system does not say on which cores the process may run.
    #[error("ask for the cores that the process may run on: {0}")]
    Allowed(io::Error),
    /// No dispatcher runs on its core, or not in its class.
    #[error("wait by a dispatcher: {0}")]
    Dispatch(#[from] DispatchError),
    /// The datapath's queues cannot be shown to the dispatcher.
    #[error("show a dispatcher the queues: {0}")]
    Queues(io::Error),
}

/// A thread on its cores, and where it waits so under a dispatcher's eyes; dropped on that thread.
pub(super) struct Placed {
    watched: Option<Watched>,
    /// The cores of the process but the dispatcher's, where there is another; empty without a dispatcher.
    beside: Vec<usize>,
    _kept: Option<Pinned>,
}

impl Pace {
    pub(super) fn new(agent: &Agent) -> Pace {
        Pace {
            wake: wake(agent.wake, agent.spin_us.get(), agent.wake_cpu_percent.get()),
            keep_cores_awake: agent.keep_cores_awake,
            follow_cores: agent.follow_cores,
            poll_interval: agent.poll_interval_ms.millis(),
            cores: agent.cores.get().to_vec(),
            class: if agent.dispatch_fifo { Class::Fifo } else { Class::Fair },
        }
    }

    /// Returns the pace of datapaths in other processes, where `unix` may override `agent`.
    pub(super) fn of_peers(self, agent: &Agent, unix: &Unix) -> Pace {
        let mode = unix.wake.unwrap_or(agent.wake);
        let spin_us = unix.spin_us.unwrap_or(agent.spin_us).get();
        let cpu_percent = unix.wake_cpu_percent.unwrap_or(agent.wake_cpu_percent).get();
        Pace { wake: wake(mode, spin_us, cpu_percent), ..self }
    }

    /// Returns the loop's way to wait.
    pub(super) fn wake(&self) -> Wake {
        self.wake
    }

    /// Whether cores are kept from halting while there are events.
    pub(super) fn keep_cores_awake(&self) -> bool {
        self.keep_cores_awake
    }

    /// Whether the loop moves to those that wake it; where a dispatcher does so, it stays on the dispatcher's core.
    pub(super) fn follows_cores(&self) -> bool {
        self.follow_cores && self.wake != Wake::Dispatch
    }

    /// Whether the loop polls after each event, so that it would keep whoever raises events from running on its core.
    pub(super) fn polls(&self) -> bool {
        matches!(self.wake, Wake::Spin { .. } | Wake::Busy)
    }

    /// The longest sleep of a loop.
    pub(super) fn poll_interval(&self) -> Duration {
        self.poll_interval
    }

    /// Moves the calling thread to its cores, and under a dispatcher where it is to wait by one: on the first of its cores, or else on
    /// the last that the process may run on. `powers` are those that the thread will keep; the dispatcher keeps none.
    pub(super) fn place(&self, powers: Powers) -> Result<Placed, PlaceError> {
        let keep = |cores: &[usize]| {
            affinity::keep_to(cores).map_err(|source| PlaceError::Cores { cores: cores.to_vec(), source })
        };
        let allowed = affinity::cores().map_err(PlaceError::Allowed)?;
        let kept = if self.cores.is_empty() { None } else { Some(keep(&self.cores)?) };
        let (watched, beside) = if self.wake == Wake::Dispatch {
            let core = self.cores.first().or(allowed.last()).copied().unwrap_or(0);
            let role = powers.role.map(|_| Role::Plain);
            let none = Powers { capabilities: NOTHING, role };
            let settle = move || none.keep_only(Threads::This);
            let watched = Watched::join(core, self.class, settle, Queues::default())?;
            (Some(watched), allowed.into_iter().filter(|other| *other != core).collect())
        } else {
            (None, Vec::new())
        };
        Ok(Placed { watched, beside, _kept: kept })
    }
}

impl Placed {
    /// Shows the queues to the thread's dispatcher, if it has one.
    pub(super) fn watch(&self, queues: impl FnOnce() -> io::Result<Queues>) -> Result<(), PlaceError> {
        if let Some(watched) = &self.watched {
            watched.set_queues(queues().map_err(PlaceError::Queues)?);
        }
        Ok(())
    }

    /// The way to sleep under the dispatcher's eyes.
    pub(super) fn watched(&self) -> Option<&Watched> {
        self.watched.as_ref()
    }

    /// Lets the thread, and what it starts, run beside the dispatcher's core until the answer is dropped.
    ///
    /// What it starts is not under SCHED_FIFO, and a dispatcher that is would leave it next to nothing of its core.
    pub(super) fn aside(&self) -> Option<Pinned> {
        if self.beside.is_empty() {
            return None;
        }
        affinity::keep_to(&self.beside).inspect_err(|error| warn!(%error, "leave the dispatcher's core")).ok()
    }

    /// Ends the dispatcher's looks, and with them its hold on the queues.
    pub(super) fn unwatch(&mut self) {
        self.watched = None;
    }
}

fn wake(mode: Mode, spin_us: u64, cpu_percent: u64) -> Wake {
    mode.with(u32::try_from(spin_us).unwrap_or(u32::MAX), u8::try_from(cpu_percent).unwrap_or(u8::MAX))
}

fn list(cores: &[usize]) -> String {
    cores.iter().map(usize::to_string).collect::<Vec<_>>().join(", ")
}

/// Time between two heartbeats, microseconds.
pub(super) fn heartbeat_us(agent: &Agent) -> u64 {
    agent.heartbeat_timeout_ms.get() * 1000 / HEARTBEATS_PER_TIMEOUT
}

#[cfg(test)]
impl Pace {
    /// Any core, nothing else but this.
    pub(super) fn plain(wake: Wake, poll_interval: Duration) -> Pace {
        let (keep_cores_awake, follow_cores) = (false, false);
        Pace { wake, keep_cores_awake, follow_cores, poll_interval, cores: Vec::new(), class: Class::Fair }
    }

    /// The same, with idle cores kept awake.
    pub(super) fn awake(self) -> Pace {
        Pace { keep_cores_awake: true, ..self }
    }

    /// The same on these cores.
    pub(super) fn on(self, cores: Vec<usize>) -> Pace {
        Pace { cores, ..self }
    }
}
