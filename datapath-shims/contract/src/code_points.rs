//! Code points (DSCP, RFC 2474) by which packets show their priority to the network.

use ccplane_program::ir::MAX_PRIORITY;

/// The number of priorities that programs can set.
pub const PRIORITIES: usize = MAX_PRIORITY as usize + 1;
/// The largest code point.
pub const MAX_DSCP: u8 = 63;

/// The code point of each priority, of which 0 is served first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CodePoints([u8; PRIORITIES]);

impl Default for CodePoints {
    /// Expedited forwarding (RFC 3246), the four classes of assured forwarding (RFC 2597), and best effort twice. The last priority gets
    /// the class selector that many networks serve behind best effort.
    fn default() -> CodePoints {
        CodePoints([46, 34, 26, 18, 10, 0, 0, 8])
    }
}

impl CodePoints {
    /// Makes a table; `None` where a code point is above [`MAX_DSCP`].
    pub fn new(of: [u8; PRIORITIES]) -> Option<CodePoints> {
        of.iter().all(|dscp| *dscp <= MAX_DSCP).then_some(CodePoints(of))
    }

    /// Returns the code point of a priority; one above [`MAX_PRIORITY`] has the last one's.
    pub fn of(&self, priority: u8) -> u8 {
        self.0[usize::from(priority).min(PRIORITIES - 1)]
    }
}

/// Returns the traffic class (IPv4's TOS) of a code point and two bits of ECN.
pub const fn traffic_class(dscp: u8, ecn: u8) -> u8 {
    (dscp & MAX_DSCP) << 2 | ecn & 3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_holds_code_points_only() {
        let table = CodePoints::new([63, 1, 2, 3, 4, 5, 6, 7]).unwrap();
        assert_eq!((table.of(0), table.of(7), table.of(200)), (63, 7, 7));
        assert_eq!(CodePoints::new([64, 0, 0, 0, 0, 0, 0, 0]), None);
    }

    #[test]
    fn a_class_has_the_code_point_above_the_marks() {
        assert_eq!((traffic_class(46, 0b10), traffic_class(0, 3), traffic_class(8, 0)), (186, 3, 32));
        assert_eq!(traffic_class(u8::MAX, u8::MAX), u8::MAX);
    }
}
