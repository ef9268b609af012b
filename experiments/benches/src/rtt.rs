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
use crate::figure::Figure;
use crate::proof::Proof;
use crate::steer;
use crate::v1::V1;

/// Round trips of one block; blocks of the three alternate.
const BLOCK: usize = 1500;
const IDLE_BLOCK: usize = 400;
const BLOCKS: usize = 6;
const IDLE_GAP: Duration = Duration::from_millis(1);
/// An answer that takes longer is lost.
const LOST: Duration = Duration::from_secs(1);
const SID: u32 = 1;

/// One round trip over the kernel datapath's channel, nanoseconds.
fn kernel_round_trip(probe: &Probe) -> Result<u64, BenchError> {
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

fn open_probe(options: &Options, program: &Program) -> Result<Probe, BenchError> {
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

/// Runs the benchmark.
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
                let time =
                    |trip: &mut dyn FnMut() -> Result<u64, BenchError>| -> Result<Vec<f64>, BenchError> {
                        (0..block)
                            .map(|_| {
                                std::thread::sleep(gap);
                                Ok(trip()? as f64 / 1e3)
                            })
                            .collect()
                    };
                let mut blocks = Vec::new();
                for n in 0..BLOCKS {
                    let mut theirs = || theirs.round_trip(SID);
                    // Who goes first alternates.
                    blocks.push(if n % 2 == 0 {
                        let ours = time(&mut ours)?;
                        (ours, time(&mut theirs)?)
                    } else {
                        let theirs = time(&mut theirs)?;
                        (time(&mut ours)?, theirs)
                    });
                }
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
