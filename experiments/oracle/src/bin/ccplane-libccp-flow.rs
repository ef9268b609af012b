//! Sends over UDP to an echo within the window that a CCP agent sets through the real libccp: the baseline of `ccp.bridge`.
//!
//! `ccplane-libccp-flow AGENT OWN RECEIVER MILLISECONDS` sends for a while, then writes what happened as JSON. The receiver returns
//! each datagram's number. Nothing is paced and nothing retransmitted: a lost datagram's bytes do not count.

use std::cell::Cell;
use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::net::{SocketAddr, UdpSocket};
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::process::ExitCode;
use std::rc::Rc;
use std::time::{Duration, Instant};

use ccplane_oracle::libccp::datapath;
use ccplane_wire::v1::ToDatapath;
use libccp::{CongestionOps, Connection, DatapathOps, FlowInfo, LibccpError, Primitives};
use serde_json::{Value, json};

/// Payload of a segment, bytes.
const MSS: u32 = 1448;
/// A datagram with its headers is as long as a TCP segment with timestamps, 1500 bytes.
const DATAGRAM_BYTES: usize = 1472;
/// The window before the agent sets one, segments (RFC 6928).
const INITIAL_WINDOW: u32 = 10;
/// Later datagrams acknowledged until one counts as lost (RFC 9002, section 6.1.1).
const REORDERING: u64 = 3;
/// Round trips after which an older datagram than an acknowledged one counts as lost, as a fraction (RFC 9002, section 6.1.2).
const LATE: (u32, u32) = (9, 8);
/// Round trips of silence after which a datagram beyond the window asks for an acknowledgement (RFC 8985, section 7.2).
const PROBE_AFTER: u32 = 2;
/// Silence that counts as a timeout (RFC 6298, section 2.4).
const TIMEOUT: Duration = Duration::from_secs(1);
/// Longest wait for a datagram, so that the agent is heard meanwhile.
const WAIT: Duration = Duration::from_millis(1);
/// Bytes of a datagram's number.
const NUMBER_BYTES: usize = 8;

/// A datagram on its way.
struct Sent {
    at: Instant,
    is_acked: bool,
}

/// The sample of one acknowledgement.
struct Shown {
    rtt_us: u64,
    lost: u32,
}

/// The datagrams on their way, oldest first.
#[derive(Default)]
struct Flight {
    first: u64,
    sent: VecDeque<Sent>,
    highest_acked: u64,
    packets: u32,
    /// The last round trip; zero before the first.
    rtt: Duration,
}

impl Flight {
    fn add(&mut self) -> u64 {
        self.sent.push_back(Sent { at: Instant::now(), is_acked: false });
        self.packets += 1;
        self.first + self.sent.len() as u64 - 1
    }

    /// Takes the echo of datagram `number`; none if it was counted before.
    fn acked(&mut self, number: u64) -> Option<Shown> {
        let at = usize::try_from(number.checked_sub(self.first)?).ok()?;
        let sent = self.sent.get_mut(at).filter(|sent| !sent.is_acked)?;
        sent.is_acked = true;
        self.rtt = sent.at.elapsed();
        self.packets -= 1;
        self.highest_acked = self.highest_acked.max(number);
        let mut lost = 0;
        while let Some(oldest) = self.sent.front() {
            let is_late = oldest.at.elapsed() > self.rtt * LATE.0 / LATE.1 && self.first < self.highest_acked;
            if !(oldest.is_acked || is_late || self.first + REORDERING <= self.highest_acked) {
                break;
            }
            lost += u32::from(!oldest.is_acked);
            self.sent.pop_front();
            self.first += 1;
        }
        self.packets -= lost;
        let rtt_us = u64::try_from(self.rtt.as_micros()).unwrap_or(u64::MAX);
        Some(Shown { rtt_us, lost })
    }

    /// Gives up all that is on its way; how many.
    fn give_up(&mut self) -> u32 {
        self.first += self.sent.len() as u64;
        self.sent.clear();
        std::mem::take(&mut self.packets)
    }
}

/// The sender of libccp's messages; it counts them.
struct ToAgent {
    socket: UnixDatagram,
    agent: PathBuf,
    sent: Rc<Cell<u64>>,
}

impl DatapathOps for ToAgent {
    fn send_msg(&mut self, message: &[u8]) {
        // libccp repeats what matters.
        if self.socket.send_to(message, &self.agent).is_ok() {
            self.sent.set(self.sent.get() + 1);
        }
    }
}

struct Window(Rc<Cell<u32>>);

impl CongestionOps for Window {
    fn set_cwnd(&mut self, cwnd: u32) {
        self.0.set(cwnd.max(MSS));
    }

    fn set_rate_abs(&mut self, _: u32) {}
}

fn run(agent: PathBuf, own: &str, receiver: SocketAddr, time: Duration) -> Result<Value, String> {
    let text = |what: &str, error: &dyn std::fmt::Display| format!("{what}: {error}");
    let _ = std::fs::remove_file(own);
    let from_agent = UnixDatagram::bind(own).map_err(|e| text("bind", &e))?;
    from_agent.set_nonblocking(true).map_err(|e| text("bind", &e))?;
    let messages = Rc::new(Cell::new(0));
    let socket = from_agent.try_clone().map_err(|e| text("bind", &e))?;
    let ops = ToAgent { socket, agent, sent: Rc::clone(&messages) };
    let datapath = datapath(ops, 58).map_err(|e| format!("libccp: {e}"))?;
    let udp = UdpSocket::bind(("0.0.0.0", 0)).map_err(|e| text("bind", &e))?;
    udp.connect(receiver).and_then(|()| udp.set_read_timeout(Some(WAIT))).map_err(|e| text("connect", &e))?;

    let window = Rc::new(Cell::new(INITIAL_WINDOW * MSS));
    let info = FlowInfo::default().with_init_cwnd(INITIAL_WINDOW * MSS).with_mss(MSS);
    let info = info.with_four_tuple(1, 2, 3, 4);
    let mut flow =
        Connection::start(&datapath, Window(Rc::clone(&window)), info).map_err(|e| format!("libccp: {e}"))?;
    let mut flight = Flight::default();
    let (mut acked, mut updates, mut steered) = (0_u64, 0_u64, 0_u64);
    let (mut buffer, mut datagram) = ([0; 4096], [0; DATAGRAM_BYTES]);
    let (start, mut acked_at) = (Instant::now(), Instant::now());
    let mut is_probed = false;
    while start.elapsed() < time {
        while let Ok(n) = from_agent.recv(&mut buffer) {
            updates += ToDatapath::parse_all(&buffer[..n])
                .filter(|message| matches!(message, Ok(ToDatapath::Update(_))))
                .count() as u64;
            datapath.recv_msg(&mut buffer[..n]).map_err(|e| format!("libccp: {e}"))?;
        }
        let is_silent = flight.packets > 0 && !is_probed && acked_at.elapsed() > flight.rtt * PROBE_AFTER;
        let mut probes = u32::from(is_silent && !flight.rtt.is_zero());
        is_probed |= probes > 0;
        while (flight.packets + 1) * MSS <= window.get() || probes > 0 {
            probes = 0;
            let number = flight.add();
            datagram[..NUMBER_BYTES].copy_from_slice(&number.to_le_bytes());
            udp.send(&datagram).map_err(|e| text("send", &e))?;
        }
        let echoed = match udp.recv(&mut buffer) {
            Ok(n) if n >= NUMBER_BYTES => buffer.first_chunk().map(|number| u64::from_le_bytes(*number)),
            Ok(_) => None,
            Err(e) if is_wait(&e) => None,
            Err(e) => return Err(text("receive", &e)),
        };
        let shown = echoed.and_then(|number| flight.acked(number));
        let mut prims = Primitives::default().with_snd_cwnd(window.get());
        match shown {
            Some(Shown { rtt_us, lost }) => {
                acked_at = Instant::now();
                is_probed = false;
                acked += 1;
                prims = prims.with_bytes_acked(MSS).with_packets_acked(1).with_rtt_sample_us(rtt_us);
                prims = prims.with_lost_pkts_sample(lost);
            }
            None if flight.packets > 0 && acked_at.elapsed() > TIMEOUT => {
                acked_at = Instant::now();
                prims = prims.with_was_timeout(true).with_lost_pkts_sample(flight.give_up());
            }
            None => continue,
        }
        let in_flight = flight.packets;
        flow.load_primitives(prims.with_packets_in_flight(in_flight).with_bytes_in_flight(in_flight * MSS));
        match flow.invoke() {
            Ok(()) => steered += 1,
            // The agent has not set a program yet.
            Err(LibccpError::LibccpProgIsNull) => {}
            Err(error) => return Err(format!("libccp: {error}")),
        }
    }
    let _ = std::fs::remove_file(own);
    Ok(json!({
        "bytes": acked * u64::from(MSS), "acks": acked, "acks_of_programs": steered, "messages": messages.get(),
        "updates": updates,
    }))
}

fn is_wait(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted)
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [agent, own, receiver, time_ms] = &arguments[..] else {
        eprintln!("usage: ccplane-libccp-flow AGENT OWN RECEIVER MILLISECONDS");
        return ExitCode::from(2);
    };
    let (Ok(receiver), Ok(time_ms)) = (receiver.parse(), time_ms.parse()) else {
        eprintln!("ccplane-libccp-flow: {receiver} is no address, or {time_ms} no number");
        return ExitCode::from(2);
    };
    match run(agent.into(), own, receiver, Duration::from_millis(time_ms)) {
        Ok(ran) => {
            println!("{ran}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("ccplane-libccp-flow: {error}");
            ExitCode::FAILURE
        }
    }
}
