//! What happens to flows, as a qlog stream for whoever asks: the tap in the loops, and the records on the wire.
//!
//! Nothing is watched while nobody asks. A subscriber's queue is bounded, and what does not fit is counted and dropped:
//! the loop never waits for a reader.

mod bounded;
mod record;
mod tap;

pub(crate) use bounded::{Bounded, MAX_TRACE_BYTES};
pub(crate) use record::{Decided, Event, Format, Metrics, Program, Record, State, dropped, header};
pub(crate) use tap::{Subscriber, Taps};

use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use tokio::sync::mpsc;

/// Records that wait for one reader.
pub(crate) const MAX_QUEUED: usize = 4096;
/// Readers at once.
pub(crate) const MAX_SUBSCRIBERS: usize = 8;

/// Which flows are asked for.
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

/// A reader's end.
pub struct Subscription {
    /// Ends when no flow that was asked for can come any more.
    pub(crate) records: mpsc::Receiver<Record>,
    /// Records that did not fit so far.
    pub(crate) dropped: Arc<AtomicU64>,
    /// The agent's clock when it began, microseconds.
    pub(crate) since_us: u64,
}

/// Both ends of a stream.
pub(crate) fn channel(filter: &Filter, since_us: u64) -> (Subscriber, Subscription) {
    let (to, records) = mpsc::channel(MAX_QUEUED);
    let dropped = Arc::new(AtomicU64::new(0));
    let subscriber = Subscriber::new(filter.clone(), to, Arc::clone(&dropped));
    (subscriber, Subscription { records, dropped, since_us })
}

#[cfg(test)]
mod tests;
