//! Events of flows as a qlog stream: the tap in the loops, and the records that readers get.
//!
//! Nothing is watched while nobody asks. A subscriber's queue is bounded, and what does not fit is counted and dropped:
//! the loop never waits for a reader.

mod bounded;
mod record;
mod tap;

pub use bounded::{Bounded, MAX_TRACE_BYTES};
pub use record::{CongestionState, Decided, Event, EventRecord, Format, Metrics, Program, dropped, header};
pub use tap::{Subscriber, Taps};

use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use tokio::sync::mpsc;

/// Records that wait for one reader.
pub const MAX_QUEUED: usize = 4096;
/// Readers that one loop serves at once.
pub const MAX_SUBSCRIBERS: usize = 8;

/// Selection of the flows whose events a reader wants.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Filter {
    /// Only this flow, as `ccplane flows` numbers it; the stream ends with it. Without it: every flow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flow: Option<u64>,
    /// Only flows of datapaths of this kind.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub datapath: Option<String>,
}

impl Filter {
    fn takes(&self, datapath: &str, flow: u64) -> bool {
        self.flow.is_none_or(|f| f == flow) && self.datapath.as_deref().is_none_or(|d| d == datapath)
    }
}

/// Receiving end of a stream of records.
pub struct Subscription {
    /// Ends when no flow that was asked for can come any more.
    pub records: mpsc::Receiver<EventRecord>,
    /// Records that did not fit so far.
    pub dropped: Arc<AtomicU64>,
    /// The agent's clock when it began, microseconds.
    pub since_us: u64,
}

/// Both ends of a stream.
pub fn channel(filter: &Filter, since_us: u64) -> (Subscriber, Subscription) {
    let (to, records) = mpsc::channel(MAX_QUEUED);
    let dropped = Arc::new(AtomicU64::new(0));
    let subscriber = Subscriber::new(filter.clone(), to, Arc::clone(&dropped));
    (subscriber, Subscription { records, dropped, since_us })
}

#[cfg(test)]
mod tests;
