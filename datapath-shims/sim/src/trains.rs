//! Segments are handed over as Linux's TCP does it: in trains, for segmentation offload. All of it is in
//! net/ipv4/tcp_output.c.

use ccplane_contract::{PAIRED_BYTES_PER_S, PAIRED_QUEUE_SEGMENTS};

const NS_PER_S: u64 = 1_000_000_000;
const NS_PER_MS: u64 = 1_000_000;
/// `sk_pacing_shift`'s default: a train is what leaves in about a millisecond.
const PACING_SHIFT: u32 = 10;
/// Segments of the smallest train (`tcp_min_tso_segs`' default).
pub(crate) const PAIR: u64 = 2;
/// `tcp_tso_rtt_log`'s default: where the RTT is short, trains are long.
const TSO_RTT_LOG: u32 = 9;
/// `sk_gso_max_size` of a device that takes IPv4 trains of 64 KiB.
const GSO_MAX_BYTES: u64 = 65_536;
/// Share of the window that is not deferred (`tcp_tso_win_divisor`'s default).
const WIN_DIVISOR: u64 = 3;
/// Segments at a flow's start that are not paced.
const UNPACED_SEGMENTS: u64 = 10;

/// Least segments of a steered flow's train, as `min_tso_segs` of our BPF datapath (`tcp.rs`) has them.
pub(crate) fn least_segments(bytes_per_s: u64, queue_us: u64, mss_bytes: u64) -> u64 {
    let queued_bytes = bytes_per_s.saturating_mul(queue_us) / 1_000_000;
    let paired = bytes_per_s >= u64::from(PAIRED_BYTES_PER_S)
        || queue_us > 0 && queued_bytes >= u64::from(PAIRED_QUEUE_SEGMENTS) * mss_bytes;
    if paired { PAIR } else { 1 }
}

/// Most segments of a train, and no fewer than `least`, at this rate in bytes a second (`tcp_tso_autosize`).
pub(crate) fn most_segments(bytes_per_s: u64, min_rtt_us: u64, mss_bytes: u64, least: u64) -> u64 {
    let further = match min_rtt_us >> TSO_RTT_LOG {
        shift @ 0..32 => GSO_MAX_BYTES >> shift,
        _ => 0,
    };
    let bytes = ((bytes_per_s >> PACING_SHIFT) + further).min(GSO_MAX_BYTES);
    (bytes / mss_bytes.max(1)).max(least)
}

/// Segments that a train may have where so many are in flight (`tcp_cwnd_test`): half of the window at most.
pub(crate) fn quota(window: u64, in_flight: u64) -> u64 {
    window.saturating_sub(in_flight).min((window / 2).max(1))
}

/// The sender's state when it may wait for a fuller train.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Situation {
    pub(crate) now_ns: u64,
    pub(crate) window: u64,
    pub(crate) in_flight: u64,
    pub(crate) most_segments: u64,
    pub(crate) in_recovery: bool,
    /// When the oldest segment in flight left.
    pub(crate) oldest_sent_ns: Option<u64>,
    pub(crate) srtt_ns: u64,
}

/// The times at which trains leave.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Trains {
    /// `tcp_wstamp_ns`: when the last train left; a paced flow's next one leaves no sooner.
    stamp_ns: u64,
    sent_segments: u64,
}

impl Trains {
    /// When the next train of a paced flow may leave.
    pub(crate) fn due_ns(&self) -> u64 {
        self.stamp_ns
    }

    /// Whether it waits for the next ACK, which lets more leave at once (`tcp_tso_should_defer`).
    pub(crate) fn defers(&self, s: &Situation) -> bool {
        let room = s.window.saturating_sub(s.in_flight);
        let recent = s.now_ns <= self.stamp_ns + NS_PER_MS;
        if s.in_recovery || !recent || room >= s.most_segments || room * WIN_DIVISOR >= s.window {
            return false;
        }
        let Some(oldest_ns) = s.oldest_sent_ns else { return false };
        let until_ack_ns = (oldest_ns + s.srtt_ns).saturating_sub(s.now_ns);
        until_ack_ns <= (s.srtt_ns / 2).min(NS_PER_MS)
    }

    /// A train of so many segments and bytes leaves, at this pacing rate or, at 0, unpaced (`tcp_update_skb_after_send`).
    pub(crate) fn leave(&mut self, now_ns: u64, segments: u64, bytes: u64, bytes_per_s: u64) {
        let late_ns = now_ns.saturating_sub(self.stamp_ns);
        self.stamp_ns = self.stamp_ns.max(now_ns);
        self.sent_segments += segments;
        if bytes_per_s > 0 && self.sent_segments >= UNPACED_SEGMENTS {
            let lasts_ns = bytes * NS_PER_S / bytes_per_s;
            // A timer that fired late is made up for.
            self.stamp_ns += lasts_ns - late_ns.min(lasts_ns / 2);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MSS: u64 = 1448;

    #[test]
    fn trains_are_a_millisecond_long_and_two_segments_at_least() {
        let segments = |mbit: u64, rtt_ms: u64| most_segments(mbit * 125_000, rtt_ms * 1000, MSS, PAIR);
        // 12 Mb/s: 1464 bytes in 1/1024 s.
        assert_eq!((segments(12, 40), segments(48, 40), segments(1000, 40)), (2, 4, 45));
        // 4 ms are 7 times 512 us: 512 bytes more. Below 512 us, all of 64 KiB.
        assert_eq!((segments(12, 4), segments(12, 1), segments(12, 0)), (2, 23, 45));
    }

    #[test]
    fn steered_flows_leave_in_pairs_where_the_rate_or_the_queue_has_room() {
        let least = |mbit: u64, queue_ms: u64| least_segments(mbit * 125_000, queue_ms * 1000, MSS);
        // 12 Mb/s: 4 segments are 3.9 ms.
        assert_eq!([(12, 0), (12, 3), (12, 4), (23, 0), (24, 0)].map(|(r, q)| least(r, q)), [1, 1, 2, 1, 2]);
        assert_eq!(most_segments(1_500_000, 40_000, MSS, 1), 1);
    }

    #[test]
    fn half_of_a_window_leaves_at_once() {
        assert_eq!([(10, 0), (10, 4), (10, 7), (1, 0), (10, 12)].map(|(w, f)| quota(w, f)), [5, 5, 3, 1, 0]);
    }

    #[test]
    fn pacing_counts_from_train_to_train_and_makes_up_for_half_of_one() {
        let mut trains = Trains { sent_segments: 10, ..Trains::default() };
        // A byte a microsecond: 2 ms a train.
        trains.leave(5 * NS_PER_MS, 2, 2000, 1_000_000);
        assert_eq!(trains.due_ns(), 6 * NS_PER_MS, "after an idle time, half");
        trains.leave(6 * NS_PER_MS, 2, 2000, 1_000_000);
        assert_eq!(trains.due_ns(), 8 * NS_PER_MS);
        trains.leave(8 * NS_PER_MS + 300_000, 2, 2000, 1_000_000);
        assert_eq!(trains.due_ns(), 10 * NS_PER_MS, "0.3 ms late");
        let mut first = Trains::default();
        first.leave(NS_PER_MS, 9, 9000, 1_000_000);
        assert_eq!(first.due_ns(), NS_PER_MS, "the first ten are not paced");
    }

    #[test]
    fn what_an_ack_will_complete_soon_waits() {
        let trains = Trains { stamp_ns: 50 * NS_PER_MS, ..Trains::default() };
        let soon = Situation {
            now_ns: 50 * NS_PER_MS,
            window: 40,
            in_flight: 39,
            most_segments: 2,
            in_recovery: false,
            oldest_sent_ns: Some(20 * NS_PER_MS + 500_000),
            srtt_ns: 30 * NS_PER_MS,
        };
        assert!(trains.defers(&soon));
        assert!(!trains.defers(&Situation { in_flight: 38, ..soon }), "a whole train");
        assert!(!trains.defers(&Situation { window: 3, in_flight: 2, ..soon }), "a third of the window");
        assert!(!trains.defers(&Situation { in_recovery: true, ..soon }));
        assert!(
            !trains.defers(&Situation { now_ns: 51 * NS_PER_MS + 1, ..soon }),
            "the last write was long ago"
        );
        assert!(!trains.defers(&Situation { oldest_sent_ns: Some(22 * NS_PER_MS), ..soon }), "not soon");
    }
}
