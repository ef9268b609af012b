//! The way of rows to a learner: bounded, and nobody ever waits to put something in.

use ccplane_core::{Batch, DatapathId, Decision};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, PoisonError, TryLockError};
use std::time::Duration;

/// Rows that wait for a learner; the oldest batches make way.
const MAX_WAITING_ROWS: usize = 1 << 15;
/// Batches, with or without rows.
const MAX_WAITING_BATCHES: usize = 256;
/// Decisions that wait: as many as slots make while a learner is busy.
const MAX_WAITING_DECISIONS: usize = 1024;

/// One of the agent's loops, by its place.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub(crate) struct LoopId(pub(crate) u8);

/// Messages since the learner's last poll.
#[derive(Default)]
pub(super) struct Mail {
    /// Decisions on its snapshots, to be handled before the batches.
    pub(super) decisions: Vec<Decision>,
    /// Rows, oldest first.
    pub(super) batches: Vec<(LoopId, Batch)>,
}

/// Waiting messages; where they are too many, the oldest are dropped.
#[derive(Default)]
struct Queue {
    decisions: VecDeque<Decision>,
    batches: VecDeque<(LoopId, Batch)>,
    rows: usize,
    /// Counts of dropped rows that the next batch of the same flows has to report.
    owed: VecDeque<((LoopId, DatapathId), u64)>,
}

impl Queue {
    fn is_empty(&self) -> bool {
        self.decisions.is_empty() && self.batches.is_empty()
    }

    /// Adds a batch and returns the number of rows that made way.
    fn push(&mut self, from: LoopId, mut batch: Batch) -> u64 {
        let of = (from, batch.datapath);
        if let Some(place) = self.owed.iter().position(|(whose, _)| *whose == of)
            && let Some((_, rows)) = self.owed.remove(place)
        {
            batch.dropped += rows;
        }
        self.rows += batch.rows.len();
        self.batches.push_back((from, batch));
        let mut dropped = 0;
        while (self.rows > MAX_WAITING_ROWS || self.batches.len() > MAX_WAITING_BATCHES)
            && let Some((from, oldest)) = self.batches.pop_front()
        {
            self.rows -= oldest.rows.len();
            dropped += oldest.rows.len() as u64;
            self.owe((from, oldest.datapath), oldest.dropped + oldest.rows.len() as u64);
        }
        dropped
    }

    /// The next batch of these flows does not follow what the learner has seen.
    fn owe(&mut self, of: (LoopId, DatapathId), rows: u64) {
        if let Some((_, next)) = self.batches.iter_mut().find(|(from, b)| (*from, b.datapath) == of) {
            next.dropped += rows;
            return;
        }
        if self.owed.len() >= MAX_WAITING_BATCHES {
            self.owed.pop_front();
        }
        self.owed.push_back((of, rows));
    }

    fn push_decision(&mut self, decision: Decision) {
        if self.decisions.len() >= MAX_WAITING_DECISIONS {
            self.decisions.pop_front();
        }
        self.decisions.push_back(decision);
    }

    /// All that `other` has, in its order; how many rows made way.
    fn append(&mut self, other: &mut Queue) -> u64 {
        other.rows = 0;
        other.decisions.drain(..).for_each(|decision| self.push_decision(decision));
        other.batches.drain(..).map(|(from, batch)| self.push(from, batch)).sum()
    }
}

#[derive(Default)]
struct Shared {
    queue: Mutex<Queue>,
    arrived: Condvar,
    dropped: AtomicU64,
    closed: AtomicBool,
}

/// A mailbox, shared by its writers and its reader.
#[derive(Clone, Default)]
pub(super) struct Mailbox(Arc<Shared>);

impl Mailbox {
    /// Rows that did not fit so far.
    pub(super) fn dropped(&self) -> u64 {
        self.0.dropped.load(Relaxed)
    }

    /// Closes the mailbox, and wakes those that wait for mail.
    pub(super) fn close(&self) {
        self.0.closed.store(true, Relaxed);
        self.0.arrived.notify_all();
    }

    fn is_closed(&self) -> bool {
        self.0.closed.load(Relaxed)
    }

    /// All mail, after at most `patience`; `None` once it is closed.
    pub(super) fn take(&self, patience: Duration) -> Option<Mail> {
        // A learner that panics holds no lock: what it panics in is its own.
        let queue = self.0.queue.lock().unwrap_or_else(PoisonError::into_inner);
        let empty = |queue: &mut Queue| queue.is_empty() && !self.is_closed();
        let waited = self.0.arrived.wait_timeout_while(queue, patience, empty);
        let (mut queue, _) = waited.unwrap_or_else(PoisonError::into_inner);
        if self.is_closed() {
            return None;
        }
        queue.rows = 0;
        let (decisions, batches) = (std::mem::take(&mut queue.decisions), std::mem::take(&mut queue.batches));
        drop(queue);
        Some(Mail { decisions: decisions.into(), batches: batches.into() })
    }
}

/// One loop's access to a mailbox.
///
/// A learner may wait for a processor while it holds the mailbox's lock, so the loop never waits for that lock. Mail that
/// cannot be delivered at once is kept here until the next try.
pub(super) struct Poster {
    mailbox: Mailbox,
    from: LoopId,
    kept: Queue,
}

impl Poster {
    pub(super) fn new(mailbox: Mailbox, from: LoopId) -> Poster {
        Poster { mailbox, from, kept: Queue::default() }
    }

    pub(super) fn batch(&mut self, batch: Batch) {
        let dropped = self.kept.push(self.from, batch);
        self.mailbox.0.dropped.fetch_add(dropped, Relaxed);
        self.flush();
    }

    pub(super) fn decision(&mut self, decision: Decision) {
        self.kept.push_decision(decision);
        self.flush();
    }

    /// Posts what is kept, if that can be done now.
    pub(super) fn flush(&mut self) {
        if self.kept.is_empty() {
            return;
        }
        let Mailbox(shared) = &self.mailbox;
        if self.mailbox.is_closed() {
            self.kept = Queue::default();
            return;
        }
        let mut queue = match shared.queue.try_lock() {
            Ok(queue) => queue,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return,
        };
        let dropped = queue.append(&mut self.kept);
        drop(queue);
        shared.dropped.fetch_add(dropped, Relaxed);
        shared.arrived.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::learning::tests;
    use crate::learning::twin::tests::decided;
    use ccplane_core::Verdict;
    use ccplane_snapshot::Hash;

    fn batch(datapath: u32, rows: usize) -> Batch {
        tests::batch("a", datapath, rows)
    }

    #[test]
    fn the_oldest_rows_make_way_and_are_counted() {
        let mailbox = Mailbox::default();
        let mut poster = Poster::new(mailbox.clone(), LoopId(0));
        for n in [1000, MAX_WAITING_ROWS - 10, 10] {
            poster.batch(batch(0, n));
        }
        assert_eq!(mailbox.dropped(), 1000);
        let mail = mailbox.take(Duration::ZERO).unwrap();
        assert_eq!(mail.batches.iter().map(|(_, b)| b.rows.len()).sum::<usize>(), MAX_WAITING_ROWS);
        assert_eq!(mail.batches[0].1.dropped, 1000, "the next one says so");
        assert!(mailbox.take(Duration::ZERO).unwrap().batches.is_empty());
        mailbox.close();
        assert!(mailbox.take(Duration::from_secs(60)).is_none(), "at once");
    }

    #[test]
    fn a_gap_is_told_of_also_where_nothing_of_its_flows_waits() {
        let mailbox = Mailbox::default();
        let mut poster = Poster::new(mailbox.clone(), LoopId(0));
        poster.batch(batch(7, 10));
        poster.batch(batch(8, MAX_WAITING_ROWS));
        assert_eq!(mailbox.take(Duration::ZERO).unwrap().batches[0].1.dropped, 0, "another datapath's");
        poster.batch(batch(7, 1));
        poster.batch(batch(7, 1));
        let dropped = |mail: Mail| mail.batches.iter().map(|(_, b)| b.dropped).collect::<Vec<_>>();
        assert_eq!(dropped(mailbox.take(Duration::ZERO).unwrap()), [10, 0]);
    }

    /// A learner that lost its processor while it held the lock.
    #[test]
    fn nobody_waits_for_the_lock() {
        let mailbox = Mailbox::default();
        let mut poster = Poster::new(mailbox.clone(), LoopId(3));
        poster.batch(batch(0, 5));
        let held = mailbox.0.queue.lock().unwrap();
        let posted = (1..=100).map(|n| batch(0, n)).chain([batch(0, MAX_WAITING_ROWS - 50), batch(0, 50)]);
        for batch in posted {
            poster.batch(batch);
            poster.decision(decided(Hash([7; 32]), Verdict::Promoted));
        }
        assert_eq!((mailbox.dropped(), held.rows), (5050, 5), "what is kept is bounded as what waits");
        drop(held);
        assert!(mailbox.take(Duration::ZERO).unwrap().decisions.is_empty());
        poster.flush();
        let Mail { decisions, batches } = mailbox.take(Duration::ZERO).unwrap();
        assert_eq!(decisions.len(), 102, "no decision is lost");
        let told: Vec<_> = batches.iter().map(|(from, b)| (from.0, b.rows.len(), b.dropped)).collect();
        assert_eq!(told, [(3, MAX_WAITING_ROWS - 50, 5050), (3, 50, 0)]);
        poster.flush();
        assert!(mailbox.take(Duration::ZERO).unwrap().batches.is_empty(), "posted once");
    }
}
