//! CoDel (RFC 8289, section 5): drops from the head when packets have waited longer than a target for an interval.
//!
//! mahimahi's queue follows the same pseudocode, but delivers the packet before the dropped ones in place of the one after.

use super::waiting::Fifo;
use crate::path::Packet;
use ccplane_netsim::trace::OPPORTUNITY_BYTES;

/// A queue of no more than this many bytes is never a standing one: the largest packet.
const MAX_PACKET_BYTES: u64 = OPPORTUNITY_BYTES as u64;
/// Intervals within which a new episode goes on at the rate of the last one.
const RECENT_INTERVALS: u64 = 16;
const NS_PER_US: u64 = 1_000;

/// The control law's state, by the names of RFC 8289.
#[derive(Debug)]
pub(super) struct CoDel {
    target_ns: u64,
    interval_ns: u64,
    /// When packets will have waited longer than the target for an interval; `None`: they have not begun to.
    first_above_ns: Option<u64>,
    /// When to drop next, while dropping.
    drop_next_ns: u64,
    /// Packets dropped since dropping began.
    count: u64,
    /// `count` as dropping began.
    last_count: u64,
    dropping: bool,
}

impl CoDel {
    pub(super) fn new(target_us: u64, interval_us: u64) -> CoDel {
        CoDel {
            target_ns: target_us * NS_PER_US,
            interval_ns: interval_us * NS_PER_US,
            first_above_ns: None,
            drop_next_ns: 0,
            count: 0,
            last_count: 0,
            dropping: false,
        }
    }

    /// Takes the next packet to deliver; those dropped before it go to `drop`.
    pub(super) fn dequeue<H>(
        &mut self,
        fifo: &mut Fifo<H>,
        now_ns: u64,
        drop: &mut impl FnMut(Packet<H>),
    ) -> Option<Packet<H>> {
        let (mut packet, mut ok_to_drop) = self.take(fifo, now_ns)?;
        if self.dropping {
            self.dropping = ok_to_drop;
            while self.dropping && now_ns >= self.drop_next_ns {
                drop(packet);
                self.count += 1;
                (packet, ok_to_drop) = self.take(fifo, now_ns)?;
                self.dropping = ok_to_drop;
                if ok_to_drop {
                    self.drop_next_ns = self.control_law(self.drop_next_ns);
                }
            }
        } else if ok_to_drop {
            drop(packet);
            (packet, _) = self.take(fifo, now_ns)?;
            self.dropping = true;
            let recent = now_ns.saturating_sub(self.drop_next_ns) < RECENT_INTERVALS * self.interval_ns;
            let delta = self.count - self.last_count;
            self.count = if delta > 1 && recent { delta } else { 1 };
            self.drop_next_ns = self.control_law(now_ns);
            self.last_count = self.count;
        }
        Some(packet)
    }

    /// The oldest packet, and whether it may be dropped. The queue behind one that may is not empty.
    fn take<H>(&mut self, fifo: &mut Fifo<H>, now_ns: u64) -> Option<(Packet<H>, bool)> {
        let packet = fifo.pop()?;
        if now_ns - packet.arrived_ns < self.target_ns || fifo.bytes() <= MAX_PACKET_BYTES {
            self.first_above_ns = None;
        } else if self.first_above_ns.is_none() {
            self.first_above_ns = Some(now_ns + self.interval_ns);
            return Some((packet, false));
        }
        let ok_to_drop = self.first_above_ns.is_some_and(|at_ns| now_ns >= at_ns);
        Some((packet, ok_to_drop))
    }

    fn control_law(&self, from_ns: u64) -> u64 {
        from_ns + (self.interval_ns as f64 / (self.count as f64).sqrt()) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// A queue of full packets, one a millisecond from 0 on, drained at one every other millisecond; `(when, which)` was dropped.
    fn drops(packets: u64, target_us: u64, interval_us: u64) -> Vec<(u64, u64)> {
        let arrival = |n: u64| Packet { handle: n, size: 1504, arrived_ns: n * MS };
        let mut fifo = Fifo::of((0..packets).map(arrival));
        let mut codel = CoDel::new(target_us, interval_us);
        let (mut dropped, mut now_ms) = (vec![], 0);
        loop {
            now_ms += 2;
            let sink = &mut |packet: Packet<u64>| dropped.push((now_ms, packet.handle));
            if codel.dequeue(&mut fifo, now_ms * MS, sink).is_none() {
                return dropped;
            }
        }
    }

    #[test]
    fn drops_come_closer_as_the_square_root() {
        // Packet n leaves at 2n+2 and has waited n+2 ms: packet 3 is the first to wait 5 ms, at 8 ms. An interval later,
        // at 108 ms, the first drop; then after 100, 100/sqrt 2, 100/sqrt 3 ... ms.
        let times: Vec<u64> = drops(1000, 5_000, 100_000).iter().map(|(at_ms, _)| *at_ms).collect();
        assert_eq!(times[..6], [108, 208, 280, 338, 388, 432]);
    }

    #[test]
    fn the_head_goes_and_the_next_is_delivered() {
        assert_eq!(drops(1000, 5_000, 100_000)[0], (108, 53));
    }

    #[test]
    fn a_short_queue_and_a_short_wait_drop_nothing() {
        assert_eq!(drops(30, 5_000, 100_000), [], "gone before an interval has passed");
        assert_eq!(drops(1000, 2_000_000, 100_000), [], "below the target all the time");
    }

    /// mahimahi's `CODELPacketQueue` in its own terms: whole milliseconds, the dropped packet is the one behind. Its number of
    /// drops at each time is the RFC's; only which packet goes differs.
    fn mahimahis_drop_times(packets: u64, target_ms: u64, interval_ms: u64) -> Vec<u64> {
        let mut queue: std::collections::VecDeque<u64> = (0..packets).collect();
        let (mut first_above, mut drop_next, mut count, mut last_count, mut dropping) =
            (0, 0, 0u64, 0, false);
        let mut times = vec![];
        let mut now = 0;
        let law = |t: u64, count: u64| t + (interval_ms as f64 / (count as f64).sqrt()) as u64;
        loop {
            now += 2;
            let mut take = |queue: &mut std::collections::VecDeque<u64>| {
                let arrived = queue.pop_front()?;
                if queue.is_empty() || now - arrived < target_ms || queue.len() <= 1 {
                    first_above = 0;
                } else if first_above == 0 {
                    first_above = now + interval_ms;
                } else if now >= first_above {
                    return Some(true);
                }
                Some(false)
            };
            let Some(ok) = take(&mut queue) else { return times };
            if dropping {
                dropping = ok;
                while now >= drop_next && dropping {
                    times.push(now);
                    count += 1;
                    dropping = take(&mut queue) == Some(true);
                    if dropping {
                        drop_next = law(drop_next, count);
                    }
                }
            } else if ok {
                times.push(now);
                take(&mut queue);
                dropping = true;
                let delta = count - last_count;
                count = if delta > 1 && now - drop_next < 16 * interval_ms { delta } else { 1 };
                drop_next = law(now, count);
                last_count = count;
            }
        }
    }

    #[test]
    fn drops_as_often_as_mahimahis() {
        for (packets, target_ms, interval_ms) in [(500, 5, 100), (3000, 20, 300), (800, 1, 400)] {
            let ours = drops(packets, target_ms * 1_000, interval_ms * 1_000).len();
            let theirs = mahimahis_drop_times(packets, target_ms, interval_ms).len();
            // Rounding to milliseconds may move the last one over the end.
            assert!(ours >= 5 && ours.abs_diff(theirs) <= ours / 50 + 1, "{ours} {theirs}");
        }
    }
}
