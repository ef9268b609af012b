//! An unmodified portus agent steers flows of our datapaths, as the algorithm "portus" of our agent.
#![allow(clippy::unwrap_used)]

mod common;

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use ccplane_emulator::{Emulator, LinkConfig, Queue, Shape};
use ccplane_runner::echo::Echo;
use ccplane_runner::traffic::{BulkFlow, FlowConfig, TcpSample};
use ccplane_testing::killed::{Marked, Suite};
use ccplane_testing::{Ended, Mishap, STALL, WATCHED, alone_at, lacks, skipped, within_tries};
use common::{Agent, Home, MSS, ccplane, wait_for};

/// The link: 6 Mb/s, 40 ms each way, 50 packets of queue. It is slow, so that a busy machine has the time to fill it.
/// It is also long, so that the ten packets of a flow that nobody steers fill a quarter of it.
const LINK_MBIT: u32 = 6;
const DELAY_US: u64 = 40_000;
const QUEUE_PACKETS: u32 = 50;
/// The share of the link that a steered flow of the kernel carries at least.
const DUE: f64 = 0.6;
/// The share that a flow of libccp's carries at least in its first seconds, in which portus's Reno halves its window more than once:
/// more than ten packets per round trip do.
const DUE_AT_FIRST: f64 = 0.32;
/// Longer than the test.
const LONG: Duration = Duration::from_secs(600);
/// The time over which goodput is measured.
const WINDOW: Duration = Duration::from_secs(5);
/// Tries of a measurement that other work on the machine may spoil.
const TRIES: u32 = 5;
/// The name under which agents of older versions listen, and no other: one of their tests at a time.
const FIXED_NAME: &str = "portus";
/// AIMD in Python. Pyportus 0.6.1 calls a function that Python 3.11 took out of `inspect`.
const PYTHON_AIMD: &str = include_str!("aimd.py");
/// The silence after which portus is given up, milliseconds.
const SILENCE_MS: u64 = 1000;

/// Homes of agents that pin objects in the kernel.
static LABS: Suite = Suite::new("ccplane-bridge-lab", clean);

fn clean(dir: &Path) -> Result<(), String> {
    let Some(binary) = ccplane("what a killed test has left") else { return Err("no ccplane".to_owned()) };
    let mut doctor = Command::new(binary);
    doctor.args(["doctor", "--clean"]).env("CCPLANE_CONFIG", dir.join("agent.toml"));
    let output = doctor.output().map_err(|error| error.to_string())?;
    if output.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&output.stderr).into_owned()) }
}

/// A portus agent of its own process; killed when dropped.
struct Portus {
    child: Child,
    path: PathBuf,
}

impl Portus {
    fn start(name: &str, mut command: Command) -> Portus {
        let path = Path::new("/tmp/ccp").join(name);
        let child = command.stdin(Stdio::null()).stderr(Stdio::null()).stdout(Stdio::null()).spawn().unwrap();
        Portus { child, path }
    }

    fn kill_9(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        // As a portus leaves it: the name stays, and nobody listens.
        std::mem::forget(self);
    }

    fn signal(&self, signal: libc::c_int) {
        // SAFETY: kill(2) on a child that this process has not waited for.
        assert_eq!(unsafe { libc::kill(self.child.id() as libc::pid_t, signal) }, 0);
    }
}

impl Drop for Portus {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_file(&self.path);
    }
}

fn ccp_reno(name: &str) -> Portus {
    agent_at(Path::new(env!("CARGO_BIN_EXE_ccplane-portus")), name)
}

/// An agent's home with a link of its own.
struct Lab {
    home: Home,
    /// The congestion control that sockets choose.
    cc: String,
    portus: String,
    link: Emulator,
    _marked: Marked,
}

fn link() -> Emulator {
    let mut link = LinkConfig::symmetric(Shape::mbit(LINK_MBIT), DELAY_US);
    link.up.queue = Queue::packets(QUEUE_PACKETS);
    Emulator::start(&link).unwrap()
}

impl Lab {
    /// Returns none, and reports a skip, where the machine cannot run the test.
    fn new(test: &str) -> Option<Lab> {
        if lacks(test, ccplane_ebpf::missing()) || lacks(test, ccplane_runner::missing_for_links().first()) {
            return None;
        }
        let home = Home::new(test, "portus")?;
        let _marked = LABS.mark(&home.path("")).unwrap();
        let (cc, portus) = (format!("ccp_{test}"), format!("ccplane-{test}-{}", std::process::id()));
        let mut lab = Lab { home, cc, portus: String::new(), link: link(), _marked };
        lab.listens_as(&portus);
        Some(lab)
    }

    /// Sets the place where portus listens.
    fn listens_as(&mut self, name: &str) {
        self.portus = name.to_owned();
        self.configure("", "");
    }

    /// Configures the agent with these rules, and with more of portus's section.
    fn configure(&self, rules: &str, more: &str) {
        self.home.configure(&format!(
            "default_algorithm = \"portus\"\n{rules}[datapath.ebpf]\nmode = \"on\"\nname = \"{}\"\nrun_dir = {:?}\n\
             [portus]\nsocket = \"/tmp/ccp/{}\"\nsilence_ms = {SILENCE_MS}\n{more}",
            self.cc,
            self.home.path(""),
            self.portus
        ));
    }

    /// A name of this lab that sockets may ask for, beside [`Lab::cc`].
    fn asked(&self) -> String {
        format!("{}_a", self.cc)
    }

    /// Gives portus at most this many flows, among them those whose sockets ask for [`Lab::asked`].
    fn allows(&self, flows: usize) {
        let rule = format!("[[rule]]\nrequested = \"{}\"\nalgorithm = \"portus\"\n", self.asked());
        self.configure(&rule, &format!("max_flows = {flows}\n"));
    }

    fn flow(&self) -> BulkFlow {
        self.flow_to(self.link.receiver_addresses().v4.into())
    }

    fn flow_to(&self, receiver: std::net::IpAddr) -> BulkFlow {
        self.flow_under(&self.cc, receiver)
    }

    /// A flow whose socket chooses this congestion control.
    fn flow_under(&self, congestion: &str, receiver: std::net::IpAddr) -> BulkFlow {
        let config = FlowConfig {
            congestion: congestion.to_owned(),
            receiver: SocketAddr::new(receiver, 0),
            duration: LONG,
            bytes: None,
            sample_every: Duration::from_millis(20),
        };
        BulkFlow::start(&config, self.link.sender_ns(), self.link.receiver_ns(), Instant::now()).unwrap()
    }

    /// Waits until every flow is steered so; those listed.
    fn wait_for_mode(&self, mode: &str, flows: usize) -> Vec<serde_json::Value> {
        let mut last = Vec::new();
        wait_for(mode, || {
            last = self.home.flows();
            (last.len() == flows && last.iter().all(|f| f["mode"] == mode)).then_some(())
        });
        last
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        let _ = self.home.run(&["doctor", "--clean"]);
    }
}

fn sample(flow: &BulkFlow) -> TcpSample {
    wait_for("a sample", || flow.latest())
}

/// Something is about to happen to a flow.
fn mishap(flow: &BulkFlow, what: &str) -> Mishap {
    Mishap { what: what.to_owned(), at_us: sample(flow).at_us }
}

/// Ends the lab's only flow, which no mishap may have stalled for longer than [`STALL`], and starts the next one under portus.
fn next_of_never_stalled(lab: &Lab, flow: BulkFlow, mishaps: &[Mishap]) -> BulkFlow {
    let shows_us = mishaps.last().unwrap().at_us + WATCHED.as_micros() as u64;
    wait_for("a stall would show", || (sample(&flow).at_us > shows_us).then_some(()));
    flow.stop();
    let outcome = flow.finish().unwrap();
    assert_eq!(outcome.samples_dropped, 0);
    let acked: Vec<_> = outcome.samples.iter().map(|s| (s.at_us, s.info.bytes_acked)).collect();
    ccplane_testing::assert_never_stalled(&acked, mishaps, STALL);
    wait_for("its end is known", || lab.home.flows().is_empty().then_some(()));
    let next = lab.flow();
    lab.wait_for_mode("program", 1);
    next
}

/// Acknowledged share of what the link carries in a window, of the first try in which it is [`DUE`].
fn goodput(check: &str, flow: &BulkFlow) -> f64 {
    within_tries(check, TRIES, |_| {
        let before = sample(flow);
        let after = wait_for("the end of a window, by the flow's clock", || {
            Some(sample(flow)).filter(|now| now.at_us - before.at_us >= WINDOW.as_micros() as u64)
        });
        let took_us = (after.at_us - before.at_us) as f64;
        let bytes = (after.info.bytes_acked - before.info.bytes_acked) as f64;
        let share = bytes / (took_us * f64::from(LINK_MBIT) / 8.0);
        if share < DUE { Err(format!("{share:.2} of the link, {DUE} are due")) } else { Ok(share) }
    })
}

/// Portus comes late, is killed, comes back, hangs, and goes on; its flow fills the link all the while. Then it has flows of all
/// kinds, and comes first.
fn a_portus_agent_steers_a_kernel_flow_through_every_mishap(lab: &Lab, start: impl Fn(&str) -> Portus) {
    lab.allows(2);
    let agent = lab.home.agent();
    let flow = lab.flow();
    let [listed] = &lab.wait_for_mode("native_no_program", 1)[..] else { panic!() };
    let gone = format!("portus cannot be reached: nobody listens at /tmp/ccp/{}", lab.portus);
    assert_eq!(listed["native_reason"], gone);

    let portus = start(&lab.portus);
    let [listed] = &lab.wait_for_mode("program", 1)[..] else { panic!() };
    assert_eq!(listed["algorithm"], "portus");
    assert!(listed["program"].as_str().unwrap().starts_with("portus-"), "{listed}");
    let steered = goodput("under portus", &flow);
    let reports = |lab: &Lab| lab.home.flows()[0]["reports"].as_u64().unwrap();
    let so_far = reports(lab);
    wait_for("reports", || (reports(lab) > so_far + 10).then_some(()));

    let mut mishaps = vec![mishap(&flow, "portus is killed")];
    portus.kill_9();
    let killed = Instant::now();
    let [listed] = &lab.wait_for_mode("native_no_program", 1)[..] else { panic!() };
    let noticed = killed.elapsed();
    assert_eq!(listed["native_reason"], gone);
    let native = goodput("without portus", &flow);

    mishaps.push(mishap(&flow, "portus comes again"));
    let portus = start(&lab.portus);
    lab.wait_for_mode("program", 1);
    let again = goodput("under portus again", &flow);

    mishaps.push(mishap(&flow, "portus hangs"));
    portus.signal(libc::SIGSTOP);
    let stopped = Instant::now();
    let [listed] = &lab.wait_for_mode("native_no_program", 1)[..] else { panic!() };
    let silent = stopped.elapsed();
    let reason = listed["native_reason"].as_str().unwrap();
    assert!(reason.starts_with("portus is silent: it has read nothing for "), "{reason}");
    mishaps.push(mishap(&flow, "portus goes on"));
    portus.signal(libc::SIGCONT);
    lab.wait_for_mode("program", 1);
    goodput("after the silence", &flow);
    println!(
        "shares of the link: {steered:.2} under portus, {native:.2} without, {again:.2} again; \
         killed: native after {noticed:?}; stopped: after {silent:?}"
    );
    let log = lab.home.log();
    assert_eq!(log.matches("portus is silent").count(), 1, "{log}");
    // Before it came, and when it was killed; the loop of other processes' flows says so for itself.
    let kernels = log.lines().filter(|line| line.contains("loop{name=\"kernel\"}"));
    assert_eq!(kernels.filter(|line| line.contains("portus cannot be reached")).count(), 2, "{log}");
    let next = next_of_never_stalled(lab, flow, &mishaps);
    flows_of_all_kinds_are_steered_within_the_bound(lab, next);
    it_may_come_first(lab, (agent, portus), || start(&lab.portus));
}

#[test]
fn portus_0_9_steers_a_kernel_flow() {
    let Some(lab) = Lab::new("portus09") else { return };
    a_portus_agent_steers_a_kernel_flow_through_every_mishap(&lab, ccp_reno);
}

/// The reno of generic_cong_avoid 0.4, as its registry holds it: an agent of portus 0.7, which listens at one place alone.
#[test]
fn generic_cong_avoids_reno_steers_a_kernel_flow() {
    let test = "generic_cong_avoids_reno_steers_a_kernel_flow";
    let Some((binary, _one, lab)) = by_its_fixed_name(test, "bin/reno", "gcareno") else { return };
    a_portus_agent_steers_a_kernel_flow_through_every_mishap(&lab, |name| {
        Portus::start(name, Command::new(&binary))
    });
}

/// A program that .ci/portus has built and that listens at one place alone, the right to that place, and a lab.
fn by_its_fixed_name(test: &str, path: &str, lab: &str) -> Option<(PathBuf, File, Lab)> {
    let program = built(test, path)?;
    let one = alone_at(FIXED_NAME);
    let mut lab = Lab::new(lab)?;
    lab.listens_as(FIXED_NAME);
    Some((program, one, lab))
}

/// Finds a file that .ci/portus has built; a skip where it has not.
fn built(test: &str, path: &str) -> Option<PathBuf> {
    let exe = std::env::current_exe().unwrap();
    let found = exe.ancestors().nth(3).unwrap().join("portus").join(path);
    if !found.exists() {
        skipped(test, format_args!("{path} is not there (.ci/portus target/portus)"));
        return None;
    }
    Some(found)
}

/// A flow as it is listed, once it is steered so.
fn listed(lab: &Lab, flow: &BulkFlow, mode: &str) -> serde_json::Value {
    let local = flow.local().to_string();
    wait_for(mode, || lab.home.flows().into_iter().find(|f| f["local"] == *local && f["mode"] == mode))
}

/// Flows over IPv6, and whose socket asks for a name (CREATE carries it), are steered, two at a time; a third one finds portus full.
fn flows_of_all_kinds_are_steered_within_the_bound(lab: &Lab, first: BulkFlow) {
    let receiver = lab.link.receiver_addresses();
    let steered = |flow: &BulkFlow| {
        let so_far = listed(lab, flow, "program")["reports"].as_u64().unwrap();
        wait_for("reports", || {
            (listed(lab, flow, "program")["reports"].as_u64().unwrap() > so_far + 4).then_some(())
        });
    };
    let v6 = lab.flow_to(receiver.v6.into());
    steered(&v6);
    let third = lab.flow_under(&lab.asked(), receiver.v4.into());
    let full = listed(lab, &third, "native_no_program");
    assert_eq!(full["native_reason"], "portus has 2 flows, the most it is given", "{full}");
    drop((first, third));
    lab.wait_for_mode("program", 1);
    steered(&lab.flow_under(&lab.asked(), receiver.v4.into()));
}

/// An agent steers a kernel flow, goes, comes back and steers it again, then flows of all kinds; it comes first, too.
fn an_agent_steers_and_comes_back(lab: &Lab, start: impl Fn() -> Portus) {
    lab.allows(2);
    let agent = lab.home.agent();
    let flow = lab.flow();
    lab.wait_for_mode("native_no_program", 1);
    let reports = || lab.home.flows()[0]["reports"].as_u64().unwrap();
    let mut mishaps = Vec::new();
    for _ in 0..2 {
        let portus = start();
        let [listed] = &lab.wait_for_mode("program", 1)[..] else { panic!() };
        assert_eq!(listed["algorithm"], "portus");
        let so_far = reports();
        wait_for("reports", || (reports() > so_far + 10).then_some(()));
        // Its updates move the window, which the program leaves as it is.
        let window = || lab.home.flows()[0]["snd_cwnd"].as_u64().unwrap();
        let before = window();
        wait_for("updates", || (window() != before).then_some(()));
        goodput("under an agent of another version", &flow);
        mishaps.push(mishap(&flow, "an agent of another version is killed"));
        portus.kill_9();
        lab.wait_for_mode("native_no_program", 1);
    }
    let portus = start();
    lab.wait_for_mode("program", 1);
    let next = next_of_never_stalled(lab, flow, &mishaps);
    flows_of_all_kinds_are_steered_within_the_bound(lab, next);
    it_may_come_first(lab, (agent, portus), start);
}

/// After the end of both, a portus that listens before our agent does steers the next flow.
fn it_may_come_first(lab: &Lab, ended: (Agent, Portus), start: impl Fn() -> Portus) {
    assert!(lab.home.run(&["stop"]).status.success());
    drop(ended);
    let portus = start();
    wait_for("portus listens", || portus.path.exists().then_some(()));
    let _agent = lab.home.agent();
    let _flow = lab.flow();
    let [listed] = &lab.wait_for_mode("program", 1)[..] else { panic!() };
    assert_eq!(listed["algorithm"], "portus");
}

fn a_portus_of_version(version: &str, test: &str, home: &str) {
    let Some(binary) = built(test, &format!("bin/ccplane-portus-{version}")) else { return };
    let Some(lab) = Lab::new(home) else { return };
    an_agent_steers_and_comes_back(&lab, || agent_at(&binary, &lab.portus));
}

/// Starts an agent that takes the name of its socket.
fn agent_at(binary: &Path, name: &str) -> Portus {
    let mut command = Command::new(binary);
    command.arg(name);
    Portus::start(name, command)
}

/// Writes the algorithm in Python; where it lies.
fn python_aimd(home: &Home) -> PathBuf {
    let script = home.path("aimd.py");
    fs::write(&script, PYTHON_AIMD).unwrap();
    script
}

/// Starts an agent of pyportus that runs this script.
fn python_agent(python: &Path, script: &Path) -> Portus {
    let mut command = Command::new(python);
    command.arg(script);
    Portus::start(FIXED_NAME, command)
}

#[test]
fn portus_0_6_steers_a_kernel_flow() {
    a_portus_of_version("0.6.1", "portus_0_6_steers_a_kernel_flow", "portus06");
}

#[test]
fn portus_0_8_steers_a_kernel_flow() {
    a_portus_of_version("0.8.0", "portus_0_8_steers_a_kernel_flow", "portus08");
}

/// An algorithm in Python, which decides by each report.
#[test]
fn pyportus_steers_a_kernel_flow() {
    let test = "pyportus_steers_a_kernel_flow";
    let Some((python, _one, lab)) = by_its_fixed_name(test, "python/bin/python3", "pyportus") else { return };
    let script = python_aimd(&lab.home);
    an_agent_steers_and_comes_back(&lab, || python_agent(&python, &script));
}

/// A rule goes by what a socket's TCP_CONGESTION asks for. A portus of two algorithms picks by that name, too: its default where it
/// has none of the name.
#[test]
fn a_socket_asks_for_portus_by_name() {
    const ASKED: &str = "ccp_asked";
    /// The name of an algorithm of `ccplane-portus --two`.
    const STEADY: &str = "ccp_steady";
    let Some(lab) = Lab::new("asks") else { return };
    lab.home.configure(&format!(
        "default_algorithm = \"cubic\"\n[[rule]]\nrequested = \"{ASKED}\"\nalgorithm = \"portus\"\n\
         [[rule]]\nrequested = \"{STEADY}\"\nalgorithm = \"portus\"\n[datapath.ebpf]\nmode = \"on\"\nname = \"{}\"\nrun_dir = {:?}\n[portus]\nsocket = \"/tmp/ccp/{}\"\n",
        lab.cc,
        lab.home.path(""),
        lab.portus
    ));
    let mut command = Command::new(env!("CARGO_BIN_EXE_ccplane-portus"));
    command.args([&lab.portus, "--two"]);
    let _portus = Portus::start(&lab.portus, command);
    let agent = lab.home.agent();
    let receiver = lab.link.receiver_addresses().v4.into();
    let _flows = [lab.flow(), lab.flow_under(ASKED, receiver), lab.flow_under(STEADY, receiver)];
    let listed = lab.wait_for_mode("program", 3);
    let mut chosen: Vec<_> = listed.iter().map(|f| f["algorithm"].as_str().unwrap().to_owned()).collect();
    chosen.sort();
    assert_eq!(chosen, ["cubic", "portus", "portus"]);
    let programs: BTreeSet<_> = listed.iter().map(|f| f["program"].as_str().unwrap()).collect();
    assert_eq!(programs.len(), 3, "{programs:?}: of portus's two algorithms each has one");
    let available = || fs::read_to_string("/proc/sys/net/ipv4/tcp_available_congestion_control").unwrap();
    assert!(available().contains(ASKED) && available().contains(STEADY));
    drop(agent);
    assert!(lab.home.run(&["doctor", "--clean"]).status.success());
    assert!(!available().contains(ASKED) && !available().contains(STEADY), "{}", available());
}

/// QUIC in a process of its own, over the channel, and portus behind our agent: it comes, is killed and comes again.
fn a_portus_steers_a_quic_flow(home: &Home, name: &str, start: impl Fn() -> Portus) {
    home.configure(&format!(
        "default_algorithm = \"portus\"\n[datapath.ebpf]\nmode = \"off\"\n[portus]\nsocket = \"/tmp/ccp/{name}\"\n"
    ));
    let folder = home.path("served");
    fs::create_dir(&folder).unwrap();
    fs::File::create(folder.join("file")).unwrap().set_len(1 << 36).unwrap();
    let _agent = home.agent();
    let mut serve = home.command(&["quic", "serve", folder.to_str().unwrap()]);
    serve.args(["--listen", "127.0.0.1:0", "--json", "--agent"]).stdin(Stdio::null()).stdout(Stdio::piped());
    let mut serve = Ended(serve.spawn().unwrap());
    let mut line = String::new();
    // Kept open: it says more.
    let mut lines = BufReader::new(serve.0.stdout.take().unwrap());
    lines.read_line(&mut line).unwrap();
    let said: serde_json::Value = serde_json::from_str(&line).unwrap();
    let text = |key: &str| said[key].as_str().unwrap().to_owned();
    let mut get = home.command(&["quic", "get", &text("address"), "file", "-o", "-"]);
    // Of the two ends' flows only the server's is the agent's.
    get.args(["--fingerprint", &text("fingerprint"), "--algorithm", "reno"])
        .stdin(Stdio::null())
        .stdout(Stdio::null());
    let _get = Ended(get.spawn().unwrap());
    let find = |mode: &str| {
        let flow = wait_for(mode, || home.flows().into_iter().find(|f| f["mode"] == mode));
        assert_eq!((&flow["datapath"], &flow["algorithm"]), (&"quic".into(), &"portus".into()));
        flow
    };
    find("native_no_program");
    let portus = start();
    let steered = find("program");
    let more = |than: &serde_json::Value, key: &str| {
        let before = than[key].as_u64().unwrap();
        wait_for(key, || (home.flows()[0][key].as_u64().unwrap() > before).then_some(()));
    };
    more(&steered, "reports");
    portus.kill_9();
    let native = find("native_no_program");
    more(&native, "bytes_acked");
    let _again = start();
    let steered = find("program");
    more(&steered, "reports");
}

#[test]
fn portus_0_9_steers_a_quic_flow() {
    let Some(home) = Home::new("portus_0_9_steers_a_quic_flow", "portus") else { return };
    let name = format!("ccplane-quic-{}", std::process::id());
    a_portus_steers_a_quic_flow(&home, &name, || ccp_reno(&name));
}

#[test]
fn portus_0_6_and_0_8_steer_quic_flows() {
    const TEST: &str = "portus_0_6_and_0_8_steer_quic_flows";
    for version in ["0.6.1", "0.8.0"] {
        let Some(binary) = built(TEST, &format!("bin/ccplane-portus-{version}")) else { return };
        let Some(home) = Home::new(TEST, "portus") else { return };
        let name = format!("ccplane-quic-{version}-{}", std::process::id());
        a_portus_steers_a_quic_flow(&home, &name, || agent_at(&binary, &name));
    }
}

/// Those that listen at one place alone: the Reno of generic_cong_avoid 0.4 (portus 0.7), and an algorithm in Python.
#[test]
fn portus_0_7_and_pyportus_steer_quic_flows() {
    const TEST: &str = "portus_0_7_and_pyportus_steer_quic_flows";
    let Some(reno) = built(TEST, "bin/reno") else { return };
    let Some(python) = built(TEST, "python/bin/python3") else { return };
    let _one = alone_at(FIXED_NAME);
    let Some(home) = Home::new(TEST, "portus") else { return };
    a_portus_steers_a_quic_flow(&home, FIXED_NAME, || Portus::start(FIXED_NAME, Command::new(&reno)));
    let Some(home) = Home::new(TEST, "portus") else { return };
    let script = python_aimd(&home);
    a_portus_steers_a_quic_flow(&home, FIXED_NAME, || python_agent(&python, &script));
}

/// `quic serve --agent` at the socket of a portus agent, which speaks version 1 of the protocol alone: it says so, and what to
/// do. That portus goes on; once an agent of ours has the socket, it serves, and that is the end of it.
#[test]
fn quic_says_that_a_portus_agent_cannot_steer_it_directly() {
    let Some(home) = Home::new("quic_says_that_a_portus_agent_cannot_steer_it_directly", "reno") else {
        return;
    };
    let name = format!("ccplane-direct-{}", std::process::id());
    let socket = Path::new("/tmp/ccp").join(&name);
    home.configure_at("reno", &socket, "");
    let folder = home.path("served");
    fs::create_dir(&folder).unwrap();
    let mut portus = ccp_reno(&name);
    wait_for("portus listens", || socket.exists().then_some(()));
    let log = home.path("serve.log");
    let mut serve = home.command(&["quic", "serve", folder.to_str().unwrap()]);
    serve.args(["--listen", "127.0.0.1:0", "--json", "--agent"]).stdin(Stdio::null()).stdout(Stdio::null());
    let _serve = Ended(serve.stderr(fs::File::create(&log).unwrap()).spawn().unwrap());
    let said = || fs::read_to_string(&log).unwrap();
    let words = format!("what listens at {} does not answer as ccplane does", socket.display());
    wait_for("a word about portus", || said().contains(&words).then_some(()));
    for part in
        ["perhaps a portus agent", "version 1", "flows run Reno", "[portus] socket", "run `ccplane agent`"]
    {
        assert!(said().contains(part), "no `{part}` in {}", said());
    }
    assert!(portus.child.try_wait().unwrap().is_none(), "portus bears what it does not know");
    portus.kill_9();
    wait_for("a word about nobody", || said().contains("no agent at").then_some(()));
    fs::remove_file(&socket).unwrap();
    let _agent = home.agent();
    wait_for("the agent has the datapath", || {
        home.json(&["status"])["datapaths"].to_string().contains("quic").then_some(())
    });
    assert_eq!(said().matches(&words).count(), 1, "{}", said());
}

/// A flow of stock libccp over UDP uses an emulated link, whether a portus agent or ours steers it.
#[test]
fn a_libccp_flow_uses_a_link_under_portus_and_under_ours() {
    const TEST: &str = "a_libccp_flow_uses_a_link_under_portus_and_under_ours";
    if lacks(TEST, ccplane_runner::missing_for_links().first()) {
        return;
    }
    let Some(home) = Home::new(TEST, "ccp-reno") else { return };
    let own = home.path("libccp.sock");
    {
        let name = format!("ccplane-stock-{}", std::process::id());
        let portus = ccp_reno(&name);
        wait_for("portus listens", || portus.path.exists().then_some(()));
        uses(TEST, &portus.path, &own);
    }
    let _agent = home.agent();
    uses(TEST, &home.path("ccp.sock"), &own);
}

/// A flow of `ccplane-libccp-flow` whose agent listens at `agent` carries [`DUE_AT_FIRST`] of its link, within the agent's windows.
fn uses(test: &str, agent: &Path, own: &Path) {
    within_tries(test, TRIES, |_| {
        let link = link();
        let echo = Echo::start(link.receiver_ns(), link.receiver_addresses().v4.into()).unwrap();
        let mut flow = Command::new(env!("CARGO_BIN_EXE_ccplane-libccp-flow"));
        flow.args([agent, own]).arg(echo.address().to_string());
        flow.arg(WINDOW.as_millis().to_string()).stdin(Stdio::null());
        let output = link.sender_ns().enter(&mut flow).unwrap().output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let ran: serde_json::Value = serde_json::from_slice(&output.stdout).expect(&said);
        let count = |name: &str| ran[name].as_u64().unwrap();
        // The link itself counted what crossed it: a segment per datagram.
        let crossed = link.stop().unwrap().up.delivered_packets;
        assert!(
            count("acks") <= crossed && count("bytes") == count("acks") * MSS,
            "{ran} of {crossed} packets"
        );
        let share = count("bytes") as f64 * 8e-6 / WINDOW.as_secs_f64() / f64::from(LINK_MBIT);
        let is_steered = count("updates") > 0 && count("acks_of_programs") > count("acks") / 10 * 9;
        if share > DUE_AT_FIRST && is_steered {
            Ok(())
        } else {
            Err(format!("{share:.2} of the link: {ran}"))
        }
    });
}
