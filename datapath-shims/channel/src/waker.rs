//! The waker that a transport calls on an event that the agent is to get at once.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering, fence};

use nix::sys::eventfd::{EfdFlags, EventFd};

/// Wakes the thread that serves a datapath. A system call only while that thread sleeps.
#[derive(Clone, Debug)]
pub struct Waker(Arc<SharedWaker>);

#[derive(Debug)]
struct SharedWaker {
    event: EventFd,
    asleep: AtomicBool,
    calls: AtomicU32,
}

impl Waker {
    /// Creates a waker for a thread that is awake.
    ///
    /// # Errors
    /// The system gives no eventfd.
    pub fn new() -> io::Result<Waker> {
        let event = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
        Ok(Waker(Arc::new(SharedWaker { event, asleep: AtomicBool::new(false), calls: AtomicU32::new(0) })))
    }

    /// Wakes the serving thread, if it sleeps.
    pub fn wake(&self) {
        self.0.calls.fetch_add(1, Ordering::SeqCst);
        if self.0.asleep.load(Ordering::SeqCst) && self.0.asleep.swap(false, Ordering::SeqCst) {
            // A full counter is an event that is there.
            let _ = self.0.event.write(1);
        }
    }

    /// Returns the number of calls so far.
    pub(crate) fn calls(&self) -> u32 {
        self.0.calls.load(Ordering::SeqCst)
    }

    /// Announces a sleep after the work of call `calls`; returns false if there was another call, so that the thread must not
    /// sleep.
    pub(crate) fn doze(&self, calls: u32) -> bool {
        self.0.asleep.store(true, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        let quiet = self.calls() == calls;
        if !quiet {
            self.0.asleep.store(false, Ordering::SeqCst);
        }
        quiet
    }

    /// Ends the sleep.
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
