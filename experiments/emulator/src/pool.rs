//! A fixed pool of packet buffers: nothing is allocated per packet.

use crate::offload::Place;
use crate::tun::MTU;

/// Bytes of one buffer: the largest packet, rounded up to cache lines.
const BUFFER_BYTES: usize = (MTU as usize).next_multiple_of(64);

/// A buffer's place in its pool; neither copied nor cloned, so that it goes back once.
#[derive(PartialEq, Eq, Debug)]
pub(crate) struct Buffer {
    slot: u32,
    len: u16,
    /// Of the packet in it.
    pub(crate) place: Place,
}

/// Buffers for up to `capacity` packets. The memory is zero pages until used, and the buffer released last is used first.
#[derive(Debug)]
pub(crate) struct Pool {
    memory: Vec<u8>,
    free: Vec<u32>,
    /// Buffers from here on were never used.
    untouched: u32,
    capacity: u32,
}

impl Pool {
    pub(crate) fn new(capacity: u32) -> Pool {
        let memory = vec![0; capacity as usize * BUFFER_BYTES];
        Pool { memory, free: Vec::new(), untouched: 0, capacity }
    }

    /// Fills a buffer by `write`, which returns how many bytes it wrote; `None` when no buffer is left, or when `write`
    /// gives none: then the buffer stays in the pool.
    pub(crate) fn fill(&mut self, write: impl FnOnce(&mut [u8]) -> Option<usize>) -> Option<Buffer> {
        let slot = match self.free.last() {
            Some(slot) => *slot,
            None if self.untouched < self.capacity => self.untouched,
            None => return None,
        };
        let len = write(self.memory.get_mut(range(slot, BUFFER_BYTES))?)?;
        if self.free.pop().is_none() {
            self.untouched += 1;
        }
        Some(Buffer { slot, len: len.min(BUFFER_BYTES) as u16, place: Place::default() })
    }

    pub(crate) fn bytes(&self, buffer: &Buffer) -> &[u8] {
        self.memory.get(range(buffer.slot, usize::from(buffer.len))).unwrap_or_default()
    }

    /// Another buffer with the same packet; `None` when none is left.
    pub(crate) fn copy(&mut self, buffer: &Buffer) -> Option<Buffer> {
        let mut copy = self.fill(|_| Some(usize::from(buffer.len)))?;
        // Of no train: it would be there twice.
        copy.place = Place { train: 0, ..buffer.place };
        self.memory
            .copy_within(range(buffer.slot, usize::from(buffer.len)), copy.slot as usize * BUFFER_BYTES);
        Some(copy)
    }

    pub(crate) fn release(&mut self, buffer: Buffer) {
        self.free.push(buffer.slot);
    }
}

fn range(slot: u32, len: usize) -> std::ops::Range<usize> {
    let start = slot as usize * BUFFER_BYTES;
    start..start + len
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(pool: &mut Pool, byte: u8) -> Option<Buffer> {
        let read = |to: &mut [u8]| {
            to[0] = byte;
            Some(1)
        };
        pool.fill(read)
    }

    #[test]
    fn holds_its_capacity_and_no_more() {
        let mut pool = Pool::new(2);
        let first = put(&mut pool, 1).unwrap();
        assert_eq!(pool.fill(|_| None), None);
        let second = put(&mut pool, 2).unwrap();
        assert_eq!(put(&mut pool, 3), None);
        assert_eq!((pool.bytes(&first), pool.bytes(&second)), (&[1][..], &[2][..]));
        pool.release(first);
        let copy = pool.copy(&second).unwrap();
        assert_eq!(pool.bytes(&copy), [2]);
        assert_eq!(pool.copy(&second), None);
        pool.release(copy);
        let third = put(&mut pool, 3).unwrap();
        assert_eq!((pool.bytes(&third), pool.bytes(&second)), (&[3][..], &[2][..]));
        assert_eq!(put(&mut pool, 4), None);
    }
}
