//! `agent.rtt`: report, agent, update, as the datapath sees it: over the kernel datapath's channel and over the
//! unix socket, against portus over the same unix datagrams. All three agents run the same algorithm (`ccp-reno`),
//! each in a process of its own, all on one core.

use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use ccplane_algs::CcpReno;
use ccplane_ebpf::Options;
use ccplane_ebpf::probe::Probe;
use ccplane_emulator::netns::Namespace;
use ccplane_program::ir::Program;

use crate::agent::{OurAgent, Portus, START};
use crate::cores::OneCore;
use crate::error::{BenchError, context};
use crate::figure::{Block, Figure, in_turn};
use crate::proof::Proof;
use crate::steer;
use crate::v1::V1;

/// Round trips of one block; blocks of the three alternate.
const BLOCK: usize = 1500;
/// Round trips of one block whose round trips have idle gaps between them.
pub const IDLE_BLOCK: usize = 400;
/// Blocks of each conversation.
pub const BLOCKS: usize = 6;
/// The gap before each round trip of an idle block.
pub const IDLE_GAP: Duration = Duration::from_millis(1);
/// An answer that takes longer is lost.
const LOST: Duration = Duration::from_secs(1);
const SID: u32 = 1;

/// One round trip over the kernel datapath's channel, nanoseconds.
pub fn kernel_round_trip(probe: &Probe) -> Result<u64, BenchError> {
    let start = Instant::now();
    probe.invoke()?;
    while !probe.is_answered() {
        if start.elapsed() > LOST {
            return Err(BenchError::Missing("the agent does not answer the kernel datapath".into()));
        }
        // The agent may have been woken on this very core.
        std::thread::yield_now();
    }
    Ok(start.elapsed().as_nanos() as u64)
}

/// An idle connection in a namespace of its own, under the agent's congestion control.
pub fn idle_flow(name: &str) -> Result<(Namespace, TcpStream, TcpStream), BenchError> {
    let namespace = Namespace::anonymous()?;
    let connect = || -> std::io::Result<(TcpStream, TcpStream)> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let to = TcpStream::connect(listener.local_addr()?)?;
        let (from, _) = listener.accept()?;
        nix::sys::socket::setsockopt(&to, nix::sys::socket::sockopt::TcpCongestion, &name.into())?;
        Ok((to, from))
    };
    let (to, from) = context("open a connection", namespace.run(connect)?)?;
    Ok((namespace, to, from))
}

/// A probe on the agent's flow, once its program is set.
pub fn open_probe(options: &Options, program: &Program) -> Result<Probe, BenchError> {
    let start = Instant::now();
    loop {
        match Probe::open(options, program) {
            Ok(probe) => {
                // The first invocation starts the program, which reports from the second on.
                probe.invoke()?;
                return Ok(probe);
            }
            Err(e) if start.elapsed() > START => return Err(e.into()),
            Err(_) => std::thread::sleep(Duration::from_millis(10)),
        }
    }
}

/// A conversation with an agent: one round trip, nanoseconds.
type Conversation<'a> = Box<dyn FnMut() -> Result<u64, BenchError> + 'a>;

/// Times round trips of both in [`BLOCKS`] blocks, whose order alternates, each trip after a gap; microseconds.
pub fn blocks(
    block: usize,
    gap: Duration,
    mut ours: impl FnMut() -> Result<u64, BenchError>,
    mut theirs: impl FnMut() -> Result<u64, BenchError>,
) -> Result<Vec<Block>, BenchError> {
    let time = |trip: &mut dyn FnMut() -> Result<u64, BenchError>| -> Result<Vec<f64>, BenchError> {
        (0..block)
            .map(|_| {
                std::thread::sleep(gap);
                Ok(trip()? as f64 / 1e3)
            })
            .collect()
    };
    (0..BLOCKS).map(|n| in_turn(n, || time(&mut ours), || time(&mut theirs))).collect()
}

/// Measures `agent.rtt`: the time from a report to its update, beside portus.
pub fn run() -> Result<Vec<Figure>, BenchError> {
    let _one_core = OneCore::nth(0);
    let program = steer::compile(&CcpReno::default())?;
    let portus = Portus::start()?;
    let mut figures = Vec::new();
    for wake in ["sleep", "spin"] {
        for channel in ["kernel", "unix"] {
            let agent = OurAgent::start("ccp-reno", wake, channel == "kernel")?;
            let mut theirs = V1::start(&portus.socket, agent.dir.path().join("portus-datapath.sock"))?;
            theirs.start_flow(SID)?;
            let mut ours: Conversation<'_> = if channel == "kernel" {
                let flow = idle_flow(&agent.options.name)?;
                let probe = open_probe(&agent.options, &program)?;
                Box::new(move || {
                    let _open = &flow;
                    kernel_round_trip(&probe)
                })
            } else {
                let mut v1 = V1::start(&agent.socket, agent.dir.path().join("datapath.sock"))?;
                v1.start_flow(SID)?;
                Box::new(move || v1.round_trip(SID))
            };
            for (load, gap, block) in
                [("back-to-back", Duration::ZERO, BLOCK), ("idle", IDLE_GAP, IDLE_BLOCK)]
            {
                let mut theirs = || theirs.round_trip(SID);
                let blocks = blocks(block, gap, &mut ours, &mut theirs)?;
                let answered: usize = blocks.iter().map(|(ours, _)| ours.len()).sum();
                let proof = Proof::exactly("reports answered", answered as u64, (block * BLOCKS) as u64)?;
                for (q, label) in [(0.5, "p50"), (0.99, "p99")] {
                    let name = format!("agent.rtt.{channel}.{wake}.{load}.{label}");
                    let baseline = format!("portus over unix datagrams, {label}");
                    figures.push(Figure::blocks(name, "us", baseline, (&blocks, q), &proof));
                }
            }
        }
    }
    Ok(figures)
}
