//! One link: random loss, a queue, and a server of fixed rate or of a trace.
//!
//! A link keeps no clock and schedules nothing itself: [`Link::enqueue`] and [`Link::serve`] say when it wants
//! to be served next.

use crate::config::{Capacity, Ingress, LinkChange, LinkConfig, Outage};
use crate::ingress::{IngressOutcome, Processes, threshold};
use crate::packet::Packet;
use crate::queue::Queue;
use crate::trace::{OPPORTUNITY_BYTES, Schedule};
use crate::workload::Random;
use rand_chacha::ChaCha8Rng;
use rand_core::{RngCore, SeedableRng};

const NS_PER_MS: u64 = 1_000_000;
const NS_PER_S: u64 = 1_000_000_000;
const OPPORTUNITY_BITS_NS: u64 = OPPORTUNITY_BYTES as u64 * 8 * NS_PER_S;
/// Streams of the seed for jitter, past those of losses.
const JITTER_STREAM: u64 = 1 << 33;

/// The counters of a link since the network's start, acknowledgements and cross traffic included.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct LinkStats {
    /// Packets that came to the link.
    pub arrived: u64,
    /// Packets lost at random, alone or in bursts.
    pub lost: u64,
    /// Packets that the policer dropped.
    pub policed: u64,
    /// Copies that were made of packets; each also counts as offered.
    pub duplicated: u64,
    /// Packets that the queue dropped, full or not.
    pub dropped: u64,
    /// Packets that the queue marked.
    pub marked: u64,
    /// Packets that the link passed on.
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
    ingress: Option<Box<Processes>>,
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
    Slots(Slots),
    Trace(Schedule),
}

/// Opportunities at equal distances.
struct Slots {
    bit_per_s: u64,
    /// When the next one comes, and what the division by the rate left of it.
    next_ns: u64,
    remainder: u64,
}

impl Slots {
    fn new(bit_per_s: u64) -> Slots {
        let mut slots = Slots { bit_per_s, next_ns: 0, remainder: 0 };
        slots.skip(1);
        slots
    }

    /// Skips opportunities.
    fn skip(&mut self, count: u64) {
        let bits_ns = u128::from(count) * u128::from(OPPORTUNITY_BITS_NS) + u128::from(self.remainder);
        let rate = u128::from(self.bit_per_s);
        self.next_ns = self.next_ns.saturating_add(u64::try_from(bits_ns / rate).unwrap_or(u64::MAX));
        self.remainder = (bits_ns % rate) as u64;
    }

    /// Passes by all that come no later than this.
    fn seek(&mut self, now_ns: u64) {
        if self.next_ns <= now_ns {
            let missed = u128::from(now_ns - self.next_ns) * u128::from(self.bit_per_s);
            self.skip(u64::try_from(missed / u128::from(OPPORTUNITY_BITS_NS)).unwrap_or(u64::MAX));
        }
        while self.next_ns <= now_ns {
            self.step();
        }
    }

    #[inline]
    fn step(&mut self) {
        let bits_ns = OPPORTUNITY_BITS_NS + self.remainder;
        self.next_ns += bits_ns / self.bit_per_s;
        self.remainder = bits_ns % self.bit_per_s;
    }
}

impl Link {
    /// `config` must have passed its check. Each link of a network has its own streams of the seed.
    pub(crate) fn new(config: &LinkConfig, seed: u64, index: usize) -> Link {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        rng.set_stream(index as u64);
        let server = match &config.capacity {
            Capacity::Rate { bit_per_s } => Server::Rate { bit_per_s: *bit_per_s, remainder: 0 },
            Capacity::Slots { bit_per_s } => Server::Slots(Slots::new(*bit_per_s)),
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
            loss_threshold: threshold(config.loss_ppm),
            rng,
            in_service: None,
            asked: false,
            outages: config.outages.clone().into(),
            delay_ns: config.delay_ns,
            jitter: (config.jitter_ns > 0).then(jitter),
            ingress: (config.ingress != Ingress::default())
                .then(|| Box::new(Processes::new(&config.ingress, seed, index))),
            stats: LinkStats::default(),
        }
    }

    /// Makes it another; false if it follows a trace and was to have another rate: nothing is changed then.
    pub(crate) fn change(&mut self, change: &LinkChange) -> bool {
        match (&mut self.server, change.bit_per_s) {
            (_, None) => {}
            (Server::Rate { bit_per_s, remainder }, Some(rate)) => (*bit_per_s, *remainder) = (rate, 0),
            (Server::Slots(slots), Some(rate)) => (slots.bit_per_s, slots.remainder) = (rate, 0),
            (Server::Trace(_), Some(_)) => return false,
        }
        self.delay_ns = change.delay_ns.unwrap_or(self.delay_ns);
        self.loss_threshold = change.loss_ppm.map_or(self.loss_threshold, threshold);
        true
    }

    /// Whether more than independent loss happens to packets before its queue.
    #[inline]
    pub(crate) fn has_ingress(&self) -> bool {
        self.ingress.is_some()
    }

    /// Counts a packet that is offered; whether it is lost on its own.
    #[inline]
    pub(crate) fn loses(&mut self) -> bool {
        self.stats.arrived += 1;
        let lost = self.loss_threshold > 0 && u64::from(self.rng.next_u32()) < self.loss_threshold;
        self.stats.lost += u64::from(lost);
        lost
    }

    /// Whether the packet that is offered next comes twice.
    pub(crate) fn copies(&mut self) -> bool {
        let copies = self.ingress.as_mut().is_some_and(|ingress| ingress.copies());
        self.stats.duplicated += u64::from(copies);
        copies
    }

    /// The way to its queue of a packet that is not lost on its own.
    pub(crate) fn way(&mut self, now_ns: u64, packet: &Packet) -> IngressOutcome {
        let Some(ingress) = &mut self.ingress else { return IngressOutcome::Straight };
        let way = ingress.way(now_ns, self.queue.size(packet));
        self.stats.lost += u64::from(way == IngressOutcome::Lost);
        self.stats.policed += u64::from(way == IngressOutcome::Policed);
        way
    }

    /// Takes a packet into the queue. Packets that don't get through go to `drop`. When the link, idle until now, wants
    /// to be served, nanoseconds.
    #[inline]
    pub(crate) fn enqueue(
        &mut self,
        now_ns: u64,
        packet: Packet,
        drop: &mut impl FnMut(Packet),
    ) -> Option<u64> {
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
        if let Server::Slots(_) | Server::Trace(_) = self.server {
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
            Server::Slots(slots) => {
                slots.seek(now_ns);
                Some(finish_ns(&self.outages, slots.next_ns, 0))
            }
            Server::Trace(schedule) => {
                schedule.seek(now_ns / NS_PER_MS + 1);
                next_opportunity_ns(schedule, &self.outages)
            }
        };
        self.asked = at_ns.is_some();
        at_ns
    }

    /// Serves at the time that was asked for. Hands packets that depart now to `depart`, and those that the
    /// queue drops meanwhile to `drop`. Returns when the link wants to be served next, if it is not idle.
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
            Server::Slots(_) | Server::Trace(_) => self.use_opportunity(now_ns, depart, drop),
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
        // An idle link finds its place again when the next packet arrives.
        let idle = self.in_service.is_none() && self.queue.is_empty();
        match &mut self.server {
            Server::Rate { .. } => None,
            Server::Slots(slots) => {
                slots.seek(now_ns);
                (!idle).then(|| finish_ns(&self.outages, slots.next_ns, 0))
            }
            Server::Trace(schedule) => {
                schedule.next();
                if idle { None } else { next_opportunity_ns(schedule, &self.outages) }
            }
        }
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

    /// Returns the time that the next packet takes from here to the link's end.
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

#[inline]
fn serialisation_ns(bytes: u64, bit_per_s: u64, remainder: &mut u64) -> u64 {
    // At most 2^20 bits * 10^9 + the rate: fits.
    let bits_ns = bytes * 8 * NS_PER_S + *remainder;
    *remainder = bits_ns % bit_per_s;
    bits_ns / bit_per_s
}

/// Returns the end of work that starts now and rests in outages, nanoseconds.
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
    fn work_stands_still_in_outages() {
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
