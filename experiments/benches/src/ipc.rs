//! `ipc.ring`: report, agent, update, as a datapath in another process sees it.
//!
//! `bare`: a thread at the other end of the rings sends back what it gets, 64 bytes each way. `agent`: our agent's
//! process decodes a report, lets its core and `ccp-reno` decide, and encodes the update; the datapath's side is
//! [`Served`] around a datapath that does nothing else. `socket`: the same over unix datagrams. Portus does as much over
//! its own, which neither end sleeps on where ours do not: they poll, as portus's socket that does not block
//! has it. Blocks of all of them alternate; who is not measured stands still. The datapath is on one core and the agent on another, but for `same-core`,
//! where both are on one.

use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ccplane_channel::{End, RING_BYTES, RecordBuffer, ServeOptions, Served, Transport};
use ccplane_contract::{
    Capabilities, Datapath, DatapathError, Event, Field, FlowId, FlowInfo, FlowStats, ProgramUid,
    TransportStats, Values,
};
use ccplane_program::ir::Program;
use ccplane_wait::Mode;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::agent::{OurAgent, Portus, Process, START};
use crate::cores::OneCore;
use crate::error::{BenchError, context};
use crate::figure::{Block, Figure};
use crate::proof::{Proof, Unproven};
use crate::v1::V1;

/// Round trips of one block; blocks alternate.
const BLOCK: usize = 2000;
const BLOCKS: usize = 6;
/// An answer that takes longer is lost.
const LOST: Duration = Duration::from_secs(1);
/// The time for which "spin" polls before it sleeps: longer than a round trip.
const SPIN: Duration = Duration::from_micros(50);
/// Polls of the ring between two reads of the clock, which costs as much as some of them.
const POLLS: u32 = 64;
const MESSAGE_BYTES: usize = 64;
const SID: u32 = 1;
const MSS: u32 = 1448;

/// Ways to wait, by their names in the agent's configuration, and whether both ends may be on one core.
const MODES: [(&str, Mode, bool); 4] = [
    ("busy", Mode::Busy, false),
    ("spin", Mode::Spin, false),
    ("sleep", Mode::Sleep, false),
    ("sleep", Mode::Sleep, true),
];

/// Waits for the next frame at one end.
fn wait(end: &mut End, record: &mut RecordBuffer, mode: Mode, stop: &AtomicBool) -> Result<(), BenchError> {
    let missing = |e: &dyn std::fmt::Display| BenchError::Missing(format!("the rings broke: {e}"));
    let start = Instant::now();
    let mut polls = 0_u32;
    while !end.receive(record).map_err(|e| missing(&e))? {
        polls = polls.wrapping_add(1);
        if mode != Mode::Sleep {
            std::hint::spin_loop();
            if !polls.is_multiple_of(POLLS) {
                continue;
            }
        }
        if stop.load(Ordering::Relaxed) || start.elapsed() > LOST {
            return Err(missing(&"nothing comes"));
        }
        let polled_enough = mode == Mode::Sleep || (mode == Mode::Spin && start.elapsed() > SPIN);
        if polled_enough && end.doze() {
            let polled = poll(&mut [PollFd::new(end.as_fd(), PollFlags::POLLIN)], PollTimeout::from(100_u16));
            end.awake();
            if polled.is_ok_and(|n| n > 0) {
                end.take_wakes();
            }
        }
    }
    Ok(())
}

/// The rings alone: this end, and a thread at the other one.
struct Bare {
    end: End,
    record: RecordBuffer,
    mode: Mode,
    stop: Arc<AtomicBool>,
    echo: Option<JoinHandle<()>>,
}

impl Bare {
    /// The thread runs on the `other`th of `cores`.
    fn start(mode: Mode, cores: &[usize], other: usize) -> Result<Bare, BenchError> {
        let rings = |e: ccplane_channel::RingError| BenchError::Missing(e.to_string());
        let (mut agent, parts) = End::create(RING_BYTES).map_err(rings)?;
        let end = End::open(parts, RING_BYTES).map_err(rings)?;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let cores = cores.to_vec();
        let echo = std::thread::spawn(move || {
            let _one_core = OneCore::nth_of(&cores, other);
            let mut record = RecordBuffer::default();
            while !stopped.load(Ordering::Relaxed) {
                if wait(&mut agent, &mut record, mode, &stopped).is_ok() {
                    let _ = agent.send(record.bytes());
                }
            }
        });
        Ok(Bare { end, record: RecordBuffer::default(), mode, stop, echo: Some(echo) })
    }

    /// Runs one round trip and returns its time, nanoseconds.
    fn round_trip(&mut self) -> Result<u64, BenchError> {
        let start = Instant::now();
        let sent = self.end.send(&[0x5a; MESSAGE_BYTES]);
        sent.map_err(|e| BenchError::Missing(e.to_string()))?;
        wait(&mut self.end, &mut self.record, self.mode, &self.stop)?;
        Ok(start.elapsed().as_nanos() as u64)
    }
}

impl Drop for Bare {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let _ = self.end.send(&[]);
        let _ = self.echo.take().map(JoinHandle::join);
    }
}

/// A datapath of one flow that reports when it is told to, and notes that it was updated.
#[derive(Default)]
struct Probe {
    program: Option<ProgramUid>,
    /// Whether a report is waiting.
    due: bool,
    seq: u32,
    updates: u64,
}

impl Probe {
    const FLOW: FlowId = FlowId(1);

    fn info() -> FlowInfo {
        FlowInfo::example(MSS, u64::from(10 * MSS))
    }

    fn report(&mut self) {
        self.seq = self.seq.wrapping_add(1);
        self.due = true;
    }
}

impl Datapath for Probe {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            kind: "sim",
            max_programs: 64,
            max_flows: 1,
            policy: false,
            full_language: true,
            hooks: ccplane_contract::ON_ACKS,
        }
    }
    fn install(&mut self, _: ProgramUid, _: &Program) -> Result<(), DatapathError> {
        Ok(())
    }
    fn remove(&mut self, _: ProgramUid) -> Result<(), DatapathError> {
        Ok(())
    }
    fn set_program(&mut self, _: FlowId, uid: ProgramUid, _: &[(Field, i64)]) -> Result<(), DatapathError> {
        self.program = Some(uid);
        Ok(())
    }
    fn update(&mut self, _: FlowId, _: &[(Field, i64)]) -> Result<(), DatapathError> {
        self.updates += 1;
        Ok(())
    }
    fn release(&mut self, _: FlowId) -> Result<(), DatapathError> {
        self.program = None;
        Ok(())
    }
    fn heartbeat(&mut self) {}
    fn flows(&mut self) -> Vec<FlowStats> {
        let (flow, info) = (Probe::FLOW, Probe::info());
        vec![FlowStats {
            flow,
            info,
            mode: ccplane_contract::Mode::Program,
            program: self.program,
            transport: TransportStats {
                snd_cwnd: 10,
                mss_bytes: MSS,
                reports: u64::from(self.seq),
                ..TransportStats::default()
            },
            policy: None,
            sampled_at_us: 0,
        }]
    }
    fn poll(&mut self, max: usize, events: &mut Vec<Event>) -> usize {
        let Some(program) = self.program.filter(|_| self.due && max > 0) else { return 0 };
        self.due = false;
        // acked, lost, timeout, rtt_us
        let values = Values::from_slice(&[i64::from(MSS), 0, 0, 20_000]);
        let (flow, seq) = (Probe::FLOW, self.seq);
        events.push(Event::Report { flow, program, seq, at_us: u64::from(seq), values });
        1
    }
}

/// A conversation with our agent.
struct Conversation {
    served: Served,
    probe: Probe,
    start: Instant,
    mode: Mode,
}

impl Conversation {
    fn start(agent: &Path, transport: Transport, mode: Mode) -> Result<Conversation, BenchError> {
        let wake = mode.with(SPIN.as_micros() as u32, 0);
        let options = context("make an eventfd", ServeOptions::new("bench"))?;
        let options = ServeOptions { transport, wake: Some(wake), ..options };
        let start = Instant::now();
        let served = Served::connect(agent, options);
        let mut this = Conversation { served, probe: Probe::default(), start, mode };
        while this.probe.program.is_none() {
            if start.elapsed() > START {
                return Err(BenchError::Missing("the agent gave the flow no program".into()));
            }
            this.turn();
            std::thread::sleep(Duration::from_millis(1));
        }
        if this.served.has_ring() != (transport == Transport::Ring) {
            return Err(BenchError::Missing("no rings in shared memory".into()));
        }
        Ok(this)
    }

    fn turn(&mut self) {
        let now_us = self.start.elapsed().as_micros() as u64;
        self.served.turn(&mut self.probe, now_us);
    }

    /// Runs one round trip and returns its time, nanoseconds.
    fn round_trip(&mut self) -> Result<u64, BenchError> {
        let before = self.probe.updates;
        let start = Instant::now();
        // As in a transport, whose clock is read at the ACK that reports.
        let mut now_us = start.duration_since(self.start).as_micros() as u64;
        self.probe.report();
        self.served.turn(&mut self.probe, now_us);
        while self.probe.updates == before {
            if self.mode == Mode::Sleep {
                context("wait for the agent", self.served.wait(LOST))?;
            } else {
                self.poll();
            }
            if self.served.turn(&mut self.probe, now_us).is_busy() {
                continue;
            }
            let waited = start.elapsed();
            now_us = start.duration_since(self.start).saturating_add(waited).as_micros() as u64;
            if waited > LOST {
                return Err(BenchError::Missing("the agent does not answer".into()));
            }
            if self.mode == Mode::Spin && waited > SPIN {
                context("wait for the agent", self.served.wait(LOST))?;
            }
        }
        Ok(start.elapsed().as_nanos() as u64)
    }

    /// Polls the ring a bounded number of times.
    fn poll(&self) {
        for _ in 0..POLLS {
            if self.served.is_ready() {
                return;
            }
            std::hint::spin_loop();
        }
    }
}

/// One contender and its round trips so far.
struct MeasuredIpc<'a> {
    name: &'static str,
    agent: AgentKind,
    block: Box<dyn FnMut() -> Result<Vec<f64>, BenchError> + 'a>,
    /// Round trips of each block, microseconds.
    blocks: Vec<Vec<f64>>,
}

/// The agent that a contender needs; one that polls would take the core from the others, so it runs only then.
#[derive(Clone, Copy, PartialEq, Eq)]
enum AgentKind {
    Ours,
    Portus,
    None,
}

/// One block of round trips, microseconds each.
fn block(mut round_trip: impl FnMut() -> Result<u64, BenchError>) -> Result<Vec<f64>, BenchError> {
    (0..BLOCK).map(|_| Ok(round_trip()? as f64 / 1e3)).collect()
}

/// Measures `ipc.ring`: round trips between a datapath and an agent over each channel.
pub fn run() -> Result<Vec<Figure>, BenchError> {
    if OneCore::all().len() < 2 {
        return Err(BenchError::Missing("ipc.ring needs two cores: a datapath's and an agent's".into()));
    }
    let mut figures = Vec::new();
    for (wake, mode, same_core) in MODES {
        let place = if same_core { ".same-core" } else { "" };
        let prefix = format!("ipc.ring.{wake}{place}");
        figures.extend(measure(&prefix, wake, mode, usize::from(!same_core))?);
    }
    Ok(figures)
}

/// Checks that an agent polled: it slept far less often than it answered.
fn never_slept(before: u64, after: u64) -> Result<(), Unproven> {
    let counted = after.saturating_sub(before);
    if counted > BLOCK as u64 / 10 {
        return Err(Unproven::Count { what: "sleeps of an agent that is to poll", counted, wanted: 0 });
    }
    Ok(())
}

fn measure(prefix: &str, wake: &str, mode: Mode, other: usize) -> Result<Vec<Figure>, BenchError> {
    let there = OneCore::nth(other);
    let agent = OurAgent::start("ccp-reno", wake, false)?;
    // Where ours does not sleep, portus does not either.
    let polls = mode != Mode::Sleep;
    let portus = if polls { Portus::polling()? } else { Portus::start()? };
    drop(there);
    let cores = OneCore::all();
    let _here = OneCore::nth(0);
    let mut ring = Conversation::start(&agent.socket, Transport::Ring, mode)?;
    let mut socket = Conversation::start(&agent.socket, Transport::Socket, mode)?;
    let mut v1 = V1::start(&portus.socket, agent.dir.path().join("portus-datapath.sock"))?;
    v1.start_flow(SID)?;
    if polls {
        v1.poll()?;
    }
    let bare = || {
        let mut bare = Bare::start(mode, &cores, other)?;
        block(|| bare.round_trip())
    };
    let one = |name, agent, block| MeasuredIpc { name, agent, block, blocks: Vec::new() };
    let mut all: Vec<MeasuredIpc<'_>> = vec![
        one("bare", AgentKind::None, Box::new(bare)),
        one("agent", AgentKind::Ours, Box::new(|| block(|| ring.round_trip()))),
        one("socket", AgentKind::Ours, Box::new(|| block(|| socket.round_trip()))),
        one("portus", AgentKind::Portus, Box::new(|| block(|| v1.round_trip(SID)))),
    ];
    for _ in 0..BLOCKS {
        for one in &mut all {
            agent.process.pause(one.agent != AgentKind::Ours)?;
            portus.process.pause(one.agent != AgentKind::Portus)?;
            let asked = match one.agent {
                AgentKind::Ours => Some(&agent.process),
                AgentKind::Portus => Some(&portus.process),
                AgentKind::None => None,
            };
            let sleeps = |process: Option<&Process>| process.map_or(Ok(0), Process::sleeps);
            let before = sleeps(asked)?;
            one.blocks.push((one.block)()?);
            if polls {
                never_slept(before, sleeps(asked)?)?;
            }
        }
    }
    let baseline = all.pop().map(|portus| portus.blocks).unwrap_or_default();
    let how = if polls { ", both ends polling" } else { "" };
    let mut figures = Vec::new();
    for one in all {
        let answered: usize = one.blocks.iter().map(Vec::len).sum();
        let proof = Proof::exactly("messages answered", answered as u64, (BLOCK * BLOCKS) as u64)?;
        let blocks: Vec<Block> = one.blocks.into_iter().zip(baseline.clone()).collect();
        for (q, label) in [(0.5, "p50"), (0.99, "p99")] {
            let name = format!("{prefix}.{}.{label}", one.name);
            let baseline = format!("portus over its unix datagrams{how}, {label}");
            figures.push(Figure::blocks(name, "us", baseline, (&blocks, q), &proof));
        }
    }
    Ok(figures)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_agent_that_sleeps_does_not_poll() {
        assert!(never_slept(5, 5).is_ok() && never_slept(5, 100).is_ok());
        let slept = Unproven::Count { what: "sleeps of an agent that is to poll", counted: 2000, wanted: 0 };
        assert_eq!(never_slept(5, 2005), Err(slept));
    }
}
