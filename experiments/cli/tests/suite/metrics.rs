//! The metrics endpoint of a running agent, asked by a real client and by hostile ones.

use crate::common::{Agent, Home, PATIENCE, failed, stderr, stdout, wait_for};
use ccplane_testing::skipped;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// An agent that serves metrics on a port of its own.
fn serving(more: &str) -> (Home, Agent, SocketAddr) {
    let home = Home::new(&format!("[metrics]\nlisten = \"127.0.0.1:0\"\n{more}"));
    let agent = home.agent();
    let address = wait_for("the endpoint is logged", || {
        let log = home.log();
        let at = log.split("metrics served address=").nth(1)?;
        at.split_whitespace().next()?.parse().ok()
    });
    (home, agent, address)
}

/// Sends bytes and reads the answer, if any.
fn talk(address: SocketAddr, request: &[u8]) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let _ = stream.write_all(request);
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8_lossy(&answer).into_owned()
}

#[test]
fn a_real_client_scrapes_it() {
    let (_home, _agent, address) = serving("");
    let url = format!("http://{address}/metrics");
    let curl = Command::new("curl").args(["-sSi", "--max-time", "10", &url]).output();
    let Ok(output) = curl else { return skipped("a_real_client_scrapes_it", "curl is not installed") };
    assert!(output.status.success(), "{}", stderr(&output));
    let answer = stdout(&output);
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
    assert!(head.contains("Content-Type: application/openmetrics-text; version=1.0.0"), "{head}");
    assert!(body.ends_with("# EOF\n"), "{body}");
    for line in ["ccplane_loop_up{loop=\"peers\"} 1", "ccplane_flows_refused_total 0"] {
        assert!(body.lines().any(|l| l == line), "{line}: {body}");
    }
    assert_openmetrics(body);
}

/// The format's reference implementation takes the text.
fn assert_openmetrics(text: &str) {
    const IMPORT: &str = "from prometheus_client.openmetrics.parser import text_string_to_metric_families";
    let python = |program: &str, script: &str| {
        let mut command = Command::new(program);
        command.args(["-c", script]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    };
    // The distribution's Python has the distribution's packages.
    let has_it = |program: &&str| python(program, IMPORT).output().is_ok_and(|o| o.status.success());
    let Some(found) = ["python3", "/usr/bin/python3"].into_iter().find(has_it) else {
        let why = "needs the Python package prometheus_client (Debian: python3-prometheus-client)";
        return skipped("the exposition is OpenMetrics", why);
    };
    let count = "import sys\nprint(len(list(text_string_to_metric_families(sys.stdin.read()))))";
    let mut parser = python(found, &format!("{IMPORT}\n{count}")).spawn().unwrap();
    parser.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let output = parser.wait_with_output().unwrap();
    assert!(output.status.success(), "{}: {text}", stderr(&output));
    let declared = text.lines().filter(|line| line.starts_with("# TYPE ")).count();
    assert_eq!(stdout(&output).trim(), declared.to_string(), "families: {text}");
}

#[test]
fn it_is_off_unless_asked_for_and_loopback_only_unless_told() {
    let home = Home::new("");
    let _agent = home.agent();
    assert!(!home.log().contains("metrics served"), "{}", home.log());

    let open = Home::new("[metrics]\nlisten = \"0.0.0.0:9090\"\n");
    let refused = open.run(&["agent", "--check-config"]);
    assert_eq!(refused.status.code(), Some(2));
    let said = stderr(&refused);
    assert!(said.contains("metrics.listen: 0.0.0.0:9090 is not a loopback address"), "{said}");
    open.configure(
        "[datapath.ebpf]\nmode = \"off\"\n[metrics]\nlisten = \"0.0.0.0:9090\"\nallow_remote = true\n",
    );
    assert_eq!(open.run(&["agent", "--check-config"]).status.code(), Some(0));
}

#[test]
fn a_port_in_use_is_refused_with_the_field() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let home = Home::new(&format!("[metrics]\nlisten = \"{}\"\n", taken.local_addr().unwrap()));
    failed(&home.run(&["agent"]), 1, "metrics.listen: 127.0.0.1:");
}

#[test]
fn strangers_get_a_refusal_and_no_more() {
    let (_home, _agent, address) = serving("");
    let long = format!("GET /metrics HTTP/1.1\r\nX: {}\r\n", "x".repeat(8200));
    for (request, answer) in [
        (&b"POST /metrics HTTP/1.1\r\n\r\n"[..], "HTTP/1.1 405 "),
        (b"GET /etc/passwd HTTP/1.1\r\n\r\n", "HTTP/1.1 404 "),
        (b"\x16\x03\x01 hello\r\n\r\n", "HTTP/1.1 400 "),
        (long.as_bytes(), "HTTP/1.1 431 "),
    ] {
        let said = talk(address, request);
        assert!(said.starts_with(answer), "{said:?} to {:?}", String::from_utf8_lossy(request));
    }
    let head = talk(address, b"HEAD /metrics HTTP/1.1\r\n\r\n");
    assert!(head.starts_with("HTTP/1.1 200 ") && head.ends_with("\r\n\r\n"), "{head}");
}

/// Clients that say nothing hold a place each until they time out; the agent does not notice.
#[test]
fn slow_clients_hold_nobody_but_themselves() {
    let (home, _agent, address) = serving("max_clients = 2\ntimeout_ms = 10000\n");
    let connect = || TcpStream::connect(address).unwrap();
    let slow: Vec<TcpStream> = (0..2)
        .map(|_| {
            let mut stream = connect();
            stream.write_all(b"GET /metr").unwrap();
            stream
        })
        .collect();
    let refused = wait_for("a third one is turned away", || {
        let said = talk(address, b"");
        (!said.is_empty()).then_some(said)
    });
    assert!(refused.starts_with("HTTP/1.1 503 "), "{refused}");
    let start = Instant::now();
    assert!(home.run(&["status"]).status.success());
    assert!(start.elapsed() < Duration::from_secs(8), "the agent answers meanwhile");
    wait_for("they are gone", || {
        talk(address, b"GET /metrics HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 200 ").then_some(())
    });
    drop(slow);
}
