//! The datapath on real TCP flows, between two network namespaces of the test's own.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::panic::AssertUnwindSafe;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::common::{
    Lab, PATIENCE, assert_never_stalled, created, goes_on, kernel_says, mishap, report, stats, wait_for,
    wait_until,
};
use ccplane_contract::{Datapath, DatapathError, Event, Field, FlowId, Mode, ProgramUid};
use ccplane_ebpf::{EbpfDatapath, EbpfError, Options, clean, read_flows};
use ccplane_emulator::{LinkConfig, Shape, veth};
use ccplane_program::ir::Program;
use ccplane_runner::traffic::BulkFlow;
use ccplane_testing::within_tries;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, SockaddrStorage, connect, setsockopt, socket, sockopt,
};
use nix::sys::statfs::{BPF_FS_MAGIC, statfs};

const FIXED: ProgramUid = ProgramUid(1);
const COUNTER: ProgramUid = ProgramUid(2);

/// Attaches a datapath with both programs.
fn attach(lab: &Lab) -> EbpfDatapath {
    let mut datapath = lab.attach();
    datapath.install(FIXED, &fixed()).unwrap();
    datapath.install(COUNTER, &counter()).unwrap();
    datapath
}

/// Attaches a datapath with both programs, and starts a flow that it knows.
fn with_flow(lab: &Lab) -> (EbpfDatapath, BulkFlow, FlowId) {
    let mut datapath = attach(lab);
    let traffic = lab.own_flow();
    let flow = created(&mut datapath, &traffic);
    (datapath, traffic, flow)
}

/// A program that leaves the window alone, counts ACKs since it started and reports every 5 ms.
fn fixed() -> Program {
    ccplane_program::compile(
        "(def (Report (acks 0) (window 0)) (step 1))
         (when true
             (:= Report.acks (+ Report.acks step))
             (:= Report.window Cwnd)
             (fallthrough))
         (when (> Micros 5000) (report) (:= Micros 0))",
    )
    .unwrap()
}

/// A program that reports every 5 ms what was acknowledged since the last report; it paces if told to.
fn counter() -> Program {
    ccplane_program::compile(
        "(def (Report (volatile acked 0) (volatile lost 0)) (pace 0))
         (when true
             (:= Report.acked (+ Report.acked Ack.bytes_acked))
             (:= Report.lost (+ Report.lost Ack.lost_pkts_sample))
             (:= Rate (if (> pace 0) pace))
             (fallthrough))
         (when (> Micros 5000) (report) (:= Micros 0))",
    )
    .unwrap()
}

#[test]
fn a_flow_that_ends_before_anyone_looks_is_counted() {
    let Some(lab) = Lab::new("unseen") else { return };
    let mut datapath = lab.attach();
    let brief = lab.own_flow();
    kernel_says(&brief, "it sends", |info| info.bytes_acked > 0);
    drop(brief);
    wait_until("it is gone", || read_flows(&lab.options).unwrap().flows.is_empty());
    assert_eq!(datapath.events().unseen_flows(), 0, "nobody has looked yet");
    let traffic = lab.own_flow();
    let flow = created(&mut datapath, &traffic);
    assert_eq!(datapath.events().unseen_flows(), 1);
    // One that was seen does not count.
    drop(traffic);
    wait_for(&mut datapath, "Closed", |event| (*event == Event::Closed { flow }).then_some(()));
    assert_eq!(datapath.events().unseen_flows(), 1);
}

#[test]
fn programs_steer_live_flows() {
    let Some(lab) = Lab::new("steer") else { return };
    let (mut datapath, traffic, flow) = with_flow(&lab);
    stats(&mut datapath, flow, true, |f| f.mode == Mode::NativeNoProgram && f.transport.bytes_acked > 0);

    let step = fixed().reg("step").unwrap();
    datapath.set_program(flow, FIXED, &[(Field::Cwnd, 20 * 1448), (Field::Reg(step), 1_000_000)]).unwrap();
    let (first, values) = report(&mut datapath, flow, FIXED);
    assert_eq!(values[1], 20 * 1448, "window as the program sees it");
    assert!(values[0] >= 1_000_000 && values[0] % 1_000_000 == 0, "the field counted from the first ACK");
    let (second, _) = report(&mut datapath, flow, FIXED);
    assert_eq!(second, first + 1);
    let seen = stats(&mut datapath, flow, true, |f| f.transport.snd_cwnd == 20);
    assert_eq!((seen.mode, seen.program), (Mode::Program, Some(FIXED)));
    kernel_says(&traffic, "the kernel agrees", |info| info.snd_cwnd == 20);

    datapath.update(flow, &[(Field::Cwnd, 33 * 1448 + 1447)]).unwrap();
    stats(&mut datapath, flow, true, |f| f.transport.snd_cwnd == 33);

    // A program that starts again starts from its initial registers, and the old one's reports end.
    datapath.set_program(flow, COUNTER, &[]).unwrap();
    let (_, values) = report(&mut datapath, flow, COUNTER);
    // The old one's window is in the second register.
    assert!(values[0] > 0 && values[1] < 1448, "{values:?}");
    assert_eq!(datapath.remove(COUNTER), Err(DatapathError::ProgramInUse { uid: COUNTER, flows: 1 }));
    datapath.remove(FIXED).unwrap();
    assert_eq!(datapath.set_program(flow, FIXED, &[]), Err(DatapathError::NoProgram(FIXED)));
    assert_eq!(datapath.update(flow, &[(Field::Reg(0), 1)]), Err(DatapathError::BadField(Field::Reg(0))));

    datapath.release(flow).unwrap();
    stats(&mut datapath, flow, true, |f| f.mode == Mode::NativeNoProgram && f.program.is_none());

    drop(traffic);
    wait_for(&mut datapath, "Closed", |e| (*e == Event::Closed { flow }).then_some(()));
    assert_eq!(datapath.update(flow, &[(Field::Cwnd, 1448)]), Err(DatapathError::NoFlow(flow)));
    datapath.detach().unwrap();
    assert!(!lab.registered());
}

/// Sets the MTU of the sender's interface.
fn set_mtu(lab: &Lab, mtu_bytes: u32) {
    let mut ip = Command::new("ip");
    ip.args(["link", "set", "dev", veth::DEVICE, "mtu", &mtu_bytes.to_string()]);
    assert!(lab.sender().enter(&mut ip).unwrap().status().unwrap().success());
}

#[test]
fn programs_know_the_segment_size_of_now() {
    /// Header bytes of a segment: IPv4, TCP, timestamps.
    const HEADERS: i64 = 52;
    let (first, second) = (ProgramUid(3), ProgramUid(4));
    let Some(lab) = Lab::new("mtu") else { return };
    if Command::new("ip").arg("-V").output().is_err() {
        return ccplane_testing::skipped("mtu", "there is no ip(8) here");
    }
    let mut datapath = lab.attach();
    let source = "(def (Report (size 0)) (mss 1))
         (when true (:= Report.size mss) (:= Cwnd (* mss 10)) (fallthrough))
         (when (> Micros 5000) (report) (:= Micros 0))";
    let program = ccplane_program::compile(source).unwrap();
    datapath.install(first, &program).unwrap();
    datapath.install(second, &program).unwrap();
    let mss = Field::Reg(program.reg("mss").unwrap());
    let traffic = lab.own_flow();
    let flow = created(&mut datapath, &traffic);
    let info = stats(&mut datapath, flow, true, |f| f.transport.bytes_acked > 0).info;
    assert_eq!(i64::from(info.mss_bytes), 1500 - HEADERS);
    let at_start = [(mss, i64::from(info.mss_bytes))];
    let becomes = |datapath: &mut EbpfDatapath, by, size| {
        wait_for(datapath, "report of the segment size", |e| match e {
            Event::Report { program, values, .. } if *program == by && values[0] == size => Some(()),
            _ => None,
        });
    };

    datapath.set_program(flow, first, &at_start).unwrap();
    becomes(&mut datapath, first, 1500 - HEADERS);
    for mtu_bytes in [1000, 1400] {
        set_mtu(&lab, mtu_bytes);
        becomes(&mut datapath, first, i64::from(mtu_bytes) - HEADERS);
        let is_applied =
            |mss_bytes: u32, cwnd: u32| (i64::from(mss_bytes), cwnd) == (i64::from(mtu_bytes) - HEADERS, 10);
        let now =
            stats(&mut datapath, flow, true, |f| is_applied(f.transport.mss_bytes, f.transport.snd_cwnd));
        let start = (now.info.mss_bytes, now.info.init_cwnd_bytes);
        assert_eq!(start, (info.mss_bytes, info.init_cwnd_bytes), "those of the start");
        kernel_says(&traffic, "the kernel agrees", |info| is_applied(info.snd_mss_bytes, info.snd_cwnd));
    }
    // The agent knows the segment size of the flow's start.
    datapath.set_program(flow, second, &at_start).unwrap();
    becomes(&mut datapath, second, 1400 - HEADERS);
    datapath.update(flow, &[(mss, 700)]).unwrap();
    becomes(&mut datapath, second, 700);
    set_mtu(&lab, 1200);
    let shrunk = stats(&mut datapath, flow, true, |f| i64::from(f.transport.mss_bytes) == 1200 - HEADERS);
    let size = wait_for(&mut datapath, "report after that", |e| match e {
        Event::Report { at_us, values, .. } if *at_us > shrunk.sampled_at_us => Some(values[0]),
        _ => None,
    });
    assert_eq!(size, 700, "what is not the segment size is left alone");
    datapath.detach().unwrap();
}

/// A connection from the sender's end to the receiver's, over which nothing was sent yet.
fn silent(lab: &Lab) -> (TcpStream, TcpStream) {
    let at = SocketAddr::new(lab.emulator().receiver_addresses().v4.into(), 0);
    let listener = lab.receiver().run(|| TcpListener::bind(at).unwrap()).unwrap();
    let to = listener.local_addr().unwrap();
    let from = lab.sender().run(|| {
        let from = socket(AddressFamily::Inet, SockType::Stream, SockFlag::SOCK_CLOEXEC, None).unwrap();
        // The datapath has the flow from its start.
        setsockopt(&from, sockopt::TcpCongestion, &lab.options.name.clone().into()).unwrap();
        connect(from.as_raw_fd(), &SockaddrStorage::from(to)).unwrap();
        TcpStream::from(from)
    });
    let (from, (peer, _)) = (from.unwrap(), listener.accept().unwrap());
    // A transfer that stands still ends its threads.
    from.set_write_timeout(Some(PATIENCE)).unwrap();
    peer.set_read_timeout(Some(PATIENCE)).unwrap();
    (from, peer)
}

#[test]
fn a_program_in_time_sees_the_first_ack() {
    const BYTES: usize = 100 * 1448;
    const TOTAL: ProgramUid = ProgramUid(3);
    let Some(mut lab) = Lab::over("first", &LinkConfig::symmetric(Shape::mbit(100), 20_000)) else { return };
    // However busy the machine is, the first ACK finds the program in charge.
    lab.options.heartbeat_timeout = PATIENCE;
    let mut datapath = lab.attach();
    let total = "(def (Report (acked 0) (window 0)) (first 0))
         (when true
             (:= first (if (== first 0) Cwnd))
             (:= Report.window first)
             (:= Report.acked (+ Report.acked Ack.bytes_acked))
             (report))";
    datapath.install(TOTAL, &ccplane_program::compile(total).unwrap()).unwrap();
    // Nothing is sent, so that no ACK comes, before the program is there.
    let (mut from, mut peer) = silent(&lab);
    let local = from.local_addr().unwrap();
    let flow = wait_for(&mut datapath, "Created", |e| match e {
        Event::Created { flow, info } if info.local == local => Some(*flow),
        _ => None,
    });
    datapath.set_program(flow, TOTAL, &[]).unwrap();
    let before = datapath.flows().into_iter().find(|f| f.flow == flow).unwrap();
    assert!(before.transport.bytes_acked <= 1, "the SYN is one: {before:?}");
    let acked = std::thread::scope(|scope| {
        scope.spawn(|| from.write_all(&vec![0; BYTES]).unwrap());
        scope.spawn(|| peer.read_exact(&mut vec![0; BYTES]).unwrap());
        wait_for(&mut datapath, "last report", |e| match e {
            Event::Report { values, .. } if values[0] >= BYTES as i64 => Some(values.to_vec()),
            _ => None,
        })
    });
    assert_eq!(acked, [BYTES as i64, 10 * 1448], "each byte, and the window that the flow started with");
    drop((from, peer));
    datapath.detach().unwrap();
}

#[test]
fn rate_paces_without_fq() {
    let Some(lab) = Lab::new("pace") else { return };
    let (mut datapath, _traffic, flow) = with_flow(&lab);
    let pace = counter().reg("pace").unwrap();
    let rate = 1_250_000;
    datapath.set_program(flow, COUNTER, &[(Field::Reg(pace), rate)]).unwrap();
    stats(&mut datapath, flow, true, |f| f.transport.pacing_rate == rate as u64);
    let mut beats = |count| {
        for _ in 0..count {
            datapath.heartbeat();
            std::thread::sleep(Duration::from_millis(50));
        }
        stats(&mut datapath, flow, true, |_| true)
    };
    let mut last = beats(4);
    // Each window is a second. A machine that holds the flow up for a while fails one of them, not all.
    within_tries("a flow paced at 1.25 MB/s", 5, |_| {
        let (before, now) = (last.clone(), beats(20));
        last = now.clone();
        let got = (now.transport.bytes_acked - before.transport.bytes_acked) * 1_000_000
            / (now.sampled_at_us - before.sampled_at_us);
        // A cable carries a thousand times as much.
        assert!(got < 2 * rate as u64, "{got} B/s");
        // The stack counts payload; TSO bursts and timers cost a little.
        if (1_100_000..1_300_000).contains(&got) { Ok(()) } else { Err(format!("{got} B/s")) }
    });
    datapath.detach().unwrap();
}

fn a_silent_agent_leaves_flows_to_the_native_algorithm() -> Option<()> {
    let lab = Lab::new("silent")?;
    let (mut datapath, traffic, flow) = with_flow(&lab);
    datapath.set_program(flow, FIXED, &[(Field::Cwnd, 5 * 1448)]).unwrap();
    stats(&mut datapath, flow, true, |f| f.mode == Mode::Program && f.transport.snd_cwnd == 5);
    let silence = mishap(&traffic, "a silent agent");
    // No heartbeat: the kernel's Reno grows the window from where it was.
    let silent = stats(&mut datapath, flow, false, |f| f.transport.snd_cwnd > 20);
    assert_eq!(silent.mode, Mode::NativeAgentSilent);
    let view = read_flows(&lab.options).unwrap();
    assert!(view.silent && view.silence >= lab.options.heartbeat_timeout);
    assert_eq!(view.agent_pid, std::process::id());
    let recovery = mishap(&traffic, "an agent that is heard again");
    // Back: the program resumes from the window that the flow then has.
    let back = stats(&mut datapath, flow, true, |f| f.mode == Mode::Program);
    // With its own window kept, that would be 5. The native algorithm may have halved it meanwhile.
    assert!(2 * back.transport.snd_cwnd >= silent.transport.snd_cwnd, "{back:?}");
    assert_never_stalled(traffic, &[silence, recovery], || datapath.heartbeat());
    datapath.detach().unwrap();
    Some(())
}

fn flows_outlive_the_agent_and_the_next_one_finds_them() -> Option<()> {
    let lab = Lab::new("outlive")?;
    let (mut first, traffic, flow) = with_flow(&lab);
    first.set_program(flow, FIXED, &[(Field::Cwnd, 9 * 1448)]).unwrap();
    stats(&mut first, flow, true, |f| f.transport.snd_cwnd == 9);
    let died = mishap(&traffic, "an agent that is gone");
    // What a kill does: descriptors and memory go, nothing is undone.
    first.leave();
    assert!(lab.registered(), "the datapath stays");
    goes_on(&traffic, "the flow goes on without an agent");

    let found_again = mishap(&traffic, "the next agent");
    let mut second = attach(&lab);
    let found = wait_for(&mut second, "Created", |e| match e {
        Event::Created { flow, info } if info.local == traffic.local() => Some(*flow),
        _ => None,
    });
    assert_eq!(found, flow);
    second.set_program(found, COUNTER, &[(Field::Cwnd, 7 * 1448)]).unwrap();
    report(&mut second, flow, COUNTER);
    stats(&mut second, flow, true, |f| f.transport.snd_cwnd == 7);
    assert_never_stalled(traffic, &[died, found_again], || second.heartbeat());
    second.detach().unwrap();
    Some(())
}

/// The datapath is removed whatever ends the agent's use of it: an error further on, a panic.
#[test]
fn a_datapath_that_is_dropped_is_taken_out_of_the_kernel() {
    let Some(lab) = Lab::new("dropped") else { return };
    let traffic = {
        let mut datapath = attach(&lab);
        let traffic = lab.own_flow();
        created(&mut datapath, &traffic);
        let panicked = std::panic::catch_unwind(AssertUnwindSafe(move || {
            let _datapath = datapath;
            panic!("on purpose");
        }));
        assert!(panicked.is_err());
        traffic
    };
    assert!(!lab.registered(), "its flow was handed back");
    assert!(matches!(read_flows(&lab.options), Err(EbpfError::NotAttached(_))));
    goes_on(&traffic, "the flow goes on");
}

#[test]
fn clean_removes_what_a_dead_agent_left() {
    let Some(lab) = Lab::new("clean") else { return };
    let (datapath, traffic, _) = with_flow(&lab);
    assert!(
        matches!(clean(&lab.options), Err(EbpfError::Busy { pid: Some(_), .. })),
        "not while the agent lives"
    );
    datapath.leave();
    let report = clean(&lab.options).unwrap();
    assert_eq!(report.flows_moved, 1);
    assert!(!lab.registered());
    assert!(matches!(read_flows(&lab.options), Err(EbpfError::NotAttached(_))));
    goes_on(&traffic, "the flow goes on under the kernel's own");
    assert!(clean(&lab.options).unwrap().removed.is_empty(), "a second run finds nothing");
}

#[test]
fn a_second_agent_is_refused() {
    let Some(lab) = Lab::new("second") else { return };
    let first = attach(&lab);
    let refused = EbpfDatapath::attach(lab.options.clone()).err().expect("refused");
    assert!(
        matches!(refused, EbpfError::Busy { pid: Some(pid), .. } if pid == std::process::id()),
        "{refused}"
    );
    first.detach().unwrap();
    attach(&lab).detach().unwrap();
}

#[test]
fn running_flows_of_another_algorithm_are_adopted() {
    let Some(lab) = Lab::new("adopt") else { return };
    let mut datapath = attach(&lab);
    let traffic = lab.flow("reno");
    kernel_says(&traffic, "the flow runs", |info| info.bytes_acked > 1);
    // Only the flow's own namespace: other tests have Reno flows too.
    let namespace = Path::new("/run/netns").join(lab.sender().name().unwrap());
    assert_eq!(datapath.adopt("reno", Some(&namespace)).unwrap(), 1);
    let flow = wait_for(&mut datapath, "Created", |e| match e {
        Event::Created { flow, info } if info.local == traffic.local() => Some(*flow),
        _ => None,
    });
    datapath.set_program(flow, FIXED, &[(Field::Cwnd, 11 * 1448)]).unwrap();
    stats(&mut datapath, flow, true, |f| f.transport.snd_cwnd == 11);
    assert!(datapath.detach().unwrap() >= 1, "handed back");
}

#[test]
fn the_flow_table_is_bounded_and_reused() {
    let Some(mut lab) = Lab::new("bounded") else { return };
    lab.options.max_flows = 1;
    let mut datapath = attach(&lab);
    let first = lab.own_flow();
    let a = created(&mut datapath, &first);
    let second = lab.own_flow();
    wait_until("it finds the table full", || read_flows(&lab.options).unwrap().table_full > 0);
    kernel_says(&second, "it runs the native algorithm", |info| info.bytes_acked > 1);
    assert_eq!(read_flows(&lab.options).unwrap().table_full, 1);
    assert_eq!(datapath.flows().len(), 1);
    drop((first, second));
    wait_for(&mut datapath, "Closed", |e| (*e == Event::Closed { flow: a }).then_some(()));
    let third = lab.own_flow();
    let b = created(&mut datapath, &third);
    assert_ne!(a, b, "ids are not reused");
    datapath.detach().unwrap();
}

#[test]
fn ipv6_flows_are_named_by_their_addresses() {
    let Some(lab) = Lab::over("ipv6", &LinkConfig::symmetric(Shape::mbit(50), 1_000)) else { return };
    let mut datapath = attach(&lab);
    let receiver = lab.emulator().receiver_addresses().v6;
    let traffic = lab.flow_to(receiver.into(), &lab.options.name);
    let flow = created(&mut datapath, &traffic);
    let info = datapath.flows().into_iter().find(|f| f.flow == flow).unwrap().info;
    assert_eq!(info.remote, traffic.remote());
    assert_eq!(
        info.local,
        SocketAddr::new(lab.emulator().sender_addresses().v6.into(), traffic.local().port())
    );
    // 1500 bytes less the headers and the timestamp option: 20 bytes smaller than IPv4's.
    assert_eq!((info.mss_bytes, info.init_cwnd_bytes), (1428, 14_280));
    datapath.set_program(flow, FIXED, &[(Field::Cwnd, 12 * 1428)]).unwrap();
    stats(&mut datapath, flow, true, |f| f.transport.snd_cwnd == 12 && f.transport.min_rtt_us >= 2_000);
    datapath.detach().unwrap();
}

#[test]
fn an_empty_program_leaves_the_window_alone() {
    let Some(lab) = Lab::new("empty") else { return };
    let mut datapath = attach(&lab);
    datapath.install_empty(ProgramUid(3)).unwrap();
    let traffic = lab.own_flow();
    let flow = created(&mut datapath, &traffic);
    datapath.set_program(flow, FIXED, &[(Field::Cwnd, 13 * 1448)]).unwrap();
    stats(&mut datapath, flow, true, |f| f.transport.snd_cwnd == 13);
    datapath.set_program(flow, ProgramUid(3), &[]).unwrap();
    stats(&mut datapath, flow, true, |f| f.transport.snd_cwnd == 13 && f.program == Some(ProgramUid(3)));
    // Nothing keeps the next agent from starting.
    datapath.set_program(flow, COUNTER, &[]).unwrap();
    report(&mut datapath, flow, COUNTER);
    datapath.detach().unwrap();
}

#[test]
fn an_attach_that_fails_leaves_nothing() {
    let Some(lab) = Lab::new("fails") else { return };
    // The congestion control is registered by the time that this is found.
    std::fs::write(lab.options.run_dir.join("bpf"), "in the way").unwrap();
    if Path::new("/sys/fs/bpf").join("progs.debug").exists() {
        return ccplane_testing::skipped("fails", "pins go to the system's BPF file system here");
    }
    assert!(matches!(EbpfDatapath::attach(lab.options.clone()), Err(EbpfError::Os { .. })));
    wait_until("it is not registered", || !lab.registered());
    std::fs::remove_file(lab.options.run_dir.join("bpf")).unwrap();
    lab.attach().detach().unwrap();
}

/// Environment variable of the process that [`an_agent_that_is_killed_leaves_its_flows_running`] kills: run directory
/// and name.
const HELPER: &str = "CCPLANE_TEST_AGENT";

/// The agent to be killed; does nothing unless the variable is set.
#[test]
fn helper_agent() {
    let Ok(place) = std::env::var(HELPER) else { return };
    set_pdeathsig(Signal::SIGKILL).unwrap();
    let (run_dir, name) = place.split_once(',').unwrap();
    let options = Options { run_dir: run_dir.into(), name: name.into(), ..Options::default() };
    let mut datapath = EbpfDatapath::attach(options).unwrap();
    datapath.install(FIXED, &fixed()).unwrap();
    let mut events = Vec::new();
    loop {
        datapath.heartbeat();
        datapath.wait(Duration::from_millis(20)).unwrap();
        datapath.poll(64, &mut events);
        for event in events.drain(..) {
            if let Event::Created { flow, .. } = event {
                datapath.set_program(flow, FIXED, &[(Field::Cwnd, 9 * 1448)]).unwrap();
            }
        }
    }
}

fn an_agent_that_is_killed_leaves_its_flows_running() -> Option<()> {
    let lab = Lab::new("killed")?;
    let mut helper = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "flows::helper_agent"])
        .env(HELPER, format!("{},{}", lab.options.run_dir.display(), lab.options.name))
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    wait_until("the helper attaches", || lab.registered());
    let traffic = lab.own_flow();
    let steered =
        || read_flows(&lab.options).is_ok_and(|v| v.flows.iter().any(|f| f.transport.snd_cwnd == 9));
    wait_until("it steers the flow", steered);
    assert!(matches!(EbpfDatapath::attach(lab.options.clone()), Err(EbpfError::Busy { .. })));
    let killed = mishap(&traffic, "kill -9");
    helper.kill().unwrap();
    helper.wait().unwrap();

    assert!(lab.registered(), "the datapath stays");
    let silent = || read_flows(&lab.options).unwrap().flows[0].mode == Mode::NativeAgentSilent;
    wait_until("the flow runs natively", silent);
    let before = kernel_says(&traffic, "a sample", |_| true).bytes_acked;
    kernel_says(&traffic, "it goes on", |info| info.bytes_acked > before + (1 << 20));

    let next = mishap(&traffic, "the next agent");
    let mut datapath = attach(&lab);
    let flow = created(&mut datapath, &traffic);
    datapath.set_program(flow, COUNTER, &[(Field::Cwnd, 7 * 1448)]).unwrap();
    report(&mut datapath, flow, COUNTER);
    stats(&mut datapath, flow, true, |f| f.transport.snd_cwnd == 7 && f.mode == Mode::Program);
    assert_never_stalled(traffic, &[killed, next], || datapath.heartbeat());
    datapath.detach().unwrap();
    assert!(!lab.registered());
    Some(())
}

/// Runs in a mount namespace of the test's own, whose mounts nobody else sees.
#[test]
fn pins_lie_in_the_systems_bpf_file_system_where_there_is_one() {
    let Some(lab) = Lab::new("bpffs") else { return };
    let private = || {
        unshare(CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_FS).unwrap();
        mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_PRIVATE, None::<&str>).unwrap();
        let system = Path::new("/sys/fs/bpf");
        let mount_system =
            || mount(Some("bpf"), system, Some("bpf"), MsFlags::empty(), Some("mode=0700")).unwrap();
        let dir = system.join(&lab.options.name);
        let own = lab.options.run_dir.join("bpf").join(&lab.options.name);

        // None yet (a machine that has one gets an empty one of the test's own below): our own is used ...
        if !statfs(system).is_ok_and(|s| s.filesystem_type() == BPF_FS_MAGIC) {
            lab.attach().leave();
            assert!(own.join("link").exists() && !dir.exists());
            // ... and found again when the system gets one meanwhile.
            mount_system();
            lab.attach().leave();
            assert!(own.join("link").exists() && !dir.exists());
            assert!(clean(&lab.options).unwrap().removed.contains(&own));
            assert!(!own.exists() && !lab.registered());
        } else {
            mount_system();
        }
        lab.attach().leave();
        assert!(dir.join("link").exists() && !own.exists());
        assert!(read_flows(&lab.options).unwrap().flows.is_empty());
        lab.attach().detach().unwrap();
        assert!(!dir.exists() && !lab.registered());

        // What another version left is not taken over, and cleaned up.
        lab.attach().leave();
        std::fs::remove_file(dir.join("ctl")).unwrap();
        assert!(matches!(EbpfDatapath::attach(lab.options.clone()), Err(EbpfError::Os { .. })));
        assert!(lab.registered(), "a refusal changes nothing");
        clean(&lab.options).unwrap();
        assert!(!dir.exists() && !lab.registered());
    };
    std::thread::scope(|s| s.spawn(private).join()).unwrap();
}

/// Each mishap happens to a new flow.
mod mishaps {
    ccplane_testing::mishaps! {
        2 a_silent_agent_leaves_flows_to_the_native_algorithm,
        2 flows_outlive_the_agent_and_the_next_one_finds_them,
        2 an_agent_that_is_killed_leaves_its_flows_running,
    }
}
