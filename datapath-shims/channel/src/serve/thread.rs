//! A thread that serves a datapath.

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ccplane_contract::Datapath;
use ccplane_wait::{WaitStep, Waiter, sleep_time};
use tracing::{error, warn};

use super::{Mismatch, ServeOptions, Served};
use crate::waker::Waker;

/// Longest sleep of the thread, between two searches for an agent or two heartbeats.
const NAP: Duration = Duration::from_millis(50);
/// Polls of the ring between two reads of the clock.
const POLLS_PER_CLOCK_READ: usize = 64;
/// Longest time that the thread polls without yielding its core to other threads, nanoseconds.
const YIELD_EVERY_NS: u64 = 50_000;

/// A datapath that is being served; dropping it takes leave of the agent and ends the thread.
#[derive(Debug)]
pub struct ServedLink {
    shared: Arc<SharedServing>,
    waker: Waker,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct SharedServing {
    stop: AtomicBool,
    connected: AtomicBool,
    mismatch: Mutex<Option<Mismatch>>,
    commands: AtomicU64,
}

impl ServedLink {
    /// Whether there is an agent.
    pub fn is_connected(&self) -> bool {
        self.shared.connected.load(Ordering::Relaxed)
    }

    /// Returns [`Served::mismatch`].
    pub fn mismatch(&self) -> Option<Mismatch> {
        self.shared.mismatch.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Messages taken from agents so far.
    pub fn commands(&self) -> u64 {
        self.shared.commands.load(Ordering::Relaxed)
    }
}

impl Drop for ServedLink {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        self.waker.wake();
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            error!("the thread that served the datapath panicked");
        }
    }
}

/// Serves `datapath` on a thread of its own to the agent whose datapath socket is, or will be, at `agent`. `now_us` is
/// the datapath's clock.
///
/// # Errors
/// No thread can be started.
pub fn spawn(
    agent: &Path,
    mut datapath: Box<dyn Datapath + Send>,
    now_us: impl Fn() -> u64 + Send + 'static,
    options: ServeOptions,
) -> io::Result<ServedLink> {
    let shared = Arc::new(SharedServing::default());
    let waker = options.waker.clone();
    let mut served = Served::connect(agent, options);
    let state = Arc::clone(&shared);
    let run = move || {
        let start = Instant::now();
        let now_ns = || u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let (mut waiter, mut mismatch) = (Waiter::new(served.wake(), now_ns()), None);
        prepare(&mut waiter);
        while !state.stop.load(Ordering::Relaxed) {
            let turn = served.turn(&mut *datapath, now_us());
            state.connected.store(turn.connected, Ordering::Relaxed);
            if served.mismatch() != mismatch.as_ref() {
                mismatch = served.mismatch().cloned();
                state.mismatch.lock().unwrap_or_else(PoisonError::into_inner).clone_from(&mismatch);
            }
            state.commands.fetch_add(turn.commands as u64, Ordering::Relaxed);
            let at_ns = now_ns();
            if turn.is_busy() {
                waiter.event(at_ns);
                continue;
            }
            if waiter.wake() != served.wake() {
                waiter = Waiter::new(served.wake(), at_ns);
                prepare(&mut waiter);
            }
            // Without an agent there is nothing to poll.
            let step = if turn.connected { waiter.next(at_ns) } else { WaitStep::Sleep { until_ns: None } };
            match step {
                WaitStep::Poll { until_ns } => {
                    poll_until(&served, now_ns, until_ns.min(at_ns + YIELD_EVERY_NS));
                }
                WaitStep::Sleep { until_ns } => {
                    if let Err(error) = served.wait(sleep_time(until_ns, at_ns, NAP)) {
                        warn!(%error, "wait for the agent");
                        std::thread::sleep(NAP);
                    }
                }
            }
        }
        served.farewell();
    };
    let thread = std::thread::Builder::new().name("ccp-served".to_owned()).spawn(run)?;
    Ok(ServedLink { shared, waker, thread: Some(thread) })
}

/// Prepares this thread; where that fails, it waits by what sleeps usually take.
fn prepare(waiter: &mut Waiter) {
    if let Err(error) = ccplane_wait::prepare(waiter) {
        warn!(%error, "measure what a sleep takes");
    }
}

/// Polls for work until this time, then yields the processor.
fn poll_until(served: &Served, now_ns: impl Fn() -> u64, until_ns: u64) {
    loop {
        for _ in 0..POLLS_PER_CLOCK_READ {
            if served.is_ready() {
                return;
            }
            std::hint::spin_loop();
        }
        if now_ns() >= until_ns {
            return std::thread::yield_now();
        }
    }
}
