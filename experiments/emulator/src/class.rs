//! The priority that a packet's header asks for.

/// The priority of packets that ask for none, which is served last.
pub(crate) const LAST: u8 = 7;

/// Returns the priority of an IP packet, 0 first: 7 less its class selector (RFC 2474), the upper three bits of the DSCP.
pub(crate) fn priority(packet: &[u8]) -> u8 {
    let traffic_class = match packet {
        [first, second, ..] if first >> 4 == 4 => *second,
        [first, second, ..] if first >> 4 == 6 => first << 4 | second >> 4,
        _ => 0,
    };
    LAST - (traffic_class >> 5)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_families_have_their_class() {
        // RFC 2474: CS7 is 111000, CS3 011000; RFC 3246: expedited forwarding 101110. Two bits of ECN follow.
        for (dscp, expected) in [(0b111000, 0), (0b011000, 4), (0b101110, 2), (0, 7)] {
            let class: u8 = dscp << 2 | 0b11;
            assert_eq!(priority(&[0x45, class, 0, 20]), expected);
            assert_eq!(priority(&[0x60 | class >> 4, class << 4 | 0xf, 0, 0]), expected);
        }
        for no_ip in [&[][..], &[0x45], &[0xff, 0xff]] {
            assert_eq!(priority(no_ip), LAST);
        }
    }
}
