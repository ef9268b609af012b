//! One direction of a link, sans-IO: losses, a policer, propagation delay, then the bottleneck.
//!
//! Times are nanoseconds since any origin and never decrease. Sizes count mahimahi's way: the IP packet and the 4 bytes
//! of its TUN header ([`TUN_HEADER_BYTES`]), so that a full packet is one opportunity. What a packet is (`H`) is the caller's matter.

use rand_chacha::ChaCha8Rng;

use crate::bottleneck::Bottleneck;
use crate::class::LAST;
use crate::config::PathConfig;
use crate::impair::{Chance, DelayLine, Loss, Losses, Stream, TokenBucket};
use crate::shape::Shape;

pub use crate::event::{Event, Packet, TUN_HEADER_BYTES};

/// One direction of a link.
#[derive(Debug)]
pub struct Path<H> {
    copies: (Chance, ChaCha8Rng),
    losses: Losses,
    policer: Option<TokenBucket>,
    line: DelayLine<H>,
    bottleneck: Bottleneck<H>,
}

impl<H> Path<H> {
    /// A path whose opportunities count from `now_ns`.
    pub fn new(config: &PathConfig, now_ns: u64) -> Path<H> {
        let impairments = &config.impairments;
        Path {
            copies: (Chance::of(impairments.duplicate), Stream::Duplicate.of(impairments.seed)),
            losses: Losses::new(config.loss, impairments, now_ns),
            policer: impairments.policer.map(|policer| TokenBucket::new(policer, now_ns)),
            line: DelayLine::new(config.delay_us, impairments),
            bottleneck: Bottleneck::new(&config.shape, config.queue, now_ns),
        }
    }

    /// Whether the next packet is to be sent twice; asked once for each, before it is sent. Its copies' fates are their own.
    pub fn duplicates(&mut self) -> bool {
        let (chance, random) = &mut self.copies;
        chance.strikes(random)
    }

    /// Sends a packet of `size` bytes into the path, with the priority of one that asks for none.
    pub fn send(&mut self, now_ns: u64, handle: H, size: u32, sink: &mut impl FnMut(Event<H>)) {
        self.send_packet(Packet { handle, size, priority: LAST, arrived_ns: now_ns }, sink);
    }

    /// Sends a packet into the path at its `arrived_ns`.
    pub fn send_packet(&mut self, packet: Packet<H>, sink: &mut impl FnMut(Event<H>)) {
        let now_ns = packet.arrived_ns;
        if self.losses.strike(now_ns) {
            sink(Event::Loss { at_ns: now_ns, packet });
        } else if self.policer.as_mut().is_some_and(|policer| !policer.passes(now_ns, packet.size)) {
            sink(Event::Policed { at_ns: now_ns, packet });
        } else {
            self.line.enter(packet);
        }
    }

    /// Lets everything happen that is due by `now_ns`.
    pub fn advance(&mut self, now_ns: u64, sink: &mut impl FnMut(Event<H>)) {
        while let Some(packet) = self.line.pop(now_ns) {
            self.bottleneck.arrive(packet, sink);
        }
        self.bottleneck.advance(now_ns, sink);
    }

    /// When [`Path::advance`] has a packet to move next, nanoseconds; `None` when nothing is on the way or nothing can leave.
    pub fn next_ns(&self) -> Option<u64> {
        [self.line.next_ns(), self.bottleneck.next_departure_ns()].into_iter().flatten().min()
    }

    /// Changes how fast the bottleneck delivers, from `now_ns` on; packets in the queue and in transmission stay.
    pub fn set_shape(&mut self, now_ns: u64, shape: &Shape, sink: &mut impl FnMut(Event<H>)) {
        self.advance(now_ns, sink);
        self.bottleneck.set_shape(now_ns, shape, sink);
    }

    /// Changes the propagation delay, microseconds, of packets that enter from now on.
    pub fn set_delay_us(&mut self, delay_us: u64) {
        self.line.set_delay_us(delay_us);
    }

    /// Changes the independent loss of packets that enter from now on.
    pub fn set_loss(&mut self, loss: Loss) {
        self.losses.set_independent(loss);
    }

    /// Returns the number of packets under propagation.
    pub fn delayed_packets(&self) -> usize {
        self.line.len()
    }

    /// Packets waiting at the bottleneck or in transmission.
    pub fn queued_packets(&self) -> usize {
        self.bottleneck.packets()
    }

    /// Their bytes, without those already transmitted.
    pub fn queued_bytes(&self) -> u64 {
        self.bottleneck.bytes()
    }
}

#[cfg(test)]
mod tests;
