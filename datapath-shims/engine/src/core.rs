//! The two ends of an engine, and what they share.

use crate::config::{EngineConfig, MAX_EVENT_CAPACITY};
use crate::desk::Shared;
use crate::events::{Events, Record};
use crate::flow::FlowEngine;
use crate::handle::Handle;
use arc_swap::ArcSwap;
use ccplane_contract::{FlowId, FlowInfo, SlotTable};
use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// Called when an event was queued that wakes the agent. Runs on the flow's thread, within its ACK: it must neither wait
/// nor take long.
pub type Waker = Arc<dyn Fn() + Send + Sync>;

/// The datapath's clock, microseconds, as ACKs tell it.
pub type Clock = Arc<dyn Fn() -> u64 + Send + Sync>;

/// What both ends and all flows share.
pub(crate) struct Core {
    pub(crate) config: EngineConfig,
    epoch: Instant,
    next_flow: AtomicU64,
    /// When the agent was last heard.
    heartbeat_us: AtomicU64,
    flows: Mutex<BTreeMap<FlowId, Arc<Shared>>>,
    pub(crate) slots: Arc<ArcSwap<SlotTable>>,
    pub(crate) events: Events,
}

impl Core {
    /// The flows that the agent knows of. Held only to look up, add or remove.
    pub(crate) fn flows(&self) -> MutexGuard<'_, BTreeMap<FlowId, Arc<Shared>>> {
        self.flows.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[inline]
    pub(crate) fn is_silent(&self, now_us: u64) -> bool {
        now_us.saturating_sub(self.heartbeat_us.load(Relaxed)) > self.config.heartbeat_timeout_us
    }

    pub(crate) fn heard(&self, now_us: u64) {
        self.heartbeat_us.store(now_us, Relaxed);
    }

    /// Starts a flow of this name, which was never used before.
    pub(crate) fn start(self: &Arc<Core>, id: FlowId, info: FlowInfo, now_us: u64) -> FlowEngine {
        let shared = Arc::new(Shared::new(id, info, now_us));
        let announced = {
            let mut flows = self.flows();
            let fits = flows.len() < self.config.max_flows;
            if fits {
                flows.insert(id, Arc::clone(&shared));
            }
            fits
        };
        if announced {
            self.events.push(Record::Created { flow: id, info: shared.info.clone() });
        }
        FlowEngine::new(Arc::clone(self), shared, announced, now_us)
    }

    /// An announced flow ended.
    pub(crate) fn end(&self, id: FlowId) {
        self.flows().remove(&id);
        self.events.push(Record::Closed { flow: id });
    }
}

/// A datapath without a transport: the transport's end and the agent's. The agent is taken to be alive at first. `waker`
/// is called when an event was queued that wakes the agent.
pub fn engine(config: EngineConfig, waker: Waker) -> (Engine, Handle) {
    let epoch = Instant::now();
    let clock = Arc::new(move || epoch.elapsed().as_micros() as u64);
    with_epoch(config, waker, clock, epoch)
}

/// As [`engine`], in a time of its own: `clock` says when a heartbeat is given, in the microseconds that ACKs tell.
pub fn engine_with_clock(config: EngineConfig, waker: Waker, clock: Clock) -> (Engine, Handle) {
    with_epoch(config, waker, clock, Instant::now())
}

fn with_epoch(config: EngineConfig, waker: Waker, clock: Clock, epoch: Instant) -> (Engine, Handle) {
    let capacity = config.event_capacity.clamp(1, MAX_EVENT_CAPACITY);
    let core = Arc::new(Core {
        config,
        epoch,
        next_flow: AtomicU64::new(1),
        heartbeat_us: AtomicU64::new(clock()),
        flows: Mutex::default(),
        slots: Arc::new(ArcSwap::from_pointee(SlotTable::new())),
        events: Events::new(capacity, config.batch_us, waker),
    });
    (Engine { core: Arc::clone(&core) }, Handle::new(core, clock))
}

/// The transport's end.
#[derive(Clone)]
pub struct Engine {
    pub(crate) core: Arc<Core>,
}

impl Engine {
    /// The datapath's clock at this instant, microseconds since it was made: what ACKs tell as `Ack.now`.
    pub fn now_us(&self, at: Instant) -> u64 {
        at.saturating_duration_since(self.core.epoch).as_micros() as u64
    }

    /// A flow starts. The agent hears of it, unless there are [`EngineConfig::max_flows`] already; then it runs the native
    /// algorithm for as long as it lives.
    pub fn flow(&self, info: FlowInfo, now_us: u64) -> FlowEngine {
        let id = FlowId(self.core.next_flow.fetch_add(1, Relaxed));
        self.core.start(id, info, now_us)
    }
}
