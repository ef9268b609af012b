//! The state that both ends of an engine share.

use crate::config::{EngineConfig, MAX_EVENT_CAPACITY};
use crate::events::{Events, Record, Waker};
use crate::mailbox::SharedFlow;
use crate::program::FirstPrograms;
use arc_swap::ArcSwap;
use ccplane_contract::{FlowId, SlotTable};
use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// State that both ends and all flows share.
pub(crate) struct Core {
    pub(crate) config: EngineConfig,
    next_flow: AtomicU64,
    /// The time of the agent's last heartbeat, microseconds.
    heartbeat_us: AtomicU64,
    flows: Mutex<BTreeMap<FlowId, Arc<SharedFlow>>>,
    pub(crate) slots: Arc<ArcSwap<SlotTable>>,
    /// The programs that flows start with, where the engine decides about packets.
    pub(crate) first: ArcSwap<FirstPrograms>,
    pub(crate) events: Events,
}

impl Core {
    pub(crate) fn new(config: EngineConfig, waker: Waker, now_us: u64) -> Core {
        let capacity = config.event_capacity.clamp(1, MAX_EVENT_CAPACITY);
        Core {
            next_flow: AtomicU64::new(1),
            heartbeat_us: AtomicU64::new(now_us),
            flows: Mutex::default(),
            slots: Arc::new(ArcSwap::from_pointee(SlotTable::new())),
            first: ArcSwap::from_pointee(FirstPrograms::default()),
            events: Events::new(capacity, config.batch_us, waker),
            config,
        }
    }

    /// Takes an id that no flow had before.
    pub(crate) fn next_flow(&self) -> FlowId {
        FlowId(self.next_flow.fetch_add(1, Relaxed))
    }

    /// The flows that the agent knows of. Held only to look up, add or remove.
    pub(crate) fn flows(&self) -> MutexGuard<'_, BTreeMap<FlowId, Arc<SharedFlow>>> {
        self.flows.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[inline]
    pub(crate) fn is_silent(&self, now_us: u64) -> bool {
        now_us.saturating_sub(self.heartbeat_us.load(Relaxed)) > self.config.heartbeat_timeout_us
    }

    pub(crate) fn note_heartbeat(&self, now_us: u64) {
        self.heartbeat_us.store(now_us, Relaxed);
    }

    /// Announces a flow, unless there are as many as the configuration allows; whether it did.
    pub(crate) fn announce(&self, flow: &Arc<SharedFlow>) -> bool {
        {
            let mut flows = self.flows();
            if flows.len() >= self.config.max_flows {
                return false;
            }
            flows.insert(flow.id, Arc::clone(flow));
        }
        self.events.push(Record::Created { flow: flow.id, info: flow.info.clone() });
        true
    }

    /// Ends an announced flow.
    pub(crate) fn end(&self, id: FlowId) {
        self.flows().remove(&id);
        self.events.push(Record::Closed { flow: id });
    }
}
