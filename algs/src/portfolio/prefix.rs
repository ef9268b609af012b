//! Destinations that share what is known.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

/// Bits of an IPv4 prefix.
const V4_BITS: u32 = 24;
/// Bits of an IPv6 prefix.
const V6_BITS: u32 = 48;

/// A destination prefix: /24 or /48.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Prefix {
    V4(u32),
    V6(u128),
}

impl Prefix {
    /// The prefix of an address; IPv4 addresses in IPv6's clothes are IPv4's.
    pub(super) fn of(address: IpAddr) -> Prefix {
        match address.to_canonical() {
            IpAddr::V4(a) => Prefix::V4(a.to_bits() & (u32::MAX << (u32::BITS - V4_BITS))),
            IpAddr::V6(a) => Prefix::V6(a.to_bits() & (u128::MAX << (u128::BITS - V6_BITS))),
        }
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Prefix::V4(bits) => write!(f, "{}/{V4_BITS}", std::net::Ipv4Addr::from_bits(*bits)),
            Prefix::V6(bits) => write!(f, "{}/{V6_BITS}", std::net::Ipv6Addr::from_bits(*bits)),
        }
    }
}

impl FromStr for Prefix {
    type Err = ();

    /// Reads a prefix as it is displayed, and in no other way.
    fn from_str(text: &str) -> Result<Prefix, ()> {
        let (address, _) = text.split_once('/').ok_or(())?;
        let prefix = Prefix::of(address.parse().map_err(|_| ())?);
        if prefix.to_string() == text { Ok(prefix) } else { Err(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_one_network_share_a_prefix() {
        let of = |text: &str| Prefix::of(text.parse().unwrap());
        assert_eq!(of("192.0.2.1"), of("192.0.2.254"));
        assert_eq!(of("::ffff:192.0.2.1"), of("192.0.2.9"));
        assert_ne!(of("192.0.2.1"), of("192.0.3.1"));
        assert_eq!(of("2001:db8:1:2::3"), of("2001:db8:1:9::4"));
        assert_ne!(of("2001:db8:1::"), of("2001:db8:2::"));
        for (address, text) in [("192.0.2.7", "192.0.2.0/24"), ("2001:db8:1:2::3", "2001:db8:1::/48")] {
            assert_eq!(of(address).to_string(), text);
            assert_eq!(text.parse(), Ok(of(address)));
        }
        for wrong in ["192.0.2.1/24", "192.0.2.0/25", "192.0.2.0", "x/24", ""] {
            assert_eq!(wrong.parse::<Prefix>(), Err(()), "{wrong}");
        }
    }
}
