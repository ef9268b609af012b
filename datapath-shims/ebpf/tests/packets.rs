//! Decisions about packets of live flows, between two network namespaces of the test's own, as their receiver sees them.
#![allow(clippy::unwrap_used)]

mod packets_lab;
mod packets_measures;
mod packets_qdisc;

use std::collections::BTreeSet;
use std::fs;
use std::io::{Read, Write};
use std::net::{IpAddr, TcpListener, TcpStream};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use ccplane_contract::suite::{OutPacket, PacketStream, images, reference};
use ccplane_contract::{Datapath, DatapathError, Event, Field, Mode, Part, ProgramUid};
use ccplane_ebpf::packets::{Hooking, PacketsDatapath, PacketsOptions, PathRoute};
use ccplane_emulator::multi::RECEIVER;
use ccplane_emulator::{LinkConfig, MultiPath};
use ccplane_infer::image::{self, map};
use ccplane_infer::{Bits, Shape};
use ccplane_program::ir::Hook;
use ccplane_program::vm::SendPrims;
use ccplane_snapshot::{DeployOptions, Snapshot};
use ccplane_testing::{PATIENCE, skipped, wait_until};
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;
use nix::sys::socket::{getsockopt, sockopt};
use packets_lab::{
    Group, Lab, LabFlow, Packet, RECEIVER_V4, RECEIVER_V6, SECOND_MARK, compile, dscp, pause, run, stats,
    steer, wait_for,
};

const A: ProgramUid = ProgramUid(1);
const B: ProgramUid = ProgramUid(2);
/// The bytes after which a flow's priority falls in these tests.
const THRESHOLD: u32 = 100_000;

/// Flows begin at priority 0 and fall to 5 at a threshold, as PIAS has it.
fn by_bytes_sent() -> String {
    format!(
        "(hook send) (def (Report (sent 0)) (threshold {THRESHOLD}))
         (when (< Flow.bytes_sent threshold) (:= Priority 0) (:= DecideAt threshold))
         (when true (:= Priority 5) (:= DecideAt +infinity) (:= Report.sent Flow.bytes_sent) (report))"
    )
}

/// A program that gives all packets one priority.
fn constant(priority: u32) -> String {
    format!("(hook send) (def) (when true (:= Priority {priority}))")
}

/// The packets that carry data, each with the bytes that were sent before it.
fn data(packets: &[Packet]) -> Vec<(u32, Packet)> {
    let with_data = packets.iter().filter(|p| p.payload > 0);
    let before = |sent: &mut u32, packet: &Packet| {
        let before = *sent;
        *sent += packet.payload;
        Some((before, *packet))
    };
    with_data.scan(0, before).collect()
}

fn priorities_fall(test: &str, to: IpAddr, without_tcx: bool) {
    let Some(lab) = Lab::new(test) else { return };
    let mut datapath = lab.attach(PacketsOptions { without_tcx, ..lab.options() });
    assert_eq!(datapath.hooking() == Hooking::Clsact, without_tcx);
    datapath.install(A, &compile(&by_bytes_sent())).unwrap();
    let capture = lab.capture();
    let mut flow = lab.flow(to, 0);
    let id = steer(&mut datapath, &mut flow, A);
    flow.send(6 * THRESHOLD as usize);
    let sent = wait_for(&mut datapath, "report", |e| match e {
        Event::Report { flow, values, .. } if *flow == id => Some(values[0]),
        _ => None,
    });
    let packets = data(&capture.of(flow.local()));
    assert_eq!(packets[0].1.dscp, 0, "nobody has decided yet: {:?}", packets[0]);
    for (before, packet) in &packets[1..] {
        let priority = if *before < THRESHOLD { 0 } else { 5 };
        assert_eq!(packet.dscp, dscp(priority), "{before} bytes were sent before {packet:?}");
    }
    let fell = packets.iter().find(|(before, _)| *before >= THRESHOLD).unwrap().0;
    assert_eq!(sent, i64::from(fell), "the program knows what was sent before its packet");
    let seen = stats(&mut datapath, id);
    assert_eq!((seen.mode, seen.program, seen.transport.faults), (Mode::Program, Some(A), 0));
    flow.end();
    wait_for(&mut datapath, "Closed", |e| (*e == Event::Closed { flow: id }).then_some(()));
    assert!(datapath.flows().is_empty());
}

#[test]
fn priorities_fall_at_the_byte_on_ipv4() {
    priorities_fall("pk-v4", RECEIVER_V4, false);
}

#[test]
fn priorities_fall_at_the_byte_on_ipv6() {
    priorities_fall("pk-v6", RECEIVER_V6, false);
}

#[test]
fn priorities_fall_at_the_byte_without_tcx() {
    priorities_fall("pk-cls", RECEIVER_V4, true);
}

#[test]
fn a_flow_connects_over_the_path_that_its_program_chose() {
    const SECOND_PORT: u16 = 41_002;
    let Some(lab) = Lab::new("pk-conn") else { return };
    let Some(group) = Group::enter("pk-conn") else {
        return skipped("pk-conn", "there are no control groups (v2) here");
    };
    let paths = [0, SECOND_MARK].map(|mark| PathRoute { mark, device: None }).to_vec();
    let mut datapath = lab.attach(PacketsOptions { cgroup: Some(group.path()), paths, ..lab.options() });
    let source = format!(
        "(hook connect) (def (second 7))
         (when (== Flow.remote_port {SECOND_PORT}) (:= Path 1) (:= Priority second))
         (when true (:= Path 0) (:= Priority 2))"
    );
    datapath.install(A, &compile(&source)).unwrap();
    let second = Field::Reg(compile(&source).reg("second").unwrap());
    datapath.set_first(A, &[(second, 3)]).unwrap();
    datapath.heartbeat();
    for (to, other_port) in [(RECEIVER_V4, 41_001), (RECEIVER_V6, 41_003)] {
        for (port, cable, priority) in [(other_port, 0, 2), (SECOND_PORT, 1, 3)] {
            let capture = lab.capture();
            let mut flow = lab.flow(to, port);
            flow.send(200_000);
            let packets = capture.all();
            let ours: Vec<&Packet> = packets.iter().filter(|p| p.remote_port == port).collect();
            assert!(ours.len() > 3, "{ours:?}");
            for packet in &ours {
                assert_eq!((packet.cable, packet.dscp), (cable, dscp(priority)), "{packet:?}");
            }
            let id = datapath.flows()[0].flow;
            datapath.release(id).unwrap();
            assert_eq!(next_dscp(&lab, &mut flow), dscp(priority), "it had no program to be released from");
            flow.end();
            wait_for(&mut datapath, "Closed", |e| (*e == Event::Closed { flow: id }).then_some(()));
        }
    }
    let reports = compile("(hook connect) (def (Report (x 0))) (when true (:= Report.x 1) (report))");
    assert!(matches!(datapath.install(B, &reports), Err(DatapathError::Unsupported { .. })));
    datapath.remove(A).unwrap();
    let mut flow = lab.flow(RECEIVER_V4, SECOND_PORT);
    let capture = lab.capture();
    flow.send(1000);
    assert!(data(&capture.of(flow.local())).iter().all(|(_, p)| p.dscp == 0));
}

/// Each decision sends the flow over the other path.
fn paths_alternate(test: &str, to: IpAddr) {
    const GAP: Duration = Duration::from_millis(40);
    const BURSTS: usize = 8;
    let Some(lab) = Lab::new(test) else { return };
    let devices = [("p0", 2), ("p1", SECOND_MARK)];
    let paths = devices.map(|(device, mark)| PathRoute { mark, device: Some(device.into()) }).to_vec();
    let mut datapath = lab.attach(PacketsOptions { paths, flowlet_gap: GAP, ..lab.options() });
    datapath
        .install(A, &compile("(hook send) (def (Report (n 0))) (when true (:= Report.n (+ Report.n 1)) (:= Path (- 1 Path)))"))
        .unwrap();
    let capture = lab.capture();
    let mut flow = lab.flow(to, 0);
    let id = steer(&mut datapath, &mut flow, A);
    for _ in 0..BURSTS {
        flow.send(300_000);
        pause(2 * GAP);
    }
    let decisions = datapath.decisions(id).unwrap() as usize;
    let packets: Vec<Packet> = data(&capture.of(flow.local())).into_iter().map(|(_, p)| p).collect();
    assert!(decisions >= BURSTS, "each burst is a flowlet: {decisions}");
    let changes = packets.windows(2).filter(|w| w[0].cable != w[1].cable).count();
    assert_eq!(changes, decisions, "a path changes where the program decides, and nowhere else");
    // A packet that was overtaken by one of another path is new data below what has come.
    let (mut highest, mut seen) = (packets[0], BTreeSet::new());
    for packet in &packets {
        let is_new = seen.insert(packet.sequence);
        let overtaken = packet.sequence.wrapping_sub(highest.sequence) as i32;
        assert!(!is_new || overtaken >= 0 || packet.cable == highest.cable, "{packet:?} after {highest:?}");
        if overtaken > 0 {
            highest = *packet;
        }
    }
}

#[test]
fn paths_change_between_flowlets_and_nothing_is_reordered_on_ipv4() {
    paths_alternate("pk-let4", RECEIVER_V4);
}

#[test]
fn paths_change_between_flowlets_and_nothing_is_reordered_on_ipv6() {
    paths_alternate("pk-let6", RECEIVER_V6);
}

/// A flow's priority falls with what it has sent, and each flowlet, after a gap, takes the next of its two paths.
fn stream(gap: Duration) -> String {
    format!(
        "(hook send) (def (n 0))
         (when true
           (:= n (if (> Flow.gap_us {}) (+ n 1)))
           (:= Path (- n (* (/ n 2) 2)))
           (:= Priority 1)
           (:= Priority (if (>= Flow.bytes_sent 100000) 3))
           (:= Priority (if (>= Flow.bytes_sent 400000) 6))
           (:= DecideAt 100000)
           (:= DecideAt (if (>= Flow.bytes_sent 100000) 400000))
           (:= DecideAt (if (>= Flow.bytes_sent 400000) +infinity)))",
        gap.as_micros()
    )
}

/// The kernel treats a flow's packets as the suite's reference treats the same packets, as their receiver saw them.
fn gets_what_the_rules_say(test: &str, to: IpAddr) {
    /// Longer than the least retransmission timeout, the wait of a burst whose reader a busy machine lets wait.
    const GAP: Duration = Duration::from_millis(300);
    const BURSTS: [usize; 4] = [50_000, 250_000, 3000, 400_000];
    let Some(lab) = Lab::new(test) else { return };
    let devices = [("p0", 2), ("p1", SECOND_MARK)];
    let paths = devices.map(|(device, mark)| PathRoute { mark, device: Some(device.into()) }).to_vec();
    let mut datapath = lab.attach(PacketsOptions { paths, flowlet_gap: GAP, ..lab.options() });
    let program = compile(&stream(GAP));
    datapath.install(A, &program).unwrap();
    datapath.set_first(A, &[]).unwrap();
    datapath.heartbeat();
    let capture = lab.capture();
    let mut flow = lab.flow(to, 0);
    for bytes in BURSTS {
        flow.send(bytes);
        pause(3 * GAP);
    }
    let seen = data(&capture.of(flow.local()));
    let packet = |(before, packet): &(u32, Packet)| OutPacket {
        at_us: packet.at_us - seen[0].1.at_us,
        bytes: packet.payload.into(),
        waiting_bytes: 0,
        // The program decides the same where a burst has nothing in flight for a moment.
        in_flight_bytes: u64::from(*before > 0),
    };
    let stream = PacketStream {
        flowlet_us: GAP.as_micros() as u64,
        paths: 2,
        start_path: 0,
        known: SendPrims::default(),
        packets: seen.iter().map(packet).collect(),
    };
    let expected = reference(&program, &stream);
    assert!(seen.len() > 10 && expected.iter().filter(|steered| steered.decided).count() >= 6, "{seen:?}");
    for ((before, packet), steered) in seen.iter().zip(&expected) {
        let got = (packet.dscp, packet.cable);
        let wanted = (dscp(steered.priority.into()), usize::from(steered.path));
        assert_eq!(got, wanted, "after {before} bytes: {packet:?}, {steered:?}");
    }
}

#[test]
fn the_suites_packets_get_what_its_rules_say_on_ipv4() {
    gets_what_the_rules_say("pk-rule4", RECEIVER_V4);
}

#[test]
fn the_suites_packets_get_what_its_rules_say_on_ipv6() {
    gets_what_the_rules_say("pk-rule6", RECEIVER_V6);
}

#[test]
fn a_path_leads_over_devices_without_a_link_header() {
    const BYTES: usize = 300_000;
    let Some(lab) = Lab::new("pk-tun") else { return };
    let link = LinkConfig::symmetric(ccplane_emulator::Shape::Unlimited, 0);
    let links = MultiPath::start(&[link.clone(), link]).unwrap();
    let paths = [0, 1].map(|n| PathRoute { mark: MultiPath::mark(n), device: Some(MultiPath::device(n)) });
    let devices = [0, 1].map(MultiPath::device).to_vec();
    let options = PacketsOptions { devices, paths: paths.to_vec(), ..lab.options() };
    let mut datapath = links.sender_ns().run(|| PacketsDatapath::attach(options)).unwrap().unwrap();
    datapath
        .install(A, &compile("(hook send) (def) (when true (:= Path 1) (:= DecideAt +infinity))"))
        .unwrap();
    datapath.set_first(A, &[]).unwrap();
    for to in [IpAddr::from(RECEIVER.v4), RECEIVER.v6.into()] {
        datapath.heartbeat();
        let listener = links.receiver_ns().run(|| TcpListener::bind((to, 0)).unwrap()).unwrap();
        let remote = listener.local_addr().unwrap();
        let before = links.stats()[1].up.delivered_bytes;
        let reader = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            stream.read_exact(&mut vec![0; BYTES]).unwrap();
        });
        let mut stream = links.sender_ns().run(|| TcpStream::connect(remote).unwrap()).unwrap();
        stream.write_all(&vec![0; BYTES]).unwrap();
        reader.join().unwrap();
        assert!(links.stats()[1].up.delivered_bytes >= before + BYTES as u64, "{:?}", links.stats());
    }
}

/// The kernel takes each program of every algorithm for packets that the agent names, and runs what it takes.
#[test]
fn every_algorithm_for_packets_can_be_installed() {
    let Some(lab) = Lab::new("pk-all") else { return };
    let paths = vec![PathRoute::default(); 8];
    let mut datapath = lab.attach(PacketsOptions { paths, ..lab.options() });
    let mut uid = 0;
    for algorithm in ccplane_algs::on_packets() {
        for policy in algorithm.policies() {
            let snapshot = Snapshot::built_in(policy.snapshot).unwrap();
            datapath.define_slot(policy.slot, snapshot.shape()).unwrap();
            let image = snapshot.image(&DeployOptions::ONLY);
            datapath.push(policy.slot, &image, Part::Active).unwrap();
        }
        for source in algorithm.programs() {
            uid += 1;
            let installed = datapath.install(ProgramUid(uid), &compile(source.source));
            installed.unwrap_or_else(|e| panic!("{}: {e}", source.name));
            datapath.set_first(ProgramUid(uid), &[]).unwrap();
            datapath.heartbeat();
            let mut flow = lab.flow(RECEIVER_V4, 0);
            flow.send(30_000);
            let local = flow.local();
            let id = wait_for(&mut datapath, "Created", |e| match e {
                Event::Created { flow, info } if info.local == local => Some(*flow),
                _ => None,
            });
            let stats = stats(&mut datapath, id);
            assert_eq!((stats.mode, stats.transport.faults), (Mode::Program, 0), "{}", source.name);
            flow.end();
        }
    }
    assert!(uid >= 7, "{uid}");
}

#[test]
fn a_path_shows_in_the_flow_label() {
    let Some(lab) = Lab::new("pk-label") else { return };
    let paths = vec![PathRoute::default(); 2];
    let flowlet_gap = Duration::from_micros(1);
    let mut datapath = lab.attach(PacketsOptions { paths, flow_label: true, flowlet_gap, ..lab.options() });
    for (uid, path) in [(A, 0), (B, 1)] {
        datapath.install(uid, &compile(&format!("(hook send) (def) (when true (:= Path {path}))"))).unwrap();
    }
    let capture = lab.capture();
    let mut flow = lab.flow(RECEIVER_V6, 0);
    let id = steer(&mut datapath, &mut flow, A);
    flow.send(1000);
    datapath.set_program(id, B, &[]).unwrap();
    flow.send(1000);
    flow.send(1000);
    let labels: Vec<u32> = data(&capture.of(flow.local())).iter().map(|(_, p)| p.flow_label).collect();
    // The first byte, path 0, and path 1 from its decision on.
    assert_eq!(labels[0], labels[1], "path 0 keeps the socket's label: {labels:x?}");
    assert!(labels[2] != labels[1] && labels[2..].iter().all(|label| *label == labels[2]), "{labels:x?}");
}

/// The code point of the next packet that the flow sends.
fn next_dscp(lab: &Lab, flow: &mut LabFlow) -> u32 {
    let capture = lab.capture();
    flow.send(1);
    data(&capture.of(flow.local()))[0].1.dscp
}

#[test]
fn programs_change_on_live_flows_and_a_silent_agent_loses_them() {
    const TIMEOUT: Duration = Duration::from_millis(300);
    let Some(lab) = Lab::new("pk-swap") else { return };
    let flowlet_gap = Duration::from_micros(1);
    let options = PacketsOptions { heartbeat_timeout: TIMEOUT, flowlet_gap, ..lab.options() };
    let mut datapath = lab.attach(options);
    datapath.install(A, &compile(&constant(2))).unwrap();
    let settable = compile("(hook send) (def (p 6)) (when true (:= Priority p))");
    datapath.install(B, &settable).unwrap();
    let mut flow = lab.flow(RECEIVER_V4, 0);
    let id = steer(&mut datapath, &mut flow, A);
    datapath.heartbeat();
    assert_eq!(next_dscp(&lab, &mut flow), dscp(2));
    datapath.set_program(id, B, &[]).unwrap();
    assert_eq!(datapath.remove(B), Err(DatapathError::ProgramInUse { uid: B, flows: 1 }));
    datapath.heartbeat();
    assert_eq!(next_dscp(&lab, &mut flow), dscp(6));
    datapath.remove(A).unwrap();
    let p = Field::Reg(settable.reg("p").unwrap());
    datapath.update(id, &[(p, 1)]).unwrap();
    datapath.heartbeat();
    assert_eq!(next_dscp(&lab, &mut flow), dscp(1), "an update is a decision");
    datapath.update(id, &[(p, 8)]).unwrap();
    datapath.heartbeat();
    assert_eq!(next_dscp(&lab, &mut flow), dscp(1), "8 is no priority: the one before stays");

    pause(2 * TIMEOUT);
    assert_eq!(next_dscp(&lab, &mut flow), 0);
    assert_eq!(stats(&mut datapath, id).mode, Mode::NativeAgentSilent);
    datapath.heartbeat();
    assert_eq!(next_dscp(&lab, &mut flow), dscp(1), "the agent is back");
    datapath.heartbeat();
    datapath.release(id).unwrap();
    datapath.heartbeat();
    assert_eq!(next_dscp(&lab, &mut flow), 0);
    assert_eq!(stats(&mut datapath, id).mode, Mode::NativeNoProgram);
    datapath.remove(B).unwrap();
    datapath.detach();
    assert_eq!(next_dscp(&lab, &mut flow), 0);
}

#[test]
fn flows_start_with_a_program_before_the_agent_hears_of_them() {
    let Some(lab) = Lab::new("pk-first") else { return };
    let mut datapath = lab.attach(lab.options());
    let source = "(hook send) (def (Report (sent 0)) (p 1)) (when true (:= Priority p) (:= Report.sent Flow.bytes_sent) (report))";
    let program = compile(source);
    datapath.install(A, &program).unwrap();
    datapath.install(B, &program).unwrap();
    let p = Field::Reg(program.reg("p").unwrap());
    datapath.set_first(A, &[(p, 6)]).unwrap();
    datapath.heartbeat();
    for to in [RECEIVER_V4, RECEIVER_V6] {
        let capture = lab.capture();
        let mut flow = lab.flow(to, 0);
        flow.send(10_000);
        let packets = data(&capture.of(flow.local()));
        assert!(packets.iter().all(|(_, packet)| packet.dscp == dscp(6)), "{packets:?}");
        let local = flow.local();
        let id = wait_for(&mut datapath, "Created", |e| match e {
            Event::Created { flow, info } if info.local == local => Some(*flow),
            _ => None,
        });
        // The next flow's events come after it.
        let (by, sent) = wait_for(&mut datapath, "report", |e| match e {
            Event::Report { flow, program, values, .. } if *flow == id => Some((*program, values[0])),
            _ => None,
        });
        assert_eq!((by, sent), (A, 0), "it ran on the first packet");
        assert_eq!(datapath.ensure_program(id, A, &[(p, 2)]), Ok(false), "it runs already");
        assert_eq!(next_dscp(&lab, &mut flow), dscp(6));
        assert_eq!(datapath.ensure_program(id, B, &[(p, 7)]), Ok(true));
        assert_eq!(next_dscp(&lab, &mut flow), dscp(7));
        flow.end();
    }
    datapath.clear_first(Hook::Send);
    let mut flow = lab.flow(RECEIVER_V4, 0);
    assert_eq!(next_dscp(&lab, &mut flow), 0);
}

#[test]
fn a_program_runs_once_more_when_its_flow_ends() {
    let Some(lab) = Lab::new("pk-end") else { return };
    let mut datapath = lab.attach(lab.options());
    let source = "(hook send) (def (Report (volatile ended 0) (sent 0)))
        (when (== Packet.bytes 0) (:= Report.ended 1) (:= Report.sent Flow.bytes_sent) (report))
        (when true (:= Report.sent Flow.bytes_sent) (:= DecideAt 1) (report))";
    datapath.install(A, &compile(source)).unwrap();
    let mut flow = lab.flow(RECEIVER_V4, 0);
    let id = steer(&mut datapath, &mut flow, A);
    flow.send(50_000);
    let (total, mut ends) = (50_001, Vec::new());
    flow.end();
    wait_for(&mut datapath, "Closed", |e| match e {
        Event::Report { flow, values, .. } if *flow == id => {
            if values[0] != 0 {
                ends.push(values[1]);
            } else {
                assert!(values[1] < total, "a packet with data has some after what was sent: {values:?}");
            }
            None
        }
        Event::Closed { flow } if *flow == id => Some(()),
        _ => None,
    });
    assert_eq!(ends, [total], "the end comes once, and tells the size");
}

#[test]
fn within_a_flowlet_a_flow_may_only_fall() {
    let Some(lab) = Lab::new("pk-fall") else { return };
    let options = PacketsOptions { flowlet_gap: Duration::from_secs(60), ..lab.options() };
    let mut datapath = lab.attach(options);
    // It alternates between two priorities with each packet.
    let source =
        "(hook send) (def (n 0)) (when true (:= n (- 1 n)) (:= Priority (+ 2 (* n 4))) (:= DecideAt 1))";
    datapath.install(A, &compile(source)).unwrap();
    let capture = lab.capture();
    let mut flow = lab.flow(RECEIVER_V4, 0);
    let id = steer(&mut datapath, &mut flow, A);
    flow.send(3_000_000);
    let packets = data(&capture.of(flow.local()));
    assert!(datapath.decisions(id).unwrap() > 10);
    let falls = packets[1..].windows(2).filter(|w| w[1].1.dscp > w[0].1.dscp).count();
    assert!(falls > 0, "of {} packets", packets.len());
    for rise in packets[1..].windows(2).filter(|w| w[1].1.dscp < w[0].1.dscp) {
        let packet = rise[1].1;
        assert_eq!(packet.acknowledged, packet.sequence, "it rises only where nothing is in flight");
    }
}

#[test]
fn flows_beyond_the_table_are_left_as_they_are() {
    let Some(lab) = Lab::new("pk-full") else { return };
    let mut datapath = lab.attach(PacketsOptions { max_flows: 1, ..lab.options() });
    datapath.install(A, &compile(&constant(4))).unwrap();
    let mut first = lab.flow(RECEIVER_V4, 0);
    let id = steer(&mut datapath, &mut first, A);
    assert_eq!(next_dscp(&lab, &mut first), dscp(4));
    let mut second = lab.flow(RECEIVER_V4, 0);
    assert_eq!(next_dscp(&lab, &mut second), 0);
    assert!(datapath.turned_away() > 0);
    assert_eq!(datapath.flows().len(), 1);
    first.end();
    wait_for(&mut datapath, "Closed", |e| (*e == Event::Closed { flow: id }).then_some(()));
    // There is room now.
    steer(&mut datapath, &mut second, A);
    assert_eq!(next_dscp(&lab, &mut second), dscp(4));
}

#[test]
fn what_earlier_flows_sent_is_known() {
    let Some(lab) = Lab::new("pk-peers") else { return };
    let mut datapath = lab.attach(lab.options());
    let source = "(hook send) (def (Report (flows 0) (one 0) (two 0) (three 0) (four 0) (gap 0) (local 0) (remote 0) (waits 0) (bytes 0)))
        (when true
          (:= Report.flows Peer.flows) (:= Report.one Peer.size_1) (:= Report.two Peer.size_2)
          (:= Report.three Peer.size_3) (:= Report.four Peer.size_4) (:= Report.gap Peer.gap_us) (:= Report.local Flow.local_port)
          (:= Report.remote Flow.remote_port) (:= Report.waits Flow.bytes_waiting) (:= Report.bytes Packet.bytes) (report))";
    datapath.install(A, &compile(source)).unwrap();
    let sizes = [3000, 70_000, 10, 500, 9000];
    for (n, size) in sizes.into_iter().enumerate() {
        let mut flow = lab.flow(RECEIVER_V4, 4242);
        let id = steer(&mut datapath, &mut flow, A);
        flow.send(size - 1);
        let values = wait_for(&mut datapath, "report", |e| match e {
            Event::Report { flow, values, .. } if *flow == id => Some(values.to_vec()),
            _ => None,
        });
        let before = |back: usize| n.checked_sub(back).map_or(0, |n| sizes[n] as i64);
        assert_eq!(values[..5], [n as i64, before(1), before(2), before(3), before(4)]);
        assert!(n == 0 || values[5] > 0, "{values:?}");
        assert_eq!(values[6..8], [i64::from(flow.local().port()), 4242]);
        // The first packet after the byte that named the flow carries all, or the first of several.
        assert!(values[9] > 0 && values[8] + values[9] < size as i64, "{values:?}");
        flow.end();
        wait_for(&mut datapath, "Closed", |e| (*e == Event::Closed { flow: id }).then_some(()));
    }
}

#[test]
fn a_snapshot_decides_about_packets() {
    const ACTION_Q16: i64 = 3 << 16;
    let Some(lab) = Lab::new("pk-nn") else { return };
    let mut datapath = lab.attach(lab.options());
    let source = "(hook send) (def (Report (action 0)) (x 0))
        (when true (history 1 x) (policy 0) (:= Report.action Policy.action) (:= Priority (/ Policy.action 65536)) (report))";
    let program = compile(source);
    assert_eq!(datapath.install(A, &program), Err(DatapathError::NoSlot(0)));
    let shape = Shape::new(Bits::W8, &[1, 1]).unwrap();
    datapath.define_slot(0, &shape).unwrap();
    datapath.install(A, &program).unwrap();
    let mut flow = lab.flow(RECEIVER_V4, 0);
    let id = steer(&mut datapath, &mut flow, A);
    assert_eq!(next_dscp(&lab, &mut flow), 0, "the slot is empty: no answer");
    assert_eq!(stats(&mut datapath, id).mode, Mode::NativePolicy);
    let mut image = images::idle(&shape, 7);
    image::set_u32(&mut image, image::MAP, map::NONE);
    datapath.push(0, &image, Part::Active).unwrap();
    datapath.set_program(id, A, &[]).unwrap();
    let seen = next_dscp(&lab, &mut flow);
    let action = wait_for(&mut datapath, "report", |e| match e {
        Event::Report { flow, values, .. } if *flow == id => Some(values[0]),
        _ => None,
    });
    let priority = u32::try_from(action / ACTION_Q16 * 3).unwrap_or(0);
    assert_eq!(seen, dscp(priority), "action {action}");
    let stats = stats(&mut datapath, id);
    assert_eq!((stats.mode, stats.policy.unwrap().decisions), (Mode::Program, 1));
}

/// Environment variables for this test's own child process, the agent that is killed: its run directory, whether it goes without
/// tcx, and the control group whose sockets it decides about at their start.
const RUN_DIR: &str = "CCPLANE_TEST_PACKETS_DIR";
const WITHOUT_TCX: &str = "CCPLANE_TEST_PACKETS_WITHOUT_TCX";
const GROUP: &str = "CCPLANE_TEST_PACKETS_GROUP";
/// The priority of flows at their start there.
const AT_START: i32 = 3;

/// The child process: marks all flows until it is killed.
fn mark_for_ever(options: PacketsOptions) -> ! {
    set_pdeathsig(Signal::SIGKILL).unwrap();
    let decides_at_start = options.cgroup.is_some();
    let mut datapath = PacketsDatapath::attach(options).unwrap();
    datapath.install(A, &compile(&constant(4))).unwrap();
    if decides_at_start {
        let program = format!("(hook connect) (def) (when true (:= Priority {AT_START}))");
        datapath.install(B, &compile(&program)).unwrap();
        datapath.set_first(B, &[]).unwrap();
    }
    let mut events = Vec::new();
    loop {
        datapath.heartbeat();
        datapath.poll(64, &mut events);
        for event in events.drain(..) {
            if let Event::Created { flow, .. } = event {
                let _ = datapath.set_program(flow, A, &[]);
            }
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The buffer's priority of a flow that starts now.
fn priority_at_start(lab: &Lab) -> i32 {
    let flow = lab.flow(RECEIVER_V4, 0);
    let priority = getsockopt(&flow.stream, sockopt::Priority).unwrap();
    flow.end();
    priority
}

/// Appends the kernel's settings below a folder, those of the calling thread's network namespace.
fn read_settings(folder: &Path, all: &mut Vec<String>) {
    for entry in fs::read_dir(folder).unwrap().flatten() {
        let path = entry.path();
        if path.is_dir() {
            read_settings(&path, all);
        } else if let Ok(value) = fs::read_to_string(&path) {
            all.push(format!("{} = {}", path.display(), value.trim()));
        }
    }
}

/// Lists the sender's `net.*`, but for a count of connections.
fn sysctls(lab: &Lab) -> Vec<String> {
    let mut all = Vec::new();
    lab.sender.run(|| read_settings(Path::new("/proc/sys/net"), &mut all)).unwrap();
    all.retain(|line| !line.contains("nf_conntrack_count"));
    all.sort();
    assert!(all.iter().any(|line| line.contains("tcp_ecn")), "{all:?}");
    all
}

/// Lists the sender's traffic control, routing and settings.
fn settings(lab: &Lab) -> String {
    let filters =
        ["p0", "p1"].map(|device| run("tc", &lab.sender, &format!("filter show dev {device} egress")));
    let [qdiscs, rules, routes] = [("tc", "qdisc show"), ("ip", "rule show"), ("ip", "route show table all")]
        .map(|(tool, what)| run(tool, &lab.sender, what));
    let all = format!("{qdiscs}{}{rules}{routes}", filters.concat());
    // The kernel makes addresses and routes of a link's own when it comes to that.
    let own = |line: &&str| !line.contains("fe80:") && !line.contains("multicast");
    let mut lines: Vec<String> = all.lines().filter(own).map(str::to_owned).collect();
    lines.extend(sysctls(lab));
    lines.join("\n")
}

fn nothing_remains(test: &str, child: &str, without_tcx: bool, foreign: bool) {
    let options = |lab: Option<&Lab>| {
        let own = lab.map(|lab| lab.run_dir.path().to_owned());
        let run_dir = own.unwrap_or_else(|| std::env::var_os(RUN_DIR).unwrap().into());
        PacketsOptions {
            run_dir,
            name: format!("ccp_{test}").replace('-', "_"),
            devices: vec!["p0".into(), "p1".into()],
            markings: std::array::from_fn(|n| ccplane_ebpf::packets::Marking {
                dscp: dscp(n as u32),
                skb_priority: n as u32,
                ..Default::default()
            }),
            writes_dscp: true,
            cgroup: std::env::var_os(GROUP).map(Into::into),
            heartbeat_timeout: Duration::from_secs(20),
            without_tcx: std::env::var_os(WITHOUT_TCX).is_some() || without_tcx,
            ..PacketsOptions::default()
        }
    };
    if std::env::var_os(RUN_DIR).is_some() {
        mark_for_ever(options(None));
    }
    let Some(lab) = Lab::new(test) else { return };
    if foreign {
        run("tc", &lab.sender, "qdisc add dev p0 clsact");
        // Classic BPF that matches nothing.
        let mut filter = Command::new("tc");
        filter.args(["-n", lab.sender.name().unwrap()]);
        filter.args("filter add dev p0 egress prio 7 protocol all bpf bytecode".split_whitespace());
        assert!(filter.arg("1,6 0 0 0").status().unwrap().success());
    }
    // One agent that is killed decides about flows' starts, too.
    let group = if without_tcx || foreign { None } else { Group::enter(test) };
    let before = settings(&lab);
    for kill in [true, false] {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", child, "--nocapture"]).env(RUN_DIR, lab.run_dir.path());
        if without_tcx {
            command.env(WITHOUT_TCX, "1");
        }
        if let Some(group) = &group {
            command.env(GROUP, group.path());
        }
        if kill {
            let mut agent = lab
                .sender
                .enter(&mut command)
                .unwrap()
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .spawn()
                .unwrap();
            let mut flow = lab.flow(RECEIVER_V4, 0);
            wait_until("the agent marks the flow", || next_dscp(&lab, &mut flow) == dscp(4));
            assert_eq!(settings(&lab) != before, without_tcx, "a link shows in no listing");
            // Without a group of its own this process may be in that of another test, whose agent decides about starts.
            if group.is_some() {
                assert_eq!(priority_at_start(&lab), AT_START);
            }
            agent.kill().unwrap();
            assert_eq!(agent.wait().unwrap().signal(), Some(Signal::SIGKILL as i32));
            let gone = Instant::now();
            while settings(&lab) != before && gone.elapsed() < PATIENCE {
                pause(Duration::from_millis(20));
            }
            assert_eq!(settings(&lab), before, "something is left");
            wait_until("the flow is left alone", || next_dscp(&lab, &mut flow) == 0);
            if group.is_some() {
                wait_until("flows' starts are left alone", || priority_at_start(&lab) == 0);
            }
        } else {
            let mut datapath = lab.attach(options(Some(&lab)));
            datapath.install(A, &compile(&constant(4))).unwrap();
            let mut flow = lab.flow(RECEIVER_V4, 0);
            steer(&mut datapath, &mut flow, A);
            assert_eq!(next_dscp(&lab, &mut flow), dscp(4), "also beside others' filters");
            datapath.detach();
            assert_eq!(settings(&lab), before);
            assert_eq!(next_dscp(&lab, &mut flow), 0);
        }
    }
}

/// Makes tests of it, each with a lab of its own.
macro_rules! nothing_remains {
    ($($test:ident $lab:literal $without_tcx:literal $foreign:literal,)*) => {
        $(#[test]
        fn $test() {
            nothing_remains($lab, stringify!($test), $without_tcx, $foreign);
        })*
    };
}

nothing_remains! {
    nothing_remains_of_a_killed_agent "pk-kill" false false,
    nothing_remains_of_a_killed_agent_without_tcx "pk-killc" true false,
    others_filters_remain "pk-for" false true,
    others_filters_remain_without_tcx "pk-forc" true true,
}
