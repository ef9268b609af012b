//! `push.ebpf.live` and `push.ebpf.install`: how soon a live flow runs a new program.

use std::time::{Duration, Instant};

use ccplane_contract::{Datapath, Event, FlowId, ProgramUid};
use ccplane_ebpf::EbpfDatapath;
use ccplane_emulator::netns::Namespace;
use ccplane_emulator::veth;
use ccplane_program::ir::Program;
use ccplane_runner::traffic::BulkFlow;

use crate::error::BenchError;
use crate::figure::{Figure, percentile};
use crate::steer;

/// Reports on its first ACK, and leaves the window alone.
const ANNOUNCE: &str = "(def (Report (first 0)) (done false))
    (when (== Report.first 0) (:= Report.first 1) (report))
    (when true (:= done true))";
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

/// `push.ebpf.live`
pub fn live() -> Result<Vec<Figure>, BenchError> {
    if !ccplane_emulator::netns::available() {
        return Err(BenchError::Missing("network namespaces need root".into()));
    }
    let took_us = steer::attached("p", pushes)?;
    let spread = [0.9, 0.99].map(|q| percentile(&took_us, q));
    Ok(vec![Figure::alone("push.ebpf.live", "us", &took_us).noted(format!(
        "from the call to the first ACK of a live flow on the program; p90 {:.0} us, p99 {:.0} us",
        spread[0], spread[1]
    ))])
}

fn pushes(datapath: &mut EbpfDatapath, name: &str) -> Result<Vec<f64>, BenchError> {
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

fn push(datapath: &mut EbpfDatapath, flow: FlowId) -> Result<Vec<f64>, BenchError> {
    let mut took_us = Vec::with_capacity(PUSHES);
    for n in 0..PUSHES {
        let uid = if n % 2 == 0 { A } else { B };
        let pushed_us = ccplane_ebpf::clock_us();
        datapath.set_program(flow, uid, &[])?;
        let first_ack_us = wait_for(datapath, |e| match e {
            Event::Report { program, at_us, .. } if *program == uid => Some(*at_us),
            _ => None,
        })?;
        // The ACK's time is when the stack began with it, which may be before the push that it met.
        took_us.push(first_ack_us.saturating_sub(pushed_us) as f64);
        std::thread::sleep(PAUSE);
    }
    Ok(took_us)
}

/// `push.ebpf.install`
pub fn install() -> Result<Vec<Figure>, BenchError> {
    let program = fifty()?;
    let took_ms = steer::attached("i", |datapath, _| {
        let mut took_ms = Vec::with_capacity(INSTALLS);
        for _ in 0..INSTALLS {
            let start = Instant::now();
            datapath.install(FIFTY, &program)?;
            took_ms.push(start.elapsed().as_secs_f64() * 1e3);
            datapath.remove(FIFTY)?;
            datapath.heartbeat();
        }
        Ok(took_ms)
    })?;
    let note = format!("{} instructions", program.insts().len());
    Ok(vec![Figure::alone("push.ebpf.install", "ms", &took_ms).noted(note)])
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
    fn fifty_is_fifty() {
        assert_eq!(super::fifty().map(|p| p.insts().len()).ok(), Some(50));
    }
}
