//! The network: links, paths, receivers and timers around one event queue.

use crate::config::{ConfigError, LinkChange, LinkConfig, PathConfig, check_counts, check_flows, within};
use crate::cross::{Cross, CrossConfig, CrossStats};
use crate::events::{AlarmId, EventQueue, LaneId, Next};
use crate::ingress::IngressOutcome;
use crate::link::{Link, LinkStats};
use crate::packet::{FlowIndex, PRIORITIES, Packet, Stage, flag};
use crate::receiver::{Ack, Delivery, Receiver, ReceiverStats, Reply};
use crate::single::Single;
use std::collections::BTreeMap;

/// Timers that each flow's sender has.
pub const TIMERS_PER_FLOW: usize = 2;
/// Sources of cross traffic of one network.
pub const MAX_CROSS: usize = 1024;
/// Wire bytes of an acknowledgement: IPv4 and TCP headers with the timestamp option.
pub const ACK_BYTES: u16 = 52;

/// From so many flows on, what the next packet will touch is read while this one is handled: fewer stay in the cache by themselves.
pub const MANY_FLOWS: usize = 64;

/// The receiver's timer, behind the sender's.
const ACK_TIMER: u8 = TIMERS_PER_FLOW as u8;

/// A segment that a sender hands to the network.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Segment {
    /// The segment's number, from 0; the receiver acknowledges in order of these.
    pub seq: u64,
    /// The sender's number for this transmission; comes back in the [`Ack`].
    pub tx: u64,
    /// Wire bytes, headers included.
    pub bytes: u16,
    /// Whether it carries PSH: its receiver's application reads at once, which acknowledges it.
    pub push: bool,
}

/// An event that a sender may answer by sending and setting timers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Occurrence {
    /// An acknowledgement reached its sender.
    Ack { flow: FlowIndex, ack: Ack },
    /// A timer ran out.
    Timer {
        flow: FlowIndex,
        /// The number of the timer, below [`TIMERS_PER_FLOW`].
        timer: u8,
    },
    /// A time asked for with [`Network::wake_at`] has come.
    Wake {
        /// The caller's own mark, below 2^56.
        token: u64,
    },
}

struct Path {
    links: Box<[u8]>,
    /// The routes from the second on.
    other_routes: Box<[Box<[u8]>]>,
    /// The priority of what is sent from now on.
    priority: u8,
    /// The route of what is sent from now on.
    route: u8,
    return_links: Box<[u8]>,
    access: Option<Delay>,
    /// The lane in which acknowledgements wait to be let go together before they cross links.
    release: Option<LaneId>,
    back: Delay,
    aggregate_ns: u64,
    flags: u8,
    receiver: Receiver,
    timers: [Timer; TIMERS_PER_FLOW + 1],
}

impl Path {
    #[inline]
    fn links_of(&self, packet: &Packet) -> &[u8] {
        match packet.route() {
            0 => &self.links,
            route => self.other_routes.get(route - 1).unwrap_or(&self.links),
        }
    }
}

/// A delay of its own, on a line.
#[derive(Clone, Copy)]
struct Delay {
    ns: u64,
    lane: LaneId,
}

const NEVER_NS: u64 = u64::MAX;

/// Most timers are put off again and again: only the earliest time ever asked for is in the queue, and moves
/// on to the deadline when it comes.
#[derive(Clone, Copy)]
struct Timer {
    deadline_ns: u64,
    scheduled_ns: u64,
}

/// Lines whose events come in order: one for each delay and aggregation.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Line {
    Access { delay_ns: u64 },
    Release { aggregate_ns: u64 },
    Back { delay_ns: u64, aggregate_ns: u64 },
}

impl Line {
    fn stage(self) -> Stage {
        match self {
            Line::Access { .. } | Line::Release { .. } => Stage::Between,
            Line::Back { .. } => Stage::Returned,
        }
    }
}

/// Links, flows' paths, and what is under way between them.
pub struct Network {
    now_ns: u64,
    seed: u64,
    events: EventQueue<Single, Stage, Packet>,
    links: Vec<Link>,
    /// The delay lane of each link.
    link_lanes: Vec<LaneId>,
    /// When each link wants to be served.
    serve_alarms: Vec<AlarmId>,
    /// Each link's way to its queue, for packets that jitter delays.
    entry_lanes: Vec<LaneId>,
    /// Packets that others overtake, and the links that they enter; the free places of it.
    held: Vec<Option<(u8, Packet)>>,
    held_free: Vec<u32>,
    lines: BTreeMap<Line, LaneId>,
    paths: Vec<Path>,
    cross: Vec<Cross>,
    acked: Vec<Delivery>,
    sent: u64,
    acks_sent: u64,
    acks_arrived: u64,
    digest: u64,
}

impl Network {
    /// A network of these links, with no flows. `seed` decides every random loss, delay and drop.
    ///
    /// # Errors
    /// The first field outside its limits.
    pub fn new(links: Vec<LinkConfig>, seed: u64) -> Result<Network, ConfigError> {
        check_counts(links.len())?;
        links.iter().try_for_each(LinkConfig::check)?;
        let mut events = EventQueue::default();
        Ok(Network {
            now_ns: 0,
            seed,
            link_lanes: links.iter().map(|_| events.add_lane(Stage::Between)).collect(),
            serve_alarms: (0..links.len())
                .map(|link| events.add_alarm(Single::ServeLink(link as u8)))
                .collect(),
            entry_lanes: (0..links.len()).map(|link| events.add_lane(Stage::Entering(link as u8))).collect(),
            held: Vec::new(),
            held_free: Vec::new(),
            links: links.iter().enumerate().map(|(n, c)| Link::new(c, seed, n)).collect(),
            events,
            lines: BTreeMap::new(),
            paths: Vec::new(),
            cross: Vec::new(),
            acked: Vec::new(),
            sent: 0,
            acks_sent: 0,
            acks_arrived: 0,
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
        let aggregate_ns = config.acks.aggregate_ns;
        let crosses_links = !config.return_links.is_empty();
        let back_ns = config.return_delay_ns;
        // What was let go together has been spread again by the links behind.
        let behind_ns = if crosses_links { 0 } else { aggregate_ns };
        let back = self.line(Line::Back { delay_ns: back_ns, aggregate_ns: behind_ns });
        let access = (config.access_delay_ns > 0).then(|| Delay {
            ns: config.access_delay_ns,
            lane: self.line(Line::Access { delay_ns: config.access_delay_ns }),
        });
        let release = (crosses_links && aggregate_ns > 0).then(|| self.line(Line::Release { aggregate_ns }));
        self.paths.push(Path {
            links: config.links.clone().into(),
            other_routes: config.other_routes.iter().map(|links| links.clone().into()).collect(),
            priority: 0,
            route: 0,
            return_links: config.return_links.clone().into(),
            access,
            release,
            back: Delay { ns: back_ns, lane: back },
            aggregate_ns,
            flags: if config.ecn { flag::ECT } else { 0 },
            receiver: Receiver::new(config.acks),
            timers: [Timer { deadline_ns: NEVER_NS, scheduled_ns: NEVER_NS }; TIMERS_PER_FLOW + 1],
        });
        let index = self.paths.len() as FlowIndex - 1;
        let rtt_ns = self.base_rtt_ns(index).unwrap_or(0);
        if let Some(path) = self.paths.last_mut() {
            path.receiver.set_base_rtt(rtt_ns);
        }
        Ok(index)
    }

    fn line(&mut self, line: Line) -> LaneId {
        let (events, stage) = (&mut self.events, line.stage());
        *self.lines.entry(line).or_insert_with(|| events.add_lane(stage))
    }

    /// Adds a source of cross traffic; its number, from 0.
    ///
    /// # Errors
    /// The first field outside its limits; nothing is changed then.
    pub fn add_cross(&mut self, config: &CrossConfig) -> Result<u32, ConfigError> {
        within("cross sources", self.cross.len() as u64, 0, MAX_CROSS as u64 - 1)?;
        config.check(self.links.len())?;
        let index = self.cross.len();
        self.cross.push(Cross::new(config, self.seed, index));
        if config.start_ns < config.end_ns {
            self.events.schedule(config.start_ns.max(self.now_ns), Single::Cross(index as u32));
        }
        Ok(index as u32)
    }

    /// Makes a link another from now on; the packet in service leaves as it would have.
    ///
    /// # Errors
    /// The first field outside its limits, or there is no such link or rate; nothing is changed then.
    pub fn change_link(&mut self, link: u8, change: &LinkChange) -> Result<(), ConfigError> {
        change.check()?;
        let links = self.links.len();
        let changed =
            self.links.get_mut(usize::from(link)).ok_or(ConfigError::NoLink { found: link, links })?;
        if changed.change(change) { Ok(()) } else { Err(ConfigError::NoRate { link }) }
    }

    /// Returns the virtual time, nanoseconds.
    pub fn now_ns(&self) -> u64 {
        self.now_ns
    }

    /// Offers a segment to the flow's first link now, or after its access delay. A flow that does not exist
    /// sends nothing. Returns whether that link has lost the segment, or a copy of it, at random by now.
    #[inline]
    pub fn send(&mut self, flow: FlowIndex, segment: Segment) -> bool {
        let Segment { seq, tx, bytes, push } = segment;
        let Some(path) = self.paths.get(flow as usize) else { return false };
        self.sent += 1;
        let flags = path.flags | if push { flag::PUSH } else { 0 };
        let packet = Packet::new(flow, bytes, flags, seq, tx).steered(path.priority, path.route);
        match path.access {
            None => self.offer(path.links_of(&packet)[0], packet),
            Some(delay) => {
                let packet = packet.before_first();
                self.events.append(delay.lane, self.now_ns + delay.ns, packet);
                false
            }
        }
    }

    /// Sets the priority and the route of what a flow sends from now on; what is under way keeps its own. Returns false,
    /// and changes nothing, where there is no such flow, priority or route.
    pub fn steer(&mut self, flow: FlowIndex, priority: u8, route: u8) -> bool {
        let Some(path) = self.paths.get_mut(flow as usize) else { return false };
        let exists = priority < PRIORITIES && usize::from(route) <= path.other_routes.len();
        if exists {
            (path.priority, path.route) = (priority, route);
        }
        exists
    }

    /// Sets the RTT that a flow's receiver learns from timestamps (RFC 7323), nanoseconds.
    #[inline]
    pub fn tell_rtt(&mut self, flow: FlowIndex, rtt_ns: u64) {
        if let Some(path) = self.paths.get_mut(flow as usize) {
            path.receiver.set_rtt(rtt_ns);
        }
    }

    /// Sets one of a flow's timers to another time; `None` stops it, and a past time means now.
    #[inline]
    pub fn set_timer(&mut self, flow: FlowIndex, timer: u8, at_ns: Option<u64>) {
        if usize::from(timer) < TIMERS_PER_FLOW {
            self.set_any_timer(flow, timer, at_ns);
        }
    }

    #[inline]
    fn set_any_timer(&mut self, flow: FlowIndex, timer: u8, at_ns: Option<u64>) {
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

    /// Asks for an [`Occurrence::Wake`] at this time; a time past is now. The token's bits from 2^56 on are lost.
    pub fn wake_at(&mut self, at_ns: u64, token: u64) {
        self.events.schedule(at_ns.max(self.now_ns), Single::Wake(token));
    }

    /// Runs until something happens that the caller must see, at most until `until_ns`. `None`: nothing did,
    /// and it is `until_ns` now (or, where that is `u64::MAX`, nothing will ever happen again).
    pub fn next(&mut self, until_ns: u64) -> Option<Occurrence> {
        while let Some((at_ns, event)) = self.events.pop(until_ns) {
            self.now_ns = at_ns;
            let seen = match event {
                Next::Lane(lane, stage, packet) => match stage {
                    Stage::Between => {
                        self.touch_next(lane);
                        self.arrive(packet)
                    }
                    Stage::Returned => {
                        self.touch_next(lane);
                        self.hand_out(packet.flow, packet.seq, packet.tx)
                    }
                    Stage::Entering(link) => {
                        self.enqueue(link, packet);
                        None
                    }
                },
                Next::Single(Single::ServeLink(link)) => self.serve(link),
                Next::Single(Single::Enter(place)) => {
                    if let Some((link, packet)) = self.held.get_mut(place as usize).and_then(Option::take) {
                        self.held_free.push(place);
                        self.enqueue(link, packet);
                    }
                    None
                }
                Next::Single(Single::Timer { flow, timer }) => self.timer_due(flow, timer),
                Next::Single(Single::Cross(source)) => self.cross_due(source),
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

    /// Reads what the next event of a line will touch. The processor waits for none of it, and works on meanwhile.
    #[inline]
    fn touch_next(&self, lane: LaneId) {
        if self.paths.len() < MANY_FLOWS {
            return;
        }
        let Some(next) = self.events.front(lane).filter(|packet| !packet.is(flag::CROSS)) else { return };
        if let Some(path) = self.paths.get(next.flow as usize) {
            let timer = path.timers[usize::from(ACK_TIMER)].deadline_ns;
            std::hint::black_box(path.receiver.touch() ^ timer ^ path.back.ns);
        }
    }

    /// The flow whose acknowledgement comes next after this flow's, which has just been handed out; `None` where there is none
    /// yet. Only flows whose way back takes as long are looked at.
    #[inline]
    pub fn upcoming_ack(&self, flow: FlowIndex) -> Option<FlowIndex> {
        self.events.front(self.paths.get(flow as usize)?.back.lane).map(|ack| ack.flow)
    }

    /// Returns the segments that the last [`Occurrence::Ack`] told its sender of, in the order of their arrival. They
    /// had arrived when it was made, and no earlier one told of them; there is at least one.
    #[inline]
    pub fn acked(&self) -> &[Delivery] {
        &self.acked
    }

    /// Says that a flow is over: its receiver's memory goes, its timers stop. What is under way stays.
    pub fn close(&mut self, flow: FlowIndex) {
        for timer in 0..=ACK_TIMER {
            self.set_any_timer(flow, timer, None);
        }
        if let Some(path) = self.paths.get_mut(flow as usize) {
            path.receiver.close();
        }
    }

    /// A digest of everything that has happened, each event with its time and in its order.
    pub fn digest(&self) -> u64 {
        self.digest
    }

    /// Segments that senders have offered.
    pub fn sent(&self) -> u64 {
        self.sent
    }

    /// Segments queued, in service or propagating; acknowledgements and cross traffic don't count.
    pub fn in_network(&self) -> u64 {
        self.count(|packet| !packet.is(flag::ACK) && !packet.is(flag::CROSS))
    }

    /// Acknowledgements that receivers have sent.
    pub fn acks_sent(&self) -> u64 {
        self.acks_sent
    }

    /// Acknowledgements that have reached their senders.
    pub fn acks_arrived(&self) -> u64 {
        self.acks_arrived
    }

    /// Acknowledgements queued, in service or propagating.
    pub fn acks_in_network(&self) -> u64 {
        let behind = self.events.in_lanes().filter(|(stage, _)| *stage == Stage::Returned).count();
        self.count(|packet| packet.is(flag::ACK)) + behind as u64
    }

    /// Packets of cross traffic queued, in service or propagating.
    pub fn cross_in_network(&self) -> u64 {
        self.count(|packet| packet.is(flag::CROSS))
    }

    fn count(&self, counts: impl Fn(&Packet) -> bool) -> u64 {
        let held = self.links.iter().flat_map(Link::packets);
        let propagating = self.events.in_lanes().filter(|(stage, _)| *stage != Stage::Returned);
        let propagating = propagating.map(|(_, packet)| packet);
        let held_back = self.held.iter().flatten().map(|(_, packet)| packet);
        held.chain(propagating).chain(held_back).filter(|packet| counts(packet)).count() as u64
    }

    /// Memory that it has allocated at the moment, bytes.
    pub fn memory_bytes(&self) -> usize {
        let paths: usize =
            self.paths.iter().map(|p| p.receiver.heap_bytes() + p.links.len() + p.return_links.len()).sum();
        let links: usize = self.links.iter().map(Link::heap_bytes).sum();
        paths + links + self.paths.capacity() * size_of::<Path>() + self.events.heap_bytes()
    }

    /// A flow's round trip without queues, serialisation and jitter, nanoseconds.
    pub fn base_rtt_ns(&self, flow: FlowIndex) -> Option<u64> {
        let path = self.paths.get(flow as usize)?;
        let links = path.links.iter().chain(&path.return_links);
        let propagation_ns: u64 = links.map(|l| self.links[usize::from(*l)].delay_ns()).sum();
        Some(path.access.map_or(0, |delay| delay.ns) + propagation_ns + path.back.ns)
    }

    /// Returns the counters of a link.
    pub fn link_stats(&self, link: u8) -> Option<LinkStats> {
        self.links.get(usize::from(link)).map(Link::stats)
    }

    /// Wire bytes in a link's queue, without the packet in service.
    pub fn queue_bytes(&self, link: u8) -> Option<u64> {
        self.links.get(usize::from(link)).map(Link::queue_bytes)
    }

    /// Packets that a link holds, the one in service included.
    pub fn held_packets(&self, link: u8) -> Option<u64> {
        self.links.get(usize::from(link)).map(Link::held)
    }

    /// Returns the counters of a flow's receiver.
    pub fn receiver_stats(&self, flow: FlowIndex) -> Option<ReceiverStats> {
        self.paths.get(flow as usize).map(|p| p.receiver.stats())
    }

    /// Returns the counters of a source of cross traffic.
    pub fn cross_stats(&self, source: u32) -> Option<CrossStats> {
        self.cross.get(source as usize).map(|c| c.stats)
    }

    /// Hands a packet to a link. Returns whether the link loses it, or a copy of it, at random.
    #[inline]
    fn offer(&mut self, link: u8, packet: Packet) -> bool {
        let l = &mut self.links[usize::from(link)];
        if l.has_ingress() {
            return self.impair(link, packet);
        }
        let is_lost = l.loses();
        if is_lost {
            self.note(3, packet.flow, packet.tx);
        } else {
            self.enqueue(link, packet);
        }
        is_lost
    }

    /// Applies the link's impairments to a packet before the queue. Returns whether a copy is lost at random.
    #[cold]
    fn impair(&mut self, link: u8, packet: Packet) -> bool {
        let index = usize::from(link);
        let copies = if self.links[index].copies() { 2 } else { 1 };
        let mut is_lost = false;
        for _ in 0..copies {
            let l = &mut self.links[index];
            let way = if l.loses() { IngressOutcome::Lost } else { l.way(self.now_ns, &packet) };
            is_lost |= way == IngressOutcome::Lost;
            match way {
                IngressOutcome::Lost | IngressOutcome::Policed => self.note(3, packet.flow, packet.tx),
                IngressOutcome::Straight => self.enqueue(link, packet),
                IngressOutcome::Behind(ns) => {
                    self.events.append(self.entry_lanes[index], self.now_ns + ns, packet);
                }
                IngressOutcome::Held(ns) => {
                    let place = self.hold(link, packet);
                    self.events.schedule(self.now_ns + ns, Single::Enter(place));
                }
            }
        }
        is_lost
    }

    fn hold(&mut self, link: u8, packet: Packet) -> u32 {
        let place = self.held_free.pop().unwrap_or_else(|| {
            self.held.push(None);
            self.held.len() as u32 - 1
        });
        self.held[place as usize] = Some((link, packet));
        place
    }

    #[inline]
    fn enqueue(&mut self, link: u8, packet: Packet) {
        let mut digest = self.digest;
        let now_ns = self.now_ns;
        let ask_ns = self.links[usize::from(link)].enqueue(now_ns, packet, &mut |gone| {
            digest = mixed(digest, now_ns, 3, gone.flow, gone.tx);
        });
        self.digest = digest;
        if let Some(at_ns) = ask_ns {
            self.events.set_alarm(self.serve_alarms[usize::from(link)], at_ns);
        }
    }

    #[inline]
    fn serve(&mut self, link: u8) -> Option<Occurrence> {
        let index = usize::from(link);
        let (l, lane) = (&mut self.links[index], self.link_lanes[index]);
        let (now_ns, events) = (self.now_ns, &mut self.events);
        let mut digest = self.digest;
        let arrival_ns = now_ns + l.propagation_ns();
        let next_ns = l.serve(now_ns, |packet| events.append(lane, arrival_ns, packet), &mut |gone| {
            digest = mixed(digest, now_ns, 3, gone.flow, gone.tx)
        });
        if let Some(at_ns) = next_ns {
            events.set_alarm(self.serve_alarms[index], at_ns);
        }
        self.digest = mixed(digest, now_ns, 4, link.into(), 0);
        None
    }

    #[inline]
    fn arrive(&mut self, mut packet: Packet) -> Option<Occurrence> {
        self.note(5, packet.flow, packet.tx);
        packet.advance();
        if packet.is(flag::CROSS) {
            return self.arrive_cross(packet);
        }
        let path = self.paths.get(packet.flow as usize)?;
        let is_ack = packet.is(flag::ACK);
        let links = if is_ack { &path.return_links } else { path.links_of(&packet) };
        if let Some(link) = links.get(packet.hop()).copied() {
            self.offer(link, packet);
        } else if is_ack {
            let Packet { flow, seq: cumulative, tx: deliveries, .. } = packet;
            let at_ns = self.now_ns + path.back.ns;
            self.events.append(path.back.lane, at_ns, Packet::returned(flow, cumulative, deliveries));
        } else {
            self.deliver(packet);
        }
        None
    }

    #[inline]
    fn deliver(&mut self, packet: Packet) {
        let now_ns = self.now_ns;
        let Packet { flow, seq, tx, bytes, .. } = packet;
        let Some(path) = self.paths.get_mut(flow as usize) else { return };
        let delivery = Delivery { seq, tx, marked: packet.is(flag::CE) };
        match path.receiver.on_segment(now_ns, delivery, bytes, packet.is(flag::PUSH)) {
            Reply::Refused => {}
            Reply::Now => self.acknowledge(flow),
            Reply::Within(wait_ns) => {
                if path.timers[usize::from(ACK_TIMER)].deadline_ns == NEVER_NS {
                    self.set_any_timer(flow, ACK_TIMER, Some(now_ns + wait_ns));
                }
            }
        }
    }

    #[inline]
    fn acknowledge(&mut self, flow: FlowIndex) {
        let Some(path) = self.paths.get_mut(flow as usize) else { return };
        let (cumulative, deliveries) = path.receiver.acknowledge();
        path.timers[usize::from(ACK_TIMER)].deadline_ns = NEVER_NS;
        self.acks_sent += 1;
        let at_ns = match path.aggregate_ns {
            0 => self.now_ns,
            every_ns => self.now_ns.next_multiple_of(every_ns),
        };
        let Some(first) = path.return_links.first().copied() else {
            let ack = Packet::returned(flow, cumulative, deliveries);
            return self.events.append(path.back.lane, at_ns + path.back.ns, ack);
        };
        let (seq, tx) = (cumulative, deliveries);
        let packet = Packet::new(flow, ACK_BYTES + path.receiver.sack_bytes(), flag::ACK, seq, tx);
        match path.release {
            None => {
                self.offer(first, packet);
            }
            Some(lane) => self.events.append(lane, at_ns, packet.before_first()),
        }
    }

    #[inline]
    fn hand_out(&mut self, flow: FlowIndex, cumulative: u64, deliveries: u64) -> Option<Occurrence> {
        self.acks_arrived += 1;
        self.acked.clear();
        self.paths.get_mut(flow as usize)?.receiver.take_log(deliveries, &mut self.acked);
        // None is left of a flow that was closed meanwhile.
        let Delivery { seq, tx, .. } = *self.acked.last()?;
        self.note(1, flow, tx);
        Some(Occurrence::Ack { flow, ack: Ack { cumulative, seq, tx } })
    }

    fn cross_due(&mut self, source: u32) -> Option<Occurrence> {
        let cross = self.cross.get_mut(source as usize)?;
        let packet = Packet::new(source, cross.config.packet_bytes, flag::CROSS, 0, cross.stats.sent);
        let first = cross.config.links[0];
        cross.stats.sent += 1;
        if let Some(at_ns) = cross.next_ns(self.now_ns) {
            self.events.schedule(at_ns, Single::Cross(source));
        }
        self.offer(first, packet);
        None
    }

    fn arrive_cross(&mut self, packet: Packet) -> Option<Occurrence> {
        let cross = self.cross.get_mut(packet.flow as usize)?;
        match cross.config.links.get(packet.hop()).copied() {
            Some(link) => {
                self.offer(link, packet);
            }
            None => cross.stats.delivered += 1,
        }
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
        if timer == ACK_TIMER {
            self.acknowledge(flow);
            return None;
        }
        Some(Occurrence::Timer { flow, timer })
    }

    #[inline]
    fn timer_mut(&mut self, flow: FlowIndex, timer: u8) -> Option<&mut Timer> {
        self.paths.get_mut(flow as usize)?.timers.get_mut(usize::from(timer))
    }

    #[inline]
    fn note(&mut self, kind: u64, flow: FlowIndex, number: u64) {
        self.digest = mixed(self.digest, self.now_ns, kind, flow, number);
    }
}

#[inline]
fn mixed(digest: u64, now_ns: u64, kind: u64, flow: FlowIndex, number: u64) -> u64 {
    // Odd multipliers (2^64 / golden ratio, and FxHash's) keep the step a bijection of the digest.
    let word = now_ns ^ (kind << 60) ^ (u64::from(flow) << 40) ^ number.wrapping_mul(0x517c_c1b7_2722_0a95);
    (digest.rotate_left(23) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Capacity, QueueLimit};

    /// Flows of one delay: the acknowledgement that is said to come next does.
    #[test]
    fn the_next_acknowledgement_is_foreseen() {
        const FLOWS: u32 = MANY_FLOWS as u32 + 6;
        let link = LinkConfig::new(Capacity::Rate { bit_per_s: 1_000_000_000 }, 0, QueueLimit::Packets(1000));
        let mut net = Network::new(vec![link], 1).unwrap();
        for _ in 0..FLOWS {
            net.add_flow(&PathConfig::new(vec![0], 5_000_000)).unwrap();
        }
        for n in 0..3 * FLOWS {
            // Neighbours in time are no neighbours in number.
            let flow = n * 13 % FLOWS;
            let segment =
                Segment { seq: u64::from(n / FLOWS), tx: u64::from(n / FLOWS), bytes: 1500, push: true };
            net.send(flow, segment);
        }
        let (mut foreseen, mut acks, mut hits) = (None, 0, 0);
        while let Some(occurrence) = net.next(u64::MAX) {
            let Occurrence::Ack { flow, .. } = occurrence else { continue };
            assert!(foreseen.is_none_or(|foreseen| foreseen == flow), "{foreseen:?}, {flow}");
            hits += u32::from(foreseen.is_some());
            foreseen = net.upcoming_ack(flow);
            acks += 1;
        }
        assert!(acks >= FLOWS && hits >= acks / 2, "{acks}, {hits}");
    }

    /// A timer put off or brought forward leaves entries behind, but each dies when its time comes.
    #[test]
    fn timers_do_not_pile_up() {
        let capacity = Capacity::Rate { bit_per_s: 1 };
        let link = LinkConfig::new(capacity, 0, QueueLimit::Packets(1));
        let mut net = Network::new(vec![link], 1).unwrap();
        let flow = net.add_flow(&PathConfig::new(vec![0], 0)).unwrap();
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
