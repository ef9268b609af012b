//! The memory that the connections of an endpoint share.
//!
//! An admitted connection is charged for its state, a least send buffer and a least receive window, so that it can
//! always go on. Buffers beyond that share the rest by dynamic thresholds (Choudhury and Hahne, 1998): a connection may
//! hold an eighth of the free memory. A single connection gets a lot, each of a thousand gets little, and new
//! connections always find some.

use bytes::Bytes;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

/// The memory of an endpoint's connections by default, bytes.
pub const MEMORY_BYTES: u64 = 256 << 20;
/// The charge for an admitted connection, bytes: quinn's state and ours, TLS, a least send buffer, a least receive
/// window.
///
/// `quic.memory.slow-readers` measures it.
pub const CONNECTION_BYTES: u64 = 128 << 10;
/// The send buffer that every connection has, bytes.
const LEAST_BUFFER_BYTES: usize = 16 << 10;
/// The receive window that every connection has, bytes.
pub(crate) const LEAST_WINDOW_BYTES: u64 = 32 << 10;
/// The largest copy into a send buffer, bytes.
pub const PART_BYTES: usize = 64 << 10;
/// A connection's buffers take at most this fraction of the free memory.
const SHARE: u64 = 8;
/// The fraction of the memory that is reserved for new connections; buffers do not take it.
const RESERVE: u64 = 4;
/// The cost of a byte of receive window, as a fraction: quinn's reassembly holds at most two and a half times what it
/// buffers.
const WINDOW_COST: (u64, u64) = (5, 2);
/// Buffers of [`PART_BYTES`] that are kept for reuse, at most.
const MAX_SPARE: usize = 32;

/// The shared memory of an endpoint.
#[derive(Clone)]
pub(crate) struct Budget(Arc<Shared>);

struct Shared {
    total_bytes: u64,
    used_bytes: AtomicU64,
    /// Number of releases.
    releases: AtomicUsize,
    spare: Mutex<Vec<Box<[u8]>>>,
}

/// Memory that an endpoint's connections hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Memory {
    /// The charged memory, bytes.
    pub used_bytes: u64,
    /// The limit, bytes.
    pub total_bytes: u64,
}

impl Budget {
    pub(crate) fn new(total_bytes: u64) -> Budget {
        let (used_bytes, releases, spare) = Default::default();
        Budget(Arc::new(Shared { total_bytes, used_bytes, releases, spare }))
    }

    pub(crate) fn memory(&self) -> Memory {
        Memory { used_bytes: self.0.used_bytes.load(Relaxed), total_bytes: self.0.total_bytes }
    }

    /// Number of releases so far: it grows whenever a connection without room may find some.
    pub(crate) fn releases(&self) -> usize {
        self.0.releases.load(Relaxed)
    }

    /// The number of connections that fit, including those that there are.
    pub(crate) fn capacity(&self) -> usize {
        usize::try_from(self.0.total_bytes / CONNECTION_BYTES).unwrap_or(usize::MAX)
    }

    /// Whether another connection fits.
    pub(crate) fn has_room(&self) -> bool {
        let Memory { used_bytes, total_bytes } = self.memory();
        used_bytes.saturating_add(CONNECTION_BYTES) <= total_bytes
    }

    /// Charges for a connection, whether it fits or not.
    pub(crate) fn open(&self) -> Arc<Account> {
        self.0.used_bytes.fetch_add(CONNECTION_BYTES, Relaxed);
        let (buffered_bytes, window_bytes) = (AtomicUsize::new(0), AtomicU64::new(LEAST_WINDOW_BYTES));
        Arc::new(Account { budget: self.clone(), buffered_bytes, window_bytes })
    }

    /// The memory that one connection's buffers may hold now, bytes.
    fn share_bytes(&self) -> u64 {
        let Memory { used_bytes, total_bytes } = self.memory();
        (total_bytes - total_bytes / RESERVE).saturating_sub(used_bytes) / SHARE
    }

    fn charge(&self, before: u64, after: u64) {
        // Either way it wraps to the difference.
        self.0.used_bytes.fetch_add(after.wrapping_sub(before), Relaxed);
        if after < before {
            self.0.releases.fetch_add(1, Relaxed);
        }
    }

    /// Frees the buffers that were kept for reuse.
    pub(crate) fn tidy(&self) {
        *self.0.spare.lock().unwrap_or_else(PoisonError::into_inner) = Vec::new();
    }

    fn take(&self, bytes: usize) -> Box<[u8]> {
        let spare = || self.0.spare.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let kept = if bytes == PART_BYTES { spare() } else { None };
        kept.unwrap_or_else(|| vec![0; bytes].into_boxed_slice())
    }

    fn give_back(&self, data: Box<[u8]>) {
        if data.len() == PART_BYTES {
            let mut spare = self.0.spare.lock().unwrap_or_else(PoisonError::into_inner);
            if spare.len() < MAX_SPARE {
                spare.push(data);
            }
        }
    }
}

/// The account of one connection's memory.
pub(crate) struct Account {
    budget: Budget,
    /// Bytes in its send buffers.
    buffered_bytes: AtomicUsize,
    /// Bytes that its peer may send before they are read.
    window_bytes: AtomicU64,
}

impl Account {
    /// The part of `wanted_bytes` that may be buffered now; 0 if there is no room.
    pub(crate) fn room(&self, wanted_bytes: usize) -> usize {
        let share = usize::try_from(self.budget.share_bytes()).unwrap_or(usize::MAX);
        let left = share.max(LEAST_BUFFER_BYTES).saturating_sub(self.buffered_bytes.load(Relaxed));
        // A tiny buffer would not be worth it.
        if left >= wanted_bytes.min(LEAST_BUFFER_BYTES) { left.min(wanted_bytes) } else { 0 }
    }

    /// Makes a buffer of at most this size; `None` if there is no room.
    pub(crate) fn buffer(self: &Arc<Account>, wanted_bytes: usize) -> Option<Buffer> {
        let bytes = self.room(wanted_bytes.min(PART_BYTES));
        if bytes == 0 && wanted_bytes > 0 {
            return None;
        }
        let before = self.buffered_bytes.fetch_add(bytes, Relaxed);
        self.budget.charge(buffered_cost(before), buffered_cost(before + bytes));
        Some(Buffer { data: self.budget.take(bytes), account: Arc::clone(self) })
    }

    /// Widens the receive window to suit a connection that has read so much, if there is room. Returns its size if it
    /// grew.
    pub(crate) fn widen(&self, read_bytes: u64, most_bytes: u64) -> Option<u64> {
        let before = self.window_bytes.load(Relaxed);
        let mut after = before;
        while after < most_bytes && after < read_bytes.saturating_mul(4) {
            let next = (2 * after).min(most_bytes);
            let (held, more) = (window_cost(after), window_cost(next) - window_cost(after));
            let used = window_cost(after) - window_cost(before);
            if held + more > self.budget.share_bytes().saturating_sub(used) {
                break;
            }
            after = next;
        }
        if after == before {
            return None;
        }
        self.window_bytes.store(after, Relaxed);
        self.budget.charge(window_cost(before), window_cost(after));
        Some(after)
    }
}

/// The charge for a send buffer beyond the least one of every connection.
fn buffered_cost(bytes: usize) -> u64 {
    bytes.saturating_sub(LEAST_BUFFER_BYTES) as u64
}

/// The charge for a receive window beyond the least one of every connection.
fn window_cost(bytes: u64) -> u64 {
    bytes.saturating_sub(LEAST_WINDOW_BYTES) * WINDOW_COST.0 / WINDOW_COST.1
}

impl Drop for Account {
    fn drop(&mut self) {
        // The reserve is kept from buffers, not from connections.
        let window = window_cost(self.window_bytes.load(Relaxed));
        self.budget.charge(CONNECTION_BYTES + window, 0);
    }
}

/// A buffer for a part of what is sent. It is charged from here on until the peer has it all, or the connection is
/// gone.
pub struct Buffer {
    data: Box<[u8]>,
    account: Arc<Account>,
}

impl Deref for Buffer {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.data
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.data
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        &self.data
    }
}

impl From<Buffer> for Bytes {
    fn from(buffer: Buffer) -> Bytes {
        Bytes::from_owner(buffer)
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let data = std::mem::take(&mut self.data);
        let before = self.account.buffered_bytes.fetch_sub(data.len(), Relaxed);
        let budget = &self.account.budget;
        budget.charge(buffered_cost(before), buffered_cost(before - data.len()));
        // The connection's own share has grown, also where nothing was charged.
        budget.0.releases.fetch_add(1, Relaxed);
        budget.give_back(data);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// Takes all buffers that there is room for.
    fn fill(account: &Arc<Account>) -> Vec<Buffer> {
        std::iter::from_fn(|| account.buffer(PART_BYTES)).collect()
    }

    fn held(buffers: &[Buffer]) -> u64 {
        buffers.iter().map(|buffer| buffer.len() as u64).sum()
    }

    #[test]
    fn one_connection_gets_much_memory_and_many_get_some_each() {
        let budget = Budget::new(256 * MIB);
        let alone = budget.open();
        let buffers = fill(&alone);
        assert!(held(&buffers) > 20 * MIB && held(&buffers) < 24 * MIB, "{}", held(&buffers));
        let crowd: Vec<_> = (0..1000).map(|_| budget.open()).collect();
        let kept: Vec<_> = crowd.iter().map(fill).collect();
        assert!(kept.iter().all(|buffers| held(buffers) >= LEAST_BUFFER_BYTES as u64));
        let Memory { used_bytes, total_bytes } = budget.memory();
        assert!(used_bytes <= total_bytes, "{used_bytes}");
        // Buffers do not keep other connections out.
        assert!(budget.has_room() && used_bytes <= total_bytes - total_bytes / RESERVE, "{used_bytes}");
    }

    #[test]
    fn all_memory_is_released() {
        let budget = Budget::new(64 * MIB);
        let accounts: Vec<_> = (0..budget.capacity()).map(|_| budget.open()).collect();
        assert!(!budget.has_room());
        let mut buffers: Vec<_> = accounts.iter().flat_map(fill).map(Bytes::from).collect();
        assert_eq!(accounts[0].widen(10 * MIB, 10 * MIB), None, "it is full");
        drop(accounts);
        assert!(budget.memory().used_bytes > 0, "the peers have not got it yet");
        let releases = budget.releases();
        buffers.truncate(1);
        assert!(budget.releases() > releases);
        buffers.clear();
        assert_eq!(budget.memory().used_bytes, 0);
        assert!(budget.0.spare.lock().unwrap().len() <= MAX_SPARE);
    }

    #[test]
    fn windows_grow_with_what_is_read_and_within_the_memory() {
        let budget = Budget::new(256 * MIB);
        let account = budget.open();
        assert_eq!(account.widen(LEAST_WINDOW_BYTES / 4, 64 * MIB), None);
        assert_eq!(account.widen(100_000, 64 * MIB), Some(512 << 10));
        assert_eq!(account.widen(u64::MAX, MIB), Some(MIB));
        let widest = account.widen(u64::MAX, 64 * MIB).unwrap();
        assert!((4 * MIB..16 * MIB).contains(&widest), "{widest}");
        let Memory { used_bytes, total_bytes } = budget.memory();
        assert!(used_bytes < total_bytes / 4);
        let small = Budget::new(MIB / 4);
        assert_eq!(small.open().widen(u64::MAX, 64 * MIB), None, "there is no room");
    }
}
