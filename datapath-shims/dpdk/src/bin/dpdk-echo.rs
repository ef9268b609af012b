//! Echoes UDP datagrams over a DPDK port, or sends datagrams to such an echo, to test DPDK, a port and its addresses.

use std::collections::HashSet;
use std::error::Error;
use std::net::{IpAddr, SocketAddr};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use ccplane_dpdk::net::Mac;
use ccplane_dpdk::{DpdkWire, Eal, EalOptions, Idle, Memory, Port, PortName, PortOptions, WireOptions};
use ccplane_quic::Wire;
use clap::{Parser, Subcommand};
use ipnet::IpNet;
use quinn_proto::{EcnCodepoint, Transmit};

/// The longest wait for an answer after the last question was sent.
const PATIENCE: Duration = Duration::from_secs(2);
/// The longest wait of a loop before it checks whether to end.
const TURN: Duration = Duration::from_millis(20);
/// Questions in flight at once.
const WINDOW: usize = 64;

#[derive(Parser)]
#[command(about = "Echoes UDP datagrams over a DPDK port, or asks someone who does")]
struct Args {
    #[arg(help = "af_packet:IFACE, af_xdp:IFACE, tap:IFACE, pci:ADDRESS or vdev:DRIVER[,ARGUMENTS]", long)]
    port: PortName,
    /// An address of the port with its prefix; may be given again
    #[arg(long, required = true)]
    address: Vec<IpNet>,
    /// A gateway for destinations that are not on the link
    #[arg(long)]
    gateway: Vec<IpAddr>,
    /// A neighbour with a fixed address: IP=MAC
    #[arg(long, value_parser = neighbour)]
    neighbour: Vec<(IpAddr, Mac)>,
    /// Packet buffers in hugepages
    #[arg(long)]
    hugepages: bool,
    /// Memory for packet buffers, MiB
    #[arg(long, default_value_t = EalOptions::default().memory_mib)]
    memory_mib: u32,
    /// Queues of the port, one thread each
    #[arg(long, default_value_t = 1)]
    queues: u16,
    /// Sleep this long when nothing has arrived, us; 0: spin
    #[arg(long, default_value_t = 50)]
    pause_us: u64,
    #[command(subcommand)]
    work: Work,
}

#[derive(Subcommand)]
enum Work {
    /// Sends every datagram back, for a limited time
    Serve {
        #[arg(long, default_value_t = 7)]
        udp_port: u16,
        #[arg(long, default_value_t = 60)]
        seconds: u64,
    },
    /// Sends datagrams of many lengths and ECN marks, and counts those that come back unchanged
    Ask {
        remote: SocketAddr,
        #[arg(long, default_value_t = 100)]
        count: usize,
    },
}

fn neighbour(text: &str) -> Result<(IpAddr, Mac), String> {
    let (ip, mac) = text.split_once('=').ok_or("a neighbour is given as IP=MAC")?;
    Ok((ip.parse().map_err(|e| format!("{ip}: {e}"))?, mac.parse::<Mac>().map_err(|e| e.to_string())?))
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("dpdk-echo: {error}");
            ExitCode::from(2)
        }
    }
}

fn run(args: &Args) -> Result<bool, Box<dyn Error>> {
    let memory = if args.hugepages { Memory::Huge } else { Memory::Plain };
    let pci = args.port.pci().map(str::to_owned).into_iter().collect();
    let eal = Eal::start(&EalOptions { memory, memory_mib: args.memory_mib, pci, ..EalOptions::default() })?;
    let port = Port::open(&eal, &args.port, PortOptions { queues: args.queues, ..PortOptions::default() })?;
    let udp_port = match args.work {
        Work::Serve { udp_port, .. } => udp_port,
        Work::Ask { .. } => 0,
    };
    let idle =
        if args.pause_us == 0 { Idle::Spin } else { Idle::Pause(Duration::from_micros(args.pause_us)) };
    let options = WireOptions {
        addresses: args.address.clone(),
        gateways: args.gateway.clone(),
        neighbours: args.neighbour.clone(),
        udp_port,
        idle,
    };
    println!("{} is at {}, MTU {}, offloads {:?}", port.name(), port.mac(), port.mtu_bytes(), port.offload());
    let wires = DpdkWire::over(port, &options)?;
    let done = match args.work {
        Work::Serve { seconds, .. } => {
            let until = Instant::now() + Duration::from_secs(seconds);
            on_threads(wires, |wire| serve(wire, until).map(|()| true))
        }
        Work::Ask { remote, count } => on_threads(wires, |wire| ask(wire, remote, count)),
    };
    done.into_iter().try_fold(true, |all, one| Ok(all & one?))
}

/// Runs each queue on a thread of its own.
fn on_threads(
    wires: Vec<DpdkWire>,
    work: impl Fn(&mut DpdkWire) -> std::io::Result<bool> + Sync,
) -> Vec<Result<bool, Box<dyn Error>>> {
    let one = |mut wire: DpdkWire| -> std::io::Result<bool> {
        let done = work(&mut wire);
        println!("{}: {:?}", wire.local_addr(), wire.counters());
        done
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = wires.into_iter().map(|wire| scope.spawn(|| one(wire))).collect();
        let joined =
            threads.into_iter().map(|thread| thread.join().unwrap_or_else(|p| std::panic::resume_unwind(p)));
        joined.map(|done| done.map_err(Box::from)).collect()
    })
}

fn serve(wire: &mut DpdkWire, until: Instant) -> std::io::Result<()> {
    let mut arrived = Vec::new();
    while Instant::now() < until {
        wire.receive(&mut |datagram| arrived.push(datagram))?;
        for datagram in arrived.drain(..) {
            let (destination, ecn, src_ip) = (datagram.remote, datagram.ecn, datagram.local_ip);
            let back =
                Transmit { destination, ecn, size: datagram.payload.len(), segment_size: None, src_ip };
            // A datagram that finds no room is lost, as anywhere on a network.
            wire.send(&back, &datagram.payload)?;
        }
        wire.flush()?;
        wire.wait(TURN)?;
    }
    Ok(())
}

/// Question `n`: its number, then bytes derived from it; length and ECN mark vary with `n`.
fn question(n: usize, longest: usize) -> (Vec<u8>, Option<EcnCodepoint>) {
    let len = 8 + n * 7919 % (longest - 7);
    let mut payload: Vec<u8> = (0..len).map(|at| (at + n) as u8).collect();
    payload[..8].copy_from_slice(&(n as u64).to_be_bytes());
    (payload, EcnCodepoint::from_bits((n % 4) as u8))
}

fn ask(wire: &mut DpdkWire, remote: SocketAddr, count: usize) -> std::io::Result<bool> {
    let longest = usize::from(wire.max_payload_bytes());
    let mut missing: HashSet<usize> = (0..count).collect();
    let (mut wrong, mut asked, mut last) = (0, 0, Instant::now());
    while !missing.is_empty() && last.elapsed() < PATIENCE {
        while asked < count && asked - (count - missing.len()) < WINDOW {
            let (payload, ecn) = question(asked, longest);
            let to =
                Transmit { destination: remote, ecn, size: payload.len(), segment_size: None, src_ip: None };
            if !wire.send(&to, &payload)? {
                break;
            }
            (asked, last) = (asked + 1, Instant::now());
        }
        wire.flush()?;
        wire.receive(&mut |datagram| {
            let number =
                datagram.payload.first_chunk::<8>().map_or(u64::MAX, |n| u64::from_be_bytes(*n)) as usize;
            let intact =
                number < count && (datagram.payload.to_vec(), datagram.ecn) == question(number, longest);
            wrong += usize::from(!intact || datagram.remote != remote);
            missing.remove(&number);
        })?;
        wire.wait(TURN)?;
    }
    println!("{} of {count} answered, {wrong} of them wrong", count - missing.len());
    Ok(missing.is_empty() && wrong == 0)
}
