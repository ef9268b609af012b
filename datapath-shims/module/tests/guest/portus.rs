//! Portus agents, as their registry holds them, which take the module for ccp-kernel: they listen on netlink or have ccp-kernel's
//! device open, and steer flows.

use std::fs::OpenOptions;
use std::io::{ErrorKind, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::{Child, Command};

use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::agent::{Agent, lists};
use super::lab::{Bulk, Lab, LoadedModule, counted, times, unloads, wait_until};

const DEVICE: &str = "/dev/ccplane-portus";
const CCPKP: &str = "/dev/ccpkp";

/// The Reno of generic_cong_avoid, of portus 0.7, and that of portus 0.9 (`.ci/portus`).
const AGENTS: [&str; 2] = ["./reno", "./ccplane-portus-0.9.0"];
/// The agents of portus 0.6 and 0.8, which run only in `make module-test`.
const OTHERS: [&str; 2] = ["./ccplane-portus-0.6.1", "./ccplane-portus-0.8.0"];

struct Portus(Child);

impl Portus {
    fn start(program: &str, ipc: &str) -> Portus {
        Portus(Command::new(program).args(["--ipc", ipc]).spawn().unwrap())
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.0.id() as i32), signal).unwrap();
    }
}

impl Drop for Portus {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

/// Portus steers flows of both families, is killed, and one of another version steers them again.
fn a_stock_portus_steers_flows(agents: &[&str], bulks: [&Bulk; 2], ipc: &str) {
    for bulk in bulks {
        lists(bulk, &["\"module\"", "\"portus\"", "nobody listens at /dev/ccplane-portus"]);
    }
    for program in agents {
        let portus = Portus::start(program, ipc);
        let before = counted("reports");
        for bulk in bulks {
            lists(bulk, &["\"module\"", "\"portus\"", "\"mode\":\"program\"", "\"portus-"]);
        }
        wait_until("reports", || counted("reports") > before + 10);
        drop(portus);
        for bulk in bulks {
            lists(bulk, &["nobody listens at /dev/ccplane-portus", "\"mode\":\"native_no_program\""]);
        }
    }
    // The device is the agent's alone, and keeps the module.
    let opened = OpenOptions::new().read(true).write(true).open(DEVICE);
    assert_eq!(opened.unwrap_err().kind(), ErrorKind::ResourceBusy);
    assert!(!unloads(), "flows and an agent are there");
}

fn agent() -> Agent {
    Agent::with("portus", &format!("[portus]\nsocket = \"{DEVICE}\"\n"))
}

/// A flow of either family, and an agent that portus is to reach in this way.
fn with_portus(way: &str) -> (Lab, [Bulk; 2], Agent) {
    let lab = Lab::with(&format!("portus={way}"));
    let flows = [lab.flow(), lab.flow_to("fd00::2")];
    (lab, flows, agent())
}

#[test]
#[ignore = "runs in a machine that has the module"]
fn a_stock_portus_steers_flows_over_netlink() {
    let (_lab, [v4, v6], agent) = with_portus("netlink");
    let all = [AGENTS, OTHERS].concat();
    let agents = if times(1) > 1 { &all } else { &AGENTS[..] };
    a_stock_portus_steers_flows(agents, [&v4, &v6], "netlink");
    agent.stop();
}

#[test]
#[ignore = "runs in a machine that has the module"]
fn a_stock_portus_steers_flows_over_its_device() {
    let (_lab, [v4, v6], agent) = with_portus("device");
    a_stock_portus_steers_flows(&AGENTS, [&v4, &v6], "char");

    // The device tells what portus has not read, and so that it hangs; and that one has gone though the next is there.
    let [older, newer] = AGENTS;
    let portus = Portus::start(older, "char");
    lists(&v4, &["\"mode\":\"program\""]);
    let opened = OpenOptions::new().read(true).write(true).open(CCPKP);
    assert_eq!(opened.unwrap_err().kind(), ErrorKind::ResourceBusy);
    portus.signal(Signal::SIGSTOP);
    lists(&v4, &["portus is silent", "\"mode\":\"native_no_program\""]);
    portus.signal(Signal::SIGCONT);
    lists(&v4, &["\"mode\":\"program\""]);
    drop(portus);
    let _next = Portus::start(newer, "char");
    for bulk in [&v4, &v6] {
        lists(bulk, &["\"mode\":\"program\"", "\"portus-"]);
    }
    agent.stop();
}

/// Each end of the device is told of the other, whatever it does.
#[test]
#[ignore = "runs in a machine that has the module"]
fn the_two_ends_of_portus_device_hear_each_other() {
    let _module = LoadedModule::with("portus=device");
    let open = |path: &str| {
        let flags = nix::libc::O_NONBLOCK;
        OpenOptions::new().read(true).write(true).custom_flags(flags).open(path).unwrap()
    };
    let mut buffer = [0; 2048];
    let errno = |result: std::io::Result<usize>| Errno::from_raw(result.unwrap_err().raw_os_error().unwrap());
    let mut agent = open(DEVICE);
    assert_eq!(errno(agent.write(b"early")), Errno::ENOTCONN);
    let mut portus = open(CCPKP);
    assert_eq!(errno(portus.read(&mut buffer)), Errno::EAGAIN);
    assert_eq!(agent.write(b"one").unwrap() + agent.write(b"second").unwrap(), 9);
    assert_eq!(ccplane_channel::unread_bytes(agent.as_fd()).unwrap(), 9);
    assert_eq!(portus.read(&mut buffer).unwrap(), 3, "a message a read");
    assert_eq!(&buffer[..3], b"one");
    assert_eq!(errno(portus.read(&mut buffer[..2])), Errno::EMSGSIZE);
    assert_eq!(ccplane_channel::unread_bytes(agent.as_fd()).unwrap(), 0);
    assert_eq!(errno(agent.write(&[0; 1025])), Errno::EMSGSIZE);
    let full = (0..).find(|_| agent.write(b"x").is_err()).unwrap();
    assert_eq!((full, errno(agent.write(b"x"))), (256, Errno::EAGAIN));

    // What the first one said is void with it, and the agent is told so before anything of the next.
    assert_eq!(portus.write(b"void").unwrap(), 4);
    drop(portus);
    let mut next = open(CCPKP);
    assert_eq!(next.write(b"answer").unwrap(), 6);
    assert_eq!(ccplane_channel::unread_bytes(agent.as_fd()).unwrap(), 0);
    assert_eq!(agent.read(&mut buffer).unwrap(), 0);
    assert_eq!(agent.read(&mut buffer).unwrap(), 6);
    assert_eq!(&buffer[..6], b"answer");
    assert_eq!(errno(agent.read(&mut buffer)), Errno::EAGAIN);
    assert_eq!(errno(next.write(&[0; (1 << 16) + 1])), Errno::EMSGSIZE);

    // Without an agent nobody keeps what portus says.
    drop(agent);
    assert_eq!(next.write(b"lost").unwrap(), 4);
    let mut agent = open(DEVICE);
    assert_eq!(errno(agent.read(&mut buffer)), Errno::EAGAIN);
    assert!(!unloads(), "both devices are open");
}

#[test]
#[ignore = "runs in a machine that has the module"]
fn portus_is_off_unless_asked_for() {
    let _lab = Lab::new();
    assert!(!Path::new(DEVICE).exists() && !Path::new(CCPKP).exists());
}
