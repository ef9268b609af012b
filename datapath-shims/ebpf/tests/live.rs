//! The datapath on real TCP flows, between two network namespaces of the test's own.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use ccplane_contract::{Datapath, DatapathError, Event, Field, FlowId, FlowStats, Mode, ProgramUid};
use ccplane_ebpf::{EbpfDatapath, EbpfError, Options, clean, read_flows};
use ccplane_emulator::netns::Namespace;
use ccplane_emulator::veth;
use ccplane_program::ir::Program;
use ccplane_runner::traffic::{BulkFlow, FlowConfig};

const LONG: Duration = Duration::from_secs(60);
const PATIENCE: Duration = Duration::from_secs(5);
const FIXED: ProgramUid = ProgramUid(1);
const COUNTER: ProgramUid = ProgramUid(2);

/// Two joined namespaces and the options of a datapath under a name that no other test uses.
struct Lab {
    sender: Namespace,
    receiver: Namespace,
    options: Options,
    _run_dir: tempfile::TempDir,
}

impl Lab {
    /// None, said loudly, where the machine cannot run the test.
    fn new(test: &str) -> Option<Lab> {
        if let Some(missing) = ccplane_ebpf::checks().into_iter().find(|c| !c.ok) {
            eprintln!("SKIPPED: {test}: {}: {}", missing.what, missing.found);
            return None;
        }
        if !ccplane_emulator::netns::available() {
            eprintln!("SKIPPED: {test}: needs root and /dev/net/tun");
            return None;
        }
        // Moving flows needs a namespace that can be found by name.
        let (sender, receiver) = (Namespace::create(test).unwrap(), Namespace::anonymous().unwrap());
        veth::connect(&sender, &receiver).unwrap();
        let run_dir = tempfile::tempdir().unwrap();
        let options = Options {
            run_dir: run_dir.path().into(),
            name: format!("cct_{test}"),
            heartbeat_timeout: Duration::from_millis(300),
            ..Options::default()
        };
        Some(Lab { sender, receiver, options, _run_dir: run_dir })
    }

    fn attach(&self) -> EbpfDatapath {
        let mut datapath = EbpfDatapath::attach(self.options.clone()).unwrap();
        datapath.install(FIXED, &fixed()).unwrap();
        datapath.install(COUNTER, &counter()).unwrap();
        datapath
    }

    fn flow(&self, congestion: &str) -> BulkFlow {
        let config = FlowConfig {
            congestion: congestion.into(),
            receiver: SocketAddr::new(veth::ENDS[1], 0),
            duration: LONG,
            bytes: None,
            sample_every: Duration::from_millis(10),
        };
        BulkFlow::start(&config, &self.sender, &self.receiver, Instant::now()).unwrap()
    }

    fn own_flow(&self) -> BulkFlow {
        self.flow(&self.options.name)
    }

    fn registered(&self) -> bool {
        let list = fs::read_to_string("/proc/sys/net/ipv4/tcp_available_congestion_control").unwrap();
        list.split_whitespace().any(|name| name == self.options.name)
    }
}

/// Leaves the window alone; counts ACKs since it started and reports every 5 ms.
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

/// Reports every 5 ms what was acknowledged since the last report; paces if told to.
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

/// Polls, with heartbeats, until `done` says so of an event.
fn wait_for<T>(datapath: &mut EbpfDatapath, what: &str, mut done: impl FnMut(&Event) -> Option<T>) -> T {
    let start = Instant::now();
    let mut events = Vec::new();
    while start.elapsed() < PATIENCE {
        datapath.heartbeat();
        datapath.wait(Duration::from_millis(20)).unwrap();
        datapath.poll(64, &mut events);
        if let Some(found) = events.drain(..).find_map(|e| done(&e)) {
            return found;
        }
    }
    panic!("no {what} within {PATIENCE:?}");
}

fn created(datapath: &mut EbpfDatapath, flow: &BulkFlow) -> FlowId {
    let (local, remote) = (flow.local(), flow.remote());
    wait_for(datapath, "Created", |e| match e {
        Event::Created { flow, info } if info.local == local => {
            assert_eq!(info.remote, remote);
            assert_eq!(info.mss_bytes, 1448);
            assert_eq!(info.init_cwnd_bytes, 10 * 1448);
            Some(*flow)
        }
        _ => None,
    })
}

fn report(datapath: &mut EbpfDatapath, of: FlowId, by: ProgramUid) -> (u32, Vec<i64>) {
    wait_for(datapath, "Report", |e| match e {
        Event::Report { flow, program, seq, values, .. } if *flow == of && *program == by => {
            Some((*seq, values.clone()))
        }
        _ => None,
    })
}

/// The flow's statistics once `done` holds of them; heartbeats only if `alive`.
fn stats(
    datapath: &mut EbpfDatapath,
    of: FlowId,
    alive: bool,
    done: impl Fn(&FlowStats) -> bool,
) -> FlowStats {
    let start = Instant::now();
    let mut last = None;
    while start.elapsed() < PATIENCE {
        if alive {
            datapath.heartbeat();
        }
        last = datapath.flows().into_iter().find(|f| f.flow == of);
        if last.as_ref().is_some_and(&done) {
            break;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let last = last.expect("the flow is listed");
    assert!(done(&last), "{last:?}");
    last
}

#[test]
fn programs_steer_live_flows() {
    let Some(lab) = Lab::new("steer") else { return };
    let mut datapath = lab.attach();
    let traffic = lab.own_flow();
    let flow = created(&mut datapath, &traffic);
    stats(&mut datapath, flow, true, |f| f.mode == Mode::NativeNoProgram && f.bytes_acked > 0);

    let step = fixed().reg("step").unwrap();
    datapath.set_program(flow, FIXED, &[(Field::Cwnd, 20 * 1448), (Field::Reg(step), 1_000_000)]).unwrap();
    let (first, values) = report(&mut datapath, flow, FIXED);
    assert_eq!(values[1], 20 * 1448, "window as the program sees it");
    assert!(values[0] >= 1_000_000 && values[0] % 1_000_000 == 0, "the field counted from the first ACK");
    let (second, _) = report(&mut datapath, flow, FIXED);
    assert_eq!(second, first + 1);
    let seen = stats(&mut datapath, flow, true, |f| f.snd_cwnd == 20);
    assert_eq!((seen.mode, seen.program), (Mode::Program, Some(FIXED)));
    // The kernel agrees.
    assert_eq!(traffic.latest().unwrap().info.snd_cwnd, 20);

    datapath.update(flow, &[(Field::Cwnd, 33 * 1448 + 1447)]).unwrap();
    stats(&mut datapath, flow, true, |f| f.snd_cwnd == 33);

    // A program that starts again starts from its initial registers, and the old one's reports end.
    datapath.set_program(flow, COUNTER, &[]).unwrap();
    let (_, values) = report(&mut datapath, flow, COUNTER);
    assert!(values[0] > 0 && values[1] == 0, "{values:?}");
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

#[test]
fn rate_paces_without_fq() {
    let Some(lab) = Lab::new("pace") else { return };
    let mut datapath = lab.attach();
    let traffic = lab.own_flow();
    let flow = created(&mut datapath, &traffic);
    let pace = counter().reg("pace").unwrap();
    let rate = 1_250_000;
    datapath.set_program(flow, COUNTER, &[(Field::Reg(pace), rate)]).unwrap();
    stats(&mut datapath, flow, true, |f| f.pacing_rate == rate as u64);
    let bytes = |d: &mut EbpfDatapath| stats(d, flow, true, |_| true);
    std::thread::sleep(Duration::from_millis(200));
    let a = bytes(&mut datapath);
    for _ in 0..20 {
        datapath.heartbeat();
        std::thread::sleep(Duration::from_millis(50));
    }
    let b = bytes(&mut datapath);
    let got = (b.bytes_acked - a.bytes_acked) * 1_000_000 / (b.sampled_at_us - a.sampled_at_us);
    // The stack counts payload; TSO bursts and timers cost a little.
    assert!((1_100_000..1_300_000).contains(&got), "{got} B/s");
    datapath.detach().unwrap();
}

#[test]
fn a_silent_agent_leaves_flows_to_the_native_algorithm() {
    let Some(lab) = Lab::new("silent") else { return };
    let mut datapath = lab.attach();
    let traffic = lab.own_flow();
    let flow = created(&mut datapath, &traffic);
    datapath.set_program(flow, FIXED, &[(Field::Cwnd, 5 * 1448)]).unwrap();
    stats(&mut datapath, flow, true, |f| f.mode == Mode::Program && f.snd_cwnd == 5);
    // No heartbeat: the kernel's Reno grows the window from where it was.
    let silent = stats(&mut datapath, flow, false, |f| f.snd_cwnd > 20);
    assert_eq!(silent.mode, Mode::NativeAgentSilent);
    let view = read_flows(&lab.options).unwrap();
    assert!(view.silent && view.silence >= lab.options.heartbeat_timeout);
    assert_eq!(view.agent_pid, std::process::id());
    // Back: the program resumes from the window that the flow then has.
    let back = stats(&mut datapath, flow, true, |f| f.mode == Mode::Program);
    assert!(back.snd_cwnd >= silent.snd_cwnd, "{back:?}");
    datapath.detach().unwrap();
}

#[test]
fn flows_outlive_the_agent_and_the_next_one_finds_them() {
    let Some(lab) = Lab::new("outlive") else { return };
    let mut first = lab.attach();
    let traffic = lab.own_flow();
    let flow = created(&mut first, &traffic);
    first.set_program(flow, FIXED, &[(Field::Cwnd, 9 * 1448)]).unwrap();
    stats(&mut first, flow, true, |f| f.snd_cwnd == 9);
    // What a kill does: descriptors and memory go, nothing is undone.
    drop(first);
    assert!(lab.registered(), "the datapath stays");
    let before = traffic.latest().unwrap().info.bytes_acked;
    std::thread::sleep(Duration::from_millis(500));
    assert!(traffic.latest().unwrap().info.bytes_acked > before, "the flow goes on");

    let mut second = lab.attach();
    let found = wait_for(&mut second, "Created", |e| match e {
        Event::Created { flow, info } if info.local == traffic.local() => Some(*flow),
        _ => None,
    });
    assert_eq!(found, flow);
    second.set_program(found, COUNTER, &[(Field::Cwnd, 7 * 1448)]).unwrap();
    report(&mut second, flow, COUNTER);
    stats(&mut second, flow, true, |f| f.snd_cwnd == 7);
    second.detach().unwrap();
}

#[test]
fn clean_removes_what_a_dead_agent_left() {
    let Some(lab) = Lab::new("clean") else { return };
    let mut datapath = lab.attach();
    let traffic = lab.own_flow();
    created(&mut datapath, &traffic);
    assert!(
        matches!(clean(&lab.options), Err(EbpfError::Busy { pid: Some(_), .. })),
        "not while the agent lives"
    );
    drop(datapath);
    let report = clean(&lab.options).unwrap();
    assert_eq!(report.flows_moved, 1);
    assert!(!lab.registered());
    assert!(matches!(read_flows(&lab.options), Err(EbpfError::NotAttached(_))));
    // The flow goes on under the kernel's own.
    let before = traffic.latest().unwrap().info.bytes_acked;
    std::thread::sleep(Duration::from_millis(200));
    assert!(traffic.latest().unwrap().info.bytes_acked > before);
    assert!(clean(&lab.options).unwrap().removed.is_empty(), "a second run finds nothing");
}

#[test]
fn a_second_agent_is_refused() {
    let Some(lab) = Lab::new("second") else { return };
    let first = lab.attach();
    let refused = EbpfDatapath::attach(lab.options.clone()).err().expect("refused");
    assert!(
        matches!(refused, EbpfError::Busy { pid: Some(pid), .. } if pid == std::process::id()),
        "{refused}"
    );
    first.detach().unwrap();
    lab.attach().detach().unwrap();
}

#[test]
fn running_flows_of_another_algorithm_are_adopted() {
    let Some(lab) = Lab::new("adopt") else { return };
    let mut datapath = lab.attach();
    let traffic = lab.flow("reno");
    std::thread::sleep(Duration::from_millis(100));
    // Only the flow's own namespace: other tests have Reno flows too.
    let namespace = Path::new("/run/netns").join(lab.sender.name().unwrap());
    assert_eq!(datapath.adopt("reno", Some(&namespace)).unwrap(), 1);
    let flow = wait_for(&mut datapath, "Created", |e| match e {
        Event::Created { flow, info } if info.local == traffic.local() => Some(*flow),
        _ => None,
    });
    datapath.set_program(flow, FIXED, &[(Field::Cwnd, 11 * 1448)]).unwrap();
    stats(&mut datapath, flow, true, |f| f.snd_cwnd == 11);
    assert!(datapath.detach().unwrap() >= 1, "handed back");
}

#[test]
fn the_flow_table_is_bounded_and_reused() {
    let Some(mut lab) = Lab::new("bounded") else { return };
    lab.options.max_flows = 1;
    let mut datapath = lab.attach();
    let first = lab.own_flow();
    let a = created(&mut datapath, &first);
    let second = lab.own_flow();
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(read_flows(&lab.options).unwrap().table_full, 1);
    assert!(second.latest().unwrap().info.bytes_acked > 0, "runs the native algorithm");
    assert_eq!(datapath.flows().len(), 1);
    drop((first, second));
    wait_for(&mut datapath, "Closed", |e| (*e == Event::Closed { flow: a }).then_some(()));
    let third = lab.own_flow();
    let b = created(&mut datapath, &third);
    assert_ne!(a, b, "ids are not reused");
    datapath.detach().unwrap();
}
