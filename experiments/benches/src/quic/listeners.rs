//! Times controllers under several programs on the ACKs of one live flow: the first steers it, the others only listen.

use std::any::Any;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use ccplane_engine::Engine;
use ccplane_quic::WindowOnly;
use ccplane_quic::quinn_proto::RttEstimator;
use ccplane_quic::quinn_proto::congestion::{Controller, ControllerFactory};

/// ACKs at a flow's beginning that are not timed: caches are cold, and the agents have not set their programs yet.
const FIRST: usize = 2000;
/// ACKs that are timed, at most.
const MOST: usize = 200_000;

/// Nanoseconds that each controller took, ACK by ACK.
pub type Times = Arc<Mutex<Vec<Vec<u32>>>>;

/// Creates controllers that see the same ACKs.
pub struct ListenerFactory {
    /// The engines; the first one's controller steers.
    pub engines: Vec<Engine>,
    pub times: Times,
}

impl ControllerFactory for ListenerFactory {
    fn build(self: Arc<Self>, now: Instant, mtu: u16) -> Box<dyn Controller> {
        let build = |engine: &Engine| Arc::new(WindowOnly::new(engine.clone())).build(now, mtu);
        let controllers = self.engines.iter().map(build).collect();
        let times = Arc::clone(&self.times);
        Box::new(Listener(Arc::new(Mutex::new(ListenerState { controllers, times, acks: 0, acked: false }))))
    }
}

#[derive(Clone)]
struct Listener(Arc<Mutex<ListenerState>>);

struct ListenerState {
    controllers: Vec<Box<dyn Controller>>,
    times: Times,
    acks: usize,
    /// Whether the current frame acknowledges a packet.
    acked: bool,
}

impl Listener {
    fn state(&self) -> MutexGuard<'_, ListenerState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ListenerState {
    /// Times each on the end of an ACK frame; the order rotates, since the first one finds cold caches.
    fn end_acks(&mut self, now: Instant, in_flight: u64, app_limited: bool, largest: Option<u64>) {
        let many = self.controllers.len();
        let mut took = vec![0; many];
        for n in 0..many {
            let n = (n + self.acks) % many;
            let began = Instant::now();
            self.controllers[n].on_end_acks(now, in_flight, app_limited, largest);
            took[n] = began.elapsed().subsec_nanos();
        }
        if !std::mem::take(&mut self.acked) {
            return;
        }
        self.acks += 1;
        let mut times = self.times.lock().unwrap_or_else(PoisonError::into_inner);
        times.resize_with(many, Vec::new);
        if self.acks > FIRST && times[0].len() < MOST {
            times.iter_mut().zip(took).for_each(|(times, took)| times.push(took));
        }
    }
}

impl Controller for Listener {
    fn on_sent(&mut self, now: Instant, bytes: u64, number: u64) {
        self.state().controllers.iter_mut().for_each(|c| c.on_sent(now, bytes, number));
    }

    fn on_ack(&mut self, now: Instant, sent: Instant, bytes: u64, app_limited: bool, rtt: &RttEstimator) {
        let mut state = self.state();
        state.acked = true;
        state.controllers.iter_mut().for_each(|c| c.on_ack(now, sent, bytes, app_limited, rtt));
    }

    fn on_end_acks(&mut self, now: Instant, in_flight: u64, app_limited: bool, largest: Option<u64>) {
        self.state().end_acks(now, in_flight, app_limited, largest);
    }

    fn on_congestion_event(&mut self, now: Instant, sent: Instant, persistent: bool, lost_bytes: u64) {
        let mut state = self.state();
        state.controllers.iter_mut().for_each(|c| c.on_congestion_event(now, sent, persistent, lost_bytes));
    }

    fn on_mtu_update(&mut self, mtu: u16) {
        self.state().controllers.iter_mut().for_each(|c| c.on_mtu_update(mtu));
    }

    fn window(&self) -> u64 {
        self.state().controllers[0].window()
    }

    fn clone_box(&self) -> Box<dyn Controller> {
        Box::new(self.clone())
    }

    fn initial_window(&self) -> u64 {
        self.state().controllers[0].initial_window()
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}
