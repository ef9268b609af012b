//! The bottleneck: opportunities of 1504 bytes spent on a queue, exactly as mahimahi's `link_queue.cc` spends them.
//!
//! Packets may span opportunities; what an opportunity has left when the queue is empty is lost; an opportunity at the
//! very time of an arrival comes first. Arrivals carry their own time, so that late calls change nothing.

use ccplane_netsim::trace::OPPORTUNITY_BYTES;

use crate::event::{Event, Packet};
use crate::queue::{PacketQueue, Queue};
use crate::shape::{Opportunities, Shape};

/// A queue and what drains it.
#[derive(Debug)]
pub(crate) struct Bottleneck<H> {
    /// The delivery opportunities; `None` stands for an unlimited rate.
    opportunities: Option<Opportunities>,
    queue: PacketQueue<H>,
    /// The packet in transmission and its bytes left, above 0; it counts for no limit.
    in_transit: Option<(Packet<H>, u32)>,
}

impl<H> Bottleneck<H> {
    pub(crate) fn new(shape: &Shape, queue: Queue, now_ns: u64) -> Bottleneck<H> {
        let opportunities = shape.opportunities(now_ns);
        Bottleneck { opportunities, queue: PacketQueue::new(queue), in_transit: None }
    }

    /// A packet comes at its `arrived_ns`.
    pub(crate) fn arrive(&mut self, packet: Packet<H>, sink: &mut impl FnMut(Event<H>)) {
        let at_ns = packet.arrived_ns;
        self.advance(at_ns, sink);
        sink(Event::Arrival { at_ns, size: packet.size });
        if self.opportunities.is_none() {
            sink(Event::Departure { at_ns, packet });
        } else {
            self.queue.enqueue(packet, &mut |packet| sink(Event::Drop { at_ns, packet }));
        }
    }

    /// Spends the opportunities up to and at `now_ns`.
    pub(crate) fn advance(&mut self, now_ns: u64, sink: &mut impl FnMut(Event<H>)) {
        while let Some(at_ns) = self.next_opportunity_ns().filter(|at_ns| *at_ns <= now_ns) {
            if let Some(opportunities) = &mut self.opportunities {
                opportunities.take();
            }
            sink(Event::Opportunity { at_ns });
            self.transmit(at_ns, OPPORTUNITY_BYTES, sink);
        }
    }

    /// From `now_ns` on, which [`Bottleneck::advance`] has reached, packets leave by `shape`.
    pub(crate) fn set_shape(&mut self, now_ns: u64, shape: &Shape, sink: &mut impl FnMut(Event<H>)) {
        self.opportunities = shape.opportunities(now_ns);
        while self.opportunities.is_none() && self.packets() > 0 {
            self.transmit(now_ns, u32::MAX, sink);
        }
    }

    /// When the next packet could leave or go on leaving; `None` when none waits.
    pub(crate) fn next_departure_ns(&self) -> Option<u64> {
        if self.packets() == 0 { None } else { self.next_opportunity_ns() }
    }

    /// Packets waiting or in transmission.
    pub(crate) fn packets(&self) -> usize {
        self.queue.len() + usize::from(self.in_transit.is_some())
    }

    /// Their bytes not yet transmitted.
    pub(crate) fn bytes(&self) -> u64 {
        self.queue.bytes() + self.in_transit.as_ref().map_or(0, |(_, left)| u64::from(*left))
    }

    fn next_opportunity_ns(&self) -> Option<u64> {
        self.opportunities.as_ref()?.peek_ns()
    }

    /// Spends `budget` bytes on the packet in transmission and on those behind it.
    fn transmit(&mut self, at_ns: u64, mut budget: u32, sink: &mut impl FnMut(Event<H>)) {
        while budget > 0 {
            let Some((packet, left)) = self.in_transit.take().or_else(|| self.dequeue(at_ns, sink)) else {
                return;
            };
            let sent = left.min(budget);
            budget -= sent;
            if sent == left {
                sink(Event::Departure { at_ns, packet });
            } else {
                self.in_transit = Some((packet, left - sent));
            }
        }
    }

    fn dequeue(&mut self, at_ns: u64, sink: &mut impl FnMut(Event<H>)) -> Option<(Packet<H>, u32)> {
        let packet = self.queue.dequeue(at_ns, &mut |packet| sink(Event::Drop { at_ns, packet }))?;
        let size = packet.size;
        Some((packet, size))
    }
}
