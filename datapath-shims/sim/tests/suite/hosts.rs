//! Tests the hosts' datapath: what programs on packets can read, when they run, and that nothing reorders.

use ccplane_contract::{Datapath, DatapathError, Event, Field, FlowId, Mode, ProgramUid};
use ccplane_netsim::{Capacity, Discipline, LinkChange, LinkConfig, PathConfig, QueueLimit};
use ccplane_program::ir::Program;
use ccplane_sim::{FlowConfig, HostsConfig, SimConfig, SimDatapath, Source};
use std::collections::BTreeMap;

const MSS: u64 = 1448;
const A: ProgramUid = ProgramUid(1);
const B: ProgramUid = ProgramUid(2);

fn program(source: &str) -> Program {
    ccplane_program::compile(source).unwrap_or_else(|e| panic!("{e:?}"))
}

/// 1 Gb/s, 50 us one way for link 0 and ten times as much for the others.
fn links(count: u64) -> Vec<LinkConfig> {
    let link = |n: u64| {
        let capacity = Capacity::Rate { bit_per_s: 1_000_000_000 };
        let discipline = Discipline::StrictPriority { mark_at: Some(QueueLimit::Packets(20)) };
        let delay_ns = if n == 0 { 50_000 } else { 500_000 };
        LinkConfig { discipline, ..LinkConfig::new(capacity, delay_ns, QueueLimit::Packets(200)) }
    };
    (0..count).map(link).collect()
}

fn sim(paths: u64, hosts: HostsConfig) -> SimDatapath {
    let config = SimConfig { hosts: Some(hosts), ..SimConfig::new(links(paths), 1) };
    SimDatapath::new(config).unwrap()
}

/// A flow with a route over each of so many links.
fn flow(source: Source, paths: u8, port: u16) -> FlowConfig {
    let other_routes = (1..paths).map(|link| vec![link]).collect();
    let path = PathConfig { other_routes, ecn: true, ..PathConfig::new(vec![0], 50_000) };
    let mut config = FlowConfig { path, ..FlowConfig::new(source, 0) };
    config.remote.set_port(port);
    config
}

/// Runs to the end with an agent that only listens; the reports of each flow, with their times.
fn reports(sim: &mut SimDatapath, until_us: u64) -> BTreeMap<u64, Vec<(u64, Vec<i64>)>> {
    let mut all: BTreeMap<u64, Vec<(u64, Vec<i64>)>> = BTreeMap::new();
    while sim.now_us() < until_us {
        sim.step_to_packet_event(until_us.min(sim.now_us() + 100_000));
        let hosts = sim.hosts().unwrap();
        hosts.heartbeat();
        let mut events = Vec::new();
        hosts.poll(usize::MAX, &mut events);
        for event in events {
            if let Event::Report { flow, at_us, values, .. } = event {
                all.entry(flow.0).or_default().push((at_us, values.into_vec()));
            }
        }
    }
    all
}

#[test]
fn a_program_reads_what_the_flow_sent_and_what_waits_and_runs_when_it_asked_and_at_the_end() {
    let mut sim = sim(1, HostsConfig::default());
    let source = "(hook send)
        (def (Report (packet 0) (sent 0) (waiting 0) (age 0) (gap 0) (port 0) (runs 0)) (every 28960))
        (when true
            (:= Report.packet Packet.bytes)
            (:= Report.sent Flow.bytes_sent)
            (:= Report.waiting Flow.bytes_waiting)
            (:= Report.age Flow.age_us)
            (:= Report.gap Flow.gap_us)
            (:= Report.port Flow.remote_port)
            (:= Report.runs (+ Report.runs 1))
            (:= DecideAt (+ Flow.bytes_sent every))
            (report))";
    let hosts = sim.hosts().unwrap();
    hosts.install(A, &program(source)).unwrap();
    hosts.set_first(A, &[]).unwrap();
    let mut config = flow(Source::Bytes(50 * MSS), 1, 5007);
    config.start_us = 700;
    config.send_buffer_bytes = 20_000;
    sim.add_flow(&config).unwrap();
    let all = reports(&mut sim, 100_000);
    let seen: Vec<_> = all[&0].iter().map(|(_, v)| (v[0], v[1], v[2], v[5], v[6])).collect();
    let (mss, run) = (MSS as i64, 20 * MSS as i64);
    assert_eq!(
        seen,
        [
            (mss, 0, 20_000, 5007, 1),
            (mss, run, 20_000, 5007, 2),
            (mss, 2 * run, 9 * mss, 5007, 3),
            (0, 50 * mss, 0, 5007, 4)
        ]
    );
    for (at_us, values) in &all[&0] {
        assert_eq!(values[3], *at_us as i64 - 700, "age");
    }
    // The last packet left a round trip before its acknowledgement ended the flow.
    assert!((100..400).contains(&all[&0][3].1[4]), "{:?}", all[&0]);
}

#[test]
fn hosts_remember_the_sizes_of_flows_to_a_destination_and_service() {
    let mut sim = sim(1, HostsConfig::default());
    let source = "(hook connect)
        (def (Report (flows 0) (gap 0) (s1 0) (s2 0) (s3 0) (s4 0)))
        (when true
            (:= Report.flows Peer.flows) (:= Report.gap Peer.gap_us)
            (:= Report.s1 Peer.size_1) (:= Report.s2 Peer.size_2)
            (:= Report.s3 Peer.size_3) (:= Report.s4 Peer.size_4)
            (:= Priority 3)
            (report))";
    let hosts = sim.hosts().unwrap();
    hosts.install(A, &program(source)).unwrap();
    hosts.set_first(A, &[]).unwrap();
    for n in 0..6_u64 {
        let start_us = 10_000 * n;
        sim.add_flow(&FlowConfig { start_us, ..flow(Source::Bytes(1000 + n), 1, 80) }).unwrap();
        sim.add_flow(&FlowConfig { start_us, ..flow(Source::Bytes(99), 1, 81) }).unwrap();
    }
    let all = reports(&mut sim, 100_000);
    let seen: Vec<_> = (0..6).map(|n| all[&(2 * n)][0].1.clone()).collect();
    assert_eq!(seen[0], [0, 0, 0, 0, 0, 0]);
    assert_eq!(seen[1], [1, 10_000, 1000, 0, 0, 0]);
    assert_eq!(seen[5], [5, 10_000, 1004, 1003, 1002, 1001]);
    assert_eq!(all[&9][0].1, [4, 10_000, 99, 99, 99, 99]);
}

#[test]
fn paths_are_measured_and_a_connect_program_chooses_one() {
    let mut sim = sim(2, HostsConfig { path_memory_us: 50_000, ..HostsConfig::default() });
    let connect = "(hook connect)
        (def (Report (paths 0) (rtt_0 0) (rtt_1 0) (flight_1 0)) (path 1))
        (when true
            (:= Report.paths Path.count)
            (:= Report.rtt_0 Path0.rtt_us) (:= Report.rtt_1 Path1.rtt_us)
            (:= Report.flight_1 Path1.bytes_in_flight)
            (:= Path path)
            (report))";
    let connect = program(connect);
    let hosts = sim.hosts().unwrap();
    hosts.install(A, &connect).unwrap();
    let path =
        (0..connect.regs().len() as u8).find(|n| connect.regs()[usize::from(*n)].name == "path").unwrap();
    hosts.set_first(A, &[]).unwrap();
    let long = sim.add_flow(&flow(Source::Bulk, 2, 80)).unwrap();
    sim.step_until(20_000);
    let hosts = sim.hosts().unwrap();
    assert_eq!(hosts.steering(long), Some((0, 1)));
    hosts.set_first(A, &[(Field::Reg(path), 0)]).unwrap();
    sim.add_flow(&flow(Source::Bulk, 2, 80)).unwrap();
    sim.step_until(40_000);
    sim.add_flow(&flow(Source::Bulk, 2, 80)).unwrap();
    sim.step_until(60_000);
    let all = reports(&mut sim, 60_001);
    let third = &all[&2][0].1;
    assert_eq!(third[0], 2);
    // 100 us there and back, and what waits; half a millisecond more on the other.
    assert!((100..500).contains(&third[1]), "{third:?}");
    assert!((550..3000).contains(&third[2]), "{third:?}");
    assert!(third[3] > 0 && third[3] % MSS as i64 == 0, "{third:?}");
    assert_eq!(all[&0][0].1, [2, 0, 0, 0]);
}

/// A flow leaves a path that loses everything before an ACK tells of it: the losses are the old path's all the same.
#[test]
fn losses_that_a_timeout_finds_are_those_of_the_path_on_which_they_happened() {
    let mut sim = sim(2, HostsConfig { path_memory_us: 1_000_000, ..HostsConfig::default() });
    let source = "(hook send)
        (def (Report (lost_0 0) (lost_1 0)))
        (when true
            (:= Report.lost_0 Path0.lost) (:= Report.lost_1 Path1.lost)
            (:= Path 0)
            (:= Path (if (> Path0.lost 0) 1))
            (:= DecideAt Flow.bytes_sent)
            (report))";
    let hosts = sim.hosts().unwrap();
    hosts.install(A, &program(source)).unwrap();
    hosts.set_first(A, &[]).unwrap();
    let chunks = Source::Chunks { bytes: 10 * MSS as u32, every_us: 10_000 };
    let id = sim.add_flow(&flow(chunks, 2, 80)).unwrap();
    sim.step_until(15_000);
    assert_eq!(sim.hosts().unwrap().steering(id).unwrap().1, 0);
    sim.change_link(0, &LinkChange { loss_ppm: Some(1_000_000), ..LinkChange::default() }).unwrap();
    let all = reports(&mut sim, 350_000);
    assert_eq!(sim.hosts().unwrap().steering(id).unwrap().1, 1);
    let last = &all[&0].last().unwrap().1;
    assert!(last[0] > 0 && last[1] == 0, "{last:?}");
    assert!(sim.stats(id).unwrap().transport.bytes_acked > 100 * MSS);
}

/// Every packet asks for another path and another priority; only what cannot reorder is granted.
#[test]
fn no_packet_overtakes_another_of_its_flow() {
    let restless = "(hook send)
        (def (n 0))
        (when true
            (:= n (+ (* n 5) 3))
            (:= n (- n (* (/ n 8) 8)))
            (:= Priority n)
            (:= Path (- n (* (/ n 3) 3))))";
    for (source, moves) in
        [(Source::Bytes(3000 * MSS), false), (Source::Chunks { bytes: 3000, every_us: 4000 }, true)]
    {
        let mut sim = sim(3, HostsConfig { flowlet_us: 2000, ..HostsConfig::default() });
        let hosts = sim.hosts().unwrap();
        hosts.install(A, &program(restless)).unwrap();
        hosts.set_first(A, &[]).unwrap();
        let flows: Vec<FlowId> = (0..4).map(|n| sim.add_flow(&flow(source, 3, 80 + n)).unwrap()).collect();
        let mut paths = BTreeMap::new();
        for at_us in (0..60_000).step_by(1000) {
            sim.step_until(at_us);
            for flow in &flows {
                if let Some((_, path)) = sim.hosts().unwrap().steering(*flow) {
                    *paths.entry((flow.0, path)).or_insert(0) += 1;
                }
            }
        }
        for flow in &flows {
            let stats = sim.network().receiver_stats(flow.0 as u32).unwrap();
            assert!(stats.arrived > 20, "{stats:?}");
            assert_eq!(stats.overtaken, 0, "{source:?}");
        }
        assert_eq!(paths.len() > flows.len(), moves, "{paths:?}");
    }
}

#[test]
fn a_worse_priority_is_taken_at_once_and_a_better_one_at_a_flowlet() {
    let mut sim = sim(1, HostsConfig::default());
    let source = "(hook send) (def (p 5)) (when true (:= Priority p))";
    let hosts = sim.hosts().unwrap();
    hosts.install(A, &program(source)).unwrap();
    hosts.set_first(A, &[]).unwrap();
    let id = sim.add_flow(&flow(Source::Bulk, 1, 80)).unwrap();
    sim.step_until(5000);
    assert_eq!(sim.hosts().unwrap().steering(id), Some((5, 0)));
    for (wanted, has) in [(7, 7), (2, 7)] {
        let hosts = sim.hosts().unwrap();
        hosts.heartbeat();
        hosts.update(id, &[(Field::Reg(0), wanted)]).unwrap();
        let until_us = sim.now_us() + 5000;
        sim.step_until(until_us);
        assert_eq!(sim.hosts().unwrap().steering(id).unwrap().0, has);
    }
    // No packet of it is in flight when it begins again.
    let chunks = sim.add_flow(&flow(Source::Chunks { bytes: 100, every_us: 1000 }, 1, 81)).unwrap();
    for wanted in [6, 1] {
        let until_us = sim.now_us() + 2500;
        sim.step_until(until_us);
        sim.hosts().unwrap().update(chunks, &[(Field::Reg(0), wanted)]).unwrap();
        sim.step_until(until_us + 2500);
        assert_eq!(sim.hosts().unwrap().steering(chunks).unwrap().0, wanted as u8);
    }
}

#[test]
fn commands_are_refused_and_flows_go_native_as_the_contract_says() {
    let mut sim = sim(1, HostsConfig { heartbeat_timeout_us: 10_000, ..HostsConfig::default() });
    let send = program("(hook send) (def (p 4)) (when true (:= Priority p))");
    let connect = program("(hook connect) (def (p 4)) (when true (:= Priority p))");
    let hosts = sim.hosts().unwrap();
    let on_acks = hosts.install(A, &program("(def (w 1448)) (when true (:= Cwnd w))"));
    assert_eq!(on_acks, Err(DatapathError::Unsupported { feature: "(hook ack)".to_owned() }));
    assert_eq!(hosts.set_first(A, &[]), Err(DatapathError::NoProgram(A)));
    hosts.install(A, &send).unwrap();
    hosts.install(B, &connect).unwrap();
    let bad = Field::Reg(9);
    assert_eq!(hosts.set_first(A, &[(bad, 1)]), Err(DatapathError::BadField(bad)));
    hosts.set_first(B, &[]).unwrap();
    assert_eq!(hosts.remove(B), Err(DatapathError::ProgramInUse { uid: B, flows: 1 }));
    let id = sim.add_flow(&flow(Source::Bulk, 1, 80)).unwrap();
    assert_eq!(sim.hosts().unwrap().set_program(id, A, &[]), Err(DatapathError::NoFlow(id)), "not started");
    sim.step_until(1000);
    let hosts = sim.hosts().unwrap();
    assert_eq!((hosts.steering(id), hosts.flows()[0].mode), (Some((4, 0)), Mode::NativeNoProgram));
    assert!(matches!(hosts.set_program(id, B, &[]), Err(DatapathError::Refused { at: None, .. })));
    hosts.set_program(id, A, &[(Field::Reg(0), 6)]).unwrap();
    sim.step_until(2000);
    let hosts = sim.hosts().unwrap();
    assert_eq!((hosts.steering(id), hosts.flows()[0].mode), (Some((6, 0)), Mode::Program));
    assert_eq!(hosts.flows()[0].program, Some(A));
    // The agent falls silent: what it says then counts when it is back.
    sim.step_until(20_000);
    let hosts = sim.hosts().unwrap();
    assert_eq!(hosts.flows()[0].mode, Mode::NativeAgentSilent);
    hosts.update(id, &[(Field::Reg(0), 7)]).unwrap();
    sim.step_until(21_000);
    assert_eq!(sim.hosts().unwrap().steering(id), Some((6, 0)));
    sim.hosts().unwrap().heartbeat();
    sim.step_until(22_000);
    assert_eq!(sim.hosts().unwrap().steering(id), Some((7, 0)));
    let hosts = sim.hosts().unwrap();
    hosts.release(id).unwrap();
    assert_eq!(hosts.flows()[0].mode, Mode::NativeNoProgram);
    hosts.clear_first(ccplane_program::ir::Hook::Connect);
    hosts.remove(B).unwrap();
    hosts.remove(A).unwrap();
}

#[test]
fn an_agent_hears_of_a_packet_its_latency_later() {
    let mut sim = sim(1, HostsConfig { agent_latency_us: 60, ..HostsConfig::default() });
    sim.add_flow(&FlowConfig { start_us: 100, ..flow(Source::Bytes(MSS), 1, 80) }).unwrap();
    assert!(sim.step_to_packet_event(10_000));
    assert_eq!(sim.now_us(), 160);
}

#[test]
fn without_programs_flows_take_the_path_of_their_hash() {
    let mut sim = sim(3, HostsConfig::default());
    let flows: Vec<FlowId> =
        (0..300).map(|port| sim.add_flow(&flow(Source::Bytes(9 * MSS), 3, 5000 + port)).unwrap()).collect();
    sim.step_until(10);
    let mut counts = [0; 3];
    for flow in &flows {
        let (priority, path) = sim.hosts().unwrap().steering(*flow).unwrap();
        assert_eq!(priority, 0);
        counts[usize::from(path)] += 1;
    }
    assert!(counts.iter().all(|count| (70..130).contains(count)), "{counts:?}");
}
