//! The engine as quinn's congestion controller.
//!
//! It measures per packet, asks the program once per ACK frame, and once more if the frame reports losses or marks.
//!
//! How programs see a QUIC flow:
//!
//! - Packets of QUIC are not in the order of a stream: every acknowledged byte is `Ack.bytes_acked`, and one that is
//!   acknowledged after a byte sent later is misordered as well.
//! - Sizes are those of QUIC packets, so a segment is a UDP payload; its size follows MTU discovery, and shrinks where the
//!   path is a black hole.
//! - quinn reports losses in bytes; they count as packets of full size. It reports marks (CE) as one, whatever their number.
//! - quinn says whether data waits to be sent, not how much: a backlog counts as [`BACKLOG_BYTES`].
//! - Persistent congestion (RFC 9002 section 7.6) counts as a retransmission timeout.

use crate::packets::InFlight;
use crate::stamps::{MAX_STAMPS, Stamps};
use ccplane_contract::{FlowId, FlowInfo};
use ccplane_engine::rate::{RateSample, RateSampler, SendStamp};
use ccplane_engine::{Ack, Engine, FlowEngine, LastDecision, Sampled, SendLimits};
use ccplane_program::ir::Prim;
use ccplane_program::vm::Prims;
use quinn_proto::RttEstimator;
use quinn_proto::congestion::{Controller, ControllerFactory, ControllerMetrics};
use std::any::Any;
use std::net::{Ipv6Addr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Instant;

/// Backlog that a flow with more to send reports, bytes past those in flight.
pub const BACKLOG_BYTES: u64 = 4 << 20;
/// Initial window of a flow, packets (RFC 9002 section 7.2).
const INITIAL_WINDOW_PACKETS: u64 = 10;
/// The initial window is at most this or two packets, bytes.
const INITIAL_WINDOW_BYTES: u64 = 14_720;

/// Called after each invocation of a flow's program, or of its native algorithm, on the thread that drives the flow.
pub type Observer = Arc<dyn Fn(&QuicFlowState) + Send + Sync>;

/// The state of a flow after an ACK.
#[derive(Clone, Copy, Debug)]
pub struct QuicFlowState {
    /// The time of the ACK.
    pub at: Instant,
    pub flow: FlowId,
    /// The window and rate in force.
    pub steer: SendLimits,
    /// The decider: the program or the native algorithm.
    pub decided: LastDecision,
    /// The local address and the peer's; `None` where quinn's own driver has the connection.
    pub addresses: Option<(SocketAddr, SocketAddr)>,
    /// Maximum segment size, bytes.
    pub mss_bytes: u32,
    /// Statistics of the path.
    pub sampled: Sampled,
    /// The last RTT sample, microseconds; 0 for none.
    pub latest_rtt_us: u64,
    /// Bytes in flight.
    pub in_flight_bytes: u64,
}

/// Makes the controllers of one connection, one for each of its paths.
pub(crate) struct Origin {
    pub(crate) engine: Engine,
    pub(crate) local: SocketAddr,
    pub(crate) remote: SocketAddr,
    pub(crate) observer: Option<Observer>,
    /// Bytes in flight, for decisions about packets.
    in_flight: InFlight,
    /// The path in use.
    path: Mutex<Weak<ControlledPath>>,
}

impl Origin {
    pub(crate) fn new(
        engine: Engine,
        local: SocketAddr,
        remote: SocketAddr,
        observer: Option<Observer>,
        in_flight: InFlight,
    ) -> Origin {
        Origin { engine, local, remote, observer, in_flight, path: Mutex::default() }
    }
}

impl ControllerFactory for Origin {
    fn build(self: Arc<Self>, now: Instant, current_mtu: u16) -> Box<dyn Controller> {
        let path = Arc::new(ControlledPath::new(Arc::clone(&self), now, current_mtu));
        let mut at_work = self.path.lock().unwrap_or_else(PoisonError::into_inner);
        // quinn keeps the old path as long as the new one may turn out to be unusable. Its flow has ended; if the path
        // comes back, it is another flow.
        if let Some(old) = std::mem::replace(&mut *at_work, Arc::downgrade(&path)).upgrade() {
            old.flow().engine = None;
        }
        Box::new(QuicController { acked: Acked::default(), newest: None, path })
    }
}

/// The engine for applications that keep quinn's own driver.
///
/// Give it to
/// [`TransportConfig::congestion_controller_factory`](quinn_proto::TransportConfig::congestion_controller_factory).
///
/// Only the window is a program's then: quinn paces by its own rule, at 1.25 windows a round trip, whatever rate a program
/// sets. Algorithms that decide on a rate belong on [`Endpoint`](crate::Endpoint). Of flows the agent sees no addresses.
#[derive(Clone)]
pub struct WindowOnly {
    engine: Engine,
}

impl WindowOnly {
    /// Makes controllers of this engine.
    pub fn new(engine: Engine) -> WindowOnly {
        WindowOnly { engine }
    }
}

impl ControllerFactory for WindowOnly {
    fn build(self: Arc<Self>, now: Instant, current_mtu: u16) -> Box<dyn Controller> {
        let unknown = SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0));
        let engine = self.engine.clone();
        Arc::new(Origin::new(engine, unknown, unknown, None, InFlight::default())).build(now, current_mtu)
    }
}

/// Measurements of the current ACK frame so far.
#[derive(Clone, Copy, Default, Debug)]
struct Acked {
    bytes: u64,
    packets: u64,
    late_bytes: u64,
    late_packets: u64,
    newest: Option<Instant>,
}

/// The controller of a path. A path that takes over from another of the same connection shares its state.
#[derive(Clone)]
pub(crate) struct QuicController {
    acked: Acked,
    /// When the newest packet acknowledged by earlier frames was sent.
    newest: Option<Instant>,
    path: Arc<ControlledPath>,
}

/// The shared part, read by quinn and the driver, and the part for ACKs only.
struct ControlledPath {
    /// The congestion window, bytes, as quinn compares it.
    window: AtomicU64,
    /// The pacing rate, bytes per second; 0 for none.
    rate: AtomicU64,
    /// The flow, uncontended since only one of a connection's paths is in use.
    flow: Mutex<QuicFlow>,
}

impl ControlledPath {
    fn new(origin: Arc<Origin>, now: Instant, mtu: u16) -> ControlledPath {
        let flow = QuicFlow::new(origin, now, mtu);
        ControlledPath {
            window: AtomicU64::new(flow.allowed()),
            rate: AtomicU64::new(0),
            flow: Mutex::new(flow),
        }
    }

    fn flow(&self) -> MutexGuard<'_, QuicFlow> {
        self.flow.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn publish(&self, flow: &QuicFlow) {
        self.window.store(flow.allowed(), Relaxed);
        self.rate.store(flow.steer.rate, Relaxed);
    }
}

impl QuicController {
    /// The controller of a connection, unless it is one of quinn's.
    pub(crate) fn of(connection: &quinn_proto::Connection) -> Option<QuicController> {
        connection.congestion_state().clone_box().into_any().downcast().ok().map(|this| *this)
    }

    /// Lifts the window until [`hold`](QuicController::hold): anything may leave.
    pub(crate) fn lift(&self) {
        self.path.window.store(u64::MAX, Relaxed);
    }

    /// Puts the window in force again.
    pub(crate) fn hold(&self) {
        self.path.publish(&self.path.flow());
    }

    /// The flow after its last ACK; `None` before the first.
    pub(crate) fn flow_state(&self) -> Option<QuicFlowState> {
        self.path.flow().flow_state()
    }
}

impl Controller for QuicController {
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
        flow.set_in_flight(in_flight);
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
        // quinn's field is in bits.
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
struct QuicFlow {
    origin: Arc<Origin>,
    /// Made at the first ACK: an unanswered connection is no flow.
    engine: Option<FlowEngine>,
    /// The origin of its times.
    started: Instant,
    steer: SendLimits,
    mss_bytes: u64,
    in_flight_bytes: u64,
    app_limited: bool,
    /// Losses of packets sent before this time belong to an episode that was answered.
    answered: Option<Instant>,
    rates: RateSampler,
    stamps: Stamps,
    /// The last valid rate sample.
    rate: RateSample,
    latest_rtt_us: u64,
    sampled: Sampled,
    invoked_at: Instant,
}

impl QuicFlow {
    fn new(origin: Arc<Origin>, now: Instant, mtu: u16) -> QuicFlow {
        let mss_bytes = u64::from(mtu.max(1));
        let cwnd_bytes = (INITIAL_WINDOW_PACKETS * mss_bytes).min(INITIAL_WINDOW_BYTES.max(2 * mss_bytes));
        QuicFlow {
            origin,
            engine: None,
            started: now,
            steer: SendLimits { cwnd_bytes, rate: 0 },
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

    /// The window for quinn, which keeps bytes in flight below it and not at it.
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
        self.set_in_flight(self.in_flight_bytes + bytes);
    }

    fn set_in_flight(&mut self, bytes: u64) {
        self.in_flight_bytes = bytes;
        self.origin.in_flight.store(bytes, Relaxed);
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
        self.invoke(now, prims, acked.packets, CongestionEvent::default());
    }

    /// Smooths the RTT as RFC 6298 does, without the peer's ACK delay taken off, as TCP does.
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
        self.set_in_flight(self.in_flight_bytes.saturating_sub(lost_bytes));
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
        self.invoke(now, prims, 0, CongestionEvent { new_episode, timeout: persistent });
    }

    /// The primitives that every invocation has in common.
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

    fn invoke(&mut self, now: Instant, prims: Prims, packets: u64, event: CongestionEvent) {
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
            new_loss_episode: event.new_episode,
            timeout: event.timeout,
            window_limited: !self.app_limited,
            sampled: self.sampled,
        });
        self.invoked_at = now;
        if let (Some(observer), Some(seen)) = (&self.origin.observer, self.flow_state()) {
            observer(&seen);
        }
    }

    fn flow_state(&self) -> Option<QuicFlowState> {
        let engine = self.engine.as_ref()?;
        Some(QuicFlowState {
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
            self.steer = engine.limits();
        }
    }
}

/// Largest memory of a flow beyond quinn's own, bytes; the engine keeps some hundred more for the agent.
const MAX_FLOW_BYTES: usize = 16 << 10;
const _: () = assert!(
    size_of::<QuicController>() + size_of::<ControlledPath>() + MAX_STAMPS * size_of::<SendStamp>()
        < MAX_FLOW_BYTES - 2048
);

/// The loss episode and timeout that an invocation reports.
#[derive(Clone, Copy, Default)]
struct CongestionEvent {
    new_episode: bool,
    timeout: bool,
}

fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}
