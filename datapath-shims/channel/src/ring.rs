//! A ring of one writer and one reader in shared memory. Neither end trusts the other.
//!
//! ```text
//! line 0  head: lines read so far     line 1  1 while the reader sleeps     line 2 on: a power of two of lines of data
//!                                             then 1 + the core of the writer who woke it last, 0 if that is unknown
//! line    mark: its first word | seven words, little endian
//! record  its bytes fill a line's seven words, then those of the lines after it
//!         mark of its first line: the line's number << 17 | its length in bytes; those of the others stay as they were
//! ```
//! Lines are numbered for ever, from the number of lines in the ring on: what stood in a line before has a lower number,
//! and is no record. A short record is one cache line, and the reader polls that very line: one line goes from core to
//! core, and no position beside it. A mark is written last: a writer that dies in the middle of a record has not
//! published it.
//!
//! Each end keeps its own position in its own memory. What it reads of the other end's is checked against that before it
//! is used, and a record is copied out before it is parsed.

use std::sync::Arc;

use ccplane_wire::v2::MAX_FRAME_BYTES;

use crate::atomic::{AtomicU64, Ordering, fence};
use crate::sys::SharedWords;

/// Words of a cache line. Few enough for loom to follow each word.
const LINE: usize = if cfg!(all(loom, test)) { 2 } else { 8 };
// Lines of a ring.
const HEAD: usize = 0;
const ASLEEP: usize = 1;
const DATA: usize = 2;
const WORD: usize = size_of::<u64>();
/// Words of a line behind its mark.
const PAYLOAD: usize = LINE - 1;
const PAYLOAD_BYTES: usize = PAYLOAD * WORD;
/// Bits of a mark that hold a length.
const LEN_BITS: u32 = 17;
/// Line numbers in marks count round this circle: 91 days of a line each 56 ns.
const NUMBERS: u64 = 1 << (u64::BITS - LEN_BITS);

/// Bytes of the smallest ring: two of the longest records fit.
pub const MIN_BYTES: usize = if cfg!(all(loom, test)) { 4 * LINE * WORD } else { 4 * MAX_FRAME_BYTES };
/// Bytes of the largest.
pub const MAX_BYTES: usize = 1 << 24;
/// The longest record, bytes.
pub const MAX_RECORD_BYTES: usize = MAX_FRAME_BYTES;

/// Words that a ring of so many bytes takes, its lines included.
pub const fn words_of(bytes: usize) -> usize {
    DATA * LINE + bytes / WORD
}

/// Whether a ring may have so many bytes.
pub const fn is_valid(bytes: usize) -> bool {
    bytes.is_power_of_two() && bytes >= MIN_BYTES && bytes <= MAX_BYTES
}

/// Reasons why a record was not written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum WriteError {
    /// The reader has not made room for it yet.
    #[error("the ring is full")]
    Full,
    /// The record is longer than a ring takes.
    #[error("{found} bytes, at most {MAX_RECORD_BYTES} are allowed")]
    TooLong {
        /// Length of the record, bytes.
        found: usize,
    },
    /// The reader's position is impossible.
    #[error("the reader's position {found} is not within {capacity} lines before {tail}")]
    Corrupt {
        found: u64,
        tail: u64,
        /// Lines of the ring.
        capacity: u64,
    },
}

/// An impossible value of the writer's.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ReadError {
    /// Of where a record is.
    #[error("line {head} is marked as number {found}, which comes later")]
    Position {
        /// The number in the mark, of those that a mark holds.
        found: u64,
        head: u64,
    },
    /// The length of a record is impossible.
    #[error("a record of {found} bytes, at most {MAX_RECORD_BYTES} are allowed")]
    Length { found: u64 },
}

/// One cache line of the ring.
type Line = [AtomicU64; LINE];

/// One ring in shared words: where it starts, and how long its data is.
#[derive(Clone, Debug)]
struct Ring {
    memory: Arc<SharedWords>,
    /// The line where it starts.
    start: usize,
    /// Lines of data; a power of two.
    capacity: u64,
}

impl Ring {
    /// The ring of `bytes` at word `start`; `None` where it is not valid, splits lines, or does not fit.
    fn new(memory: Arc<SharedWords>, start: usize, bytes: usize) -> Option<Ring> {
        let fits = start.checked_add(words_of(bytes)).is_some_and(|end| end <= memory.words().len());
        let is_whole = start.is_multiple_of(LINE);
        let capacity = (bytes / WORD / LINE) as u64;
        (is_valid(bytes) && fits && is_whole).then_some(Ring { memory, start: start / LINE, capacity })
    }

    /// The line `at` lines from the start.
    #[inline]
    fn line(&self, at: usize) -> &Line {
        let (lines, _) = self.memory.words().as_chunks();
        // `new` has made sure of it.
        &lines[self.start + at]
    }

    /// The number of lines that the reader claims to have read.
    #[inline]
    fn head(&self) -> &AtomicU64 {
        &self.line(HEAD)[0]
    }

    /// Not 0 while the reader sleeps.
    #[inline]
    fn asleep(&self) -> &AtomicU64 {
        &self.line(ASLEEP)[0]
    }

    /// One more than the core on which the writer last found the reader asleep; 0 if that is unknown.
    #[inline]
    fn waker_core(&self) -> &AtomicU64 {
        &self.line(ASLEEP)[1]
    }

    /// Whether the line of this number begins a record, by the load of one word.
    #[inline]
    fn has_record(&self, number: u64) -> bool {
        marked(self.data(number)[0].load(Ordering::Acquire), number) != Mark::Old
    }

    /// The line of this number.
    #[inline]
    fn data(&self, number: u64) -> &Line {
        self.line(DATA + (number & (self.capacity - 1)) as usize)
    }
}

/// Lines of a record of so many bytes.
#[inline]
const fn lines_of(bytes: usize) -> u64 {
    let lines = bytes.div_ceil(PAYLOAD_BYTES) as u64;
    if lines == 0 { 1 } else { lines }
}

/// The meaning of a line's mark.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mark {
    Old,
    /// A record of so many bytes.
    Record(u64),
    /// A number that comes later.
    Later(u64),
}

/// The mark of the line of this number where a record of `len` bytes starts.
#[inline]
const fn mark(number: u64, len: usize) -> u64 {
    (number << LEN_BITS) | len as u64
}

/// Decodes the mark in the line of this number.
#[inline]
const fn marked(word: u64, number: u64) -> Mark {
    let found = word >> LEN_BITS;
    // Serial number arithmetic (RFC 1982): more than half the circle ahead is behind.
    match found.wrapping_sub(number) % NUMBERS {
        0 => Mark::Record(word % (1 << LEN_BITS)),
        ahead if ahead < NUMBERS / 2 => Mark::Later(found),
        _ => Mark::Old,
    }
}

/// The writing end of a ring.
#[derive(Debug)]
pub struct Writer {
    ring: Ring,
    /// The number of the next line.
    tail: u64,
    /// The reader's last known position.
    head: u64,
}

impl Writer {
    /// Writes into the ring of `bytes` that starts at word `start`, a multiple of a line's. It must be unwritten.
    /// Returns `None` where no such ring is valid or fits.
    pub fn new(memory: Arc<SharedWords>, start: usize, bytes: usize) -> Option<Writer> {
        let ring = Ring::new(memory, start, bytes)?;
        let first = ring.capacity;
        Some(Writer { ring, tail: first, head: first })
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
        let need = lines_of(bytes.len());
        if self.tail - self.head + need > self.ring.capacity {
            self.update_room(need)?;
        }
        self.put(bytes);
        self.tail += need;
        // Orders the store of the mark before the load of the flag; the reader has its own between flag and mark.
        fence(Ordering::SeqCst);
        let asleep = self.ring.asleep();
        if asleep.load(Ordering::Relaxed) == 0 || asleep.swap(0, Ordering::Relaxed) == 0 {
            return Ok(false);
        }
        let core = ccplane_wait::affinity::here().map_or(0, |core| core as u64 + 1);
        self.ring.waker_core().store(core, Ordering::Relaxed);
        Ok(true)
    }

    fn update_room(&mut self, need: u64) -> Result<(), WriteError> {
        let (tail, capacity) = (self.tail, self.ring.capacity);
        // The reader counts what it has read; lines are numbered from the ring's length on.
        let found = self.ring.head().load(Ordering::Acquire);
        let head = found.wrapping_add(capacity);
        if head < self.head || head > tail {
            return Err(WriteError::Corrupt { found, tail: tail - capacity, capacity });
        }
        self.head = head;
        if tail - head + need > capacity { Err(WriteError::Full) } else { Ok(()) }
    }

    #[inline]
    fn put(&self, bytes: &[u8]) {
        let (first, rest) = bytes.split_at(bytes.len().min(PAYLOAD_BYTES));
        for (number, more) in (self.tail + 1..).zip(rest.chunks(PAYLOAD_BYTES)) {
            put_line(self.ring.data(number), more);
        }
        let line = self.ring.data(self.tail);
        put_line(line, first);
        line[0].store(mark(self.tail, bytes.len()), Ordering::Release);
    }
}

/// Copies as many bytes as fit behind a line's mark.
#[inline]
fn put_line([_, line @ ..]: &Line, bytes: &[u8]) {
    let (whole, rest) = bytes.as_chunks::<WORD>();
    line.iter().zip(whole).for_each(|(to, from)| to.store(u64::from_le_bytes(*from), Ordering::Relaxed));
    if let Some(to) = line.get(whole.len()).filter(|_| !rest.is_empty()) {
        let last = rest.iter().rev().fold(0, |word, byte| (word << u8::BITS) | u64::from(*byte));
        to.store(last, Ordering::Relaxed);
    }
}

/// The reading end of a ring.
#[derive(Debug)]
pub struct Reader {
    ring: Ring,
    /// The number of the next line.
    head: u64,
    /// The same number for [`Glance`]s, as it last was shown to them.
    shown: Arc<AtomicU64>,
}

/// A look at a ring from another thread than the reader's, which takes nothing.
#[derive(Clone, Debug)]
pub struct Glance {
    ring: Ring,
    head: Arc<AtomicU64>,
}

impl Glance {
    /// Whether a record waits that was not read when the reader last said how far it had come.
    #[inline]
    pub fn is_ready(&self) -> bool {
        self.ring.has_record(self.head.load(Ordering::Relaxed))
    }
}

impl Reader {
    /// Reads the ring of `bytes` that starts at word `start`, a multiple of a line's. It must be unread. Returns `None`
    /// where no such ring is valid or fits.
    pub fn new(memory: Arc<SharedWords>, start: usize, bytes: usize) -> Option<Reader> {
        let ring = Ring::new(memory, start, bytes)?;
        let head = ring.capacity;
        Some(Reader { ring, head, shown: Arc::new(AtomicU64::new(head)) })
    }

    /// Makes a look at the ring for another thread, which sees what [`show`](Reader::show) says.
    pub fn glance(&self) -> Glance {
        Glance { ring: self.ring.clone(), head: Arc::clone(&self.shown) }
    }

    /// Shows glances how far the reader has come; returns whether a record waits. It is to read nothing while they are asked.
    pub fn show(&self) -> bool {
        self.shown.store(self.head, Ordering::Relaxed);
        self.is_ready()
    }

    #[inline]
    fn next(&self) -> (Mark, &Line) {
        let line = self.ring.data(self.head);
        (marked(line[0].load(Ordering::Acquire), self.head), line)
    }

    /// Whether a record waits to be read, by the load of one word.
    #[inline]
    pub fn is_ready(&self) -> bool {
        self.ring.has_record(self.head)
    }

    /// Copies the next record into `into`, replacing what it held; false if there is none. Never waits.
    ///
    /// # Errors
    /// [`ReadError`]: nothing tells where the next record starts, so that the ring is of no more use.
    #[inline]
    pub fn read(&mut self, into: &mut RecordBuffer) -> Result<bool, ReadError> {
        let (mark, line) = self.next();
        let found = match mark {
            Mark::Old => return Ok(false),
            Mark::Later(found) => return Err(ReadError::Position { found, head: self.head }),
            Mark::Record(found) => found,
        };
        let len = usize::try_from(found).ok().filter(|len| *len <= MAX_RECORD_BYTES);
        let len = len.ok_or(ReadError::Length { found })?;
        into.fill(len, line, (self.head + 1..).map(|number| self.ring.data(number)));
        self.head += lines_of(len);
        self.ring.head().store(self.head - self.ring.capacity, Ordering::Release);
        Ok(true)
    }

    /// Sets the flag that the reader sleeps; returns false, with the flag clear, if a record waits and it must not sleep.
    pub fn doze(&self) -> bool {
        let asleep = self.ring.asleep();
        // Swapped, so that it comes after whatever the writer has swapped there.
        asleep.swap(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        if self.is_ready() {
            asleep.store(0, Ordering::Relaxed);
            return false;
        }
        true
    }

    /// The core from which the writer has woken the reader last, as the writer says.
    pub fn waker_core(&self) -> Option<usize> {
        usize::try_from(self.ring.waker_core().load(Ordering::Relaxed).checked_sub(1)?).ok()
    }

    /// Says that it does not sleep any more.
    pub fn awake(&self) {
        self.ring.asleep().store(0, Ordering::Relaxed);
    }
}

/// Room for one record; none until the first one is read.
#[derive(Debug, Default)]
pub struct RecordBuffer {
    bytes: Box<[u8]>,
    len: usize,
}

impl RecordBuffer {
    /// Returns the bytes of the last record.
    pub fn bytes(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or_default()
    }

    /// With what is behind the mark of the `first` line, and of those `after` it.
    #[inline]
    fn fill<'a>(&mut self, len: usize, first: &'a Line, after: impl Iterator<Item = &'a Line>) {
        self.len = len;
        if self.bytes.is_empty() {
            self.bytes = vec![0; MAX_RECORD_BYTES].into();
        }
        let room = self.bytes.get_mut(..len.next_multiple_of(WORD)).unwrap_or_default();
        let (room, _) = room.as_chunks_mut::<WORD>();
        for (room, [_, line @ ..]) in room.chunks_mut(PAYLOAD).zip(std::iter::once(first).chain(after)) {
            room.iter_mut().zip(line).for_each(|(to, word)| *to = word.load(Ordering::Relaxed).to_le_bytes());
        }
    }
}

const _: () = assert!(MAX_RECORD_BYTES < 1 << LEN_BITS);
const _: () = assert!(MAX_RECORD_BYTES.is_multiple_of(WORD) && is_valid(MIN_BYTES) && is_valid(MAX_BYTES));
