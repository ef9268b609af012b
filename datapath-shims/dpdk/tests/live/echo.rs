//! Ports on a veth pair between two namespaces: DPDK at one end, DPDK or the kernel at the other.

use std::io::ErrorKind;
use std::net::{SocketAddr, UdpSocket};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use crate::cable::{Cable, ip, mac};
use ccplane_emulator::netns::Namespace;
use ccplane_quic::{UdpWire, Wire};
use ccplane_testing::{PATIENCE, wait_until, within_tries};
use quinn_proto::Transmit;

/// The kinds of ports that need no NIC.
const KINDS: [&str; 2] = ["af_packet", "af_xdp"];
const TRIES: u32 = 4;
const ECHO: &str = env!("CARGO_BIN_EXE_dpdk-echo");

/// Starts `dpdk-echo` at one end, with addresses ending in `last`.
fn echo(namespace: &Namespace, port: &str, last: u8, args: &[&str]) -> Command {
    let mut command = Command::new(ECHO);
    let addresses = [format!("--address=10.9.0.{last}/24"), format!("--address=fd09::{last}/64")];
    command.arg("--port").arg(port).args(addresses).args(args).stdout(Stdio::piped()).stderr(Stdio::piped());
    namespace.enter(&mut command).unwrap();
    command
}

/// A process that is killed when the test ends.
struct Running(Option<Child>);

impl Running {
    fn serve(namespace: &Namespace, port: &str) -> Running {
        let args = ["serve", "--seconds", "600"];
        Running(Some(echo(namespace, port, 2, &args).spawn().unwrap()))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(mut child) = self.0.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn said(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

fn question(number: u8) -> Vec<u8> {
    vec![number; 1 + usize::from(number) * 331 % 1400]
}

/// Asks from a kernel socket until an answer arrives.
fn asked_by_kernel(namespace: &Namespace, kind: &str, to: &str, within: Duration) {
    let to: SocketAddr = to.parse().unwrap();
    namespace
        .run(|| {
            let any: SocketAddr = if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" }.parse().unwrap();
            let socket = UdpSocket::bind(any).unwrap();
            socket.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
            let (start, mut buffer, mut number) = (Instant::now(), [0; 2048], 0_u64);
            loop {
                number += 1;
                // The link may be down for a while.
                let _ = socket.send_to(&question(number as u8), to);
                match socket.recv_from(&mut buffer) {
                    Ok((len, from)) => {
                        assert_eq!(from, to);
                        // An answer to this question or to an earlier one.
                        assert_eq!(buffer[..len], question(buffer[0]));
                        return;
                    }
                    Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
                    // An ICMP error from while the peer was down.
                    Err(_) => std::thread::sleep(Duration::from_millis(100)),
                }
                assert!(start.elapsed() < within, "{kind}: {to} does not answer");
            }
        })
        .unwrap();
}

#[test]
fn two_ports_talk_to_each_other() {
    let Some(cable) = Cable::new("two_ports") else { return };
    for kind in KINDS {
        let port = format!("{kind}:veth0");
        let _server = Running::serve(&cable.b, &port);
        for remote in ["10.9.0.2:7", "[fd09::2]:7"] {
            // The first questions may be sent before the port is there.
            let start = Instant::now();
            let output = loop {
                let output = echo(&cable.a, &port, 1, &["ask", remote, "--count", "500"]).output().unwrap();
                if output.status.success() || start.elapsed() > PATIENCE {
                    break output;
                }
            };
            let text = said(&output);
            assert!(output.status.success(), "{kind} {remote}: {text}");
            assert!(text.contains("500 of 500 answered, 0 of them wrong"), "{kind}: {text}");
            assert!(text.contains("checksum: 0") && text.contains("malformed: 0"), "{kind}: {text}");
            // Messages of the libraries appear in errors only.
            assert!(output.stderr.is_empty(), "{kind}: {text}");
        }
    }
}

#[test]
fn the_kernel_finds_a_port_and_talks_to_it() {
    let Some(cable) = Cable::new("kernel_asks") else { return };
    cable.kernel_at_a();
    for kind in KINDS {
        ip(&cable.a, "neigh flush dev veth0");
        let _server = Running::serve(&cable.b, &format!("{kind}:veth0"));
        let mac = mac(&cable.b);
        for to in ["10.9.0.2", "fd09::2"] {
            let remote = if to.contains(':') { format!("[{to}]:7") } else { format!("{to}:7") };
            asked_by_kernel(&cable.a, kind, &remote, PATIENCE);
            let neighbour = ip(&cable.a, &format!("neigh show to {to} dev veth0"));
            assert!(neighbour.contains(&format!("lladdr {mac}")), "{kind} {to}: {neighbour:?}, not {mac}");
        }
    }
}

/// A port asks for the kernel's address in both families; the kernel checks checksums and returns ECN marks unchanged.
#[test]
fn a_port_finds_the_kernel_and_talks_to_it() {
    let Some(cable) = Cable::new("port_asks") else { return };
    cable.kernel_at_a();
    for kind in KINDS {
        for address in ["10.9.0.1", "fd09::1"] {
            let ask = || {
                let address = SocketAddr::new(address.parse().unwrap(), 0);
                let wire = cable.a.run(|| UdpWire::bind(address)).unwrap().unwrap();
                let (remote, port) = (wire.local_addr().to_string(), format!("{kind}:veth0"));
                let mut asking = echo(&cable.b, &port, 2, &["ask", &remote]).spawn().unwrap();
                reflect(wire, &mut asking);
                asking.wait_with_output().unwrap()
            };
            // A machine that is busy may lose a datagram.
            within_tries(&format!("answers over {kind} to {address}"), TRIES, |_| {
                let text = said(&ask());
                if text.contains("100 of 100 answered, 0 of them wrong") { Ok(()) } else { Err(text) }
            });
        }
    }
}

/// Sends each datagram back over a wire, until `child` has ended.
fn reflect(mut wire: impl Wire, child: &mut Child) {
    let start = Instant::now();
    while child.try_wait().unwrap().is_none() {
        let mut arrived = Vec::new();
        wire.receive(&mut |datagram| arrived.push(datagram)).unwrap();
        for datagram in arrived {
            let (destination, ecn, src_ip) = (datagram.remote, datagram.ecn, datagram.local_ip);
            let to = Transmit { destination, ecn, size: datagram.payload.len(), segment_size: None, src_ip };
            wire.send(&to, &datagram.payload).unwrap();
        }
        wire.flush().unwrap();
        wire.wait(Duration::from_millis(20)).unwrap();
        if start.elapsed() > PATIENCE {
            child.kill().unwrap();
        }
    }
}

fn a_port_that_was_down_goes_on() -> Option<()> {
    let cable = Cable::new("was_down")?;
    cable.kernel_at_a();
    for kind in KINDS {
        let _server = Running::serve(&cable.b, &format!("{kind}:veth0"));
        asked_by_kernel(&cable.a, kind, "10.9.0.2:7", PATIENCE);
        ip(&cable.b, "link set veth0 down");
        // The time that the link is down, in which a server that polls meets it so.
        std::thread::sleep(Duration::from_millis(500));
        ip(&cable.b, "link set veth0 up");
        asked_by_kernel(&cable.a, kind, "10.9.0.2:7", PATIENCE);
    }
    Some(())
}

/// Answers come to any queue that the fanout chooses, and each asker gets its own.
#[test]
fn queues_share_a_port() {
    let Some(cable) = Cable::new("queues") else { return };
    let _server = Running::serve(&cable.b, "af_packet:veth0");
    let start = Instant::now();
    let output = loop {
        let args = ["--queues", "2", "ask", "10.9.0.2:7"];
        let output = echo(&cable.a, "af_packet:veth0", 1, &args).output().unwrap();
        if output.status.success() || start.elapsed() > PATIENCE {
            break output;
        }
    };
    let text = said(&output);
    assert_eq!(text.matches("100 of 100 answered, 0 of them wrong").count(), 2, "{text}");
}

/// A tap port advertises checksum offloads, which the others do not.
#[test]
fn a_tap_port_computes_checksums_itself() {
    let Some(cable) = Cable::new("tap") else { return };
    let mut server =
        Running(Some(echo(&cable.a, "tap:ccp0", 2, &["serve", "--seconds", "600"]).spawn().unwrap()));
    let is_there = || {
        let mut show = Command::new("ip");
        cable.a.enter(show.args(["link", "show", "ccp0"])).unwrap().output().unwrap().status.success()
    };
    wait_until("the tap device", is_there);
    ip(&cable.a, "address add 10.9.0.1/24 dev ccp0");
    ip(&cable.a, "link set ccp0 up");
    asked_by_kernel(&cable.a, "tap", "10.9.0.2:7", PATIENCE);
    let mut child = server.0.take().unwrap();
    child.kill().unwrap();
    let text = said(&child.wait_with_output().unwrap());
    assert!(text.contains("udp: true"), "{text}");
}

/// Each mishap happens to a new flow.
mod mishaps {
    ccplane_testing::mishaps! {
        2 a_port_that_was_down_goes_on,
    }
}
