//! `push.ebpf.live` and `push.ebpf.install`: how soon a live flow runs a new program.

use std::time::{Duration, Instant};

use ccplane_contract::{Datapath, DatapathError, Event, FlowId, ProgramUid};
use ccplane_ebpf::EbpfDatapath;
use ccplane_emulator::netns::Namespace;
use ccplane_emulator::veth;
use ccplane_program::ir::Program;
use ccplane_runner::traffic::BulkFlow;

use crate::error::BenchError;
use crate::figure::{Figure, Pair, percentile};
use crate::plain::{self, Pipe};
use crate::proof::{Proof, SteeredBy, Witness};
use crate::steer;

/// A program that reports on its first ACK and a while later, counts acknowledged bytes, and leaves the window alone.
const ANNOUNCE: &str = "(def (Report (acked 0)) (announced 0))
    (when true (:= Report.acked (+ Report.acked Ack.bytes_acked)) (fallthrough))
    (when (|| (== announced 0) (> Micros 5000)) (:= announced 1) (:= Micros 0) (report))";
const A: ProgramUid = ProgramUid(1);
const B: ProgramUid = ProgramUid(2);
const FIFTY: ProgramUid = ProgramUid(3);
const PUSHES: usize = 2000;
const INSTALLS: usize = 60;
const PATIENCE: Duration = Duration::from_secs(2);
/// Between pushes, so that they find the flow at any moment.
const PAUSE: Duration = Duration::from_millis(2);

fn compile(source: &str) -> Result<Program, BenchError> {
    ccplane_program::compile(source)
        .map_err(|e| BenchError::Program(e.iter().map(|d| d.to_string()).collect()))
}

/// A program of exactly 50 instructions, with the mix of a real one.
fn fifty() -> Result<Program, BenchError> {
    let mut body = String::new();
    let step = "(:= Report.x (+ (/ (* Report.x 7) 8) (max Ack.bytes_acked 3)))\n";
    for _ in 0..11 {
        body.push_str(step);
    }
    let program = compile(&format!(
        "(def (Report (x 0)) (n 0)) (when true (:= n 1) (:= n 2) (:= n 3) (:= n 4) (:= n 5) (:= n 6) {body})"
    ))?;
    Ok(program)
}

/// Measures `push.ebpf.live`: the time from a loaded program to the first ACK of a live flow on it.
pub fn live() -> Result<Vec<Figure>, BenchError> {
    crate::error::check_namespaces()?;
    let (pairs, proof) = steer::attached("p", pushes)?;
    let took_us: Vec<f64> = pairs.iter().map(|(took_us, _)| *took_us).collect();
    let spread = [0.9, 0.99].map(|q| percentile(&took_us, q));
    let figure = Figure::paired("push.ebpf.live", "us", plain::PIPE, &pairs, &proof);
    Ok(vec![figure.with_note(format!(
        "from the call to the first ACK of a live flow on the program; p90 {:.0} us, p99 {:.0} us",
        spread[0], spread[1]
    ))])
}

fn pushes(datapath: &mut EbpfDatapath, name: &str) -> Result<(Vec<Pair>, Proof), BenchError> {
    let announce = compile(ANNOUNCE)?;
    datapath.install(A, &announce)?;
    datapath.install(B, &announce)?;
    let (a, b) = (Namespace::anonymous()?, Namespace::anonymous()?);
    veth::connect(&a, &b)?;
    let _traffic = BulkFlow::start(&steer::bulk(name, steer::LONG), &a, &b, Instant::now())?;
    let flow = wait_for(datapath, |e| match e {
        Event::Created { flow, .. } => Some(*flow),
        _ => None,
    })?;
    push(datapath, flow)
}

fn push(datapath: &mut EbpfDatapath, flow: FlowId) -> Result<(Vec<Pair>, Proof), BenchError> {
    let (mut pairs, mut pipe) = (Vec::with_capacity(PUSHES), Pipe::new()?);
    let mut witness = Witness::new(SteeredBy::Program(None));
    for n in 0..PUSHES {
        let uid = if n % 2 == 0 { A } else { B };
        let pushed_us = ccplane_ebpf::clock_us();
        datapath.set_program(flow, uid, &[])?;
        let first_ack_us = wait_for(datapath, |e| match e {
            Event::Report { program, at_us, .. } if *program == uid => Some(*at_us),
            _ => None,
        })?;
        let flows = datapath.flows();
        witness.observe(&flows);
        // The ACK's time is when the stack began with it, which may be before the push that it met.
        pairs.push((first_ack_us.saturating_sub(pushed_us) as f64, pipe.turn_us()?));
        std::thread::sleep(PAUSE);
    }
    let first = Proof::exactly("first reports of a program", pairs.len() as u64, PUSHES as u64)?;
    Ok((pairs, first.and(&witness.prove_steered(1)?)))
}

/// Measures `push.ebpf.install`: the time to compile, load, verify and install a program of 50 instructions.
pub fn install() -> Result<Vec<Figure>, BenchError> {
    let program = fifty()?;
    let (pairs, proof) = steer::attached("i", |datapath, _| {
        let mut time = |install: &dyn Fn(&mut EbpfDatapath) -> Result<(), DatapathError>| {
            let start = Instant::now();
            install(datapath)?;
            let took_ms = start.elapsed().as_secs_f64() * 1e3;
            // What was not installed cannot be removed.
            datapath.remove(FIFTY)?;
            datapath.heartbeat();
            Ok::<_, BenchError>(took_ms)
        };
        let mut pairs = Vec::with_capacity(INSTALLS);
        for _ in 0..INSTALLS {
            pairs.push((time(&|d| d.install(FIFTY, &program))?, time(&|d| d.install_empty(FIFTY))?));
        }
        let proof = Proof::exactly("programs installed and removed", pairs.len() as u64, INSTALLS as u64)?;
        Ok((pairs, proof))
    })?;
    let note = format!("{} instructions", program.insts().len());
    let baseline = "load and install a program that returns at once";
    Ok(vec![Figure::paired("push.ebpf.install", "ms", baseline, &pairs, &proof).with_note(note)])
}

fn wait_for<T>(
    datapath: &mut EbpfDatapath,
    mut found: impl FnMut(&Event) -> Option<T>,
) -> Result<T, BenchError> {
    let start = Instant::now();
    let mut events = Vec::new();
    while start.elapsed() < PATIENCE {
        datapath.heartbeat();
        let _ = datapath.wait(Duration::from_millis(20));
        datapath.poll(256, &mut events);
        if let Some(value) = events.drain(..).find_map(|e| found(&e)) {
            return Ok(value);
        }
    }
    Err(BenchError::Missing(format!("nothing heard of the flow within {PATIENCE:?}")))
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_program_of_fifty_instructions_has_fifty() {
        assert_eq!(super::fifty().map(|p| p.insts().len()).ok(), Some(50));
    }
}
