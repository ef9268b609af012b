//! Flows take a bounded amount of memory.
#![allow(clippy::unwrap_used)]

mod common;

use ccplane_contract::Datapath;
use ccplane_core::drive;
use common::{DP, Fake, Told, core_with, created, report};

const FLOWS: u64 = 10_000;
/// The agent may take 64 MiB in all; the flow table is to leave most of it to others.
const LIMIT_BYTES: usize = 16 << 20;

/// Resident memory of this process, bytes.
fn resident_bytes() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

#[test]
fn ten_thousand_flows_are_small() {
    let mut told = Told::new("a");
    told.log = Default::default();
    let mut core = core_with(vec![told]);
    let mut fake = Fake::default();
    core.attach(DP, fake.capabilities(), 0).unwrap();
    let before = resident_bytes();
    for seq in 0..3 {
        for flow in 0..FLOWS {
            fake.events.push(if seq == 0 { created(flow) } else { report(flow, 10, seq, 1) });
            if fake.events.len() == 500 {
                drive(&mut core, DP, &mut fake, 0);
                fake.take_calls();
            }
        }
    }
    let grown = resident_bytes().saturating_sub(before);
    assert_eq!(core.counters().reports, 2 * FLOWS);
    eprintln!("{} bytes per flow", grown / FLOWS as usize);
    assert!(grown < LIMIT_BYTES, "{grown} bytes for {FLOWS} flows");
}
