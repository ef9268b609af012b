//! A link's queue: where it ends, and what it drops or marks before.

mod codel;
mod pie;

use crate::config::{Discipline, LinkConfig, MAX_QUEUE_PACKETS, QueueLimit};
use crate::network::Packet;
use crate::workload::Random;
use codel::Codel;
use pie::Pie;
use std::collections::VecDeque;

/// Streams of a link's seed beside that of its losses; far from any link's index.
const PIE_STREAM: u64 = 1 << 32;

/// What became of a packet that a queue let go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Verdict {
    Pass,
    Mark,
    Drop,
}

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
    Timed(Box<Timed>),
}

/// What looks at how long packets waited.
struct Timed {
    /// When each packet of the queue came, nanoseconds.
    came_ns: VecDeque<u64>,
    law: Law,
}

enum Law {
    Codel(Codel),
    Pie(Box<Pie>),
}

impl Queue {
    pub(crate) fn new(config: &LinkConfig, seed: u64, index: usize) -> Queue {
        let (max_packets, max_bytes) = ends(config.queue);
        let timed = |law| Manager::Timed(Box::new(Timed { came_ns: VecDeque::new(), law }));
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
                Discipline::Codel { target_ns, interval_ns, ecn } => {
                    timed(Law::Codel(Codel::new(target_ns, interval_ns, ecn)))
                }
                Discipline::Pie { target_ns, max_burst_ns, ecn } => {
                    let random = Random::new(seed, PIE_STREAM + index as u64);
                    timed(Law::Pie(Box::new(Pie::new(target_ns, max_burst_ns, ecn, random))))
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
            Manager::Timed(timed) => {
                if let Law::Pie(pie) = &mut timed.law {
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
                timed.law.on_empty();
                return None;
            };
            match timed.law.on_departure(now_ns, now_ns - came_ns, self.bytes, packet.can_be_marked()) {
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
            timed.law.on_departure(now_ns, 0, 0, false);
        }
    }

    fn take(&mut self) -> Option<Packet> {
        let packet = self.packets.pop_front()?;
        self.bytes -= self.size(&packet);
        Some(packet)
    }

    /// What a packet costs this link, bytes.
    #[inline]
    pub(crate) fn size(&self, packet: &Packet) -> u64 {
        u64::from(packet.bytes) + self.overhead_bytes
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.packets.is_empty()
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(crate) fn packets(&self) -> impl Iterator<Item = &Packet> {
        self.packets.iter()
    }

    pub(crate) fn heap_bytes(&self) -> usize {
        self.packets.capacity() * size_of::<Packet>()
    }

    pub(crate) fn len(&self) -> usize {
        self.packets.len()
    }
}

impl Law {
    fn on_departure(&mut self, now_ns: u64, waited_ns: u64, bytes_left: u64, markable: bool) -> Verdict {
        match self {
            Law::Codel(codel) => codel.on_departure(now_ns, waited_ns, bytes_left, markable),
            Law::Pie(pie) => {
                pie.on_departure(now_ns, waited_ns);
                Verdict::Pass
            }
        }
    }

    fn on_empty(&mut self) {
        if let Law::Codel(codel) = self {
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
