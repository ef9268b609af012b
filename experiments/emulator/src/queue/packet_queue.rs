//! The packets that wait, and which of them a queue drops.

use std::collections::VecDeque;

use ccplane_netsim::aqm::{Codel, Pie, Verdict};
use ccplane_netsim::bands::Bands;
use ccplane_netsim::trace::OPPORTUNITY_BYTES;

use super::{Limits, Queue};
use crate::class::LAST;
use crate::event::Packet;

const NS_PER_US: u64 = 1_000;
/// Every draw of an emulated PIE queue comes from this stream of its seed.
const PIE_STREAM: u64 = 0;
const PRIORITIES: usize = LAST as usize + 1;

/// A queue at work. Dropped packets go to the caller's `drop`.
#[derive(Debug)]
pub(crate) struct PacketQueue<H> {
    waiting: Waiting<H>,
    limits: Limits,
    aqm: Aqm,
}

/// Packets in the order of their service, and their bytes.
#[derive(Debug)]
struct Waiting<H> {
    packets: Order<H>,
    bytes: u64,
}

#[derive(Debug)]
enum Order<H> {
    Arrival(VecDeque<Packet<H>>),
    Priority(Box<Bands<Packet<H>, PRIORITIES>>),
}

/// The rule for drops beside the limits.
#[derive(Debug)]
enum Aqm {
    Tail,
    Head,
    /// The newest of the last priority behind that of the packet that came.
    Behind,
    Codel(Codel),
    Pie(Box<Pie>),
}

impl<H> PacketQueue<H> {
    pub(crate) fn new(queue: Queue) -> PacketQueue<H> {
        let aqm = match queue {
            Queue::Infinite | Queue::DropTail { .. } => Aqm::Tail,
            Queue::DropHead { .. } => Aqm::Head,
            Queue::Priority { .. } => Aqm::Behind,
            Queue::CoDel { target_us, interval_us, .. } => {
                let (target_ns, interval_ns) = (target_us * NS_PER_US, interval_us * NS_PER_US);
                Aqm::Codel(Codel::new(target_ns, interval_ns, OPPORTUNITY_BYTES.into(), false))
            }
            Queue::Pie { qdelay_ref_us, max_burst_us, seed, .. } => {
                let (target_ns, max_burst_ns) = (qdelay_ref_us * NS_PER_US, max_burst_us * NS_PER_US);
                Aqm::Pie(Box::new(Pie::new(target_ns, max_burst_ns, false, (seed, PIE_STREAM))))
            }
        };
        let packets = match queue {
            Queue::Priority { .. } => Order::Priority(Box::default()),
            _ => Order::Arrival(VecDeque::new()),
        };
        PacketQueue { waiting: Waiting { packets, bytes: 0 }, limits: queue.limits(), aqm }
    }

    /// A packet comes at its `arrived_ns`.
    pub(crate) fn enqueue(&mut self, packet: Packet<H>, drop: &mut impl FnMut(Packet<H>)) {
        let room = self.has_room(&packet);
        match &mut self.aqm {
            Aqm::Behind => {
                while !self.has_room(&packet) {
                    let Some(last) = self.waiting.pop_last_behind(packet.priority) else {
                        return drop(packet);
                    };
                    drop(last);
                }
                self.waiting.push(packet);
            }
            Aqm::Head => {
                self.waiting.push(packet);
                while !self.limits.hold(self.waiting.len() as u64, self.waiting.bytes) {
                    let Some(oldest) = self.waiting.pop() else { return };
                    drop(oldest);
                }
            }
            Aqm::Pie(pie) => match pie.on_arrival(packet.arrived_ns, self.waiting.bytes, false) {
                Verdict::Pass if room => self.waiting.push(packet),
                _ => drop(packet),
            },
            _ if room => self.waiting.push(packet),
            _ => drop(packet),
        }
    }

    /// The next packet to transmit at `now_ns`.
    pub(crate) fn dequeue(&mut self, now_ns: u64, drop: &mut impl FnMut(Packet<H>)) -> Option<Packet<H>> {
        match &mut self.aqm {
            Aqm::Codel(codel) => loop {
                let Some(packet) = self.waiting.pop() else {
                    codel.on_empty();
                    return None;
                };
                let waited_ns = now_ns - packet.arrived_ns;
                match codel.on_departure(now_ns, waited_ns, self.waiting.bytes, false) {
                    Verdict::Drop => drop(packet),
                    Verdict::Pass | Verdict::Mark => return Some(packet),
                }
            },
            Aqm::Pie(pie) => {
                let packet = self.waiting.pop()?;
                pie.on_departure(now_ns, now_ns - packet.arrived_ns);
                Some(packet)
            }
            Aqm::Tail | Aqm::Head | Aqm::Behind => self.waiting.pop(),
        }
    }

    fn has_room(&self, packet: &Packet<H>) -> bool {
        self.limits.hold(self.waiting.len() as u64 + 1, self.waiting.bytes + u64::from(packet.size))
    }

    pub(crate) fn len(&self) -> usize {
        self.waiting.len()
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.waiting.bytes
    }
}

impl Limits {
    fn hold(self, packets: u64, bytes: u64) -> bool {
        self.packets.is_none_or(|limit| packets <= u64::from(limit))
            && self.bytes.is_none_or(|limit| bytes <= limit)
    }
}

impl<H> Waiting<H> {
    fn push(&mut self, packet: Packet<H>) {
        self.bytes += u64::from(packet.size);
        match &mut self.packets {
            Order::Arrival(packets) => packets.push_back(packet),
            Order::Priority(bands) => bands.push(packet.priority.into(), packet),
        }
    }

    fn pop(&mut self) -> Option<Packet<H>> {
        let packet = match &mut self.packets {
            Order::Arrival(packets) => packets.pop_front(),
            Order::Priority(bands) => bands.pop(),
        };
        self.without(packet)
    }

    /// Takes the newest packet of the last priority behind this one.
    fn pop_last_behind(&mut self, priority: u8) -> Option<Packet<H>> {
        let packet = match &mut self.packets {
            Order::Arrival(_) => None,
            Order::Priority(bands) => bands.pop_last_from(usize::from(priority) + 1),
        };
        self.without(packet)
    }

    fn without(&mut self, packet: Option<Packet<H>>) -> Option<Packet<H>> {
        self.bytes -= packet.as_ref().map_or(0, |packet| u64::from(packet.size));
        packet
    }

    fn len(&self) -> usize {
        match &self.packets {
            Order::Arrival(packets) => packets.len(),
            Order::Priority(bands) => bands.len(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;
    const SIZE: u32 = 1504;

    #[test]
    fn a_priority_queue_makes_room_at_its_end() {
        let mut queue = PacketQueue::new(Queue::Priority { packets: Some(3), bytes: None });
        let mut dropped = vec![];
        for (handle, priority) in [('a', 7), ('b', 2), ('c', 7), ('d', 0), ('e', 7), ('f', 2), ('g', 2)] {
            let packet = Packet { handle, size: SIZE, priority, arrived_ns: 0 };
            queue.enqueue(packet, &mut |packet: Packet<char>| dropped.push(packet.handle));
        }
        // c gives way to d; e finds no room behind its own class; f takes that of a; g finds none.
        assert_eq!(dropped, ['c', 'e', 'a', 'g']);
        assert_eq!((queue.len(), queue.bytes()), (3, 3 * u64::from(SIZE)));
        let left = std::iter::from_fn(|| queue.dequeue(MS, &mut |_| unreachable!()));
        assert_eq!(left.map(|packet| packet.handle).collect::<String>(), "dbf");
        assert_eq!(queue.bytes(), 0);
    }

    /// A queue of full packets, one a millisecond from 0 on, drained at one every other millisecond; `(when, which)` was dropped.
    fn drops(packets: u64, target_us: u64, interval_us: u64) -> Vec<(u64, u64)> {
        let arrival = |n: u64| Packet { handle: n, size: SIZE, priority: LAST, arrived_ns: n * MS };
        let codel = Queue::CoDel { packets: None, bytes: None, target_us, interval_us };
        let mut queue = PacketQueue::new(codel);
        (0..packets).map(arrival).for_each(|packet| queue.enqueue(packet, &mut |_| unreachable!()));
        let (mut dropped, mut now_ms) = (vec![], 0);
        loop {
            now_ms += 2;
            let sink = &mut |packet: Packet<u64>| dropped.push((now_ms, packet.handle));
            if queue.dequeue(now_ms * MS, sink).is_none() {
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
        let control_law = |t: u64, count: u64| t + (interval_ms as f64 / (count as f64).sqrt()) as u64;
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
                        drop_next = control_law(drop_next, count);
                    }
                }
            } else if ok {
                times.push(now);
                take(&mut queue);
                dropping = true;
                let delta = count - last_count;
                count = if delta > 1 && now - drop_next < 16 * interval_ms { delta } else { 1 };
                drop_next = control_law(now, count);
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

    /// Full packets come every `every_us` to a link that takes one a millisecond; returns the mean wait over the last half, in
    /// milliseconds, and when packets were dropped.
    fn run(every_us: u64, seed: u64, ms: u64) -> (f64, Vec<u64>) {
        let pie =
            Queue::Pie { packets: None, bytes: None, qdelay_ref_us: 15_000, max_burst_us: 150_000, seed };
        let mut queue = PacketQueue::new(pie);
        let (mut dropped, mut waits, mut next_ns) = (vec![], vec![], 0);
        for now in 1..=ms {
            while next_ns <= now * MS {
                let packet = Packet { handle: (), size: SIZE, priority: LAST, arrived_ns: next_ns };
                queue.enqueue(packet, &mut |packet| dropped.push(packet.arrived_ns / MS));
                next_ns += every_us * 1000;
            }
            if let Some(packet) = queue.dequeue(now * MS, &mut |_| unreachable!()).filter(|_| now > ms / 2) {
                waits.push((now * MS - packet.arrived_ns) as f64 / MS as f64);
            }
        }
        (waits.iter().sum::<f64>() / waits.len().max(1) as f64, dropped)
    }

    #[test]
    fn a_standing_overload_settles_at_the_reference() {
        // A quarter too much: a fifth must go.
        let (wait_ms, dropped) = run(800, 1, 60_000);
        assert!((11.0..19.0).contains(&wait_ms), "{wait_ms}");
        let late = dropped.iter().filter(|at_ms| **at_ms > 30_000).count();
        assert!((6_500..8_500).contains(&late), "{late} of 37500");
    }

    #[test]
    fn a_burst_passes_and_a_lighter_load_loses_nothing() {
        let (_, dropped) = run(800, 1, 60_000);
        assert!(dropped[0] >= 150, "the first drop comes after a burst's time: {}", dropped[0]);
        assert_eq!(run(1_100, 1, 20_000).1, [0; 0]);
    }

    #[test]
    fn a_seed_determines_what_is_dropped() {
        assert_eq!(run(800, 1, 5_000), run(800, 1, 5_000));
        assert_ne!(run(800, 1, 5_000).1, run(800, 2, 5_000).1);
    }
}
