//! `tput.ebpf.reno`: unshaped throughput over a veth pair, against the kernel's own Reno.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ccplane_emulator::netns::Namespace;
use ccplane_emulator::veth;
use ccplane_runner::traffic::BulkFlow;

use crate::error::BenchError;
use crate::figure::{Figure, in_turn};
use crate::proof::{self, Proof};
use crate::steer::{self, EmbeddedAgent};

const RUN: Duration = Duration::from_millis(1500);
const PAIRS: usize = 7;
const FLOWS: [usize; 2] = [1, 8];

/// Measures `tput.ebpf.reno`: unshaped throughput beside the kernel's Reno.
pub fn run() -> Result<Vec<Figure>, BenchError> {
    crate::error::check_namespaces()?;
    let (a, b) = (Namespace::anonymous()?, Namespace::anonymous()?);
    veth::connect(&a, &b)?;
    let agent = EmbeddedAgent::start("t", Arc::new(ccplane_algs::RENO))?;
    let mut figures = Vec::new();
    for flows in FLOWS {
        let (mut pairs, mut proofs) = (Vec::new(), Vec::new());
        // One run of each to warm up.
        for n in 0..=PAIRS {
            let ours = || ours(&agent, &a, &b, flows);
            let kernel = || gbps(&a, &b, "reno", flows).map(|(gbps, _)| gbps);
            let ((ours, proof), kernel) = in_turn(n, ours, kernel)?;
            if n > 0 {
                pairs.push((ours, kernel));
                proofs.push(proof);
            }
        }
        let (name, proof) = (format!("tput.ebpf.reno.{flows}"), proof::all(&proofs)?);
        figures.push(Figure::paired(name, "Gb/s", "the kernel's Reno", &pairs, &proof));
    }
    Ok(figures)
}

/// Goodput of flows under our program, and the proof that they ran it.
fn ours(
    agent: &EmbeddedAgent,
    a: &Namespace,
    b: &Namespace,
    flows: usize,
) -> Result<(f64, Proof), BenchError> {
    agent.witness().restart();
    let (gbps, bytes) = gbps(a, b, &agent.name, flows)?;
    Ok((gbps, agent.witness().prove_whole(flows, bytes)?))
}

/// Goodput of `flows` flows together, and the bytes that they have moved.
fn gbps(a: &Namespace, b: &Namespace, congestion: &str, flows: usize) -> Result<(f64, u64), BenchError> {
    let epoch = Instant::now();
    let config = steer::bulk(congestion, RUN);
    let started: Vec<BulkFlow> =
        (0..flows).map(|_| BulkFlow::start(&config, a, b, epoch)).collect::<Result<_, _>>()?;
    let mut bytes = 0;
    for flow in started {
        bytes += flow.finish()?.received_bytes;
    }
    Ok((bytes as f64 * 8.0 / RUN.as_secs_f64() / 1e9, bytes))
}
