//! The agent with decisions about packets, in a network namespace of its own.
#![allow(clippy::unwrap_used)]

mod common;

use ccplane_emulator::netns::{Namespace, available};
use ccplane_testing::skipped;
use common::{Home, stderr, wait_for};
use serde_json::Value;
use std::io::Write;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::process::Stdio;

#[test]
fn flows_of_packets_are_listed_beside_the_others() {
    const TEST: &str = "flows_of_packets_are_listed_beside_the_others";
    if !available() {
        return skipped(TEST, "needs root and /dev/net/tun");
    }
    if let Err(error) = ccplane_ebpf::packets::available() {
        return skipped(TEST, error);
    }
    let namespace = Namespace::anonymous().unwrap();
    let home = Home::new("");
    let run_dir = home.dir().to_owned();
    home.configure(&format!(
        "datapath.ebpf.mode = \"off\"\ndatapath.ebpf.run_dir = {run_dir:?}\n\
         datapath.packets.mode = \"on\"\ndatapath.packets.devices = [\"lo\"]\n"
    ));
    let mut command = home.command(&["agent"]);
    let log = std::fs::File::create(home.path("log")).unwrap();
    let command = namespace.enter(&mut command).unwrap();
    let mut agent = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn().unwrap();
    wait_for("the agent serves", || {
        assert!(agent.try_wait().unwrap().is_none(), "{}", home.log());
        home.run(&["status"]).status.success().then_some(())
    });
    let (mut stream, _accepted) = namespace
        .run(|| {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
            let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            (stream, listener.accept().unwrap())
        })
        .unwrap();
    stream.write_all(&[0; 1000]).unwrap();
    let local = stream.local_addr().unwrap().to_string();
    let find = |flows: &Value| {
        let all = flows["flows"].as_array().unwrap();
        all.iter().find(|flow| flow["local"] == local.as_str()).cloned()
    };
    let flow = wait_for("the flow is listed", || find(&home.json(&["flows"])));
    assert_eq!(
        (&flow["datapath"], &flow["mode"]),
        (&"packets".into(), &"native_no_program".into()),
        "{flow}"
    );
    assert_eq!(flow["algorithm"], "native", "{flow}");
    drop(stream);
    wait_for("the flow is gone", || find(&home.json(&["flows"])).is_none().then_some(()));
    let stopped = home.run(&["stop"]);
    assert!(stopped.status.success(), "{}", stderr(&stopped));
    assert!(agent.wait().unwrap().success(), "{}", home.log());
    assert!(home.log().contains("packets' datapath detached"), "{}", home.log());
}
