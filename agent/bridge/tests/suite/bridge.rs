//! The state machine between the core and portus, message by message.

use crate::common::{DP, Got, MAX_FLOWS, PROGRAM, World, control};
use ccplane_contract::{DatapathError, FlowId};
use ccplane_core::{HostReason, MAX_HOSTED_PROGRAMS};
use ccplane_program::ir::{INFINITY, MAX_CWND_BYTES};
use ccplane_wire::v1::Field;

fn create(sid: u32) -> Got {
    let remote = "192.0.2.7:443".to_owned();
    Got::Create { sid, cwnd_bytes: 14_000, mss_bytes: 1400, remote, asks: None }
}

/// A world with one flow, sid 1, that runs program 1.
fn steered() -> World {
    let mut world = World::new();
    world.arrive();
    world.install(1, PROGRAM);
    world.start(1, "192.0.2.7:443");
    assert_eq!(world.turn(), [create(1)]);
    world.change(1, 1, &[]);
    assert_eq!(world.native(1), None);
    world.calls();
    world
}

#[test]
fn a_flow_is_steered_from_create_to_close() {
    let mut world = World::new();
    assert_eq!(world.arrive(), [Got::Ready]);
    assert!(world.install(1, PROGRAM).is_empty());
    world.start(1, "192.0.2.7:443");
    assert_eq!(world.turn(), [create(1)]);
    assert_eq!(world.native(1).unwrap(), "portus has set no program yet");

    world.change(1, 1, &[(control(1), 5), (Field::Cwnd, 28_000)]);
    // Two report registers come before the control registers.
    assert_eq!(world.calls(), ["set 1 [(Reg(3), 5), (Cwnd, 28000)]"]);
    assert_eq!(world.core.flow(DP, FlowId(1)).unwrap().program().unwrap().name(), "portus-1");
    world.fake.report(FlowId(1), 1, &[1400, INFINITY]);
    world.fake.report(FlowId(1), 2, &[-1, 2]);
    let measure = |values: &[u64]| Got::Measure { sid: 1, program: 1, values: values.to_vec() };
    assert_eq!(world.turn(), [measure(&[1400, u64::from(u32::MAX)]), measure(&[0, 2])]);
    world.update(1, &[(Field::Rate, 1_000_000)]);
    assert_eq!(world.calls(), ["update 1 [(Rate, 1000000)]"]);

    world.fake.end(FlowId(1));
    assert_eq!(world.turn(), [Got::Close { sid: 1 }]);
    world.update(1, &[(Field::Rate, 1)]);
    assert_eq!((world.calls(), world.bridge.counters().malformed), (vec![], 1));
}

/// CREATE carries the congestion control that a flow's owner asked for, when it starts and when portus comes again.
#[test]
fn portus_is_told_what_a_flow_asks_for() {
    let asks = |received: Vec<Got>| -> Vec<Option<String>> {
        let created = received.into_iter().filter_map(|message| match message {
            Got::Create { asks, .. } => Some(asks),
            _ => None,
        });
        created.collect()
    };
    let mut world = World::new();
    world.arrive();
    let longest = "x".repeat(63);
    let asked = [Some("cubic"), Some(longest.as_str()), None, Some("")];
    for (flow, name) in (1..).zip(asked) {
        world.start(flow, "192.0.2.7:443").requested = name.map(str::to_owned);
        let name = name.filter(|name| !name.is_empty()).map(str::to_owned);
        assert_eq!(asks(world.turn()), [name]);
    }
    // What the protocol has no room for is left out; the flow is portus's all the same.
    world.start(5, "192.0.2.7:443").requested = Some("x".repeat(64));
    assert_eq!(asks(world.turn()), [None]);
    let reason = HostReason::Silent { algorithm: "portus", for_ms: 1 };
    world.bridge.leave(&mut world.core, reason);
    let again = asks(world.arrive());
    assert_eq!(again, [Some("cubic".to_owned()), Some(longest), None, None, None]);
}

#[test]
fn values_are_kept_within_what_datapaths_take() {
    let mut world = steered();
    // As in libccp, a window and a rate of 0 are none.
    world.update(1, &[(Field::Cwnd, 0), (Field::Rate, 0)]);
    assert_eq!(world.calls(), [""; 0]);
    world.update(1, &[(Field::Cwnd, u64::MAX), (control(0), u64::from(u32::MAX)), (control(1), u64::MAX)]);
    let set = format!("update 1 [(Cwnd, {MAX_CWND_BYTES}), (Reg(2), {INFINITY}), (Reg(3), {})]", i64::MAX);
    assert_eq!(world.calls(), [set]);
    // The program has two control registers; what else is asked for is done.
    world.update(1, &[(control(2), 1), (Field::Cwnd, 2800)]);
    assert_eq!(world.calls(), ["update 1 [(Cwnd, 2800)]"]);
    assert_eq!(world.core.counters().refused_commands, 0);
}

#[test]
fn a_portus_that_is_gone_leaves_its_flows_native_and_gets_them_back() {
    let mut world = steered();
    let why = "nobody listens at /tmp/ccp/portus".into();
    world.bridge.leave(&mut world.core, HostReason::Unreachable { algorithm: "portus", why });
    assert!(world.turn().is_empty());
    let reason = "portus cannot be reached: nobody listens at /tmp/ccp/portus";
    assert_eq!((world.native(1).as_deref(), world.fake.flows[&FlowId(1)].program), (Some(reason), None));
    world.start(2, "192.0.2.7:443");
    assert!(world.turn().is_empty());
    assert_eq!(world.native(2).as_deref(), Some(reason));

    // It is told of both, under new numbers, with the window that they have now.
    let again = |sid| Got::Create {
        sid,
        cwnd_bytes: 25 * 1400,
        mss_bytes: 1400,
        remote: "192.0.2.7:443".into(),
        asks: None,
    };
    assert_eq!(world.arrive(), [Got::Ready, again(2), again(3)]);
    let installed = world.fake.programs.iter().count();
    world.install(1, PROGRAM);
    assert_eq!(world.fake.programs.iter().count(), installed, "the same program is installed once");
    world.change(2, 1, &[]);
    world.change(1, 1, &[]);
    assert_eq!(world.native(1), None);
    assert_eq!(world.native(2).unwrap(), "portus has set no program yet");
}

#[test]
fn programs_that_cannot_run_leave_their_flows_native_with_the_reason() {
    let mut world = steered();
    world.change(1, 9, &[]);
    assert_eq!(world.native(1).unwrap(), "portus's program 9 is refused: it was not installed");
    // An instruction that reads a temporary that was never written.
    let mut bytes = Vec::new();
    let stock = crate::common::stock(PROGRAM);
    let code = ccplane_wire::v1::Bytecode::try_from(&stock).unwrap();
    let install = ccplane_wire::v1::Install { sid: 0, program_uid: 4, code };
    ccplane_wire::v1::ToDatapath::Install(install).encode(&mut bytes).unwrap();
    let last = bytes.len() - 16;
    bytes[last + 11] = 7;
    bytes[last + 12] = 5;
    world.bridge.datagram(&mut world.core, &bytes);
    world.change(1, 4, &[]);
    let reason = world.native(1).unwrap();
    assert!(reason.starts_with("portus's program 4 is refused: instruction "), "{reason}");
    assert_eq!(world.bridge.counters().refused_installs, 1);

    world.change(1, 1, &[]);
    assert_eq!(world.native(1), None);
    // The datapath refuses a program that was lifted.
    world.fake.refused = Some(DatapathError::Refused { at: Some(7), reason: "too long a day".to_owned() });
    world.install(5, "(def (Report (a 3))) (when true (report))");
    world.change(1, 5, &[]);
    let reason = world.native(1).unwrap();
    assert_eq!(
        reason,
        "portus's program 5 is refused: refused by the datapath at instruction 7: too long a day"
    );
    world.change(1, 1, &[]);
    assert_eq!(world.native(1), None);
}

#[test]
fn flows_beyond_the_limit_stay_native() {
    let mut world = World::new();
    world.arrive();
    for flow in 1..=MAX_FLOWS as u64 + 1 {
        world.start(flow, "[2001:db8::1]:443");
    }
    let received = world.turn();
    assert_eq!(received.len(), MAX_FLOWS);
    // IPv6 addresses are shown as numbers of a prefix that no host has.
    let Got::Create { remote, .. } = &received[0] else { panic!("{received:?}") };
    assert!(remote.starts_with("24") || remote.starts_with("25"), "{remote}");
    let reason = format!("portus has {MAX_FLOWS} flows, the most it is given");
    assert_eq!(world.native(MAX_FLOWS as u64 + 1).unwrap(), reason);
}

#[test]
fn programs_of_earlier_portuses_make_room() {
    let mut world = steered();
    for n in 0..3 * MAX_HOSTED_PROGRAMS {
        world.arrive();
        world.install(1, &format!("(def (Report (a {n}))) (when true (report))"));
        let sid = *world.open.first().unwrap();
        world.change(sid, 1, &[]);
        assert_eq!(world.native(1), None, "program {n}");
        assert!(world.fake.programs.iter().count() <= MAX_HOSTED_PROGRAMS, "program {n}");
    }
}

#[test]
fn reports_that_portus_does_not_read_are_dropped_and_its_flows_ends_are_not() {
    let mut world = steered();
    for seq in 1..=1000 {
        world.fake.report(FlowId(1), seq, &[1, 1]);
    }
    world.fake.end(FlowId(1));
    let received = world.turn();
    let counters = world.bridge.counters();
    assert!(counters.dropped_reports > 0 && counters.reports + counters.dropped_reports == 1000);
    assert_eq!(received.len() as u64, counters.reports + 1);
    assert_eq!(received.last(), Some(&Got::Close { sid: 1 }));
}
