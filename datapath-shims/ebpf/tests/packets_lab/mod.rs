//! Helpers for tests of the packets' datapath: two namespaces joined by two cables, flows, and what their receiver sees.
#![allow(dead_code, reason = "each test file uses its part")]

use std::collections::HashMap;
use std::fs;
use std::io::{ErrorKind, IoSliceMut, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use ccplane_contract::suite::wait_for_event;
use ccplane_contract::{Datapath, Event, FlowId, FlowStats, ProgramUid};
use ccplane_ebpf::packets::{Marking, PacketsDatapath, PacketsOptions, cgroup_root};
use ccplane_emulator::netns::{Namespace, available};
use ccplane_program::ir::Program;
use ccplane_testing::{PATIENCE, found, poll_within, skipped, wait_until};
use nix::cmsg_space;
use nix::net::if_::if_nametoindex;
use nix::sys::socket::{
    AddressFamily, ControlMessageOwned, LinkAddr, MsgFlags, SockFlag, SockProtocol, SockType, recvmsg,
    setsockopt, socket, sockopt,
};
use nix::sys::time::{TimeSpec, TimeVal};

/// The devices at either end of each cable.
pub const CABLES: [&str; 2] = ["p0", "p1"];
/// The receiver's addresses, which both cables lead to.
pub const RECEIVER_V4: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 78, 0, 1));
pub const RECEIVER_V6: IpAddr = IpAddr::V6(Ipv6Addr::new(0xfd78, 0, 0, 0, 0, 0, 0, 1));
/// The mark by which routes lead over the second cable.
pub const SECOND_MARK: u32 = 1;
/// The bits of marks that are the datapath's.
pub const MARK_MASK: u32 = 0xf;
/// Receive buffer of a capture, bytes: no packet is to be missed.
const CAPTURE_BYTES: usize = 64 << 20;
/// `PACKET_HOST`: a packet that was sent to this host.
const TO_US: u8 = 0;
/// `PACKET_OUTGOING`: a packet that this host sends.
const FROM_US: u8 = 4;

/// Two namespaces joined by two cables; the first one's routes take the first cable, and the second one for [`SECOND_MARK`].
pub struct Lab {
    pub sender: Namespace,
    pub receiver: Namespace,
    pub run_dir: tempfile::TempDir,
    name: String,
}

/// Runs a command of iproute2 in a namespace.
pub fn run(tool: &str, namespace: &Namespace, arguments: &str) -> String {
    let mut command = Command::new(tool);
    command.args(["-n", namespace.name().unwrap()]).args(arguments.split_whitespace());
    let output = command.output().unwrap();
    assert!(output.status.success(), "{tool} {arguments}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

impl Lab {
    /// Makes a lab; reports a skip and returns `None` if the machine cannot run the test.
    pub fn new(test: &str) -> Option<Lab> {
        if !available() || Command::new("ip").arg("-V").output().is_err() {
            skipped(test, "needs root, network namespaces and ip(8)");
            return None;
        }
        found(test, ccplane_ebpf::packets::available())?;
        let sender = Namespace::create(&format!("{test}-a")).unwrap();
        let receiver = Namespace::create(&format!("{test}-b")).unwrap();
        for (n, device) in CABLES.into_iter().enumerate() {
            let peer = receiver.name().unwrap();
            let [a, b] = [1, 2].map(|host| format!("address {}", mac(n, host)));
            run(
                "ip",
                &sender,
                &format!("link add {device} {a} type veth peer name {device} {b} netns {peer}"),
            );
            for (end, namespace) in [&sender, &receiver].into_iter().enumerate() {
                let host = end + 1;
                run("ip", namespace, &format!("addr add 10.77.{n}.{host}/30 dev {device}"));
                run("ip", namespace, &format!("addr add fd77:{n}::{host}/64 dev {device} nodad"));
                run("ip", namespace, &format!("link set {device} up"));
                // Nobody has to ask for them: a busy machine answers after a flow's first retransmission.
                let peer = 2 - end;
                for address in [format!("10.77.{n}.{peer}"), format!("fd77:{n}::{peer}")] {
                    run(
                        "ip",
                        namespace,
                        &format!("neighbour add {address} lladdr {} dev {device}", mac(n, peer)),
                    );
                }
            }
        }
        run("ip", &receiver, &format!("addr add {RECEIVER_V4}/32 dev lo"));
        run("ip", &receiver, &format!("addr add {RECEIVER_V6}/128 dev lo nodad"));
        for (family, to, gateway) in
            [("-4", RECEIVER_V4, ["10.77.0.2", "10.77.1.2"]), ("-6", RECEIVER_V6, ["fd77:0::2", "fd77:1::2"])]
        {
            run("ip", &sender, &format!("{family} route add {to} via {} dev p0", gateway[0]));
            run("ip", &sender, &format!("{family} route add {to} via {} dev p1 table 101", gateway[1]));
            run("ip", &sender, &format!("{family} rule add fwmark {SECOND_MARK}/{MARK_MASK} table 101"));
        }
        let run_dir = tempfile::tempdir().unwrap();
        Some(Lab { sender, receiver, run_dir, name: format!("ccp_{test}").replace('-', "_") })
    }

    /// Options for both cables, under which priority n is code point 10 + n.
    pub fn options(&self) -> PacketsOptions {
        PacketsOptions {
            run_dir: self.run_dir.path().into(),
            name: self.name.clone(),
            devices: CABLES.map(String::from).to_vec(),
            markings: std::array::from_fn(|n| Marking { dscp: dscp(n as u32), ..Marking::default() }),
            writes_dscp: true,
            mark_mask: MARK_MASK,
            // Longer than a test's thread waits for a processor.
            heartbeat_timeout: Duration::from_secs(20),
            ..PacketsOptions::default()
        }
    }

    pub fn attach(&self, options: PacketsOptions) -> PacketsDatapath {
        self.sender.run(|| PacketsDatapath::attach(options)).unwrap().unwrap()
    }

    /// Starts a flow, of which the receiver reads all.
    pub fn flow(&self, to: IpAddr, port: u16) -> LabFlow {
        flow_between(&self.sender, &self.receiver, (to, port).into())
    }

    /// Begins to record what arrives at the receiver, of either cable.
    pub fn capture(&self) -> Capture {
        let opened = self.receiver.run(|| {
            let protocol = SockProtocol::EthAll;
            let flags = SockFlag::SOCK_CLOEXEC;
            let socket = socket(AddressFamily::Packet, SockType::Datagram, flags, protocol).unwrap();
            (socket, CABLES.map(|device| if_nametoindex(device).unwrap() as usize))
        });
        let (socket, devices) = opened.unwrap();
        setsockopt(&socket, sockopt::RcvBufForce, &CAPTURE_BYTES).unwrap();
        setsockopt(&socket, sockopt::ReceiveTimestampns, &true).unwrap();
        setsockopt(&socket, sockopt::ReceiveTimeout, &TimeVal::new(0, 20_000)).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        Capture { stop, thread: std::thread::spawn(move || record(&socket, devices, &stopped)) }
    }
}

/// Starts a flow between two namespaces, of which the receiver reads all.
pub fn flow_between(sender: &Namespace, receiver: &Namespace, to: SocketAddr) -> LabFlow {
    let listener = receiver.run(|| TcpListener::bind(to).unwrap()).unwrap();
    let remote = listener.local_addr().unwrap();
    let received = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&received);
    let reader = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut buffer = vec![0; 1 << 16];
        while let Ok(bytes @ 1..) = stream.read(&mut buffer) {
            count.fetch_add(bytes as u64, SeqCst);
        }
    });
    let stream = sender.run(|| TcpStream::connect(remote).unwrap()).unwrap();
    stream.set_nodelay(true).unwrap();
    LabFlow { stream, remote, received, sent: 0, reader: Some(reader) }
}

/// The hardware address of a host's end of a cable.
fn mac(cable: usize, host: usize) -> String {
    format!("02:00:00:00:0{cable}:0{host}")
}

/// The code point of a priority in these tests.
pub fn dscp(priority: u32) -> u32 {
    10 + priority
}

/// A flow and its reader.
pub struct LabFlow {
    pub stream: TcpStream,
    pub remote: SocketAddr,
    received: Arc<AtomicU64>,
    sent: u64,
    reader: Option<JoinHandle<()>>,
}

impl LabFlow {
    /// Writes so many bytes and waits until all have arrived.
    pub fn send(&mut self, bytes: usize) {
        self.stream.write_all(&vec![0; bytes]).unwrap();
        self.sent += bytes as u64;
        let all = self.sent;
        wait_until("all bytes arrive", || self.received.load(SeqCst) == all);
    }

    pub fn local(&self) -> SocketAddr {
        self.stream.local_addr().unwrap()
    }

    /// Closes it and waits for its reader.
    pub fn end(mut self) {
        let reader = self.reader.take().unwrap();
        drop(self);
        reader.join().unwrap();
    }
}

/// A packet as the receiver got it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Packet {
    /// When the kernel got it.
    pub at_us: u64,
    pub local_port: u16,
    pub remote_port: u16,
    /// The cable that it came over.
    pub cable: usize,
    pub dscp: u32,
    pub flow_label: u32,
    pub sequence: u32,
    pub payload: u32,
    /// The sequence number up to which the receiver had acknowledged when it came.
    pub acknowledged: u32,
}

pub struct Capture {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Vec<Packet>>,
}

impl Capture {
    /// Ends it and returns the packets of a flow's sender, in order of arrival.
    pub fn of(self, local: SocketAddr) -> Vec<Packet> {
        let mut all = self.all();
        all.retain(|p| p.local_port == local.port());
        all
    }

    /// Ends it and returns all packets.
    pub fn all(self) -> Vec<Packet> {
        self.stop.store(true, SeqCst);
        self.thread.join().unwrap()
    }
}

fn record(socket: &OwnedFd, devices: [usize; 2], stop: &AtomicBool) -> Vec<Packet> {
    let (mut packets, mut buffer) = (Vec::new(), [0u8; 128]);
    let mut acknowledged = HashMap::new();
    let mut stamp = cmsg_space!(TimeSpec);
    loop {
        let mut parts = [IoSliceMut::new(&mut buffer)];
        let received =
            recvmsg::<LinkAddr>(socket.as_raw_fd(), &mut parts, Some(&mut stamp), MsgFlags::empty());
        let received = received.map(|m| (m.bytes, m.address, m.cmsgs().unwrap().next()));
        match received {
            Ok((len, Some(from), Some(ControlMessageOwned::ScmTimestampns(at)))) => {
                let at_us = Duration::from(at).as_micros() as u64;
                let cable = devices.iter().position(|device| *device == from.ifindex());
                let parsed = parse(&buffer[..len]);
                let (Some((packet, acknowledges)), Some(cable)) = (parsed, cable) else { continue };
                if from.pkttype() == FROM_US {
                    acknowledged.insert((packet.remote_port, packet.local_port), acknowledges);
                } else if from.pkttype() == TO_US {
                    let flow = (packet.local_port, packet.remote_port);
                    let acknowledged = acknowledged.get(&flow).copied().unwrap_or(0);
                    packets.push(Packet { at_us, cable, acknowledged, ..packet });
                }
            }
            Ok(_) => {}
            Err(_) if stop.load(SeqCst) => return packets,
            Err(_) => {}
        }
    }
}

/// Reads a TCP packet from its network header on; returns the sequence number that it acknowledges, too.
fn parse(bytes: &[u8]) -> Option<(Packet, u32)> {
    let be16 = |at: usize| Some(u16::from_be_bytes(bytes.get(at..at + 2)?.try_into().ok()?));
    let be32 = |at: usize| Some(u32::from_be_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
    let (class, flow_label, header, total, protocol) = match bytes.first()? >> 4 {
        4 => {
            let header = usize::from(bytes[0] & 15) * 4;
            (u32::from(*bytes.get(1)?), 0, header, usize::from(be16(2)?), *bytes.get(9)?)
        }
        6 => {
            let word = be32(0)?;
            (word >> 20 & 0xff, word & 0xf_ffff, 40, usize::from(be16(4)?) + 40, *bytes.get(6)?)
        }
        _ => return None,
    };
    if protocol != 6 {
        return None;
    }
    let options = usize::from(bytes.get(header + 12)? >> 4) * 4;
    let packet = Packet {
        at_us: 0,
        local_port: be16(header)?,
        remote_port: be16(header + 2)?,
        cable: 0,
        dscp: class >> 2,
        flow_label,
        sequence: be32(header + 4)?,
        payload: u32::try_from(total.checked_sub(header + options)?).ok()?,
        acknowledged: 0,
    };
    Some((packet, be32(header + 8)?))
}

/// Compiles a program of a test.
pub fn compile(source: &str) -> Program {
    ccplane_program::compile(source).unwrap()
}

/// Polls, with heartbeats, until `done` accepts an event.
pub fn wait_for<T>(datapath: &mut PacketsDatapath, what: &str, done: impl FnMut(&Event) -> Option<T>) -> T {
    let wait = |d: &mut PacketsDatapath| d.events().wait(Duration::from_millis(20), None).unwrap();
    wait_for_event(datapath, PATIENCE, what, wait, done)
}

/// The id of a flow, whose first byte is sent; and a program is set on it.
pub fn steer(datapath: &mut PacketsDatapath, flow: &mut LabFlow, program: ProgramUid) -> FlowId {
    flow.send(1);
    let (local, remote) = (flow.local(), flow.remote);
    let id = wait_for(datapath, "Created", |e| match e {
        Event::Created { flow, info } if info.local == local => {
            assert_eq!(info.remote, remote);
            Some(*flow)
        }
        _ => None,
    });
    datapath.set_program(id, program, &[]).unwrap();
    id
}

/// The flow's statistics as they are.
pub fn stats(datapath: &mut PacketsDatapath, flow: FlowId) -> FlowStats {
    datapath.flows().into_iter().find(|f| f.flow == flow).expect("the flow is listed")
}

/// Sleeps for a while in which nothing is sent.
pub fn pause(time: Duration) {
    std::thread::sleep(time);
}

/// Tests that move this process wait for each other.
static ENTERED: Mutex<()> = Mutex::new(());

/// A control group (v2) of this process; it goes back to its own when this is dropped.
pub struct Group {
    path: PathBuf,
    before: PathBuf,
    _alone: MutexGuard<'static, ()>,
}

impl Group {
    /// Makes one and moves this process there; `None` where there are no control groups.
    pub fn enter(test: &str) -> Option<Group> {
        let alone = ENTERED.lock().unwrap_or_else(PoisonError::into_inner);
        let root = cgroup_root()?;
        let own = fs::read_to_string("/proc/self/cgroup").ok()?;
        let own = own.lines().find_map(|line| line.strip_prefix("0::/"))?;
        let before = root.join(own.trim());
        let path = root.join(format!("ccp-{}-{test}", std::process::id()));
        fs::create_dir(&path).ok()?;
        let group = Group { path, before, _alone: alone };
        fs::write(group.path.join("cgroup.procs"), std::process::id().to_string()).ok()?;
        Some(group)
    }

    pub fn path(&self) -> PathBuf {
        self.path.clone()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = fs::write(self.before.join("cgroup.procs"), std::process::id().to_string());
        let _ = poll_within(PATIENCE, || match fs::remove_dir(&self.path) {
            Err(error) if error.kind() == ErrorKind::ResourceBusy => Err(error),
            removed_or_not => Ok(removed_or_not),
        });
    }
}
