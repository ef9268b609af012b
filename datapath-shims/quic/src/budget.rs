//! What the connections of an endpoint may hold in memory together.
//!
//! A connection that is admitted is charged for itself, a least send buffer and a least receive window, so that it can always go
//! on. What it buffers beyond is shared by dynamic thresholds (Choudhury and Hahne, 1998): a connection may hold an eighth of what
//! is free. One alone has a lot, a thousand have little each, and there is always some left for those that come.

use bytes::Bytes;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

/// What an endpoint's connections may hold unless it is said otherwise, bytes.
pub const MEMORY_BYTES: u64 = 256 << 20;
/// What a connection is charged when it is admitted, bytes: quinn's state and ours, TLS, a least send buffer, a least receive
/// window. `quic.memory.slow-readers` measures it.
pub const CONNECTION_BYTES: u64 = 128 << 10;
/// The send buffer that every connection has, bytes.
const LEAST_BUFFER_BYTES: usize = 16 << 10;
/// The receive window that every connection has, bytes.
pub(crate) const LEAST_WINDOW_BYTES: u64 = 32 << 10;
/// What is copied into a send buffer at once at most, bytes.
pub const PART_BYTES: usize = 64 << 10;
/// A connection's buffers take at most this part of what is free.
const SHARE: u64 = 8;
/// This part of the memory is kept for connections to come; buffers do not take it.
const RESERVE: u64 = 4;
/// What a byte of a receive window may cost: quinn's reassembly holds at most two and a half times what it buffers.
const WINDOW_COST: (u64, u64) = (5, 2);
/// Buffers of [`PART_BYTES`] that are kept to be used again.
const MAX_SPARE: usize = 32;

/// The memory of an endpoint.
#[derive(Clone)]
pub(crate) struct Budget(Arc<Shared>);

struct Shared {
    total_bytes: u64,
    used_bytes: AtomicU64,
    /// How often something was given back.
    releases: AtomicUsize,
    spare: Mutex<Vec<Box<[u8]>>>,
}

/// What an endpoint's connections hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Memory {
    /// By the budget's count, bytes.
    pub used_bytes: u64,
    /// At most, bytes.
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

    /// It grows whenever there may be room for those who had none.
    pub(crate) fn releases(&self) -> usize {
        self.0.releases.load(Relaxed)
    }

    /// Connections that it has room for, those included that there are.
    pub(crate) fn capacity(&self) -> usize {
        usize::try_from(self.0.total_bytes / CONNECTION_BYTES).unwrap_or(usize::MAX)
    }

    /// Whether another connection fits.
    pub(crate) fn has_room(&self) -> bool {
        let Memory { used_bytes, total_bytes } = self.memory();
        used_bytes.saturating_add(CONNECTION_BYTES) <= total_bytes
    }

    /// Charges for a connection, whether there is room or not.
    pub(crate) fn open(&self) -> Arc<Account> {
        self.0.used_bytes.fetch_add(CONNECTION_BYTES, Relaxed);
        let (buffered_bytes, window_bytes) = (AtomicUsize::new(0), AtomicU64::new(LEAST_WINDOW_BYTES));
        Arc::new(Account { budget: self.clone(), buffered_bytes, window_bytes })
    }

    /// What one connection's buffers may hold now, bytes.
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

    /// Keeps no buffers to be used again.
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

/// One connection's part of the memory.
pub(crate) struct Account {
    budget: Budget,
    /// In its send buffers.
    buffered_bytes: AtomicUsize,
    /// What its peer may send before it is read.
    window_bytes: AtomicU64,
}

impl Account {
    /// How much of `wanted_bytes` may be buffered now; 0 where there is no room.
    pub(crate) fn room(&self, wanted_bytes: usize) -> usize {
        let share = usize::try_from(self.budget.share_bytes()).unwrap_or(usize::MAX);
        let left = share.max(LEAST_BUFFER_BYTES).saturating_sub(self.buffered_bytes.load(Relaxed));
        // Rather nothing than crumbs.
        if left >= wanted_bytes.min(LEAST_BUFFER_BYTES) { left.min(wanted_bytes) } else { 0 }
    }

    /// A buffer of at most this size, and of none if there is no room.
    pub(crate) fn buffer(self: &Arc<Account>, wanted_bytes: usize) -> Option<Buffer> {
        let bytes = self.room(wanted_bytes.min(PART_BYTES));
        if bytes == 0 && wanted_bytes > 0 {
            return None;
        }
        let before = self.buffered_bytes.fetch_add(bytes, Relaxed);
        self.budget.charge(buffered_cost(before), buffered_cost(before + bytes));
        Some(Buffer { data: self.budget.take(bytes), account: Arc::clone(self) })
    }

    /// Widens the receive window to what suits a connection that has read so much, if there is room. Its size then, if it grew.
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

/// What is charged for a send buffer beyond that of every connection.
fn buffered_cost(bytes: usize) -> u64 {
    bytes.saturating_sub(LEAST_BUFFER_BYTES) as u64
}

/// The same for a receive window.
fn window_cost(bytes: u64) -> u64 {
    bytes.saturating_sub(LEAST_WINDOW_BYTES) * WINDOW_COST.0 / WINDOW_COST.1
}

impl Drop for Account {
    fn drop(&mut self) {
        // Buffers keep it, so that there are none.
        let window = window_cost(self.window_bytes.load(Relaxed));
        self.budget.charge(CONNECTION_BYTES + window, 0);
    }
}

/// A part of what is sent, to be filled. It counts from here on until the peer has it all, or the connection is gone.
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
        // One's own share has grown, also where nothing was charged.
        budget.0.releases.fetch_add(1, Relaxed);
        budget.give_back(data);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// Takes all that there is room for.
    fn fill(account: &Arc<Account>) -> Vec<Buffer> {
        std::iter::from_fn(|| account.buffer(PART_BYTES)).collect()
    }

    fn held(buffers: &[Buffer]) -> u64 {
        buffers.iter().map(|buffer| buffer.len() as u64).sum()
    }

    #[test]
    fn one_has_a_lot_and_many_have_some_each() {
        let budget = Budget::new(256 * MIB);
        let alone = budget.open();
        let buffers = fill(&alone);
        assert!(held(&buffers) > 20 * MIB && held(&buffers) < 24 * MIB, "{}", held(&buffers));
        let crowd: Vec<_> = (0..1000).map(|_| budget.open()).collect();
        let kept: Vec<_> = crowd.iter().map(fill).collect();
        assert!(kept.iter().all(|buffers| held(buffers) >= LEAST_BUFFER_BYTES as u64));
        let Memory { used_bytes, total_bytes } = budget.memory();
        assert!(used_bytes <= total_bytes, "{used_bytes}");
        // Buffers do not keep others out.
        assert!(budget.has_room() && used_bytes <= total_bytes - total_bytes / RESERVE, "{used_bytes}");
    }

    #[test]
    fn all_of_it_comes_back() {
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
