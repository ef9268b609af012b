//! The share of marked packets that DCTCP (RFC 8257) answers.

use crate::sender::Acked;

/// A share of 1.
const ONE: u64 = 1 << 16;
/// Weight of a window's share in the mean: one sixteenth (RFC 8257 section 4.1).
const GAIN_SHIFT: u32 = 4;

/// Counts marks window by window.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Dctcp {
    /// Mean share of marked packets, in 2^-16.
    alpha: u64,
    packets: u64,
    marked: u64,
}

impl Dctcp {
    /// Starts as if all packets had been marked (RFC 8257 section 3.3).
    pub(crate) const fn new() -> Dctcp {
        Dctcp { alpha: ONE, packets: 0, marked: 0 }
    }

    /// Takes the packets of one ACK, with which a window ends or not. Returns the share to answer, in 2^-16, at the end of a
    /// window in which packets were marked.
    pub(crate) fn on_ack(&mut self, acked: &Acked, window_ends: bool) -> Option<u64> {
        self.packets += acked.packets();
        self.marked += acked.marked_packets;
        if !window_ends || self.packets == 0 {
            return None;
        }
        let share = self.marked * ONE / self.packets;
        self.alpha = self.alpha - (self.alpha >> GAIN_SHIFT) + (share >> GAIN_SHIFT);
        let has_marks = self.marked > 0;
        (self.packets, self.marked) = (0, 0);
        has_marks.then_some(self.alpha)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_share_of_marked_packets_is_averaged_by_windows() {
        let mut dctcp = Dctcp::new();
        let ack = |marked_packets| Acked { in_order_packets: 8, marked_packets, ..Acked::default() };
        assert_eq!(dctcp.on_ack(&ack(0), false), None);
        assert_eq!(dctcp.on_ack(&ack(0), true), None, "nothing was marked");
        // 15/16 of the first guess, then a sixteenth of a half.
        assert_eq!(dctcp.on_ack(&ack(4), true), Some(ONE * 225 / 256 + ONE / 32));
        for _ in 0..200 {
            dctcp.on_ack(&ack(2), true);
        }
        let alpha = dctcp.on_ack(&ack(2), true).unwrap();
        assert!(alpha.abs_diff(ONE / 4) < 32, "{alpha}");
    }
}
