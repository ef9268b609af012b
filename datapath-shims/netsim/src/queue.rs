//! A link's queue: where it ends, and what it drops or marks before.

use crate::aqm::{Codel, Pie, Verdict};
use crate::bands::Bands;
use crate::config::{Discipline, LinkConfig, MAX_QUEUE_PACKETS, QueueLimit};
use crate::packet::{PRIORITIES, Packet};
use std::collections::VecDeque;

/// The first of the random streams of PIE queues, above those of the links' losses.
const PIE_STREAM: u64 = 1 << 32;
/// The largest packet with its Ethernet header, which CoDel never takes for a standing queue.
const MAX_PACKET_BYTES: u64 = 1514;

pub(crate) struct Queue {
    packets: VecDeque<Packet>,
    bytes: u64,
    max_packets: usize,
    max_bytes: u64,
    overhead_bytes: u64,
    manager: Manager,
    pub(crate) marked: u64,
}

enum Manager {
    DropTail,
    DropHead,
    Threshold { packets: usize, bytes: u64 },
    Priority(Box<Priority>),
    Timed(Box<Timed>),
}

/// The packets of a strict priority queue, by priority; those of priority 0 are the queue's own.
struct Priority {
    others: Bands<Packet, { PRIORITIES as usize - 1 }>,
    mark_packets: usize,
    mark_bytes: u64,
}

/// An active queue management, with the times that it needs.
struct Timed {
    /// When each packet of the queue came, nanoseconds.
    came_ns: VecDeque<u64>,
    aqm: Aqm,
}

enum Aqm {
    Codel(Codel),
    Pie(Box<Pie>),
}

impl Queue {
    pub(crate) fn new(config: &LinkConfig, seed: u64, index: usize) -> Queue {
        let (max_packets, max_bytes) = ends(config.queue);
        let timed = |aqm| Manager::Timed(Box::new(Timed { came_ns: VecDeque::new(), aqm }));
        Queue {
            packets: VecDeque::new(),
            bytes: 0,
            max_packets,
            max_bytes,
            overhead_bytes: config.overhead_bytes.into(),
            marked: 0,
            manager: match config.discipline {
                Discipline::DropTail => Manager::DropTail,
                Discipline::DropHead => Manager::DropHead,
                Discipline::EcnThreshold { mark_at } => {
                    let (packets, bytes) = match mark_at {
                        QueueLimit::Packets(n) => (n as usize, u64::MAX),
                        QueueLimit::Bytes(n) => (usize::MAX, n),
                    };
                    Manager::Threshold { packets, bytes }
                }
                Discipline::StrictPriority { mark_at } => {
                    let (mark_packets, mark_bytes) = match mark_at {
                        None => (usize::MAX, u64::MAX),
                        Some(QueueLimit::Packets(n)) => (n as usize, u64::MAX),
                        Some(QueueLimit::Bytes(n)) => (usize::MAX, n),
                    };
                    let others = Bands::default();
                    Manager::Priority(Box::new(Priority { others, mark_packets, mark_bytes }))
                }
                Discipline::Codel { target_ns, interval_ns, ecn } => {
                    timed(Aqm::Codel(Codel::new(target_ns, interval_ns, MAX_PACKET_BYTES, ecn)))
                }
                Discipline::Pie { target_ns, max_burst_ns, ecn } => {
                    let stream = PIE_STREAM + index as u64;
                    timed(Aqm::Pie(Box::new(Pie::new(target_ns, max_burst_ns, ecn, (seed, stream)))))
                }
            },
        }
    }

    /// Takes a packet, unless `drop` gets it; at the head it may get others.
    #[inline]
    pub(crate) fn push(&mut self, now_ns: u64, mut packet: Packet, drop: &mut impl FnMut(Packet)) {
        let bytes = self.size(&packet);
        match &mut self.manager {
            Manager::DropTail => {}
            Manager::DropHead => return self.push_at_head_cost(packet, drop),
            Manager::Threshold { packets, bytes: mark_at } => {
                if (self.packets.len() >= *packets || self.bytes >= *mark_at) && packet.mark() {
                    self.marked += 1;
                }
            }
            Manager::Priority(_) => return self.push_by_priority(packet, drop),
            Manager::Timed(timed) => {
                if let Aqm::Pie(pie) = &mut timed.aqm {
                    match pie.on_arrival(now_ns, self.bytes, packet.can_be_marked()) {
                        Verdict::Pass => {}
                        Verdict::Mark => self.marked += u64::from(packet.mark()),
                        Verdict::Drop => return drop(packet),
                    }
                }
            }
        }
        if self.packets.len() >= self.max_packets || self.bytes + bytes > self.max_bytes {
            return drop(packet);
        }
        if let Manager::Timed(timed) = &mut self.manager {
            timed.came_ns.push_back(now_ns);
        }
        self.packets.push_back(packet);
        self.bytes += bytes;
    }

    fn push_at_head_cost(&mut self, packet: Packet, drop: &mut impl FnMut(Packet)) {
        let bytes = self.size(&packet);
        if bytes > self.max_bytes {
            return drop(packet);
        }
        while self.packets.len() >= self.max_packets || self.bytes + bytes > self.max_bytes {
            match self.take() {
                Some(oldest) => drop(oldest),
                None => break,
            }
        }
        self.packets.push_back(packet);
        self.bytes += bytes;
    }

    fn push_by_priority(&mut self, mut packet: Packet, drop: &mut impl FnMut(Packet)) {
        let (bytes, held) = (self.size(&packet), self.len());
        let Manager::Priority(queues) = &mut self.manager else { return drop(packet) };
        if (held >= queues.mark_packets || self.bytes >= queues.mark_bytes) && packet.mark() {
            self.marked += 1;
        }
        while self.len() >= self.max_packets || self.bytes + bytes > self.max_bytes {
            match self.take_last_behind(packet.priority()) {
                Some(last) => drop(last),
                None => return drop(packet),
            }
        }
        self.bytes += bytes;
        let Manager::Priority(queues) = &mut self.manager else { return };
        match packet.priority().checked_sub(1) {
            None => self.packets.push_back(packet),
            Some(other) => queues.others.push(other, packet),
        }
    }

    /// Takes the last packet of the largest priority above `priority`.
    fn take_last_behind(&mut self, priority: usize) -> Option<Packet> {
        let Manager::Priority(queues) = &mut self.manager else { return None };
        let last = queues.others.pop_last_from(priority)?;
        self.bytes -= self.size(&last);
        Some(last)
    }

    /// The next packet to serve; those that CoDel drops go to `drop`.
    #[inline]
    pub(crate) fn pop(&mut self, now_ns: u64, drop: &mut impl FnMut(Packet)) -> Option<Packet> {
        if let Manager::Timed(_) = self.manager {
            return self.pop_timed(now_ns, drop);
        }
        self.take()
    }

    fn pop_timed(&mut self, now_ns: u64, drop: &mut impl FnMut(Packet)) -> Option<Packet> {
        loop {
            let packet = self.take();
            let Manager::Timed(timed) = &mut self.manager else { return packet };
            let came_ns = timed.came_ns.pop_front();
            let (Some(mut packet), Some(came_ns)) = (packet, came_ns) else {
                timed.aqm.on_empty();
                return None;
            };
            match timed.aqm.on_departure(now_ns, now_ns - came_ns, self.bytes, packet.can_be_marked()) {
                Verdict::Pass => return Some(packet),
                Verdict::Mark => {
                    self.marked += u64::from(packet.mark());
                    return Some(packet);
                }
                Verdict::Drop => drop(packet),
            }
        }
    }

    /// A packet went into service without waiting.
    #[inline]
    pub(crate) fn pass_by(&mut self, now_ns: u64) {
        if let Manager::Timed(timed) = &mut self.manager {
            timed.aqm.on_departure(now_ns, 0, 0, false);
        }
    }

    fn take(&mut self) -> Option<Packet> {
        let packet = match (self.packets.pop_front(), &mut self.manager) {
            (None, Manager::Priority(queues)) => queues.others.pop(),
            (first, _) => first,
        }?;
        self.bytes -= self.size(&packet);
        Some(packet)
    }

    /// Returns a packet's size on this link, bytes.
    #[inline]
    pub(crate) fn size(&self, packet: &Packet) -> u64 {
        u64::from(packet.bytes) + self.overhead_bytes
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(crate) fn packets(&self) -> impl Iterator<Item = &Packet> {
        self.packets.iter().chain(self.priority().into_iter().flat_map(|p| p.others.iter()))
    }

    #[inline]
    fn priority(&self) -> Option<&Priority> {
        match &self.manager {
            Manager::Priority(queues) => Some(queues),
            _ => None,
        }
    }

    pub(crate) fn heap_bytes(&self) -> usize {
        let others = self.priority().map_or(0, |p| p.others.capacity());
        (self.packets.capacity() + others) * size_of::<Packet>()
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.packets.len() + self.priority().map_or(0, |p| p.others.len())
    }
}

impl Aqm {
    fn on_departure(&mut self, now_ns: u64, waited_ns: u64, bytes_left: u64, markable: bool) -> Verdict {
        match self {
            Aqm::Codel(codel) => codel.on_departure(now_ns, waited_ns, bytes_left, markable),
            Aqm::Pie(pie) => {
                pie.on_departure(now_ns, waited_ns);
                Verdict::Pass
            }
        }
    }

    fn on_empty(&mut self) {
        if let Aqm::Codel(codel) = self {
            codel.on_empty();
        }
    }
}

fn ends(limit: QueueLimit) -> (usize, u64) {
    match limit {
        QueueLimit::Packets(n) => (n as usize, u64::MAX),
        QueueLimit::Bytes(n) => (MAX_QUEUE_PACKETS as usize, n),
    }
}
