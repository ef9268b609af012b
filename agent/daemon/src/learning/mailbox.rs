//! The way of rows to a learner: bounded, and nobody ever waits to put something in.

use ccplane_core::{Batch, Decision};
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
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

/// What came since a learner last looked.
#[derive(Default)]
pub(super) struct Mail {
    /// What its slots have decided. Goes before the batches.
    pub(super) decisions: Vec<Decision>,
    /// Rows, oldest first.
    pub(super) batches: Vec<(LoopId, Batch)>,
}

#[derive(Default)]
struct State {
    decisions: VecDeque<Decision>,
    batches: VecDeque<(LoopId, Batch)>,
    rows: usize,
    dropped: u64,
    closed: bool,
}

/// A mailbox, shared by whoever fills and whoever empties it.
#[derive(Clone, Default)]
pub(super) struct Mailbox(Arc<(Mutex<State>, Condvar)>);

impl Mailbox {
    fn state(&self) -> MutexGuard<'_, State> {
        // A learner that panics holds no lock: what it panics in is its own.
        self.0.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn post_batch(&self, from: LoopId, batch: Batch) {
        let mut state = self.state();
        if state.closed {
            return;
        }
        state.rows += batch.rows.len();
        state.batches.push_back((from, batch));
        while (state.rows > MAX_WAITING_ROWS || state.batches.len() > MAX_WAITING_BATCHES)
            && let Some((from, oldest)) = state.batches.pop_front()
        {
            let rows = oldest.rows.len();
            state.rows -= rows;
            state.dropped += rows as u64;
            // The next batch of its flows does not follow what the learner has seen.
            let of_it = |(f, b): &&mut (LoopId, Batch)| (*f, b.datapath) == (from, oldest.datapath);
            if let Some((_, next)) = state.batches.iter_mut().find(of_it) {
                next.dropped += oldest.dropped + rows as u64;
            }
        }
        self.0.1.notify_one();
    }

    pub(super) fn post_decision(&self, decision: Decision) {
        let mut state = self.state();
        if state.decisions.len() >= MAX_WAITING_DECISIONS {
            state.decisions.pop_front();
        }
        state.decisions.push_back(decision);
        self.0.1.notify_one();
    }

    /// Rows that did not fit so far.
    pub(super) fn dropped(&self) -> u64 {
        self.state().dropped
    }

    /// No more mail: whoever waits is told.
    pub(super) fn close(&self) {
        self.state().closed = true;
        self.0.1.notify_all();
    }

    /// All mail, after at most `patience`; `None` once it is closed.
    pub(super) fn take(&self, patience: Duration) -> Option<Mail> {
        let (_, arrived) = &*self.0;
        let empty = |s: &mut State| s.decisions.is_empty() && s.batches.is_empty() && !s.closed;
        let waited = arrived.wait_timeout_while(self.state(), patience, empty);
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        if state.closed {
            return None;
        }
        state.rows = 0;
        Some(Mail {
            decisions: std::mem::take(&mut state.decisions).into(),
            batches: std::mem::take(&mut state.batches).into(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ccplane_core::DatapathId;

    fn batch(rows: usize) -> Batch {
        let row = ccplane_alg::Row {
            at_us: 0,
            slot: 0,
            snapshot: 1,
            inputs: Vec::new(),
            action_q16: 0,
            reward: 0.0,
            follows: true,
        };
        let rows = vec![(ccplane_contract::FlowId(1), row); rows];
        Batch { datapath: DatapathId(0), algorithm: "a", slot: 0, rows, dropped: 0, measures: Vec::new() }
    }

    #[test]
    fn the_oldest_rows_make_way_and_are_counted() {
        let mailbox = Mailbox::default();
        for n in [1000, MAX_WAITING_ROWS - 10, 10] {
            mailbox.post_batch(LoopId(0), batch(n));
        }
        assert_eq!(mailbox.dropped(), 1000);
        let mail = mailbox.take(Duration::ZERO).unwrap();
        assert_eq!(mail.batches.iter().map(|(_, b)| b.rows.len()).sum::<usize>(), MAX_WAITING_ROWS);
        assert!(mailbox.take(Duration::ZERO).unwrap().batches.is_empty());
        mailbox.close();
        assert!(mailbox.take(Duration::from_secs(60)).is_none(), "at once");
    }
}
