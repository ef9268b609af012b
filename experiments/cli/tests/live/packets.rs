//! The agent with decisions about packets, in a network namespace of its own.

use crate::common::{Home, stderr, wait_for};
use ccplane_emulator::netns::{Namespace, available};
use ccplane_testing::skipped;
use serde_json::Value;
use std::fs::File;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::process::{Child, Stdio};

/// An agent in a namespace, with decisions about the packets of its loopback device.
struct Lab {
    home: Home,
    namespace: Namespace,
    agent: Child,
}

impl Lab {
    /// Returns none, and reports a skip, where the machine cannot run the test.
    fn new(test: &str, name: &str, algorithm: &str) -> Option<Lab> {
        if !available() {
            skipped(test, "needs root and /dev/net/tun");
            return None;
        }
        if let Err(error) = ccplane_ebpf::packets::available() {
            skipped(test, error);
            return None;
        }
        let namespace = Namespace::anonymous().unwrap();
        let home = Home::new("");
        let run_dir = home.dir().to_owned();
        home.configure(&format!(
            "datapath.ebpf.mode = \"off\"\ndatapath.ebpf.run_dir = {run_dir:?}\nlearn.mode = \"off\"\n\
             datapath.packets.mode = \"on\"\ndatapath.packets.name = \"{name}\"\ndatapath.packets.devices = [\"lo\"]\n\
             datapath.packets.algorithm = \"{algorithm}\"\n"
        ));
        let mut command = home.command(&["agent"]);
        let log = File::create(home.path("log")).unwrap();
        let command = namespace.enter(&mut command).unwrap();
        let mut agent = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn().unwrap();
        wait_for("the agent serves", || {
            assert!(agent.try_wait().unwrap().is_none(), "{}", home.log());
            home.run(&["status"]).status.success().then_some(())
        });
        Some(Lab { home, namespace, agent })
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
