//! `tput.dpdk.ring`: QUIC between two DPDK ports of this process that share a ring in memory, so that no kernel is below; and
//! what a datagram costs in the shim alone, over that ring, and over the kernel's interfaces.

use std::net::{IpAddr, SocketAddr};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use ccplane_alg::Algorithm;
use ccplane_algs::RENO;
use ccplane_dpdk::net::frame::{Datagram, Frame, Headers, Offload, Verified};
use ccplane_dpdk::net::{Interface, InterfaceConfig, Mac, NextHop};
use ccplane_dpdk::{DpdkWire, MAX_SEGMENTS, Port, PortName, PortOptions};
use ccplane_quic::Wire;
use ccplane_quic::quinn_proto::Transmit;

use super::{Cable, KINDS, PAIRS, PORTS, RUN, UDP_PORT, eal, missing, wire_over};
use crate::error::{BenchError, context};
use crate::figure::{Figure, in_turn};
use crate::proof::{self, Proof};
use crate::quic::flow::{BenchFlow, CongestionControl, QuinnControl};
use crate::quic::stock_gbit;

/// The driver of ports whose ring is memory that two of them share.
const DRIVER: &str = "net_memif";
/// UDP payload of a full packet, bytes.
const PAYLOAD_BYTES: usize = 1452;
/// Datagrams of one block; a value is a block's mean.
const BLOCK: u64 = 20_000;
const BLOCKS: usize = 9;
/// The longest wait for the first datagram through a new port.
const PATIENCE: Duration = Duration::from_secs(10);
const SHIM: &str = "the shim alone, in memory";

/// `tput.dpdk.ring`: goodput of a flow under Reno's program, against stock quinn over loopback.
pub fn tput() -> Result<Vec<Figure>, BenchError> {
    let ring = Ring::new()?;
    let source = RENO.programs()[0].source;
    let flow = BenchFlow { steering: CongestionControl::Program { source, set: &[] }, time: RUN };
    let (mut pairs, mut proofs) = (Vec::new(), Vec::new());
    // One run of each to warm up.
    for n in 0..=PAIRS {
        let ours = || ring.with_wires(|source, sink, to| flow.over(source, sink, to));
        let (ours, (stock, stock_proof)) = in_turn(n, ours, || stock_gbit(QuinnControl::Cubic))?;
        if n > 0 {
            pairs.push((ours.goodput_gbit(), stock));
            proofs.push(ours.proof.and(&stock_proof));
        }
    }
    let note =
        "datagrams of 1500 bytes with headers, cut and summed in user space; quinn leaves that to the kernel";
    let baseline = "stock quinn with its Cubic over loopback";
    let mut figures = vec![
        Figure::paired("tput.dpdk.ring", "Gb/s", baseline, &pairs, &proof::all(&proofs)?).with_note(note),
    ];
    figures.extend(datagrams(&ring)?);
    Ok(figures)
}

/// The time of a datagram that one thread sends and receives, over the ring and over the kernel's interfaces.
fn datagrams(ring: &Ring) -> Result<Vec<Figure>, BenchError> {
    let mut figures =
        vec![figure("ring", |block| ring.with_wires(|source, sink, to| wire_ns(source, sink, to, block)))?];
    for kind in KINDS {
        let cable = Cable::with_ports(kind)?;
        figures.push(figure(kind, |block| {
            cable.with_wires(|source, sink, to| wire_ns(source, sink, to, block))
        })?);
    }
    Ok(figures)
}

fn figure(kind: &str, over: impl Fn(u64) -> Result<(f64, Proof), BenchError>) -> Result<Figure, BenchError> {
    let mut shim = Shim::new()?;
    let (mut pairs, mut proofs) = (Vec::new(), Vec::new());
    // One block of each to warm up.
    for n in 0..=BLOCKS {
        let ((ns, proof), shim_ns) = in_turn(n, || over(BLOCK), || shim.block_ns(BLOCK))?;
        if n > 0 {
            pairs.push((ns, shim_ns));
            proofs.push(proof);
        }
    }
    let note = format!("{PAYLOAD_BYTES} bytes of payload, sent and received by one thread, without QUIC");
    let name = format!("tput.dpdk.datagram.{kind}");
    Ok(Figure::paired(name, "ns", SHIM, &pairs, &proof::all(&proofs)?).with_note(note))
}

/// Two ports of this process that a ring in memory joins.
struct Ring(Mutex<[DpdkWire; 2]>);

impl Ring {
    fn new() -> Result<Ring, BenchError> {
        let eal = eal()?;
        let open = |role: &str, address: &str| {
            let arguments =
                format!("role={role},id=0,socket=ccplane-bench-{},socket-abstract=yes", std::process::id());
            let name = PortName::Virtual { driver: DRIVER.into(), arguments };
            let port = Port::open(eal, &name, PortOptions::default()).map_err(missing)?;
            wire_over(port, address)
        };
        // A client finds its server.
        Ok(Ring(Mutex::new([open("server", PORTS[0])?, open("client", PORTS[1])?])))
    }

    /// From the first port to the second, which is at the address.
    fn with_wires<T>(
        &self,
        run: impl FnOnce(&mut DpdkWire, &mut DpdkWire, SocketAddr) -> Result<T, BenchError>,
    ) -> Result<T, BenchError> {
        let mut wires = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let [source, sink] = &mut *wires;
        let to = sink.local_addr();
        run(source, sink, to)
    }
}

/// Sends and receives so many datagrams; the mean time of each, nanoseconds.
fn wire_ns(
    source: &mut DpdkWire,
    sink: &mut DpdkWire,
    to: SocketAddr,
    datagrams: u64,
) -> Result<(f64, Proof), BenchError> {
    let payload = vec![7; PAYLOAD_BYTES * MAX_SEGMENTS];
    let transmit = Transmit {
        destination: to,
        ecn: None,
        size: payload.len(),
        segment_size: Some(PAYLOAD_BYTES),
        src_ip: None,
    };
    let mut turn = || -> Result<u64, BenchError> {
        context("send", source.send(&transmit, &payload).map(drop))?;
        context("send", source.flush())?;
        // What comes back is an answer to a neighbour.
        context("receive", source.receive(&mut |_| {}).map(drop))?;
        let mut received = 0;
        loop {
            match context("receive", sink.receive(&mut |_| {}))? {
                0 => return Ok(received),
                more => received += more as u64,
            }
        }
    };
    let since = Instant::now();
    while turn()? == 0 {
        if since.elapsed() > PATIENCE {
            return Err(missing("no datagram crosses"));
        }
    }
    let (from, mut received) = (Instant::now(), 0);
    while received < datagrams {
        received += turn()?;
        if from.elapsed() > PATIENCE {
            return Err(missing("datagrams do not cross"));
        }
    }
    let ns = from.elapsed().as_nanos() as f64 / received as f64;
    Ok((ns, Proof::counted("datagrams received", received)?))
}

/// The shim's own work for a datagram between QUIC and a port: the headers, the checksums and the copies of both ends.
struct Shim {
    ends: [Interface; 2],
    headers: Headers,
    payload: Vec<u8>,
    frame: Vec<u8>,
}

impl Shim {
    fn new() -> Result<Shim, BenchError> {
        let macs = [Mac([2, 0, 0, 0, 0, 1]), Mac([2, 0, 0, 0, 0, 2])];
        let addresses: Vec<IpAddr> =
            PORTS.iter().map(|port| port.parse().map_err(missing)).collect::<Result<_, _>>()?;
        let [at, peer] = *addresses else { return Err(missing("a pair of addresses")) };
        let end = |own: (IpAddr, Mac), other: (IpAddr, Mac)| {
            let net = format!("{}/30", own.0).parse().map_err(missing)?;
            Interface::new(InterfaceConfig {
                mac: own.1,
                mtu_bytes: 1500,
                addresses: vec![net],
                gateways: Vec::new(),
                neighbours: vec![other],
                offload: Offload::default(),
                lenient: false,
            })
            .map_err(missing)
        };
        let mut ends = [end((at, macs[0]), (peer, macs[1]))?, end((peer, macs[1]), (at, macs[0]))?];
        let to = SocketAddr::new(peer, UDP_PORT);
        let NextHop::Open(headers) = ends[0].path(None, UDP_PORT, to, 0, Instant::now()) else {
            return Err(missing("a permanent neighbour is not known"));
        };
        Ok(Shim { ends, headers, payload: vec![7; PAYLOAD_BYTES], frame: vec![0; 2 * PAYLOAD_BYTES] })
    }

    /// The mean time of a datagram that is written and parsed, nanoseconds.
    fn block_ns(&mut self, datagrams: u64) -> Result<f64, BenchError> {
        let Shim { ends: [_, sink], headers, payload, frame } = self;
        let mut received = Vec::with_capacity(PAYLOAD_BYTES);
        let (now, mut intact) = (Instant::now(), 0);
        for _ in 0..datagrams {
            let bytes = headers.write(payload, frame).ok_or_else(|| missing("a frame without room"))?;
            let bytes = std::hint::black_box(frame.get(..bytes).unwrap_or_default());
            if let Ok(Frame::Datagram(Datagram { payload, .. })) =
                sink.receive(bytes, Verified::default(), now)
            {
                received.clear();
                received.extend_from_slice(payload);
                intact += u64::from(std::hint::black_box(&received).len() == PAYLOAD_BYTES);
            }
        }
        let ns = now.elapsed().as_nanos() as f64 / datagrams as f64;
        Proof::exactly("datagrams parsed", intact, datagrams)?;
        Ok(ns)
    }
}
