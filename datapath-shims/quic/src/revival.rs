//! Probes of a connection whose path is back.
//!
//! QUIC's own wait twice as long each time that nobody answered (RFC 9002 section 6.2). So a connection whose path was
//! down for seconds would stay silent for as long again.

use std::time::{Duration, Instant};

/// A peer heard within this time, or two round trips, has missed nothing: the next of QUIC's own probes is no further
/// away.
pub(crate) const SILENCE: Duration = Duration::from_millis(200);
/// Time between the first two probes; it doubles. A path may be up before its routes, neighbours and switches are.
const FIRST_GAP: Duration = Duration::from_millis(50);
/// Probes without an answer before QUIC's own take over again.
const PROBES: u32 = 7;

/// Unanswered sends from which on the peer counts as silent.
///
/// An acknowledgement needs no answer, and a keep-alive after it is no more than one send.
const SENDS: u32 = 3;

/// Packets sent since the peer was last heard.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Unanswered {
    first: Instant,
    last: Instant,
    sends: u32,
}

impl Unanswered {
    /// Counts a packet that leaves after these.
    pub(crate) fn and(before: Option<Unanswered>, now: Instant) -> Unanswered {
        match before {
            Some(before) => Unanswered { last: now, sends: before.sends.saturating_add(1), ..before },
            None => Unanswered { first: now, last: now, sends: 1 },
        }
    }

    /// Whether the peer may have missed something by now, on a path of this round trip.
    pub(crate) fn is_long(&self, now: Instant, rtt: Duration) -> bool {
        now.saturating_duration_since(self.first) >= SILENCE.max(2 * rtt)
    }

    /// Whether the peer was probed by QUIC: what is heard of it now follows QUIC's own probes.
    pub(crate) fn was_probed(&self, rtt: Duration) -> bool {
        self.sends >= SENDS && self.is_long(self.last, rtt)
    }
}

/// The probes of one connection, until one is answered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Revival {
    at: Instant,
    gap: Duration,
    left: u32,
    /// When the first of them was sent.
    asked: Option<Instant>,
}

impl Revival {
    /// Makes probes of which the first is due now.
    pub(crate) fn new(now: Instant) -> Revival {
        Revival { at: now, gap: FIRST_GAP, left: PROBES, asked: None }
    }

    /// When the next probe is due.
    pub(crate) fn at(&self) -> Instant {
        self.at
    }

    /// Counts a probe that leaves now; returns the remaining ones.
    pub(crate) fn after_one(self, now: Instant) -> Option<Revival> {
        let (left, asked) = (self.left - 1, self.asked.or(Some(now)));
        (left > 0).then_some(Revival { at: now + self.gap, gap: 2 * self.gap, left, asked })
    }

    /// Whether a packet heard now may be an answer: packets that waited in queues for the path arrive sooner than one
    /// can.
    pub(crate) fn is_answered(&self, now: Instant, rtt: Duration) -> bool {
        self.asked.is_some_and(|asked| now >= asked + rtt / 2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_is_silent_only_if_several_sends_went_unanswered() {
        let (start, rtt) = (Instant::now(), Duration::from_millis(20));
        let sent_at = |at_ms: &[u64]| {
            let at = |ms: &u64| start + Duration::from_millis(*ms);
            at_ms.iter().map(at).fold(None, |before, at| Some(Unanswered::and(before, at))).unwrap()
        };
        let far = Duration::from_millis(300);
        let probed = sent_at(&[0, 60, 180, 420]);
        assert!(probed.was_probed(rtt) && !probed.was_probed(far));
        assert!(!sent_at(&[0, 0, 60, 180]).was_probed(rtt), "not for long");
        assert!(!sent_at(&[0, 3000]).was_probed(rtt), "an ACK, and a sign of life");
        let later = start + Duration::from_millis(250);
        assert!(sent_at(&[0]).is_long(later, rtt) && !sent_at(&[0]).is_long(later, far));
        assert!(!sent_at(&[100]).is_long(later, rtt));
    }

    #[test]
    fn gaps_between_probes_double_and_probes_end() {
        let start = Instant::now();
        let (mut revival, mut at_ms) = (Some(Revival::new(start)), Vec::new());
        while let Some(next) = revival {
            at_ms.push((next.at() - start).as_millis());
            revival = next.after_one(next.at());
        }
        assert_eq!(at_ms, [0, 50, 150, 350, 750, 1550, 3150]);
    }

    #[test]
    fn a_packet_sooner_than_a_round_trip_is_no_answer() {
        let (start, rtt) = (Instant::now(), Duration::from_millis(20));
        let revival = Revival::new(start);
        assert!(!revival.is_answered(start + 9 * rtt, rtt), "nothing was asked");
        let asked = revival.after_one(start).unwrap();
        assert!(!asked.is_answered(start + rtt / 4, rtt) && asked.is_answered(start + rtt, rtt));
        let again = asked.after_one(start + 3 * rtt).unwrap();
        assert!(again.is_answered(start + 3 * rtt, rtt), "the first question was");
    }
}
