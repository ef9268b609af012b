//! The datapath under load: many flows, many updates, and an agent that does not keep up.
#![allow(clippy::unwrap_used)]

mod common;

use std::collections::HashSet;
use std::time::{Duration, Instant};

use ccplane_contract::{Datapath, Event, Field, FlowId, ProgramUid};
use ccplane_ebpf::{EbpfDatapath, read_flows};
use ccplane_program::compile;
use ccplane_runner::traffic::BulkFlow;
use ccplane_testing::wait_within;
use common::{Lab, PATIENCE, created, goes_on, wait_for, wait_until};

const A: ProgramUid = ProgramUid(1);
const B: ProgramUid = ProgramUid(2);

/// Control registers `x` and `y`, which must always be equal; reports at once when they change, and counts the ACKs on
/// which they differed.
const TWINS: &str = "(def (Report (x_seen 0) (torn 0)) (x 0) (y 0))
    (when (|| (< x y) (> x y)) (:= Report.torn (+ Report.torn 1)) (fallthrough))
    (when (> x Report.x_seen) (:= Report.x_seen x) (report))";
const X: Field = Field::Reg(2);
const Y: Field = Field::Reg(3);

/// A program that reports on each ACK.
const TALKER: &str = "(def (Report (acks 0))) (when true (:= Report.acks (+ Report.acks 1)) (report))";

/// A program that knows itself by a register that it never writes. Reports on its first ACK, and whenever it finds
/// itself with another program's registers.
fn tagged(tag: i64) -> String {
    format!(
        "(def (Report (acks 0) (strange 0)) (tag {tag}))
         (when true (:= Report.acks (+ Report.acks 1)) (fallthrough))
         (when (|| (< tag {tag}) (> tag {tag})) (:= Report.strange (+ Report.strange 1)) (report) (fallthrough))
         (when (== Report.acks 1) (report))"
    )
}

fn install(datapath: &mut EbpfDatapath, uid: ProgramUid, source: &str) {
    datapath.install(uid, &compile(source).unwrap()).unwrap();
}

fn own_flows(lab: &Lab, datapath: &mut EbpfDatapath, count: usize) -> Vec<(BulkFlow, FlowId)> {
    let start = |_| {
        let traffic = lab.own_flow();
        let flow = created(datapath, &traffic);
        (traffic, flow)
    };
    (0..count).map(start).collect()
}

#[test]
fn sixty_four_flows_come_and_go_and_leave_nothing() {
    const FLOWS: usize = 64;
    let Some(mut lab) = Lab::new("many") else { return };
    lab.options.max_flows = FLOWS as u32;
    let mut datapath = lab.attach();
    install(&mut datapath, A, TWINS);
    let mut seen = HashSet::new();
    // All starts go twice through the same records.
    for round in 1..=2 {
        let traffic: Vec<BulkFlow> = (0..FLOWS).map(|_| lab.own_flow()).collect();
        let mut flows = HashSet::new();
        wait_for(&mut datapath, "64 flows", |e| {
            if let Event::Created { flow, .. } = e {
                assert!(flows.insert(*flow), "told once");
            }
            (flows.len() == FLOWS).then_some(())
        });
        assert_eq!(datapath.flows().len(), FLOWS);
        for flow in &flows {
            assert!(seen.insert(*flow), "ids are not reused");
            datapath.set_program(*flow, A, &[(X, 1), (Y, 1), (Field::Cwnd, 20_000)]).unwrap();
        }
        let mut reported = HashSet::new();
        wait_for(&mut datapath, "a report of each", |e| {
            if let Event::Report { flow, values, .. } = e {
                assert_eq!(values[..], [1, 0]);
                reported.insert(*flow);
            }
            (reported == flows).then_some(())
        });
        drop(traffic);
        let mut closed = HashSet::new();
        wait_for(&mut datapath, "64 ends", |e| {
            if let Event::Closed { flow } = e {
                assert!(closed.insert(*flow), "told once");
            }
            (closed.len() == FLOWS).then_some(())
        });
        assert_eq!(closed, flows, "round {round}");
        assert!(datapath.flows().is_empty());
    }
    assert_eq!(read_flows(&lab.options).unwrap().table_full, 0, "no record was lost");
    datapath.remove(A).unwrap();
    datapath.detach().unwrap();
}

#[test]
fn a_thousand_updates_reach_eight_busy_flows_and_none_is_torn() {
    let Some(lab) = Lab::new("updates") else { return };
    let mut datapath = lab.attach();
    install(&mut datapath, A, TWINS);
    let flows = own_flows(&lab, &mut datapath, 8);
    for (_, flow) in &flows {
        datapath.set_program(*flow, A, &[]).unwrap();
    }
    for n in 1..=1000 {
        let flow = flows[n as usize % flows.len()].1;
        datapath.update(flow, &[(X, n), (Y, n)]).unwrap();
        let torn = wait_for(&mut datapath, "the update", |e| match e {
            Event::Report { flow: of, values, .. } if *of == flow => {
                assert_eq!(values[0], n);
                Some(values[1])
            }
            _ => None,
        });
        assert_eq!(torn, 0);
    }
    // Updates come as fast as they can be made, while the kernel applies what it finds.
    let (start, mut n) = (Instant::now(), 1000);
    while start.elapsed() < Duration::from_secs(2) {
        n += 1;
        datapath.heartbeat();
        for (_, flow) in &flows {
            datapath.update(*flow, &[(X, n), (Y, n)]).unwrap();
        }
        datapath.poll(1024, &mut Vec::new());
    }
    let last = n + 1;
    for (_, flow) in &flows {
        datapath.update(*flow, &[(X, last), (Y, last)]).unwrap();
    }
    let mut torn = Vec::new();
    wait_for(&mut datapath, "the last update of each flow", |e| {
        if let Event::Report { values, .. } = e
            && values[0] == last
        {
            torn.push(values[1]);
        }
        (torn.len() == flows.len()).then_some(())
    });
    eprintln!("{} updates of each flow in 2 s", last - 1000);
    assert_eq!(torn, [0; 8]);
    datapath.detach().unwrap();
}

#[test]
fn programs_switch_under_load_and_never_meet_each_others_registers() {
    let Some(lab) = Lab::new("switch") else { return };
    let mut datapath = lab.attach();
    install(&mut datapath, A, &tagged(7));
    install(&mut datapath, B, &tagged(9));
    let flows = own_flows(&lab, &mut datapath, 4);
    let (start, mut switches, mut starts, mut events) = (Instant::now(), 0u32, 0u32, Vec::new());
    while start.elapsed() < Duration::from_secs(3) || (starts <= 1000 && start.elapsed() < PATIENCE) {
        datapath.heartbeat();
        for (_, flow) in &flows {
            let uid = if switches.is_multiple_of(2) { A } else { B };
            datapath.set_program(*flow, uid, &[]).unwrap();
            // Beside the switch, also after it was claimed.
            datapath.update(*flow, &[(Field::Cwnd, 30_000)]).unwrap();
        }
        switches += 1;
        datapath.poll(1024, &mut events);
        for event in events.drain(..) {
            if let Event::Report { values, .. } = event {
                assert_eq!(values[..], [1, 0], "a program starts from its own initial registers");
                starts += 1;
            }
        }
    }
    eprintln!("{switches} switches of each flow, {starts} starts");
    assert!(starts > 1000, "{starts} of {switches}");
    datapath.detach().unwrap();
}

#[test]
fn ring_overflow_is_counted_and_lost_starts_and_ends_are_reported() {
    let Some(lab) = Lab::new("overflow") else { return };
    let mut datapath = lab.attach();
    install(&mut datapath, A, TALKER);
    let mut flows = own_flows(&lab, &mut datapath, 2);
    for (_, flow) in &flows {
        datapath.set_program(*flow, A, &[]).unwrap();
    }
    let (ending, ends) = flows.pop().unwrap();
    let (stays, talker) = flows.pop().unwrap();
    // Nobody polls; the flows do not care.
    wait_within(4 * PATIENCE, "the ring is full", || {
        datapath.heartbeat();
        // The ring holds less than this many reports.
        let flows = datapath.flows();
        (flows.iter().find(|f| f.flow == talker).unwrap().transport.reports > 40_000).then_some(())
    });
    let late = lab.own_flow();
    drop(ending);
    wait_until("the flow table to follow", || {
        datapath.heartbeat();
        let flows = datapath.flows();
        flows.len() == 2 && flows.iter().all(|f| f.flow != ends)
    });
    goes_on(&stays, "no stall");

    let (mut events, mut dropped) = (Vec::new(), 0);
    let (mut told_start, mut told_end) = (None, false);
    let start = Instant::now();
    while (told_start.is_none() || !told_end || dropped == 0) && start.elapsed() < PATIENCE {
        datapath.heartbeat();
        assert!(datapath.poll(500, &mut events) <= 500);
        for event in events.drain(..) {
            match event {
                Event::Dropped { count } => dropped += count,
                Event::Created { flow, info } if info.local == late.local() => told_start = Some(flow),
                Event::Closed { flow } => told_end |= flow == ends,
                _ => {}
            }
        }
    }
    assert!(dropped > 0 && told_end, "{dropped} drops");
    // Afterwards all is as before.
    datapath.set_program(told_start.unwrap(), A, &[]).unwrap();
    let (seq, _) = common::report(&mut datapath, told_start.unwrap(), A);
    assert_eq!(seq, 1);
    datapath.detach().unwrap();
}
