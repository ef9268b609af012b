//! The measures of flows and paths that programs read, over two emulated links, held against tcp_info, stat(2) and the clock.
//!
//! The first link marks some packets, the second one loses some and takes longer. Only ranges and relations are held, and states are
//! waited for: on a busy machine a round trip takes as long as it takes.

use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

use crate::packets_lab::{Group, Lab, LabFlow, compile, flow_between, steer, wait_for};
use ccplane_bpf::{AttachTo, ProgType, ProgramLink, TCX_EGRESS, link_to, prog_load};
use ccplane_contract::{Datapath, Event, Field, FlowId, ProgramUid};
use ccplane_ebpf::packets::{Hooking, PacketsDatapath, PacketsOptions, PathRoute};
use ccplane_emulator::multi::RECEIVER;
use ccplane_emulator::{LinkConfig, Loss, MultiPath, Shape};
use ccplane_nn_codegen::asm::{Alu, Asm, Cond, Helper, R, Size};
use ccplane_program::ir::Program;
use ccplane_runner::tcp_info::TcpInfo;
use ccplane_testing::{PATIENCE, skipped};
use nix::net::if_::if_nametoindex;

const A: ProgramUid = ProgramUid(1);
/// Propagation delay of each link, either way, microseconds. What is acknowledged comes back over the first one.
const DELAYS_US: [u64; 2] = [5_000, 30_000];
/// The shortest round trip over each.
const LEAST_RTT_US: [i64; 2] = [10_000, 35_000];
const LOSS: f64 = 0.03;
/// One of so many packets is marked.
const MARK_ONE_IN: i32 = 8;
/// Bytes of one write; no more of a flow are under way.
const BURST: usize = 60_000;
const EVENTS: usize = 4096;
/// Largest share, in units of 2^-16.
const ALL: i64 = 1 << 16;
/// By how much two clocks of the kernel may differ, microseconds.
const SLACK_US: i64 = 1000;

/// The program reports every 20 kB, and takes the path that the agent sets.
fn program() -> Program {
    compile(
        "(hook send)
         (def (Report (rtt0 0) (marked0 0) (lost0 0) (flight0 0) (rtt1 0) (marked1 0) (lost1 0) (flight1 0)
                      (count 0) (age 0) (cgroup 0) (hash 0))
              (path 0))
         (when true
           (:= Path path) (:= DecideAt (+ Flow.bytes_sent 20000))
           (:= Report.rtt0 Path0.rtt_us) (:= Report.marked0 Path0.marked)
           (:= Report.lost0 Path0.lost) (:= Report.flight0 Path0.bytes_in_flight)
           (:= Report.rtt1 Path1.rtt_us) (:= Report.marked1 Path1.marked)
           (:= Report.lost1 Path1.lost) (:= Report.flight1 Path1.bytes_in_flight)
           (:= Report.count Path.count) (:= Report.age Flow.age_us)
           (:= Report.cgroup Flow.cgroup) (:= Report.hash Flow.hash) (report))",
    )
}

/// The measures of one path.
#[derive(Clone, Copy, Debug)]
struct OfPath {
    rtt_us: i64,
    marked: i64,
    lost: i64,
    in_flight: i64,
}

/// A report of a flow.
#[derive(Clone, Copy, Debug)]
struct Said {
    paths: [OfPath; 2],
    count: i64,
    age_us: i64,
    cgroup: i64,
    hash: i64,
}

impl Said {
    fn of(values: &[i64]) -> Said {
        let path = |at: usize| OfPath {
            rtt_us: values[at],
            marked: values[at + 1],
            lost: values[at + 2],
            in_flight: values[at + 3],
        };
        Said {
            paths: [path(0), path(4)],
            count: values[8],
            age_us: values[9],
            cgroup: values[10],
            hash: values[11],
        }
    }

    /// Holds what is true of every report.
    fn check(&self) {
        assert_eq!(self.count, 2, "{self:?}");
        for path in &self.paths {
            assert!((0..=ALL).contains(&path.marked) && (0..=ALL).contains(&path.lost), "{self:?}");
            // Of two flows, and what is sent again counts beside what it replaces.
            assert!((0..=3 * BURST as i64).contains(&path.in_flight), "{self:?}");
            assert!(path.rtt_us == 0 || path.rtt_us >= LEAST_RTT_US[0] - SLACK_US, "{self:?}");
        }
        assert_eq!(self.paths[1].marked, 0, "only the first link marks: {self:?}");
    }
}

/// Marks packets of IPv6 that leave by the first link, until what is returned is dropped; `None` without tcx.
fn mark_some(links: &MultiPath) -> Option<ProgramLink> {
    /// Offsets in `struct __sk_buff` of the packet's first byte and its end.
    const DATA: i16 = 76;
    const DATA_END: i16 = 80;
    /// The verdict that lets others decide.
    const NEXT: i64 = -1;
    /// The bits of ECN in the second byte of an IPv6 header: ECT(0), and what makes it CE.
    const ECN: i32 = 0x30;
    const ECT_0: i32 = 0x20;
    const TO_CE: i32 = 0x10;
    let mut asm = Asm::default();
    let out = asm.label();
    asm.mov(R::R6, R::R1);
    asm.call(Helper::GetPrandomU32);
    asm.alu_imm(Alu::And, R::R0, MARK_ONE_IN - 1);
    asm.jump_if_imm(R::R0, Cond::Ne, 0, out);
    asm.load(Size::B4, R::R2, R::R6, DATA);
    asm.load(Size::B4, R::R3, R::R6, DATA_END);
    asm.mov(R::R4, R::R2);
    asm.alu_imm(Alu::Add, R::R4, 2);
    asm.jump_if(R::R4, Cond::Gt, R::R3, out);
    asm.load(Size::B1, R::R1, R::R2, 0);
    asm.alu_imm(Alu::And, R::R1, 0xf0);
    asm.jump_if_imm(R::R1, Cond::Ne, 0x60, out);
    asm.load(Size::B1, R::R0, R::R2, 1);
    asm.mov(R::R1, R::R0);
    asm.alu_imm(Alu::And, R::R1, ECN);
    asm.jump_if_imm(R::R1, Cond::Ne, ECT_0, out);
    asm.alu_imm(Alu::Or, R::R0, TO_CE);
    asm.store(Size::B1, R::R2, 1, R::R0);
    asm.bind(out);
    asm.mov_imm(R::R0, NEXT);
    asm.exit();
    let insns = asm.finish().unwrap().insns;
    let loaded = prog_load(ProgType::SchedCls, "test_marks", &insns, AttachTo::default());
    let program = loaded.unwrap_or_else(|e| panic!("{}: {}", e.errno, e.log));
    let attach = || {
        let device = if_nametoindex(MultiPath::device(0).as_str()).unwrap();
        link_to(&program, device, TCX_EGRESS).ok()
    };
    links.sender_ns().run(attach).unwrap()
}

/// Two flows, each on its link.
struct Flows {
    datapath: PacketsDatapath,
    flows: Vec<LabFlow>,
    ids: Vec<FlowId>,
}

impl Flows {
    /// Takes all that was reported so far, and forgets it.
    fn drain(&mut self) {
        let mut events = Vec::new();
        while self.datapath.poll(EVENTS, &mut events) > 0 {
            events.clear();
        }
    }

    /// Sends on these flows until one of their reports, of the flow of that number, is as asked.
    fn until(&mut self, sending: &[usize], what: &str, mut done: impl FnMut(&Flows, usize, &Said) -> bool) {
        let (start, mut events, mut last) = (Instant::now(), Vec::new(), None);
        loop {
            for n in sending {
                self.datapath.heartbeat();
                self.flows[*n].send(BURST);
            }
            self.datapath.poll(EVENTS, &mut events);
            for event in events.drain(..) {
                let Event::Report { flow, values, .. } = event else { continue };
                let Some(n) = self.ids.iter().position(|id| *id == flow) else { continue };
                let said = Said::of(&values[..]);
                said.check();
                if done(self, n, &said) {
                    return;
                }
                last = Some(said);
            }
            assert!(start.elapsed() < PATIENCE, "{what}: {last:?}");
        }
    }

    /// Whether a path's round-trip time is about the one that the kernel tells of the flow on it.
    fn agrees(&self, path: usize, said: &Said) -> bool {
        let told_us = i64::from(TcpInfo::of(&self.flows[path].stream).unwrap().rtt_us);
        let found_us = said.paths[path].rtt_us;
        found_us <= 2 * told_us && told_us <= 2 * found_us
    }
}

/// When a flow's path is measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Measured {
    /// With packets that it sends.
    Packets,
    /// At each round trip, when the kernel calls back; packets are not sampled after the first one.
    RoundTrips,
}

fn links() -> MultiPath {
    let [near, mut far] = DELAYS_US.map(|delay_us| LinkConfig::symmetric(Shape::Unlimited, delay_us));
    far.up.loss = Loss { probability: LOSS, seed: 1 };
    let links = MultiPath::start(&[near, far]).unwrap();
    let set = || {
        fs::write("/proc/sys/net/ipv4/tcp_ecn", "1").unwrap();
        fs::write("/proc/sys/net/ipv4/tcp_congestion_control", "reno").unwrap();
    };
    links.sender_ns().run(set).unwrap();
    links
}

fn attach(lab: &Lab, links: &MultiPath, group: Option<&Group>, measured: Measured) -> PacketsDatapath {
    let path = |n| PathRoute { mark: MultiPath::mark(n), device: Some(MultiPath::device(n)) };
    let options = PacketsOptions {
        devices: [0, 1].map(MultiPath::device).to_vec(),
        paths: [0, 1].map(path).to_vec(),
        flowlet_gap: Duration::from_millis(1),
        writes_dscp: false,
        cgroup: group.map(Group::path).filter(|_| measured == Measured::RoundTrips),
        sample_interval: match measured {
            Measured::Packets => Duration::from_millis(1),
            Measured::RoundTrips => Duration::from_secs(3600),
        },
        ..lab.options()
    };
    links.sender_ns().run(|| PacketsDatapath::attach(options)).unwrap().unwrap()
}

fn measures(test: &str, measured: Measured) {
    let Some(lab) = Lab::new(test) else { return };
    let group = Group::enter(test);
    if group.is_none() && measured == Measured::RoundTrips {
        return skipped(test, "there are no control groups (v2) here");
    }
    let links = links();
    let mut datapath = attach(&lab, &links, group.as_ref(), measured);
    let (program, to) = (program(), SocketAddr::new(RECEIVER.v6.into(), 0));
    let path = Field::Reg(program.reg("path").unwrap());
    datapath.install(A, &program).unwrap();
    let began = Instant::now();
    let (mut flows, mut ids) = (Vec::new(), Vec::new());
    for _ in 0..2 {
        let mut flow = flow_between(links.sender_ns(), links.receiver_ns(), to);
        ids.push(steer(&mut datapath, &mut flow, A));
        flows.push(flow);
    }
    let known = Instant::now();
    datapath.update(ids[1], &[(path, 1)]).unwrap();
    let mut both = Flows { datapath, flows, ids };
    paths_are_told(test, &mut both, &links);
    age_and_group_are_told(&mut both, began, known, group.as_ref());

    // A flow that has ended is not in flight any more; what it measured is soon too old.
    both.flows.pop().unwrap().end();
    let ended = both.ids[1];
    wait_for(&mut both.datapath, "Closed", |e| (*e == Event::Closed { flow: ended }).then_some(()));
    both.until(&[0], "nothing is known of the second path any more", |_, _, said| {
        said.paths[1].in_flight == 0 && said.paths[1].rtt_us == 0
    });
    // What a flow has in flight goes with it to another path.
    both.datapath.update(both.ids[0], &[(path, 1)]).unwrap();
    both.until(&[0], "the first flow counts on the second path", |_, _, said| {
        said.paths[0].in_flight == 0 && said.paths[1].in_flight > 0 && said.paths[1].rtt_us > 0
    });
}

/// The second flow is to leave by the second link.
fn paths_are_told(test: &str, both: &mut Flows, links: &MultiPath) {
    // From here on it leaves by its own link alone, and no packet of it is marked.
    both.until(&[0, 1], "the second path is measured", |_, n, said| n == 1 && said.paths[1].rtt_us > 0);
    let marks = if both.datapath.hooking() == Hooking::Tcx { mark_some(links) } else { None };
    if marks.is_none() {
        skipped(test, "without tcx no packet is marked");
    }
    let mut hashes = [None; 2];
    both.until(&[0, 1], "both paths are told as tcp_info has them", |flows, n, said| {
        assert_eq!(*hashes[n].get_or_insert(said.hash), said.hash, "of one flow: {said:?}");
        let [near, far] = said.paths;
        flows.agrees(0, said)
            && flows.agrees(1, said)
            && near.rtt_us >= LEAST_RTT_US[0] - SLACK_US
            && far.rtt_us >= LEAST_RTT_US[1] - SLACK_US
            && near.rtt_us < far.rtt_us
            && hashes.iter().all(Option::is_some)
    });
    assert_ne!(hashes[0], hashes[1], "other ports");
    let mut never_lost = true;
    both.until(&[0, 1], "marks and losses are told of their own paths", |_, _, said| {
        never_lost &= said.paths[0].lost == 0;
        (marks.is_none() || said.paths[0].marked > 0) && said.paths[1].lost > 0
    });
    both.until(&[0, 1], "bytes in flight are told of either path", |_, n, said| said.paths[n].in_flight > 0);
    let sent_again = [0, 1].map(|n| TcpInfo::of(&both.flows[n].stream).unwrap().total_retrans);
    assert!(sent_again[1] > 0, "its link loses packets: {sent_again:?}");
    assert!(sent_again[0] > 0 || never_lost, "nothing of the first flow was lost");
}

/// Holds the first flow's age against the clock, and its control group against the file system.
fn age_and_group_are_told(both: &mut Flows, began: Instant, known: Instant, group: Option<&Group>) {
    let quiet = Instant::now();
    both.drain();
    let mut told = None;
    both.until(&[0], "the first flow reports", |_, n, said| {
        told = (n == 0).then_some(*said);
        told.is_some()
    });
    let (told, now) = (told.unwrap(), Instant::now());
    let us = |from: Instant, to: Instant| (to - from).as_micros() as i64;
    let (least_us, most_us) = (us(known, quiet) - SLACK_US, us(began, now) + SLACK_US);
    assert!((least_us..=most_us).contains(&told.age_us), "{least_us} to {most_us}: {told:?}");
    if let Some(group) = group {
        assert_eq!(told.cgroup as u64, fs::metadata(group.path()).unwrap().ino(), "{told:?}");
    }
}

#[test]
fn paths_are_measured_with_the_packets_that_flows_send() {
    measures("pk-meas", Measured::Packets);
}

#[test]
fn paths_are_measured_at_each_round_trip_of_a_groups_sockets() {
    measures("pk-measrt", Measured::RoundTrips);
}
