//! A thread that polls for many others, and calls the one whose queue has something.
//!
//! It runs on the core of those that it calls: they cost it nothing while they sleep, and a call crosses no core. It
//! gives the core away right after the call, which lets them run at once. It looks at marks only ([`Ready`]) and
//! takes nothing from a queue, so that an item is handled by its owner alone.

use crate::affinity::{self, Pinned};
use crate::parker::Parker;
use crate::ready::Ready;
use crate::sys;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;

/// Looks at the marks between two at whether to end.
pub(crate) const POLLS_PER_ROUND: u32 = 64;
/// Rounds without a mark after which the core is offered to others.
pub(crate) const ROUNDS_PER_YIELD: u32 = 16;
/// The least real-time priority, which is above all threads without one.
pub const FIFO_PRIORITY: i32 = 1;

/// Scheduling classes of the threads on a dispatcher's core.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Class {
    /// Like all others: a call may be followed by a thread of another program.
    Fair,
    /// By SCHED_FIFO, in the order of calls; other threads get what is left of the core.
    Fifo,
}

/// Reasons why there is no dispatcher.
#[derive(Debug, thiserror::Error)]
pub enum DispatchError {
    /// A queue has no owner, or an owner no queue.
    #[error("{queues} queues have {owners} owners")]
    Owners { queues: usize, owners: usize },
    /// No thread can be started.
    #[error("start a thread: {0}")]
    Thread(io::Error),
    /// The thread does not get its core.
    #[error("run on core {core}: {source}")]
    Core { core: usize, source: io::Error },
    /// The thread may not be scheduled so; CAP_SYS_NICE allows it.
    #[error("SCHED_FIFO: {0}")]
    Class(io::Error),
}

/// Counts of a dispatcher since its start.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Dispatched {
    /// Marks that were taken.
    pub marks: u64,
    /// Calls of threads that slept.
    pub wakes: u64,
}

#[derive(Debug, Default)]
struct SharedDispatch {
    stop: AtomicBool,
    marks: AtomicU64,
    wakes: AtomicU64,
}

/// A running dispatcher; dropped, it ends, and calls every owner once, so that none sleeps for ever.
#[derive(Debug)]
pub struct Dispatcher {
    shared: Arc<SharedDispatch>,
    owners: Arc<[Arc<Parker>]>,
    core: usize,
    thread: Option<JoinHandle<()>>,
}

impl Dispatcher {
    /// Starts a dispatcher on `core`, where `owners[n]` is the place of the thread that queue `n` belongs to.
    ///
    /// # Errors
    /// [`DispatchError`]
    pub fn start(
        core: usize,
        class: Class,
        ready: Arc<Ready>,
        owners: Vec<Arc<Parker>>,
    ) -> Result<Dispatcher, DispatchError> {
        if owners.len() != ready.queues() {
            return Err(DispatchError::Owners { queues: ready.queues(), owners: owners.len() });
        }
        let owners: Arc<[Arc<Parker>]> = owners.into();
        let shared = Arc::new(SharedDispatch::default());
        let (state, parkers) = (Arc::clone(&shared), Arc::clone(&owners));
        let thread = start_thread("ccp-dispatch", core, class, move || dispatch(&state, &ready, &parkers));
        // Whoever sleeps already would not be called any more.
        let thread = thread.inspect_err(|_| owners.iter().for_each(|owner| _ = owner.call()))?;
        Ok(Dispatcher { shared, owners, core, thread: Some(thread) })
    }

    /// The core on which it runs, and which its owners are to run on.
    pub fn core(&self) -> usize {
        self.core
    }

    /// Returns the counts since the start.
    pub fn dispatched(&self) -> Dispatched {
        let load = |count: &AtomicU64| count.load(Ordering::Relaxed);
        Dispatched { marks: load(&self.shared.marks), wakes: load(&self.shared.wakes) }
    }
}

impl Drop for Dispatcher {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        // It has nothing to tell: a panic is in the log already.
        let _ = self.thread.take().map(JoinHandle::join);
        self.owners.iter().for_each(|owner| _ = owner.call());
    }
}

/// Prepares the calling thread, which an owner does, too: both are on one core, and scheduled alike.
///
/// # Errors
/// The core is not there or not allowed, or the class is not.
pub fn begin(core: usize, class: Class) -> Result<Pinned, DispatchError> {
    if class == Class::Fifo {
        // First: on the dispatcher's core a thread of another class would hardly run to do so.
        sys::set_fifo(FIFO_PRIORITY).map_err(DispatchError::Class)?;
    }
    affinity::pin(core).map_err(|source| DispatchError::Core { core, source })
}

/// Starts a thread of this name and core, which runs `run` once it is there.
pub(crate) fn start_thread(
    name: &str,
    core: usize,
    class: Class,
    run: impl FnOnce() + Send + 'static,
) -> Result<JoinHandle<()>, DispatchError> {
    let (started, outcome) = std::sync::mpsc::sync_channel(1);
    let on_core = move || {
        let _pinned = match begin(core, class) {
            Ok(pinned) => pinned,
            Err(error) => {
                let _ = started.send(Err(error));
                return;
            }
        };
        let _ = started.send(Ok(()));
        run();
    };
    let thread = std::thread::Builder::new().name(format!("{name}-{core}")).spawn(on_core);
    let thread = thread.map_err(DispatchError::Thread)?;
    let error = match outcome.recv() {
        Ok(Ok(())) => return Ok(thread),
        Ok(Err(error)) => error,
        Err(_) => DispatchError::Thread(io::ErrorKind::BrokenPipe.into()),
    };
    // It has nothing to tell beyond that.
    let _ = thread.join();
    Err(error)
}

fn dispatch(shared: &SharedDispatch, ready: &Ready, owners: &[Arc<Parker>]) {
    let mut empty_rounds = 0;
    while !shared.stop.load(Ordering::Relaxed) {
        let found = (0..POLLS_PER_ROUND).any(|_| {
            std::hint::spin_loop();
            !ready.is_empty()
        });
        if found {
            empty_rounds = 0;
            let mut wakes = 0;
            let marks = ready.take(|queue| {
                wakes += u64::from(owners.get(queue).is_some_and(|owner| owner.call()));
            });
            shared.marks.fetch_add(marks as u64, Ordering::Relaxed);
            shared.wakes.fetch_add(wakes, Ordering::Relaxed);
            // The owners are on this core, and run now.
            std::thread::yield_now();
            continue;
        }
        empty_rounds += 1;
        if empty_rounds >= ROUNDS_PER_YIELD {
            empty_rounds = 0;
            std::thread::yield_now();
        }
    }
}
