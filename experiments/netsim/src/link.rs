//! One link: random loss, a droptail queue, and a server of fixed rate or of a trace.
//!
//! A link keeps no clock and schedules nothing itself: [`Link::enqueue`] and [`Link::serve`] say when it wants
//! to be served next.

use crate::config::{Capacity, LinkConfig, MAX_QUEUE_PACKETS, PPM, QueueLimit};
use crate::network::Packet;
use crate::trace::{OPPORTUNITY_BYTES, Schedule};
use rand_chacha::ChaCha8Rng;
use rand_core::{RngCore, SeedableRng};
use std::collections::VecDeque;

const NS_PER_MS: u64 = 1_000_000;
const NS_PER_S: u64 = 1_000_000_000;

/// What a link has counted since the network's start.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct LinkStats {
    /// Packets offered.
    pub arrived: u64,
    /// Packets lost at random.
    pub lost: u64,
    /// Packets that found the queue full.
    pub dropped: u64,
    /// Packets sent on.
    pub departed: u64,
    /// Wire bytes sent on.
    pub departed_bytes: u64,
    /// Longest the queue has been, wire bytes.
    pub max_queue_bytes: u64,
}

/// What became of a packet that was offered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Enqueued {
    /// Lost at random, or the queue was full.
    Dropped,
    /// Waits; the link was busy.
    Waits,
    /// Waits, and the link, idle until now, wants to be served at this time, nanoseconds.
    ServeAt(u64),
    /// Waits for ever: the link's trace is over.
    Dead,
}

pub(crate) struct Link {
    server: Server,
    queue: VecDeque<Packet>,
    queue_bytes: u64,
    max_packets: usize,
    max_bytes: u64,
    /// A packet is lost if 32 random bits are below this.
    loss_threshold: u64,
    rng: ChaCha8Rng,
    in_service: Option<InService>,
    pub(crate) delay_ns: u64,
    pub(crate) stats: LinkStats,
}

struct InService {
    packet: Packet,
    /// Bytes not yet served; counts down on a trace only.
    bytes_left: u32,
}

enum Server {
    /// `remainder`: what the last division by the rate left, so that a busy link keeps its exact rate.
    Rate {
        bit_per_s: u64,
        remainder: u64,
    },
    Trace(Schedule),
}

impl Link {
    /// `config` must have passed its check. Each link of a network has its own stream of the seed.
    pub(crate) fn new(config: &LinkConfig, seed: u64, index: usize) -> Link {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        rng.set_stream(index as u64);
        let (max_packets, max_bytes) = match config.queue {
            QueueLimit::Packets(n) => (n, u64::MAX),
            QueueLimit::Bytes(n) => (MAX_QUEUE_PACKETS, n),
        };
        let server = match &config.capacity {
            Capacity::Rate { bit_per_s } => Server::Rate { bit_per_s: *bit_per_s, remainder: 0 },
            Capacity::Trace { trace, repeat } => Server::Trace(trace.schedule(*repeat)),
        };
        Link {
            server,
            queue: VecDeque::new(),
            queue_bytes: 0,
            max_packets: max_packets as usize,
            max_bytes,
            loss_threshold: (u64::from(config.loss_ppm) << 32) / u64::from(PPM),
            rng,
            in_service: None,
            delay_ns: config.delay_ns,
            stats: LinkStats::default(),
        }
    }

    /// Offers a packet.
    #[inline]
    pub(crate) fn enqueue(&mut self, now_ns: u64, packet: Packet) -> Enqueued {
        self.stats.arrived += 1;
        if self.loss_threshold > 0 && u64::from(self.rng.next_u32()) < self.loss_threshold {
            self.stats.lost += 1;
            return Enqueued::Dropped;
        }
        if self.in_service.is_none() {
            return self.start_service(now_ns, packet);
        }
        let bytes = u64::from(packet.bytes);
        if self.queue.len() >= self.max_packets || self.queue_bytes + bytes > self.max_bytes {
            self.stats.dropped += 1;
            return Enqueued::Dropped;
        }
        self.queue.push_back(packet);
        self.queue_bytes += bytes;
        self.stats.max_queue_bytes = self.stats.max_queue_bytes.max(self.queue_bytes);
        Enqueued::Waits
    }

    fn start_service(&mut self, now_ns: u64, packet: Packet) -> Enqueued {
        self.in_service = Some(InService { packet, bytes_left: packet.bytes.into() });
        match &mut self.server {
            Server::Rate { bit_per_s, remainder } => {
                *remainder = 0;
                Enqueued::ServeAt(now_ns + serialisation_ns(packet.bytes, *bit_per_s, remainder))
            }
            Server::Trace(schedule) => {
                schedule.seek(now_ns / NS_PER_MS + 1);
                schedule.peek().map_or(Enqueued::Dead, |ms| Enqueued::ServeAt(ms * NS_PER_MS))
            }
        }
    }

    /// Serves at the time that was asked for. Hands packets that depart now to `depart` and returns when the
    /// link wants to be served next, if it is not idle.
    #[inline]
    pub(crate) fn serve(&mut self, now_ns: u64, mut depart: impl FnMut(Packet)) -> Option<u64> {
        match self.server {
            Server::Rate { bit_per_s, mut remainder } => {
                depart(self.finish()?);
                let next = self.load()?;
                let at_ns = now_ns + serialisation_ns(next.bytes, bit_per_s, &mut remainder);
                self.server = Server::Rate { bit_per_s, remainder };
                Some(at_ns)
            }
            Server::Trace(_) => self.use_opportunity(depart),
        }
    }

    fn use_opportunity(&mut self, mut depart: impl FnMut(Packet)) -> Option<u64> {
        let mut budget = OPPORTUNITY_BYTES;
        while let Some(service) = &mut self.in_service {
            let served = service.bytes_left.min(budget);
            service.bytes_left -= served;
            budget -= served;
            if service.bytes_left > 0 {
                break;
            }
            depart(self.finish()?);
            self.load();
        }
        let Server::Trace(schedule) = &mut self.server else { return None };
        schedule.next();
        // An idle link finds its place in the trace again when the next packet arrives.
        self.in_service.as_ref()?;
        schedule.peek().map(|ms| ms * NS_PER_MS)
    }

    fn finish(&mut self) -> Option<Packet> {
        let packet = self.in_service.take()?.packet;
        self.stats.departed += 1;
        self.stats.departed_bytes += u64::from(packet.bytes);
        Some(packet)
    }

    fn load(&mut self) -> Option<Packet> {
        let packet = self.queue.pop_front()?;
        self.queue_bytes -= u64::from(packet.bytes);
        self.in_service = Some(InService { packet, bytes_left: packet.bytes.into() });
        Some(packet)
    }

    /// Wire bytes waiting, without the packet in service.
    pub(crate) fn queue_bytes(&self) -> u64 {
        self.queue_bytes
    }

    /// Packets held, the one in service included.
    pub(crate) fn held(&self) -> u64 {
        self.queue.len() as u64 + u64::from(self.in_service.is_some())
    }
}

fn serialisation_ns(bytes: u16, bit_per_s: u64, remainder: &mut u64) -> u64 {
    // At most 2^19 bits * 10^9 + the rate: fits.
    let bits_ns = u64::from(bytes) * 8 * NS_PER_S + *remainder;
    *remainder = bits_ns % bit_per_s;
    bits_ns / bit_per_s
}
