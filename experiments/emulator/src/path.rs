//! One direction of a link, sans-IO: random loss, propagation delay, then the bottleneck.
//!
//! Times are nanoseconds since any origin and never decrease. Sizes count mahimahi's way: the IP packet and the 4 bytes
//! of its TUN header ([`TUN_HEADER_BYTES`]), so that a full packet is one opportunity. What a packet is (`H`) is the caller's matter.

use std::collections::VecDeque;

use rand_chacha::ChaCha8Rng;
use rand_core::{RngCore, SeedableRng};

use crate::bottleneck::Bottleneck;
use crate::config::{Loss, PathConfig};
use crate::shape::Shape;

/// What mahimahi counts beside the IP packet.
pub const TUN_HEADER_BYTES: u32 = 4;

/// A packet at the bottleneck.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Packet<H> {
    /// The caller's.
    pub handle: H,
    /// Bytes.
    pub size: u32,
    /// When it came to the bottleneck, nanoseconds.
    pub arrived_ns: u64,
}

/// What happens on a path, in order of time. Every packet sent ends in exactly one `Loss`, `Drop` or `Departure`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event<H> {
    /// A packet was lost at random as it entered.
    Loss {
        /// When, nanoseconds.
        at_ns: u64,
        /// The packet.
        packet: Packet<H>,
    },
    /// A packet came to the bottleneck.
    Arrival {
        /// When, nanoseconds.
        at_ns: u64,
        /// Bytes.
        size: u32,
    },
    /// The bottleneck could deliver 1504 bytes.
    Opportunity {
        /// When, nanoseconds.
        at_ns: u64,
    },
    /// The queue had no room for a packet.
    Drop {
        /// When, nanoseconds.
        at_ns: u64,
        /// The packet.
        packet: Packet<H>,
    },
    /// A packet left.
    Departure {
        /// When, nanoseconds.
        at_ns: u64,
        /// The packet.
        packet: Packet<H>,
    },
}

/// One direction of a link.
#[derive(Debug)]
pub struct Path<H> {
    loss: LossProcess,
    delay_ns: u64,
    /// Packets on their way, with the time of their arrival at the bottleneck; never out of order.
    delayed: VecDeque<Packet<H>>,
    bottleneck: Bottleneck<H>,
}

impl<H> Path<H> {
    /// A path whose opportunities count from `now_ns`.
    pub fn new(config: &PathConfig, now_ns: u64) -> Path<H> {
        Path {
            loss: LossProcess::new(config.loss),
            delay_ns: config.delay_us * 1000,
            delayed: VecDeque::new(),
            bottleneck: Bottleneck::new(&config.shape, config.queue, now_ns),
        }
    }

    /// A packet enters.
    pub fn send(&mut self, now_ns: u64, handle: H, size: u32, sink: &mut impl FnMut(Event<H>)) {
        // A delay that was shortened lets no packet overtake.
        let last_ns = self.delayed.back().map_or(0, |packet| packet.arrived_ns);
        let arrived_ns = (now_ns + self.delay_ns).max(last_ns);
        let packet = Packet { handle, size, arrived_ns };
        if self.loss.strikes() {
            sink(Event::Loss { at_ns: now_ns, packet });
        } else {
            self.delayed.push_back(packet);
        }
    }

    /// Lets everything happen that is due by `now_ns`.
    pub fn advance(&mut self, now_ns: u64, sink: &mut impl FnMut(Event<H>)) {
        while self.delayed.front().is_some_and(|packet| packet.arrived_ns <= now_ns) {
            if let Some(packet) = self.delayed.pop_front() {
                self.bottleneck.arrive(packet, sink);
            }
        }
        self.bottleneck.advance(now_ns, sink);
    }

    /// When [`Path::advance`] has a packet to move next, nanoseconds; `None` when nothing is on the way or nothing can leave.
    pub fn next_ns(&self) -> Option<u64> {
        let arrival_ns = self.delayed.front().map(|packet| packet.arrived_ns);
        [arrival_ns, self.bottleneck.next_departure_ns()].into_iter().flatten().min()
    }

    /// Changes how fast the bottleneck delivers, from `now_ns` on; packets in the queue and in transmission stay.
    pub fn set_shape(&mut self, now_ns: u64, shape: &Shape, sink: &mut impl FnMut(Event<H>)) {
        self.advance(now_ns, sink);
        self.bottleneck.set_shape(now_ns, shape, sink);
    }

    /// Changes the propagation delay, microseconds, of packets that enter from now on.
    pub fn set_delay_us(&mut self, delay_us: u64) {
        self.delay_ns = delay_us * 1000;
    }

    /// Changes the loss of packets that enter from now on.
    pub fn set_loss(&mut self, loss: Loss) {
        self.loss = LossProcess::new(loss);
    }

    /// Packets under propagation.
    pub fn delayed_packets(&self) -> usize {
        self.delayed.len()
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

/// Independent losses: a draw below the threshold strikes.
#[derive(Debug)]
struct LossProcess {
    /// Of 2^32.
    threshold: u64,
    random: ChaCha8Rng,
}

impl LossProcess {
    fn new(loss: Loss) -> LossProcess {
        let threshold = (loss.probability * f64::from(u32::MAX) + loss.probability).round() as u64;
        LossProcess { threshold, random: ChaCha8Rng::seed_from_u64(loss.seed) }
    }

    fn strikes(&mut self) -> bool {
        self.threshold > 0 && u64::from(self.random.next_u32()) < self.threshold
    }
}

#[cfg(test)]
mod tests;
