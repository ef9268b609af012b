//! Events on their way to the agent: records of one size in a bounded queue.

use ccplane_contract::{Event, FlowId, FlowInfo, ProgramUid};
use ccplane_program::ir::MAX_REGS;
use crossbeam_queue::ArrayQueue;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// Called when an event was queued that wakes the agent. Runs on the flow's thread, within its ACK: it must neither wait
/// nor take long.
pub type Waker = Arc<dyn Fn() + Send + Sync>;

/// An event that holds nothing on the heap.
#[derive(Clone, Debug)]
#[allow(clippy::large_enum_variant)] // Most are reports, and a queue's places are of one size.
pub(crate) enum Record {
    Created { flow: FlowId, info: FlowInfo },
    Report { flow: FlowId, program: ProgramUid, seq: u32, at_us: u64, len: usize, values: [i64; MAX_REGS] },
    Closed { flow: FlowId },
}

impl From<Record> for Event {
    fn from(record: Record) -> Event {
        match record {
            Record::Created { flow, info } => Event::Created { flow, info },
            Record::Closed { flow } => Event::Closed { flow },
            Record::Report { flow, program, seq, at_us, len, values } => {
                let values = values.iter().copied().take(len).collect();
                Event::Report { flow, program, seq, at_us, values }
            }
        }
    }
}

/// The flows' end of the queue.
pub(crate) struct Events {
    queue: ArrayQueue<Record>,
    /// Events that did not fit, since the reader last took the count.
    dropped: AtomicU64,
    batch_us: u64,
    /// The batch that the last row belonged to.
    batch: AtomicU64,
    waker: Waker,
}

impl Events {
    pub(crate) fn new(capacity: usize, batch_us: u64, waker: Waker) -> Events {
        Events {
            queue: ArrayQueue::new(capacity),
            dropped: AtomicU64::new(0),
            batch_us,
            batch: AtomicU64::new(0),
            waker,
        }
    }

    /// An event that wakes the agent.
    pub(crate) fn push(&self, record: Record) {
        self.queue_or_count(record);
        (self.waker)();
    }

    /// A row of a batch, which wakes the agent only where a batch is over.
    pub(crate) fn push_row(&self, record: Record, now_us: u64) {
        let fits = self.queue_or_count(record);
        let batch_is_over = match now_us.checked_div(self.batch_us) {
            Some(batch) => self.batch.fetch_max(batch, Relaxed) < batch,
            None => true,
        };
        if batch_is_over || !fits {
            (self.waker)();
        }
    }

    /// A report, which wakes the agent unless it is a row.
    pub(crate) fn push_report(&self, record: Record, is_row: bool, now_us: u64) {
        if is_row {
            self.push_row(record, now_us);
        } else {
            self.push(record);
        }
    }

    fn queue_or_count(&self, record: Record) -> bool {
        let fits = self.queue.push(record).is_ok();
        if !fits {
            self.dropped.fetch_add(1, Relaxed);
        }
        fits
    }
}

/// The agent's end of the queue.
#[derive(Default, Debug)]
pub(crate) struct Reader {
    gap: Option<Gap>,
}

/// Events that did not fit, behind so many that wait.
#[derive(Clone, Copy, Debug)]
struct Gap {
    behind: usize,
    count: u64,
}

impl Reader {
    /// Takes events, oldest first, at most `max`; how many. A gap is told of once all are taken that were before it, and
    /// perhaps some after it.
    pub(crate) fn take(&mut self, from: &Events, max: usize, out: &mut Vec<Event>) -> usize {
        for taken in 0..max {
            match self.next(from) {
                Some(event) => out.push(event),
                None => return taken,
            }
        }
        max
    }

    fn next(&mut self, from: &Events) -> Option<Event> {
        if self.gap.is_none() && from.dropped.load(Relaxed) > 0 {
            let count = from.dropped.swap(0, Relaxed);
            self.gap = Some(Gap { behind: from.queue.len(), count });
        }
        if let Some(gap) = &mut self.gap {
            if gap.behind > 0
                && let Some(record) = from.queue.pop()
            {
                gap.behind -= 1;
                return Some(record.into());
            }
            let count = gap.count;
            self.gap = None;
            return Some(Event::Dropped { count });
        }
        from.queue.pop().map(Event::from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(capacity: usize, batch_us: u64) -> (Events, Arc<AtomicU64>) {
        let wakes = Arc::new(AtomicU64::new(0));
        let counter = Arc::clone(&wakes);
        let waker = Arc::new(move || {
            counter.fetch_add(1, Relaxed);
        });
        (Events::new(capacity, batch_us, waker), wakes)
    }

    fn closed(n: u64) -> Record {
        Record::Closed { flow: FlowId(n) }
    }

    fn names(events: &[Event]) -> Vec<Result<u64, u64>> {
        let name = |event: &Event| match event {
            Event::Closed { flow } => Ok(flow.0),
            Event::Dropped { count } => Err(*count),
            other => panic!("{other:?}"),
        };
        events.iter().map(name).collect()
    }

    #[test]
    fn what_does_not_fit_is_told_of_behind_what_did() {
        let (events, _) = counted(3, 0);
        let (mut reader, mut out) = (Reader::default(), Vec::new());
        (0..5).for_each(|n| events.push(closed(n)));
        assert_eq!(reader.take(&events, 2, &mut out), 2);
        events.push(closed(5));
        assert_eq!(reader.take(&events, 9, &mut out), 3);
        assert_eq!(names(&out), [Ok(0), Ok(1), Ok(2), Err(2), Ok(5)]);
        assert_eq!(reader.take(&events, 9, &mut out), 0);
    }

    #[test]
    fn a_reader_that_never_empties_the_queue_hears_of_gaps() {
        let (events, _) = counted(4, 0);
        let (mut reader, mut out) = (Reader::default(), Vec::new());
        let mut dropped = 0;
        for n in 0..100 {
            events.push(closed(2 * n));
            events.push(closed(2 * n + 1));
            out.clear();
            reader.take(&events, 1, &mut out);
            dropped += names(&out)[0].err().unwrap_or(0);
        }
        assert!(dropped > 50, "{dropped}");
    }

    #[test]
    fn rows_wake_the_agent_when_a_batch_is_over() {
        let (events, wakes) = counted(100, 1000);
        let woken = |at_us: u64| {
            let before = wakes.load(Relaxed);
            events.push_row(closed(0), at_us);
            wakes.load(Relaxed) > before
        };
        let times = [0, 10, 999, 1000, 1001, 1999, 2500, 2501, 9000];
        assert_eq!(times.map(woken), [false, false, false, true, false, false, true, false, true]);
        let (events, wakes) = counted(2, 0);
        (0..3).for_each(|at_us| events.push_row(closed(0), at_us));
        assert_eq!(wakes.load(Relaxed), 3, "without batches each row does");
    }

    #[test]
    fn a_full_queue_wakes_the_agent() {
        let (events, wakes) = counted(1, 1000);
        (0..3).for_each(|_| events.push_row(closed(0), 0));
        assert_eq!(wakes.load(Relaxed), 2);
    }
}
