//! A portus agent, as its registry holds it, which takes the module for ccp-kernel: it listens on netlink and steers flows.

use std::fs::OpenOptions;
use std::io::ErrorKind;
use std::process::{Child, Command};

use super::agent::{Agent, lists};
use super::lab::{Lab, counted, unloads, wait_until};

const DEVICE: &str = "/dev/ccplane-portus";

/// The Reno of generic_cong_avoid.
struct Portus(Child);

impl Portus {
    fn start() -> Portus {
        Portus(Command::new("./reno").args(["--ipc", "netlink"]).spawn().unwrap())
    }
}

impl Drop for Portus {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

#[test]
#[ignore = "runs in a machine that has the module"]
fn a_stock_portus_steers_flows_over_netlink() {
    let lab = Lab::with("portus=1");
    let (v4, v6) = (lab.flow(), lab.flow_to("fd00::2"));
    let agent = Agent::with("portus", &format!("[portus]\nsocket = \"{DEVICE}\"\n"));
    for bulk in [&v4, &v6] {
        lists(bulk, &["\"module\"", "\"portus\"", "nobody listens at /dev/ccplane-portus"]);
    }
    for _ in 0..2 {
        let portus = Portus::start();
        let before = counted("reports");
        for bulk in [&v4, &v6] {
            lists(bulk, &["\"module\"", "\"portus\"", "\"mode\":\"program\"", "\"portus-"]);
        }
        wait_until("reports", || counted("reports") > before + 10);
        drop(portus);
        for bulk in [&v4, &v6] {
            lists(bulk, &["nobody listens at /dev/ccplane-portus", "\"mode\":\"native_no_program\""]);
        }
    }
    // The device is the agent's alone, and keeps the module.
    let opened = OpenOptions::new().read(true).write(true).open(DEVICE);
    assert_eq!(opened.unwrap_err().kind(), ErrorKind::ResourceBusy);
    assert!(!unloads(), "flows and an agent are there");
    agent.stop();
}

#[test]
#[ignore = "runs in a machine that has the module"]
fn portus_is_off_unless_asked_for() {
    let _lab = Lab::new();
    assert!(!std::path::Path::new(DEVICE).exists());
}
