//! The connections of an endpoint and the next work of each, without sockets or clock.

use crate::admission::{
    Admission, AdmissionVerdict, ConnectionAttempt, HANDSHAKE_FOR, Stage, TOKEN_FOR, UNVALIDATED_FOR,
};
use crate::bucket::Bucket;
use crate::budget::{Budget, Memory, PART_BYTES};
use crate::config::{Config, MAX_CONNECTIONS, NO_ROOM};
use crate::connection::{Connection, ConnectionId, Event, Slot, Starved, canonical};
use crate::controller::{Observer, Origin, QuicController};
use crate::packets::{Decisions, InFlight};
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
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// Sends of one turn, before arrived datagrams are read again.
const SENDS_PER_TURN: usize = 32;
/// Bytes of one send: the most that a kernel takes for segmentation.
const SEND_BYTES: usize = 65_000;
/// Answers without a connection (tokens, refusals, resets, versions) that wait to be sent, at most; further ones are
/// dropped.
const MAX_REPLIES: usize = 512;
/// The number of connections must fall by this much before memory is given back.
const TIDY_FROM: usize = 32;
/// Time until memory is given back after that.
const TIDY_AFTER: Duration = Duration::from_secs(1);
/// Length of our connection IDs, bytes.
const CONNECTION_ID_BYTES: usize = 8;
/// Streams waiting for memory that one turn serves, at most.
const FED_PER_TURN: usize = 64;

/// The congestion control of an endpoint.
#[derive(Clone)]
pub enum Control {
    /// Programs control flows, or the engine's native algorithm where there is none.
    Engine {
        /// The engine that flows are created in.
        engine: Engine,
        observer: Option<Observer>,
    },
    /// A controller of quinn's, which no agent controls.
    Quinn(Arc<dyn ControllerFactory + Send + Sync>),
}

impl From<Engine> for Control {
    fn from(engine: Engine) -> Control {
        Control::Engine { engine, observer: None }
    }
}

/// Datagrams that there was no room for, or that belong to no connection.
struct Outgoing {
    transmit: Transmit,
    payload: Vec<u8>,
    dscp: u8,
}

/// The result of an attempt to send.
enum Sent {
    /// A datagram left, and there may be more.
    Some,
    /// Nothing is left to send, or nothing may be sent.
    Nothing,
    /// The wire has no room.
    NoRoom,
}

pub(crate) struct Driver {
    quic: quinn_proto::Endpoint,
    config: Config,
    control: Control,
    /// Decisions about packets, where there are any.
    decisions: Option<Decisions>,
    server: Option<ServerConfig>,
    local: SocketAddr,
    /// Connections by quinn's handles, which are reused.
    slots: Vec<Option<Box<Slot>>>,
    open: usize,
    /// The most connections that were open since memory was given back.
    peak: usize,
    /// When memory is given back next.
    tidy_at: Option<Instant>,
    budget: Budget,
    admission: Admission,
    starved: Starved,
    /// The number of those still to be served since memory was given back, and the number of releases by then.
    to_feed: usize,
    releases: usize,
    generation: u32,
    /// One entry per connection, never later than its next deadline.
    timers: BTreeSet<(Instant, u32)>,
    /// Connections with something to do, each once.
    pub(crate) ready: VecDeque<u32>,
    pub(crate) events: VecDeque<(ConnectionId, Event)>,
    replies: VecDeque<Outgoing>,
    /// The first datagrams to leave once there is room.
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
        // quinn refuses values below 1200 or above 65527.
        let _ = endpoint.max_udp_payload_size(config.max_mtu_bytes.clamp(1472, 65_527));
        endpoint.rng_seed(config.seed);
        endpoint.cid_generator(connection_ids);
        let budget = Budget::new(config.memory_bytes);
        let most = config.max_connections.min(MAX_CONNECTIONS).min(budget.capacity());
        Driver {
            quic: quinn_proto::Endpoint::new(Arc::new(endpoint), None, !may_fragment, None),
            decisions: config.packets.clone().map(Decisions::new),
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

    /// When the next timer expires.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.timers.first().map(|(at, _)| *at)
    }

    /// Whether there is work that waits for nothing.
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
        let in_flight = InFlight::default();
        client.transport_config(self.transport(remote, self.local, &in_flight));
        let (handle, quic) = self.quic.connect(self.now, client, remote, server_name)?;
        Ok(self.insert(handle, quic, Stage::Own, remote.ip(), in_flight))
    }

    /// The transport configuration of one connection, which has its own controllers.
    fn transport(&self, remote: SocketAddr, local: SocketAddr, in_flight: &InFlight) -> Arc<TransportConfig> {
        let mut transport = self.config.transport();
        let (remote, local) = (canonical(remote), canonical(local));
        transport.congestion_controller_factory(match &self.control {
            Control::Engine { engine, observer } => {
                let (engine, observer) = (engine.clone(), observer.clone());
                Arc::new(Origin::new(engine, local, remote, observer, Arc::clone(in_flight)))
            }
            Control::Quinn(factory) => Arc::clone(factory),
        });
        if let Some(tune) = &self.config.tune {
            tune(&mut transport);
        }
        Arc::new(transport)
    }

    /// The transport configuration of a connection that is only told why it is refused: without a flow, and without
    /// data to send.
    fn refusal_transport(&self) -> Arc<TransportConfig> {
        let mut transport = self.config.transport();
        transport
            // A peer that is told of no room ignores the reason otherwise.
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
        in_flight: InFlight,
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
                Stage::Handshake { validated: true } | Stage::Refused(_) => Some(self.now + HANDSHAKE_FOR),
            },
            read_bytes: 0,
            written_bytes: 0,
            in_flight,
            packets: None,
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
                    slot.on_receive(self.now);
                    if let (Some(decisions), Some(packets)) = (&mut self.decisions, &mut slot.packets) {
                        decisions.measure(packets, &slot.quic.stats(), self.now);
                    }
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
        let attempt = ConnectionAttempt { address: remote.ip(), validated, has_room: self.budget.has_room() };
        let stage = match self.admission.judge(attempt) {
            AdmissionVerdict::Accept(stage) => stage,
            AdmissionVerdict::Retry => {
                // A client whose address is not validated may always be asked to validate it.
                if let Ok(transmit) = self.quic.retry(incoming, &mut reply) {
                    self.reply(transmit, reply);
                }
                return;
            }
            AdmissionVerdict::Refuse => {
                let refusal = self.quic.refuse(incoming, &mut reply);
                return self.reply(refusal, reply);
            }
        };
        let ip = incoming.local_ip().unwrap_or(self.local.ip());
        let in_flight = InFlight::default();
        server.transport_config(match stage {
            Stage::Refused(_) => self.refusal_transport(),
            _ => self.transport(remote, SocketAddr::new(ip, self.local.port()), &in_flight),
        });
        match self.quic.accept(incoming, self.now, &mut reply, Some(Arc::new(server))) {
            Ok((handle, quic)) => {
                self.insert(handle, quic, stage, remote.ip(), in_flight);
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
            self.replies.push_back(Outgoing { transmit, payload, dscp: 0 });
        }
    }

    /// Handles a wire that has come up: connections that heard nothing for a while probe at once.
    pub(crate) fn revive(&mut self) {
        for (slot, index) in self.slots.iter_mut().zip(0..) {
            if let Some(slot) = slot.as_deref_mut()
                && slot.revive(self.now)
            {
                slot.wake(index, &mut self.ready);
            }
        }
    }

    /// Handles the expired timers.
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

    /// Checks a handshake that has taken its time; true if it is overdue and forgotten without an answer.
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
            // With enough room, a slow or lossy path has more time.
            slot.handshake_until = Some(end.min(self.now + UNVALIDATED_FOR));
            return false;
        }
        self.quic.handle_event(ConnectionHandle(index as usize), EndpointEvent::drained());
        self.remove(index);
        true
    }

    /// Forgets a connection that quinn's endpoint has forgotten.
    fn remove(&mut self, index: u32) {
        let Some(mut slot) = self.slots.get_mut(index as usize).and_then(Option::take) else { return };
        if let (Some(decisions), Some(packets)) = (&mut self.decisions, slot.packets.take()) {
            decisions.end(*packets, self.now);
        }
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
            // More connections will go with these, and the agent forgets their flows after them.
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

    /// Wakes streams that waited for memory, if some was released and they have room now.
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

    /// Delivers events, and sends what may be sent.
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

    /// Handles a wire without room: connections wait for it, except with work that needs none. A wire may stay full for
    /// good.
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

    /// Sends the datagrams that waited for room, then replies. False if there is no room.
    fn clear(&mut self, wire: &mut dyn Wire) -> io::Result<bool> {
        while let Some(next) = self.stuck.take().or_else(|| self.replies.pop_front()) {
            wire.set_dscp(next.dscp);
            if !wire.send(&next.transmit, &next.payload)? {
                self.stuck = Some(next);
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Moves a connection's events to the endpoint and the application. False if the connection is gone.
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
            if let (Stage::Refused(why), quinn_proto::Event::Connected) = (slot.stage, &event) {
                slot.quic.close(self.now, NO_ROOM.into(), Bytes::from_static(why.as_bytes()));
            }
            let event = match event {
                // The application never knew of this connection.
                _ if matches!(slot.stage, Stage::Refused(_)) => continue,
                quinn_proto::Event::Connected => Event::Connected,
                quinn_proto::Event::Stream(event) => Event::Stream(event),
                quinn_proto::Event::ConnectionLost { reason } => Event::Closed(reason),
                quinn_proto::Event::HandshakeDataReady
                | quinn_proto::Event::DatagramReceived
                | quinn_proto::Event::DatagramsUnblocked => continue,
            };
            match (&event, &mut self.decisions, &self.control) {
                (Event::Connected, Some(decisions), Control::Engine { .. }) if slot.packets.is_none() => {
                    let ip = slot.quic.local_ip().unwrap_or(self.local.ip());
                    let local = canonical(SocketAddr::new(ip, self.local.port()));
                    let ends = (local, canonical(slot.quic.remote_address()));
                    let (stats, in_flight) = (slot.quic.stats(), Arc::clone(&slot.in_flight));
                    slot.packets = Some(Box::new(decisions.start(ends, &stats, in_flight, self.now)));
                }
                (Event::Closed(_), Some(decisions), _) => {
                    if let Some(packets) = slot.packets.take() {
                        decisions.end(*packets, self.now);
                    }
                }
                _ => {}
            }
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

    /// Sends once, if the connection has data and its bucket allows it.
    fn send(&mut self, index: u32, wire: &mut dyn Wire) -> io::Result<Sent> {
        let Some(slot) = self.slots.get_mut(index as usize).and_then(Option::as_deref_mut) else {
            return Ok(Sent::Nothing);
        };
        let mtu_bytes = slot.quic.current_mtu();
        // A connection's last packet is not held back.
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
        let in_flight_bytes = slot.in_flight.load(Relaxed);
        let lifted = probes.then(|| QuicController::of(&slot.quic)).flatten();
        lifted.iter().for_each(QuicController::lift);
        let transmit = slot.quic.poll_transmit(self.now, datagrams, &mut self.buffer);
        lifted.iter().for_each(QuicController::hold);
        let Some(transmit) = transmit else { return Ok(Sent::Nothing) };
        slot.unanswered = Some(Unanswered::and(slot.unanswered, self.now));
        slot.bucket.charge(transmit.size);
        let dscp = match (&mut self.decisions, &mut slot.packets) {
            (Some(decisions), Some(packets)) => {
                let sent = (transmit.size, in_flight_bytes, slot.written_bytes);
                decisions.code_point(packets, sent, self.now)
            }
            _ => 0,
        };
        wire.set_dscp(dscp);
        if wire.send(&transmit, &self.buffer[..transmit.size])? {
            return Ok(Sent::Some);
        }
        self.stuck = Some(Outgoing { transmit, payload: std::mem::take(&mut self.buffer), dscp });
        if let Some(stuck) = &mut self.stuck {
            stuck.payload.truncate(stuck.transmit.size);
        }
        Ok(Sent::NoRoom)
    }

    /// Sets the connection's timer. A timer that expires too early costs one check, and no more.
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

/// Makes connection IDs of 64 random bits.
///
/// quinn's own choice has 24 random bits, and the ID in a Retry is not compared with those in use: among a thousand
/// connections one in a few thousand clients got another's ID, and never had an answer.
fn connection_ids() -> Box<dyn ConnectionIdGenerator> {
    Box::new(RandomConnectionIdGenerator::new(CONNECTION_ID_BYTES))
}

/// The pacing rate, bytes per second; 0 if only quinn's own pacer is used.
fn rate_of(quic: &quinn_proto::Connection) -> u64 {
    // The metric is in bits, as in qlog.
    quic.congestion_state().metrics().pacing_rate.map_or(0, |bit_per_s| bit_per_s / 8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connection_ids_do_not_repeat() {
        // With 24 random bits, so many would have some seventy repeats.
        const MANY: usize = 50_000;
        let mut ids = connection_ids();
        let distinct: BTreeSet<_> = (0..MANY).map(|_| ids.generate_cid().to_vec()).collect();
        assert_eq!(distinct.len(), MANY);
    }
}
