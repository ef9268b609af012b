//! Ethernet addresses as a type.

use std::fmt;
use std::net::Ipv6Addr;
use std::str::FromStr;

/// An Ethernet (MAC) address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Mac(pub [u8; 6]);

impl Mac {
    /// The broadcast address, which reaches all stations.
    pub const BROADCAST: Mac = Mac([0xff; 6]);

    /// The destination of a multicast group's IPv6 packets (RFC 2464, section 7).
    pub fn of_group(group: Ipv6Addr) -> Mac {
        let [.., a, b, c, d] = group.octets();
        Mac([0x33, 0x33, a, b, c, d])
    }

    /// Whether the address belongs to a single station.
    pub fn is_unicast(self) -> bool {
        self.0[0] & 1 == 0 && self.0 != [0; 6]
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

/// The text is not an Ethernet address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{found:?} is no Ethernet address; one looks like 02:00:00:00:00:01")]
pub struct MacError {
    found: String,
}

impl FromStr for Mac {
    type Err = MacError;

    fn from_str(text: &str) -> Result<Mac, MacError> {
        let refused = || MacError { found: text.to_owned() };
        let mut mac = [0; 6];
        let mut bytes = text.split(':');
        for byte in &mut mac {
            let two = bytes.next().filter(|two| two.len() == 2 && two.bytes().all(|b| b.is_ascii_hexdigit()));
            *byte = u8::from_str_radix(two.ok_or_else(refused)?, 16).map_err(|_| refused())?;
        }
        bytes.next().is_none().then_some(Mac(mac)).ok_or_else(refused)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_goes_both_ways() {
        let mac = Mac([2, 0, 0xab, 0, 0, 0xff]);
        assert_eq!(mac.to_string().parse(), Ok(mac));
        for wrong in [
            "",
            "02:00:00:00:00",
            "02:00:00:00:00:00:00",
            "2:0:0:0:0:1",
            "+2:00:00:00:00:00",
            "gg:00:00:00:00:00",
        ] {
            assert!(wrong.parse::<Mac>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn groups_have_their_own_addresses() {
        let group = "ff02::1:ff28:9c5a".parse().unwrap();
        assert_eq!(Mac::of_group(group), Mac([0x33, 0x33, 0xff, 0x28, 0x9c, 0x5a]));
        assert!(
            !Mac::of_group(group).is_unicast() && !Mac::BROADCAST.is_unicast() && !Mac([0; 6]).is_unicast()
        );
    }
}
