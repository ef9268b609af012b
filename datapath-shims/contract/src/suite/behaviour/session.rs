//! A case's conversation with its datapath, and the promises that it checks.

use super::harness::{Harness, HarnessError};
use crate::command::Field;
use crate::datapath::Datapath;
use crate::error::DatapathError;
use crate::event::Event;
use crate::flow::FlowStats;
use crate::ids::{FlowId, ProgramUid};
use ccplane_program::compile;
use ccplane_program::ir::Program;
use std::fmt::Debug;

/// The ways in which a live datapath broke its promises.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Broken {
    /// The case could not be set up.
    #[error("could not set up: {0}")]
    NotRun(#[from] HarnessError),
    /// A command failed that had to succeed.
    #[error("{command} was refused: {error}")]
    Refused { command: &'static str, error: DatapathError },
    /// Something else than was promised.
    #[error("{what}: found {found}")]
    Promise { what: &'static str, found: String },
}

pub(super) type Outcome = Result<(), Broken>;

pub(super) type Run = fn(&mut Session) -> Outcome;

pub(super) const SECOND_US: u64 = 1_000_000;
/// The time for which a case waits for something to happen.
pub(super) const PATIENCE_US: u64 = 10 * SECOND_US;
/// The time in which a flow makes progress: as long as it takes between these.
const PROGRESS_US: std::ops::Range<u64> = SECOND_US / 2..5 * SECOND_US / 2;
pub(super) const A: ProgramUid = ProgramUid(101);
pub(super) const B: ProgramUid = ProgramUid(102);

/// A program that reports its control registers on each ACK, and the first value of one of them.
pub(super) const ECHO: &str = "(def (Report (first 0) (a 0) (b 0) (cwnd 0)) (x 1) (y 1))
    (when (== Report.first 0) (:= Report.first x) (fallthrough))
    (when true (:= Report.a x) (:= Report.b y) (:= Report.cwnd Cwnd) (report))";
pub(super) const FIRST: usize = 0;
pub(super) const A_SEEN: usize = 1;
pub(super) const B_SEEN: usize = 2;
pub(super) const CWND_SEEN: usize = 3;
pub(super) const X: Field = Field::Reg(4);
pub(super) const Y: Field = Field::Reg(5);

pub(super) struct Report {
    pub(super) program: ProgramUid,
    pub(super) seq: u32,
    pub(super) at_us: u64,
    pub(super) values: Vec<i64>,
}

pub(super) struct Session {
    pub(super) harness: Box<dyn Harness>,
    pub(super) reports: Vec<Report>,
    pub(super) created: Vec<FlowId>,
    pub(super) closed: Vec<FlowId>,
}

pub(super) fn promise(kept: bool, what: &'static str, found: &dyn Debug) -> Outcome {
    if kept { Ok(()) } else { Err(Broken::Promise { what, found: format!("{found:?}") }) }
}

/// Checks the window that a flow shows, which is in segments, against one in bytes.
pub(super) fn window_is(stats: &FlowStats, bytes: u64, what: &'static str) -> Outcome {
    let (segments, mss_bytes) = (stats.transport.snd_cwnd, stats.transport.mss_bytes);
    let shown = u64::from(segments) * u64::from(mss_bytes);
    promise(shown <= bytes && shown + u64::from(mss_bytes) > bytes, what, &(segments, mss_bytes))
}

pub(super) fn must<T>(command: &'static str, result: Result<T, DatapathError>) -> Result<T, Broken> {
    result.map_err(|error| Broken::Refused { command, error })
}

pub(super) fn refused<T: Debug>(
    what: &'static str,
    result: Result<T, DatapathError>,
    as_expected: fn(&DatapathError) -> bool,
) -> Outcome {
    promise(result.as_ref().is_err_and(as_expected), what, &result)
}

pub(super) fn program(source: &str) -> Result<Program, Broken> {
    compile(source).map_err(|d| Broken::NotRun(format!("the suite's own program: {d:?}").into()))
}

impl Session {
    pub(super) fn datapath(&mut self) -> &mut dyn Datapath {
        self.harness.datapath()
    }

    /// A short while: enough for a live agent between two heartbeats.
    pub(super) fn beat_us(&self) -> u64 {
        self.harness.heartbeat_timeout_us() / 4
    }

    /// Time passes under a live agent.
    pub(super) fn live(&mut self, us: u64) {
        let beat_us = self.beat_us().max(1);
        for _ in 0..us.div_ceil(beat_us) {
            self.datapath().heartbeat();
            self.harness.pass(beat_us);
            self.drain();
        }
    }

    /// Takes all events; how many were dropped.
    pub(super) fn drain(&mut self) -> u64 {
        let (mut events, mut dropped) = (Vec::new(), 0);
        while self.datapath().poll(64, &mut events) > 0 {}
        for event in events {
            match event {
                Event::Created { flow, .. } => self.created.push(flow),
                Event::Closed { flow } => self.closed.push(flow),
                Event::Dropped { count } => dropped += count,
                Event::Report { program, seq, at_us, values, .. } => {
                    self.reports.push(Report { program, seq, at_us, values: values.into_vec() });
                }
            }
        }
        dropped
    }

    /// Waits under a live agent until something holds.
    pub(super) fn wait_for(&mut self, what: &'static str, holds: impl Fn(&mut Session) -> bool) -> Outcome {
        let mut waited_us = 0;
        while !holds(self) {
            promise(waited_us < PATIENCE_US, what, &"that it did not happen in time")?;
            let beat_us = self.beat_us().max(1);
            self.live(beat_us);
            waited_us += beat_us;
        }
        Ok(())
    }

    pub(super) fn flow(&mut self) -> Result<FlowId, Broken> {
        self.harness.start_flow()?;
        let before = self.created.len();
        self.wait_for("a flow that starts is announced", |s| s.created.len() > before)?;
        Ok(self.created[before])
    }

    /// A flow that [`ECHO`] runs on, with these fields.
    pub(super) fn echo(&mut self, fields: &[(Field, i64)]) -> Result<FlowId, Broken> {
        let echo = program(ECHO)?;
        must("install", self.datapath().install(A, &echo))?;
        let flow = self.flow()?;
        must("set_program", self.datapath().set_program(flow, A, fields))?;
        self.wait_for("a program that is set reports", |s| !s.reports.is_empty())?;
        Ok(flow)
    }

    pub(super) fn stats(&mut self, flow: FlowId) -> Result<FlowStats, Broken> {
        let flows = self.datapath().flows();
        let found = flows.iter().find(|f| f.flow == flow).cloned();
        found.ok_or(Broken::Promise { what: "a live flow is listed", found: format!("{flows:?}") })
    }

    /// Bytes of a flow are acknowledged, within some time and not before some has passed.
    pub(super) fn progresses(&mut self, flow: FlowId, silent: bool) -> Outcome {
        let before = self.stats(flow)?.transport.bytes_acked;
        let (mut after, mut waited_us) = (before, 0);
        while waited_us < PROGRESS_US.start || (after == before && waited_us < PROGRESS_US.end) {
            if silent {
                self.harness.pass(SECOND_US / 4);
                self.drain();
            } else {
                self.live(SECOND_US / 4);
            }
            waited_us += SECOND_US / 4;
            after = self.stats(flow)?.transport.bytes_acked;
        }
        promise(after > before, "bytes are acknowledged", &(before, after))
    }
}
