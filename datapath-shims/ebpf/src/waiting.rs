//! The agent's side of what the kernel writes for it: whether there is something, and how to wait for it.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, Release, SeqCst};
use std::sync::atomic::fence;
use std::time::Duration;

use crate::known_flows::KnownFlows;
use crate::layout::ctl;
use crate::maps::Memory;
use crate::ring::Ring;

/// The events of a datapath in the kernel, as its agent waits for them.
pub struct KernelEvents<'a> {
    memory: &'a Memory,
    ring: &'a Arc<Ring>,
    known_flows: &'a KnownFlows,
}

impl<'a> KernelEvents<'a> {
    pub(crate) fn new(
        memory: &'a Memory,
        ring: &'a Arc<Ring>,
        known_flows: &'a KnownFlows,
    ) -> KernelEvents<'a> {
        KernelEvents { memory, ring, known_flows }
    }

    /// Whether an event waits to be polled; makes no system call.
    pub fn are_there(&self) -> bool {
        !self.ring.is_empty() || self.known_flows.has_events()
    }

    /// Makes a probe of the ring of events, for another thread: true where an event waits that was not taken.
    pub fn probe(&self) -> impl Fn() -> bool + Send + use<> {
        let ring = Arc::clone(self.ring);
        move || !ring.is_empty()
    }

    /// Sleeps until an event arrives, `also` becomes readable, or `timeout` passes.
    ///
    /// # Errors
    /// The error of ppoll(2).
    pub fn wait(&self, timeout: Duration, also: Option<BorrowedFd<'_>>) -> std::io::Result<()> {
        let waiting = self.memory.ctl.u32(ctl::WAITING as usize);
        waiting.store(1, SeqCst);
        // A producer that read the flag before the store did not wake us: check again before sleeping.
        fence(SeqCst);
        let slept = if self.are_there() { Ok(()) } else { self.ring.sleep(timeout, also) };
        waiting.store(0, Release);
        slept
    }

    /// The core on which an event last found the agent asleep and woke it; `None` before.
    pub fn waker_core(&self) -> Option<usize> {
        let core = self.memory.ctl.u32(ctl::WAKER_CORE as usize).load(Relaxed);
        core.checked_sub(1).map(|core| core as usize)
    }

    /// The number of flows so far that ended before the agent could be told of them. Where events were dropped
    /// ([`Event::Dropped`](ccplane_contract::Event::Dropped)), such flows may be among those instead.
    pub fn unseen_flows(&self) -> u64 {
        self.known_flows.unseen()
    }
}
