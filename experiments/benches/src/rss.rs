//! `agent.rss`: the memory of the agent with 10,000 flows, against portus with as many.

use std::path::Path;

use crate::agent::{OurAgent, Portus, Process};
use crate::error::BenchError;
use crate::figure::Figure;
use crate::proof::Proof;
use crate::v1::V1;

const FLOWS: u32 = 10_000;
const REPORTS: u32 = 3;

/// Measures `agent.rss`: the memory of an agent with 10,000 flows, beside portus.
pub fn run() -> Result<Vec<Figure>, BenchError> {
    let portus = Portus::start()?;
    let agent = OurAgent::start("ccp-reno", "sleep", false)?;
    let empty = agent.process.rss_mib()?;
    let (ours, proof) = full(&agent.process, &agent.socket, &agent.dir.path().join("datapath.sock"))?;
    let at = agent.dir.path().join("portus-datapath.sock");
    let (theirs, their_proof) = full(&portus.process, &portus.socket, &at)?;
    let figure = Figure::paired("agent.rss", "MiB", "portus", &[(ours, theirs)], &proof.and(&their_proof));
    Ok(vec![figure.with_note(format!(
        "{FLOWS} flows of ccp-reno, each of which has reported {REPORTS} times and was answered; {empty:.1} MiB without flows"
    ))])
}

/// Measures the resident memory of an agent whose flows all have a program and had every report answered.
fn full(process: &Process, agent: &Path, own: &Path) -> Result<(f64, Proof), BenchError> {
    let mut v1 = V1::start(agent, own.into())?;
    for sid in 1..=FLOWS {
        v1.start_flow(sid)?;
    }
    let mut updates = 0;
    for _ in 0..REPORTS {
        for sid in 1..=FLOWS {
            v1.round_trip(sid)?;
            updates += 1;
        }
    }
    let proof = Proof::exactly("updates", updates, u64::from(FLOWS * REPORTS))?;
    Ok((process.rss_mib()?, proof))
}
