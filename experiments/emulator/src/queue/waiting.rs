//! The packets that wait, and which of them a queue drops.

use std::collections::VecDeque;

use super::codel::CoDel;
use super::pie::Pie;
use super::{Limits, Queue};
use crate::path::Packet;

/// A queue at work. Dropped packets go to the caller's `drop`.
#[derive(Debug)]
pub(crate) struct Waiting<H> {
    fifo: Fifo<H>,
    limits: Limits,
    law: Law,
}

/// Packets in order of arrival, and their bytes.
#[derive(Debug)]
pub(super) struct Fifo<H> {
    packets: VecDeque<Packet<H>>,
    bytes: u64,
}

/// What drops beside the limits.
#[derive(Debug)]
enum Law {
    Tail,
    Head,
    CoDel(CoDel),
    Pie(Box<Pie>),
}

impl<H> Waiting<H> {
    pub(crate) fn new(queue: Queue, now_ns: u64) -> Waiting<H> {
        let law = match queue {
            Queue::Infinite | Queue::DropTail { .. } => Law::Tail,
            Queue::DropHead { .. } => Law::Head,
            Queue::CoDel { target_us, interval_us, .. } => Law::CoDel(CoDel::new(target_us, interval_us)),
            Queue::Pie { qdelay_ref_us, max_burst_us, seed, .. } => {
                Law::Pie(Box::new(Pie::new(qdelay_ref_us, max_burst_us, seed, now_ns)))
            }
        };
        Waiting { fifo: Fifo { packets: VecDeque::new(), bytes: 0 }, limits: queue.limits(), law }
    }

    /// A packet comes at its `arrived_ns`.
    pub(crate) fn enqueue(&mut self, packet: Packet<H>, drop: &mut impl FnMut(Packet<H>)) {
        let room = self.limits.hold(self.fifo.len() as u64 + 1, self.fifo.bytes + u64::from(packet.size));
        match &mut self.law {
            Law::Head => {
                self.fifo.push(packet);
                while !self.limits.hold(self.fifo.len() as u64, self.fifo.bytes) {
                    let Some(oldest) = self.fifo.pop() else { return };
                    drop(oldest);
                }
            }
            Law::Pie(pie) => match pie.refuses(packet.arrived_ns, self.fifo.bytes, room) {
                true => drop(packet),
                false => self.fifo.push(packet),
            },
            _ if room => self.fifo.push(packet),
            _ => drop(packet),
        }
    }

    /// The next packet to transmit at `now_ns`.
    pub(crate) fn dequeue(&mut self, now_ns: u64, drop: &mut impl FnMut(Packet<H>)) -> Option<Packet<H>> {
        match &mut self.law {
            Law::CoDel(codel) => codel.dequeue(&mut self.fifo, now_ns, drop),
            Law::Pie(pie) => {
                let packet = self.fifo.pop()?;
                pie.departs(now_ns, packet.size, self.fifo.bytes);
                Some(packet)
            }
            Law::Tail | Law::Head => self.fifo.pop(),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.fifo.len()
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.fifo.bytes
    }
}

impl Limits {
    fn hold(self, packets: u64, bytes: u64) -> bool {
        self.packets.is_none_or(|limit| packets <= u64::from(limit))
            && self.bytes.is_none_or(|limit| bytes <= limit)
    }
}

impl<H> Fifo<H> {
    fn push(&mut self, packet: Packet<H>) {
        self.bytes += u64::from(packet.size);
        self.packets.push_back(packet);
    }

    pub(super) fn pop(&mut self) -> Option<Packet<H>> {
        let packet = self.packets.pop_front()?;
        self.bytes -= u64::from(packet.size);
        Some(packet)
    }

    fn len(&self) -> usize {
        self.packets.len()
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    #[cfg(test)]
    pub(super) fn of(packets: impl IntoIterator<Item = Packet<H>>) -> Fifo<H> {
        let mut fifo = Fifo { packets: VecDeque::new(), bytes: 0 };
        packets.into_iter().for_each(|packet| fifo.push(packet));
        fifo
    }
}
