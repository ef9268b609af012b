//! The engine as quinn's congestion controller: measures per packet, asks the program once per ACK frame, and once more
//! where one tells of losses or marks.
//!
//! What quinn shows of a flow, and what programs read:
//!
//! - Packets of QUIC are not in the order of a stream: every acknowledged byte is `Ack.bytes_acked`, and what is
//!   acknowledged after something that was sent later is misordered as well.
//! - Sizes are those of QUIC packets, so a segment is a UDP payload; what a program takes for one follows what discovery of
//!   the path's MTU finds, and a black hole takes away.
//! - Losses come as bytes; they count as packets of full size. A mark (CE) comes as one, however many there were.
//! - How much waits to be sent is not said, only whether anything did: a backlog is [`BACKLOG_BYTES`].
//! - Persistent congestion (RFC 9002 section 7.6) is what a retransmission timeout is elsewhere.

use crate::stamps::{MAX_STAMPS, Stamps};
use ccplane_contract::{FlowId, FlowInfo};
use ccplane_engine::rate::{RateSample, RateSampler, SendStamp};
use ccplane_engine::{Ack, Decided, Engine, FlowEngine, Sampled, Steer};
use ccplane_program::ir::Prim;
use ccplane_program::vm::Prims;
use quinn_proto::RttEstimator;
use quinn_proto::congestion::{Controller, ControllerFactory, ControllerMetrics};
use std::any::Any;
use std::net::{Ipv6Addr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Instant;

/// What a flow that has more to send says of it, bytes past those in flight.
pub const BACKLOG_BYTES: u64 = 4 << 20;
/// Packets of a new flow's window (RFC 9002 section 7.2).
const INITIAL_WINDOW_PACKETS: u64 = 10;
/// That window is at most this, or two packets, bytes.
const INITIAL_WINDOW_BYTES: u64 = 14_720;

/// Called after each invocation of a flow's program, or of its native algorithm, on the thread that drives the flow.
pub type Observer = Arc<dyn Fn(&Seen) + Send + Sync>;

/// A flow after an ACK.
#[derive(Clone, Copy, Debug)]
pub struct Seen {
    /// When it was.
    pub at: Instant,
    /// The flow.
    pub flow: FlowId,
    /// Window and rate in force.
    pub steer: Steer,
    /// Who decided them.
    pub decided: Decided,
    /// The local address and the peer's; `None` where quinn's own driver has the connection.
    pub addresses: Option<(SocketAddr, SocketAddr)>,
    /// Maximum segment size, bytes.
    pub mss_bytes: u32,
    /// What is known of the path.
    pub sampled: Sampled,
    /// The last RTT sample, microseconds; 0 for none.
    pub latest_rtt_us: u64,
    /// In flight, bytes.
    pub in_flight_bytes: u64,
}

/// Makes the controllers of one connection, as many as paths it comes to have.
pub(crate) struct Origin {
    pub(crate) engine: Engine,
    pub(crate) local: SocketAddr,
    pub(crate) remote: SocketAddr,
    pub(crate) observer: Option<Observer>,
    /// The path at work.
    path: Mutex<Weak<Path>>,
}

impl Origin {
    pub(crate) fn new(
        engine: Engine,
        local: SocketAddr,
        remote: SocketAddr,
        observer: Option<Observer>,
    ) -> Origin {
        Origin { engine, local, remote, observer, path: Mutex::default() }
    }
}

impl ControllerFactory for Origin {
    fn build(self: Arc<Self>, now: Instant, current_mtu: u16) -> Box<dyn Controller> {
        let path = Arc::new(Path::new(Arc::clone(&self), now, current_mtu));
        let mut at_work = self.path.lock().unwrap_or_else(PoisonError::into_inner);
        // quinn keeps the old path for as long as the new one may turn out to be none. Its flow has ended; if it comes
        // back, it is another one.
        if let Some(old) = std::mem::replace(&mut *at_work, Arc::downgrade(&path)).upgrade() {
            old.flow().engine = None;
        }
        Box::new(Steered { acked: Acked::default(), newest: None, path })
    }
}

/// The engine for those who keep quinn's own driver: give it to
/// [`TransportConfig::congestion_controller_factory`](quinn_proto::TransportConfig::congestion_controller_factory).
///
/// Only the window is a program's then: quinn paces by its own rule, at 1.25 windows a round trip, whatever rate a program
/// sets. Algorithms that decide on a rate belong on [`Endpoint`](crate::Endpoint). Of flows the agent sees no addresses.
#[derive(Clone)]
pub struct WindowOnly {
    engine: Engine,
}

impl WindowOnly {
    /// Controllers of this engine.
    pub fn new(engine: Engine) -> WindowOnly {
        WindowOnly { engine }
    }
}

impl ControllerFactory for WindowOnly {
    fn build(self: Arc<Self>, now: Instant, current_mtu: u16) -> Box<dyn Controller> {
        let unknown = SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0));
        let engine = self.engine.clone();
        Arc::new(Origin::new(engine, unknown, unknown, None)).build(now, current_mtu)
    }
}

/// What an ACK frame has told so far.
#[derive(Clone, Copy, Default, Debug)]
struct Acked {
    bytes: u64,
    packets: u64,
    late_bytes: u64,
    late_packets: u64,
    newest: Option<Instant>,
}

/// The controller. Where a path takes over from another of the same connection, both have one state.
#[derive(Clone)]
pub(crate) struct Steered {
    acked: Acked,
    /// When the newest packet left that earlier frames acknowledged.
    newest: Option<Instant>,
    path: Arc<Path>,
}

/// What quinn and the driver read, and what only ACKs touch.
struct Path {
    /// Bytes that may be in flight, as quinn compares them.
    window: AtomicU64,
    /// Bytes per second; 0 for none.
    rate: AtomicU64,
    /// Only one of a connection's paths is at work, so nobody waits for it.
    flow: Mutex<Flow>,
}

impl Path {
    fn new(origin: Arc<Origin>, now: Instant, mtu: u16) -> Path {
        let flow = Flow::new(origin, now, mtu);
        Path { window: AtomicU64::new(flow.allowed()), rate: AtomicU64::new(0), flow: Mutex::new(flow) }
    }

    fn flow(&self) -> MutexGuard<'_, Flow> {
        self.flow.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn publish(&self, flow: &Flow) {
        self.window.store(flow.allowed(), Relaxed);
        self.rate.store(flow.steer.rate, Relaxed);
    }
}

impl Steered {
    /// The controller in force on a connection, unless it is one of quinn's.
    pub(crate) fn of(connection: &quinn_proto::Connection) -> Option<Steered> {
        connection.congestion_state().clone_box().into_any().downcast().ok().map(|this| *this)
    }

    /// From now on anything may leave; until [`hold`](Steered::hold).
    pub(crate) fn lift(&self) {
        self.path.window.store(u64::MAX, Relaxed);
    }

    /// The window is in force again.
    pub(crate) fn hold(&self) {
        self.path.publish(&self.path.flow());
    }

    /// The flow as it was after its last ACK; `None` before the first.
    pub(crate) fn seen(&self) -> Option<Seen> {
        self.path.flow().seen()
    }
}

impl Controller for Steered {
    fn on_sent(&mut self, now: Instant, bytes: u64, _last_packet_number: u64) {
        self.path.flow().on_sent(now, bytes);
    }

    fn on_ack(&mut self, _now: Instant, sent: Instant, bytes: u64, _app_limited: bool, _rtt: &RttEstimator) {
        let acked = &mut self.acked;
        acked.bytes += bytes;
        acked.packets += 1;
        if self.newest.is_some_and(|newest| sent < newest) {
            acked.late_bytes += bytes;
            acked.late_packets += 1;
        }
        acked.newest = acked.newest.max(Some(sent));
    }

    fn on_end_acks(&mut self, now: Instant, in_flight: u64, app_limited: bool, _largest: Option<u64>) {
        let acked = std::mem::take(&mut self.acked);
        let mut flow = self.path.flow();
        flow.in_flight_bytes = in_flight;
        flow.app_limited = app_limited;
        if acked.packets > 0 {
            self.newest = self.newest.max(acked.newest);
            flow.on_acked(now, &acked);
            self.path.publish(&flow);
        }
    }

    fn on_congestion_event(&mut self, now: Instant, sent: Instant, persistent: bool, lost_bytes: u64) {
        let mut flow = self.path.flow();
        flow.on_congestion(now, sent, persistent, lost_bytes);
        self.path.publish(&flow);
    }

    fn on_mtu_update(&mut self, new_mtu: u16) {
        let mut flow = self.path.flow();
        flow.set_mtu(new_mtu);
        self.path.publish(&flow);
    }

    fn window(&self) -> u64 {
        self.path.window.load(Relaxed)
    }

    fn metrics(&self) -> ControllerMetrics {
        let mut metrics = ControllerMetrics::default();
        metrics.congestion_window = self.window();
        // quinn says bits.
        metrics.pacing_rate =
            Some(self.path.rate.load(Relaxed)).filter(|rate| *rate > 0).map(|rate| rate * 8);
        metrics
    }

    fn clone_box(&self) -> Box<dyn Controller> {
        Box::new(self.clone())
    }

    fn initial_window(&self) -> u64 {
        self.window()
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}

/// A flow's measurements, and its end of the engine.
struct Flow {
    origin: Arc<Origin>,
    /// From the first ACK on: a connection that nobody answers is no flow.
    engine: Option<FlowEngine>,
    /// What times count from.
    started: Instant,
    steer: Steer,
    mss_bytes: u64,
    in_flight_bytes: u64,
    app_limited: bool,
    /// Losses of what left before then are of an episode that was answered.
    answered: Option<Instant>,
    rates: RateSampler,
    stamps: Stamps,
    /// The last valid sample.
    rate: RateSample,
    latest_rtt_us: u64,
    sampled: Sampled,
    invoked_at: Instant,
}

impl Flow {
    fn new(origin: Arc<Origin>, now: Instant, mtu: u16) -> Flow {
        let mss_bytes = u64::from(mtu.max(1));
        let cwnd_bytes = (INITIAL_WINDOW_PACKETS * mss_bytes).min(INITIAL_WINDOW_BYTES.max(2 * mss_bytes));
        Flow {
            origin,
            engine: None,
            started: now,
            steer: Steer { cwnd_bytes, rate: 0 },
            mss_bytes,
            in_flight_bytes: 0,
            app_limited: false,
            answered: None,
            rates: RateSampler::default(),
            stamps: Stamps::default(),
            rate: RateSample::default(),
            latest_rtt_us: 0,
            sampled: Sampled::default(),
            invoked_at: now,
        }
    }

    /// The window as quinn takes it, which keeps what is in flight below and not at it.
    fn allowed(&self) -> u64 {
        self.steer.cwnd_bytes.max(self.mss_bytes).saturating_add(1)
    }

    fn ns(&self, at: Instant) -> u64 {
        at.saturating_duration_since(self.started).as_nanos() as u64
    }

    fn packets(&self, bytes: u64) -> u64 {
        bytes.div_ceil(self.mss_bytes)
    }

    fn on_sent(&mut self, now: Instant, bytes: u64) {
        let stamp = self.rates.on_send(self.ns(now), self.in_flight_bytes == 0);
        self.stamps.push(stamp);
        self.in_flight_bytes += bytes;
    }

    fn on_acked(&mut self, now: Instant, acked: &Acked) {
        let now_ns = self.ns(now);
        let sent_ns = acked.newest.map_or(now_ns, |sent| self.ns(sent));
        let rtt_ns = now_ns.saturating_sub(sent_ns);
        self.sample_rtt((rtt_ns / 1000).max(1));
        let (stamp, min_rtt_ns) = (self.stamps.take(sent_ns), u64::from(self.sampled.min_rtt_us) * 1000);
        self.rate = self.rates.on_delivered(now_ns, acked.bytes, stamp, min_rtt_ns).unwrap_or(self.rate);
        self.sampled.bytes_acked += acked.bytes;
        self.sampled.delivered += acked.packets;
        let mut prims = self.prims(now);
        for (prim, value) in [
            (Prim::AckBytesAcked, acked.bytes),
            (Prim::AckBytesMisordered, acked.late_bytes),
            (Prim::AckPacketsAcked, acked.packets - acked.late_packets),
            (Prim::AckPacketsMisordered, acked.late_packets),
            (Prim::FlowRttSampleUs, self.latest_rtt_us),
        ] {
            prims.set(prim, signed(value));
        }
        self.invoke(now, prims, acked.packets, Trouble::default());
    }

    /// As RFC 6298 smooths it, without the peer's delay of ACKs taken off, as TCP does.
    fn sample_rtt(&mut self, rtt_us: u64) {
        self.latest_rtt_us = rtt_us;
        let rtt_us = u32::try_from(rtt_us).unwrap_or(u32::MAX);
        let Sampled { srtt_us, min_rtt_us, .. } = &mut self.sampled;
        if *srtt_us == 0 {
            (*srtt_us, *min_rtt_us) = (rtt_us, rtt_us);
        } else {
            *srtt_us = ((7 * u64::from(*srtt_us) + u64::from(rtt_us)) / 8) as u32;
            *min_rtt_us = rtt_us.min(*min_rtt_us);
        }
    }

    fn on_congestion(&mut self, now: Instant, sent: Instant, persistent: bool, lost_bytes: u64) {
        let lost = self.packets(lost_bytes);
        let marked = u64::from(lost_bytes == 0);
        self.in_flight_bytes = self.in_flight_bytes.saturating_sub(lost_bytes);
        self.sampled.lost += lost;
        let new_episode = self.answered.is_none_or(|answered| sent > answered);
        if new_episode {
            self.answered = Some(now);
        }
        let mut prims = self.prims(now);
        for (prim, value) in [
            (Prim::AckLostPktsSample, lost),
            (Prim::AckEcnPackets, marked),
            (Prim::AckEcnBytes, marked * self.mss_bytes),
            (Prim::FlowWasTimeout, persistent.into()),
            (Prim::FlowRttSampleUs, 0),
        ] {
            prims.set(prim, signed(value));
        }
        self.invoke(now, prims, 0, Trouble { new_episode, timeout: persistent });
    }

    /// What every invocation reads alike.
    fn prims(&self, now: Instant) -> Prims {
        let mut prims = Prims::default();
        let pending = if self.app_limited { 0 } else { BACKLOG_BYTES };
        for (prim, value) in [
            (Prim::AckNow, self.origin.engine.now_us(now)),
            (Prim::FlowBytesInFlight, self.in_flight_bytes),
            (Prim::FlowBytesPending, self.in_flight_bytes + pending),
            (Prim::FlowPacketsInFlight, self.packets(self.in_flight_bytes)),
            (Prim::FlowRateIncoming, self.rate.delivery),
            (Prim::FlowRateOutgoing, self.rate.sending),
        ] {
            prims.set(prim, signed(value));
        }
        prims
    }

    fn invoke(&mut self, now: Instant, prims: Prims, packets: u64, trouble: Trouble) {
        self.sampled.unacked = u32::try_from(self.packets(self.in_flight_bytes)).unwrap_or(u32::MAX);
        let engine = match &mut self.engine {
            Some(engine) => engine,
            None => {
                let info = FlowInfo {
                    mss_bytes: self.mss_bytes as u32,
                    init_cwnd_bytes: self.steer.cwnd_bytes,
                    local: self.origin.local,
                    remote: self.origin.remote,
                    cgroup: None,
                    min_rtt_us: Some(self.sampled.min_rtt_us).filter(|us| *us > 0),
                };
                let now_us = self.origin.engine.now_us(now);
                self.engine.insert(self.origin.engine.flow(info, now_us))
            }
        };
        self.steer = engine.on_ack(&Ack {
            prims,
            packets,
            new_loss_episode: trouble.new_episode,
            timeout: trouble.timeout,
            window_limited: !self.app_limited,
            sampled: self.sampled,
        });
        self.invoked_at = now;
        if let (Some(observer), Some(seen)) = (&self.origin.observer, self.seen()) {
            observer(&seen);
        }
    }

    fn seen(&self) -> Option<Seen> {
        let engine = self.engine.as_ref()?;
        Some(Seen {
            at: self.invoked_at,
            flow: engine.id(),
            steer: self.steer,
            decided: engine.last_decision(),
            addresses: (self.origin.remote.port() != 0).then_some((self.origin.local, self.origin.remote)),
            mss_bytes: self.mss_bytes as u32,
            sampled: self.sampled,
            latest_rtt_us: self.latest_rtt_us,
            in_flight_bytes: self.in_flight_bytes,
        })
    }

    fn set_mtu(&mut self, mtu: u16) {
        self.mss_bytes = u64::from(mtu.max(1));
        if let Some(engine) = &mut self.engine {
            engine.set_mss(mtu.into());
            self.steer = engine.steer();
        }
    }
}

/// What a connection costs beyond quinn's own, bytes; the engine keeps some hundred more for the agent.
const MAX_FLOW_BYTES: usize = 16 << 10;
const _: () = assert!(
    size_of::<Steered>() + size_of::<Path>() + MAX_STAMPS * size_of::<SendStamp>() < MAX_FLOW_BYTES - 2048
);

/// What an ACK frame said of losses.
#[derive(Clone, Copy, Default)]
struct Trouble {
    new_episode: bool,
    timeout: bool,
}

fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}
