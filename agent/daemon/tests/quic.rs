//! `ccplane quic`, as a user would try it: two processes on loopback, without an agent, with one of their own, with the
//! machine's.
#![allow(clippy::unwrap_used)]

mod common;

use common::{Home, stderr, stdout, wait_for};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Output, Stdio};
use std::time::{Duration, Instant};

/// `ccplane quic serve`, killed when dropped.
struct Serve {
    child: Child,
    lines: BufReader<std::process::ChildStdout>,
    address: String,
    fingerprint: String,
}

impl Serve {
    fn start(home: &Home, more: &[&str]) -> Serve {
        let folder = home.path("served");
        fs::create_dir_all(&folder).unwrap();
        let folder = folder.to_str().unwrap();
        let arguments = ["quic", "serve", folder, "--listen", "127.0.0.1:0", "--json"];
        let mut command = home.command(&[&arguments, more].concat());
        let mut child =
            command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap());
        let first = next(&mut lines);
        let text = |key: &str| first[key].as_str().unwrap().to_owned();
        Serve { child, lines, address: text("address"), fingerprint: text("fingerprint") }
    }

    fn client(&self, home: &Home, verb: &str, more: &[&str]) -> Output {
        home.run(&[&["quic", verb, &self.address, "--fingerprint", &self.fingerprint], more].concat())
    }

    /// What it says of the next request.
    fn said(&mut self) -> Value {
        next(&mut self.lines)
    }

    /// Interrupts it; its exit code.
    fn interrupt(mut self) -> Option<i32> {
        kill(Pid::from_raw(self.child.id() as i32), Signal::SIGINT).unwrap();
        let mut ended = None;
        wait_for("the server ends", || {
            ended = self.child.try_wait().unwrap();
            ended
        });
        ended.unwrap().code()
    }
}

impl Drop for Serve {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn next(lines: &mut impl BufRead) -> Value {
    let mut line = String::new();
    lines.read_line(&mut line).unwrap();
    serde_json::from_str(&line).unwrap()
}

fn content(path: &Path, bytes: usize) -> Vec<u8> {
    let content: Vec<u8> = (0..bytes).map(|n| (n * 7 + n / 251) as u8).collect();
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, &content).unwrap();
    content
}

#[test]
fn files_come_and_go() {
    let home = Home::new("");
    let sent = content(&home.path("served/in/file"), 3_000_000);
    let trace = home.path("trace.qlog");
    let mut serve =
        Serve::start(&home, &["--writable", "--algorithm", "cubic", "--qlog", trace.to_str().unwrap()]);

    let fetched = home.path("fetched");
    let got = serve.client(&home, "get", &["in/file", "-o", fetched.to_str().unwrap(), "--json"]);
    assert!(got.status.success(), "{}", stderr(&got));
    assert_eq!(fs::read(&fetched).unwrap(), sent);
    let figures: Value = serde_json::from_slice(&got.stdout).unwrap();
    let said = serve.said();
    assert_eq!((&figures["bytes"], &figures["sha256"]), (&said["bytes"], &said["sha256"]));
    assert_eq!((&said["bytes"], &said["request"]), (&3_000_000.into(), &"get in/file".into()));

    let got = serve.client(&home, "get", &["in/file", "-o", "-"]);
    assert!(got.status.success() && got.stdout == sent);
    serve.said();

    let put =
        serve.client(&home, "put", &[fetched.to_str().unwrap(), "--as", "in/copy", "--algorithm", "bbr"]);
    assert!(put.status.success(), "{}", stderr(&put));
    assert!(stdout(&put).starts_with("in/copy: 3.0 MB in "), "{}", stdout(&put));
    assert_eq!(fs::read(home.path("served/in/copy")).unwrap(), sent);

    assert_eq!(serve.interrupt(), Some(0));
    let trace = fs::read_to_string(trace).unwrap();
    let records: Vec<Value> =
        trace.lines().map(|line| serde_json::from_str(line.trim_start_matches('\u{1e}')).unwrap()).collect();
    let named =
        |name: &str| records.iter().find(|r| r["name"] == name).unwrap_or_else(|| panic!("no {name}"));
    assert_eq!(records[0]["qlog_format"], "JSON-SEQ");
    assert_eq!(named("ccplane:flow_started")["data"]["algorithm"], "cubic");
    assert_eq!(named("ccplane:mode_changed")["data"]["new"], "program");
    assert!(named("recovery:metrics_updated")["data"]["congestion_window"].as_u64().unwrap() > 1000);
}

#[test]
fn what_is_wrong_is_said() {
    let home = Home::new("");
    content(&home.path("served/file"), 10);
    content(&home.path("secret"), 10);
    let mut serve = Serve::start(&home, &["--algorithm", "reno"]);
    let refused = |verb: &str, more: &[&str], code: i32, words: &str| {
        let output = serve.client(&home, verb, more);
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(code), "{verb} {more:?}: {said}");
        assert!(said.contains(words), "{verb} {more:?}: {said}");
    };
    let here = home.path("new");
    let here = here.to_str().unwrap();
    refused("get", &["none", "-o", here], 1, "no such file");
    refused("get", &["../secret", "-o", here], 1, "not a name of a file");
    refused("put", &[home.path("secret").to_str().unwrap()], 1, "--writable");
    refused(
        "get",
        &["file", "-o", here, "--algorithm", "none"],
        2,
        "no algorithm `none`; there are reno, cubic",
    );
    refused("put", &["/no/such/file"], 2, "/no/such/file: ");
    refused("get", &["file", "--insecure"], 2, "cannot be used with");
    assert!(!home.path("new").exists());
    let at = serve.address.clone();
    let wrong = "00".repeat(32);
    let output = home.run(&["quic", "get", &at, "file", "-o", here, "--fingerprint", &wrong]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains(&format!("is {}, expected was {wrong}", serve.fingerprint)));
    let output = home.run(&["quic", "get", &at, "file", "-o", here]);
    assert_eq!(output.status.code(), Some(2), "whom to trust must be said");
    let output = home.run(&["quic", "get", &at, "file", "-o", here, "--insecure"]);
    assert!(output.status.success(), "{}", stderr(&output));
    let left: Vec<_> = fs::read_dir(home.dir()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert!(left.iter().all(|name| !name.to_string_lossy().ends_with(".part")), "{left:?}");
    let _ = serve.said();
}

#[test]
fn a_server_that_is_killed_is_missed_in_time() {
    let home = Home::new("");
    fs::create_dir(home.path("served")).unwrap();
    // More than moves while this test looks, and none of it on the disk.
    fs::File::create(home.path("served/file")).unwrap().set_len(1 << 40).unwrap();
    let mut serve = Serve::start(&home, &["--algorithm", "reno"]);
    let output = home.path("new");
    let arguments = [
        "quic",
        "get",
        &serve.address,
        "file",
        "-o",
        output.to_str().unwrap(),
        "--fingerprint",
        &serve.fingerprint,
    ];
    let client = home.command(&arguments).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let part = home.path(&format!(".new.{}.part", client.id()));
    wait_for("some of it arrives", || fs::metadata(&part).ok().filter(|m| m.len() > 0));
    serve.child.kill().unwrap();
    let began = Instant::now();
    let ended = client.wait_with_output().unwrap();
    assert_eq!(ended.status.code(), Some(1));
    assert!(stderr(&ended).contains("is lost: "), "{}", stderr(&ended));
    assert!(began.elapsed() < Duration::from_secs(15), "{:?}", began.elapsed());
    assert!(!output.exists());
}

#[test]
fn the_machines_agent_steers() {
    let home = Home::new("default_algorithm = \"reno\"\n");
    content(&home.path("served/file"), 40_000_000);
    let agent = home.agent();
    let serve = Serve::start(&home, &[]);
    wait_for("the agent has the datapath", || {
        let status = home.json(&["status"]);
        let datapaths = status["datapaths"].as_array()?.clone();
        datapaths.iter().any(|d| d.to_string().contains("quic")).then_some(())
    });
    let output = home.path("new");
    let arguments = [
        "quic",
        "get",
        &serve.address,
        "file",
        "-o",
        output.to_str().unwrap(),
        "--fingerprint",
        &serve.fingerprint,
    ];
    let mut client = home.command(&arguments).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    wait_for("a flow that the agent steers", || {
        let flows = home.json(&["flows"]);
        flows.to_string().contains("\"program\"").then_some(())
    });
    // It dies in the middle; the flow goes on natively.
    agent.signal(Signal::SIGKILL);
    let ended = client.wait().unwrap();
    assert!(ended.success());
    assert_eq!(fs::read(&output).unwrap(), fs::read(home.path("served/file")).unwrap());
}
