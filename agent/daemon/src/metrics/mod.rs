//! Metrics for Prometheus: what the agent and its flows do, in sums over algorithms and datapaths, never by flow.
//!
//! The loops count what they count anyway. Once a second, and when somebody scrapes, the main thread asks each loop for a
//! [`LoopSample`] and adds it to the registry; the loop's own part is two clock reads a turn.

mod registry;
mod sampler;
mod server;

pub(crate) use registry::{LoopMetrics, Metrics};
pub(crate) use sampler::{DatapathSample, FlowSample, LoopSample, Sampler};
pub(crate) use server::{Endpoint, EndpointError, Page, serve};

use std::time::Duration;

/// Time between two looks at all flows.
pub(crate) const SAMPLE_INTERVAL: Duration = Duration::from_secs(1);
/// However often somebody scrapes, the loops are asked no more often than this.
pub(crate) const MIN_SAMPLE_INTERVAL: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests;
