//! Servers on this machine: an address that no other server has, and whether a server listens yet.

use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, SockaddrIn, bind, setsockopt, socket, sockopt};
use std::fs::File;
use std::io::{self, BufRead, BufReader, ErrorKind};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU16, Ordering};

/// Tables of TCP sockets in the network namespace of the calling thread (proc(5)).
const TABLES: [&str; 2] = ["/proc/thread-self/net/tcp", "/proc/thread-self/net/tcp6"];
/// The state LISTEN in these tables.
const LISTEN: &str = "0A";
/// First port of [`server_address`]. All of them are below those that the kernel chooses itself (`ip_local_port_range`).
const FIRST_PORT: u16 = 20_000;
/// Number of ports that [`server_address`] tries.
const PORTS: u16 = 10_000;

/// Returns a loopback address for a TCP server, which may bind it at any later time.
///
/// Each process has an IP address of its own there, so that its servers and those of other processes never meet. Each call
/// returns another port. A port that a server of all addresses has is passed over.
///
/// # Errors
/// `AddrInUse` where all ports are taken, or another refusal of the kernel.
pub fn server_address() -> io::Result<SocketAddrV4> {
    static CALLS: AtomicU16 = AtomicU16::new(0);
    // Linux numbers processes with 22 bits.
    let [_, high, middle, low] = std::process::id().to_be_bytes();
    let ip = Ipv4Addr::new(127, 64 | (high & 63), middle, low);
    for _ in 0..PORTS {
        let port = FIRST_PORT + CALLS.fetch_add(1, Ordering::Relaxed) % PORTS;
        let address = SocketAddrV4::new(ip, port);
        if is_free(address)? {
            return Ok(address);
        }
    }
    Err(ErrorKind::AddrInUse.into())
}

/// Returns whether a server could bind an address.
fn is_free(address: SocketAddrV4) -> Result<bool, Errno> {
    // It never listens: a child that has a copy until it executes its program keeps no server from the port.
    let probe = socket(AddressFamily::Inet, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
    setsockopt(&probe, sockopt::ReuseAddr, &true)?;
    match bind(probe.as_raw_fd(), &SockaddrIn::from(address)) {
        Err(Errno::EADDRINUSE) => Ok(false),
        bound => bound.map(|()| true),
    }
}

/// Returns whether a TCP server listens at an address or, at its port, on all addresses, in the network namespace of the
/// calling thread. It connects to nobody.
///
/// # Errors
/// The kernel's sockets cannot be read.
pub fn is_listening(address: SocketAddrV4) -> io::Result<bool> {
    // The kernel prints an address as numbers in the machine's order of bytes, and then the port.
    let port = format!(":{:04X}", address.port());
    let own = format!("{:08X}", u32::from_ne_bytes(address.ip().octets()));
    let is_local = |local: &str| {
        local.strip_suffix(&port).is_some_and(|ip| ip == own || ip.bytes().all(|digit| digit == b'0'))
    };
    for table in TABLES {
        let sockets = match File::open(table) {
            // The kernel may have no IPv6.
            Err(error) if error.kind() == ErrorKind::NotFound => continue,
            opened => BufReader::new(opened?),
        };
        for line in sockets.lines() {
            let line = line?;
            // "0: 00000000:1451 00000000:0000 0A": the local end, the remote one, and the state.
            let mut words = line.split_whitespace().skip(1);
            if words.next().is_some_and(is_local) && words.nth(1) == Some(LISTEN) {
                return Ok(true);
            }
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn a_server_is_seen_from_when_it_listens_until_it_ends_and_not_connected_to() {
        let (address, other) = (server_address().unwrap(), server_address().unwrap());
        assert_ne!(address, other);
        assert!(address.ip().is_loopback());
        assert!(!is_listening(address).unwrap());
        let server = TcpListener::bind(address).unwrap();
        assert_eq!(is_free(address), Ok(false));
        server.set_nonblocking(true).unwrap();
        assert!(is_listening(address).unwrap() && !is_listening(other).unwrap());
        assert_eq!(server.accept().unwrap_err().kind(), ErrorKind::WouldBlock);
        drop(server);
        assert!(!is_listening(address).unwrap());
    }

    #[test]
    fn a_server_of_all_addresses_listens_at_each() {
        let server = TcpListener::bind("0.0.0.0:0").unwrap();
        let port = server.local_addr().unwrap().port();
        let address = SocketAddrV4::new(Ipv4Addr::LOCALHOST, port);
        assert!(is_listening(address).unwrap());
        assert_eq!(is_free(address), Ok(false));
    }
}
