//! Decisions about packets: the contract's rules, a flow's start, a silent agent, and what hosts remember.

use crate::common::{MS, drain, info, manual};
use ccplane_contract::suite::conform_packets;
use ccplane_contract::{
    Datapath, DatapathError, Event, Field, FlowInfo, Mode, ON_ACKS, ON_PACKETS, ProgramUid,
};
use ccplane_engine::packets::{HostMemory, Outbound, PacketFlowEngine, PathSample, Steering};
use ccplane_engine::{EngineConfig, EngineExecutor, Handle, PacketsConfig};
use ccplane_program::ir::Hook;

const SEND: ProgramUid = ProgramUid(1);
const CONNECT: ProgramUid = ProgramUid(2);
const TIMEOUT_US: u64 = 500 * MS;
const FLOWLET_US: u64 = 500;
const CONFIG: EngineConfig = EngineConfig {
    heartbeat_timeout_us: TIMEOUT_US,
    packets: Some(PacketsConfig { flowlet_us: FLOWLET_US, path_memory_us: 1000 * MS }),
    ..EngineConfig::new("test")
};

/// Installs a program, and returns its register `p`, if it has one.
fn install(handle: &mut Handle, uid: ProgramUid, source: &str) -> Option<Field> {
    let program = ccplane_program::compile(source).unwrap();
    handle.install(uid, &program).unwrap();
    program.reg("p").map(Field::Reg)
}

/// Sends a packet of 1000 bytes with this much in flight, and returns its priority.
fn send(
    flow: &mut PacketFlowEngine,
    memory: &mut HostMemory,
    now_us: u64,
    bytes_in_flight: u64,
) -> Option<u8> {
    let packet = Outbound {
        now_ns: now_us * 1000,
        payload_bytes: 1000,
        bytes_sent: flow.bytes_sent(),
        new_bytes: 1000,
        bytes_in_flight,
        ..Outbound::default()
    };
    flow.on_packet(&packet, memory).map(|steering| steering.priority)
}

fn reports(handle: &mut Handle) -> Vec<Vec<i64>> {
    let values = |event| match event {
        Event::Report { values, .. } => Some(values.into_vec()),
        _ => None,
    };
    drain(handle).into_iter().filter_map(values).collect()
}

#[test]
fn packets_get_what_the_rules_say() {
    let result = conform_packets(&mut EngineExecutor, 2000, 1);
    assert!(result.failed.is_empty(), "{result}");
    assert_eq!(result.passed.len(), 2000);
}

#[test]
fn an_engine_runs_programs_of_its_own_hooks_alone() {
    let (_, mut on_acks, _) = manual(EngineConfig { packets: None, ..CONFIG });
    let (_, mut on_packets, _) = manual(CONFIG);
    assert_eq!((on_acks.capabilities().hooks, on_packets.capabilities().hooks), (ON_ACKS, ON_PACKETS));
    let ack = ccplane_program::compile("(def (x 1)) (when true (:= Cwnd x))").unwrap();
    let sends = ccplane_program::compile("(hook send) (def (x 1)) (when true (:= Priority x))").unwrap();
    on_acks.install(SEND, &ack).unwrap();
    on_packets.install(SEND, &sends).unwrap();
    for refused in [on_acks.install(CONNECT, &sends), on_packets.install(CONNECT, &ack)] {
        assert!(matches!(refused, Err(DatapathError::Unsupported { .. })), "{refused:?}");
    }
    assert!(matches!(on_acks.set_first(SEND, &[]), Err(DatapathError::Unsupported { .. })));
    on_packets.set_first(SEND, &[]).unwrap();
    assert_eq!(on_packets.remove(SEND), Err(DatapathError::ProgramInUse { uid: SEND, flows: 1 }));
    on_packets.clear_first(Hook::Send);
    on_packets.remove(SEND).unwrap();
}

#[test]
fn what_a_flow_starts_with_holds_until_a_send_program_decides() {
    let (engine, mut handle, _) = manual(CONFIG);
    let mut memory = engine.host_memory();
    let at_start = install(
        &mut handle,
        CONNECT,
        "(hook connect) (def (Report (port 0)) (p 0))
         (when true (:= Report.port Flow.remote_port) (:= Priority p) (report))",
    );
    let of_packets = install(&mut handle, SEND, "(hook send) (def (p 6)) (when true (:= Priority p))");
    handle.set_first(CONNECT, &[(at_start.unwrap(), 4)]).unwrap();

    let mut flow = engine.packet_flow(info(), 1, &mut memory, 0);
    assert_eq!(flow.steering(), Some(Steering { priority: 4, path: 0 }));
    assert_eq!(reports(&mut handle), [[5001]]);
    assert_eq!(send(&mut flow, &mut memory, 10, 0), Some(4));
    assert_eq!(handle.flows()[0].mode, Mode::NativeNoProgram);
    let refused = handle.set_program(flow.id(), CONNECT, &[]);
    assert!(matches!(refused, Err(DatapathError::Refused { at: None, .. })), "{refused:?}");

    handle.set_program(flow.id(), SEND, &[]).unwrap();
    assert_eq!(handle.ensure_program(flow.id(), SEND, &[]), Ok(false));
    assert_eq!(send(&mut flow, &mut memory, 20, 1000), Some(6), "served later at once");
    assert_eq!(handle.flows()[0].mode, Mode::Program);
    handle.update(flow.id(), &[(of_packets.unwrap(), 2)]).unwrap();
    assert_eq!(send(&mut flow, &mut memory, 30, 1000), Some(6), "no packet overtakes another");
    assert_eq!(send(&mut flow, &mut memory, 31 + FLOWLET_US, 1000), Some(2), "a flowlet begins");
    handle.release(flow.id()).unwrap();
    assert_eq!(send(&mut flow, &mut memory, 40 + FLOWLET_US, 0), None, "nobody decides");
    assert_eq!(handle.flows()[0].mode, Mode::NativeNoProgram);
}

#[test]
fn flows_start_with_the_first_program_and_are_left_alone_while_the_agent_is_silent() {
    let (engine, mut handle, clock) = manual(CONFIG);
    let mut memory = engine.host_memory();
    install(&mut handle, SEND, "(hook send) (def (p 3)) (when true (:= Priority p) (:= DecideAt 1))");
    handle.set_first(SEND, &[]).unwrap();
    let mut flow = engine.packet_flow(info(), 1, &mut memory, 0);
    assert_eq!(flow.steering(), None, "no packet was a decision");
    assert_eq!(handle.ensure_program(flow.id(), SEND, &[]), Ok(false), "it starts with it");
    assert_eq!(send(&mut flow, &mut memory, 10, 0), Some(3));

    let silent_us = TIMEOUT_US + 1;
    assert_eq!(send(&mut flow, &mut memory, silent_us, 0), None);
    assert_eq!(handle.flows()[0].mode, Mode::NativeAgentSilent);
    let mut unled = engine.packet_flow(info(), 1, &mut memory, silent_us);
    assert_eq!(send(&mut unled, &mut memory, silent_us, 0), None);
    clock.store(silent_us, std::sync::atomic::Ordering::Relaxed);
    handle.heartbeat();
    assert_eq!(send(&mut flow, &mut memory, silent_us + 10, 0), Some(3));
    assert_eq!(send(&mut unled, &mut memory, silent_us + 10, 0), None, "it started without a program");
}

/// A flow of so many packets from this port, one each 10 us from `now_us` on.
fn whole(engine: &ccplane_engine::Engine, memory: &mut HostMemory, (port, packets): (u16, u64), now_us: u64) {
    let mut info: FlowInfo = info();
    info.remote.set_port(port);
    let mut flow = engine.packet_flow(info, 1, memory, now_us);
    for n in 0..packets {
        send(&mut flow, memory, now_us + 10 * n, 0);
    }
    flow.end((now_us + 10 * packets) * 1000, memory);
}

const PAST: &str = "(hook connect) (def (Report (flows 0) (gap 0) (s1 0) (s2 0)))
    (when true (:= Report.flows Peer.flows) (:= Report.gap Peer.gap_us)
        (:= Report.s1 Peer.size_1) (:= Report.s2 Peer.size_2) (report))";

#[test]
fn a_flow_knows_the_last_ones_of_its_application_and_destination() {
    let (engine, mut handle, _) = manual(CONFIG);
    install(&mut handle, CONNECT, PAST);
    handle.set_first(CONNECT, &[]).unwrap();
    let mut memory = HostMemory::new(2, 2, MS);
    for (n, (port, packets)) in [(80, 3), (80, 5), (81, 7), (80, 9)].into_iter().enumerate() {
        whole(&engine, &mut memory, (port, packets), 1000 * n as u64);
    }
    let of_80 = [[0, 0, 0, 0], [1, 1000, 3000, 0], [2, 2000, 5000, 3000]];
    assert_eq!(reports(&mut handle), [of_80[0], of_80[1], [0; 4], of_80[2]]);
    // A third application: the one of which no flow has started for longest is forgotten.
    for (port, at_us) in [(82, 4000), (80, 5000), (81, 6000)] {
        whole(&engine, &mut memory, (port, 1), at_us);
    }
    assert_eq!(reports(&mut handle), [[0; 4], [3, 2000, 9000, 5000], [0; 4]]);
}

const PATH: &str = "(hook send) (def (Report (count 0) (rtt 0) (lost 0) (marked 0) (flight 0)))
    (when true (:= Report.count Path.count) (:= Report.rtt Path0.rtt_us) (:= Report.lost Path0.lost)
        (:= Report.marked Path0.marked) (:= Report.flight Path0.bytes_in_flight) (:= DecideAt 1) (report))";

#[test]
fn flows_to_one_network_measure_its_path_together() {
    let (engine, mut handle, _) = manual(EngineConfig { heartbeat_timeout_us: u64::MAX, ..CONFIG });
    install(&mut handle, SEND, PATH);
    handle.set_first(SEND, &[]).unwrap();
    let mut memory = engine.host_memory();
    let mut first = engine.packet_flow(info(), 1, &mut memory, 0);
    let sample = PathSample { rtt_us: Some(800), packets: 32, marked: 16, lost: 0 };
    first.on_sample(1000, 32, sample, &mut memory);
    first.set_in_flight(5000, &mut memory);
    let mut second = engine.packet_flow(info(), 1, &mut memory, 1000);
    second.set_in_flight(700, &mut memory);
    send(&mut second, &mut memory, 1100, 700);
    let half = 1 << 15;
    assert_eq!(reports(&mut handle), [[1, 800, half, half / 2, 5700]]);
    first.end(1_200_000, &mut memory);
    assert_eq!(reports(&mut handle).len(), 1, "its last packet is a decision");
    // Measurements are known for a second.
    send(&mut second, &mut memory, 1_002_000, 700);
    assert_eq!(reports(&mut handle), [[1, 0, 0, 0, 700]]);
    let id = second.id();
    drop(second);
    assert_eq!(drain(&mut handle), [Event::Closed { flow: id }]);
}
