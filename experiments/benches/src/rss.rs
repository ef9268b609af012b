//! `agent.rss`: what the agent takes with 10,000 flows.

use std::time::Duration;

use crate::agent::OurAgent;
use crate::error::{BenchError, context};
use crate::figure::Figure;
use crate::v1::V1;

const FLOWS: u32 = 10_000;
const REPORTS: u32 = 3;
/// Registers of CUBIC's report.
const VALUES: usize = 10;
const SETTLE: Duration = Duration::from_millis(500);
/// Reports sent between two rests, so that the socket's queue holds them.
const BURST: u32 = 100;

/// Runs the benchmark.
pub fn run() -> Result<Vec<Figure>, BenchError> {
    let agent = OurAgent::start("cubic", "sleep", false)?;
    let empty = rss_mib(agent.process.0.id())?;
    let mut v1 = V1::start(&agent.socket, agent.dir.path().join("datapath.sock"))?;
    for sid in 1..=FLOWS {
        v1.start_flow(sid)?;
    }
    for _ in 0..REPORTS {
        for sid in 1..=FLOWS {
            v1.report(sid, &[1000; VALUES])?;
            if sid % BURST == 0 {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }
    std::thread::sleep(SETTLE);
    let full = rss_mib(agent.process.0.id())?;
    Ok(vec![
        Figure::alone("agent.rss", "MiB", &[full])
            .noted(format!("{FLOWS} flows, each of which has reported; {empty:.1} MiB without flows")),
    ])
}

/// Resident memory of a process, MiB.
fn rss_mib(pid: u32) -> Result<f64, BenchError> {
    let status = context("read the agent's memory", std::fs::read_to_string(format!("/proc/{pid}/status")))?;
    let line = status.lines().find_map(|l| l.strip_prefix("VmRSS:"));
    let kib = line.and_then(|l| l.split_whitespace().next()).and_then(|v| v.parse::<f64>().ok());
    kib.map(|k| k / 1024.0).ok_or_else(|| BenchError::Missing("no VmRSS in /proc".into()))
}
