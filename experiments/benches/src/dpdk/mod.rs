//! `tput.dpdk`, `pace.dpdk` and `ack.dpdk.reno`: QUIC over DPDK ports at the two ends of a veth pair.

mod ring;

use std::net::{IpAddr, SocketAddr};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

use ccplane_alg::Algorithm;
use ccplane_algs::RENO;
use ccplane_dpdk::{DpdkWire, Eal, EalOptions, Idle, Memory, Port, PortOptions, WireOptions};
use ccplane_emulator::netns::Namespace;
use ccplane_emulator::veth;
use ccplane_quic::quinn_proto::PathStats;
use ccplane_quic::{UdpWire, Wire};

use crate::error::{BenchError, context};
use crate::figure::{Figure, in_turn, percentile};
use crate::nn::{self, Networks};
use crate::proof::{self, Proof};
use crate::quic::flow::{BenchFlow, CongestionControl, Run};
use crate::quic::{self, ASK, EMPTY, REMEMBER};

pub use ring::tput as ring_tput;

const KINDS: [&str; 2] = ["af_packet", "af_xdp"];
const PAIRS: usize = 5;
const RUN: Duration = Duration::from_millis(1500);
/// Flows of `ack.dpdk.reno` in congestion avoidance ...
const ACK_RUNS: usize = 7;
/// ... from this window on, bytes ...
const ACK_SSTHRESH_BYTES: i64 = 256 << 10;
/// ... and in slow start, which they never leave where nothing is lost.
const SLOW_START_RUNS: usize = 3;
/// Rates of `pace.dpdk`, Mb/s.
const RATES_MBIT: [u64; 4] = [10, 100, 500, 1000];
/// The device at each end of `veth::connect`'s cable.
const DEVICE: &str = "veth0";
/// Addresses of the ports, which the kernel does not have.
const PORTS: [&str; 2] = ["10.254.253.1", "10.254.253.2"];
const UDP_PORT: u16 = 4433;
/// The baseline: an ACK whose program does nothing.
const EMPTY_CONTROLLER: &str = "all of an ACK under an empty program";
/// The memory of two pairs of ports, MiB.
const MEMORY_MIB: u32 = 512;

/// `tput.dpdk`: goodput of a flow under Reno's program, against the same over kernel sockets on another such cable.
pub fn tput() -> Result<Vec<Figure>, BenchError> {
    let source = RENO.programs()[0].source;
    let flow = BenchFlow { steering: CongestionControl::Program { source, set: &[] }, time: RUN };
    let mut figures = Vec::new();
    for kind in KINDS {
        // Of its own: an XDP program takes all that arrives, and a packet socket gets a copy.
        let (cable, plain) = (Cable::with_ports(kind)?, Cable::plain()?);
        let (mut pairs, mut proofs, mut path) = (Vec::new(), Vec::new(), PathStats::default());
        // One run of each to warm up.
        for n in 0..=PAIRS {
            let (ours, sockets) = in_turn(n, || cable.over_ports(&flow), || plain.over_sockets(&flow))?;
            if n > 0 {
                pairs.push((ours.goodput_gbit(), sockets.goodput_gbit()));
                proofs.push(ours.proof.and(&sockets.proof));
                path.current_mtu = ours.path.current_mtu;
                path.sent_packets += ours.path.sent_packets;
                path.lost_packets += ours.path.lost_packets;
            }
        }
        let PathStats { current_mtu, sent_packets, lost_packets, .. } = path;
        let (name, baseline) = (format!("tput.dpdk.{kind}"), "QUIC over kernel sockets");
        let note = format!(
            "datagrams of {current_mtu} bytes, {lost_packets} of {sent_packets} lost; sockets leave cutting datagrams to the kernel"
        );
        figures.push(Figure::paired(name, "Gb/s", baseline, &pairs, &proof::all(&proofs)?).with_note(note));
    }
    Ok(figures)
}

/// `ack.dpdk.reno`: what Reno's program, and a decision by Aurora's snapshot, add to what a controller does on an ACK of a
/// live flow. The flow runs Reno; beside it controllers under other programs hear the same ACKs, each timed.
pub fn ack() -> Result<Vec<Figure>, BenchError> {
    let source = RENO.programs()[0].source;
    let others = [EMPTY, REMEMBER, ASK].map(|source| CongestionControl::Program { source, set: &[] });
    let cable = Cable::with_ports(KINDS[0])?;
    let (mut program, mut controller, mut decision) = (Vec::new(), Vec::new(), Vec::new());
    let (mut acks, mut gbit, mut slow_start, mut proofs) = (0, Vec::new(), Vec::new(), Vec::new());
    let networks = Networks::new()?;
    for n in 0..ACK_RUNS + SLOW_START_RUNS {
        let avoids = n < ACK_RUNS;
        let set: &[(&str, i64)] = if avoids { &[("ssthresh", ACK_SSTHRESH_BYTES)] } else { &[] };
        let flow = BenchFlow { steering: CongestionControl::Program { source, set }, time: RUN };
        let (run, times) =
            cable.with_wires(|source, sink, to| flow.run_with_listeners(&others, source, sink, to))?;
        let times = times.lock().unwrap_or_else(PoisonError::into_inner);
        let [reno, empty, remember, ask] = &**times else { return Err(missing("a flow without ACKs")) };
        proofs.push(run.proof.clone().and(&Proof::counted("ACKs timed", reno.len() as u64)?));
        let whole = |times: &[u32]| mean(times.iter().copied().map(f64::from));
        if !avoids {
            slow_start.push((above(reno, empty), whole(empty)));
            continue;
        }
        program.push((above(reno, empty), whole(empty)));
        let plain = nn::time(&networks.states, |cells| networks.plain.infer(cells));
        decision.push((above(ask, remember), plain));
        controller.push((whole(reno), whole(empty)));
        acks += reno.len();
        gbit.push(run.goodput_gbit());
    }
    let proof = proof::all(&proofs)?;
    let note = format!("on {acks} ACKs of flows of {:.1} Gb/s", percentile(&gbit, 0.5));
    Ok(vec![
        Figure::paired("ack.dpdk.reno", "ns", EMPTY_CONTROLLER, &program, &proof)
            .with_note(format!("in congestion avoidance, above an empty program, {note}")),
        Figure::paired("ack.dpdk.reno.slow-start", "ns", EMPTY_CONTROLLER, &slow_start, &proof)
            .with_note("the same in slow start"),
        Figure::paired("ack.dpdk.reno.controller", "ns", EMPTY_CONTROLLER, &controller, &proof)
            .with_note("all that the ACK is to the flow's controller, and the clock read twice"),
        Figure::paired("ack.dpdk.decision", "ns", "a plain int8 loop", &decision, &proof)
            .with_note("with Aurora's snapshot, on the same ACKs"),
    ])
}

/// `pace.dpdk`: the rate at which a flow leaves, against the one that its program decided; and its bursts.
pub fn pace() -> Result<Vec<Figure>, BenchError> {
    let mut figures = Vec::new();
    for kind in KINDS {
        let cable = Cable::with_ports(kind)?;
        for mbit in RATES_MBIT {
            let name = format!("pace.dpdk.{kind}.{mbit}");
            figures.push(quic::paced(&name, mbit, &mut |flow| cable.over_ports(flow))?);
        }
    }
    Ok(figures)
}

/// The mean of the middle four fifths: a median would show the clock's steps, and a full mean the interrupts.
fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    let tail = values.len() / 10;
    let middle = &values[tail..values.len() - tail];
    middle.iter().sum::<f64>() / middle.len().max(1) as f64
}

/// By how much each ACK took longer than the same one elsewhere, nanoseconds.
fn above(times: &[u32], base: &[u32]) -> f64 {
    mean(times.iter().zip(base).map(|(ns, base)| f64::from(*ns) - f64::from(*base)))
}

/// Two namespaces with a veth pair between them, and perhaps a port on each end.
struct Cable {
    ends: [Namespace; 2],
    // A port is made and closed in its namespace.
    wires: Mutex<[Option<DpdkWire>; 2]>,
}

impl Cable {
    fn plain() -> Result<Cable, BenchError> {
        crate::error::check_namespaces()?;
        let ends = [Namespace::anonymous()?, Namespace::anonymous()?];
        veth::connect(&ends[0], &ends[1])?;
        Ok(Cable { ends, wires: Mutex::new([None, None]) })
    }

    fn with_ports(kind: &str) -> Result<Cable, BenchError> {
        let (cable, eal) = (Cable::plain()?, eal()?);
        for (n, end) in cable.ends.iter().enumerate() {
            cable.wires.lock().unwrap_or_else(PoisonError::into_inner)[n] =
                Some(end.run(|| wire(eal, kind, n))??);
        }
        Ok(cable)
    }

    fn over_ports(&self, flow: &BenchFlow<'_>) -> Result<Run, BenchError> {
        self.with_wires(|source, sink, to| flow.over(source, sink, to))
    }

    /// From the first port to the second, which is there.
    fn with_wires<T>(
        &self,
        run: impl FnOnce(&mut DpdkWire, &mut DpdkWire, SocketAddr) -> Result<T, BenchError>,
    ) -> Result<T, BenchError> {
        let mut wires = self.wires.lock().unwrap_or_else(PoisonError::into_inner);
        let [Some(source), Some(sink)] = &mut *wires else {
            return Err(missing("a cable without ports"));
        };
        let to = sink.local_addr();
        run(source, sink, to)
    }

    fn over_sockets(&self, flow: &BenchFlow<'_>) -> Result<Run, BenchError> {
        let bind =
            |end: usize| context("bind", self.ends[end].run(|| UdpWire::bind((veth::ENDS[end], 0).into()))?);
        let (source, sink) = (bind(0)?, bind(1)?);
        let to = sink.local_addr();
        flow.over(source, sink, to)
    }
}

impl Drop for Cable {
    fn drop(&mut self) {
        let wires = self.wires.get_mut().unwrap_or_else(PoisonError::into_inner);
        for (end, wire) in self.ends.iter().zip(wires) {
            let wire = wire.take();
            // A namespace that cannot be entered any more has no port to close.
            let _ = end.run(|| drop(wire));
        }
    }
}

/// A port at the end of the cable that the calling thread is at.
fn wire(eal: &Eal, kind: &str, end: usize) -> Result<DpdkWire, BenchError> {
    let name = format!("{kind}:{DEVICE}").parse().map_err(missing)?;
    wire_over(Port::open(eal, &name, PortOptions::default()).map_err(missing)?, PORTS[end])
}

/// A wire over XDP sockets at an address of `veth::connect_to_bare`'s far end, which the calling thread is at.
pub(crate) fn wire_at_bare_end(eal: &Eal, address: SocketAddr) -> Result<DpdkWire, BenchError> {
    let name = format!("{}:{DEVICE}", KINDS[1]).parse().map_err(missing)?;
    wire_at(Port::open(eal, &name, PortOptions::default()).map_err(missing)?, address)
}

/// A wire at one of [`PORTS`] over a port with one queue.
fn wire_over(port: Port, address: &str) -> Result<DpdkWire, BenchError> {
    let address: IpAddr = address.parse().map_err(missing)?;
    wire_at(port, SocketAddr::new(address, UDP_PORT))
}

/// A wire over a port with one queue.
fn wire_at(port: Port, address: SocketAddr) -> Result<DpdkWire, BenchError> {
    let options = WireOptions {
        addresses: vec![format!("{}/30", address.ip()).parse().map_err(missing)?],
        udp_port: address.port(),
        idle: Idle::Spin,
        ..WireOptions::default()
    };
    let wires = DpdkWire::over(port, &options).map_err(missing)?;
    wires.into_iter().next().ok_or_else(|| missing("a port without queues"))
}

/// DPDK starts once a process.
pub(crate) fn eal() -> Result<&'static Eal, BenchError> {
    static EAL: OnceLock<Result<Eal, String>> = OnceLock::new();
    let options = EalOptions { memory: Memory::Auto, memory_mib: MEMORY_MIB, ..EalOptions::default() };
    let started = EAL.get_or_init(|| Eal::start(&options).map_err(|error| error.to_string()));
    started.as_ref().map_err(missing)
}

fn missing(error: impl std::fmt::Display) -> BenchError {
    BenchError::Missing(error.to_string())
}
