//! One end of a conversation over two rings: one each way, in one piece of sealed memory, and a pair of connected sockets
//! for both sides to sleep on.
//!
//! They are sockets because each call on one can say by itself that it does not wait. Whether a call on an eventfd or a pipe
//! waits is a flag of the open file, which the other side shares and may change. A sleeper on a socket also wakes when the
//! process at the other end dies.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockType, getsockopt, recv, send, socketpair, sockopt,
};

use crate::ring::{self, Glance, ReadError, Reader, RecordBuffer, WriteError, Writer};
use crate::sys::{MemoryError, SharedWords};

/// Default size of each ring, bytes.
pub const RING_BYTES: usize = 1 << 18;
/// Most wake-ups, a byte each, that one call takes; the next call takes the rest.
const MAX_WAKES: usize = 64;

/// The file descriptors that the agent hands to the datapath.
#[derive(Debug)]
pub struct Parts {
    /// The shared memory of both rings.
    pub memory: OwnedFd,
    /// A connected stream socket, on which the datapath sleeps and by which it wakes the agent.
    pub bell: OwnedFd,
}

impl Parts {
    /// The number of file descriptors.
    pub const COUNT: usize = 2;

    /// In the order in which a message carries them.
    pub fn fds(&self) -> [BorrowedFd<'_>; Parts::COUNT] {
        [self.memory.as_fd(), self.bell.as_fd()]
    }

    /// From what a message carried; `None` if that is another number.
    pub fn from_fds(fds: Vec<OwnedFd>) -> Option<Parts> {
        let [memory, bell] = <[OwnedFd; Parts::COUNT]>::try_from(fds).ok()?;
        Some(Parts { memory, bell })
    }
}

/// Reasons why there are no rings.
#[derive(Debug, thiserror::Error)]
pub enum RingError {
    /// Their memory cannot be had.
    #[error("{0}")]
    Memory(#[from] MemoryError),
    /// No sockets to sleep on can be had.
    #[error("socketpair: {0}")]
    Bell(io::Error),
    /// The descriptor to sleep on is not a stream socket.
    #[error("what wakes this end is no stream socket")]
    NoBell,
    /// No ring has such a size.
    #[error(
        "a ring of {found} bytes: a power of two from {} to {} is expected",
        ring::MIN_BYTES,
        ring::MAX_BYTES
    )]
    Size { found: usize },
}

/// An end: frames go in and come out, nothing ever waits.
#[derive(Debug)]
pub struct End {
    writer: Writer,
    reader: Reader,
    bell: OwnedFd,
}

impl End {
    /// Makes rings of `bytes` each; the agent's end, and what to hand over.
    ///
    /// # Errors
    /// [`RingError`].
    pub fn create(bytes: usize) -> Result<(End, Parts), RingError> {
        let words = total_words(bytes)?;
        let (memory, file) = SharedWords::create(words)?;
        let flags = SockFlag::SOCK_CLOEXEC;
        let bells = socketpair(AddressFamily::Unix, SockType::Stream, None, flags);
        let (ours, theirs) = bells.map_err(|errno| RingError::Bell(errno.into()))?;
        let parts = Parts { memory: file, bell: theirs };
        let (to_agent, to_datapath) = (0, ring::words_of(bytes));
        let end = End::over(Arc::new(memory), bytes, to_datapath, to_agent, ours);
        Ok((end.ok_or(RingError::Size { found: bytes })?, parts))
    }

    /// The datapath's end of rings of `bytes` each that an agent made.
    ///
    /// # Errors
    /// [`RingError`].
    pub fn open(parts: Parts, bytes: usize) -> Result<End, RingError> {
        let memory = SharedWords::open(&parts.memory, total_words(bytes)?)?;
        if getsockopt(&parts.bell, sockopt::SockType) != Ok(SockType::Stream) {
            return Err(RingError::NoBell);
        }
        let (to_agent, to_datapath) = (0, ring::words_of(bytes));
        let end = End::over(Arc::new(memory), bytes, to_agent, to_datapath, parts.bell);
        end.ok_or(RingError::Size { found: bytes })
    }

    fn over(
        memory: Arc<SharedWords>,
        bytes: usize,
        writes_at: usize,
        reads_at: usize,
        bell: OwnedFd,
    ) -> Option<End> {
        let writer = Writer::new(Arc::clone(&memory), writes_at, bytes)?;
        Some(End { writer, reader: Reader::new(memory, reads_at, bytes)?, bell })
    }

    /// Sends one frame; wakes the other end if it sleeps.
    ///
    /// # Errors
    /// [`WriteError`]; nothing is sent then.
    #[inline]
    pub fn send(&mut self, frame: &[u8]) -> Result<(), WriteError> {
        if self.writer.write(frame)? {
            self.wake_other();
        }
        Ok(())
    }

    /// Takes the next frame; false if there is none.
    ///
    /// # Errors
    /// [`ReadError`]: the rings are of no more use.
    #[inline]
    pub fn receive(&mut self, into: &mut RecordBuffer) -> Result<bool, ReadError> {
        self.reader.read(into)
    }

    /// Whether a frame is there.
    #[inline]
    pub fn is_ready(&self) -> bool {
        self.reader.is_ready()
    }

    /// Makes a look at what comes in, for another thread.
    pub fn glance(&self) -> Glance {
        self.reader.glance()
    }

    /// Shows glances what has been received; returns whether a frame is there.
    pub fn show(&self) -> bool {
        self.reader.show()
    }

    /// Says that this end is about to sleep on [`AsFd`]. False: something is there, and it must not.
    pub fn doze(&self) -> bool {
        self.reader.doze()
    }

    /// Clears the flag that the reader sleeps.
    pub fn awake(&self) {
        self.reader.awake();
    }

    /// The core from which the other end has woken this one last, as it says itself.
    pub fn waker_core(&self) -> Option<usize> {
        self.reader.waker_core()
    }

    /// Takes the wake-ups that made [`AsFd`] readable; returns false if the other end is gone.
    pub fn take_wakes(&self) -> bool {
        match recv(self.bell.as_raw_fd(), &mut [0; MAX_WAKES], MsgFlags::MSG_DONTWAIT) {
            Ok(0) => false,
            // Nothing to take does no harm.
            Ok(_) | Err(Errno::EAGAIN | Errno::EINTR) => true,
            Err(_) => false,
        }
    }

    #[cold]
    fn wake_other(&self) {
        match send(self.bell.as_raw_fd(), &[1], MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL) {
            // Where there is no room, it has been woken often enough.
            Ok(_) | Err(Errno::EAGAIN) => {}
            Err(error) => tracing::debug!(%error, "wake the other end of a ring"),
        }
    }
}

impl AsFd for End {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}

fn total_words(bytes: usize) -> Result<usize, RingError> {
    if ring::is_valid(bytes) { Ok(2 * ring::words_of(bytes)) } else { Err(RingError::Size { found: bytes }) }
}
