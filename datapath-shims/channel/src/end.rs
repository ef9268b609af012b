//! One end of a conversation over two rings: one each way, in one piece of sealed memory, and an event for each side to
//! sleep on.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use nix::errno::Errno;
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::unistd::{read, write};

use crate::ring::{self, ReadError, Reader, Record, WriteError, Writer};
use crate::sys::{MemoryError, SharedWords};

/// Bytes of each ring, unless the agent says otherwise.
pub const RING_BYTES: usize = 1 << 18;

/// What the agent hands to the datapath.
#[derive(Debug)]
pub struct Parts {
    /// Both rings.
    pub memory: OwnedFd,
    /// What the agent sleeps on.
    pub wakes_agent: OwnedFd,
    /// What the datapath sleeps on.
    pub wakes_datapath: OwnedFd,
}

impl Parts {
    /// How many file descriptors they are.
    pub const COUNT: usize = 3;

    /// In the order in which a message carries them.
    pub fn fds(&self) -> [BorrowedFd<'_>; Parts::COUNT] {
        [self.memory.as_fd(), self.wakes_agent.as_fd(), self.wakes_datapath.as_fd()]
    }

    /// From what a message carried; `None` if that is another number.
    pub fn from_fds(fds: Vec<OwnedFd>) -> Option<Parts> {
        let [memory, wakes_agent, wakes_datapath] = <[OwnedFd; Parts::COUNT]>::try_from(fds).ok()?;
        Some(Parts { memory, wakes_agent, wakes_datapath })
    }
}

/// Why there are no rings.
#[derive(Debug, thiserror::Error)]
pub enum RingError {
    /// Their memory cannot be had.
    #[error("{0}")]
    Memory(#[from] MemoryError),
    /// An event cannot be had.
    #[error("eventfd: {0}")]
    Event(io::Error),
    /// No ring has such a size.
    #[error(
        "a ring of {found} bytes: a power of two from {} to {} is expected",
        ring::MIN_BYTES,
        ring::MAX_BYTES
    )]
    Size {
        /// What was said.
        found: usize,
    },
}

/// An end: frames go in and come out, nothing ever waits.
#[derive(Debug)]
pub struct End {
    writer: Writer,
    reader: Reader,
    wakes_other: OwnedFd,
    wakes_us: OwnedFd,
}

impl End {
    /// Makes rings of `bytes` each; the agent's end, and what to hand over.
    ///
    /// # Errors
    /// [`RingError`].
    pub fn create(bytes: usize) -> Result<(End, Parts), RingError> {
        let words = total_words(bytes)?;
        let (memory, file) = SharedWords::create(words)?;
        let event = || EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK).map(OwnedFd::from);
        let event = || event().map_err(|errno| RingError::Event(errno.into()));
        let duplicate = |fd: &OwnedFd| fd.try_clone().map_err(RingError::Event);
        let (wakes_us, wakes_other) = (event()?, event()?);
        let parts = Parts {
            memory: file,
            wakes_agent: duplicate(&wakes_us)?,
            wakes_datapath: duplicate(&wakes_other)?,
        };
        let (to_agent, to_datapath) = (0, ring::words_of(bytes));
        let end = End::over(Arc::new(memory), bytes, to_datapath, to_agent, wakes_other, wakes_us);
        Ok((end.ok_or(RingError::Size { found: bytes })?, parts))
    }

    /// The datapath's end of rings of `bytes` each that an agent made.
    ///
    /// # Errors
    /// [`RingError`].
    pub fn open(parts: Parts, bytes: usize) -> Result<End, RingError> {
        let memory = SharedWords::open(&parts.memory, total_words(bytes)?)?;
        let (to_agent, to_datapath) = (0, ring::words_of(bytes));
        let Parts { wakes_agent, wakes_datapath, .. } = parts;
        let end = End::over(Arc::new(memory), bytes, to_agent, to_datapath, wakes_agent, wakes_datapath);
        end.ok_or(RingError::Size { found: bytes })
    }

    fn over(
        memory: Arc<SharedWords>,
        bytes: usize,
        writes_at: usize,
        reads_at: usize,
        wakes_other: OwnedFd,
        wakes_us: OwnedFd,
    ) -> Option<End> {
        let writer = Writer::new(Arc::clone(&memory), writes_at, bytes)?;
        Some(End { writer, reader: Reader::new(memory, reads_at, bytes)?, wakes_other, wakes_us })
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
    pub fn receive(&mut self, into: &mut Record) -> Result<bool, ReadError> {
        self.reader.read(into)
    }

    /// Whether a frame is there.
    #[inline]
    pub fn is_ready(&self) -> bool {
        self.reader.is_ready()
    }

    /// Says that this end is about to sleep on [`AsFd`]. False: something is there, and it must not.
    pub fn doze(&self) -> bool {
        self.reader.doze()
    }

    /// Says that it does not sleep any more; `was_woken`: its event is there, and is taken.
    pub fn awake(&self, was_woken: bool) {
        self.reader.awake();
        if was_woken {
            // Nothing to take is no harm: another look was worth as much.
            let _ = read(&self.wakes_us, &mut [0; 8]);
        }
    }

    #[cold]
    fn wake_other(&self) {
        match write(&self.wakes_other, &1_u64.to_ne_bytes()) {
            // A full counter is an event that is there.
            Ok(_) | Err(Errno::EAGAIN) => {}
            Err(error) => tracing::debug!(%error, "wake the other end of a ring"),
        }
    }
}

impl AsFd for End {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wakes_us.as_fd()
    }
}

fn total_words(bytes: usize) -> Result<usize, RingError> {
    if ring::is_valid(bytes) { Ok(2 * ring::words_of(bytes)) } else { Err(RingError::Size { found: bytes }) }
}
