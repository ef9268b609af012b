//! Addresses as CCP's protocol has them: IPv4 only.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

/// The prefix of the numbers that stand for IPv6 addresses: 240.0.0.0/4, which no host has (RFC 1112, section 4).
const STAND_IN: u32 = 0xf000_0000;

/// Returns an address that the protocol can carry. An IPv6 address becomes a number in 240.0.0.0/4, the same one each time, so that
/// an algorithm still tells paths apart.
pub(crate) fn as_ipv4(address: SocketAddr) -> SocketAddr {
    let ip = match address.ip().to_canonical() {
        IpAddr::V4(ip) => ip,
        IpAddr::V6(ip) => Ipv4Addr::from_bits(STAND_IN | (fnv1a(&ip.octets()) & !STAND_IN)),
    };
    SocketAddr::new(IpAddr::V4(ip), address.port())
}

/// The FNV-1a hash, 32 bits.
fn fnv1a(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ipv4_addresses_stay_and_ipv6_addresses_become_numbers_that_no_host_has() {
        let of = |text: &str| as_ipv4(text.parse().unwrap()).to_string();
        assert_eq!(of("192.0.2.1:80"), "192.0.2.1:80");
        assert_eq!(of("[::ffff:192.0.2.1]:80"), "192.0.2.1:80");
        let one = as_ipv4("[2001:db8::1]:443".parse().unwrap());
        let two = as_ipv4("[2001:db8::2]:443".parse().unwrap());
        assert_ne!(one, two);
        for address in [one, two] {
            let IpAddr::V4(ip) = address.ip() else { panic!("{address}") };
            assert_eq!((ip.octets()[0] >> 4, address.port()), (15, 443));
        }
    }

    #[test]
    fn the_hash_is_fnv_1a() {
        // Test vectors of the FNV draft (draft-eastlake-fnv, appendix C).
        assert_eq!((fnv1a(b""), fnv1a(b"a"), fnv1a(b"foobar")), (0x811c_9dc5, 0xe40c_292c, 0xbf9c_f968));
    }
}
