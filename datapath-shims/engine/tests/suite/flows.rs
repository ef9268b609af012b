//! One engine, one thread: bounds, the native algorithm, what is said of a flow and when.

use crate::common::link::Link;
use crate::common::{MS, MSS, PROGRAM, S, ack, acks, created, drain, fields, info, install, manual, steered};
use ccplane_algs::{Aurora, RENO};
use ccplane_contract::{Datapath, DatapathError, Event, Field, FlowId, Mode, ProgramUid, SnapshotUid};
use ccplane_engine::native::MAX_CWND_PACKETS;
use ccplane_engine::{Ack, EngineConfig, FlowEngine, Handle, SendLimits};
use ccplane_program::ir::{MAX_RATE_BYTES_PER_S, Prim};

/// Its agent is never silent.
const CONFIG: EngineConfig = EngineConfig { heartbeat_timeout_us: u64::MAX, ..EngineConfig::new("test") };

fn silent() -> EngineConfig {
    EngineConfig { heartbeat_timeout_us: 500 * MS, ..CONFIG }
}

/// A program that sets nothing.
fn idle(handle: &mut Handle) -> ProgramUid {
    let uid = ProgramUid(7);
    let program = ccplane_program::compile("(def (Report (x 0)) (y 0)) (when true (:= Report.x y))").unwrap();
    handle.install(uid, &program).unwrap();
    uid
}

fn packets(limits: SendLimits) -> u64 {
    limits.cwnd_bytes / MSS
}

fn mode(handle: &mut Handle) -> Mode {
    handle.flows()[0].mode
}

#[test]
fn further_flows_are_native_and_unannounced() {
    let (engine, mut handle, _) = manual(EngineConfig { max_flows: 2, ..CONFIG });
    let mut flows: Vec<FlowEngine> = (0..3).map(|_| engine.flow(info(), 0)).collect();
    let announced = created(&drain(&mut handle));
    assert_eq!(announced, [flows[0].id(), flows[1].id()]);
    let unknown = flows[2].id();
    let program = idle(&mut handle);
    assert_eq!(handle.set_program(unknown, program, &[]), Err(DatapathError::NoFlow(unknown)));
    assert_eq!(handle.flows().len(), 2);
    assert_eq!(packets(flows[2].on_ack(&ack(0, 100))), 12, "slow start");
    // The end of one that nobody heard of makes no room, the end of another does.
    drop(flows.pop());
    assert_eq!(drain(&mut handle), []);
    drop(flows.pop());
    assert_eq!(drain(&mut handle), [Event::Closed { flow: announced[1] }]);
    let fourth = engine.flow(info(), 0);
    assert_eq!(created(&drain(&mut handle)), [fourth.id()]);
    assert!(fourth.id() > unknown, "names are never used again");
}

#[test]
fn a_flow_is_created_before_it_reports_and_closed_after() {
    let (engine, mut handle, _) = manual(CONFIG);
    let mut flow = steered(&engine, &mut handle, &RENO);
    acks(&mut flow, 0..1000, 1000);
    let id = flow.id();
    drop(flow);
    let events = drain(&mut handle);
    assert!(matches!(&events[0], Event::Created { flow, .. } if *flow == id));
    assert_eq!(events.last(), Some(&Event::Closed { flow: id }));
    let between = &events[1..events.len() - 1];
    assert!(between.len() > 10 && between.iter().all(|e| matches!(e, Event::Report { .. })));
    assert_eq!(handle.update(id, &[]), Err(DatapathError::NoFlow(id)));
}

#[test]
fn what_is_applied_is_bounded_and_what_is_read_is_not() {
    let (engine, mut handle, _) = manual(CONFIG);
    let uid = idle(&mut handle);
    let mut flow = engine.flow(info(), 0);
    handle.set_program(flow.id(), uid, &[(Field::Cwnd, 1), (Field::Rate, 0)]).unwrap();
    assert_eq!(flow.on_ack(&ack(0, 100)), SendLimits { cwnd_bytes: MSS, rate: 0 });
    handle.update(flow.id(), &[(Field::Cwnd, i64::MAX), (Field::Rate, i64::MAX)]).unwrap();
    let most = SendLimits { cwnd_bytes: MAX_CWND_PACKETS * MSS, rate: MAX_RATE_BYTES_PER_S as u64 };
    assert_eq!(flow.on_ack(&ack(1, 100)), most);
    handle.update(flow.id(), &[(Field::Cwnd, 50_000), (Field::Rate, 7)]).unwrap();
    assert_eq!(flow.on_ack(&ack(2, 100)), SendLimits { cwnd_bytes: 50_000, rate: 7 });
    flow.set_mss(60_000);
    assert_eq!(flow.limits(), SendLimits { cwnd_bytes: 60_000, rate: 7 }, "a segment has become larger");
    handle.release(flow.id()).unwrap();
    assert_eq!(flow.on_ack(&ack(3, 100)).rate, 0, "the native algorithm sets no rate");
}

#[test]
fn programs_know_the_segment_size_of_now() {
    let (engine, mut handle, _) = manual(CONFIG);
    let source = "(def (Report (size 0)) (mss 1448)) (when true (:= Report.size mss) (:= Cwnd (* mss 10)))";
    let program = ccplane_program::compile(source).unwrap();
    let (first, second) = (ProgramUid(1), ProgramUid(2));
    handle.install(first, &program).unwrap();
    handle.install(second, &program).unwrap();
    let at_start = [(Field::Reg(program.reg("mss").unwrap()), MSS as i64)];
    let mut flow = engine.flow(info(), 0);
    let mut n = 0;
    let mut cwnd = |flow: &mut ccplane_engine::FlowEngine| {
        n += 1;
        flow.on_ack(&ack(n, 100)).cwnd_bytes
    };
    handle.set_program(flow.id(), first, &at_start).unwrap();
    assert_eq!(cwnd(&mut flow), 10 * MSS);
    flow.set_mss(9000);
    assert_eq!(cwnd(&mut flow), 90_000, "it grew");
    flow.set_mss(1200);
    assert_eq!(cwnd(&mut flow), 12_000, "it shrank");
    handle.set_program(flow.id(), second, &at_start).unwrap();
    assert_eq!(cwnd(&mut flow), 12_000, "the agent knows that of the start");
    handle.update(flow.id(), &[(Field::Reg(program.reg("mss").unwrap()), 700)]).unwrap();
    assert_eq!(cwnd(&mut flow), 7000);
    flow.set_mss(1448);
    assert_eq!(cwnd(&mut flow), 7000, "what is not the segment size is left alone");
}

/// At `at_us`, with so many packets delivered and lost.
fn event(at_us: u64, packets: u64, lost: i64, change: impl FnOnce(&mut Ack)) -> Ack {
    let mut ack = ack(0, 1);
    ack.packets = packets;
    ack.prims.set(Prim::AckNow, at_us as i64);
    ack.prims.set(Prim::FlowPacketsInFlight, 40 - packets as i64 - lost);
    ack.prims.set(Prim::AckLostPktsSample, lost);
    ack.sampled.srtt_us = 20_000;
    change(&mut ack);
    ack
}

#[test]
fn without_a_program_it_is_reno() {
    let (engine, _handle, _) = manual(CONFIG);
    let mut flow = engine.flow(info(), 0);
    let mut at =
        |us, delivered, lost, change: fn(&mut Ack)| packets(flow.on_ack(&event(us, delivered, lost, change)));
    assert_eq!(at(1, 30, 0, |_| ()), 40, "slow start");
    assert_eq!(at(2, 30, 0, |a| a.window_limited = false), 40, "not where the application is slow");
    assert_eq!(at(3, 1, 3, |a| a.new_loss_episode = true), 20, "half of what was in flight");
    assert_eq!(at(4, 1, 3, |_| ()), 20, "once for each episode");
    assert_eq!(at(5, 40, 0, |_| ()), 20, "no growth within a round trip");
    let marked: fn(&mut Ack) = |a| {
        a.prims.set(Prim::AckEcnPackets, 1);
    };
    assert_eq!(at(6, 1, 0, marked), 20, "nor another cut for a mark");
    assert_eq!(at(30_000, 20, 0, |_| ()), 21, "a packet a round trip");
    assert_eq!(at(30_001, 1, 0, marked), 10, "a mark is a loss");
    assert_eq!(at(60_000, 1, 30, |a| a.timeout = true), 1, "it starts over");
    assert_eq!(at(60_001, 4, 0, |_| ()), 5, "in slow start, at once, up to half of before");
    assert_eq!(at(60_002, 4, 0, |_| ()), 5, "then a packet a round trip");
    assert_eq!(packets(flow.on_timeout(5)), 1);
    assert_eq!(packets(flow.on_ack(&event(70_000, 1, 4, |a| a.timeout = true))), 2, "answered already");
    assert_eq!(packets(flow.on_ack(&event(80_000, 1, 1, |a| a.timeout = true))), 1, "another one");
}

#[test]
fn the_native_algorithm_fills_a_link() {
    let mut link = Link::new(CONFIG);
    link.start();
    link.pass(10 * S);
    let before = link.handle.flows()[0].clone();
    link.pass(10 * S);
    let after = link.handle.flows()[0].clone();
    // 12 Mb/s, of which 1448 bytes a segment.
    let share = (after.transport.bytes_acked - before.transport.bytes_acked) * 8 / 120;
    assert!((940_000..=1_001_000).contains(&share), "{share} millionths");
    assert!(after.transport.lost > before.transport.lost && after.mode == Mode::NativeNoProgram, "{after:?}");
}

#[test]
fn a_silent_agents_flow_goes_on_from_its_window_and_comes_back_to_it() {
    let (engine, mut handle, clock) = manual(silent());
    let uid = idle(&mut handle);
    let mut flow = engine.flow(info(), 0);
    handle
        .set_program(flow.id(), uid, &[(Field::Cwnd, 20 * MSS as i64 + 5), (Field::Rate, 1_000_000)])
        .unwrap();
    let at = |flow: &mut FlowEngine, us| flow.on_ack(&event(us, 1, 0, |_| ()));
    assert_eq!(at(&mut flow, 500_000), SendLimits { cwnd_bytes: 20 * MSS + 5, rate: 1_000_000 });
    assert_eq!(mode(&mut handle), Mode::Program);
    assert_eq!(at(&mut flow, 500_001), SendLimits { cwnd_bytes: 20 * MSS, rate: 0 });
    assert_eq!(mode(&mut handle), Mode::NativeAgentSilent, "a change of mode is seen at once");
    // What is staged meanwhile waits, a program that was never started included.
    handle.update(flow.id(), &[(Field::Rate, 5)]).unwrap();
    for n in 0..19 {
        at(&mut flow, 510_000 + n);
    }
    assert_eq!(flow.limits(), SendLimits { cwnd_bytes: 21 * MSS, rate: 0 }, "it grows");
    clock.store(600_000, std::sync::atomic::Ordering::Relaxed);
    handle.heartbeat();
    assert_eq!(at(&mut flow, 600_001), SendLimits { cwnd_bytes: 21 * MSS, rate: 5 });
    assert_eq!(mode(&mut handle), Mode::Program);
    assert_eq!(flow.last_decision().program, Some(uid));
}

#[test]
fn a_program_set_in_silence_starts_when_the_agent_is_back() {
    let (engine, mut handle, clock) = manual(silent());
    let uid = idle(&mut handle);
    let mut flow = engine.flow(info(), 0);
    flow.on_ack(&event(600_000, 1, 0, |_| ()));
    assert_eq!(mode(&mut handle), Mode::NativeNoProgram);
    handle.set_program(flow.id(), uid, &[]).unwrap();
    assert!(handle.flows()[0].waits_for_ack());
    flow.on_ack(&event(600_001, 1, 0, |_| ()));
    assert_eq!(mode(&mut handle), Mode::NativeAgentSilent);
    clock.store(600_002, std::sync::atomic::Ordering::Relaxed);
    handle.heartbeat();
    flow.on_ack(&event(600_003, 1, 0, |_| ()));
    assert_eq!(mode(&mut handle), Mode::Program);
}

#[test]
fn a_program_is_in_use_until_it_is_replaced_or_released() {
    let (engine, mut handle, _) = manual(CONFIG);
    let (one, two) = (idle(&mut handle), ProgramUid(8));
    let program = ccplane_program::compile("(def (Report (x 0))) (when true (:= Report.x 1))").unwrap();
    handle.install(two, &program).unwrap();
    let mut flow = engine.flow(info(), 0);
    let in_use = |uid| Err(DatapathError::ProgramInUse { uid, flows: 1 });
    handle.set_program(flow.id(), one, &[]).unwrap();
    assert_eq!(handle.remove(one), in_use(one));
    flow.on_ack(&ack(0, 100));
    handle.set_program(flow.id(), two, &[]).unwrap();
    assert_eq!((handle.remove(one), handle.remove(two)), (in_use(one), in_use(two)), "one runs, two is next");
    flow.on_ack(&ack(1, 100));
    assert_eq!((handle.remove(one), handle.remove(two)), (Ok(()), in_use(two)));
    handle.release(flow.id()).unwrap();
    assert_eq!(handle.remove(two), Ok(()), "also if the flow sleeps");
    flow.on_ack(&ack(2, 100));
    assert_eq!(mode(&mut handle), Mode::NativeNoProgram);
}

#[test]
fn a_sample_is_a_millisecond_old_at_most_and_as_new_as_the_last_report() {
    let (engine, mut handle, _) = manual(CONFIG);
    let uid = idle(&mut handle);
    let echo = ccplane_program::compile("(def (Report (x 0))) (when (> Micros 2500) (:= Micros 0) (report))")
        .unwrap();
    handle.install(PROGRAM, &echo).unwrap();
    let mut flow = engine.flow(info(), 0);
    handle.set_program(flow.id(), uid, &[]).unwrap();
    for n in 0..100 {
        flow.on_ack(&ack(n, 100));
        let now_us = 1 + n * 100;
        let stats = &handle.flows()[0];
        assert_eq!(stats.sampled_at_us, 1 + (now_us - 1) / 1000 * 1000);
        assert_eq!(stats.transport.bytes_acked, 2 * MSS * (1 + (stats.sampled_at_us - 1) / 100));
    }
    handle.set_program(flow.id(), PROGRAM, &[]).unwrap();
    drain(&mut handle);
    let mut reports = 0;
    for n in 100..300 {
        flow.on_ack(&ack(n, 100));
        for event in drain(&mut handle) {
            let Event::Report { at_us, seq, .. } = event else { panic!("{event:?}") };
            let stats = &handle.flows()[0];
            assert_eq!((stats.sampled_at_us, stats.transport.reports), (at_us, seq.into()));
            reports += 1;
        }
    }
    assert!(reports > 5, "{reports}");
}

#[test]
fn a_policys_decisions_can_be_followed() {
    let (engine, mut handle, _) = manual(CONFIG);
    let aurora = Aurora::default();
    let program = install(&mut handle, &aurora);
    let mut flow = engine.flow(info(), 0);
    let before = flow.last_decision();
    assert_eq!((before.mode, before.program, before.slot), (Mode::NativeNoProgram, None, None));
    assert_eq!((before.snapshot, before.decisions), (None, 0));
    handle.set_program(flow.id(), PROGRAM, &fields(&aurora, &program)).unwrap();
    let (mut n, mut rows) = (0, Vec::new());
    while flow.last_decision().decisions < 100 {
        assert!(n < 1_000_000, "it decides");
        flow.on_ack(&ack(n, 100));
        n += 1;
        for event in drain(&mut handle) {
            if let Event::Report { values, .. } = event {
                rows.push(values);
            }
        }
    }
    let decided = flow.last_decision();
    let at = |name: &str| usize::from(program.reg(name).unwrap());
    let row = rows.last().unwrap();
    assert_eq!((decided.mode, decided.program), (Mode::Program, Some(PROGRAM)));
    assert_eq!((decided.slot, decided.snapshot), (Some(0), Some(SnapshotUid(1))));
    assert_eq!((decided.action_q16, 1), (row[at("Report.action")], row[at("Report.snapshot")]));
    let policy = handle.flows()[0].policy.unwrap();
    assert_eq!(policy.decisions, 100);
    assert!(flow.limits().rate > 0);
}

#[test]
fn ends_go_to_other_threads() {
    fn is_free<T: Send + Sync>() {}
    is_free::<FlowEngine>();
    is_free::<ccplane_engine::Engine>();
    fn is_sent<T: Send>() {}
    is_sent::<Handle>();
    assert_ne!(FlowId(1), FlowId(2));
}
