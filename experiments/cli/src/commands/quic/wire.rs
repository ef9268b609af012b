//! The wire of a command: a kernel socket, or a DPDK port.

use super::QuicError;
use crate::cli::QuicSteering;
use ccplane_agent::failure::Failure;
use ccplane_quic::{UdpWire, Wire};
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};

/// For a server, and how large a socket's receive buffer is, bytes. Of `at`, a DPDK port takes the UDP port only. Waits on a socket
/// poll its device for `busy_poll_us` first.
pub(super) fn listen(
    args: &QuicSteering,
    at: &str,
    busy_poll_us: Option<u32>,
) -> Result<(Box<dyn Wire>, Option<usize>), Failure> {
    let parsed = at.to_socket_addrs().ok().and_then(|mut found| found.next());
    let address = parsed.ok_or_else(|| Failure::input(QuicError::Address(at.to_owned())))?;
    if let Some(port) = port(args, address.port())? {
        return Ok((port, None));
    }
    let failed = |source| Failure::runtime(QuicError::Listen { at: at.to_owned(), source });
    let mut socket = match UdpWire::bind(address) {
        // A machine without IPv6, asked to listen everywhere.
        Err(e)
            if address.is_ipv6() && address.ip().is_unspecified() && e.kind() != io::ErrorKind::AddrInUse =>
        {
            UdpWire::bind((Ipv4Addr::UNSPECIFIED, address.port()).into()).map_err(failed)?
        }
        bound => bound.map_err(failed)?,
    };
    if let Some(us) = busy_poll_us {
        socket.busy_poll(us).map_err(|source| Failure::runtime(QuicError::BusyPoll { us, source }))?;
    }
    let receive_buffer_bytes = socket.buffers().receive_bytes;
    Ok((Box::new(socket), Some(receive_buffer_bytes)))
}

/// For a client of that server.
pub(super) fn connect(args: &QuicSteering, remote: SocketAddr) -> Result<Box<dyn Wire>, Failure> {
    if let Some(port) = port(args, 0)? {
        return Ok(port);
    }
    let any: SocketAddr = match remote {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    Ok(Box::new(UdpWire::bind(any)?))
}

/// The kind of the flows' datapath.
pub(super) fn kind(args: &QuicSteering) -> &'static str {
    if is_port(args) { "dpdk" } else { "quic" }
}

/// Whether datagrams go over a DPDK port.
pub(super) fn is_port(args: &QuicSteering) -> bool {
    #[cfg(feature = "dpdk")]
    return args.port.port.is_some();
    #[cfg(not(feature = "dpdk"))]
    {
        let _ = args;
        false
    }
}

/// The DPDK port that the flags name, if they name one.
#[cfg(feature = "dpdk")]
fn port(args: &QuicSteering, udp_port: u16) -> Result<Option<Box<dyn Wire>>, Failure> {
    Ok(dpdk(&args.port, udp_port)?.map(|wire| Box::new(wire) as Box<dyn Wire>))
}

/// Opens the DPDK port that the flags name, if they name one.
#[cfg(feature = "dpdk")]
pub(in crate::commands) fn dpdk(
    args: &crate::cli::QuicPort,
    udp_port: u16,
) -> Result<Option<ccplane_dpdk::DpdkWire>, Failure> {
    use ccplane_dpdk::{DpdkWire, Eal, EalOptions, Port, PortOptions, WireOptions};
    let Some(name) = &args.port else { return Ok(None) };
    let pci = name.pci().map(str::to_owned).into_iter().collect();
    let eal = Eal::start(&EalOptions { pci, ..EalOptions::default() }).map_err(Failure::runtime)?;
    let port = Port::open(&eal, name, PortOptions::default()).map_err(Failure::runtime)?;
    let options = WireOptions {
        addresses: args.address.clone(),
        gateways: args.gateway.clone(),
        neighbours: args.neighbour.clone(),
        udp_port,
        ..WireOptions::default()
    };
    Ok(DpdkWire::over(port, &options).map_err(Failure::input)?.into_iter().next())
}

#[cfg(not(feature = "dpdk"))]
fn port(_: &QuicSteering, _: u16) -> Result<Option<Box<dyn Wire>>, Failure> {
    Ok(None)
}
