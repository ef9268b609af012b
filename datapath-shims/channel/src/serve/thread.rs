//! A thread that serves a datapath.

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ccplane_contract::Datapath;
use ccplane_wire::v2::Wake;
use tracing::{error, warn};

use super::{Mismatch, ServeOptions, Served};
use crate::Waker;

/// Longest sleep of the thread, between two searches for an agent or two heartbeats.
const NAP: Duration = Duration::from_millis(50);
/// Polls of the ring between two reads of the clock.
const POLLS_PER_CLOCK_READ: usize = 64;
/// Longest time that the thread polls without yielding its core to other threads.
const YIELD_EVERY: Duration = Duration::from_micros(50);

/// A datapath that is being served; dropping it takes leave of the agent and ends the thread.
#[derive(Debug)]
pub struct Link {
    shared: Arc<Shared>,
    waker: Waker,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    stop: AtomicBool,
    connected: AtomicBool,
    mismatch: Mutex<Option<Mismatch>>,
    commands: AtomicU64,
}

impl Link {
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

impl Drop for Link {
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
) -> io::Result<Link> {
    let shared = Arc::new(Shared::default());
    let waker = options.waker.clone();
    let mut served = Served::connect(agent, options);
    let state = Arc::clone(&shared);
    let run = move || {
        let (mut busy, mut mismatch) = (Instant::now(), None);
        while !state.stop.load(Ordering::Relaxed) {
            let turn = served.turn(&mut *datapath, now_us());
            state.connected.store(turn.connected, Ordering::Relaxed);
            if served.mismatch() != mismatch.as_ref() {
                mismatch = served.mismatch().cloned();
                state.mismatch.lock().unwrap_or_else(PoisonError::into_inner).clone_from(&mismatch);
            }
            state.commands.fetch_add(turn.commands as u64, Ordering::Relaxed);
            if turn.is_busy() {
                busy = Instant::now();
                continue;
            }
            let spin = match served.wake() {
                Wake::Sleep => Duration::ZERO,
                Wake::Spin { us } => Duration::from_micros(u64::from(us)),
                Wake::Busy => Duration::MAX,
            };
            if !turn.connected || busy.elapsed() >= spin {
                if let Err(error) = served.wait(NAP) {
                    warn!(%error, "wait for the agent");
                    std::thread::sleep(NAP);
                }
            } else {
                poll_until(&served, spin.min(YIELD_EVERY));
            }
        }
        served.farewell();
    };
    let thread = std::thread::Builder::new().name("ccp-served".to_owned()).spawn(run)?;
    Ok(Link { shared, waker, thread: Some(thread) })
}

/// Polls for work, for at most this long, then yields the processor.
fn poll_until(served: &Served, at_most: Duration) {
    let start = Instant::now();
    loop {
        for _ in 0..POLLS_PER_CLOCK_READ {
            if served.is_ready() {
                return;
            }
            std::hint::spin_loop();
        }
        if start.elapsed() >= at_most {
            return std::thread::yield_now();
        }
    }
}
