//! Flows under the module, from agent to agent and without one, and what it shows of them.

use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::Command;

use ccplane_contract::{Datapath, DatapathError, Event, Field, Mode, ProgramUid};
use ccplane_module::ModuleDatapath;
use ccplane_program::ir::Program;

use super::lab::{
    HEARTBEAT_TIMEOUT, Lab, LoadedModule, attach, connected, counted, created, report, stats, wait_for,
    wait_until,
};

const FIXED: ProgramUid = ProgramUid(1);

/// Holds the window and reports every 20 ms.
fn fixed() -> Program {
    ccplane_program::compile(
        "(def (Report (acks 0) (window 0)) (packets 20) (mss 1448))
         (when true
             (:= Report.acks (+ Report.acks 1))
             (:= Cwnd (* packets mss))
             (:= Report.window Cwnd)
             (fallthrough))
         (when (> Micros 20000) (report) (:= Micros 0))",
    )
    .unwrap()
}

#[test]
#[ignore = "runs in a machine that has the module"]
fn the_next_agent_takes_flows_over() {
    let lab = Lab::with("timeout=1500");
    let mut first = lab.attach();
    assert!(ModuleDatapath::open("/dev/ccplane".as_ref(), HEARTBEAT_TIMEOUT).is_err(), "it has an agent");
    first.install(FIXED, &fixed()).unwrap();
    let bulk = lab.flow();
    let flow = created(&mut first, &bulk);
    first.set_program(flow, FIXED, &[]).unwrap();
    report(&mut first, flow, FIXED);
    stats(&mut first, flow, |f| f.mode == Mode::Program && f.transport.snd_cwnd == 20);
    assert_eq!(first.remove(FIXED), Err(DatapathError::ProgramInUse { uid: FIXED, flows: 1 }));

    // As if it had been killed: it says nothing.
    drop(first);
    wait_until("the native algorithm", || counted("handovers_to_native") > 0);
    let mut second = attach();
    assert_eq!(created(&mut second, &bulk), flow);
    let native = stats(&mut second, flow, |f| f.transport.bytes_acked > 0);
    assert_eq!(native.program, None);
    second.install(FIXED, &fixed()).unwrap();
    let packets = Field::Reg(fixed().reg("packets").unwrap());
    second.set_program(flow, FIXED, &[(packets, 30)]).unwrap();
    let (_, values) = report(&mut second, flow, FIXED);
    assert_eq!(values[1], 30 * 1448);
    second.detach();
    let mut third = attach();
    stats(&mut third, flow, |f| f.mode == Mode::NativeNoProgram);
    drop(bulk);
    wait_for(&mut third, "Closed", |e| (*e == Event::Closed { flow }).then_some(()));
}

/// `ss` and the record of Vegas say what the program decided, also a rate beyond 32 bits.
#[test]
#[ignore = "runs in a machine that has the module"]
fn tools_show_what_a_program_decides() {
    const RATE: i64 = 750_000;
    const FAST: i64 = 1 << 33;
    let lab = Lab::new();
    let bulk = lab.flow();
    let mut datapath = lab.attach();
    let flow = created(&mut datapath, &bulk);
    assert_eq!(bulk.record().enabled, 0, "no program decides yet");
    datapath.install(FIXED, &fixed()).unwrap();
    datapath.set_program(flow, FIXED, &[(Field::Rate, RATE)]).unwrap();
    let mut shown = String::new();
    let wanted = [" ccplane ", " cwnd:20 ", &format!(" pacing_rate {}bps ", 8 * RATE)];
    wait_until("ss shows the program's window and rate", || {
        datapath.heartbeat();
        shown = lab.shown(&bulk);
        wanted.iter().all(|w| shown.contains(w))
    });
    let (seq, _) = report(&mut datapath, flow, FIXED);
    let mut record = bulk.record();
    // Between two looks a slow kernel may take longer than the agent may be silent.
    wait_until("the record says that a program decides", || {
        datapath.heartbeat();
        record = bulk.record();
        record.enabled == 1
    });
    assert!(record.rttcnt >= seq, "{record:?} after report {seq}");
    // The link alone takes five milliseconds.
    assert!(record.minrtt_us >= 5000 && record.rtt_us >= 5000, "{record:?}");
    datapath.update(flow, &[(Field::Rate, FAST)]).unwrap();
    wait_until("ss shows all of a fast rate", || {
        datapath.heartbeat();
        lab.shown(&bulk).contains(&format!(" pacing_rate {}bps ", 8 * FAST))
    });
}

#[test]
#[ignore = "runs in a machine that has the module"]
fn parameters_name_the_module_and_bound_its_programs() {
    const DEVICE: &str = "/dev/other";
    let _module = LoadedModule::with("name=other names=asked,spare programs=2");
    super::lab::up();
    assert!(!std::path::Path::new("/dev/ccplane").exists());
    let mut datapath = ModuleDatapath::open(DEVICE.as_ref(), HEARTBEAT_TIMEOUT).unwrap();
    let install = |datapath: &mut ModuleDatapath, uid| datapath.install(ProgramUid(uid), &fixed());
    assert_eq!(install(&mut datapath, 1), Ok(()));
    assert_eq!(install(&mut datapath, 2), Ok(()));
    assert_eq!(install(&mut datapath, 3), Err(DatapathError::ProgramsFull { limit: 2 }));
    datapath.remove(ProgramUid(1)).unwrap();
    assert_eq!(install(&mut datapath, 3), Ok(()), "a place was freed");

    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let to = listener.local_addr().unwrap();
    for (congestion, requested) in [("other", None), ("asked", Some("asked"))] {
        let stream = connected(to, congestion);
        let local = stream.local_addr().unwrap();
        let flow = wait_for(&mut datapath, "Created", |e| match e {
            Event::Created { flow, info } if info.local == local => Some(*flow),
            _ => None,
        });
        assert_eq!(datapath.requested(flow), requested);
    }
    // The device is root's alone.
    assert_eq!(std::fs::metadata(DEVICE).unwrap().permissions().mode() & 0o777, 0o600);
    let mut nobody = Command::new("sh");
    nobody.args(["-c", &format!("exec 3<>{DEVICE}")]).uid(65534).gid(65534);
    let refused = nobody.output().unwrap();
    assert!(!refused.status.success());
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(said.contains("Permission denied"), "{said}");
}

#[test]
#[ignore = "runs in a machine that has the module"]
fn a_namespace_may_have_an_agent_of_its_own() {
    let lab = Lab::new();
    let other = Lab::beside(None);
    let mut machines = attach();
    let (here, there) = (lab.flow(), other.flow_to("fd00::2"));
    let ids = [created(&mut machines, &here), created(&mut machines, &there)];
    let mut own = other.near(attach);
    assert_eq!(created(&mut own, &there), ids[1], "its flow, over IPv6");
    wait_for(&mut machines, "Closed", |e| (*e == Event::Closed { flow: ids[1] }).then_some(()));
    machines.install(FIXED, &fixed()).unwrap();
    own.install(FIXED, &fixed()).unwrap();
    machines.set_program(ids[0], FIXED, &[]).unwrap();
    own.set_program(ids[1], FIXED, &[]).unwrap();
    report(&mut machines, ids[0], FIXED);
    report(&mut own, ids[1], FIXED);
    drop(own);
    assert_eq!(created(&mut machines, &there), ids[1], "the machine's again");
}

#[test]
#[ignore = "runs in a machine that has the module"]
fn without_an_agent_flows_run_reno_or_cubic() {
    for fallback in ["reno", "cubic"] {
        let lab = Lab::with(&format!("fallback={fallback}"));
        let bulk = lab.flow();
        let mut datapath = lab.attach();
        let flow = created(&mut datapath, &bulk);
        let grown = stats(&mut datapath, flow, |f| f.transport.snd_cwnd > 30 && f.transport.lost > 0);
        assert_eq!(grown.mode, Mode::NativeNoProgram, "{fallback}");
        let later =
            stats(&mut datapath, flow, |f| f.transport.bytes_acked > grown.transport.bytes_acked + 2_000_000);
        assert!(later.transport.snd_ssthresh.is_some(), "{fallback}");
    }
}
