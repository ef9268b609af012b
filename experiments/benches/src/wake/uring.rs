//! Waiting for eventfds by io_uring.
#![allow(unsafe_code)]

use io_uring::{IoUring, cqueue, opcode, types::Fd};
use nix::sys::eventfd::EventFd;
use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// Requests that wait to be given to the kernel, at most.
const ENTRIES: u32 = 256;

/// A thread's ring, in which each queue's descriptor is polled until the ring ends.
pub(super) struct UringConsumer<'a> {
    ring: IoUring,
    events: &'a [EventFd],
}

impl<'a> UringConsumer<'a> {
    pub(super) fn new(events: &'a [EventFd]) -> io::Result<UringConsumer<'a>> {
        let ring = IoUring::builder().setup_coop_taskrun().setup_single_issuer().build(ENTRIES)?;
        let mut consumer = UringConsumer { ring, events };
        for queue in 0..events.len() {
            consumer.poll(queue)?;
        }
        Ok(consumer)
    }

    fn poll(&mut self, queue: usize) -> io::Result<()> {
        let fd = Fd(self.events[queue].as_fd().as_raw_fd());
        let poll = opcode::PollAdd::new(fd, libc::POLLIN as u32).multi(true).build().user_data(queue as u64);
        // SAFETY: the request names no memory, and its descriptor outlives the ring.
        let pushed = unsafe { self.ring.submission().push(&poll) };
        pushed.map_err(|_| io::Error::from(io::ErrorKind::OutOfMemory))
    }

    /// Waits for an event and takes it.
    pub(super) fn wait(&mut self) -> io::Result<()> {
        loop {
            let next = self.ring.completion().next();
            let Some(completion) = next else {
                match self.ring.submit_and_wait(1) {
                    Err(error) if error.raw_os_error() != Some(libc::EINTR) => return Err(error),
                    _ => continue,
                }
            };
            if completion.result() < 0 {
                return Err(io::Error::from_raw_os_error(-completion.result()));
            }
            let queue = completion.user_data() as usize;
            if !cqueue::more(completion.flags()) {
                self.poll(queue)?;
            }
            // A completion may tell of an event that was taken with the one before.
            match self.events[queue].read() {
                Ok(_) => return Ok(()),
                Err(nix::errno::Errno::EAGAIN) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }
}
