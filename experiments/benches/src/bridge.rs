//! `ccp.bridge`: a portus agent steers flows of our kernel datapath through our agent, against the same agent over stock
//! libccp.
//!
//! Stock libccp needs a transport: a sender over UDP, without pacing, whose window libccp sets and whose datagrams are as
//! long as TCP's segments. Both cross emulated links of the same kind; the link itself tells the round trip.

use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use ccplane_algs::CcpReno;
use ccplane_emulator::{Emulator, LinkConfig, Queue, Shape};
use ccplane_program::ir::Program;
use ccplane_program::stock;
use ccplane_runner::echo::Echo;
use ccplane_runner::traffic::{BulkFlow, FlowConfig};
use serde::Deserialize;

use crate::agent::{Listed, OurAgent, Portus, START};
use crate::cores::OneCore;
use crate::error::{BenchError, context};
use crate::figure::{Figure, Pair, in_turn, percentile};
use crate::proof::{self, Proof, SteeredBy, Witness};
use crate::rtt::{BLOCKS, IDLE_BLOCK, IDLE_GAP, blocks, idle_flow, kernel_round_trip, open_probe};
use crate::v1::V1;
use crate::{oracle, steer};

/// The link: 24 Mb/s, 10 ms each way, 40 packets of queue, which is what it holds in a round trip.
const LINK_MBIT: u32 = 24;
const DELAY_US: u64 = 10_000;
const QUEUE_PACKETS: u32 = 40;
const RUNS: usize = 5;
const RUN: Duration = Duration::from_secs(8);
/// Time between two looks at a flow while it runs.
const POLL_EVERY: Duration = Duration::from_millis(50);
/// The time before a flow's end from which on it is not looked at, so that no look finds it closing.
const UNSEEN: Duration = Duration::from_millis(300);
/// Time between two looks whether an agent has done what is waited for.
const AGAIN: Duration = Duration::from_millis(20);
const SID: u32 = 1;

/// Measures a portus agent's flow over our kernel datapath and over stock libccp, then the time from a report to its update.
pub fn run() -> Result<Vec<Figure>, BenchError> {
    crate::error::check_namespaces()?;
    let mut figures = link()?;
    figures.extend(latency()?);
    Ok(figures)
}

/// The share of its link that one flow had.
struct Ran {
    mbit_per_s: f64,
    rtt_ms: f64,
    proof: Proof,
}

fn link() -> Result<Vec<Figure>, BenchError> {
    let portus = Portus::tagged("-kernel")?;
    let agent = OurAgent::of_portus("sleep", &portus.socket)?;
    let (mut throughput, mut rtt, mut proofs): (Vec<Pair>, Vec<Pair>, Vec<Proof>) = Default::default();
    for n in 0..RUNS {
        let (ours, theirs) = in_turn(n, || over_kernel(&agent), || over_libccp(agent.dir.path()))?;
        throughput.push((ours.mbit_per_s, theirs.mbit_per_s));
        rtt.push((ours.rtt_ms, theirs.rtt_ms));
        proofs.extend([ours.proof, theirs.proof]);
    }
    let proof = proof::all(&proofs)?;
    let baseline = "the same portus agent over stock libccp under UDP";
    let note = format!(
        "payload received in {} s from the start on; {LINK_MBIT} Mb/s, {} ms, {QUEUE_PACKETS} packets",
        RUN.as_secs(),
        2 * DELAY_US / 1000
    );
    let mean = "both directions' mean time in the link, which counts each packet that left it";
    Ok(vec![
        Figure::paired("ccp.bridge.throughput", "Mb/s", baseline, &throughput, &proof).with_note(note),
        Figure::paired("ccp.bridge.rtt", "ms", baseline, &rtt, &proof).with_note(mean),
    ])
}

fn new_link() -> Result<Emulator, BenchError> {
    let mut config = LinkConfig::symmetric(Shape::mbit(LINK_MBIT), DELAY_US);
    config.up.queue = Queue::packets(QUEUE_PACKETS);
    Ok(Emulator::start(&config)?)
}

/// The mean round trip of what crossed the link, milliseconds, and its throughput from `bytes` received.
fn ran(link: Emulator, bytes: u64, proof: Proof) -> Result<Ran, BenchError> {
    let stats = link.stop()?;
    let queued_us = [&stats.up, &stats.down].map(|way| way.queueing_delay_mean_us().unwrap_or(0));
    let proof = proof.and(&Proof::counted("packets through the link", stats.up.delivered_packets)?);
    Ok(Ran {
        mbit_per_s: bytes as f64 * 8e-6 / RUN.as_secs_f64(),
        rtt_ms: (2 * DELAY_US + queued_us.iter().sum::<u64>()) as f64 / 1e3,
        proof,
    })
}

/// One flow over our kernel datapath. Its program is portus's throughout.
fn over_kernel(agent: &OurAgent) -> Result<Ran, BenchError> {
    until("the agent still has an earlier flow", || Ok(agent.flows()?.is_empty()))?;
    let link = new_link()?;
    let receiver = SocketAddr::new(link.receiver_addresses().v4.into(), 0);
    let config = FlowConfig { receiver, ..steer::bulk(&agent.options.name, RUN) };
    let started = Instant::now();
    let flow = BulkFlow::start(&config, link.sender_ns(), link.receiver_ns(), started)?;
    let mut witness = Witness::new(SteeredBy::Program(None));
    while started.elapsed() < RUN - UNSEEN {
        witness.observe(&ccplane_ebpf::read_flows(&agent.options)?.flows);
        thread::sleep(POLL_EVERY);
    }
    let listed = agent.flows()?;
    let is_of_portus =
        |flow: &&Listed| (flow.algorithm.as_deref(), &*flow.mode) == (Some("portus"), "program");
    let of_portus = Proof::exactly("flows of portus", listed.iter().filter(is_of_portus).count() as u64, 1)?;
    let bytes = flow.finish()?.received_bytes;
    ran(link, bytes, witness.prove_unheard(1, bytes)?.and(&of_portus))
}

/// The record that `ccplane-libccp-flow` writes.
#[derive(Deserialize)]
struct Stock {
    bytes: u64,
    acks: u64,
    acks_of_programs: u64,
    messages: u64,
    updates: u64,
}

/// One flow of stock libccp, with a portus agent of its own: that ends with its datapath.
fn over_libccp(dir: &Path) -> Result<Ran, BenchError> {
    let portus = Portus::tagged("-libccp")?;
    let link = new_link()?;
    let echo = Echo::start(link.receiver_ns(), link.receiver_addresses().v4.into())?;
    let mut command = Command::new(oracle::find("ccplane-libccp-flow")?);
    command.arg(&portus.socket).arg(dir.join("libccp.sock")).arg(echo.address().to_string());
    command.arg(RUN.as_millis().to_string()).stdin(Stdio::null());
    let output = context("run ccplane-libccp-flow", link.sender_ns().enter(&mut command)?.output())?;
    let stock: Stock = serde_json::from_slice(&output.stdout).map_err(|e| {
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        BenchError::Missing(format!("no baseline: ccplane-libccp-flow: {e} {said}"))
    })?;
    let proof = Proof::counted("updates to libccp", stock.updates)?
        .and(&Proof::counted("messages of libccp", stock.messages)?)
        .and(&Proof::counted("ACKs under libccp's program", stock.acks_of_programs)?);
    // Only the first round trip is without a program.
    if stock.acks_of_programs < stock.acks / 10 * 9 {
        let (what, wanted) = ("ACKs under libccp's program", stock.acks);
        return Err(proof::Unproven::Count { what, counted: stock.acks_of_programs, wanted }.into());
    }
    ran(link, stock.bytes, proof)
}

/// Report, agent, portus and back over the kernel's channel, against portus on a socket of its own; all on one core.
fn latency() -> Result<Vec<Figure>, BenchError> {
    let _one_core = OneCore::nth(0);
    let program = lifted()?;
    let mut figures = Vec::new();
    for wake in ["sleep", "spin"] {
        let (behind, bare) = (Portus::tagged("-kernel")?, Portus::tagged("-bare")?);
        let agent = OurAgent::of_portus(wake, &behind.socket)?;
        let mut theirs = V1::start(&bare.socket, agent.dir.path().join("portus-datapath.sock"))?;
        theirs.start_flow(SID)?;
        let _flow = idle_flow(&agent.options.name)?;
        let probe = open_probe(&agent.options, &program)?;
        let before = reports(&agent)?;
        let (mut ours, mut theirs) = (|| kernel_round_trip(&probe), || theirs.round_trip(SID));
        let blocks = blocks(IDLE_BLOCK, IDLE_GAP, &mut ours, &mut theirs)?;
        let delays =
            Proof::exactly("reports of the probe", reports(&agent)? - before, (IDLE_BLOCK * BLOCKS) as u64)?;
        for (q, label) in [(0.5, "p50"), (0.99, "p99")] {
            let added: Vec<f64> = blocks.iter().map(|(a, b)| percentile(a, q) - percentile(b, q)).collect();
            let figure = Figure::blocks(
                format!("ccp.bridge.latency.{wake}.{label}"),
                "us",
                format!("portus on a bare socket, {label}"),
                (&blocks, q),
                &delays,
            );
            figures.push(figure.with_note(format!("{:.1} us added", percentile(&added, 0.5))));
        }
    }
    Ok(figures)
}

fn reports(agent: &OurAgent) -> Result<u64, BenchError> {
    Ok(agent.flows()?.iter().filter_map(|flow| flow.reports).sum())
}

/// The program of `ccp-reno` as it comes back from portus's bytecode.
fn lifted() -> Result<Program, BenchError> {
    let refused = |e: &dyn std::fmt::Display| BenchError::Program(vec![e.to_string()]);
    let stock = stock::lower(&steer::compile(&CcpReno::default())?).map_err(|e| refused(&e))?;
    let lifted = stock::lift(stock.num_expressions() as usize, stock.bytes()).map_err(|e| refused(&e))?;
    Ok(lifted.program)
}

/// Waits until `done`.
fn until(what: &str, done: impl Fn() -> Result<bool, BenchError>) -> Result<(), BenchError> {
    let start = Instant::now();
    while !done()? {
        if start.elapsed() > START {
            return Err(BenchError::Missing(what.into()));
        }
        thread::sleep(AGAIN);
    }
    Ok(())
}
