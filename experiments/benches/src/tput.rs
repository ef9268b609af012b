//! `tput.ebpf.reno`: unshaped throughput over a veth pair, against the kernel's own Reno.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ccplane_emulator::netns::Namespace;
use ccplane_emulator::veth;
use ccplane_runner::traffic::BulkFlow;

use crate::error::BenchError;
use crate::figure::Figure;
use crate::steer::{self, Steered};

const RUN: Duration = Duration::from_millis(1500);
const PAIRS: usize = 7;
const FLOWS: [usize; 2] = [1, 8];

/// Runs the benchmark.
pub fn run() -> Result<Vec<Figure>, BenchError> {
    if !ccplane_emulator::netns::available() {
        return Err(BenchError::Missing("network namespaces need root".into()));
    }
    let (a, b) = (Namespace::anonymous()?, Namespace::anonymous()?);
    veth::connect(&a, &b)?;
    let steered = Steered::start("t", Arc::new(ccplane_algs::Reno::default()))?;
    let mut figures = Vec::new();
    for flows in FLOWS {
        // One run of each to warm up.
        for name in [steered.name.as_str(), "reno"] {
            gbps(&a, &b, name, flows)?;
        }
        let mut pairs = Vec::new();
        for n in 0..PAIRS {
            // Who goes first alternates too.
            let ours_first = n % 2 == 0;
            let mut ours = 0.0;
            if ours_first {
                ours = gbps(&a, &b, &steered.name, flows)?;
            }
            let kernel = gbps(&a, &b, "reno", flows)?;
            if !ours_first {
                ours = gbps(&a, &b, &steered.name, flows)?;
            }
            pairs.push((ours, kernel));
        }
        figures.push(Figure::paired(format!("tput.ebpf.reno.{flows}"), "Gb/s", "kernel reno", &pairs));
    }
    Ok(figures)
}

/// Goodput of `flows` flows together.
fn gbps(a: &Namespace, b: &Namespace, congestion: &str, flows: usize) -> Result<f64, BenchError> {
    let epoch = Instant::now();
    let config = steer::bulk(congestion, RUN);
    let started: Vec<BulkFlow> =
        (0..flows).map(|_| BulkFlow::start(&config, a, b, epoch)).collect::<Result<_, _>>()?;
    let mut bytes = 0;
    for flow in started {
        bytes += flow.finish()?.received_bytes;
    }
    Ok(bytes as f64 * 8.0 / RUN.as_secs_f64() / 1e9)
}
