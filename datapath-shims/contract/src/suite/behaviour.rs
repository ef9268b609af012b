//! Behaviour of a live datapath: promises 2 to 7 of the contract, and its refusals.
//!
//! Each case gets a fresh [`Harness`], which a shim provides around its datapath and some traffic.

mod policies;

use super::conformance::Conformance;
use crate::command::Field;
use crate::datapath::Datapath;
use crate::error::DatapathError;
use crate::event::Event;
use crate::flow::{FlowStats, Mode};
use crate::ids::{FlowId, ProgramUid};
use ccplane_program::compile;
use ccplane_program::ir::Program;
use std::fmt::Debug;
use std::net::SocketAddr;
use std::time::Duration;

/// A datapath under test, with traffic at hand. At least one flow must fit, and at least two programs.
pub trait Harness {
    /// The datapath, attached, with no flows and no programs.
    fn datapath(&mut self) -> &mut dyn Datapath;
    /// Starts a bulk flow that lasts until it is stopped.
    ///
    /// # Errors
    /// What kept it from starting.
    fn start_flow(&mut self) -> Result<(), HarnessError>;
    /// Stops the flow; it sends nothing more.
    ///
    /// # Errors
    /// What kept it from stopping.
    fn stop_flow(&mut self, flow: FlowId) -> Result<(), HarnessError>;
    /// Lets time and traffic pass, microseconds. Neither polls nor gives heartbeats.
    fn pass(&mut self, us: u64);
    /// The datapath's heartbeat timeout, microseconds.
    fn heartbeat_timeout_us(&self) -> u64;
}

/// A harness of a datapath that carries real flows in real time.
pub struct RealFlows<D, F, L> {
    // Dropped in this order: the flows end before the datapath and the link go.
    flows: Vec<F>,
    datapath: D,
    lab: L,
    start: fn(&L) -> F,
    local: fn(&F) -> SocketAddr,
    heartbeat_timeout: Duration,
}

impl<D: Datapath, F, L> RealFlows<D, F, L> {
    /// A harness whose flows are started in its lab by `start`, and end when they are dropped; `local` tells their own addresses.
    pub fn new(
        datapath: D,
        lab: L,
        heartbeat_timeout: Duration,
        start: fn(&L) -> F,
        local: fn(&F) -> SocketAddr,
    ) -> RealFlows<D, F, L> {
        RealFlows { flows: Vec::new(), datapath, lab, start, local, heartbeat_timeout }
    }
}

impl<D: Datapath, F, L> Harness for RealFlows<D, F, L> {
    fn datapath(&mut self) -> &mut dyn Datapath {
        &mut self.datapath
    }
    fn start_flow(&mut self) -> Result<(), HarnessError> {
        self.flows.push((self.start)(&self.lab));
        Ok(())
    }
    fn stop_flow(&mut self, flow: FlowId) -> Result<(), HarnessError> {
        let listed = self.datapath.flows();
        let local = listed.iter().find(|f| f.flow == flow).ok_or("no such flow")?.info.local;
        self.flows.retain(|f| (self.local)(f) != local);
        Ok(())
    }
    fn pass(&mut self, us: u64) {
        std::thread::sleep(Duration::from_micros(us));
    }
    fn heartbeat_timeout_us(&self) -> u64 {
        self.heartbeat_timeout.as_micros() as u64
    }
}

/// The error of a harness that could not set up or run a case.
pub type HarnessError = Box<dyn std::error::Error + Send + Sync>;

/// Makes a fresh harness.
pub type Setup<'a> = dyn FnMut() -> Result<Box<dyn Harness>, HarnessError> + 'a;

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

type Outcome = Result<(), Broken>;

type Run = fn(&mut Session) -> Outcome;

/// The name and the function of each case.
const CASES: [(&str, Run); 12] = [
    ("a flow is announced and runs natively", announced),
    ("a program steers its flow", steered),
    ("a program and its fields start together", program_with_fields),
    ("fields are updated together", fields_together),
    ("a silent agent loses its flows, and gets them back", silent_agent),
    ("a released flow runs natively", released),
    ("a program that wants no window gets one segment", smallest_window),
    ("what does not exist is refused", unknown_names),
    ("a field that is no control register is refused", bad_fields),
    ("programs are counted, listed and removed", programs_bounded),
    ("events that do not fit are counted", events_bounded),
    ("a flow that ends is gone", closed),
];

/// Runs every case on a datapath of its own; those of policies where it runs policies.
pub fn behave(setup: &mut Setup<'_>) -> Conformance<Broken> {
    let mut result = Conformance::default();
    let mut runs_policies = false;
    let mut check = |name: &str, run: Run| {
        let outcome = setup().map_err(Broken::NotRun).and_then(|mut harness| {
            runs_policies = harness.datapath().capabilities().policy;
            let mut session =
                Session { harness, reports: Vec::new(), created: Vec::new(), closed: Vec::new() };
            run(&mut session)
        });
        result.note(name.to_owned(), outcome);
        runs_policies
    };
    let mut policies = false;
    for (name, run) in CASES {
        policies = check(name, run);
    }
    if policies {
        for (name, run) in policies::CASES {
            check(name, run);
        }
    }
    result
}

const SECOND_US: u64 = 1_000_000;
/// The time for which a case waits for something to happen.
const PATIENCE_US: u64 = 10 * SECOND_US;
/// The time in which a flow makes progress: as long as it takes between these.
const PROGRESS_US: std::ops::Range<u64> = SECOND_US / 2..5 * SECOND_US / 2;
const A: ProgramUid = ProgramUid(101);
const B: ProgramUid = ProgramUid(102);

/// A program that reports its control registers on each ACK, and the first value of one of them.
const ECHO: &str = "(def (Report (first 0) (a 0) (b 0) (cwnd 0)) (x 1) (y 1))
    (when (== Report.first 0) (:= Report.first x) (fallthrough))
    (when true (:= Report.a x) (:= Report.b y) (:= Report.cwnd Cwnd) (report))";
const FIRST: usize = 0;
const A_SEEN: usize = 1;
const B_SEEN: usize = 2;
const CWND_SEEN: usize = 3;
const X: Field = Field::Reg(4);
const Y: Field = Field::Reg(5);

struct Report {
    program: ProgramUid,
    seq: u32,
    at_us: u64,
    values: Vec<i64>,
}

struct Session {
    harness: Box<dyn Harness>,
    reports: Vec<Report>,
    created: Vec<FlowId>,
    closed: Vec<FlowId>,
}

fn promise(kept: bool, what: &'static str, found: &dyn Debug) -> Outcome {
    if kept { Ok(()) } else { Err(Broken::Promise { what, found: format!("{found:?}") }) }
}

/// Checks the window that a flow shows, which is in segments, against one in bytes.
fn window_is(stats: &FlowStats, bytes: u64, what: &'static str) -> Outcome {
    let (segments, mss_bytes) = (stats.transport.snd_cwnd, stats.transport.mss_bytes);
    let shown = u64::from(segments) * u64::from(mss_bytes);
    promise(shown <= bytes && shown + u64::from(mss_bytes) > bytes, what, &(segments, mss_bytes))
}

fn must<T>(command: &'static str, result: Result<T, DatapathError>) -> Result<T, Broken> {
    result.map_err(|error| Broken::Refused { command, error })
}

fn refused<T: Debug>(
    what: &'static str,
    result: Result<T, DatapathError>,
    as_expected: fn(&DatapathError) -> bool,
) -> Outcome {
    promise(result.as_ref().is_err_and(as_expected), what, &result)
}

fn program(source: &str) -> Result<Program, Broken> {
    compile(source).map_err(|d| Broken::NotRun(format!("the suite's own program: {d:?}").into()))
}

impl Session {
    fn datapath(&mut self) -> &mut dyn Datapath {
        self.harness.datapath()
    }

    /// A short while: enough for a live agent between two heartbeats.
    fn beat_us(&self) -> u64 {
        self.harness.heartbeat_timeout_us() / 4
    }

    /// Time passes under a live agent.
    fn live(&mut self, us: u64) {
        let beat_us = self.beat_us().max(1);
        for _ in 0..us.div_ceil(beat_us) {
            self.datapath().heartbeat();
            self.harness.pass(beat_us);
            self.drain();
        }
    }

    /// Takes all events; how many were dropped.
    fn drain(&mut self) -> u64 {
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
    fn wait_for(&mut self, what: &'static str, holds: impl Fn(&mut Session) -> bool) -> Outcome {
        let mut waited_us = 0;
        while !holds(self) {
            promise(waited_us < PATIENCE_US, what, &"that it did not happen in time")?;
            let beat_us = self.beat_us().max(1);
            self.live(beat_us);
            waited_us += beat_us;
        }
        Ok(())
    }

    fn flow(&mut self) -> Result<FlowId, Broken> {
        self.harness.start_flow()?;
        let before = self.created.len();
        self.wait_for("a flow that starts is announced", |s| s.created.len() > before)?;
        Ok(self.created[before])
    }

    /// A flow that [`ECHO`] runs on, with these fields.
    fn echo(&mut self, fields: &[(Field, i64)]) -> Result<FlowId, Broken> {
        let echo = program(ECHO)?;
        must("install", self.datapath().install(A, &echo))?;
        let flow = self.flow()?;
        must("set_program", self.datapath().set_program(flow, A, fields))?;
        self.wait_for("a program that is set reports", |s| !s.reports.is_empty())?;
        Ok(flow)
    }

    fn stats(&mut self, flow: FlowId) -> Result<FlowStats, Broken> {
        let flows = self.datapath().flows();
        let found = flows.iter().find(|f| f.flow == flow).cloned();
        found.ok_or(Broken::Promise { what: "a live flow is listed", found: format!("{flows:?}") })
    }

    /// Bytes of a flow are acknowledged, within some time and not before some has passed.
    fn progresses(&mut self, flow: FlowId, silent: bool) -> Outcome {
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

fn announced(s: &mut Session) -> Outcome {
    let flow = s.flow()?;
    let stats = s.stats(flow)?;
    promise(stats.mode == Mode::NativeNoProgram, "a flow without a program runs natively", &stats)?;
    promise(stats.info.mss_bytes > 0 && stats.info.init_cwnd_bytes > 0, "its info is known", &stats.info)?;
    s.progresses(flow, false)?;
    promise(s.created.len() == 1, "a flow is announced once", &s.created)
}

fn steered(s: &mut Session) -> Outcome {
    let flow = s.echo(&[(Field::Cwnd, 5 * 10_000)])?;
    s.progresses(flow, false)?;
    let stats = s.stats(flow)?;
    let steered = stats.mode == Mode::Program && stats.program == Some(A);
    promise(steered, "the program steers", &(stats.mode, stats.program))?;
    window_is(&stats, 50_000, "the window set is applied, rounded down to segments")?;
    let exact = s.reports.iter().all(|r| r.values[CWND_SEEN] == 50_000);
    promise(exact, "the program sees the window to the byte", &s.reports[0].values)?;
    let dense = s.reports.iter().zip(1..).all(|(r, n)| r.seq == n);
    promise(
        dense,
        "reports are counted from 1",
        &s.reports.iter().map(|r| r.seq).take(20).collect::<Vec<_>>(),
    )?;
    let in_time = s.reports.windows(2).all(|w| w[0].at_us <= w[1].at_us);
    promise(in_time, "the datapath's clock does not go back", &"a report before its predecessor")?;
    promise(
        s.reports.iter().all(|r| r.values.len() == 4),
        "a report has its registers",
        &s.reports[0].values,
    )?;
    let other = s.reports.iter().filter(|r| r.program != A).count();
    promise(other == 0, "reports name their program", &other)
}

fn program_with_fields(s: &mut Session) -> Outcome {
    let flow = s.echo(&[(X, 77), (Y, 78)])?;
    let first = &s.reports[0].values;
    promise(first[FIRST] == 77 && first[B_SEEN] == 78, "fields are set before the first ACK", first)?;
    let second = program(ECHO)?;
    must("install", s.datapath().install(B, &second))?;
    must("set_program", s.datapath().set_program(flow, B, &[(X, 79)]))?;
    s.wait_for("the second program reports", |s| s.reports.iter().any(|r| r.program == B))?;
    let first = s.reports.iter().find(|r| r.program == B).map(|r| r.values.clone()).unwrap_or_default();
    let fresh = first.get(..3) == Some(&[79, 79, 1]);
    promise(fresh, "a program starts from its initial state, then its fields", &first)?;
    let switched = s.reports.iter().skip_while(|r| r.program == A).all(|r| r.program == B);
    promise(switched, "programs change once", &s.reports.len())
}

fn fields_together(s: &mut Session) -> Outcome {
    let flow = s.echo(&[])?;
    for n in 2..40 {
        must("update", s.datapath().update(flow, &[(X, n), (Y, n)]))?;
        let beat_us = s.beat_us();
        s.live(beat_us / 10);
    }
    s.wait_for("the last update arrives", |s| s.reports.iter().any(|r| r.values[A_SEEN] == 39))?;
    let torn = s.reports.iter().find(|r| r.values[A_SEEN] != r.values[B_SEEN]);
    promise(torn.is_none(), "no ACK sees half an update", &torn.map(|r| &r.values))
}

fn silent_agent(s: &mut Session) -> Outcome {
    let flow = s.echo(&[])?;
    let timeout_us = s.harness.heartbeat_timeout_us();
    s.harness.pass(2 * timeout_us);
    s.drain();
    let before = s.reports.len();
    s.progresses(flow, true)?;
    let stats = s.stats(flow)?;
    promise(stats.mode == Mode::NativeAgentSilent, "a silent agent's flow runs natively", &stats.mode)?;
    promise(s.reports.len() == before, "its program does not run", &(s.reports.len() - before))?;
    let native_bytes = i64::from(stats.transport.snd_cwnd) * i64::from(stats.transport.mss_bytes);
    s.wait_for("the program resumes", |s| s.reports.len() > before)?;
    let resumed = s.reports[before].values[CWND_SEEN];
    let near = resumed <= 2 * native_bytes && 2 * resumed >= native_bytes;
    promise(near, "it resumes from the window that the flow has", &(resumed, native_bytes))?;
    let mode = s.stats(flow)?.mode;
    promise(mode == Mode::Program, "it is steered again", &mode)
}

fn released(s: &mut Session) -> Outcome {
    let flow = s.echo(&[])?;
    must("release", s.datapath().release(flow))?;
    let beat_us = s.beat_us();
    s.live(beat_us);
    let before = s.reports.len();
    s.progresses(flow, false)?;
    promise(s.reports.len() == before, "a released flow's program does not run", &s.reports.len())?;
    let stats = s.stats(flow)?;
    let native = stats.mode == Mode::NativeNoProgram && stats.program.is_none();
    promise(native, "a released flow runs natively", &(stats.mode, stats.program))
}

fn smallest_window(s: &mut Session) -> Outcome {
    let flow = s.echo(&[(Field::Cwnd, 1)])?;
    s.progresses(flow, false)?;
    let last = s.reports.last().map(|r| r.values[CWND_SEEN]);
    promise(last == Some(1), "the register keeps its exact value", &last)?;
    let stats = s.stats(flow)?;
    // A transport may need a second segment against delayed ACKs.
    promise(
        (1..=2).contains(&stats.transport.snd_cwnd),
        "one or two segments are applied",
        &stats.transport.snd_cwnd,
    )
}

fn unknown_names(s: &mut Session) -> Outcome {
    let flow = s.echo(&[])?;
    let nobody = FlowId(u64::MAX);
    let no_flow = |e: &DatapathError| matches!(e, DatapathError::NoFlow(FlowId(u64::MAX)));
    let no_program = |e: &DatapathError| matches!(e, DatapathError::NoProgram(B));
    refused("set_program names the missing flow", s.datapath().set_program(nobody, A, &[]), no_flow)?;
    refused("update names the missing flow", s.datapath().update(nobody, &[]), no_flow)?;
    refused("release names the missing flow", s.datapath().release(nobody), no_flow)?;
    refused("set_program names the missing program", s.datapath().set_program(flow, B, &[]), no_program)?;
    refused("remove names the missing program", s.datapath().remove(B), no_program)?;
    s.progresses(flow, false)
}

fn bad_fields(s: &mut Session) -> Outcome {
    let flow = s.echo(&[(X, 5)])?;
    let bad = |e: &DatapathError| matches!(e, DatapathError::BadField(Field::Reg(0 | 63)));
    for r in [0, 63] {
        let fields = [(X, 6), (Field::Reg(r), 1)];
        refused("update names the bad field", s.datapath().update(flow, &fields), bad)?;
        refused("set_program names the bad field", s.datapath().set_program(flow, A, &fields), bad)?;
    }
    let beat_us = s.beat_us();
    s.live(beat_us);
    let last = s.reports.last().map(|r| r.values.clone()).unwrap_or_default();
    promise(last.get(A_SEEN) == Some(&5), "a refused command changes nothing", &last)
}

fn programs_bounded(s: &mut Session) -> Outcome {
    let flow = s.echo(&[])?;
    let echo = program(ECHO)?;
    refused("an installed uid is not replaced", s.datapath().install(A, &echo), |_| true)?;
    let in_use = |e: &DatapathError| matches!(e, DatapathError::ProgramInUse { uid: A, flows: 1 });
    refused("a program in use stays", s.datapath().remove(A), in_use)?;

    let limit = s.datapath().capabilities().max_programs;
    let first = 1000;
    for n in 1..limit as u32 {
        must("install", s.datapath().install(ProgramUid(first + n), &echo))?;
    }
    let full = s.datapath().install(B, &echo);
    let as_told = matches!(full, Err(DatapathError::ProgramsFull { limit: found }) if found == limit);
    promise(as_told, "the table of programs ends where the capabilities say", &full)?;
    must("release", s.datapath().release(flow))?;
    let beat_us = s.beat_us();
    s.live(beat_us);
    must("remove", s.datapath().remove(A))?;
    must("install", s.datapath().install(B, &echo))?;

    if !s.datapath().capabilities().policy {
        must("remove", s.datapath().remove(B))?;
        let history = program("(def (Report (x 0))) (when true (history 4 Report.x))")?;
        let unsupported = |e: &DatapathError| matches!(e, DatapathError::Unsupported { .. });
        refused("what it cannot run is refused", s.datapath().install(B, &history), unsupported)?;
        must("install", s.datapath().install(B, &echo))?;
    }
    Ok(())
}

fn events_bounded(s: &mut Session) -> Outcome {
    s.echo(&[])?;
    let mut dropped = s.drain();
    promise(dropped == 0, "an agent that polls loses nothing", &dropped)?;
    let mut waited_us = 0;
    while dropped == 0 && waited_us < PATIENCE_US {
        // The agent is alive and does not read; longer and longer.
        let pause_us = (waited_us + SECOND_US).min(PATIENCE_US);
        for _ in 0..pause_us.div_ceil(s.beat_us().max(1)) {
            s.datapath().heartbeat();
            let beat_us = s.beat_us();
            s.harness.pass(beat_us);
        }
        waited_us += pause_us;
        dropped += s.drain();
    }
    promise(dropped > 0, "what does not fit is counted", &"no drops; is the channel bounded?")?;
    // A report after the gap shows its size.
    for _ in 0..20 {
        let beat_us = s.beat_us();
        s.datapath().heartbeat();
        s.harness.pass(beat_us / 10);
        dropped += s.drain();
    }
    let missing: u64 = s.reports.windows(2).map(|w| u64::from(w[1].seq.wrapping_sub(w[0].seq)) - 1).sum();
    promise(missing == dropped, "gaps in the reports are as large as the drops told", &(missing, dropped))
}

fn closed(s: &mut Session) -> Outcome {
    let flow = s.echo(&[])?;
    s.harness.stop_flow(flow)?;
    s.wait_for("a flow that ends is announced", |s| !s.closed.is_empty())?;
    promise(s.closed == [flow], "the flow that ended is named", &s.closed)?;
    let flows = s.datapath().flows();
    promise(flows.iter().all(|f| f.flow != flow), "it is not listed any more", &flows)?;
    let gone = |e: &DatapathError| matches!(e, DatapathError::NoFlow(_));
    refused("it can't be set", s.datapath().update(flow, &[(X, 1)]), gone)?;
    must("remove", s.datapath().remove(A))
}
