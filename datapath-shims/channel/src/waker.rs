//! What a transport calls when something happened that the agent is to hear of at once.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering, fence};

use nix::sys::eventfd::{EfdFlags, EventFd};

/// Wakes the thread that serves a datapath. A system call only while that thread sleeps.
#[derive(Clone, Debug)]
pub struct Waker(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    event: EventFd,
    asleep: AtomicBool,
    /// Counts the calls.
    calls: AtomicU32,
}

impl Waker {
    /// A waker that nobody sleeps on.
    ///
    /// # Errors
    /// The system gives no eventfd.
    pub fn new() -> io::Result<Waker> {
        let event = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
        Ok(Waker(Arc::new(Shared { event, asleep: AtomicBool::new(false), calls: AtomicU32::new(0) })))
    }

    /// Something is there to be taken.
    pub fn wake(&self) {
        self.0.calls.fetch_add(1, Ordering::SeqCst);
        if self.0.asleep.load(Ordering::SeqCst) && self.0.asleep.swap(false, Ordering::SeqCst) {
            // A full counter is an event that is there.
            let _ = self.0.event.write(1);
        }
    }

    /// How often it was called, so far.
    pub(crate) fn calls(&self) -> u32 {
        self.0.calls.load(Ordering::SeqCst)
    }

    /// About to sleep, having looked after call `calls`. False: it was called since, and nobody may sleep.
    pub(crate) fn doze(&self, calls: u32) -> bool {
        self.0.asleep.store(true, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        let quiet = self.calls() == calls;
        if !quiet {
            self.0.asleep.store(false, Ordering::SeqCst);
        }
        quiet
    }

    /// Not asleep any more.
    pub(crate) fn awake(&self) {
        self.0.asleep.store(false, Ordering::SeqCst);
        let _ = self.0.event.read();
    }
}

impl AsFd for Waker {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.event.as_fd()
    }
}
