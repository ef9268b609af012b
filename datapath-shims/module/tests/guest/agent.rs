//! The agent itself on the module: what it steers, what becomes of its flows when it is killed, and who takes them over.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};

use ccplane_testing::wait_for_ok;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::lab::{Bulk, Lab, PATIENCE, counted, wait_until};

/// Agents that follow each other on the same flows.
const RESTARTS: usize = 5;
const SOCKET: &str = "/run/ccplane/control.sock";

pub struct Agent(Child);

impl Agent {
    /// Starts the agent under an algorithm, with more of a configuration.
    pub fn with(algorithm: &str, more: &str) -> Agent {
        let config = format!(
            "default_algorithm = \"{algorithm}\"\n[agent]\nheartbeat_timeout_ms = 1500\n[datapath.ebpf]\nmode = \"off\"\n{more}"
        );
        fs::write("agent.toml", config).unwrap();
        let mut agent = Command::new("./ccplaned");
        let agent = agent.args(["--config", "agent.toml"]).stderr(Stdio::inherit()).spawn().unwrap();
        Agent(agent)
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.0.id() as i32), signal).unwrap();
    }

    fn kill(mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }

    pub fn stop(mut self) {
        self.signal(Signal::SIGTERM);
        assert!(self.0.wait().unwrap().success());
    }
}

/// The agent's list of flows, as JSON; empty without an agent.
fn listed() -> String {
    let Ok(mut socket) = UnixStream::connect(SOCKET) else { return String::new() };
    let mut line = String::new();
    if socket.write_all(b"{\"request\":\"flows\"}\n").is_ok() {
        let _ = BufReader::new(socket).read_line(&mut line);
    }
    line
}

/// Waits until the agent's list has a flow with all of these.
pub fn lists(bulk: &Bulk, what: &[&str]) {
    let local = format!("\"{}\"", bulk.local());
    wait_for_ok(PATIENCE, &format!("a flow of {local} with {what:?}"), || {
        let line = listed();
        // One object a flow.
        let has =
            line.split("},{").any(|flow| flow.contains(&local) && what.iter().all(|w| flow.contains(w)));
        if has { Ok(()) } else { Err(line) }
    });
}

#[test]
#[ignore = "runs in a machine that has the module"]
fn flows_outlive_their_agent_and_get_the_next() {
    let lab = Lab::new();
    let (v4, v6) = (lab.flow(), lab.flow_to("fd00::2"));
    let first = Agent::with("reno", "");
    for bulk in [&v4, &v6] {
        lists(bulk, &["\"module\"", "\"reno\"", "\"mode\":\"program\""]);
    }
    wait_until("reports", || counted("reports") > 10);
    let natives = counted("handovers_to_native");
    first.kill();
    wait_until("both are native", || counted("handovers_to_native") >= natives + 2);
    assert_eq!(counted("agents"), 0);

    let second = Agent::with("aurora", "");
    lists(&v4, &["\"module\"", "\"aurora\"", "\"mode\":\"program\"", "\"decisions\":"]);
    second.stop();
    wait_until("all of it is gone", || counted("agents") == 0);
    // What ran is freed once a flow's next ACK has let go of it.
    drop((v4, v6));
    wait_until("no program is left", || counted("programs") == 0);
}

/// Rules go by the names that sockets ask for, of those under which the module is registered.
#[test]
#[ignore = "runs in a machine that has the module"]
fn rules_go_by_the_name_that_a_socket_asks_for() {
    let lab = Lab::with("names=ccp_asked");
    let rule = "[[rule]]\nrequested = \"ccp_asked\"\nalgorithm = \"vegas\"\n";
    let agent = Agent::with("reno", rule);
    let (own, asked) = (lab.flow(), lab.flow_under("ccp_asked", "fd00::2"));
    lists(&own, &["\"reno\"", "\"mode\":\"program\""]);
    lists(&asked, &["\"vegas\"", "\"mode\":\"program\""]);
    agent.stop();
}

/// An agent that hangs loses its flows to the native algorithm, and has them again once it goes on.
#[test]
#[ignore = "runs in a machine that has the module"]
fn an_agent_hangs_and_goes_on() {
    let lab = Lab::new();
    let bulk = lab.flow();
    let agent = Agent::with("cubic", "");
    lists(&bulk, &["\"cubic\"", "\"mode\":\"program\""]);
    let natives = counted("handovers_to_native");
    agent.signal(Signal::SIGSTOP);
    wait_until("the flow is native", || counted("handovers_to_native") > natives);
    let (reports, received) = (counted("reports"), bulk.received_bytes());
    assert_eq!(bulk.record().enabled, 0, "no program decides");
    wait_until("the flow goes on", || bulk.received_bytes() > received + 500_000);
    assert_eq!(counted("reports"), reports, "no program runs");
    agent.signal(Signal::SIGCONT);
    lists(&bulk, &["\"cubic\"", "\"mode\":\"program\""]);
    wait_until("its program reports", || counted("reports") > reports);
    agent.stop();
}

/// Agents come and are killed; each steers the flows of the one before, whether those were native meanwhile or not.
#[test]
#[ignore = "runs in a machine that has the module"]
fn agents_are_restarted_again_and_again() {
    let lab = Lab::new();
    let flows = [lab.flow(), lab.flow_to("fd00::2")];
    for n in 0..RESTARTS {
        let algorithm = ["reno", "vegas"][n % 2];
        let agent = Agent::with(algorithm, "");
        for bulk in &flows {
            lists(bulk, &[&format!("\"{algorithm}\""), "\"mode\":\"program\""]);
        }
        let (reports, natives) = (counted("reports"), counted("handovers_to_native"));
        wait_until("reports", || counted("reports") > reports + 4);
        agent.kill();
        wait_until("it is gone", || counted("agents") == 0);
        if n.is_multiple_of(2) {
            wait_until("both are native", || counted("handovers_to_native") >= natives + 2);
        }
    }
    drop(flows);
    wait_until("no program is left", || counted("programs") == 0);
}
