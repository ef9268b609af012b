//! A plain cable between two namespaces, with no emulated link in between: what throughput is measured on.

use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::AsRawFd;

use nix::errno::Errno;
use nix::ifaddrs::getifaddrs;

use crate::error::{Context, Result};
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
    join(a, b, [Some(ENDS[0]), Some(ENDS[1])])
}

/// Joins two namespaces as [`connect`] does, but the kernel has the first end's address only: the second is for a network stack of
/// user space.
///
/// # Errors
/// The kernel's refusal.
pub fn connect_to_bare(a: &Namespace, b: &Namespace) -> Result<()> {
    join(a, b, [Some(ENDS[0]), None])
}

/// Returns the Ethernet address of [`DEVICE`] in a namespace.
///
/// # Errors
/// There is no such device, or the kernel's refusal.
pub fn mac(namespace: &Namespace) -> Result<[u8; 6]> {
    namespace.run(|| {
        let mut addresses = getifaddrs().context("ask for the addresses of", DEVICE)?;
        let found = addresses.find_map(|found| {
            let is_ours = found.interface_name == DEVICE;
            found.address.filter(|_| is_ours)?.as_link_addr()?.addr()
        });
        found.ok_or(Errno::ENODEV).context("find the Ethernet address of", DEVICE)
    })?
}

fn join(a: &Namespace, b: &Namespace, addresses: [Option<IpAddr>; 2]) -> Result<()> {
    a.run(|| Netlink::open()?.add_veth(DEVICE, b.fd().as_raw_fd()))??;
    for (namespace, address) in [a, b].into_iter().zip(addresses) {
        namespace.run(|| {
            let netlink = Netlink::open()?;
            if let Some(address) = address {
                netlink.add_address(DEVICE, address, PREFIX_LEN)?;
            }
            netlink.set_up(DEVICE, Vec::new())
        })??;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::UdpSocket;

    /// Two namespaces; none, which is said, where there can be none.
    fn namespaces(test: &str) -> Option<(Namespace, Namespace)> {
        if ccplane_testing::lacks(test, crate::netns::missing()) {
            return None;
        }
        Some((Namespace::anonymous().unwrap(), Namespace::anonymous().unwrap()))
    }

    #[test]
    fn a_datagram_crosses() {
        let Some((a, b)) = namespaces("a_datagram_crosses") else { return };
        connect(&a, &b).unwrap();
        let receiver = b.run(|| UdpSocket::bind((ENDS[1], 0)).unwrap()).unwrap();
        let sender = a.run(|| UdpSocket::bind((ENDS[0], 0)).unwrap()).unwrap();
        receiver.set_read_timeout(Some(std::time::Duration::from_secs(5))).unwrap();
        sender.send_to(b"over", receiver.local_addr().unwrap()).unwrap();
        let mut buffer = [0; 8];
        assert_eq!(receiver.recv(&mut buffer).unwrap(), 4);
    }

    #[test]
    fn each_end_has_the_ethernet_address_that_sysfs_shows() {
        let Some((a, b)) = namespaces("each_end_has_the_ethernet_address_that_sysfs_shows") else { return };
        assert!(mac(&a).is_err(), "there is no device yet");
        connect_to_bare(&a, &b).unwrap();
        for end in [&a, &b] {
            let shown = end.run_with_sysfs(|| std::fs::read_to_string("/sys/class/net/veth0/address"));
            let bytes = mac(end).unwrap().map(|byte| format!("{byte:02x}"));
            assert_eq!(bytes.join(":"), shown.unwrap().unwrap().trim());
        }
    }

    #[test]
    fn the_kernel_has_no_address_at_a_bare_end() {
        let Some((a, b)) = namespaces("the_kernel_has_no_address_at_a_bare_end") else { return };
        connect_to_bare(&a, &b).unwrap();
        assert!(a.run(|| UdpSocket::bind((ENDS[0], 0))).unwrap().is_ok());
        let refused = b.run(|| UdpSocket::bind((ENDS[1], 0))).unwrap().unwrap_err();
        assert_eq!(refused.kind(), std::io::ErrorKind::AddrNotAvailable);
        for end in [&a, &b] {
            let flags = end.run_with_sysfs(|| std::fs::read_to_string("/sys/class/net/veth0/flags"));
            let flags = flags.unwrap().unwrap();
            let flags = u32::from_str_radix(flags.trim().trim_start_matches("0x"), 16).unwrap();
            assert_eq!(flags & libc::IFF_UP as u32, libc::IFF_UP as u32);
        }
    }
}
