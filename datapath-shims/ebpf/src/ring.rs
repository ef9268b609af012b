//! The consumer's side of a BPF ring buffer, read without system calls.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::time::TimeSpec;

use ccplane_bpf::SharedMap;

/// Flag bits in a record's length (include/uapi/linux/bpf.h).
const BUSY: u32 = 1 << 31;
const DISCARD: u32 = 1 << 30;
const HEADER_BYTES: u64 = 8;

/// The only consumer of a ring buffer.
pub struct Ring {
    map: OwnedFd,
    consumer: SharedMap,
    producer: SharedMap,
    page: usize,
    mask: u64,
}

impl Ring {
    /// Maps the ring of `bytes` (a power of two) behind `map`.
    pub fn new(map: OwnedFd, bytes: usize, page: usize) -> io::Result<Ring> {
        let consumer = SharedMap::new(&map, 0, page, true)?;
        let producer = SharedMap::new(&map, page as i64, page + 2 * bytes, false)?;
        Ok(Ring { map, consumer, producer, page, mask: bytes as u64 - 1 })
    }

    /// Whether the ring has no complete record.
    pub fn is_empty(&self) -> bool {
        self.consumer.u64(0).load(Relaxed) == self.producer.u64(0).load(Acquire)
    }

    /// Hands complete records to `take`, oldest first.
    ///
    /// It stops when there is none left, when one is still being written, or when `take` returns false (the record it
    /// refused stays).
    pub fn drain(&self, mut take: impl FnMut(RingRecord<'_>) -> bool) {
        let mut at = self.consumer.u64(0).load(Relaxed);
        while at < self.producer.u64(0).load(Acquire) {
            let offset = self.page + (at & self.mask) as usize;
            let header = self.producer.u32(offset).load(Acquire);
            if header & BUSY != 0 {
                return;
            }
            let bytes = header & !(BUSY | DISCARD);
            let record = RingRecord { ring: &self.producer, at: offset + HEADER_BYTES as usize, bytes };
            if header & DISCARD == 0 && !take(record) {
                return;
            }
            at += (u64::from(bytes) + HEADER_BYTES).next_multiple_of(8);
            self.consumer.u64(0).store(at, Release);
        }
    }

    /// Sleeps until a producer wakes the consumer, `also` becomes readable, or `timeout` passes. An interrupted sleep ends
    /// early.
    pub fn sleep(&self, timeout: Duration, also: Option<BorrowedFd<'_>>) -> io::Result<()> {
        let ring = PollFd::new(self.map.as_fd(), PollFlags::POLLIN);
        let mut fds = [ring, PollFd::new(also.unwrap_or(self.map.as_fd()), PollFlags::POLLIN)];
        let count = if also.is_some() { 2 } else { 1 };
        match ppoll(&mut fds[..count], Some(TimeSpec::from_duration(timeout)), None) {
            Ok(_) | Err(nix::errno::Errno::EINTR) => Ok(()),
            Err(e) => Err(e.into()),
        }
    }
}

/// A record that is still in the ring.
#[derive(Clone, Copy)]
pub struct RingRecord<'a> {
    ring: &'a SharedMap,
    at: usize,
    bytes: u32,
}

impl RingRecord<'_> {
    /// Reads a word; 0 past the record's end.
    pub fn u32(&self, offset: u32) -> u32 {
        if offset + 4 > self.bytes { 0 } else { self.ring.u32(self.at + offset as usize).load(Relaxed) }
    }
    /// Reads a double word; 0 past the record's end.
    pub fn u64(&self, offset: u32) -> u64 {
        if offset + 8 > self.bytes { 0 } else { self.ring.u64(self.at + offset as usize).load(Relaxed) }
    }
}
