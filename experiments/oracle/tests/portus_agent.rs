//! A real portus agent steers a datapath of ours: its bytecode, lifted, runs on the reference VM, beside the real
//! libccp under the same messages and ACKs.
#![allow(clippy::unwrap_used)]

mod common;

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use ccplane_oracle::libccp::Libccp;
use ccplane_oracle::path::{Path, PathConfig};
use ccplane_program::ir::{MAX_REGS, Prim};
use ccplane_program::stock::{Lifted, StockReg, lift, lower, measured};
use ccplane_program::vm;
use ccplane_testing::PATIENCE;
use ccplane_wire::v1::{Bytecode, Create, Endpoint, Field, Install, Measure, ToAgent, ToDatapath};
use common::{Home, MSS, wait_for};

const SID: u32 = 1;
const START_US: u64 = 1000;

/// A portus agent on a socket of its own; killed when dropped.
struct Portus {
    child: Child,
    path: PathBuf,
}

impl Portus {
    /// Returns the path of the agent's socket.
    fn path(name: &str) -> PathBuf {
        PathBuf::from("/tmp/ccp").join(format!("ccplane-oracle-{name}-{}", std::process::id()))
    }

    fn start(name: &str) -> Portus {
        let path = Portus::path(name);
        let name = path.file_name().unwrap();
        let child = Command::new(env!("CARGO_BIN_EXE_ccplane-portus"))
            .arg(name)
            // Its panics are expected.
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let portus = Portus { child, path };
        wait_for("portus listens", || portus.path.exists().then_some(()));
        portus
    }
}

impl Drop for Portus {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_file(&self.path);
    }
}

/// A datapath that speaks v1 and runs one flow on the reference VM.
struct OurDatapath {
    socket: UnixDatagram,
    programs: HashMap<u32, Lifted>,
    program: Option<u32>,
    /// A program that starts at the next ACK.
    staged: Option<u32>,
    updates: Vec<(Field, u64)>,
    flow: vm::ProgramState,
}

impl OurDatapath {
    fn new(socket: UnixDatagram) -> OurDatapath {
        let nothing = ccplane_program::compile("(def (a 0)) (when true (:= Cwnd (+ Cwnd a)))").unwrap();
        OurDatapath {
            socket,
            programs: HashMap::new(),
            program: None,
            staged: None,
            updates: Vec::new(),
            flow: vm::ProgramState::new(&nothing, 10 * MSS as i64, 0),
        }
    }

    fn send(&self, message: &ToAgent<'_>) {
        let mut bytes = Vec::new();
        message.encode(&mut bytes).unwrap();
        self.socket.send(&bytes).unwrap();
    }

    /// Takes one message; its bytes.
    fn receive(&mut self) -> Vec<u8> {
        let mut buffer = vec![0; 65_536];
        let n = self.socket.recv(&mut buffer).unwrap();
        buffer.truncate(n);
        match ToDatapath::parse_all(&buffer).next().unwrap().unwrap() {
            ToDatapath::Install(install) => {
                let lifted = lift(install.code.events().len(), &install.code.to_bytes().unwrap()).unwrap();
                self.programs.insert(install.program_uid, lifted);
            }
            ToDatapath::ChangeProg(change) => {
                assert_eq!(change.sid, SID);
                self.staged = Some(change.program_uid);
                self.updates = change.fields.iter().collect();
            }
            ToDatapath::Update(update) => {
                assert_eq!(update.sid, SID);
                self.updates.extend(update.fields.iter());
            }
        }
        buffer
    }

    /// One ACK; what the program reports.
    fn ack(&mut self, prims: &vm::Prims) -> Option<Vec<u64>> {
        if let Some(uid) = self.staged.take() {
            self.program = Some(uid);
            self.flow.start(&self.programs[&uid].program, prims.get(Prim::AckNow));
        }
        let lifted = &self.programs[&self.program?];
        for (field, value) in self.updates.drain(..) {
            match field {
                Field::Cwnd => self.flow.cwnd_bytes = value as i64,
                Field::Rate => self.flow.rate_bytes_per_s = value as i64,
                Field::Control { index, .. } => {
                    let reg = lifted.update_reg(StockReg { kind: 0, index: index.get().into() }).unwrap();
                    self.flow.regs[usize::from(reg)] = value as i64;
                }
            }
        }
        let mut report = [0; MAX_REGS];
        let outcome = self.flow.invoke(&lifted.program, prims, &mut report);
        let values = &report[..lifted.program.report_len()];
        outcome.report.then(|| values.iter().map(|v| measured(*v)).collect())
    }
}

fn create(sid: u32) -> ToAgent<'static> {
    ToAgent::Create(Create {
        sid,
        init_cwnd_bytes: 10 * MSS as u32,
        mss_bytes: MSS as u32,
        local: Endpoint { ip: 1, port: 2 },
        remote: Endpoint { ip: 3, port: 4 },
        cong_alg: None,
    })
}

fn encoded(messages: &[ToAgent<'_>]) -> Vec<u8> {
    let mut bytes = Vec::new();
    messages.iter().for_each(|m| m.encode(&mut bytes).unwrap());
    bytes
}

/// A datapath's socket, connected to an agent's.
fn socket(dir: &tempfile::TempDir, name: &str, agent: &std::path::Path) -> UnixDatagram {
    let socket = UnixDatagram::bind(dir.path().join(name)).unwrap();
    socket.connect(agent).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket
}

#[test]
fn a_portus_agent_steers_our_datapath() {
    let dir = tempfile::tempdir().unwrap();
    let portus = Portus::start("steers");
    let mut ours = OurDatapath::new(socket(&dir, "datapath", &portus.path));
    let mut libccp = Libccp::new();

    ours.send(&ToAgent::Ready { id: 3 });
    assert_eq!(libccp.receive(&ours.receive()), 0);
    assert_eq!(ours.programs.len(), 1);
    ours.send(&create(SID));
    assert!(libccp.receive(&ours.receive()) >= 0);
    assert!(ours.staged.is_some());

    let config = PathConfig {
        mss_bytes: MSS,
        rate_bytes_per_s: 2_500_000,
        rtt_us: 30_000,
        queue_us: 30_000,
        mark_us: 0,
        loss_one_in: 0,
        aggregate_us: 0,
        phases: true,
    };
    let mut path = Path::new(config, 1, START_US);
    let (mut reports, mut widest, mut decreases) = (0, 0, 0);
    for n in 0..12_000 {
        let before = ours.flow.cwnd_bytes;
        let prims = path.next_ack(before as u64);
        let report = ours.ack(&prims);
        let theirs = libccp.invoke(&prims, before as u32, 0);
        assert_eq!((theirs.code, &theirs.report), (0, &report), "ACK {n}");
        assert_eq!(theirs.cwnd.map(i64::from), Some(ours.flow.cwnd_bytes), "ACK {n}");
        decreases += usize::from(ours.flow.cwnd_bytes < before);
        widest = widest.max(ours.flow.cwnd_bytes as u64 / MSS);
        if let Some(values) = report {
            reports += 1;
            let program_uid = ours.program.unwrap();
            ours.send(&ToAgent::Measure(Measure { sid: SID, program_uid, values: (&values[..]).into() }));
            // portus answers each report.
            assert!(libccp.receive(&ours.receive()) >= 0);
        }
    }
    let (losses, timeouts) = path.mishaps();
    println!(
        "{reports} reports, {losses} lost, {timeouts} timeouts, {decreases} decreases, {widest} segments"
    );
    assert!(reports > 200 && losses > 10 && timeouts > 0 && decreases > 3 && widest >= 50);
    ours.send(&ToAgent::Close { sid: SID });
}

/// A message that only an agent sends ends a portus agent that receives it; our agent goes on.
#[test]
fn one_datagram_kills_a_portus_agent_and_not_ours() {
    let stock =
        lower(&ccplane_program::compile("(def (Report (a 0))) (when true (report))").unwrap()).unwrap();
    let code = Bytecode::try_from(&stock).unwrap();
    let mut install = Vec::new();
    ToDatapath::Install(Install { sid: 0, program_uid: 1, code }).encode(&mut install).unwrap();

    let dir = tempfile::tempdir().unwrap();
    let mut portus = Portus::start("killed");
    let stranger = socket(&dir, "stranger", &portus.path);
    stranger.send(&install).unwrap();
    let status = wait_for("portus dies", || portus.child.try_wait().unwrap());
    assert!(!status.success());

    let Some(home) = Home::new("one_datagram_kills_a_portus_agent_and_not_ours", "reno") else { return };
    let _agent = home.agent();
    let datapath = socket(&dir, "datapath", &home.path("ccp.sock"));
    datapath.send(&encoded(&[ToAgent::Ready { id: 1 }, create(SID)])).unwrap();
    wait_for("the flow is known", || (home.flows().len() == 1).then_some(()));
    // From a stranger, and from the datapath that carries the flow.
    socket(&dir, "another", &home.path("ccp.sock")).send(&install).unwrap();
    datapath.send(&install).unwrap();
    let malformed = || home.json(&["status"])["counters"]["malformed_datagrams"].as_u64().unwrap();
    wait_for("both are counted", || (malformed() == 2).then_some(()));
    assert_eq!(home.flows()[0]["mode"], "program");
}

/// A datapath process ends before it was answered, and with it the agent of all others.
#[test]
fn a_datapath_that_vanishes_ends_a_portus_agent_and_not_ours() {
    let dir = tempfile::tempdir().unwrap();
    let vanish = |agent: &std::path::Path| {
        let datapath = UnixDatagram::bind(dir.path().join("vanishing")).unwrap();
        let sent = datapath.send_to(&encoded(&[ToAgent::Ready { id: 1 }, create(SID)]), agent);
        drop(datapath);
        fs::remove_file(dir.path().join("vanishing")).unwrap();
        sent
    };
    let mut portus = Portus::start("vanish");
    // It ends when it finds nobody to answer to, which now and then comes too late for that.
    wait_for("portus ends", || {
        let _ = vanish(&portus.path);
        portus.child.try_wait().unwrap()
    });

    let Some(home) = Home::new("a_datapath_that_vanishes_ends_a_portus_agent_and_not_ours", "reno") else {
        return;
    };
    let _agent = home.agent();
    for _ in 0..20 {
        vanish(&home.path("ccp.sock")).unwrap();
    }
    let datapath = socket(&dir, "datapath", &home.path("ccp.sock"));
    datapath.send(&encoded(&[create(SID)])).unwrap();
    wait_for("the last flow alone is left", || {
        let flows = home.flows();
        (flows.len() == 1 && flows[0]["mode"] == "program").then_some(())
    });
}

/// portus reads 1024 bytes of each datagram, and takes no notice that there was more.
#[test]
fn long_datagrams_are_heard_to_their_end() {
    const FLOWS: u32 = 200;
    let creates: Vec<ToAgent<'_>> = (1..=FLOWS).map(create).collect();
    let long = encoded(&creates);
    assert!(long.len() > 16 * 1024);

    let dir = tempfile::tempdir().unwrap();
    let portus = Portus::start("long");
    let datapath = socket(&dir, "stranger", &portus.path);
    datapath.send(&long).unwrap();
    // It answers in the order of what it heard; a last flow shows that there is no more.
    datapath.send(&encoded(&[create(FLOWS + 1)])).unwrap();
    let mut known = Vec::new();
    while known.last() != Some(&(FLOWS + 1)) {
        let mut buffer = [0; 65_536];
        let n = datapath.recv(&mut buffer).unwrap();
        if let ToDatapath::ChangeProg(change) = ToDatapath::parse_all(&buffer[..n]).next().unwrap().unwrap() {
            known.push(change.sid);
        }
    }
    assert_eq!(known.len(), 1024 / 96 + 1, "{known:?}");

    let Some(home) = Home::new("long_datagrams_are_heard_to_their_end", "reno") else { return };
    let _agent = home.agent();
    let datapath = socket(&dir, "datapath", &home.path("ccp.sock"));
    datapath.send(&long).unwrap();
    wait_for("all flows are known", || (home.flows().len() == FLOWS as usize).then_some(()));
    assert_eq!(home.json(&["status"])["counters"]["malformed_datagrams"], 0);
}

/// A portus that listens keeps its socket, and who starts an agent there is told what to do. One that has died is replaced.
#[test]
fn a_live_portus_keeps_its_socket() {
    let Some(home) = Home::new("a_live_portus_keeps_its_socket", "reno") else { return };
    let portus = Portus::start("keeps");
    let inode = || fs::metadata(&portus.path).unwrap().ino();
    let before = inode();
    home.configure_at("reno", &portus.path, "");
    let output = home.run(&["agent"]);
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        said.contains("a process listens there already; end it, or give this agent another socket"),
        "{said}"
    );
    assert_eq!(inode(), before);
    let path = portus.path.clone();
    let mut portus = portus;
    portus.child.kill().and_then(|()| portus.child.wait()).unwrap();
    assert!(path.exists(), "a killed portus leaves its socket");
    let _agent = home.agent();
}

/// portus removes what has the name of its socket: the agent that had it says so.
#[test]
fn an_agent_whose_socket_portus_takes_says_so() {
    let Some(home) = Home::new("an_agent_whose_socket_portus_takes_says_so", "reno") else { return };
    let path = Portus::path("takes");
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    home.configure_at("reno", &path, "");
    let _agent = home.agent();
    let _portus = Portus::start("takes");
    wait_for("the agent says so", || home.log().contains("the datapaths' socket was removed").then_some(()));
}
