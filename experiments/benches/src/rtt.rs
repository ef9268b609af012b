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
use crate::figure::{Figure, percentile};
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
fn idle_flow(name: &str) -> Result<(Namespace, TcpStream, TcpStream), BenchError> {
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

/// Runs the benchmark.
pub fn run() -> Result<Vec<Figure>, BenchError> {
    let _one_core = OneCore::nth(0);
    let program = steer::compile(&CcpReno::default())?;
    let portus = Portus::start().map_err(|e| e.to_string());
    let mut figures = Vec::new();
    for wake in ["sleep", "spin"] {
        for channel in ["kernel", "unix"] {
            let agent = OurAgent::start("ccp-reno", wake, channel == "kernel")?;
            let theirs = match &portus {
                Ok(portus) => {
                    let mut v1 = V1::start(&portus.socket, agent.dir.path().join("portus-datapath.sock"))?;
                    v1.start_flow(SID)?;
                    Ok(v1)
                }
                Err(why) => Err(why.clone()),
            };
            let ours: Box<dyn Fn() -> Result<u64, BenchError>> = if channel == "kernel" {
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
                let (mut took, mut baseline) = (Vec::new(), Vec::new());
                for _ in 0..BLOCKS {
                    for _ in 0..block {
                        std::thread::sleep(gap);
                        took.push(ours()? as f64 / 1e3);
                    }
                    if let Ok(theirs) = &theirs {
                        for _ in 0..block {
                            std::thread::sleep(gap);
                            baseline.push(theirs.round_trip(SID)? as f64 / 1e3);
                        }
                    }
                }
                for quantile in [(0.5, "p50"), (0.99, "p99")] {
                    let name = format!("agent.rtt.{channel}.{wake}.{load}.{}", quantile.1);
                    figures.push(figure(name, quantile, &took, &baseline, theirs.as_ref().err()));
                }
            }
        }
    }
    Ok(figures)
}

fn figure(
    name: String,
    (q, label): (f64, &str),
    values: &[f64],
    theirs: &[f64],
    missing: Option<&String>,
) -> Figure {
    let value = percentile(values, q);
    let baseline = percentile(theirs, q);
    let figure = Figure { value, ..Figure::alone(name, "us", values) };
    match missing {
        Some(why) => figure.noted(why.clone()),
        None => Figure {
            baseline: Some(baseline),
            baseline_name: Some(format!("portus over unix datagrams, {label}")),
            ratio: Some(value / baseline),
            ..figure
        },
    }
}
