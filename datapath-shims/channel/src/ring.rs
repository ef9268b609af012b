//! A byte ring of one writer and one reader in shared memory, whose other end nobody trusts.
//!
//! ```text
//! line 0  tail: words written so far        line 1  head: words read so far
//! line 2  1 while the reader sleeps         line 3 on: the data, a power of two of words
//! record  its length in bytes, a word | its bytes, padded to words
//! ```
//! Positions count up for ever. Each end keeps its own in its own memory and only publishes it; what it reads of the other
//! end's is checked against that before it is used, and a record is copied out before anyone looks at it. A writer that
//! dies in the middle of a record has not published it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use ccplane_wire::v2::MAX_FRAME_BYTES;

use crate::sys::SharedWords;

/// Words of a cache line.
const LINE: usize = 8;
const TAIL: usize = 0;
const HEAD: usize = LINE;
const ASLEEP: usize = 2 * LINE;
const DATA: usize = 3 * LINE;
const WORD: usize = size_of::<u64>();

/// Bytes of the smallest ring: two of the longest records fit.
pub const MIN_BYTES: usize = 4 * MAX_FRAME_BYTES;
/// Bytes of the largest.
pub const MAX_BYTES: usize = 1 << 24;
/// The longest record, bytes.
pub const MAX_RECORD_BYTES: usize = MAX_FRAME_BYTES;

/// Words that a ring of so many bytes takes, its lines included.
pub const fn words_of(bytes: usize) -> usize {
    DATA + bytes / WORD
}

/// Whether a ring may have so many bytes.
pub const fn is_valid(bytes: usize) -> bool {
    bytes.is_power_of_two() && bytes >= MIN_BYTES && bytes <= MAX_BYTES
}

/// Why a record was not written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum WriteError {
    /// The reader has not made room for it yet.
    #[error("the ring is full")]
    Full,
    /// It never fits.
    #[error("{found} bytes, at most {MAX_RECORD_BYTES} are allowed")]
    TooLong {
        /// Its length.
        found: usize,
    },
    /// What the reader says of itself cannot be.
    #[error("the reader's position {found} is not within {capacity} words before {tail}")]
    Corrupt {
        /// The reader's position.
        found: u64,
        /// The writer's.
        tail: u64,
        /// Words of the ring.
        capacity: u64,
    },
}

/// What the writer says cannot be.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ReadError {
    /// Of its position.
    #[error("the writer's position {found} is not within {capacity} words after {head}")]
    Position {
        /// The writer's position.
        found: u64,
        /// The reader's.
        head: u64,
        /// Words of the ring.
        capacity: u64,
    },
    /// Of a record.
    #[error("a record of {found} bytes, where {available} words were written")]
    Length {
        /// Its length.
        found: u64,
        /// Words that are there.
        available: u64,
    },
}

/// One ring in shared words: where it starts, and how long its data is.
#[derive(Clone, Debug)]
struct Ring {
    memory: Arc<SharedWords>,
    start: usize,
    /// Words of data; a power of two.
    capacity: usize,
}

impl Ring {
    /// The ring of `bytes` at word `start`; `None` where it is not valid or does not fit.
    fn new(memory: Arc<SharedWords>, start: usize, bytes: usize) -> Option<Ring> {
        let fits = start.checked_add(words_of(bytes)).is_some_and(|end| end <= memory.words().len());
        (is_valid(bytes) && fits).then_some(Ring { memory, start, capacity: bytes / WORD })
    }

    /// All of it, of [`words_of`] words.
    fn words(&self) -> &[AtomicU64] {
        self.memory.words().get(self.start..self.start + DATA + self.capacity).unwrap_or_default()
    }

    /// The data from position `at` on, to the end and from the start.
    fn data(&self, at: u64) -> (&[AtomicU64], &[AtomicU64]) {
        let data = self.words().get(DATA..).unwrap_or_default();
        let (start, end) = data.split_at(at as usize & (self.capacity - 1));
        (end, start)
    }

    fn line(&self, line: usize) -> &AtomicU64 {
        // `new` has made sure of the line.
        &self.words()[line]
    }
}

/// Words of a record of so many bytes.
const fn record_words(bytes: usize) -> usize {
    1 + bytes.div_ceil(WORD)
}

/// The writer's end.
#[derive(Debug)]
pub struct Writer {
    ring: Ring,
    tail: u64,
    /// The reader's position when it was last looked at.
    head: u64,
}

impl Writer {
    /// Writes into the ring of `bytes` that starts at word `start`, which nobody has written to. `None` where no such
    /// ring is valid or fits.
    pub fn new(memory: Arc<SharedWords>, start: usize, bytes: usize) -> Option<Writer> {
        Some(Writer { ring: Ring::new(memory, start, bytes)?, tail: 0, head: 0 })
    }

    /// Writes one record; true if the reader sleeps, and is to be woken. Never waits.
    ///
    /// # Errors
    /// [`WriteError`]; nothing is written then.
    #[inline]
    pub fn write(&mut self, bytes: &[u8]) -> Result<bool, WriteError> {
        if bytes.len() > MAX_RECORD_BYTES {
            return Err(WriteError::TooLong { found: bytes.len() });
        }
        let capacity = self.ring.capacity as u64;
        let need = record_words(bytes.len()) as u64;
        if self.tail - self.head + need > capacity {
            let head = self.ring.line(HEAD).load(Ordering::Acquire);
            if head < self.head || head > self.tail {
                return Err(WriteError::Corrupt { found: head, tail: self.tail, capacity });
            }
            self.head = head;
            if self.tail - head + need > capacity {
                return Err(WriteError::Full);
            }
        }
        self.put(bytes);
        self.tail += need;
        self.ring.line(TAIL).store(self.tail, Ordering::Release);
        // Between the store of the tail and the look at the flag; the reader has its own between flag and tail.
        fence(Ordering::SeqCst);
        let asleep = self.ring.line(ASLEEP);
        Ok(asleep.load(Ordering::Relaxed) != 0 && asleep.swap(0, Ordering::Relaxed) != 0)
    }

    #[inline]
    fn put(&self, bytes: &[u8]) {
        let (end, start) = self.ring.data(self.tail);
        let mut words = end.iter().chain(start);
        let mut put = |word: u64| {
            if let Some(to) = words.next() {
                to.store(word, Ordering::Relaxed);
            }
        };
        put(bytes.len() as u64);
        let (whole, rest) = bytes.as_chunks::<WORD>();
        whole.iter().for_each(|word| put(u64::from_le_bytes(*word)));
        if !rest.is_empty() {
            let mut last = [0; WORD];
            last.iter_mut().zip(rest).for_each(|(to, from)| *to = *from);
            put(u64::from_le_bytes(last));
        }
    }
}

/// The reader's end.
#[derive(Debug)]
pub struct Reader {
    ring: Ring,
    head: u64,
    /// The writer's position when it was last looked at.
    tail: u64,
}

impl Reader {
    /// Reads the ring of `bytes` that starts at word `start`, which nobody has read. `None` where no such ring is valid
    /// or fits.
    pub fn new(memory: Arc<SharedWords>, start: usize, bytes: usize) -> Option<Reader> {
        Some(Reader { ring: Ring::new(memory, start, bytes)?, head: 0, tail: 0 })
    }

    /// Whether anything was written that was not read: one look at one word.
    #[inline]
    pub fn is_ready(&self) -> bool {
        self.tail != self.head || self.ring.line(TAIL).load(Ordering::Acquire) != self.head
    }

    /// Copies the next record into `into`, replacing what it held; false if there is none. Never waits.
    ///
    /// # Errors
    /// [`ReadError`]: nothing tells where the next record starts, so that the ring is of no more use.
    #[inline]
    pub fn read(&mut self, into: &mut Record) -> Result<bool, ReadError> {
        if self.tail == self.head {
            let capacity = self.ring.capacity as u64;
            let tail = self.ring.line(TAIL).load(Ordering::Acquire);
            if tail < self.head || tail - self.head > capacity {
                return Err(ReadError::Position { found: tail, head: self.head, capacity });
            }
            self.tail = tail;
            if tail == self.head {
                return Ok(false);
            }
        }
        let available = self.tail - self.head;
        let (end, start) = self.ring.data(self.head);
        let mut words = end.iter().chain(start).map(|word| word.load(Ordering::Relaxed));
        let found = words.next().unwrap_or_default();
        let len = usize::try_from(found).ok().filter(|len| *len <= MAX_RECORD_BYTES);
        let Some(len) = len.filter(|len| record_words(*len) as u64 <= available) else {
            return Err(ReadError::Length { found, available });
        };
        into.fill(len, words);
        self.head += record_words(len) as u64;
        self.ring.line(HEAD).store(self.head, Ordering::Release);
        Ok(true)
    }

    /// Says that the reader is about to sleep. False: something is there, so that it must not; nothing is said then.
    pub fn doze(&self) -> bool {
        let asleep = self.ring.line(ASLEEP);
        asleep.store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        if self.is_ready() {
            asleep.store(0, Ordering::Relaxed);
            return false;
        }
        true
    }

    /// Says that it does not sleep any more.
    pub fn awake(&self) {
        self.ring.line(ASLEEP).store(0, Ordering::Relaxed);
    }
}

/// Room for one record; none until the first one is read.
#[derive(Debug, Default)]
pub struct Record {
    bytes: Box<[u8]>,
    len: usize,
}

impl Record {
    /// What was read last.
    pub fn bytes(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or_default()
    }

    #[inline]
    fn fill(&mut self, len: usize, words: impl Iterator<Item = u64>) {
        self.len = len;
        if self.bytes.is_empty() {
            self.bytes = vec![0; MAX_RECORD_BYTES].into();
        }
        let room = self.bytes.get_mut(..len.next_multiple_of(WORD)).unwrap_or_default();
        let (room, _) = room.as_chunks_mut::<WORD>();
        room.iter_mut().zip(words).for_each(|(to, word)| *to = word.to_le_bytes());
    }
}

const _: () = assert!(MAX_RECORD_BYTES.is_multiple_of(WORD) && is_valid(MIN_BYTES) && is_valid(MAX_BYTES));
