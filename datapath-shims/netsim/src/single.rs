//! Events of a network that no line carries.

use crate::events::Packed;
use crate::packet::FlowIndex;

/// Bits of an event of its own below those that say its kind.
const SINGLE_BITS: u32 = 56;
/// The bits of an event of its own.
const SINGLE_MASK: u64 = (1 << SINGLE_BITS) - 1;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Single {
    ServeLink(u8),
    /// The packet held back in this place reaches its link's queue.
    Enter(u32),
    Timer {
        flow: FlowIndex,
        timer: u8,
    },
    Cross(u32),
    Wake(u64),
}

impl Packed for Single {
    #[inline]
    fn pack(self) -> u64 {
        let (kind, rest) = match self {
            Single::ServeLink(link) => (0, u64::from(link)),
            Single::Enter(place) => (1, u64::from(place)),
            Single::Timer { flow, timer } => (2, u64::from(timer) << u32::BITS | u64::from(flow)),
            Single::Cross(source) => (3, u64::from(source)),
            Single::Wake(token) => (4, token & SINGLE_MASK),
        };
        kind << SINGLE_BITS | rest
    }

    #[inline]
    fn unpack(bits: u64) -> Single {
        let rest = bits & SINGLE_MASK;
        match bits >> SINGLE_BITS {
            0 => Single::ServeLink(rest as u8),
            1 => Single::Enter(rest as u32),
            2 => Single::Timer { flow: rest as u32, timer: (rest >> u32::BITS) as u8 },
            3 => Single::Cross(rest as u32),
            _ => Single::Wake(rest),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_was_packed_comes_back(link: u8, place: u32, timer: u8, token in 0..1u64 << SINGLE_BITS) {
            for single in [
                Single::ServeLink(link),
                Single::Enter(place),
                Single::Timer { flow: place, timer },
                Single::Cross(place),
                Single::Wake(token),
            ] {
                prop_assert!(single.pack() < 1 << 63);
                prop_assert_eq!(Single::unpack(single.pack()), single);
            }
        }
    }
}
