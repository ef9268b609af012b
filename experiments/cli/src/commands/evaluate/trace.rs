//! A qlog trace of simulated flows, written as they are steered in virtual time.

use ccplane_agent::failure::Failure;
use ccplane_agent::qlog::{
    Bounded, Filter, Format, MAX_TRACE_BYTES, Subscription, Taps, channel, dropped, header,
};
use ccplane_contract::Datapath;
use ccplane_core::{Companion, Core, DatapathId, Driven};
use std::fs::File;
use std::io::{self, BufWriter};
use std::path::Path;
use std::sync::atomic::Ordering;

/// A trace that has reached its bound.
#[derive(Debug, thiserror::Error)]
#[error(
    "the trace has {MAX_TRACE_BYTES} bytes, the most that one file gets: {left_out} later records are not in it"
)]
struct Incomplete {
    left_out: u64,
}

/// Watches a run's core and datapath, and writes what passes between them.
pub(super) struct Trace {
    taps: Taps,
    from: Subscription,
    out: Bounded<BufWriter<File>>,
    failed: Option<io::Error>,
    now_us: u64,
}

impl Trace {
    /// Begins a file; times count from the run's start.
    pub(super) fn create(path: &Path) -> io::Result<Trace> {
        let mut out = Bounded::new(BufWriter::new(File::create(path)?), MAX_TRACE_BYTES);
        let first = header(Format::JsonSeq, 0.0, "TCP").to_string();
        out.put(Format::JsonSeq.frame(&first).as_bytes())?;
        let (subscriber, from) = channel(&Filter::default(), 0);
        let mut taps = Taps::default();
        taps.subscribe(subscriber);
        Ok(Trace { taps, from, out, failed: None, now_us: 0 })
    }

    fn put(&mut self, record: &str) {
        if let Err(error) = self.out.put(Format::JsonSeq.frame(record).as_bytes()) {
            self.failed.get_or_insert(error);
        }
    }

    /// Writes the rest; fails if any record was not written.
    pub(super) fn finish(mut self) -> Result<(), Failure> {
        let lost = self.from.dropped.load(Ordering::Relaxed);
        if lost > 0 {
            self.put(&dropped(lost, self.now_us, 0));
        }
        if let Some(error) = self.failed {
            return Err(error.into());
        }
        self.out.flush()?;
        match self.out.left_out() {
            0 => Ok(()),
            left_out => Err(Failure::runtime(Incomplete { left_out })),
        }
    }
}

impl Companion for Trace {
    fn turned(&mut self, _core: &mut Core, _now_us: u64) {}

    fn drive(&mut self, core: &mut Core, id: DatapathId, datapath: &mut dyn Datapath, now_us: u64) -> Driven {
        let driven = self.taps.drive(core, id, datapath, now_us);
        self.now_us = now_us;
        while let Ok(record) = self.from.records.try_recv() {
            self.put(&record.line(0));
        }
        driven
    }
}
