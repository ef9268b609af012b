//! `ccplane predict`: predictors are trained, served over sockets, asked, pushed, and kept over restarts and kills.

use crate::common::{ccplane, command, stderr, stdout};
use ccplane_emulator::netns::{self, Namespace};
use ccplane_predict::ServerState;
use ccplane_predict::data::Images;
use ccplane_predict::packet::{MAX_DATAGRAM_BYTES, Reply, write_request};
use ccplane_testing::{skipped, wait_until};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::UdpSocket;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::mpsc::{Receiver, channel};
use std::thread;

const CLIENT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../datapath-shims/predict/client/predict.py");
const NAMES: [&str; 10] = [
    "adagrad-1",
    "adagrad-10",
    "adam-1",
    "adam-10",
    "nadam-1",
    "nadam-10",
    "rmsprop-1",
    "rmsprop-10",
    "sgd-1",
    "sgd-10",
];

/// Ten predictors, trained once for all tests, and what the training said of each.
fn trained() -> &'static (tempfile::TempDir, Vec<Value>) {
    static TRAINED: OnceLock<(tempfile::TempDir, Vec<Value>)> = OnceLock::new();
    TRAINED.get_or_init(|| {
        let folder = tempfile::tempdir().unwrap();
        let said = ccplane(&["predict", "train", folder.path().to_str().unwrap(), "--json"]);
        assert!(said.status.success(), "{}", stderr(&said));
        let lines = stdout(&said).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        (folder, lines)
    })
}

/// A folder of a test's own with the trained predictors.
fn predictors() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for name in NAMES {
        let file = format!("{name}.snapshot");
        fs::copy(trained().0.path().join(&file), folder.path().join(&file)).unwrap();
    }
    folder
}

/// A running server; killed when dropped.
struct Serving {
    child: Child,
    lines: Receiver<Value>,
    address: String,
    epoch: u64,
}

impl Serving {
    fn start(folder: &Path, more: &[&str]) -> Serving {
        let folder = folder.to_str().unwrap();
        let mut serve = command(&["predict", "serve", folder, "--listen", "127.0.0.1:0", "--json"]);
        serve.args(more);
        Serving::of(serve)
    }

    /// Runs a command that serves.
    fn of(mut serve: Command) -> Serving {
        let mut child = serve.stdout(Stdio::piped()).spawn().unwrap();
        let (to, lines) = channel();
        let out = BufReader::new(child.stdout.take().unwrap());
        thread::spawn(move || {
            for line in out.lines().map_while(Result::ok) {
                if to.send(serde_json::from_str(&line).unwrap()).is_err() {
                    return;
                }
            }
        });
        let mut serving = Serving { child, lines, address: String::new(), epoch: 0 };
        let listening = serving.line("listening");
        serving.address = listening["address"].as_str().unwrap().to_owned();
        serving.epoch = listening["epoch"].as_u64().unwrap();
        serving
    }

    /// The next line, which must be of this kind.
    fn line(&self, kind: &str) -> Value {
        let line = self.lines.recv_timeout(crate::common::PATIENCE).unwrap();
        line.get(kind).unwrap_or_else(|| panic!("{kind} expected: {line}")).clone()
    }

    /// Stops the server in order; returns what it has counted.
    fn stop(mut self) -> Value {
        kill(Pid::from_raw(self.child.id() as i32), Signal::SIGTERM).unwrap();
        assert!(self.child.wait().unwrap().success());
        self.line("ended")
    }

    fn ask(&self, more: &[&str]) -> Value {
        let said = ccplane(&[&["predict", "ask", &self.address, "--json"], more].concat());
        assert!(said.status.success(), "{}", stderr(&said));
        serde_json::from_slice(&said.stdout).unwrap()
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The state that a server has kept in a folder.
fn kept_in(folder: &Path) -> ServerState {
    ServerState::parse(&fs::read(folder.join("predict.state")).unwrap()).unwrap()
}

fn share(asked: &Value) -> f64 {
    asked["right"].as_f64().unwrap() / asked["answered"].as_f64().unwrap()
}

#[test]
fn ten_predictors_are_trained_and_differ() {
    let said = &trained().1;
    let mut names: Vec<&str> = said.iter().map(|line| line["name"].as_str().unwrap()).collect();
    names.sort_unstable();
    assert_eq!(names, NAMES);
    let accuracy =
        |name: &str| said.iter().find(|line| line["name"] == name).unwrap()["accuracy"].as_f64().unwrap();
    assert!(accuracy("adam-10") > 0.93 && accuracy("nadam-10") > 0.93, "{said:?}");
    for optimiser in ["sgd", "adam", "rmsprop", "adagrad", "nadam"] {
        let [one, ten] = [1, 10].map(|epochs| accuracy(&format!("{optimiser}-{epochs}")));
        assert!(ten > one + 0.02, "{optimiser}: {one} after one epoch, {ten} after ten");
    }
    for line in said {
        assert!(line["quantisation_error"].as_f64().unwrap() <= 0.01, "{line}");
    }
    let again = tempfile::tempdir().unwrap();
    assert!(ccplane(&["predict", "train", again.path().to_str().unwrap()]).status.success());
    for name in NAMES {
        let read = |folder: &Path| fs::read(folder.join(format!("{name}.snapshot"))).unwrap();
        assert_eq!(read(again.path()), read(trained().0.path()), "{name}: the same seed, other bits");
    }
}

#[test]
fn a_server_learns_whom_to_ask_and_keeps_that_over_restarts_and_kills() {
    let (folder, kept) = (predictors(), tempfile::tempdir().unwrap());
    let keep = ["--keep", kept.path().to_str().unwrap()];
    let serving = Serving::start(folder.path(), &keep);
    assert_eq!(serving.epoch, 1);
    // Exp4 hears of all predictors at once: what it answers is nearly the best one's at once.
    let asked = serving.ask(&["--slot", "1", "--count", "2000"]);
    assert_eq!(asked["answered"], 2000);
    assert!(share(&asked) > 0.85, "{asked}");
    serving.ask(&["--count", "500"]);
    serving.ask(&["--count", "50", "--no-feedback"]);
    let ended = serving.stop();
    assert_eq!(ended["requests"], 2550);
    assert_eq!(ended["right"].as_u64().unwrap() + ended["wrong"].as_u64().unwrap(), 2500);
    assert_eq!(ended["refused"], serde_json::json!({}));
    let in_order = kept_in(kept.path());
    assert!(in_order.session.is_some() && in_order.slots.iter().all(|(_, d)| d.iter().any(|d| *d > 0)));
    // In order: the same epoch, so that tokens are good; then killed: another.
    let serving = Serving::start(folder.path(), &keep);
    assert_eq!(serving.epoch, 1);
    let running = kept_in(kept.path());
    assert_eq!((running.slots, running.session), (in_order.slots.clone(), None));
    serving.ask(&["--count", "200"]);
    wait_until("the weights are kept while it runs", || kept_in(kept.path()).slots != in_order.slots);
    drop(serving);
    let serving = Serving::start(folder.path(), &keep);
    assert_eq!(serving.epoch, 2);
    assert_ne!(kept_in(kept.path()).slots, in_order.slots, "weights survive the kill");
    serving.stop();
    // What was changed is not believed, and said.
    let path = kept.path().join("predict.state");
    let mut state = fs::read(&path).unwrap();
    state[20] ^= 1;
    fs::write(&path, state).unwrap();
    assert_eq!(Serving::start(folder.path(), &keep).epoch, 1);
}

#[test]
fn predictors_that_are_written_to_the_folder_are_served_at_once() {
    let folder = predictors();
    let serving = Serving::start(folder.path(), &["--wire", "socket", "--slots", "exp3"]);
    let file = |name: &str| folder.path().join(format!("{name}.snapshot"));
    let replace = |bytes: &[u8], path: PathBuf| {
        let unfinished = path.with_extension("new");
        fs::write(&unfinished, bytes).unwrap();
        fs::rename(unfinished, path).unwrap();
    };
    let best = fs::read(file("adam-10")).unwrap();
    let before = share(&serving.ask(&["--count", "300", "--no-feedback"]));
    // Until now a tenth each; with the best at all places all answers are its.
    for name in NAMES.iter().filter(|name| **name != "adam-10") {
        replace(&best, file(name));
    }
    let mut pushed = serving.line("pushed");
    while share(&serving.ask(&["--count", "300", "--no-feedback"])) < 0.9 {
        pushed = serving.line("pushed");
    }
    assert_eq!(pushed["predictors"].as_array().unwrap().len(), 10);
    assert!(before < 0.9, "{before}");
    replace(b"no snapshot", file("sgd-1"));
    let refused = serving.line("refused");
    assert!(refused["why"].as_str().unwrap().contains("sgd-1.snapshot"), "{refused}");
    let after = share(&serving.ask(&["--count", "300", "--no-feedback"]));
    assert!(after > 0.9, "the earlier ones answer still: {after}");
    serving.stop();
}

#[test]
fn a_signed_predictor_that_is_older_than_one_served_before_is_refused() {
    let (folder, place) = (predictors(), tempfile::tempdir().unwrap());
    let at = |name: &str| place.path().join(name).to_str().unwrap().to_owned();
    let (key, public, state) = (at("key"), at("key.pub"), at("state"));
    assert!(ccplane(&["snapshot", "keygen", &key]).status.success());
    let sign = |name: &str, sequence: &str| {
        let file = folder.path().join(format!("{name}.snapshot"));
        let file = file.to_str().unwrap();
        let signed = ccplane(&["snapshot", "sign", file, "--key", &key, "--sequence", sequence]);
        assert!(signed.status.success(), "{}", stderr(&signed));
    };
    NAMES.iter().for_each(|name| sign(name, "5"));
    let flags = ["--wire", "socket", "--signed-by", &public, "--state", &state];
    let serving = Serving::start(folder.path(), &flags);
    sign("adam-1", "4");
    let refused = serving.line("refused");
    let why = refused["why"].as_str().unwrap();
    assert!(why.contains("adam-1.snapshot") && why.contains("sequence number is 4"), "{why}");
    serving.stop();
    let again = ["predict", "serve", folder.path().to_str().unwrap(), "--listen", "127.0.0.1:0"];
    let again = ccplane(&[&again[..], &flags].concat());
    assert_eq!(again.status.code(), Some(2));
    assert!(stderr(&again).contains("--allow-older"), "{}", stderr(&again));
    Serving::start(folder.path(), &[&flags[..], &["--allow-older"]].concat()).stop();
}

#[test]
fn benches_and_wrong_input_are_said_in_words() {
    let folder = predictors();
    let serving = Serving::start(folder.path(), &[]);
    for rate in [&["--rate", "500"][..], &[]] {
        let arguments = ["predict", "bench", &serving.address, "--seconds", "0.3", "--json"];
        let said = ccplane(&[&arguments[..], rate].concat());
        assert!(said.status.success(), "{}", stderr(&said));
        let said: Value = serde_json::from_slice(&said.stdout).unwrap();
        assert!(said["answered"].as_u64().unwrap() > 0 && said["p99_us"].as_f64() >= said["p50_us"].as_f64());
    }
    serving.stop();
    let refused = |arguments: &[&str], code: i32, words: &str| {
        let said = ccplane(&[&["predict"], arguments].concat());
        assert_eq!(said.status.code(), Some(code), "{arguments:?}");
        assert!(stderr(&said).contains(words), "{arguments:?}: {}", stderr(&said));
    };
    let empty = tempfile::tempdir().unwrap();
    let path = empty.path().to_str().unwrap();
    refused(&["serve", path], 2, "0 predictors, 1 to 16 are allowed");
    refused(&["serve", "/nowhere/at/all"], 2, "/nowhere/at/all");
    let unanswered = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let silent = unanswered.local_addr().unwrap().to_string();
    refused(&["bench", &silent, "--seconds", "0.2"], 1, "does not answer");
    let labels = empty.path().join("labels");
    fs::write(&labels, b"nothing").unwrap();
    let labels = labels.to_str().unwrap();
    refused(&["train", path, "--images", labels, "--labels", labels], 2, "no IDX file of images");
}

/// Runs `ip` in a namespace.
fn ip(namespace: &Namespace, arguments: &str) {
    let mut ip = Command::new("ip");
    let output = namespace.enter(ip.args(arguments.split(' '))).unwrap().output().unwrap();
    assert!(output.status.success(), "{arguments}: {}", stderr(&output));
}

/// Two namespaces with a cable, of which only the asking end has an address; `None`, which is said, where there can be none.
fn cable(names: [&str; 2]) -> Option<[Namespace; 2]> {
    if !netns::available() || Command::new("ip").arg("-V").output().is_err() {
        skipped("the prediction server over a cable", "needs root, /dev/net/tun and iproute2");
        return None;
    }
    let [asking, serving] = names.map(|name| Namespace::create(name).unwrap());
    ip(&asking, &format!("link add veth0 type veth peer name veth0 netns {}", serving.name().unwrap()));
    ip(&asking, "address add 10.9.6.1/24 dev veth0");
    ip(&asking, "link set veth0 up");
    ip(&serving, "link set veth0 up");
    Some([asking, serving])
}

#[test]
fn the_server_in_xdp_keeps_its_weights_over_restarts_and_no_tokens() {
    let Some([asking, serving_end]) = cable(["predict-keep-a", "predict-keep-b"]) else { return };
    ip(&serving_end, "address add 10.9.6.2/24 dev veth0");
    let (folder, kept) = (predictors(), tempfile::tempdir().unwrap());
    let start = |wire: &[&str]| {
        let served = folder.path().to_str().unwrap();
        let mut serve = command(&["predict", "serve", served, "--listen", "10.9.6.2:4434", "--json"]);
        serve.args(["--keep", kept.path().to_str().unwrap()]).args(wire);
        serving_end.enter(&mut serve).unwrap();
        Serving::of(serve)
    };
    let ask = |count: &str| {
        let mut ask =
            command(&["predict", "ask", "10.9.6.2:4434", "--slot", "1", "--count", count, "--json"]);
        let asked = asking.enter(&mut ask).unwrap().output().unwrap();
        assert!(asked.status.success(), "{}", stderr(&asked));
    };
    let digits = Images::digits().unwrap().split().test;
    let (pixels, truth) = digits.get(0).unwrap();
    let client = asking.run(|| UdpSocket::bind("10.9.6.1:0").unwrap()).unwrap();
    client.connect("10.9.6.2:4434").unwrap();
    client.set_read_timeout(Some(crate::common::PATIENCE)).unwrap();
    // A token that is not used before the next server.
    let token = || {
        let mut bytes = [0; MAX_DATAGRAM_BYTES];
        let length = write_request(&mut bytes, 1, 7, pixels);
        client.send(&bytes[..length]).unwrap();
        let length = client.recv(&mut bytes).unwrap();
        Reply::parse(&bytes[..length]).unwrap().feedback(truth)
    };
    let kernel: &[&str] = &["--wire", "kernel", "--interface", "veth0", "--generic"];
    let serving = start(kernel);
    assert_eq!(serving.epoch, 1);
    ask("300");
    let late = token();
    assert_eq!(serving.stop()["refused"], serde_json::json!({}));
    let first = kept_in(kept.path());
    assert!(first.session.is_none() && first.slots[1].1.iter().any(|deficit| *deficit > 0));
    let outdated = |serving: Serving, late: &[u8]| {
        client.send(late).unwrap();
        ask("1");
        assert_eq!(serving.stop()["refused"], serde_json::json!({ "outdated": 1 }));
    };
    let serving = start(kernel);
    assert_eq!((serving.epoch, kept_in(kept.path()).slots), (2, first.slots));
    let late_too = token();
    outdated(serving, &late);
    // Over a socket the weights go on; what it leaves in order is good for the next socket, and not for XDP.
    let before = kept_in(kept.path()).slots;
    let serving = start(&["--wire", "socket"]);
    assert_eq!((serving.epoch, kept_in(kept.path()).slots), (3, before));
    let late = token();
    outdated(serving, &late_too);
    assert!(kept_in(kept.path()).session.is_some());
    let serving = start(kernel);
    assert_eq!(serving.epoch, 4);
    outdated(serving, &late);
}

#[test]
fn every_wire_serves_at_the_end_of_a_cable() {
    let Some([asking, serving]) = cable(["predict-a", "predict-b"]) else { return };
    let folder = predictors();
    let wires: [&[&str]; 4] = [
        &["--wire", "socket"],
        &["--wire", "uring"],
        &["--wire", "xdp", "--interface", "veth0"],
        &["--wire", "kernel", "--interface", "veth0", "--generic"],
    ];
    let port: &[&str] = &["--port", "af_packet:veth0", "--address", "10.9.6.2/24"];
    let wires = wires.into_iter().map(|wire| (wire, true));
    let ports = [(port, false)].into_iter().filter(|_| cfg!(feature = "dpdk"));
    // The kernel must not have a DPDK port's address, so that comes first.
    for (wire, is_kernels) in ports.chain(wires) {
        if is_kernels {
            ip(&serving, "address replace 10.9.6.2/24 dev veth0");
        }
        let served = folder.path().to_str().unwrap();
        let mut serve = command(&["predict", "serve", served, "--listen", "10.9.6.2:4434", "--json"]);
        serve.args(wire);
        serving.enter(&mut serve).unwrap();
        let serving = Serving::of(serve);
        let mut ask =
            command(&["predict", "ask", "10.9.6.2:4434", "--slot", "1", "--count", "300", "--json"]);
        let asked = asking.enter(&mut ask).unwrap().output().unwrap();
        assert!(asked.status.success(), "{wire:?}: {}", stderr(&asked));
        let asked: Value = serde_json::from_slice(&asked.stdout).unwrap();
        assert!(asked["answered"].as_u64().unwrap() > 290, "{wire:?}: {asked}");
        // From knowing nothing on: an even draw would have 78 % right, five standard deviations below are 66.
        assert!(share(&asked) > 0.66, "{wire:?}: {asked}");
        let ended = serving.stop();
        assert!(ended["requests"].as_u64() >= asked["answered"].as_u64(), "{wire:?}: {ended}");
        assert_eq!(ended["refused"], serde_json::json!({}), "{wire:?}");
    }
}

#[test]
fn the_client_in_python_asks_and_tells() {
    if Command::new("python3").arg("--version").output().is_err() {
        skipped("the Python client of the prediction server", "there is no python3");
        return;
    }
    let folder = predictors();
    let serving = Serving::start(folder.path(), &[]);
    let (host, port) = serving.address.split_once(':').unwrap();
    let mut client = Command::new("python3")
        .args([CLIENT, host, port, "1"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let test = Images::digits().unwrap().split().test;
    let mut asked = String::new();
    for n in 0..200 {
        let (pixels, truth) = test.get(n).unwrap();
        let pixels: Vec<String> = pixels.iter().map(u8::to_string).collect();
        asked.push_str(&format!("{}: {truth}\n", pixels.join(" ")));
    }
    client.stdin.take().unwrap().write_all(asked.as_bytes()).unwrap();
    let said = client.wait_with_output().unwrap();
    assert!(said.status.success());
    let answers: Vec<u8> = stdout(&said).lines().map(|line| line.parse().unwrap()).collect();
    let right = answers.iter().enumerate().filter(|(n, class)| test.get(*n).unwrap().1 == **class).count();
    assert_eq!(answers.len(), 200);
    assert!(right > 140, "{right} of 200");
    let ended = serving.stop();
    assert_eq!((ended["requests"].as_u64(), ended["right"].as_u64()), (Some(200), Some(right as u64)));
    assert_eq!(ended["wrong"].as_u64(), Some(200 - right as u64));
}
