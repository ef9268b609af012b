//! Addresses of the two ends of a link.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// An end's addresses; the same in every emulator, whose namespaces see nothing of each other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Addresses {
    /// An address in a network of its own, a /30.
    pub v4: Ipv4Addr,
    /// Unique local (RFC 4193), in a /126.
    pub v6: Ipv6Addr,
}

impl Addresses {
    pub(crate) const SENDER: Addresses =
        Addresses { v4: Ipv4Addr::new(10, 99, 0, 1), v6: Ipv6Addr::new(0xfdcc, 0x9a6e, 0, 0, 0, 0, 0, 1) };
    pub(crate) const RECEIVER: Addresses =
        Addresses { v4: Ipv4Addr::new(10, 99, 0, 2), v6: Ipv6Addr::new(0xfdcc, 0x9a6e, 0, 0, 0, 0, 0, 2) };

    /// With the prefix length of the IPv4 address, and as many host bits in the IPv6 one.
    pub(crate) fn with_prefixes(self, prefix_len: u8) -> [(IpAddr, u8); 2] {
        [(self.v4.into(), prefix_len), (self.v6.into(), prefix_len + 96)]
    }
}
