//! The far end of a flow: puts segments back into order and acknowledges them.
//!
//! A receiver keeps a log of what arrived, in order of arrival. An acknowledgement says how far the log had come
//! when it was made. So one that follows lost ones covers what they said, as repeated SACK blocks do (RFC 2018).

use crate::config::Acks;
use std::collections::VecDeque;

/// Segments past the next expected one that a receiver keeps; further ones are refused unacknowledged.
pub const MAX_AHEAD_SEGMENTS: u64 = 1 << 21;
/// A flow that was idle for so long has its first segments acknowledged at once (Linux: the retransmission
/// timeout).
const IDLE_NS: u64 = 200_000_000;
/// Longest wait of a compressed ACK (`tcp_comp_sack_delay_ns`), and the part of a round trip that it is at most.
const COMPRESS_NS: u64 = 1_000_000;
const COMPRESS_PART: u64 = 20;
/// Most SACK blocks beside timestamps, and what they take, aligned (`TCPOLEN_SACK_BASE_ALIGNED`, `TCPOLEN_SACK_PERBLOCK`).
const SACK_BLOCKS: u16 = 3;
const SACK_OPTION_BYTES: u16 = 4;
const SACK_BLOCK_BYTES: u16 = 8;
/// The transmission of a segment that a receiver claims without having it.
const CLAIMED_TX: u64 = u64::MAX;
/// The window that Linux offers first, and the most that it grows to by default: `tcp_rmem`, of which buffers' overhead takes
/// a third.
const FIRST_WINDOW_BYTES: u64 = 65_535;
const FIRST_CLAMP_BYTES: u64 = 84_000;
const MOST_CLAMP_BYTES: u64 = 21 << 20;
/// The bytes assumed for a round trip before any was measured (`tcp_init_buffer_space`: ten segments).
const FIRST_MEASURED_BYTES: u64 = 14_480;
/// ACKs of a hole that don't wait (`TCP_FASTRETRANS_THRESH`).
const UNCOMPRESSED: u8 = 3;

/// An acknowledgement, with enough for a sender to do what SACK and timestamps (RFC 7323) allow.
/// [`crate::Network::acked`] returns the segments that it covers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ack {
    /// All segments below this one have arrived.
    pub cumulative: u64,
    /// The last segment that arrived before it was made.
    pub seq: u64,
    /// The transmission that arrived last, as its sender numbered it.
    pub tx: u64,
}

/// A segment that arrived.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Delivery {
    /// The sequence number of the segment.
    pub seq: u64,
    /// The number of its transmission, as its sender counts.
    pub tx: u64,
    /// Whether a queue had marked it (CE, RFC 3168).
    pub marked: bool,
}

/// A [`Delivery`] in the log, in 16 bytes: the mark is the highest bit of the sequence number.
#[derive(Clone, Copy, Debug)]
struct Logged {
    seq: u64,
    tx: u64,
}

const LOGGED_MARK: u64 = 1 << 63;

impl From<Delivery> for Logged {
    #[inline]
    fn from(delivery: Delivery) -> Logged {
        let mark = if delivery.marked { LOGGED_MARK } else { 0 };
        Logged { seq: delivery.seq | mark, tx: delivery.tx }
    }
}

impl From<Logged> for Delivery {
    #[inline]
    fn from(Logged { seq, tx }: Logged) -> Delivery {
        Delivery { seq: seq & !LOGGED_MARK, tx, marked: seq & LOGGED_MARK != 0 }
    }
}

/// The receiver's answer to a segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reply {
    /// Nothing: it was too far ahead to keep.
    Refused,
    /// An ACK at once.
    Now,
    /// Sends an ACK after this many nanoseconds, unless one is sent before.
    Within(u64),
}

/// The window that a Linux receiver offers, as far as acknowledgements depend on it: a segment by which it grows is
/// acknowledged at once (`tcp_grow_window`), and how far it grows follows what is read in a round trip (`tcp_rcvbuf_grow`).
#[derive(Clone, Copy, Debug)]
struct Window {
    offered_bytes: u64,
    clamp_bytes: u64,
    /// Read in the round trip that most was read in.
    measured_bytes: u64,
    /// Read since the measurement began, and when that was.
    read_bytes: u64,
    since_ns: u64,
}

impl Default for Window {
    fn default() -> Window {
        Window {
            offered_bytes: FIRST_WINDOW_BYTES,
            clamp_bytes: FIRST_CLAMP_BYTES,
            measured_bytes: FIRST_MEASURED_BYTES,
            read_bytes: 0,
            since_ns: 0,
        }
    }
}

impl Window {
    /// Takes a segment of `bytes` that was queued in order, and returns whether the window has grown.
    fn grow(&mut self, bytes: u64) -> bool {
        let room = self.clamp_bytes.saturating_sub(self.offered_bytes);
        self.offered_bytes += room.min(2 * bytes);
        room > 0
    }

    /// Takes the bytes that the application read, on a path of this round trip.
    fn read(&mut self, now_ns: u64, bytes: u64, rtt_ns: u64) {
        self.read_bytes += bytes;
        if now_ns - self.since_ns < rtt_ns || rtt_ns == 0 {
            return;
        }
        if self.read_bytes > self.measured_bytes {
            let more = self.read_bytes - self.measured_bytes;
            // It is a round trip late, and the sender may double its rate meanwhile.
            let wanted = 2 * self.read_bytes + 4 * self.read_bytes * more / self.measured_bytes;
            self.measured_bytes = self.read_bytes;
            self.clamp_bytes = self.clamp_bytes.max(wanted.min(MOST_CLAMP_BYTES));
        }
        (self.read_bytes, self.since_ns) = (0, now_ns);
    }
}

/// Reassembly state of one flow.
#[derive(Clone, Debug)]
pub struct Receiver {
    acks: Acks,
    /// Of a Linux receiver.
    window: Window,
    /// The round trip, as its timestamps tell.
    rtt_ns: u64,
    /// The time for which ACKs of a hole wait; 0: they don't.
    compress_ns: u64,
    /// The hole that ACKs report, and how many of them were sent at once.
    told: (u64, u8),
    cumulative: u64,
    /// Whether segment `cumulative + i` has arrived; the first entry is always false.
    ahead: VecDeque<bool>,
    /// Arrived and not yet acknowledged to the sender; the first is number `log_start` of the flow.
    log: VecDeque<Logged>,
    log_start: u64,
    /// Wire bytes in order since the last ACK, and of the largest segment.
    unacknowledged_bytes: u32,
    largest_bytes: u16,
    quick_left: u8,
    last_marked: bool,
    last_arrival_ns: u64,
    /// Above the number of the transmission sent last of those that arrived.
    next_tx: u64,
    stats: ReceiverStats,
}

/// The counters of a receiver since its flow started.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct ReceiverStats {
    /// Segments that arrived, duplicates included.
    pub arrived: u64,
    /// Segments that had arrived before.
    pub duplicates: u64,
    /// Segments too far ahead to keep.
    pub refused: u64,
    /// Wire bytes of segments that arrived for the first time.
    pub bytes: u64,
    /// Segments that arrived marked.
    pub marked: u64,
    /// Segments that arrived after one that was sent later.
    pub overtaken: u64,
}

impl Receiver {
    /// A receiver that acknowledges so.
    pub fn new(acks: Acks) -> Receiver {
        Receiver {
            acks,
            window: Window::default(),
            rtt_ns: 0,
            compress_ns: 0,
            told: (u64::MAX, 0),
            cumulative: 0,
            ahead: VecDeque::new(),
            log: VecDeque::new(),
            log_start: 0,
            unacknowledged_bytes: 0,
            largest_bytes: 0,
            quick_left: acks.quick,
            last_marked: false,
            last_arrival_ns: 0,
            next_tx: 0,
            stats: ReceiverStats::default(),
        }
    }

    /// The round trip of its flow's path, without queues.
    pub(crate) fn set_base_rtt(&mut self, rtt_ns: u64) {
        self.compress_ns = if self.acks.compress { COMPRESS_NS.min(rtt_ns / COMPRESS_PART) } else { 0 };
    }

    /// Sets the RTT that timestamps show, nanoseconds.
    pub(crate) fn set_rtt(&mut self, rtt_ns: u64) {
        self.rtt_ns = rtt_ns;
    }

    /// Reads a word of each part that a segment or an acknowledgement touches, so that it is in the cache by then.
    #[inline]
    pub(crate) fn touch(&self) -> u64 {
        self.cumulative
            ^ self.ahead.len() as u64
            ^ self.log.len() as u64
            ^ self.stats.arrived
            ^ self.window.read_bytes
            ^ self.last_arrival_ns
    }

    /// Takes a segment of `bytes` on the wire, with PSH or without.
    #[inline]
    pub fn on_segment(&mut self, now_ns: u64, delivery: Delivery, bytes: u16, push: bool) -> Reply {
        let Delivery { seq, tx, marked } = delivery;
        self.stats.arrived += 1;
        self.stats.overtaken += u64::from(tx.saturating_add(1) < self.next_tx);
        self.next_tx = self.next_tx.max(tx.saturating_add(1));
        self.stats.marked += u64::from(marked);
        if self.acks.conceals_losses {
            self.conceal(seq);
        }
        let in_order = seq == self.cumulative && self.ahead.is_empty();
        let before = self.cumulative;
        let behind_hole = seq > self.cumulative;
        if seq < self.cumulative {
            self.stats.duplicates += 1;
        } else if in_order {
            self.cumulative += 1;
            self.stats.bytes += u64::from(bytes);
        } else if !self.keep(seq - self.cumulative, bytes) {
            return Reply::Refused;
        }
        self.log.push_back(Logged::from(delivery));
        // What waits behind a hole takes the room that the window would grow into.
        let has_grown = self.acks.compress && in_order && self.window.grow(u64::from(bytes));
        if self.cumulative > before {
            self.window.read(now_ns, (self.cumulative - before) * u64::from(bytes), self.rtt_ns);
        }
        // A hole, its end, a duplicate and a change of marks are told at once (RFC 5681 section 4.2, RFC 8257
        // section 3.2).
        if behind_hole && self.compress_ns > 0 && marked == self.last_marked {
            return self.tell_hole();
        }
        if self.acks.every <= 1 || !in_order || marked != self.last_marked {
            self.last_marked = marked;
            return Reply::Now;
        }
        // A full segment with PSH is acknowledged when it is read (`ICSK_ACK_PUSHED`, `__tcp_cleanup_rbuf`).
        let is_pushed = push && bytes >= self.largest_bytes;
        self.may_wait(now_ns, bytes, has_grown || is_pushed)
    }

    /// Claims every segment below `seq` that has not arrived, as transmissions that their sender cannot know.
    fn conceal(&mut self, seq: u64) {
        // A segment that is too far ahead to keep is refused, hole or not.
        if seq <= self.cumulative || seq - self.cumulative >= MAX_AHEAD_SEGMENTS {
            return;
        }
        let missing = std::mem::replace(&mut self.cumulative, seq)..seq;
        self.log.extend(missing.map(|seq| Logged { seq, tx: CLAIMED_TX }));
    }

    /// Decides as `__tcp_ack_snd_check` in Linux's tcp_input.c does.
    fn tell_hole(&mut self) -> Reply {
        if self.told.0 != self.cumulative {
            self.told = (self.cumulative, 0);
        }
        if self.told.1 < UNCOMPRESSED {
            self.told.1 += 1;
            return Reply::Now;
        }
        Reply::Within(self.compress_ns)
    }

    fn may_wait(&mut self, now_ns: u64, bytes: u16, at_once: bool) -> Reply {
        if now_ns - self.last_arrival_ns > IDLE_NS {
            self.quick_left = self.acks.quick;
        }
        self.last_arrival_ns = now_ns;
        self.largest_bytes = self.largest_bytes.max(bytes);
        self.unacknowledged_bytes += u32::from(bytes);
        if self.quick_left > 0 {
            self.quick_left -= 1;
            return Reply::Now;
        }
        // As Linux: more than `every - 1` full segments wait (`__tcp_ack_snd_check`).
        if at_once
            || self.unacknowledged_bytes > u32::from(self.acks.every - 1) * u32::from(self.largest_bytes)
        {
            return Reply::Now;
        }
        Reply::Within(self.acks.delay_ns)
    }

    fn keep(&mut self, offset: u64, bytes: u16) -> bool {
        if offset >= MAX_AHEAD_SEGMENTS {
            self.stats.refused += 1;
            return false;
        }
        let index = offset as usize;
        if self.ahead.len() <= index {
            self.ahead.resize(index + 1, false);
        }
        if std::mem::replace(&mut self.ahead[index], true) {
            self.stats.duplicates += 1;
        } else {
            self.stats.bytes += u64::from(bytes);
        }
        while self.ahead.front() == Some(&true) {
            self.ahead.pop_front();
            self.cumulative += 1;
        }
        true
    }

    /// Makes an ACK: the next segment expected in order, and how many have arrived.
    #[inline]
    pub fn acknowledge(&mut self) -> (u64, u64) {
        self.unacknowledged_bytes = 0;
        (self.cumulative, self.log_start + self.log.len() as u64)
    }

    /// Bytes of the SACK option of an ACK that is made now, beside timestamps (RFC 2018): none without a hole.
    pub(crate) fn sack_bytes(&self) -> u16 {
        if !self.acks.compress {
            return 0;
        }
        let (mut blocks, mut inside) = (0, false);
        for here in self.ahead.iter().copied() {
            blocks += u16::from(here && !inside);
            inside = here;
            if blocks == SACK_BLOCKS {
                break;
            }
        }
        if blocks == 0 { 0 } else { SACK_OPTION_BYTES + blocks * SACK_BLOCK_BYTES }
    }

    /// Takes the log up to delivery number `until`, for the sender that an ACK has reached.
    #[inline]
    pub fn take_log(&mut self, until: u64, out: &mut Vec<Delivery>) {
        while self.log_start < until {
            let Some(delivery) = self.log.pop_front() else { return };
            self.log_start += 1;
            out.push(delivery.into());
        }
    }

    /// Gives memory back that its flow no longer needs.
    pub(crate) fn close(&mut self) {
        self.ahead = VecDeque::new();
        self.log = VecDeque::new();
    }

    pub(crate) fn heap_bytes(&self) -> usize {
        self.ahead.capacity() + self.log.capacity() * size_of::<Logged>()
    }

    /// The next segment expected in order.
    pub fn cumulative(&self) -> u64 {
        self.cumulative
    }

    /// Returns its counters.
    pub fn stats(&self) -> ReceiverStats {
        self.stats
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    const MS: u64 = 1_000_000;

    fn segment(seq: u64) -> Delivery {
        Delivery { seq, tx: seq, marked: false }
    }

    #[test]
    fn refuses_what_lies_too_far_ahead() {
        let mut r = Receiver::new(Acks::EACH);
        assert_eq!(r.on_segment(0, segment(MAX_AHEAD_SEGMENTS), 1500, false), Reply::Refused);
        assert_eq!(r.on_segment(0, segment(MAX_AHEAD_SEGMENTS - 1), 1500, false), Reply::Now);
        // The second was sent before the first.
        let stats =
            ReceiverStats { arrived: 2, refused: 1, bytes: 1500, overtaken: 1, ..ReceiverStats::default() };
        assert_eq!(r.stats(), stats);
    }

    /// The receiver acknowledges segment by segment as Linux does.
    #[test]
    fn acknowledges_as_linux_does() {
        let mut r = Receiver::new(Acks { quick: 3, ..Acks::LINUX });
        let mut now_ns = 0;
        let mut arrive = |seq: u64, bytes: u16, marked: bool, after_ms: u64| {
            now_ns += after_ms * MS;
            let reply = r.on_segment(now_ns, Delivery { seq, tx: seq, marked }, bytes, false);
            if reply == Reply::Now {
                r.acknowledge();
            }
            match reply {
                Reply::Refused => 'x',
                Reply::Now => 'A',
                Reply::Within(ns) => {
                    assert_eq!(ns, 40 * MS);
                    '.'
                }
            }
        };
        let full: String = (0..10).map(|seq| arrive(seq, 1500, false, 1)).collect();
        assert_eq!(full, "AAA.A.A.A.", "quick at the start, then each second one");
        assert_eq!(arrive(11, 1500, false, 1), 'A', "a hole");
        assert_eq!(arrive(12, 1500, false, 1), 'A', "and while it is there");
        assert_eq!(arrive(10, 1500, false, 1), 'A', "and when it is filled");
        assert_eq!(arrive(10, 1500, false, 1), 'A', "a duplicate");
        let short: String = (13..18).map(|seq| arrive(seq, 400, false, 1)).collect();
        assert_eq!(short, "...A.", "more than a full segment");
        let marks = [false, true, true, true, false, false, false];
        let marked: String = (18..).zip(marks).map(|(seq, ce)| arrive(seq, 1500, ce, 1)).collect();
        assert_eq!(marked, "AA.AA.A", "each change of marks");
        let idle: String =
            (25..30).map(|seq| arrive(seq, 1500, false, if seq == 25 { 201 } else { 1 })).collect();
        assert_eq!(idle, "AAA.A", "quick again after idling");
    }

    /// Trains of two with PSH on the second: an ACK each. A single segment between them shifts the count, and each train has two.
    #[test]
    fn a_full_segment_with_psh_is_acknowledged() {
        let replies = |pushes: &[bool]| -> Vec<bool> {
            let mut r = Receiver::new(Acks { quick: 0, ..Acks::LINUX });
            let mut arrive = |(seq, push): (u64, &bool)| {
                let reply = r.on_segment(0, segment(seq), 1500, *push);
                if reply == Reply::Now {
                    r.acknowledge();
                }
                reply == Reply::Now
            };
            (0..).zip(pushes).map(&mut arrive).collect()
        };
        assert_eq!(replies(&[false, true, false, true]), [false, true, false, true]);
        assert_eq!(replies(&[false, false, true, false, true]), [false, true, true, false, true]);
    }

    /// A window of 65,535 bytes grows by two segments with each, up to 84,000, and further once more is read in a round trip.
    #[test]
    fn a_segment_by_which_the_window_grows_is_acknowledged() {
        let mut r = Receiver::new(Acks { quick: 0, compress: true, ..Acks::LINUX });
        r.set_rtt(10 * MS);
        let mut arrive = |seq: u64, now_ns| {
            let reply = r.on_segment(now_ns, segment(seq), 1500, false);
            if reply == Reply::Now {
                r.acknowledge();
            }
            if reply == Reply::Now { 'A' } else { '.' }
        };
        let first: String = (0..15).map(|seq| arrive(seq, MS)).collect();
        assert_eq!(first, "AAAAAAA.A.A.A.A");
        // 24,000 bytes in the first round trip, not 14,480: the window may have 111,116, ten segments' growth more.
        let second: String = (15..35).map(|seq| arrive(seq, 11 * MS)).collect();
        assert_eq!(second, ".AAAAAAAAAA.A.A.A.A.");
    }

    /// The first three of a hole are told at once, further ones within a twentieth of the round trip; what fills it, at once.
    #[test]
    fn acks_of_a_hole_are_compressed_as_by_linux() {
        let replies = |rtt_ns, compress| {
            let mut r = Receiver::new(Acks { quick: 0, compress, ..Acks::LINUX });
            r.set_base_rtt(rtt_ns);
            [1, 2, 3, 4, 5, 0].map(|seq| r.on_segment(0, segment(seq), 1500, false))
        };
        let (now, wait) = (Reply::Now, |ns| Reply::Within(ns));
        assert_eq!(replies(10 * MS, true), [now, now, now, wait(MS / 2), wait(MS / 2), now]);
        assert_eq!(replies(100 * MS, true)[3], wait(MS));
        assert_eq!(replies(10 * MS, false), [now; 6]);
    }

    #[test]
    fn acks_name_three_blocks_at_most() {
        let mut r = Receiver::new(Acks { compress: true, ..Acks::EACH });
        let sizes = [0, 2, 3, 5, 7, 9, 1].map(|seq| {
            r.on_segment(0, segment(seq), 1500, false);
            r.sack_bytes()
        });
        assert_eq!(sizes, [0, 12, 12, 20, 28, 28, 28]);
    }

    #[test]
    fn an_ack_covers_what_lost_ones_said() {
        let mut r = Receiver::new(Acks::EACH);
        let mut acks = Vec::new();
        for seq in [0, 2, 3, 5, 1] {
            r.on_segment(0, segment(seq), 1500, false);
            acks.push(r.acknowledge());
        }
        assert_eq!(acks, [(1, 1), (1, 2), (1, 3), (1, 4), (4, 5)]);
        let mut log = Vec::new();
        r.take_log(acks[1].1, &mut log);
        r.take_log(acks[4].1, &mut log);
        assert_eq!(log.iter().map(|d| d.seq).collect::<Vec<_>>(), [0, 2, 3, 5, 1]);
    }

    /// A sender hears that all has arrived, whatever was lost; what comes late after all is a duplicate.
    #[test]
    fn a_receiver_that_lies_reports_no_hole() {
        let mut r = Receiver::new(Acks { conceals_losses: true, ..Acks::EACH });
        let acks: Vec<(u64, u64)> = [0, 3, 2, 4, 5 + MAX_AHEAD_SEGMENTS]
            .map(|seq| {
                r.on_segment(0, segment(seq), 1500, false);
                r.acknowledge()
            })
            .to_vec();
        assert_eq!(acks, [(1, 1), (4, 4), (4, 5), (5, 6), (5, 6)]);
        assert_eq!((r.stats().duplicates, r.stats().refused, r.sack_bytes()), (1, 1, 0));
        let mut log = Vec::new();
        r.take_log(4, &mut log);
        let told: Vec<(u64, u64)> = log.iter().map(|d| (d.seq, d.tx)).collect();
        assert_eq!(told, [(0, 0), (1, CLAIMED_TX), (2, CLAIMED_TX), (3, 3)]);
    }

    proptest! {
        /// Against a set of numbers: any order, any duplicates.
        #[test]
        fn acknowledges_like_a_set(segments in prop::collection::vec(0u64..60, 1..200), every in 1u8..4) {
            let mut r = Receiver::new(Acks { every, ..Acks::LINUX });
            let (mut seen, mut log) = (BTreeSet::new(), Vec::new());
            for (n, seq) in segments.iter().enumerate() {
                seen.insert(*seq);
                let cumulative = (0..).find(|n| !seen.contains(n)).unwrap();
                let reply = r.on_segment(0, Delivery { seq: *seq, tx: n as u64, marked: false }, 100, false);
                prop_assert!(reply != Reply::Refused && r.cumulative() == cumulative);
                if reply == Reply::Now {
                    let (ack, deliveries) = r.acknowledge();
                    prop_assert_eq!((ack, deliveries), (cumulative, n as u64 + 1));
                    r.take_log(deliveries, &mut log);
                    prop_assert_eq!(log.len(), n + 1);
                }
            }
            prop_assert!(log.iter().zip(0..).all(|(d, n)| d.tx == n));
            let unique = seen.len() as u64;
            let arrived = segments.len() as u64;
            prop_assert_eq!(r.stats(), ReceiverStats {
                arrived, duplicates: arrived - unique, bytes: unique * 100, ..ReceiverStats::default()
            });
            prop_assert_eq!(r.ahead.iter().filter(|here| **here).count() as u64, unique - r.cumulative());
        }
    }
}
