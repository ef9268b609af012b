//! Hosts behind a link's ends, for stacks that are not the kernel's: each has an Ethernet device with no address of the
//! kernel's, and the end that it hangs on routes for it.

use std::fs;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::AsRawFd;

use crate::emulator::{DEVICE as LINK, Emulator};
use crate::error::{Context, Error, Result};
use crate::netlink::Netlink;
use crate::netns::Namespace;

/// The hosts' device, and the routers' that it is joined to.
pub const DEVICE: &str = "edge0";
/// Bits of a host's network.
pub const PREFIX_LEN: u8 = 24;
/// Pairs of hosts on one link, at most.
pub const MAX_PAIRS: u8 = 127;

/// Says to a network namespace, and to none but it, that it is to forward.
const FORWARD: &str = "/proc/sys/net/ipv4/ip_forward";

/// A host; it goes when it is dropped.
#[derive(Debug)]
pub struct Edge {
    /// The namespace that holds [`DEVICE`].
    pub namespace: Namespace,
    /// The host's, in a network of [`PREFIX_LEN`] bits that exists only here.
    pub address: Ipv4Addr,
    /// The address of the router.
    pub gateway: Ipv4Addr,
}

impl Emulator {
    /// A host behind the sender's end and one behind the receiver's, which reach each other over the link. `pair` tells them
    /// from others on it, below [`MAX_PAIRS`].
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn edges(&self, pair: u8) -> Result<[Edge; 2]> {
        let network = |end: u8| 2 * pair.min(MAX_PAIRS - 1) + end;
        let sender = attach(self.sender_ns(), network(0))?;
        let receiver = attach(self.receiver_ns(), network(1))?;
        for (router, other) in [(self.sender_ns(), &receiver), (self.receiver_ns(), &sender)] {
            router.run(|| Netlink::open()?.add_route(LINK, host(other.network(), 0), PREFIX_LEN))??;
        }
        Ok([sender, receiver])
    }
}

impl Edge {
    fn network(&self) -> u8 {
        self.address.octets()[2]
    }
}

fn host(network: u8, number: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 253, network, number)
}

fn attach(router: &Namespace, network: u8) -> Result<Edge> {
    let namespace = Namespace::anonymous()?;
    let (address, gateway) = (host(network, 2), host(network, 1));
    // Both ends have one name, so that a router with several hosts calls them apart by number.
    let device = format!("{}{network}", DEVICE.trim_end_matches('0'));
    let route = || {
        let netlink = Netlink::open()?;
        netlink.add_veth_named(&device, DEVICE, namespace.fd().as_raw_fd())?;
        netlink.add_address(&device, IpAddr::V4(gateway), PREFIX_LEN)?;
        netlink.set_up(&device, Vec::new())?;
        fs::write(FORWARD, "1").context("write", FORWARD)
    };
    router.run(route)??;
    namespace.run(|| Netlink::open()?.set_up(DEVICE, Vec::new()))??;
    Ok::<_, Error>(Edge { namespace, address, gateway })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{LinkConfig, Shape};
    use std::net::UdpSocket;
    use std::time::Duration;

    #[test]
    fn hosts_reach_each_other_over_the_link() {
        if ccplane_testing::lacks("hosts_reach_each_other_over_the_link", crate::netns::missing()) {
            return;
        }
        let emulator = Emulator::start(&LinkConfig::symmetric(Shape::Unlimited, 5_000)).unwrap();
        let pairs = [emulator.edges(0).unwrap(), emulator.edges(1).unwrap()];
        for edges in &pairs {
            // The kernel's stack stands in for the one that is not its.
            for edge in edges {
                let settle = || {
                    let netlink = Netlink::open().unwrap();
                    netlink.add_address(DEVICE, edge.address.into(), PREFIX_LEN).unwrap();
                    netlink.add_default_route(DEVICE, edge.gateway.into()).unwrap();
                };
                edge.namespace.run(settle).unwrap();
            }
            let bind =
                |edge: &Edge| edge.namespace.run(|| UdpSocket::bind((edge.address, 0)).unwrap()).unwrap();
            let (from, to) = (bind(&edges[0]), bind(&edges[1]));
            to.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
            from.send_to(b"over", to.local_addr().unwrap()).unwrap();
            let mut buffer = [0; 8];
            assert_eq!(to.recv_from(&mut buffer).unwrap(), (4, from.local_addr().unwrap()));
        }
        let crossed = emulator.stop().unwrap().up;
        assert!(crossed.delivered_packets >= 2, "{crossed:?}");
    }
}
