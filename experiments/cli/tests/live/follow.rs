//! `follow_cores`: the agent's loops run where those do that wake them.

use crate::channel::Serving;
use crate::common::lab::Lab;
use crate::common::{Agent, Home, wait_for};
use ccplane_alg::Algorithm;
use ccplane_algs::CcpReno;
use ccplane_channel::Transport;
use ccplane_ebpf::Options;
use ccplane_ebpf::probe::Probe;
use ccplane_emulator::netns::Namespace;
use ccplane_testing::skipped;
use ccplane_wait::affinity::{self, pin};
use nix::sys::socket::{setsockopt, sockopt};
use std::fs;
use std::net::{TcpListener, TcpStream};

/// The configuration of both agents.
const FOLLOWS: &str = "agent.wake = \"sleep\"\nagent.follow_cores = true\n";

/// The cores that a loop of the agent may run on, as the kernel lists them (proc(5), Cpus_allowed_list).
fn allowed(agent: &Agent, thread: &str) -> Option<String> {
    let tasks = fs::read_dir(format!("/proc/{}/task", agent.pid())).unwrap();
    let folder = tasks
        .flatten()
        .map(|task| task.path())
        .find(|folder| fs::read_to_string(folder.join("comm")).is_ok_and(|name| name.trim_end() == thread))?;
    let status = fs::read_to_string(folder.join("status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
    Some(line.trim().to_owned())
}

/// The cores of this machine; a skip is reported where there is nothing to choose.
fn cores(test: &str) -> Option<Vec<usize>> {
    let cores = affinity::cores().unwrap();
    if cores.len() < 2 {
        skipped(test, "one core");
        return None;
    }
    Some(cores)
}

#[test]
fn the_loop_of_other_processes_runs_where_a_ring_is_filled() {
    let Some(cores) = cores("a loop that follows rings") else { return };
    let config = format!("default_algorithm = \"ccp-reno\"\ndatapath.unix.transport = \"ring\"\n{FOLLOWS}");
    let home = Home::new(&config);
    let agent = home.agent();
    for core in cores {
        // The thread of the datapath, which this one starts, runs on the same core.
        let _pinned = pin(core).unwrap();
        let _datapath = Serving::start(&home.path("ccp.sock"), Transport::Ring);
        wait_for("the loop is where its datapath is", || {
            (allowed(&agent, "ccp-peers")? == core.to_string()).then_some(())
        });
    }
}

/// On the same core it would poll while its datapath waits for that core.
#[test]
fn a_loop_that_spins_keeps_off_the_core_where_a_ring_is_filled() {
    // Of so many it is woken often enough to move.
    const REPORTS: u64 = 50;
    let Some(cores) = cores("a loop that spins beside rings") else { return };
    let config = "default_algorithm = \"ccp-reno\"\ndatapath.unix.transport = \"ring\"\nagent.wake = \"spin\"\n\
                  agent.follow_cores = true\n";
    let home = Home::new(config);
    let agent = home.agent();
    let reports = || home.json(&["status"])["counters"]["reports"].as_u64().unwrap();
    for core in cores {
        let _pinned = pin(core).unwrap();
        let _datapath = Serving::start(&home.path("ccp.sock"), Transport::Ring);
        let enough = reports() + REPORTS;
        wait_for("the loop is beside its datapath", || {
            (reports() >= enough && allowed(&agent, "ccp-peers")? != core.to_string()).then_some(())
        });
    }
}

#[test]
fn the_kernels_loop_runs_where_events_are_written() {
    let Some(cores) = cores("a loop that follows events") else { return };
    let pace = "agent.heartbeat_timeout_ms = 1000\ncontrol.timeout_ms = 5000\n";
    let Some(lab) = Lab::with("follow", "ccp-reno", &format!("{pace}{FOLLOWS}")) else { return };
    let agent = lab.home.agent();
    // It sends nothing, so that its events are the probe's alone.
    let namespace = Namespace::anonymous().unwrap();
    let connect = || -> std::io::Result<(TcpStream, TcpStream)> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let to = TcpStream::connect(listener.local_addr()?)?;
        setsockopt(&to, sockopt::TcpCongestion, &lab.name.clone().into())?;
        Ok((to, listener.accept()?.0))
    };
    let _connection = namespace.run(connect).unwrap().unwrap();
    let source = CcpReno::default().programs().first().unwrap().source;
    let program = ccplane_program::compile(source).unwrap();
    let options =
        Options { run_dir: lab.home.dir().to_owned(), name: lab.name.clone(), ..Options::default() };
    let probe = wait_for("the flow's program is set", || Probe::open(&options, &program).ok());
    for core in cores {
        let _pinned = pin(core).unwrap();
        wait_for("the loop is where events are written", || {
            probe.invoke().unwrap();
            (allowed(&agent, "ccp-kernel")? == core.to_string()).then_some(())
        });
    }
}
