//! Helpers that the tests in a machine share: the module, two namespaces with a link, flows between them.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use ccplane_contract::suite::{report_in, wait_for_event};
use ccplane_contract::{Datapath, Event, FlowId, FlowStats, ProgramUid};
use ccplane_module::{DEFAULT_DEVICE, ModuleDatapath};
use ccplane_testing::{wait_for_ok, wait_within};
use nix::errno::Errno;
use nix::sched::{CloneFlags, setns};
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, SockaddrStorage, connect, setsockopt, socket, sockopt,
};

/// Silence of the agent after which flows run natively: longer than a thread waits for an emulated processor.
pub const HEARTBEAT_TIMEOUT: Duration = Duration::from_millis(1500);
/// The longest wait for what must happen.
pub const PATIENCE: Duration = Duration::from_secs(120);
/// Loses some packets by itself: TCP keeps its packets in a queue of its own machine below the queue's limit.
const LINK: &str = "rate 20mbit delay 5ms limit 50";
const LOSS: &str = "loss 0.05%";
/// A link that carries nothing.
const DEAD: &str = "loss 100%";
const CHUNK: [u8; 16 << 10] = [0; 16 << 10];

fn must(command: &str) {
    let done = Command::new("sh").args(["-c", command]).output().unwrap();
    assert!(done.status.success(), "{command}: {}", String::from_utf8_lossy(&done.stderr));
}

/// Multiplies a number of a test run by what `make module-test` asks for.
pub fn times(of_a_run: u32) -> u32 {
    let factor = std::env::var("CCPLANE_TIMES").ok().and_then(|n| n.parse().ok()).unwrap_or(1);
    of_a_run * factor
}

/// Whether the module could be unloaded.
pub fn unloads() -> bool {
    Command::new("rmmod").arg("ccplane").output().unwrap().status.success()
}

/// The module, loaded with these parameters; unloaded when dropped.
pub struct LoadedModule;

impl LoadedModule {
    pub fn with(parameters: &str) -> LoadedModule {
        must(&format!("insmod ccplane.ko {parameters}"));
        LoadedModule
    }
}

impl Drop for LoadedModule {
    fn drop(&mut self) {
        wait_until("the module unloads", unloads);
    }
}

/// Two namespaces, joined by a link, under names of their own.
pub struct Lab {
    // Dropped after the namespaces.
    _module: Option<LoadedModule>,
    number: u32,
    near: String,
    far: String,
}

impl Lab {
    pub fn new() -> Lab {
        Lab::with("")
    }

    pub fn with(parameters: &str) -> Lab {
        Lab::beside(Some(LoadedModule::with(parameters)))
    }

    /// A lab whose module, if there is one, is its own.
    pub fn beside(module: Option<LoadedModule>) -> Lab {
        static LABS: AtomicU32 = AtomicU32::new(0);
        let n = LABS.fetch_add(1, Ordering::Relaxed);
        let (near, far) = (format!("n{n}"), format!("f{n}"));
        must(&format!("ip netns add {near}; ip netns add {far}"));
        must(&format!("ip link add v{n} netns {near} type veth peer name w{n} netns {far}"));
        for (namespace, device, host) in [(&near, format!("v{n}"), 1), (&far, format!("w{n}"), 2)] {
            must(&format!("ip -n {namespace} addr add 10.0.0.{host}/24 dev {device}"));
            must(&format!("ip -n {namespace} addr add fd00::{host}/64 dev {device} nodad"));
            must(&format!("ip -n {namespace} link set lo up; ip -n {namespace} link set {device} up"));
        }
        // The queue counts packets, not bursts.
        must(&format!("ip -n {near} link set v{n} gso_max_segs 1"));
        must(&format!("ip netns exec {near} tc qdisc add dev v{n} root netem {LINK} {LOSS}"));
        Lab { _module: module, number: n, near, far }
    }

    /// Asks `ss` for a flow, with numbers in full.
    pub fn shown(&self, bulk: &Bulk) -> String {
        let (namespace, port) = (&self.near, bulk.local().port());
        let shown = Command::new("ip")
            .args(["netns", "exec", namespace, "ss", "-tinOH", &format!("sport = :{port}")])
            .output()
            .unwrap();
        assert!(shown.status.success(), "{}", String::from_utf8_lossy(&shown.stderr));
        String::from_utf8(shown.stdout).unwrap()
    }

    /// Lets the link carry packets, or none.
    pub fn carries(&self, anything: bool) {
        let (near, n, loss) = (&self.near, self.number, if anything { LOSS } else { DEAD });
        must(&format!("ip netns exec {near} tc qdisc change dev v{n} root netem {LINK} {loss}"));
    }

    /// Runs `f` on a thread in the namespace that sends.
    pub fn near<T: Send>(&self, f: impl FnOnce() -> T + Send) -> T {
        within(&self.near, f)
    }

    pub fn attach(&self) -> ModuleDatapath {
        attach()
    }

    /// Starts a bulk flow under the module.
    pub fn flow(&self) -> Bulk {
        self.flow_to("10.0.0.2")
    }

    pub fn flow_to(&self, address: &str) -> Bulk {
        self.flow_under("ccplane", address)
    }

    /// Starts a bulk flow whose socket asks for this congestion control.
    pub fn flow_under(&self, congestion: &str, address: &str) -> Bulk {
        let to: IpAddr = address.parse().unwrap();
        let listener = within(&self.far, || TcpListener::bind((to, 0)).unwrap());
        let to = listener.local_addr().unwrap();
        let stream = within(&self.near, || connected(to, congestion));
        let (received, _) = listener.accept().unwrap();
        Bulk::between(stream, received)
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        must(&format!("ip netns del {}; ip netns del {}", self.near, self.far));
    }
}

pub fn attach() -> ModuleDatapath {
    ModuleDatapath::open(Path::new(DEFAULT_DEVICE), HEARTBEAT_TIMEOUT).unwrap()
}

fn within<T: Send>(namespace: &str, f: impl FnOnce() -> T + Send) -> T {
    let at = File::open(format!("/run/netns/{namespace}")).unwrap();
    std::thread::scope(|scope| {
        let there = scope.spawn(move || {
            setns(at, CloneFlags::CLONE_NEWNET).unwrap();
            f()
        });
        there.join().unwrap()
    })
}

/// A connection under this congestion control, which sends a reset when it is closed.
pub fn connected(to: SocketAddr, congestion: &str) -> TcpStream {
    let family = if to.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    let fd = socket(family, SockType::Stream, SockFlag::SOCK_CLOEXEC, None).unwrap();
    setsockopt(&fd, sockopt::TcpCongestion, &congestion.into()).unwrap();
    setsockopt(&fd, sockopt::Linger, &nix::libc::linger { l_onoff: 1, l_linger: 0 }).unwrap();
    // A link that just came up may not know its neighbour yet.
    wait_until("the other end is reached", || match connect(fd.as_raw_fd(), &SockaddrStorage::from(to)) {
        Err(Errno::EHOSTUNREACH) => false,
        connected => connected.map(|()| true).unwrap(),
    });
    TcpStream::from(fd)
}

/// The kernel's struct tcpvegas_info (linux/inet_diag.h).
#[repr(C)]
#[derive(Default, Debug)]
pub struct VegasInfo {
    pub enabled: u32,
    pub rttcnt: u32,
    pub rtt_us: u32,
    pub minrtt_us: u32,
}

/// A flow that sends as much as it can until it is dropped.
pub struct Bulk {
    stream: TcpStream,
    local: SocketAddr,
    received_bytes: Arc<AtomicU64>,
    threads: Vec<std::thread::JoinHandle<()>>,
}

impl Bulk {
    fn between(stream: TcpStream, mut received: TcpStream) -> Bulk {
        let mut writing = stream.try_clone().unwrap();
        let local = stream.local_addr().unwrap();
        let writes = std::thread::spawn(move || while writing.write(&CHUNK).is_ok_and(|n| n > 0) {});
        let received_bytes = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&received_bytes);
        let reads = std::thread::spawn(move || {
            let mut room = CHUNK;
            while let Some(n) = received.read(&mut room).ok().filter(|n| *n > 0) {
                counted.fetch_add(n as u64, Ordering::Relaxed);
            }
        });
        Bulk { stream, local, received_bytes, threads: vec![writes, reads] }
    }

    pub fn local(&self) -> SocketAddr {
        self.local
    }

    /// Returns the bytes that have reached the other end.
    pub fn received_bytes(&self) -> u64 {
        self.received_bytes.load(Ordering::Relaxed)
    }

    /// Asks the congestion control for the record of Vegas.
    pub fn record(&self) -> VegasInfo {
        let mut info = VegasInfo::default();
        let mut len = size_of::<VegasInfo>() as nix::libc::socklen_t;
        // SAFETY: the kernel writes at most `len` bytes to `info`, for which every value of these bytes is one.
        let got = unsafe {
            nix::libc::getsockopt(
                self.stream.as_raw_fd(),
                nix::libc::IPPROTO_TCP,
                nix::libc::TCP_CC_INFO,
                (&raw mut info).cast(),
                &mut len,
            )
        };
        assert_eq!((got, len as usize), (0, size_of::<VegasInfo>()));
        info
    }
}

impl Drop for Bulk {
    fn drop(&mut self) {
        let _ = self.stream.shutdown(Shutdown::Both);
        // What is left unsent is dropped with the last descriptor.
        for thread in std::mem::take(&mut self.threads) {
            let _ = thread.join();
        }
    }
}

pub fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    wait_within(PATIENCE, what, || holds().then_some(()));
}

/// Polls, with heartbeats, until `done` accepts an event. Later events are left for the next call.
pub fn wait_for<T>(datapath: &mut ModuleDatapath, what: &str, done: impl FnMut(&Event) -> Option<T>) -> T {
    let wait = |d: &mut ModuleDatapath| d.wait_also(Duration::from_millis(20), None).unwrap();
    wait_for_event(datapath, PATIENCE, what, wait, done)
}

/// The id of a flow, once its event arrives.
pub fn created(datapath: &mut ModuleDatapath, bulk: &Bulk) -> FlowId {
    wait_for(datapath, "Created", |e| match e {
        Event::Created { flow, info } if info.local == bulk.local() => Some(*flow),
        _ => None,
    })
}

/// The next report of a flow by a program: its number and values.
pub fn report(datapath: &mut ModuleDatapath, of: FlowId, by: ProgramUid) -> (u32, Vec<i64>) {
    wait_for(datapath, "Report", |e| report_in(e, of, by))
}

/// The flow's statistics once `done` holds of them; with heartbeats.
pub fn stats(datapath: &mut ModuleDatapath, of: FlowId, done: impl Fn(&FlowStats) -> bool) -> FlowStats {
    wait_for_ok(PATIENCE, "the flow's statistics", || {
        datapath.heartbeat();
        datapath.poll(0, &mut Vec::new());
        match datapath.flows().into_iter().find(|f| f.flow == of) {
            Some(stats) if done(&stats) => Ok(stats),
            last => Err(last.map(Box::new)),
        }
    })
}

/// A line of the module's statistics.
pub fn counted(name: &str) -> u64 {
    let text = std::fs::read_to_string("/sys/class/misc/ccplane/statistics").unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("no {name} in {text}")).parse().unwrap()
}

/// Has the machine's own namespace carry flows.
pub fn up() {
    must("ip link set lo up");
}
