//! `ccplane quic` over DPDK ports: a server and a client at the two ends of a veth pair, steered by the machine's agent.
#![allow(clippy::unwrap_used)]

mod common;

use ccplane_emulator::netns::{self, Namespace};
use ccplane_testing::{Ended, Mishap, STALL, WATCHED, assert_never_stalled};
use common::{Home, stderr, taken, wait_for};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const FILE_BYTES: usize = 60_000_000;
/// Of the link while something is to happen to a file that is on its way, and of the link that then carries the rest.
const SLOW_MBIT: u32 = 8;
const FAST_MBIT: u32 = 200;
/// The time of an agent's silence: longer than datapaths wait for it.
const SILENCE: Duration = Duration::from_millis(1500);

/// The time between two samples of the link's bytes.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(50);

fn run(namespace: &Namespace, command: &str) {
    let mut words = command.split(' ');
    let mut run = Command::new(words.next().unwrap());
    let output = namespace.enter(run.args(words)).unwrap().output().unwrap();
    assert!(output.status.success(), "{command}: {}", stderr(&output));
}

/// A server and a client at the two ends of a cable, and the server's agent.
struct Scene {
    // The processes before their namespaces.
    agent: Ended,
    serve: Ended,
    /// The server's standard output, read until the end of the test: the server ends when nobody reads it.
    said: BufReader<ChildStdout>,
    fingerprint: String,
    home: Home,
    content: Vec<u8>,
    a: Namespace,
    b: Namespace,
    between: Namespace,
}

impl Scene {
    /// `None`, said loudly, where there can be none. Namespaces are named by `tag`. The cable goes through a bridge, which lets
    /// [`SLOW_MBIT`] through to the client.
    fn new(tag: &str) -> Option<Scene> {
        Scene::over(tag, "af_packet", &[])
    }

    /// The same with this kind of port and more flags for the server.
    fn over(tag: &str, kind: &str, more: &[&str]) -> Option<Scene> {
        Scene::under("default_algorithm = \"reno\"\n", tag, kind, more)
    }

    /// The same with an agent of this configuration.
    fn under(config: &str, tag: &str, kind: &str, more: &[&str]) -> Option<Scene> {
        if !netns::available() || Command::new("ip").arg("-V").output().is_err() {
            ccplane_testing::skipped(tag, "needs root, /dev/net/tun and iproute2");
            return None;
        }
        let [a, b] = ["a", "b"].map(|end| Namespace::create(&format!("{tag}-{end}")).unwrap());
        let between = bridge(&a, &b, &format!("{tag}-m"));
        shape(&between, "add", SLOW_MBIT);
        run(&a, "ip link set veth0 up");
        run(&b, "ip link set veth0 up");
        let home = Home::new(config);
        let content: Vec<u8> = (0..FILE_BYTES).map(|n| (n % 251) as u8).collect();
        fs::create_dir_all(home.path("served")).unwrap();
        fs::write(home.path("served/file"), &content).unwrap();
        let agent = agent(&home, &b);
        if !more.is_empty() {
            // Another user is to find the folder. The agent runs in it already; the next one would not trust it.
            fs::set_permissions(home.dir(), fs::Permissions::from_mode(0o711)).unwrap();
        }
        let folder = home.path("served");
        let port = format!("{kind}:veth0");
        let serve = ["quic", "serve", folder.to_str().unwrap(), "--json", "--port", &port];
        let mut serve = home.command(&[&serve[..], &["--address", "10.9.0.2/24"], more].concat());
        let mut serve = Ended(b.enter(serve.stdout(Stdio::piped())).unwrap().spawn().unwrap());
        let (mut said, mut first) = (BufReader::new(serve.0.stdout.take().unwrap()), String::new());
        said.read_line(&mut first).unwrap();
        let first: Value = serde_json::from_str(&first).unwrap();
        assert_eq!(first["address"], "10.9.0.2:4433");
        let fingerprint = first["fingerprint"].as_str().unwrap().to_owned();
        Some(Scene { agent, serve, said, fingerprint, home, content, a, b, between })
    }

    /// Begins to fetch the file.
    fn get(&self) -> Ended {
        self.get_file("file")
    }

    fn get_file(&self, name: &str) -> Ended {
        let output = self.home.path("new");
        let get = ["quic", "get", "10.9.0.2:4433", name, "-o", output.to_str().unwrap()];
        let port = ["--port", "af_packet:veth0", "--address", "10.9.0.1/24", "--algorithm", "reno"];
        let get = [&get[..], &["--fingerprint", &self.fingerprint], &port].concat();
        let mut get = self.home.command(&get);
        Ended(self.a.enter(get.stdout(Stdio::null())).unwrap().spawn().unwrap())
    }

    /// Waits for the flow over DPDK in this mode.
    fn flow_in_mode(&self, mode: &str) -> Value {
        let is_it = |flow: &&Value| flow["mode"] == mode && flow["datapath"] == "dpdk";
        wait_for(mode, || self.home.json(&["flows"])["flows"].as_array()?.iter().find(is_it).cloned())
    }

    fn is_steered(&self) -> Option<()> {
        let flows = self.home.json(&["flows"]);
        let steered = |flow: &Value| flow["mode"] == "program" && flow["datapath"] == "dpdk";
        flows["flows"].as_array()?.iter().any(steered).then_some(())
    }

    /// The rest comes at once: the file has arrived, and the server knows.
    fn ends_well(mut self, mut get: Ended) {
        assert!(get.0.try_wait().unwrap().is_none(), "it was under way until now");
        shape(&self.between, "change", FAST_MBIT);
        assert!(get.0.wait().unwrap().success());
        assert!(fs::read(self.home.path("new")).unwrap() == self.content, "what arrived is something else");
        let mut request = String::new();
        self.said.read_line(&mut request).unwrap();
        assert!(request.contains("\"get file\"") && request.contains("\"error\":null"), "{request}");
        assert!(self.serve.0.try_wait().unwrap().is_none(), "the server goes on");
    }
}

/// Samples the bytes that the bridge passes to the client, until dropped.
struct Carried {
    started: Instant,
    stop: Arc<AtomicBool>,
    /// Ends with when, microseconds, and how many bytes.
    thread: JoinHandle<Vec<(u64, u64)>>,
}

impl Carried {
    fn watch(bridge: &Namespace) -> Carried {
        let (started, stop, name) =
            (Instant::now(), Arc::new(AtomicBool::new(false)), bridge.name().unwrap());
        let sent = format!("netns exec {name} tc -s qdisc show dev port-a");
        let stopped = Arc::clone(&stop);
        let sample = move || {
            let output = Command::new("ip").args(sent.split(' ')).output().unwrap();
            let text = String::from_utf8(output.stdout).unwrap();
            let bytes = text.split("Sent ").nth(1).and_then(|rest| rest.split(' ').next()?.parse().ok());
            (started.elapsed().as_micros() as u64, bytes.unwrap_or_else(|| panic!("{text}")))
        };
        let thread = std::thread::spawn(move || {
            let mut samples = Vec::new();
            while !stopped.load(Relaxed) {
                samples.push(sample());
                std::thread::sleep(SAMPLE_INTERVAL);
            }
            samples
        });
        Carried { started, stop, thread }
    }

    /// Something is about to happen.
    fn mishap(&self, what: &str) -> Mishap {
        Mishap { what: what.to_owned(), at_us: self.started.elapsed().as_micros() as u64 }
    }

    fn assert_never_stalled(self, mishaps: &[Mishap]) {
        let shows = Duration::from_micros(mishaps.last().unwrap().at_us) + WATCHED;
        std::thread::sleep(shows.saturating_sub(self.started.elapsed()));
        self.stop.store(true, Relaxed);
        assert_never_stalled(&self.thread.join().unwrap(), mishaps, STALL);
    }
}

/// Starts the agent in the server's network namespace: a datapath's address on the agent's socket is one of
/// its namespace.
fn agent(home: &Home, at: &Namespace) -> Ended {
    let agent = Ended(at.enter(home.command(&["agent"]).stderr(Stdio::null())).unwrap().spawn().unwrap());
    wait_for("the agent serves", || home.run(&["status"]).status.success().then_some(()));
    agent
}

/// A namespace between two others, with a bridge.
fn bridge(a: &Namespace, b: &Namespace, tag: &str) -> Namespace {
    let between = Namespace::create(tag).unwrap();
    run(&between, "ip link add bridge0 type bridge");
    for (end, port) in [(a, "port-a"), (b, "port-b")] {
        let name = end.name().unwrap();
        run(&between, &format!("ip link add {port} type veth peer name veth0 netns {name}"));
        run(&between, &format!("ip link set {port} master bridge0 up"));
    }
    run(&between, "ip link set bridge0 up");
    between
}

/// Sets the rate of the bridge's first port, Mb/s.
fn shape(bridge: &Namespace, verb: &str, mbit: u32) {
    run(bridge, &format!("tc qdisc {verb} dev port-a root tbf rate {mbit}mbit burst 64kb latency 50ms"));
}

#[test]
fn files_go_over_ports_and_the_machines_agent_steers_them() {
    let Some(scene) = Scene::new("dpdk-files") else { return };
    let get = scene.get();
    wait_for("a flow over DPDK that the agent steers", || scene.is_steered());
    scene.ends_well(get);
}

/// Finds a file that .ci/portus has built; a skip where it has not.
fn built(test: &str, path: &str) -> Option<PathBuf> {
    // target/PROFILE/ccplane
    let found =
        Path::new(env!("CARGO_BIN_EXE_ccplane")).ancestors().nth(2).unwrap().join("portus").join(path);
    if !found.exists() {
        let why = format!("{} is not there (.ci/portus target/portus)", found.display());
        ccplane_testing::skipped(test, why);
        return None;
    }
    Some(found)
}

/// Portus agents that listen under this name come and are killed, one after the other; our agent is between.
fn steered_by(tag: &str, name: &str, agents: impl IntoIterator<Item = Command>) {
    let config = format!("default_algorithm = \"portus\"\n[portus]\nsocket = \"/tmp/ccp/{name}\"\n");
    let Some(scene) = Scene::under(&config, tag, "af_packet", &[]) else { return };
    let number = |flow: &Value, key: &str| flow[key].as_u64().unwrap();
    let get = scene.get();
    assert_eq!(scene.flow_in_mode("native_no_program")["algorithm"], "portus");
    for mut portus in agents {
        let portus = portus.stdin(Stdio::null()).stderr(Stdio::null()).stdout(Stdio::null());
        let running = Ended(portus.spawn().unwrap());
        let steered = scene.flow_in_mode("program");
        assert_eq!(steered["algorithm"], "portus");
        assert!(steered["program"].as_str().unwrap().starts_with("portus-"), "{steered}");
        let reports = number(&steered, "reports");
        wait_for("reports", || {
            (number(&scene.flow_in_mode("program"), "reports") > reports + 4).then_some(())
        });
        drop(running);
        let acked = number(&scene.flow_in_mode("native_no_program"), "bytes_acked");
        let goes_on = || number(&scene.flow_in_mode("native_no_program"), "bytes_acked") > acked;
        wait_for("the flow goes on", || goes_on().then_some(()));
    }
    let _ = fs::remove_file(Path::new("/tmp/ccp").join(name));
    scene.ends_well(get);
}

/// Portus agents of three versions, which are told where to listen.
#[test]
fn a_portus_agent_steers_a_flow_over_a_port() {
    const TEST: &str = "a_portus_agent_steers_a_flow_over_a_port";
    let name = format!("ccplane-dpdk-{}", std::process::id());
    let mut agents = Vec::new();
    for version in ["0.9.0", "0.8.0", "0.6.1"] {
        let Some(program) = built(TEST, &format!("bin/ccplane-portus-{version}")) else { return };
        let mut agent = Command::new(program);
        agent.arg(&name);
        agents.push(agent);
    }
    steered_by("dpdk-portus", &name, agents);
}

/// Those that listen at one place alone: the Reno of generic_cong_avoid 0.4, an agent of portus 0.7, and an algorithm in Python.
#[test]
fn agents_of_portus_0_7_and_pyportus_steer_a_flow_over_a_port() {
    const TEST: &str = "agents_of_portus_0_7_and_pyportus_steer_a_flow_over_a_port";
    const FIXED_NAME: &str = "portus";
    const PYTHON_AIMD: &str = include_str!("../../oracle/tests/aimd.py");
    let Some(reno) = built(TEST, "bin/reno") else { return };
    let Some(python) = built(TEST, "python/bin/python3") else { return };
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("aimd.py");
    fs::write(&script, PYTHON_AIMD).unwrap();
    let mut aimd = Command::new(python);
    aimd.arg(script);
    let _one = ccplane_testing::alone_at(FIXED_NAME);
    steered_by("dpdk-portus7", FIXED_NAME, [Command::new(reno), aimd]);
}

/// Under the filter and with the few capabilities that a port's end takes.
#[test]
fn a_server_over_a_port_can_do_little_and_leaves_no_program_on_it() {
    const CAPABILITIES: u32 = 6;
    for (kind, flags) in [("af_packet", &[][..]), ("af_xdp", &[]), ("af_xdp", &["--user", "nobody"])] {
        let Some(mut scene) = Scene::over("dpdk-powers", kind, flags) else { return };
        let pid = scene.serve.0.id();
        taken::assert_confined(pid, CAPABILITIES);
        let uid = if flags.is_empty() { "0" } else { "65534" };
        for thread in taken::threads(pid) {
            assert_eq!(taken::field(&thread, "Uid"), [uid; 4].join("\t"), "{kind}");
        }
        #[cfg(target_arch = "x86_64")]
        taken::assert_can_do_little(pid);
        // Two processes that poll share a machine with others: little is enough.
        fs::write(scene.home.path("served/small"), &scene.content[..200_000]).unwrap();
        let mut get = scene.get_file("small");
        assert!(get.0.wait().unwrap().success(), "{kind}");
        assert!(fs::read(scene.home.path("new")).unwrap() == scene.content[..200_000], "{kind}");
        let has_program = || {
            let shown =
                scene.b.enter(Command::new("ip").args(["-d", "link", "show", "veth0"])).unwrap().output();
            String::from_utf8(shown.unwrap().stdout).unwrap().contains("xdp")
        };
        assert_eq!(has_program(), kind == "af_xdp");
        kill(Pid::from_raw(pid as i32), Signal::SIGINT).unwrap();
        assert_eq!(scene.serve.0.wait().unwrap().code(), Some(0), "{kind}");
        assert!(!has_program(), "{kind}");
    }
}

fn an_agent_hangs_dies_and_comes_back_and_the_file_arrives() -> Option<()> {
    let mut scene = Scene::new("dpdk-agent")?;
    let get = scene.get();
    wait_for("a flow over DPDK that the agent steers", || scene.is_steered());
    let carried = Carried::watch(&scene.between);
    let agents = Pid::from_raw(scene.agent.0.id() as i32);
    let hangs = carried.mishap("SIGSTOP");
    kill(agents, Signal::SIGSTOP).unwrap();
    std::thread::sleep(SILENCE);
    let wakes = carried.mishap("SIGCONT");
    kill(agents, Signal::SIGCONT).unwrap();
    wait_for("the agent that hung steers again", || scene.is_steered());
    let dies = carried.mishap("kill -9");
    scene.agent.0.kill().unwrap();
    scene.agent.0.wait().unwrap();
    std::thread::sleep(SILENCE);
    let other = carried.mishap("the next agent");
    scene.agent = agent(&scene.home, &scene.b);
    wait_for("another agent steers", || scene.is_steered());
    carried.assert_never_stalled(&[hangs, wakes, dies, other]);
    scene.ends_well(get);
    Some(())
}

#[test]
fn a_port_that_cannot_be_had_is_said_with_the_reason() {
    let home = Home::new("");
    let common = ["quic", "get", "10.9.0.2:4433", "file", "--insecure", "--address", "10.9.0.1/24", "--port"];
    let output = home.run(&[&common[..], &["af_packet:ccp-nonesuch"]].concat());
    assert!(!output.status.success());
    assert!(stderr(&output).contains("no network interface ccp-nonesuch"), "{}", stderr(&output));
    let output = home.run(&[&common[..], &["eth0"]].concat());
    assert!(stderr(&output).contains("names no port"), "{}", stderr(&output));
}

/// Each time to a new flow.
mod mishaps {
    ccplane_testing::mishaps! {
        1 an_agent_hangs_dies_and_comes_back_and_the_file_arrives,
    }
}
