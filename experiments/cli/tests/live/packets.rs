//! The agent with decisions about packets, in a network namespace of its own.

use crate::common::{Home, PATIENCE, failed, stderr, wait_for};
use ccplane_agent::owned::Folder;
use ccplane_emulator::multi::RECEIVER;
use ccplane_emulator::netns::{self, Namespace};
use ccplane_emulator::{LinkConfig, MultiPath, Shape};
use ccplane_infer::Bits;
use ccplane_learn::{Policy, Rng};
use ccplane_quantize::{Mlp, Options, Width, quantize};
use ccplane_snapshot::Snapshot;
use ccplane_testing::{found, lacks, skipped};
use serde_json::Value;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

/// Starts an agent in a namespace and waits until it serves.
fn start(home: &Home, namespace: &Namespace) -> Child {
    let mut command = home.command(&["agent"]);
    let log = File::create(home.path("log")).unwrap();
    let command = namespace.enter(&mut command).unwrap();
    let mut agent = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn().unwrap();
    wait_for("the agent serves", || {
        assert!(agent.try_wait().unwrap().is_none(), "{}", home.log());
        home.run(&["status"]).status.success().then_some(())
    });
    agent
}

/// An agent in a namespace, with decisions about the packets of its loopback device.
struct Lab {
    home: Home,
    namespace: Namespace,
    agent: Child,
}

impl Lab {
    /// Returns none, and reports a skip, where the machine cannot run the test.
    fn new(test: &str, name: &str, algorithm: &str) -> Option<Lab> {
        Lab::with(test, name, algorithm, "")
    }

    /// The same with more lines of configuration.
    fn with(test: &str, name: &str, algorithm: &str, more: &str) -> Option<Lab> {
        Lab::configured(test, name, algorithm, &format!("learn.mode = \"off\"\n{more}"))
    }

    /// The same where these lines say what is learned, too.
    fn configured(test: &str, name: &str, algorithm: &str, more: &str) -> Option<Lab> {
        if lacks(test, netns::missing()) {
            return None;
        }
        found(test, ccplane_ebpf::packets::available())?;
        let namespace = Namespace::anonymous().unwrap();
        let home = Home::new("");
        let run_dir = home.dir().to_owned();
        home.configure(&format!(
            "datapath.ebpf.mode = \"off\"\ndatapath.ebpf.run_dir = {run_dir:?}\n\
             datapath.packets.mode = \"on\"\ndatapath.packets.name = \"{name}\"\ndatapath.packets.devices = [\"lo\"]\n\
             datapath.packets.algorithm = \"{algorithm}\"\n{more}"
        ));
        let agent = start(&home, &namespace);
        Some(Lab { home, namespace, agent })
    }

    /// Lists the qdiscs and egress filters of the namespace's device.
    fn traffic_control(&self) -> String {
        let list = |arguments: &str| {
            let mut command = Command::new("tc");
            command.args(arguments.split_whitespace());
            let output = self.namespace.enter(&mut command).unwrap().output().unwrap();
            String::from_utf8(output.stdout).unwrap()
        };
        list("qdisc show dev lo") + &list("filter show dev lo egress")
    }

    /// A flow that has sent so much; its reader reads on.
    fn flow(&self, bytes: usize) -> TcpStream {
        let connect = || {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
            let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            (stream, listener.accept().unwrap().0)
        };
        let (mut stream, mut accepted) = self.namespace.run(connect).unwrap();
        std::thread::spawn(move || {
            let mut buffer = vec![0; 1 << 16];
            while matches!(accepted.read(&mut buffer), Ok(1..)) {}
        });
        stream.write_all(&vec![0; bytes]).unwrap();
        stream
    }

    /// Returns the record of a flow as `ccplane flows` lists it.
    fn listed(&self, stream: &TcpStream) -> Option<Value> {
        let (local, flows) = (stream.local_addr().unwrap().to_string(), self.home.json(&["flows"]));
        flows["flows"].as_array().unwrap().iter().find(|flow| flow["local"] == local.as_str()).cloned()
    }

    /// Ends the flow, which the agent notices, and stops the agent.
    fn end(mut self, stream: TcpStream) {
        let local = stream.local_addr().unwrap().to_string();
        drop(stream);
        wait_for("the flow is gone", || {
            (!self.home.json(&["flows"]).to_string().contains(&local)).then_some(())
        });
        let stopped = self.home.run(&["stop"]);
        assert!(stopped.status.success(), "{}", stderr(&stopped));
        assert!(self.agent.wait().unwrap().success(), "{}", self.home.log());
        assert!(self.home.log().contains("packets' datapath detached"), "{}", self.home.log());
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        let _ = self.agent.kill();
        let _ = self.agent.wait();
    }
}

#[test]
fn flows_that_no_rule_matches_are_listed_and_left_alone() {
    let Some(lab) = Lab::new("flows_that_no_rule_matches_are_listed_and_left_alone", "cct_none", "native")
    else {
        return;
    };
    let stream = lab.flow(1000);
    let flow = wait_for("the flow is listed", || lab.listed(&stream));
    assert_eq!(
        (&flow["datapath"], &flow["mode"]),
        (&"packets".into(), &"native_no_program".into()),
        "{flow}"
    );
    assert_eq!(flow["algorithm"], "native", "{flow}");
    lab.end(stream);
}

#[test]
fn pias_decides_about_packets() {
    let Some(lab) = Lab::new("pias_decides_about_packets", "cct_pias", "pias") else { return };
    let mut stream = lab.flow(100_000);
    let flow = wait_for("its program runs", || {
        stream.write_all(&[0; 1000]).unwrap();
        lab.listed(&stream).filter(|flow| flow["mode"] == "program")
    });
    let names = (&flow["datapath"], &flow["algorithm"], &flow["program"]);
    assert_eq!(names, (&"packets".into(), &"pias".into(), &"pias".into()), "{flow}");
    lab.end(stream);
}

/// Each algorithm for packets that a rule can name runs on live flows, and shows in `flows`.
#[test]
fn every_algorithm_for_packets_decides_and_is_shown() {
    for (n, algorithm) in
        ["size", "size-agent", "plb", "path", "path-agent", "least-loaded"].iter().enumerate()
    {
        let test = "every_algorithm_for_packets_decides_and_is_shown";
        let Some(lab) = Lab::new(test, &format!("cct_all{n}"), algorithm) else { return };
        let mut stream = lab.flow(30_000);
        let flow = wait_for("its program runs", || {
            stream.write_all(&[0; 1000]).unwrap();
            lab.listed(&stream).filter(|flow| flow["mode"] == "program")
        });
        assert_eq!((&flow["algorithm"], &flow["faults"]), (&(*algorithm).into(), &0.into()), "{flow}");
        assert!(flow["steering"]["decisions"].as_u64().unwrap() > 0, "{flow}");
        assert_eq!(flow["steering"]["path"], 0, "there is but one: {flow}");
        let text = String::from_utf8(lab.home.run(&["flows"]).stdout).unwrap();
        assert!(text.contains(" priority:") && text.contains(" path:0"), "{text}");
        lab.end(stream);
    }
}

/// The prediction of [`ignorant`] networks for all flows, octaves: two megabytes, or a path on which all takes 32 times as long as usual.
const ALL_ALIKE: f32 = 5.0;
/// Share of its weights that the last layer of such a network keeps.
const KEPT: f32 = 0.01;

/// The network of an algorithm that tells no flow from another.
fn ignorant(algorithm: &str) -> (Policy, Snapshot) {
    let algorithms = ccplane_algs::on_packets();
    let source = algorithms.iter().find(|of| of.name() == algorithm).unwrap().policies().remove(0);
    let (shipped, deployed) =
        (Policy::from_bytes(&source.policy).unwrap(), Snapshot::built_in(source.snapshot).unwrap());
    let mut layers = shipped.actor().layers().to_vec();
    let last = layers.last_mut().unwrap();
    last.weights.iter_mut().for_each(|weight| *weight *= KEPT);
    last.bias[0] = ALL_ALIKE;
    let (critic, log_std) = (shipped.critic().clone(), shipped.log_std());
    let policy = shipped.with_parameters(Mlp::new(layers).unwrap(), critic, log_std).unwrap();
    let (mut rng, inputs) = (Rng::new(1, &[]), policy.spec().inputs().len());
    let mut state = || (0..inputs).map(|_| (rng.uniform() * 65_536.0) as i32).collect();
    let states: Vec<Vec<i32>> = (0..512).map(|_| state()).collect();
    // A slot takes one shape.
    let bits = match deployed.shape().bits() {
        Bits::W8 => Width::W8,
        Bits::W16 => Width::W16,
    };
    let options = Options { bits, guards: Some(deployed.guards()), ..Options::default() };
    let snapshot = quantize(policy.actor(), policy.spec(), &states, &options).unwrap();
    (policy, snapshot)
}

/// Flows decide by a network that is wrong about all of them, which was pushed by hand. What their ends tell is learned, and tried.
#[test]
fn what_live_flows_turn_out_to_be_is_learned_and_tried() {
    const SIZES: [usize; 4] = [600, 3_000, 12_000, 45_000];
    /// Flows between two looks.
    const FLOWS: usize = 40;
    for (n, algorithm) in ["size", "path"].into_iter().enumerate() {
        let folder = tempfile::tempdir().unwrap();
        let learn = format!(
            "learn.folder = {:?}\nlearn.batch_ms = 100\nlearn.cpu_percent = 100\nlearn.burst_cpu_percent = 100\n",
            folder.path()
        );
        let test = "what_live_flows_turn_out_to_be_is_learned_and_tried";
        let Some(lab) = Lab::configured(test, &format!("cct_learn{n}"), algorithm, &learn) else { return };
        let mut stream = lab.flow(1000);
        wait_for("its program runs", || {
            stream.write_all(&[0; 1000]).unwrap();
            lab.listed(&stream).filter(|flow| flow["mode"] == "program")
        });
        // With its float policy beside it, learning goes on from it.
        let (policy, snapshot) = ignorant(algorithm);
        let (kept, hash) = (Folder::open(folder.path()).unwrap(), snapshot.hash().to_string());
        kept.replace(&format!("{hash}.safetensors"), &policy.to_bytes().unwrap()).unwrap();
        kept.replace(&format!("{hash}.snapshot"), &snapshot.to_bytes()).unwrap();
        let file = folder.path().join(format!("{hash}.snapshot"));
        let pushed = lab.home.run(&["snapshot", "push", file.to_str().unwrap(), "--force"]);
        assert!(pushed.status.success(), "{}", stderr(&pushed));
        let began = Instant::now();
        let (tried, list) = loop {
            (0..FLOWS).for_each(|flow| drop(lab.flow(SIZES[flow % SIZES.len()])));
            let list = lab.home.json(&["snapshot", "list"]);
            let mut decisions = list["decisions"].as_array().unwrap().iter();
            let tried = decisions.find(|of| of["origin"] == "learned" && of["verdict"] == "trial");
            if let Some(tried) = tried {
                break (tried.clone(), list);
            }
            assert!(began.elapsed() < PATIENCE, "{algorithm}: nothing is tried: {list}\n{}", lab.home.log());
        };
        let mut learners = list["learners"].as_array().unwrap().iter();
        let learner = learners.find(|of| of["algorithm"] == algorithm).unwrap();
        assert!(
            learner["rows"].as_u64().unwrap() > 0 && learner["candidates"].as_u64().unwrap() > 0,
            "{list}"
        );
        assert_eq!((&tried["datapath"], &tried["algorithm"]), (&"packets".into(), &algorithm.into()));
        assert_ne!(tried["snapshot"], hash);
        let gain = tried["evidence"]["gain"].as_f64().unwrap();
        assert!(gain > 1.0, "octaves that it is less off than what was pushed: {tried}");
        lab.end(stream);
    }
}

#[test]
fn parameters_are_those_of_the_configuration() {
    let Some(lab) = Lab::new("parameters_are_those_of_the_configuration", "cct_param", "pias") else {
        return;
    };
    let stream = lab.flow(10_000);
    let first = wait_for("it is listed", || lab.listed(&stream).filter(|flow| flow["mode"] == "program"));
    assert_eq!(first["steering"]["priority"], 0, "below the first threshold: {first}");
    lab.end(stream);
    let Some(lab) = Lab::with(
        "parameters_are_those_of_the_configuration",
        "cct_param",
        "pias",
        "datapath.packets.parameters = { demote_1_bytes = 100, demote_2_bytes = 200 }\n",
    ) else {
        return;
    };
    let mut stream = lab.flow(10_000);
    let flow = wait_for("it falls", || {
        stream.write_all(&[0; 10]).unwrap();
        lab.listed(&stream).filter(|flow| flow["steering"]["priority"] == 2)
    });
    assert_eq!(flow["algorithm"], "pias", "{flow}");
    lab.end(stream);
    let home = Home::new(
        "datapath.packets.algorithm = \"pias\"\ndatapath.packets.parameters = { demote_9_bytes = 1 }\n",
    );
    failed(&home.run(&["agent", "--check-config"]), 2, "datapath.packets.parameters");
}

#[test]
fn nothing_is_left_of_a_killed_agent_and_the_next_one_starts() {
    let test = "nothing_is_left_of_a_killed_agent_and_the_next_one_starts";
    let Some(mut lab) = Lab::new(test, "cct_kill", "pias") else { return };
    let mut stream = lab.flow(30_000);
    wait_for("its program runs", || lab.listed(&stream).filter(|flow| flow["mode"] == "program"));
    lab.agent.kill().unwrap();
    assert_eq!(lab.agent.wait().unwrap().signal(), Some(9));
    stream.write_all(&[0; 30_000]).unwrap();
    let mut doctor = lab.home.command(&["doctor", "--clean"]);
    let cleaned = lab.namespace.enter(&mut doctor).unwrap().output().unwrap();
    assert!(String::from_utf8_lossy(&cleaned.stdout).contains("cleaned:"), "{}", stderr(&cleaned));
    let bare = Namespace::anonymous().unwrap();
    let mut list = Command::new("tc");
    list.args(["qdisc", "show", "dev", "lo"]);
    let untouched = bare.enter(&mut list).unwrap().output().unwrap();
    assert_eq!(lab.traffic_control(), String::from_utf8(untouched.stdout).unwrap());
    lab.agent = start(&lab.home, &lab.namespace);
    wait_for("the next agent decides", || {
        stream.write_all(&[0; 1000]).unwrap();
        lab.listed(&stream).filter(|flow| flow["mode"] == "program")
    });
    lab.end(stream);
}

/// A control group (v2), which is removed when this is dropped.
struct Group(PathBuf);

impl Drop for Group {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

/// Payload of a flow of the next test, bytes.
const STARTED: usize = 200_000;

/// A process in a control group that sends so much to a port of the receiver, and holds its connection until its input ends.
fn send_from(group: &Path, links: &MultiPath, port: u16) -> Child {
    let script = format!(
        "echo $$ > {}/cgroup.procs && exec 3<>/dev/tcp/{}/{port} && head -c {STARTED} /dev/zero >&3 && read -r _",
        group.display(),
        RECEIVER.v4
    );
    let mut shell = Command::new("bash");
    links.sender_ns().enter(shell.args(["-c", &script])).unwrap();
    shell.stdin(Stdio::piped()).spawn().unwrap()
}

/// Carries one flow; returns the path that the agent says it has, whose link is the one that carried it.
fn carried_by(home: &Home, group: &Path, links: &MultiPath) -> usize {
    let carried = || links.stats().iter().map(|link| link.up.delivered_bytes).collect::<Vec<u64>>();
    let before = carried();
    let bind = || TcpListener::bind((RECEIVER.v4, 0)).unwrap();
    let listener = links.receiver_ns().run(bind).unwrap();
    let remote = listener.local_addr().unwrap();
    let mut sending = send_from(group, links, remote.port());
    let (mut accepted, _) = listener.accept().unwrap();
    accepted.set_read_timeout(Some(PATIENCE)).unwrap();
    accepted.read_exact(&mut vec![0; STARTED]).unwrap();
    let flow = wait_for("its program runs", || {
        let flows = home.json(&["flows"]);
        let mut flows = flows["flows"].as_array().unwrap().iter();
        flows.find(|flow| flow["remote"] == remote.to_string() && flow["mode"] == "program").cloned()
    });
    assert_eq!(flow["faults"], 0, "{flow}");
    let path = flow["steering"]["path"].as_u64().unwrap() as usize;
    let grown = wait_for("its link has carried it", || {
        let grown: Vec<u64> = carried().iter().zip(&before).map(|(now, before)| now - before).collect();
        (grown.iter().sum::<u64>() >= STARTED as u64).then_some(grown)
    });
    assert!(grown[path] >= STARTED as u64 && grown[1 - path] < STARTED as u64 / 4, "{grown:?}: {flow}");
    drop(sending.stdin.take());
    sending.wait().unwrap();
    path
}

/// Paths are marks alone, which `ip rule` goes by: flows choose theirs where they start, and keep it.
#[test]
fn flows_choose_a_path_where_they_start_and_routes_follow() {
    let test = "flows_choose_a_path_where_they_start_and_routes_follow";
    if lacks(test, netns::missing()) || found(test, ccplane_ebpf::packets::available()).is_none() {
        return;
    }
    let Some(root) = ccplane_ebpf::packets::cgroup_root() else {
        return skipped(test, "there are no control groups (v2) here");
    };
    let name = format!("ccp-{}-starts", std::process::id());
    let group = Group(root.join(&name));
    fs::create_dir(&group.0).unwrap();
    for (n, algorithm) in ["path", "plb"].into_iter().enumerate() {
        let link = LinkConfig::symmetric(Shape::Unlimited, 1000);
        let links = MultiPath::start(&[link.clone(), link]).unwrap();
        let home = Home::new("");
        let run_dir = home.dir().to_owned();
        let marks = [0, 1].map(MultiPath::mark);
        let parameters = if algorithm == "path" { "{ explore_permille = 1000 }" } else { "{}" };
        home.configure(&format!(
            "datapath.ebpf.mode = \"off\"\ndatapath.ebpf.run_dir = {run_dir:?}\nlearn.mode = \"off\"\n\
             datapath.packets.mode = \"on\"\ndatapath.packets.name = \"cct_start{n}\"\n\
             datapath.packets.devices = [\"{}\", \"{}\"]\ndatapath.packets.algorithm = \"{algorithm}\"\n\
             datapath.packets.parameters = {parameters}\ndatapath.packets.cgroup = \"/{name}\"\n\
             datapath.packets.mark_mask = 15\n\
             datapath.packets.paths = [{{ mark = {} }}, {{ mark = {} }}]\n",
            MultiPath::device(0),
            MultiPath::device(1),
            marks[0],
            marks[1],
        ));
        let mut agent = start(&home, links.sender_ns());
        // Each takes one at random: sooner or later both are taken.
        let (began, mut taken) = (Instant::now(), [false; 2]);
        while taken.contains(&false) {
            assert!(began.elapsed() < PATIENCE, "{algorithm} takes the same path always: {}", home.log());
            taken[carried_by(&home, &group.0, &links)] = true;
        }
        let stopped = home.run(&["stop"]);
        assert!(stopped.status.success(), "{}", stderr(&stopped));
        assert!(agent.wait().unwrap().success(), "{}", home.log());
    }
}

/// A plan of few flows over three links, for both questions.
const LIVE: &str = "
[live]
paths = 3
rate_mbit = 20
delay_us = 1000
queue_packets = 100
flowlet_us = 5000
largest_flow_kb = 100
load_percent = [50]
repeats = 1
flows = 12
warm_up_flows = 4
";

#[test]
fn plans_of_fabrics_run_live() {
    if !netns::available() || ccplane_ebpf::packets::available().is_err() {
        return skipped("plans_of_fabrics_run_live", "needs root, /dev/net/tun and BPF");
    }
    let home = Home::new("");
    let run_dir = home.dir().to_owned();
    home.configure(&format!("datapath.ebpf.mode = \"off\"\ndatapath.ebpf.run_dir = {run_dir:?}\n"));
    let out = home.path("out");
    for (kind, contenders, keys) in [
        ("flow-scheduling", ["fifo", "size"], "predictable_percent = [100]"),
        ("load-balancing", ["ecmp", "plb"], "uplinks = [\"failed\"]"),
    ] {
        let plan = home.path(&format!("{kind}.toml"));
        let text = format!(
            "kind = \"{kind}\"\ntitle = \"t\"\nhosts = 8\nrate_gbit = 10\nagent_latency_us = 50\nsizes = [\"web-search\"]\n\
             largest_flow_mb = 1\n{keys}\nload_percent = [50]\ncontenders = {contenders:?}\nrepeats = 2\nflows = 20\n\
             warm_up_flows = 5\n"
        );
        fs::write(&plan, &text).unwrap();
        let run = |more: &[&str]| {
            let results = ["--results", out.to_str().unwrap()];
            home.run(&[&["run", plan.to_str().unwrap()][..], more, &results[..]].concat())
        };
        let without = run(&["--live"]);
        assert_eq!(without.status.code(), Some(2), "{}", stderr(&without));
        assert!(stderr(&without).contains("no table [live]"), "{}", stderr(&without));
        fs::write(&plan, format!("{text}{LIVE}")).unwrap();
        let ran = run(&["--live"]);
        assert!(ran.status.success(), "{}", stderr(&ran));
        let results = ccplane_results::read(&out.join(format!("{kind}-live.jsonl"))).unwrap();
        assert_eq!(results.runs.len(), 2);
        for run in &results.runs {
            let ccplane_results::RunOutcome::Ok(measured) = &run.outcome else { panic!("{run:?}") };
            let flows = measured.fabric.as_ref().unwrap();
            assert_eq!((flows.bytes.len(), flows.unfinished.len()), (12, 0), "{run:?}");
        }
        assert!(
            fs::read_to_string(out.join(format!("{kind}-live.html"))).unwrap().contains("emulated links")
        );
    }
}
