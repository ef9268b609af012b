//! A real `ccplane agent` in a directory of its own, and a real libccp datapath that speaks to it.
#![allow(dead_code, reason = "each test binary uses a part")]

use std::cell::{Cell, RefCell};
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::path::{Path as FsPath, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::rc::Rc;
use std::time::Duration;

use ccplane_oracle::path::{Path, PathConfig};
use ccplane_program::compile;
use ccplane_program::ir::{INFINITY, Prim};
use ccplane_program::stock::lower;
use ccplane_program::vm::Prims;
use ccplane_wire::List;
use ccplane_wire::v1::{Bytecode, ChangeProg, Field, Install, ToDatapath};
use libccp::{CongestionOps, Connection, Datapath, DatapathOps, FlowInfo, LibccpError, Primitives};

pub use ccplane_testing::wait_for;

const NAP: Duration = Duration::from_millis(1);
/// Bytes of a segment.
pub const MSS: u64 = 1448;

/// The `ccplane` binary: `CCPLANE_BIN`, else what was built beside this test. None, said loudly, where there is
/// none.
pub fn ccplane(test: &str) -> Option<PathBuf> {
    if let Some(path) = std::env::var_os("CCPLANE_BIN") {
        return Some(path.into());
    }
    // target/PROFILE/deps/TEST
    let exe = std::env::current_exe().unwrap();
    let (profile, target) = (exe.ancestors().nth(2).unwrap(), exe.ancestors().nth(3).unwrap());
    let found = [profile.join("ccplane"), target.join("debug/ccplane"), target.join("release/ccplane")];
    let found = found.into_iter().find(|path| path.exists());
    if found.is_none() {
        let why = "`ccplane` is not built (cargo build -p ccplane), and CCPLANE_BIN is not set";
        ccplane_testing::skipped(test, why);
    }
    found
}

/// A run directory that is removed after the test.
pub struct Home {
    binary: PathBuf,
    dir: tempfile::TempDir,
}

impl Home {
    /// An agent here steers flows of other processes only, by `algorithm`.
    pub fn new(test: &str, algorithm: &str) -> Option<Home> {
        let home = Home { binary: ccplane(test)?, dir: tempfile::tempdir().unwrap() };
        fs::set_permissions(home.dir.path(), fs::Permissions::from_mode(0o700)).unwrap();
        home.configure_at(algorithm, &home.path("ccp.sock"), "");
        Some(home)
    }

    /// Has the next agent steer flows by `algorithm`, with more lines of configuration.
    pub fn configure_with(&self, algorithm: &str, more: &str) {
        self.configure_at(algorithm, &self.path("ccp.sock"), more);
    }

    /// The same, at a datapaths' socket of this path.
    pub fn configure_at(&self, algorithm: &str, socket: &FsPath, more: &str) {
        let config = format!(
            "default_algorithm = \"{algorithm}\"\ncontrol.socket = {:?}\n[datapath.ebpf]\nmode = \"off\"\n\
             [datapath.unix]\nsocket = {:?}\n",
            self.path("control.sock"),
            socket,
        );
        fs::write(self.path("agent.toml"), config + more).unwrap();
    }

    /// Replaces the configuration; the sockets are set here.
    pub fn configure(&self, text: &str) {
        let sockets = (self.path("control.sock"), self.path("ccp.sock"));
        let config =
            format!("control.socket = {:?}\n{text}[datapath.unix]\nsocket = {:?}\n", sockets.0, sockets.1);
        fs::write(self.path("agent.toml"), config).unwrap();
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.binary);
        command.args(arguments).env("CCPLANE_CONFIG", self.path("agent.toml"));
        command.env_remove("CCPLANE_SOCKET").env_remove("CCPLANE_LOG");
        command
    }

    pub fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    pub fn json(&self, arguments: &[&str]) -> serde_json::Value {
        let output = self.run(&[arguments, &["--json"]].concat());
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// Returns the flows that `ccplane flows` lists.
    pub fn flows(&self) -> Vec<serde_json::Value> {
        self.json(&["flows"])["flows"].as_array().unwrap().clone()
    }

    pub fn log(&self) -> String {
        fs::read_to_string(self.path("log")).unwrap_or_default()
    }

    /// Starts an agent and waits until it serves.
    pub fn agent(&self) -> Agent {
        let log = fs::File::create(self.path("log")).unwrap();
        let mut command = self.command(&["agent"]);
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn().unwrap();
        let mut agent = Agent(child);
        wait_for("the agent serves", || {
            if let Some(status) = agent.0.try_wait().unwrap() {
                panic!("the agent ended with {status}: {}", self.log());
            }
            self.run(&["status"]).status.success().then_some(())
        });
        agent
    }
}

/// A running agent; killed (-9) when dropped.
pub struct Agent(Child);

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The link of a datapath's messages to the agent, and back.
pub trait MessageLink {
    /// Sends one message, or drops it where nobody listens.
    fn send(&self, message: &[u8]);

    /// Takes one waiting message; its length.
    fn receive(&self, buffer: &mut [u8]) -> Option<usize>;
}

/// A unix datagram socket, as in the libccp crate's own documentation.
struct Unix {
    socket: UnixDatagram,
    agent: PathBuf,
}

impl MessageLink for Unix {
    fn send(&self, message: &[u8]) {
        // As a socket that blocks: a queue that is full is waited for, an agent that is not there is not.
        while let Err(e) = self.socket.send_to(message, &self.agent) {
            if e.kind() != ErrorKind::WouldBlock {
                break;
            }
            std::thread::sleep(NAP);
        }
    }

    fn receive(&self, buffer: &mut [u8]) -> Option<usize> {
        self.socket.recv(buffer).ok()
    }
}

/// The sender of libccp's messages.
struct ToAgent(Rc<dyn MessageLink>);

impl DatapathOps for ToAgent {
    fn send_msg(&mut self, msg: &[u8]) {
        self.0.send(msg);
    }
}

/// A process's libccp datapath, as the libccp crate offers it.
pub struct Shim {
    datapath: Datapath,
    link: Rc<dyn MessageLink>,
    /// Programs of algorithms that libccp accepted, and times that it was told to forget all.
    pub installs: Cell<usize>,
    pub clears: Cell<usize>,
    /// Flows that were set to a program of an algorithm.
    pub changes: Cell<usize>,
    started: Cell<usize>,
    /// Windows that the agent set.
    pub windows: RefCell<Vec<u64>>,
}

impl Shim {
    /// Starts libccp: its READY goes to the agent at `agent`, if there is one.
    pub fn new(own: &FsPath, agent: &FsPath) -> Shim {
        let socket = UnixDatagram::bind(own).unwrap();
        socket.set_nonblocking(true).unwrap();
        Shim::over(Rc::new(Unix { socket, agent: agent.to_owned() }))
    }

    /// Starts libccp, whose messages go over this link.
    pub fn over(link: Rc<dyn MessageLink>) -> Shim {
        let datapath = ccplane_oracle::libccp::datapath(ToAgent(Rc::clone(&link)), 57).unwrap();
        Shim {
            datapath,
            link,
            installs: Cell::new(0),
            clears: Cell::new(0),
            changes: Cell::new(0),
            started: Cell::new(0),
            windows: RefCell::default(),
        }
    }

    /// Gives libccp all messages that wait; each must be one of v1's, and libccp must accept it.
    pub fn pump(&self) {
        let mut buffer = [0; 65_536];
        while let Some(n) = self.link.receive(&mut buffer) {
            match ToDatapath::parse_all(&buffer[..n]).next().unwrap().unwrap() {
                ToDatapath::Install(install) if install.program_uid == 1 => {
                    self.clears.set(self.clears.get() + 1);
                }
                // The second is the name of what only keeps a place.
                ToDatapath::Install(install) if install.program_uid == 2 => {}
                ToDatapath::Install(_) => self.installs.set(self.installs.get() + 1),
                ToDatapath::ChangeProg(change) if change.program_uid <= 2 => {}
                ToDatapath::ChangeProg(_) => self.changes.set(self.changes.get() + 1),
                ToDatapath::Update(update) => {
                    let cwnd = update.fields.iter().filter(|(field, _)| *field == Field::Cwnd);
                    self.windows.borrow_mut().extend(cwnd.map(|(_, value)| value));
                }
            }
            match self.datapath.recv_msg(&mut buffer[..n]) {
                // The flow has ended since.
                Ok(()) | Err(LibccpError::LibccpUnknownConnection) => {}
                Err(other) => panic!("libccp: {other}"),
            }
        }
    }

    /// Another agent's program, which the agent at test knows nothing of.
    pub fn install_elsewhere(&self, uid: u32, source: &str) {
        let stock = lower(&compile(source).unwrap()).unwrap();
        let code = Bytecode::from_bytes(stock.num_expressions() as usize, stock.bytes()).unwrap();
        self.hand_over(&ToDatapath::Install(Install { sid: 0, program_uid: uid, code }));
    }

    /// Another agent sets a flow to a program.
    pub fn change_elsewhere(&self, sid: u32, program_uid: u32) {
        let fields = List::from(&[][..]);
        self.hand_over(&ToDatapath::ChangeProg(ChangeProg { sid, program_uid, fields }));
    }

    fn hand_over(&self, message: &ToDatapath<'_>) {
        let mut bytes = Vec::new();
        message.encode(&mut bytes).unwrap();
        self.datapath.recv_msg(&mut bytes).unwrap();
    }
}

#[derive(Clone)]
struct Window(Rc<Cell<u64>>);

impl CongestionOps for Window {
    fn set_cwnd(&mut self, cwnd: u32) {
        self.0.set(cwnd.into());
    }
    fn set_rate_abs(&mut self, _: u32) {}
}

/// A flow of a libccp datapath.
pub struct LibccpFlow<'s> {
    shim: &'s Shim,
    connection: Connection<'s, Window>,
    window: Window,
    path: Path,
}

impl<'s> LibccpFlow<'s> {
    /// A flow from 10.0.0.1:(4000 + n) to 10.0.0.2:443 with a window of ten segments.
    pub fn start(shim: &'s Shim, n: u16) -> LibccpFlow<'s> {
        LibccpFlow::start_as(shim, n, "")
    }

    /// The same, which asks for the algorithm `congestion`.
    pub fn start_as(shim: &'s Shim, n: u16, congestion: &str) -> LibccpFlow<'s> {
        let port = |p: u16| u32::from(p.swap_bytes());
        let info = FlowInfo::default().with_init_cwnd(10 * MSS as u32).with_mss(MSS as u32).with_four_tuple(
            0x0100_000a,
            port(4000 + n),
            0x0200_000a,
            port(443),
        );
        let info = info.with_cong_alg(congestion).unwrap();
        shim.started.set(shim.started.get() + 1);
        let window = Window(Rc::new(Cell::new(10 * MSS)));
        let connection = Connection::start(&shim.datapath, window.clone(), info).unwrap();
        let path = PathConfig {
            mss_bytes: MSS,
            rate_bytes_per_s: 12_500_000,
            rtt_us: 20_000,
            queue_us: 20_000,
            mark_us: 0,
            loss_one_in: 0,
            aggregate_us: 0,
            phases: false,
        };
        LibccpFlow { shim, connection, window, path: Path::new(path, u64::from(n), 0) }
    }

    /// Returns the flow's congestion window, bytes.
    pub fn cwnd(&self) -> u64 {
        self.window.0.get()
    }

    /// One ACK; what it measured.
    pub fn ack(&mut self) -> Result<Prims, LibccpError> {
        let prims = self.path.next_ack(self.cwnd());
        self.connection.load_primitives(primitives(&prims, self.cwnd()));
        self.connection.invoke().map(|()| prims)
    }

    /// One ACK of `prims`.
    pub fn invoke(&mut self, prims: &Prims) -> Result<(), LibccpError> {
        self.connection.load_primitives(primitives(prims, self.cwnd()));
        self.connection.invoke()
    }

    /// ACKs at a pace of 1 ms, until `done`.
    pub fn ack_until(&mut self, what: &str, mut done: impl FnMut(&LibccpFlow<'s>) -> bool) {
        wait_for(what, || {
            self.shim.pump();
            match self.ack() {
                // The agent has not set its program yet, or writes the table of programs anew.
                Ok(_) | Err(LibccpError::LibccpProgIsNull) => {}
                Err(e) => panic!("{what}: libccp: {e}"),
            }
            done(self).then_some(())
        });
    }
}

/// Waits until libccp runs programs on all of its flows, which are these and those before.
pub fn wait_until_steered(shim: &Shim, flows: &mut [LibccpFlow<'_>]) {
    wait_for("libccp runs programs", || {
        shim.pump();
        let mut all = shim.changes.get() >= shim.started.get();
        for flow in flows.iter_mut() {
            // libccp says that all is well while it has not sent its CREATE: for 100 ms where a flow's number was
            // used before.
            match flow.invoke(&Prims::default()) {
                Ok(()) => {}
                Err(LibccpError::LibccpProgIsNull) => all = false,
                Err(other) => panic!("{other}"),
            }
        }
        all.then_some(())
    });
}

fn primitives(prims: &Prims, cwnd: u64) -> Primitives {
    let get = |p: Prim| prims.get(p) as u64;
    let get32 = |p: Prim| prims.get(p) as u32;
    let rtt_us = prims.get(Prim::FlowRttSampleUs);
    Primitives::default()
        .with_bytes_acked(get32(Prim::AckBytesAcked))
        .with_packets_acked(get32(Prim::AckPacketsAcked))
        .with_bytes_misordered(get32(Prim::AckBytesMisordered))
        .with_packets_misordered(get32(Prim::AckPacketsMisordered))
        .with_ecn_bytes(get32(Prim::AckEcnBytes))
        .with_ecn_packets(get32(Prim::AckEcnPackets))
        .with_lost_pkts_sample(get32(Prim::AckLostPktsSample))
        .with_was_timeout(get(Prim::FlowWasTimeout) != 0)
        .with_rtt_sample_us(if rtt_us == INFINITY { 0 } else { rtt_us as u64 })
        .with_rate_outgoing(get(Prim::FlowRateOutgoing))
        .with_rate_incoming(get(Prim::FlowRateIncoming))
        .with_bytes_in_flight(get32(Prim::FlowBytesInFlight))
        .with_packets_in_flight(get32(Prim::FlowPacketsInFlight))
        .with_snd_cwnd(cwnd as u32)
}
