//! A plain cable between two namespaces, with no emulated link in between: what throughput is measured on.

use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::AsRawFd;

use crate::error::Result;
use crate::netlink::Netlink;
use crate::netns::Namespace;

/// The addresses of the two ends, in a /30 that exists only inside the two namespaces.
pub const ENDS: [IpAddr; 2] =
    [IpAddr::V4(Ipv4Addr::new(10, 254, 254, 1)), IpAddr::V4(Ipv4Addr::new(10, 254, 254, 2))];
const PREFIX_LEN: u8 = 30;
/// The device's name at either end.
pub const DEVICE: &str = "veth0";

/// Joins two namespaces by a veth pair; its ends have the addresses of [`ENDS`]. It goes with the namespaces.
///
/// # Errors
/// The kernel's refusal.
pub fn connect(a: &Namespace, b: &Namespace) -> Result<()> {
    a.run(|| Netlink::open()?.add_veth(DEVICE, b.fd().as_raw_fd()))??;
    for (namespace, address) in [(a, ENDS[0]), (b, ENDS[1])] {
        namespace.run(|| {
            let netlink = Netlink::open()?;
            netlink.add_address(DEVICE, address, PREFIX_LEN)?;
            netlink.set_up(DEVICE, Vec::new())
        })??;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::UdpSocket;

    #[test]
    fn a_datagram_crosses() {
        if !crate::netns::available() {
            ccplane_testing::skipped("a_datagram_crosses", "needs root and /dev/net/tun");
            return;
        }
        let (a, b) = (Namespace::anonymous().unwrap(), Namespace::anonymous().unwrap());
        connect(&a, &b).unwrap();
        let receiver = b.run(|| UdpSocket::bind((ENDS[1], 0)).unwrap()).unwrap();
        let sender = a.run(|| UdpSocket::bind((ENDS[0], 0)).unwrap()).unwrap();
        receiver.set_read_timeout(Some(std::time::Duration::from_secs(5))).unwrap();
        sender.send_to(b"over", receiver.local_addr().unwrap()).unwrap();
        let mut buffer = [0; 8];
        assert_eq!(receiver.recv(&mut buffer).unwrap(), 4);
    }
}
