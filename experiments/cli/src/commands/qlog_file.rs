//! Qlog traces as files: of simulated flows in virtual time, and of a running loop's flows.

use ccplane_agent::agent::OwnLoop;
use ccplane_agent::qlog::{
    Bounded, EventRecord, Filter, Format, MAX_TRACE_BYTES, Subscription, Taps, channel, dropped, header,
};
use ccplane_contract::Datapath;
use ccplane_core::{Companion, Core, DatapathId, Driven};
use std::fs::File;
use std::io::{self, BufWriter};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::{SystemTime, UNIX_EPOCH};

/// Errors of making a trace, or of what it does not have.
#[derive(Debug, thiserror::Error)]
pub(super) enum TraceError {
    /// The file cannot be made or written.
    #[error("{}: {error}", path.display())]
    Io { path: PathBuf, error: io::Error },
    /// The file has reached its bound.
    #[error(
        "the trace has {MAX_TRACE_BYTES} bytes, the most that one file gets: {left_out} later records are not in it"
    )]
    Incomplete { left_out: u64 },
    /// No loop is left to follow.
    #[error("the loop whose flows were to be traced has ended")]
    Ended,
}

/// A trace's file, and where its records come from.
struct Writer {
    path: PathBuf,
    from: Subscription,
    out: Bounded<BufWriter<File>>,
    failed: Option<io::Error>,
    last_us: u64,
}

impl Writer {
    /// Begins a file; `reference_ms` is the time that the records' times count from, milliseconds since 1970.
    fn create(path: &Path, from: Subscription, reference_ms: f64) -> Result<Writer, TraceError> {
        let io = |error| TraceError::Io { path: path.to_owned(), error };
        let mut out = Bounded::new(BufWriter::new(File::create(path).map_err(io)?), MAX_TRACE_BYTES);
        let first = header(Format::JsonSeq, reference_ms, "TCP").to_string();
        out.put(Format::JsonSeq.frame(&first).as_bytes()).map_err(io)?;
        let last_us = from.since_us;
        Ok(Writer { path: path.to_owned(), from, out, failed: None, last_us })
    }

    fn write(&mut self, record: &EventRecord) {
        self.last_us = record.at_us;
        self.put(&record.line(self.from.since_us));
    }

    fn put(&mut self, line: &str) {
        if let Err(error) = self.out.put(Format::JsonSeq.frame(line).as_bytes()) {
            self.failed.get_or_insert(error);
        }
    }

    /// Writes the rest; fails if any record was not written.
    fn finish(mut self) -> Result<(), TraceError> {
        let lost = self.from.dropped.load(Ordering::Relaxed);
        if lost > 0 {
            self.put(&dropped(lost, self.last_us, self.from.since_us));
        }
        if self.failed.is_none() {
            self.failed = self.out.flush().err();
        }
        match (self.failed, self.out.left_out()) {
            (Some(error), _) => Err(TraceError::Io { path: self.path, error }),
            (None, 0) => Ok(()),
            (None, left_out) => Err(TraceError::Incomplete { left_out }),
        }
    }
}

/// Watches a run's core and datapath, and writes what passes between them.
pub(super) struct Trace {
    taps: Taps,
    writer: Writer,
}

impl Trace {
    /// Begins a file; times count from the run's start.
    pub(super) fn create(path: &Path) -> Result<Trace, TraceError> {
        let (subscriber, from) = channel(&Filter::default(), 0);
        let mut taps = Taps::default();
        taps.subscribe(subscriber);
        Ok(Trace { taps, writer: Writer::create(path, from, 0.0)? })
    }

    /// Writes the rest; fails if any record was not written.
    pub(super) fn finish(self) -> Result<(), TraceError> {
        self.writer.finish()
    }
}

impl Companion for Trace {
    fn after_turn(&mut self, _core: &mut Core, _now_us: u64) {}

    fn drive(&mut self, core: &mut Core, id: DatapathId, datapath: &mut dyn Datapath, now_us: u64) -> Driven {
        let driven = self.taps.drive(core, id, datapath, now_us);
        while let Ok(record) = self.writer.from.records.try_recv() {
            self.writer.write(&record);
        }
        driven
    }
}

/// A file for the flows of a running loop, and why it is not whole.
#[derive(Clone, Debug)]
pub(super) struct LiveTrace {
    path: PathBuf,
    failed: Arc<Mutex<Option<TraceError>>>,
}

/// A thread that writes a loop's records until the loop ends; dropped, it is waited for.
pub(super) struct Follower {
    thread: Option<JoinHandle<Result<(), TraceError>>>,
    failed: Arc<Mutex<Option<TraceError>>>,
}

impl LiveTrace {
    pub(super) fn new(path: &Path) -> LiveTrace {
        LiveTrace { path: path.to_owned(), failed: Arc::default() }
    }

    /// Begins the file anew with the records of this loop, on a thread of its own.
    pub(super) fn follow(&self, own: &OwnLoop) -> Result<Follower, TraceError> {
        let io = |error| TraceError::Io { path: self.path.clone(), error };
        let from = own.events().ok_or(TraceError::Ended)?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let mut writer = Writer::create(&self.path, from, now.as_secs_f64() * 1000.0)?;
        let write = move || {
            while let Some(record) = writer.from.records.blocking_recv() {
                writer.write(&record);
            }
            writer.finish()
        };
        let thread = Builder::new().name("trace".to_owned()).spawn(write).map_err(io)?;
        Ok(Follower { thread: Some(thread), failed: Arc::clone(&self.failed) })
    }

    /// Fails if a follower, all of which have ended, did not write all.
    pub(super) fn finish(&self) -> Result<(), TraceError> {
        self.failed.lock().unwrap_or_else(PoisonError::into_inner).take().map_or(Ok(()), Err)
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        if let Err(error) = thread.join().unwrap_or(Err(TraceError::Ended)) {
            self.failed.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
        }
    }
}
