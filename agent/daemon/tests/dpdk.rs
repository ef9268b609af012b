//! `ccplane quic` over DPDK ports: a server and a client at the two ends of a veth pair, steered by the machine's agent.
#![allow(clippy::unwrap_used)]

mod common;

use ccplane_emulator::netns::{self, Namespace};
use common::{Home, stderr, wait_for};
use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

const FILE_BYTES: usize = 60_000_000;

/// Killed with the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn ip(namespace: &Namespace, args: &str) {
    let mut command = Command::new("ip");
    let output = namespace.enter(command.args(args.split(' '))).unwrap().output().unwrap();
    assert!(output.status.success(), "ip {args}: {}", stderr(&output));
}

#[test]
fn files_go_over_ports_and_the_machines_agent_steers_them() {
    if !netns::available() || Command::new("ip").arg("-V").output().is_err() {
        return eprintln!("SKIPPED: ccplane quic over DPDK ports: needs root, /dev/net/tun and iproute2");
    }
    let (a, b) = (Namespace::create("dpdk-a").unwrap(), Namespace::create("dpdk-b").unwrap());
    ip(&a, &format!("link add veth0 type veth peer name veth0 netns {}", b.name().unwrap()));
    ip(&a, "link set veth0 up");
    ip(&b, "link set veth0 up");
    let home = Home::new("default_algorithm = \"reno\"\n");
    let content: Vec<u8> = (0..FILE_BYTES).map(|n| (n % 251) as u8).collect();
    fs::create_dir_all(home.path("served")).unwrap();
    fs::write(home.path("served/file"), &content).unwrap();
    // Where the server is: a datapath's address on the agent's socket is one of its network namespace.
    let _agent = Running(b.enter(home.command(&["agent"]).stderr(Stdio::null())).unwrap().spawn().unwrap());
    wait_for("the agent serves", || home.run(&["status"]).status.success().then_some(()));

    let folder = home.path("served");
    let serve = ["quic", "serve", folder.to_str().unwrap(), "--json", "--port", "af_packet:veth0"];
    let mut serve = home.command(&[&serve[..], &["--address", "10.9.0.2/24"]].concat());
    let mut serve = Running(b.enter(serve.stdout(Stdio::piped())).unwrap().spawn().unwrap());
    // Read to the end of the test: the server ends when nobody hears what it says.
    let (mut said, mut first) = (BufReader::new(serve.0.stdout.take().unwrap()), String::new());
    said.read_line(&mut first).unwrap();
    let first: Value = serde_json::from_str(&first).unwrap();
    assert_eq!(first["address"], "10.9.0.2:4433");

    let output = home.path("new");
    let fingerprint = first["fingerprint"].as_str().unwrap();
    let get = [
        "quic",
        "get",
        "10.9.0.2:4433",
        "file",
        "-o",
        output.to_str().unwrap(),
        "--fingerprint",
        fingerprint,
    ];
    let port = ["--port", "af_packet:veth0", "--address", "10.9.0.1/24", "--algorithm", "reno"];
    let mut get = home.command(&[&get[..], &port].concat());
    let mut get = Running(a.enter(get.stdout(Stdio::null())).unwrap().spawn().unwrap());
    wait_for("a flow over DPDK that the agent steers", || {
        let flows = home.json(&["flows"]);
        let steered = |flow: &Value| flow["mode"] == "program" && flow["datapath"] == "dpdk";
        flows["flows"].as_array()?.iter().any(steered).then_some(())
    });
    assert!(get.0.wait().unwrap().success());
    assert_eq!(fs::read(&output).unwrap(), content);
    let mut request = String::new();
    said.read_line(&mut request).unwrap();
    assert!(request.contains("\"get file\"") && request.contains("\"error\":null"), "{request}");
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
