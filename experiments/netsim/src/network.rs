//! The network: links, paths, receivers and timers around one event queue.

use crate::config::{ConfigError, LinkConfig, PathConfig, check_counts, check_flows};
use crate::events::{EventQueue, LaneId, Next};
use crate::link::{Enqueued, Link, LinkStats};
use crate::receiver::{Ack, Receiver, ReceiverStats};
use std::collections::BTreeMap;

/// Timers that each flow has.
pub const TIMERS_PER_FLOW: usize = 2;

/// Names a flow of one network; counts from 0.
pub type FlowIndex = u32;

/// What a sender hands to the network.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Segment {
    /// The segment's number, from 0; the receiver acknowledges in order of these.
    pub seq: u64,
    /// The sender's number for this transmission; comes back in the [`Ack`].
    pub tx: u64,
    /// Wire bytes, headers included.
    pub bytes: u16,
}

/// What happens outside the network, in answer to which the caller may send and set timers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Occurrence {
    /// An acknowledgement reached its sender.
    Ack {
        /// The flow.
        flow: FlowIndex,
        /// What it says.
        ack: Ack,
    },
    /// A timer ran out.
    Timer {
        /// The flow.
        flow: FlowIndex,
        /// Which of its [`TIMERS_PER_FLOW`].
        timer: u8,
    },
    /// A time asked for with [`Network::wake_at`] has come.
    Wake {
        /// The caller's own mark.
        token: u64,
    },
}

/// A segment under way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Packet {
    pub(crate) flow: FlowIndex,
    pub(crate) bytes: u16,
    hop: u8,
    seq: u64,
    tx: u64,
}

#[derive(Clone, Copy)]
enum Single {
    ServeLink(u8),
    Timer { flow: FlowIndex, timer: u8 },
    Wake(u64),
}

#[derive(Clone, Copy)]
enum InFlight {
    Packet(Packet),
    Ack { flow: FlowIndex, ack: Ack },
}

struct Path {
    links: Vec<u8>,
    return_delay_ns: u64,
    return_lane: LaneId,
    receiver: Receiver,
    timers: [Timer; TIMERS_PER_FLOW],
}

const NEVER_NS: u64 = u64::MAX;

/// Most timers are put off again and again: only the earliest time ever asked for is in the queue, and moves
/// on to the deadline when it comes.
#[derive(Clone, Copy)]
struct Timer {
    deadline_ns: u64,
    scheduled_ns: u64,
}

/// Links, flows' paths, and what is under way between them.
pub struct Network {
    now_ns: u64,
    events: EventQueue<Single, InFlight>,
    links: Vec<Link>,
    /// Each link's propagation.
    link_lanes: Vec<LaneId>,
    /// Return paths of the same delay share a line.
    return_lanes: BTreeMap<u64, LaneId>,
    paths: Vec<Path>,
    sent: u64,
    propagating: u64,
    digest: u64,
}

impl Network {
    /// A network of these links, with no flows. `seed` decides every random loss.
    ///
    /// # Errors
    /// The first field outside its limits.
    pub fn new(links: Vec<LinkConfig>, seed: u64) -> Result<Network, ConfigError> {
        check_counts(links.len())?;
        links.iter().try_for_each(LinkConfig::check)?;
        let mut events = EventQueue::default();
        Ok(Network {
            now_ns: 0,
            link_lanes: links.iter().map(|_| events.add_lane()).collect(),
            links: links.iter().enumerate().map(|(n, c)| Link::new(c, seed, n)).collect(),
            events,
            return_lanes: BTreeMap::new(),
            paths: Vec::new(),
            sent: 0,
            propagating: 0,
            digest: 0,
        })
    }

    /// Adds a flow, which may send at once.
    ///
    /// # Errors
    /// The first field outside its limits; nothing is changed then.
    pub fn add_flow(&mut self, config: &PathConfig) -> Result<FlowIndex, ConfigError> {
        check_flows(self.paths.len())?;
        config.check(self.links.len())?;
        let events = &mut self.events;
        let return_lane =
            *self.return_lanes.entry(config.return_delay_ns).or_insert_with(|| events.add_lane());
        self.paths.push(Path {
            links: config.links.clone(),
            return_delay_ns: config.return_delay_ns,
            return_lane,
            receiver: Receiver::default(),
            timers: [Timer { deadline_ns: NEVER_NS, scheduled_ns: NEVER_NS }; TIMERS_PER_FLOW],
        });
        Ok(self.paths.len() as FlowIndex - 1)
    }

    /// Virtual time, nanoseconds.
    pub fn now_ns(&self) -> u64 {
        self.now_ns
    }

    /// Offers a segment to the flow's first link now. A flow that does not exist sends nothing.
    #[inline]
    pub fn send(&mut self, flow: FlowIndex, segment: Segment) {
        let Segment { seq, tx, bytes } = segment;
        let Some(first) = self.paths.get(flow as usize).map(|p| p.links[0]) else { return };
        self.sent += 1;
        self.offer(first, Packet { flow, bytes, hop: 0, seq, tx });
    }

    /// Sets one of a flow's timers, in place of what it was set to; `None` stops it. Times past are now.
    pub fn set_timer(&mut self, flow: FlowIndex, timer: u8, at_ns: Option<u64>) {
        let now_ns = self.now_ns;
        let Some(t) = self.timer_mut(flow, timer) else { return };
        let Some(at_ns) = at_ns else {
            t.deadline_ns = NEVER_NS;
            return;
        };
        t.deadline_ns = at_ns.max(now_ns);
        if t.deadline_ns < t.scheduled_ns {
            t.scheduled_ns = t.deadline_ns;
            let at_ns = t.deadline_ns;
            self.events.schedule(at_ns, Single::Timer { flow, timer });
        }
    }

    /// Asks for an [`Occurrence::Wake`] at this time; a time past is now.
    pub fn wake_at(&mut self, at_ns: u64, token: u64) {
        self.events.schedule(at_ns.max(self.now_ns), Single::Wake(token));
    }

    /// Runs until something happens that the caller must see, at most until `until_ns`. `None`: nothing did,
    /// and it is `until_ns` now (or, where that is `u64::MAX`, nothing will ever happen again).
    pub fn next(&mut self, until_ns: u64) -> Option<Occurrence> {
        while let Some((at_ns, event)) = self.events.pop(until_ns) {
            self.now_ns = at_ns;
            let seen = match event {
                Next::Lane(_, InFlight::Packet(packet)) => self.arrive(packet),
                Next::Lane(_, InFlight::Ack { flow, ack }) => {
                    self.note(1, flow, ack.tx);
                    Some(Occurrence::Ack { flow, ack })
                }
                Next::Single(Single::ServeLink(link)) => self.serve(link),
                Next::Single(Single::Timer { flow, timer }) => self.timer_due(flow, timer),
                Next::Single(Single::Wake(token)) => {
                    self.note(2, 0, token);
                    Some(Occurrence::Wake { token })
                }
            };
            if seen.is_some() {
                return seen;
            }
        }
        if until_ns != u64::MAX {
            self.now_ns = self.now_ns.max(until_ns);
        }
        None
    }

    /// A digest of everything that has happened, each event with its time and in its order.
    pub fn digest(&self) -> u64 {
        self.digest
    }

    /// Packets that senders have offered.
    pub fn sent(&self) -> u64 {
        self.sent
    }

    /// Packets queued, in service or propagating; acknowledgements don't count.
    pub fn in_network(&self) -> u64 {
        self.propagating + self.links.iter().map(Link::held).sum::<u64>()
    }

    /// What a link has counted.
    pub fn link_stats(&self, link: u8) -> Option<LinkStats> {
        self.links.get(usize::from(link)).map(|l| l.stats)
    }

    /// Wire bytes in a link's queue, without the packet in service.
    pub fn queue_bytes(&self, link: u8) -> Option<u64> {
        self.links.get(usize::from(link)).map(Link::queue_bytes)
    }

    /// Packets that a link holds, the one in service included.
    pub fn held_packets(&self, link: u8) -> Option<u64> {
        self.links.get(usize::from(link)).map(Link::held)
    }

    /// What a flow's receiver has counted.
    pub fn receiver_stats(&self, flow: FlowIndex) -> Option<ReceiverStats> {
        self.paths.get(flow as usize).map(|p| p.receiver.stats())
    }

    #[inline]
    fn offer(&mut self, link: u8, packet: Packet) {
        match self.links[usize::from(link)].enqueue(self.now_ns, packet) {
            Enqueued::ServeAt(at_ns) => self.events.schedule(at_ns, Single::ServeLink(link)),
            Enqueued::Dropped => self.note(3, packet.flow, packet.tx),
            Enqueued::Waits | Enqueued::Dead => {}
        }
    }

    #[inline]
    fn serve(&mut self, link: u8) -> Option<Occurrence> {
        let index = usize::from(link);
        let (l, lane) = (&mut self.links[index], self.link_lanes[index]);
        let (events, propagating) = (&mut self.events, &mut self.propagating);
        let arrival_ns = self.now_ns + l.delay_ns;
        let next_ns = l.serve(self.now_ns, |packet| {
            *propagating += 1;
            events.append(lane, arrival_ns, InFlight::Packet(packet));
        });
        if let Some(at_ns) = next_ns {
            events.schedule(at_ns, Single::ServeLink(link));
        }
        self.note(4, link.into(), 0);
        None
    }

    #[inline]
    fn arrive(&mut self, mut packet: Packet) -> Option<Occurrence> {
        self.note(5, packet.flow, packet.tx);
        self.propagating -= 1;
        let path = self.paths.get_mut(packet.flow as usize)?;
        packet.hop += 1;
        if let Some(link) = path.links.get(usize::from(packet.hop)).copied() {
            self.offer(link, packet);
            return None;
        }
        let ack = path.receiver.on_segment(packet.seq, packet.tx, packet.bytes)?;
        let at_ns = self.now_ns + path.return_delay_ns;
        self.events.append(path.return_lane, at_ns, InFlight::Ack { flow: packet.flow, ack });
        None
    }

    fn timer_due(&mut self, flow: FlowIndex, timer: u8) -> Option<Occurrence> {
        let now_ns = self.now_ns;
        let t = self.timer_mut(flow, timer)?;
        if t.scheduled_ns != now_ns {
            // An entry that an earlier time had replaced.
            return None;
        }
        t.scheduled_ns = t.deadline_ns;
        if t.deadline_ns > now_ns {
            if t.deadline_ns != NEVER_NS {
                let at_ns = t.deadline_ns;
                self.events.schedule(at_ns, Single::Timer { flow, timer });
            }
            return None;
        }
        *t = Timer { deadline_ns: NEVER_NS, scheduled_ns: NEVER_NS };
        self.note(6, flow, timer.into());
        Some(Occurrence::Timer { flow, timer })
    }

    fn timer_mut(&mut self, flow: FlowIndex, timer: u8) -> Option<&mut Timer> {
        self.paths.get_mut(flow as usize)?.timers.get_mut(usize::from(timer))
    }

    #[inline]
    fn note(&mut self, kind: u64, flow: FlowIndex, number: u64) {
        // Odd multipliers (2^64 / golden ratio, and FxHash's) keep the step a bijection of the digest.
        let word =
            self.now_ns ^ (kind << 60) ^ (u64::from(flow) << 40) ^ number.wrapping_mul(0x517c_c1b7_2722_0a95);
        self.digest = (self.digest.rotate_left(23) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Capacity, QueueLimit};

    /// A timer put off or brought forward leaves entries behind, but each dies when its time comes.
    #[test]
    fn timers_do_not_pile_up() {
        let capacity = Capacity::Rate { bit_per_s: 1 };
        let link = LinkConfig { capacity, delay_ns: 0, loss_ppm: 0, queue: QueueLimit::Packets(1) };
        let mut net = Network::new(vec![link], 1).unwrap();
        let flow = net.add_flow(&PathConfig { links: vec![0], return_delay_ns: 0 }).unwrap();
        for _ in 0..1000 {
            let now_ns = net.now_ns();
            net.set_timer(flow, 0, Some(now_ns + 50));
            net.set_timer(flow, 0, Some(now_ns + 10));
            assert_eq!(net.next(u64::MAX), Some(Occurrence::Timer { flow, timer: 0 }));
            assert_eq!(net.now_ns(), now_ns + 10);
            assert!(net.events.len() <= 7, "{}", net.events.len());
        }
    }
}
