//! Threads and processes run on chosen cores.

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

/// Keeps this thread, and the processes and threads that it starts, on one core while it lives: whether a wake-up crosses
/// cores costs more than all the rest, and would be up to chance.
pub struct OneCore(Option<CpuSet>);

impl OneCore {
    /// The `n`th core that this thread may run on; anywhere if there are not so many.
    pub fn nth(n: usize) -> OneCore {
        OneCore::nth_of(&OneCore::all(), n)
    }

    /// The `n`th core of `cores`.
    pub fn nth_of(cores: &[usize], n: usize) -> OneCore {
        let this = Pid::from_raw(0);
        let before = sched_getaffinity(this).ok();
        let mut one = CpuSet::new();
        let found = cores.get(n).copied();
        let pinned = found.is_some_and(|n| one.set(n).is_ok()) && sched_setaffinity(this, &one).is_ok();
        OneCore(before.filter(|_| pinned))
    }

    /// The cores that this thread may run on.
    pub fn all() -> Vec<usize> {
        let set = sched_getaffinity(Pid::from_raw(0)).unwrap_or_default();
        (0..CpuSet::count()).filter(|n| set.is_set(*n).unwrap_or(false)).collect()
    }
}

/// Keeps tests apart: those that take a core under SCHED_FIFO leave no time to those that carry flows.
#[cfg(test)]
pub(crate) fn alone() -> std::sync::MutexGuard<'static, ()> {
    static ALONE: std::sync::Mutex<()> = std::sync::Mutex::new(());
    ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

impl Drop for OneCore {
    fn drop(&mut self) {
        if let Some(before) = &self.0 {
            let _ = sched_setaffinity(Pid::from_raw(0), before);
        }
    }
}
