//! Address blocks of link shells: each shell's own ends in the first /30, the rest split among the shells inside.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use crate::addresses::Addresses;
use crate::refusal::ConfigError;

/// The bits by which the prefix of an outermost part is longer than that of the whole: 127 shells side by
/// side.
const OUTERMOST_BITS: u8 = 7;
/// The bits by which the prefix of a part is longer, at most: 7 shells side by side within one, and 6 within each
/// other.
const PART_BITS: u8 = 3;
/// The longest prefix of a block: two ends and no shells inside.
const LONGEST: u8 = 30;

/// A block of 100.64.0.0/10; the same bits, after 96 others, make its IPv6 twin.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Block {
    network: u32,
    prefix_len: u8,
}

impl Block {
    /// Prefix length of a link's inside end.
    pub(crate) const END_PREFIX_LEN: u8 = 30;
    /// Shared address space (RFC 6598), where mahimahi's addresses lie too.
    pub(crate) const WHOLE: Block = Block { network: u32::from_be_bytes([100, 64, 0, 0]), prefix_len: 10 };

    pub(crate) fn prefix_len(self) -> u8 {
        self.prefix_len
    }

    /// The outside and the inside end of this block's link.
    pub(crate) fn ends(self) -> [Addresses; 2] {
        [1, 2].map(|host| {
            let v4 = Ipv4Addr::from(self.network + host);
            let [a, b, c, d] = v4.octets();
            let halves = [u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d])];
            Addresses { v4, v6: Ipv6Addr::new(0xfdcc, 0x9a6e, 1, 0, 0, 0, halves[0], halves[1]) }
        })
    }

    /// Whether an address lies in the block.
    pub(crate) fn contains(self, address: Ipv4Addr) -> bool {
        (u32::from(address) ^ self.network) >> (32 - self.prefix_len) == 0
    }

    /// The blocks that shells inside may take, beginning anywhere (`start`), so that two that look at once seldom meet.
    pub(crate) fn parts(self, start: u32) -> impl Iterator<Item = Block> {
        let bits =
            if self == Block::WHOLE { OUTERMOST_BITS } else { PART_BITS.min(LONGEST - self.prefix_len) };
        let prefix_len = self.prefix_len + bits;
        // Part 0 holds this block's own ends.
        let count = (1 << bits) - 1;
        (0..count).map(move |n| {
            let part = (start % count + n) % count + 1;
            Block { network: self.network | part << (32 - prefix_len), prefix_len }
        })
    }
}

impl std::fmt::Display for Block {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", Ipv4Addr::from(self.network), self.prefix_len)
    }
}

impl FromStr for Block {
    type Err = ConfigError;

    fn from_str(text: &str) -> Result<Block, ConfigError> {
        let refused = || ConfigError::Block { found: text.chars().take(64).collect() };
        let (network, prefix_len) = text.split_once('/').ok_or_else(refused)?;
        let network: Ipv4Addr = network.parse().map_err(|_| refused())?;
        let prefix_len: u8 = prefix_len.parse().map_err(|_| refused())?;
        let inside =
            (Block::WHOLE.prefix_len..=LONGEST).contains(&prefix_len) && Block::WHOLE.contains(network);
        let host_bits = u32::from(network).trailing_zeros() + u32::from(prefix_len);
        if inside && host_bits >= 32 {
            Ok(Block { network: network.into(), prefix_len })
        } else {
            Err(refused())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_disjoint_and_inside() {
        let outermost: Vec<Block> = Block::WHOLE.parts(7).collect();
        assert_eq!(outermost.len(), 127);
        assert_eq!(outermost[0].to_string(), "100.68.0.0/17");
        let mut block = outermost[0];
        for (depth, count) in (0..).zip([7, 7, 7, 7, 1]) {
            let parts: Vec<Block> = block.parts(depth).collect();
            assert_eq!(parts.len(), count);
            for (n, part) in parts.iter().enumerate() {
                let [outside, inside] = part.ends();
                assert!(block.contains(outside.v4) && part.contains(outside.v4) && part.contains(inside.v4));
                assert!(!parts[..n].iter().any(|other| other.contains(outside.v4)));
                assert!(!part.contains(block.ends()[1].v4));
            }
            block = parts[count / 2];
            assert_eq!(block.to_string().parse(), Ok(block));
        }
        assert_eq!(block.parts(0).count(), 0, "six shells deep is the end");
    }

    #[test]
    fn each_end_of_a_block_has_an_ipv4_and_an_ipv6_address() {
        let [outside, inside] = "100.64.64.0/18".parse::<Block>().unwrap().ends();
        assert_eq!(
            (outside.v4.to_string().as_str(), inside.v4.to_string().as_str()),
            ("100.64.64.1", "100.64.64.2")
        );
        assert_eq!(inside.v6.to_string(), "fdcc:9a6e:1::6440:4002");
    }

    #[test]
    fn foreign_blocks_are_refused() {
        for text in [
            "",
            "100.64.0.0",
            "10.0.0.0/18",
            "100.64.0.1/18",
            "100.64.0.0/9",
            "100.64.0.0/31",
            "x/18",
            "100.64.0.0/x",
        ] {
            assert!(text.parse::<Block>().is_err(), "{text}");
        }
    }
}
