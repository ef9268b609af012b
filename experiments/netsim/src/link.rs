//! One link: random loss, a queue, and a server of fixed rate or of a trace.
//!
//! A link keeps no clock and schedules nothing itself: [`Link::enqueue`] and [`Link::serve`] say when it wants
//! to be served next.

use crate::config::{Capacity, LinkChange, LinkConfig, Outage, PPM};
use crate::network::Packet;
use crate::queue::Queue;
use crate::trace::{OPPORTUNITY_BYTES, Schedule};
use crate::workload::Random;
use rand_chacha::ChaCha8Rng;
use rand_core::{RngCore, SeedableRng};

const NS_PER_MS: u64 = 1_000_000;
const NS_PER_S: u64 = 1_000_000_000;
/// Streams of the seed for jitter, past those of losses.
const JITTER_STREAM: u64 = 1 << 33;

/// What a link has counted since the network's start, acknowledgements and cross traffic included.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct LinkStats {
    /// Packets offered.
    pub arrived: u64,
    /// Packets lost at random.
    pub lost: u64,
    /// Packets that the queue dropped, full or not.
    pub dropped: u64,
    /// Packets that the queue marked.
    pub marked: u64,
    /// Packets sent on.
    pub departed: u64,
    /// Wire bytes sent on, the link's overhead included.
    pub departed_bytes: u64,
    /// Longest the queue has been, wire bytes.
    pub max_queue_bytes: u64,
}

pub(crate) struct Link {
    server: Server,
    queue: Queue,
    /// A packet is lost if 32 random bits are below this.
    loss_threshold: u64,
    rng: ChaCha8Rng,
    in_service: Option<InService>,
    /// Whether it has asked to be served.
    asked: bool,
    outages: Box<[Outage]>,
    delay_ns: u64,
    jitter: Option<Box<Jitter>>,
    stats: LinkStats,
}

struct InService {
    packet: Packet,
    /// Bytes not yet served; counts down on a trace only.
    bytes_left: u32,
}

struct Jitter {
    max_ns: u64,
    random: Random,
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
    /// `config` must have passed its check. Each link of a network has its own streams of the seed.
    pub(crate) fn new(config: &LinkConfig, seed: u64, index: usize) -> Link {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        rng.set_stream(index as u64);
        let server = match &config.capacity {
            Capacity::Rate { bit_per_s } => Server::Rate { bit_per_s: *bit_per_s, remainder: 0 },
            Capacity::Trace { trace, repeat } => Server::Trace(trace.schedule(*repeat)),
        };
        let jitter = || {
            Box::new(Jitter {
                max_ns: config.jitter_ns,
                random: Random::new(seed, JITTER_STREAM + index as u64),
            })
        };
        Link {
            server,
            queue: Queue::new(config, seed, index),
            loss_threshold: loss_threshold(config.loss_ppm),
            rng,
            in_service: None,
            asked: false,
            outages: config.outages.clone().into(),
            delay_ns: config.delay_ns,
            jitter: (config.jitter_ns > 0).then(jitter),
            stats: LinkStats::default(),
        }
    }

    /// Makes it another; false if it follows a trace and was to have another rate: nothing is changed then.
    pub(crate) fn change(&mut self, change: &LinkChange) -> bool {
        match (&mut self.server, change.bit_per_s) {
            (_, None) => {}
            (Server::Rate { bit_per_s, remainder }, Some(rate)) => (*bit_per_s, *remainder) = (rate, 0),
            (Server::Trace(_), Some(_)) => return false,
        }
        self.delay_ns = change.delay_ns.unwrap_or(self.delay_ns);
        self.loss_threshold = change.loss_ppm.map_or(self.loss_threshold, loss_threshold);
        true
    }

    /// Offers a packet. Packets that don't get through go to `drop`. When the link, idle until now, wants to be
    /// served, nanoseconds.
    #[inline]
    pub(crate) fn enqueue(
        &mut self,
        now_ns: u64,
        packet: Packet,
        drop: &mut impl FnMut(Packet),
    ) -> Option<u64> {
        self.stats.arrived += 1;
        if self.loss_threshold > 0 && u64::from(self.rng.next_u32()) < self.loss_threshold {
            self.stats.lost += 1;
            drop(packet);
            return None;
        }
        if !self.asked && self.queue.is_empty() && self.in_service.is_none() {
            self.start(now_ns, packet, drop)
        } else {
            self.wait(now_ns, packet, drop);
            None
        }
    }

    #[inline]
    fn wait(&mut self, now_ns: u64, packet: Packet, drop: &mut impl FnMut(Packet)) {
        let dropped = &mut self.stats.dropped;
        self.queue.push(now_ns, packet, &mut |packet| {
            *dropped += 1;
            drop(packet);
        });
        self.stats.max_queue_bytes = self.stats.max_queue_bytes.max(self.queue.bytes());
    }

    fn start(&mut self, now_ns: u64, packet: Packet, drop: &mut impl FnMut(Packet)) -> Option<u64> {
        if let Server::Trace(_) = self.server {
            // An opportunity may be a long time off: until then the packet waits, as in mahimahi.
            self.wait(now_ns, packet, drop);
            if self.queue.is_empty() {
                return None;
            }
        }
        let bytes = self.queue.size(&packet);
        let at_ns = match &mut self.server {
            Server::Rate { bit_per_s, remainder } => {
                *remainder = 0;
                let ns = serialisation_ns(bytes, *bit_per_s, remainder);
                self.queue.pass_by(now_ns);
                self.in_service = Some(InService { packet, bytes_left: 0 });
                Some(finish_ns(&self.outages, now_ns, ns))
            }
            Server::Trace(schedule) => {
                schedule.seek(now_ns / NS_PER_MS + 1);
                next_opportunity_ns(schedule, &self.outages)
            }
        };
        self.asked = at_ns.is_some();
        at_ns
    }

    /// Serves at the time that was asked for. Hands packets that depart now to `depart`, those that the queue
    /// drops meanwhile to `drop`, and returns when the link wants to be served next, if it is not idle.
    #[inline]
    pub(crate) fn serve(
        &mut self,
        now_ns: u64,
        mut depart: impl FnMut(Packet),
        drop: &mut impl FnMut(Packet),
    ) -> Option<u64> {
        let next_ns = match self.server {
            Server::Rate { bit_per_s, mut remainder } => {
                if let Some(service) = self.in_service.take() {
                    self.note_departure(&service.packet);
                    depart(service.packet);
                }
                self.next(now_ns, drop).map(|packet| {
                    let ns = serialisation_ns(self.queue.size(&packet), bit_per_s, &mut remainder);
                    self.server = Server::Rate { bit_per_s, remainder };
                    self.in_service = Some(InService { packet, bytes_left: 0 });
                    finish_ns(&self.outages, now_ns, ns)
                })
            }
            Server::Trace(_) => self.use_opportunity(now_ns, depart, drop),
        };
        self.asked = next_ns.is_some();
        next_ns
    }

    fn use_opportunity(
        &mut self,
        now_ns: u64,
        mut depart: impl FnMut(Packet),
        drop: &mut impl FnMut(Packet),
    ) -> Option<u64> {
        let mut budget = OPPORTUNITY_BYTES;
        while budget > 0 {
            let mut service = match self.in_service.take() {
                Some(service) => service,
                None => match self.next(now_ns, drop) {
                    Some(packet) => InService { packet, bytes_left: self.queue.size(&packet) as u32 },
                    None => break,
                },
            };
            let served = service.bytes_left.min(budget);
            service.bytes_left -= served;
            budget -= served;
            if service.bytes_left > 0 {
                self.in_service = Some(service);
                break;
            }
            self.note_departure(&service.packet);
            depart(service.packet);
        }
        let Server::Trace(schedule) = &mut self.server else { return None };
        schedule.next();
        // An idle link finds its place in the trace again when the next packet arrives.
        if self.in_service.is_none() && self.queue.is_empty() {
            return None;
        }
        next_opportunity_ns(schedule, &self.outages)
    }

    #[inline]
    fn next(&mut self, now_ns: u64, drop: &mut impl FnMut(Packet)) -> Option<Packet> {
        let dropped = &mut self.stats.dropped;
        self.queue.pop(now_ns, &mut |packet| {
            *dropped += 1;
            drop(packet);
        })
    }

    #[inline]
    fn note_departure(&mut self, packet: &Packet) {
        self.stats.departed += 1;
        self.stats.departed_bytes += self.queue.size(packet);
    }

    /// How long the next packet takes from here to the link's end.
    #[inline]
    pub(crate) fn propagation_ns(&mut self) -> u64 {
        match &mut self.jitter {
            None => self.delay_ns,
            Some(jitter) => self.delay_ns + jitter.random.up_to(jitter.max_ns),
        }
    }

    pub(crate) fn delay_ns(&self) -> u64 {
        self.delay_ns
    }

    pub(crate) fn stats(&self) -> LinkStats {
        LinkStats { marked: self.queue.marked, ..self.stats }
    }

    /// Wire bytes waiting, without the packet in service.
    pub(crate) fn queue_bytes(&self) -> u64 {
        self.queue.bytes()
    }

    /// Packets held, the one in service included.
    pub(crate) fn held(&self) -> u64 {
        self.queue.len() as u64 + u64::from(self.in_service.is_some())
    }

    pub(crate) fn heap_bytes(&self) -> usize {
        size_of::<Self>() + self.queue.heap_bytes()
    }

    pub(crate) fn packets(&self) -> impl Iterator<Item = &Packet> {
        self.in_service.iter().map(|s| &s.packet).chain(self.queue.packets())
    }
}

/// Of 2^32.
fn loss_threshold(loss_ppm: u32) -> u64 {
    (u64::from(loss_ppm) << 32) / u64::from(PPM)
}

#[inline]
fn serialisation_ns(bytes: u64, bit_per_s: u64, remainder: &mut u64) -> u64 {
    // At most 2^20 bits * 10^9 + the rate: fits.
    let bits_ns = bytes * 8 * NS_PER_S + *remainder;
    *remainder = bits_ns % bit_per_s;
    bits_ns / bit_per_s
}

/// When work of so long is done that starts now, but rests in outages.
#[inline]
fn finish_ns(outages: &[Outage], now_ns: u64, work_ns: u64) -> u64 {
    let mut done_ns = now_ns + work_ns;
    for outage in outages {
        if outage.from_ns >= done_ns {
            break;
        }
        if outage.until_ns > now_ns {
            done_ns += outage.until_ns - outage.from_ns.max(now_ns);
        }
    }
    done_ns
}

/// The next opportunity outside of outages; those inside are lost.
fn next_opportunity_ns(schedule: &mut Schedule, outages: &[Outage]) -> Option<u64> {
    let mut at_ns = schedule.peek()? * NS_PER_MS;
    for outage in outages {
        if outage.from_ns > at_ns {
            break;
        }
        if outage.until_ns > at_ns {
            schedule.seek(outage.until_ns.div_ceil(NS_PER_MS));
            at_ns = schedule.peek()? * NS_PER_MS;
        }
    }
    Some(at_ns)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::Trace;

    const OUTAGES: &[Outage] =
        &[Outage { from_ns: 100, until_ns: 150 }, Outage { from_ns: 200, until_ns: 300 }];

    #[test]
    fn work_rests_in_outages() {
        for (now_ns, work_ns, done_ns) in [
            (0, 100, 100),
            (0, 101, 151),
            (90, 20, 160),
            (110, 20, 170),
            (149, 60, 310),
            (150, 50, 200),
            (150, 51, 301),
            (300, 9, 309),
            (0, 160, 310),
        ] {
            assert_eq!(finish_ns(OUTAGES, now_ns, work_ns), done_ns, "{now_ns} + {work_ns}");
        }
    }

    #[test]
    fn opportunities_in_outages_are_lost() {
        let mut schedule = Trace::parse("1\n2\n3\n5\n9\n").unwrap().schedule(false);
        let outage = |from_ms: u64, until_ms: u64| Outage {
            from_ns: from_ms * NS_PER_MS,
            until_ns: until_ms * NS_PER_MS,
        };
        let outages = [outage(2, 4), outage(5, 6)];
        assert_eq!(next_opportunity_ns(&mut schedule, &outages), Some(NS_PER_MS));
        schedule.next();
        assert_eq!(next_opportunity_ns(&mut schedule, &outages), Some(9 * NS_PER_MS));
    }
}
