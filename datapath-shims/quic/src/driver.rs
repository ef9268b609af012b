//! The connections of an endpoint and what each has to do next: no sockets, no clock.

use crate::admission::{Admission, HANDSHAKE_FOR, Knock, Stage, TOKEN_FOR, UNVALIDATED_FOR, Verdict};
use crate::bucket::Bucket;
use crate::budget::{Budget, Memory, PART_BYTES};
use crate::config::{Config, MAX_CONNECTIONS, NO_ROOM};
use crate::connection::{Connection, ConnectionId, Event, Slot, Starved};
use crate::controller::{Observer, Origin, Steered};
use crate::revival::Unanswered;
use crate::sys::trim_heap;
use crate::wire::{Datagram, Wire};
use bytes::Bytes;
use ccplane_engine::Engine;
use quinn_proto::congestion::{ControllerFactory, NewRenoConfig};
use quinn_proto::{
    ClientConfig, ConnectError, ConnectionHandle, ConnectionIdGenerator, DatagramEvent, EndpointConfig,
    EndpointEvent, Incoming, RandomConnectionIdGenerator, ServerConfig, StreamEvent, Transmit,
    TransportConfig, VarInt,
};
use std::collections::{BTreeSet, VecDeque};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Sends of one turn, before what has arrived is looked at again.
const SENDS_PER_TURN: usize = 32;
/// Bytes of one send: what a kernel takes for segmentation.
const SEND_BYTES: usize = 65_000;
/// Answers without a connection (tokens, refusals, resets, versions) that wait to be sent; further ones are dropped.
const MAX_REPLIES: usize = 512;
/// So many connections fewer than there were are worth giving memory back.
const TIDY_FROM: usize = 32;
/// How long after that it is given back.
const TIDY_AFTER: Duration = Duration::from_secs(1);
/// Length of the IDs by which peers address connections, bytes.
const CONNECTION_ID_BYTES: usize = 8;
/// Streams without memory that one turn looks at.
const FED_PER_TURN: usize = 64;

/// Who controls congestion.
#[derive(Clone)]
pub enum Control {
    /// Programs, or the engine's native algorithm where there is none.
    Engine {
        /// Where flows come to be.
        engine: Engine,
        /// Sees every invocation.
        observer: Option<Observer>,
    },
    /// A controller of quinn's, which no agent steers.
    Quinn(Arc<dyn ControllerFactory + Send + Sync>),
}

impl From<Engine> for Control {
    fn from(engine: Engine) -> Control {
        Control::Engine { engine, observer: None }
    }
}

/// What there was no room for, or what belongs to no connection.
struct Outgoing {
    transmit: Transmit,
    payload: Vec<u8>,
}

/// What an attempt to send came to.
enum Sent {
    /// Something left, and there may be more.
    Some,
    /// There is nothing, or nothing may.
    Nothing,
    /// The wire has no room.
    NoRoom,
}

pub(crate) struct Driver {
    quic: quinn_proto::Endpoint,
    config: Config,
    control: Control,
    server: Option<ServerConfig>,
    local: SocketAddr,
    /// By quinn's handles, which it gives out anew.
    slots: Vec<Option<Box<Slot>>>,
    open: usize,
    /// The most that were open since memory was given back.
    peak: usize,
    /// When memory is given back next.
    tidy_at: Option<Instant>,
    budget: Budget,
    admission: Admission,
    starved: Starved,
    /// Of those, how many are still to be looked at since memory was given back, and how often it had been by then.
    to_feed: usize,
    releases: usize,
    generation: u32,
    /// One entry a connection, never later than what it waits for.
    timers: BTreeSet<(Instant, u32)>,
    /// Those with something to do, each once.
    pub(crate) ready: VecDeque<u32>,
    pub(crate) events: VecDeque<(ConnectionId, Event)>,
    replies: VecDeque<Outgoing>,
    /// Goes out first once there is room.
    stuck: Option<Outgoing>,
    buffer: Vec<u8>,
    /// The time of the turn.
    pub(crate) now: Instant,
}

impl Driver {
    pub(crate) fn new(
        local: SocketAddr,
        may_fragment: bool,
        control: Control,
        config: Config,
        now: Instant,
    ) -> Driver {
        let mut endpoint = EndpointConfig::default();
        // At least 1200 and at most 65527 are what it refuses otherwise.
        let _ = endpoint.max_udp_payload_size(config.max_mtu_bytes.clamp(1472, 65_527));
        endpoint.rng_seed(config.seed);
        endpoint.cid_generator(connection_ids);
        let budget = Budget::new(config.memory_bytes);
        let most = config.max_connections.min(MAX_CONNECTIONS).min(budget.capacity());
        Driver {
            quic: quinn_proto::Endpoint::new(Arc::new(endpoint), None, !may_fragment, None),
            config,
            control,
            server: None,
            local,
            slots: Vec::new(),
            open: 0,
            peak: 0,
            tidy_at: None,
            budget,
            admission: Admission::new(most),
            starved: Starved::new(),
            to_feed: 0,
            releases: 0,
            generation: 0,
            timers: BTreeSet::new(),
            ready: VecDeque::new(),
            events: VecDeque::new(),
            replies: VecDeque::new(),
            stuck: None,
            buffer: Vec::new(),
            now,
        }
    }

    pub(crate) fn set_server(&mut self, mut server: Option<ServerConfig>) {
        if let Some(server) = &mut server {
            server.retry_token_lifetime(TOKEN_FOR);
        }
        self.quic.set_server_config(server.clone().map(Arc::new));
        self.server = server;
    }

    pub(crate) fn set_local(&mut self, local: SocketAddr) {
        self.local = local;
    }

    pub(crate) fn open(&self) -> usize {
        self.open
    }

    pub(crate) fn memory(&self) -> Memory {
        self.budget.memory()
    }

    /// When the next timer runs out.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.timers.first().map(|(at, _)| *at)
    }

    /// Whether there is something to do that waits for nothing.
    pub(crate) fn is_busy(&self) -> bool {
        !self.events.is_empty()
            || (!self.starved.is_empty() && (self.to_feed > 0 || self.releases != self.budget.releases()))
            || (self.stuck.is_none() && !(self.ready.is_empty() && self.replies.is_empty()))
    }

    pub(crate) fn ids(&self) -> Vec<ConnectionId> {
        let id = |(n, slot): (usize, &Option<Box<Slot>>)| {
            slot.as_ref().map(|slot| ConnectionId { index: n as u32, generation: slot.generation })
        };
        self.slots.iter().enumerate().filter_map(id).collect()
    }

    pub(crate) fn connection(&mut self, id: ConnectionId) -> Option<Connection<'_>> {
        let slot = self.slots.get_mut(id.index as usize)?.as_deref_mut()?;
        let most_window_bytes = self.config.receive_window_bytes.into();
        let (ready, starved, now) = (&mut self.ready, &mut self.starved, self.now);
        (slot.generation == id.generation).then_some(Connection {
            id,
            slot,
            ready,
            starved,
            most_window_bytes,
            now,
        })
    }

    pub(crate) fn connect(
        &mut self,
        mut client: ClientConfig,
        remote: SocketAddr,
        server_name: &str,
    ) -> Result<ConnectionId, ConnectError> {
        client.transport_config(self.transport(remote, self.local));
        let (handle, quic) = self.quic.connect(self.now, client, remote, server_name)?;
        Ok(self.insert(handle, quic, Stage::Own, remote.ip()))
    }

    /// A connection's own, since its controllers are.
    fn transport(&self, remote: SocketAddr, local: SocketAddr) -> Arc<TransportConfig> {
        let mut transport = self.config.transport();
        let (remote, local) = (canonical(remote), canonical(local));
        transport.congestion_controller_factory(match &self.control {
            Control::Engine { engine, observer } => {
                Arc::new(Origin::new(engine.clone(), local, remote, observer.clone()))
            }
            Control::Quinn(factory) => Arc::clone(factory),
        });
        if let Some(tune) = &self.config.tune {
            tune(&mut transport);
        }
        Arc::new(transport)
    }

    /// Of one that is only told why it is not let in: no flow of the datapath's, and nothing to send on.
    fn curt_transport(&self) -> Arc<TransportConfig> {
        let mut transport = self.config.transport();
        transport
            // Who is told that there is none looks no further for the reason.
            .max_concurrent_bidi_streams(VarInt::from_u32(1))
            .max_concurrent_uni_streams(VarInt::from_u32(0))
            .keep_alive_interval(None)
            .congestion_controller_factory(Arc::new(NewRenoConfig::default()));
        Arc::new(transport)
    }

    fn insert(
        &mut self,
        handle: ConnectionHandle,
        quic: quinn_proto::Connection,
        stage: Stage,
        came_from: IpAddr,
    ) -> ConnectionId {
        let ConnectionHandle(n) = handle;
        // quinn numbers connections from 0 without gaps to speak of, and there are at most MAX_CONNECTIONS.
        let index = n as u32;
        self.generation = self.generation.wrapping_add(1);
        let (generation, bucket) = (self.generation, Bucket::new(self.now));
        let mut slot = Slot {
            generation,
            quic,
            bucket,
            paced_until: None,
            timer: None,
            queued: false,
            unanswered: None,
            revival: None,
            account: self.budget.open(),
            stage,
            came_from,
            began: self.now,
            handshake_until: match stage {
                Stage::Own | Stage::Established => None,
                Stage::Handshake { validated: false } => Some(self.now + UNVALIDATED_FOR),
                Stage::Handshake { validated: true } | Stage::TurnedAway(_) => Some(self.now + HANDSHAKE_FOR),
            },
            read_bytes: 0,
            starved: Vec::new(),
        };
        self.admission.enter(stage, came_from);
        slot.wake(index, &mut self.ready);
        if self.slots.len() <= n {
            self.slots.resize_with(n + 1, || None);
        }
        self.slots[n] = Some(Box::new(slot));
        self.open += 1;
        ConnectionId { index, generation }
    }

    pub(crate) fn receive(&mut self, datagram: Datagram) {
        let Datagram { remote, local_ip, ecn, payload } = datagram;
        let mut reply = Vec::new();
        match self.quic.handle(self.now, remote, local_ip, ecn, payload, &mut reply) {
            None => {}
            Some(DatagramEvent::ConnectionEvent(ConnectionHandle(n), event)) => {
                if let Some(slot) = self.slots.get_mut(n).and_then(Option::as_deref_mut) {
                    slot.quic.handle_event(event);
                    slot.hear(self.now);
                    slot.wake(n as u32, &mut self.ready);
                }
            }
            Some(DatagramEvent::NewConnection(incoming)) => self.accept(incoming, reply),
            Some(DatagramEvent::Response(transmit)) => self.reply(transmit, reply),
        }
    }

    fn accept(&mut self, incoming: Incoming, mut reply: Vec<u8>) {
        let Some(mut server) = self.server.clone() else { return self.quic.ignore(incoming) };
        let remote = incoming.remote_address();
        let validated = incoming.remote_address_validated();
        let knock = Knock { address: remote.ip(), validated, has_room: self.budget.has_room() };
        let stage = match self.admission.judge(knock) {
            Verdict::Accept(stage) => stage,
            Verdict::Retry => {
                // Whose address is not validated may always be asked to show it.
                if let Ok(transmit) = self.quic.retry(incoming, &mut reply) {
                    self.reply(transmit, reply);
                }
                return;
            }
            Verdict::Refuse => {
                let refusal = self.quic.refuse(incoming, &mut reply);
                return self.reply(refusal, reply);
            }
        };
        let ip = incoming.local_ip().unwrap_or(self.local.ip());
        server.transport_config(match stage {
            Stage::TurnedAway(_) => self.curt_transport(),
            _ => self.transport(remote, SocketAddr::new(ip, self.local.port())),
        });
        match self.quic.accept(incoming, self.now, &mut reply, Some(Arc::new(server))) {
            Ok((handle, quic)) => {
                self.insert(handle, quic, stage, remote.ip());
            }
            Err(refused) => {
                tracing::debug!(%remote, cause = %refused.cause, "not accepted");
                if let Some(transmit) = refused.response {
                    self.reply(transmit, reply);
                }
            }
        }
    }

    fn reply(&mut self, transmit: Transmit, mut payload: Vec<u8>) {
        if self.replies.len() < MAX_REPLIES {
            payload.truncate(transmit.size);
            self.replies.push_back(Outgoing { transmit, payload });
        }
    }

    /// The wire has come up: whoever heard nothing for a while asks at once.
    pub(crate) fn revive(&mut self) {
        for (slot, index) in self.slots.iter_mut().zip(0..) {
            if let Some(slot) = slot.as_deref_mut()
                && slot.revive(self.now)
            {
                slot.wake(index, &mut self.ready);
            }
        }
    }

    /// Timers that have run out.
    pub(crate) fn expire(&mut self) {
        while let Some((at, index)) = self.timers.first().copied().filter(|(at, _)| *at <= self.now) {
            self.timers.remove(&(at, index));
            if let Some(slot) = self.slots.get_mut(index as usize).and_then(Option::as_deref_mut) {
                slot.timer = None;
                if slot.handshake_until.is_some_and(|until| until <= self.now) && self.overdue(index) {
                    continue;
                }
                let Some(slot) = self.slots[index as usize].as_deref_mut() else { continue };
                slot.quic.handle_timeout(self.now);
                slot.wake(index, &mut self.ready);
            }
        }
    }

    /// A handshake has taken its time. True: it is forgotten, without a word.
    fn overdue(&mut self, index: u32) -> bool {
        let crowded = self.admission.is_crowded();
        let Some(slot) = self.slots[index as usize].as_deref_mut() else { return false };
        slot.handshake_until = None;
        if !slot.quic.is_handshaking() {
            return false;
        }
        let end = slot.began + HANDSHAKE_FOR;
        let hurries = crowded && slot.stage == (Stage::Handshake { validated: false });
        if self.now < end && !hurries {
            // Where there is room, a slow or lossy path has more time.
            slot.handshake_until = Some(end.min(self.now + UNVALIDATED_FOR));
            return false;
        }
        self.quic.handle_event(ConnectionHandle(index as usize), EndpointEvent::drained());
        self.remove(index);
        true
    }

    /// Forgets a connection that quinn's endpoint has forgotten.
    fn remove(&mut self, index: u32) {
        let Some(slot) = self.slots.get_mut(index as usize).and_then(Option::take) else { return };
        if let Some(at) = slot.timer {
            self.timers.remove(&(at, index));
        }
        self.admission.leave(slot.stage, slot.came_from);
        self.open -= 1;
    }

    /// Gives memory back to the system once half of the connections are gone.
    pub(crate) fn tidy(&mut self) {
        self.peak = self.peak.max(self.open);
        if self.peak - self.open >= TIDY_FROM && self.open <= self.peak / 2 {
            self.peak = self.open;
            // Others go with these, and the agent forgets their flows after them.
            self.tidy_at = Some(self.now + TIDY_AFTER);
        }
        if self.tidy_at.is_none_or(|at| at > self.now) {
            return;
        }
        self.tidy_at = None;
        let used = self.slots.iter().rposition(Option::is_some).map_or(0, |last| last + 1);
        self.slots.truncate(used);
        self.slots.shrink_to_fit();
        self.budget.tidy();
        trim_heap();
    }

    /// Tells streams that waited for memory, if some was given back and they have room now.
    fn feed(&mut self) {
        let releases = self.budget.releases();
        if std::mem::replace(&mut self.releases, releases) != releases {
            self.to_feed = self.starved.len();
        }
        for _ in 0..self.to_feed.min(FED_PER_TURN) {
            self.to_feed -= 1;
            let Some((id, stream)) = self.starved.pop_front() else { break };
            let slot = self.slots.get_mut(id.index as usize).and_then(Option::as_deref_mut);
            let Some(slot) = slot.filter(|slot| slot.generation == id.generation) else { continue };
            if slot.account.room(PART_BYTES) == 0 {
                self.starved.push_back((id, stream));
            } else {
                slot.starved.retain(|waiting| *waiting != stream);
                self.events.push_back((id, Event::Stream(StreamEvent::Writable { id: stream })));
            }
        }
    }

    /// Hands out events, and sends what may be sent.
    pub(crate) fn transmit(&mut self, wire: &mut dyn Wire) -> io::Result<()> {
        self.feed();
        if !self.clear(wire)? {
            self.hold();
            return Ok(());
        }
        let mut sends = 0;
        while sends < SENDS_PER_TURN {
            let Some(index) = self.ready.pop_front() else { break };
            if !self.settle(index) {
                continue;
            }
            match self.send(index, wire)? {
                Sent::Some => {
                    sends += 1;
                    self.wake(index);
                }
                Sent::Nothing => self.schedule(index),
                Sent::NoRoom => {
                    self.wake(index);
                    self.schedule(index);
                    break;
                }
            }
        }
        wire.flush()
    }

    /// There is no room: those with something to do wait for it, but for what needs none. A wire may stay so for good.
    fn hold(&mut self) {
        for _ in 0..self.ready.len() {
            let Some(index) = self.ready.pop_front() else { break };
            if self.settle(index) {
                self.schedule(index);
                self.wake(index);
            }
        }
    }

    fn wake(&mut self, index: u32) {
        if let Some(slot) = self.slots.get_mut(index as usize).and_then(Option::as_deref_mut) {
            slot.wake(index, &mut self.ready);
        }
    }

    /// What waits for room, then replies. False: there is no room.
    fn clear(&mut self, wire: &mut dyn Wire) -> io::Result<bool> {
        while let Some(next) = self.stuck.take().or_else(|| self.replies.pop_front()) {
            if !wire.send(&next.transmit, &next.payload)? {
                self.stuck = Some(next);
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Passes on what a connection has for the endpoint and for the application. False: it is gone.
    fn settle(&mut self, index: u32) -> bool {
        let n = index as usize;
        let Some(slot) = self.slots.get_mut(n).and_then(Option::as_deref_mut) else { return false };
        slot.queued = false;
        let mut drained = false;
        while let Some(event) = slot.quic.poll_endpoint_events() {
            drained |= event.is_drained();
            if let Some(event) = self.quic.handle_event(ConnectionHandle(n), event) {
                slot.quic.handle_event(event);
            }
        }
        let id = ConnectionId { index, generation: slot.generation };
        while let Some(event) = slot.quic.poll() {
            if let (Stage::TurnedAway(why), quinn_proto::Event::Connected) = (slot.stage, &event) {
                slot.quic.close(self.now, NO_ROOM.into(), Bytes::from_static(why.as_bytes()));
            }
            let event = match event {
                // Nobody is to hear of it.
                _ if matches!(slot.stage, Stage::TurnedAway(_)) => continue,
                quinn_proto::Event::Connected => Event::Connected,
                quinn_proto::Event::Stream(event) => Event::Stream(event),
                quinn_proto::Event::ConnectionLost { reason } => Event::Closed(reason),
                quinn_proto::Event::HandshakeDataReady
                | quinn_proto::Event::DatagramReceived
                | quinn_proto::Event::DatagramsUnblocked => continue,
            };
            if let (Stage::Handshake { .. }, Event::Connected) = (slot.stage, &event) {
                self.admission.leave(slot.stage, slot.came_from);
                slot.stage = Stage::Established;
                slot.handshake_until = None;
                self.admission.enter(slot.stage, slot.came_from);
            }
            self.events.push_back((id, event));
        }
        if drained {
            self.remove(index);
        }
        !drained
    }

    /// One send, if the connection has something and its bucket allows it.
    fn send(&mut self, index: u32, wire: &mut dyn Wire) -> io::Result<Sent> {
        let Some(slot) = self.slots.get_mut(index as usize).and_then(Option::as_deref_mut) else {
            return Ok(Sent::Nothing);
        };
        let mtu_bytes = slot.quic.current_mtu();
        // A connection's last words are not held back.
        let rate = if slot.quic.is_closed() { 0 } else { rate_of(&slot.quic) };
        slot.bucket.set_rate(self.now, rate);
        slot.paced_until = None;
        let probes = slot.takes_probe(self.now);
        let datagrams = match slot.bucket.allowance(self.now, mtu_bytes) {
            _ if probes => 1,
            Ok(datagrams) => {
                datagrams.min(wire.max_segments()).min(SEND_BYTES / usize::from(mtu_bytes)).max(1)
            }
            Err(until) => {
                slot.paced_until = Some(until);
                return Ok(Sent::Nothing);
            }
        };
        self.buffer.clear();
        let lifted = probes.then(|| Steered::of(&slot.quic)).flatten();
        lifted.iter().for_each(Steered::lift);
        let transmit = slot.quic.poll_transmit(self.now, datagrams, &mut self.buffer);
        lifted.iter().for_each(Steered::hold);
        let Some(transmit) = transmit else { return Ok(Sent::Nothing) };
        slot.unanswered = Some(Unanswered::and(slot.unanswered, self.now));
        slot.bucket.charge(transmit.size);
        if wire.send(&transmit, &self.buffer[..transmit.size])? {
            return Ok(Sent::Some);
        }
        self.stuck = Some(Outgoing { transmit, payload: std::mem::take(&mut self.buffer) });
        if let Some(stuck) = &mut self.stuck {
            stuck.payload.truncate(stuck.transmit.size);
        }
        Ok(Sent::NoRoom)
    }

    /// Sees to it that the connection is looked at in time. A timer that runs out too early costs a look, and no more.
    fn schedule(&mut self, index: u32) {
        let Some(slot) = self.slots.get_mut(index as usize).and_then(Option::as_deref_mut) else { return };
        let probe = slot.revival.map(|revival| revival.at());
        let due = [slot.quic.poll_timeout(), slot.paced_until, probe, slot.handshake_until];
        let Some(due) = due.into_iter().flatten().min() else { return };
        match slot.timer {
            Some(at) if at <= due => {}
            later => {
                if let Some(at) = later {
                    self.timers.remove(&(at, index));
                }
                slot.timer = Some(due);
                self.timers.insert((due, index));
            }
        }
    }
}

/// All 64 bits of an ID are random. quinn's own choice has 24 that are, and the ID in a Retry is not compared with those in use:
/// among a thousand connections one in a few thousand clients was told another's ID, and never heard again.
fn connection_ids() -> Box<dyn ConnectionIdGenerator> {
    Box::new(RandomConnectionIdGenerator::new(CONNECTION_ID_BYTES))
}

/// An IPv4 address as one, also where a socket of both families shows it as IPv6: rules go by it.
pub(crate) fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// Bytes per second; 0 where only quinn's own pacer is at work.
fn rate_of(quic: &quinn_proto::Connection) -> u64 {
    // Bits, as qlog has them.
    quic.congestion_state().metrics().pacing_rate.map_or(0, |bit_per_s| bit_per_s / 8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connection_ids_do_not_repeat() {
        // Of 24 random bits, so many would hold some seventy repeats.
        const MANY: usize = 50_000;
        let mut ids = connection_ids();
        let distinct: BTreeSet<_> = (0..MANY).map(|_| ids.generate_cid().to_vec()).collect();
        assert_eq!(distinct.len(), MANY);
    }
}
