//! The bounds that an algorithm must keep, and the ways to break them.

use crate::operation::Operation;
use crate::path::PathConfig;
use ccplane_contract::suite::Divergence;
use ccplane_core::{AttachError, CatalogError, CommandError, RulesError};
use std::fmt;

/// The bounds that a flow is held to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Bounds {
    /// Largest window, bytes. The smallest is one segment.
    pub max_cwnd_bytes: i64,
    /// Smallest pacing rate, bytes per second, where one is set.
    pub min_rate_bytes_per_s: i64,
    /// Largest pacing rate, bytes per second.
    pub max_rate_bytes_per_s: i64,
    /// Longest time between two reports while ACKs come, microseconds, besides two of the longest RTTs seen. Not for
    /// programs that ask a policy.
    pub report_us: u64,
    /// The share of a clean path's rate that a flow gets back to after trouble, percent.
    pub floor_percent: u64,
    /// The time in which it gets back, microseconds, counted from the first ACK; a hundred times the RTT of the default path.
    pub settle_us: u64,
    /// The largest rate that the algorithm sends at by design, bytes per second; the share is of this where the path
    /// is faster.
    pub ceiling_bytes_per_s: Option<u64>,
}

impl Bounds {
    /// Returns the rate that a flow should reach on a path of this rate, bytes per second.
    pub(crate) fn reachable(&self, bytes_per_s: u64) -> u64 {
        self.ceiling_bytes_per_s.map_or(bytes_per_s, |ceiling| ceiling.min(bytes_per_s)).max(1)
    }
}

impl Default for Bounds {
    /// 1 GiB; 1 KB/s to 137 GB/s; a report each 500 ms; half of the path within 4 s.
    fn default() -> Self {
        Bounds {
            max_cwnd_bytes: 1 << 30,
            min_rate_bytes_per_s: 1_000,
            max_rate_bytes_per_s: 1 << 37,
            report_us: 500_000,
            floor_percent: 50,
            settle_us: 4_000_000,
            ceiling_bytes_per_s: None,
        }
    }
}

/// A broken invariant. `operation` counts the stream's operations from 0; times are on the flow's clock, which starts
/// at one second.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Violation {
    /// The algorithm cannot be registered with an agent.
    #[error("the agent refuses it: {0}")]
    Catalog(#[from] CatalogError),
    /// The algorithm's name cannot be a rule.
    #[error("the agent refuses it: {0}")]
    Rules(#[from] RulesError),
    /// The agent's core refused the test's datapath.
    #[error("the agent refuses the datapath: {0}")]
    Attach(#[from] AttachError),
    /// The agent gave the flow to the native algorithm.
    #[error("operation {operation}: the flow runs natively: {reason}")]
    Unsteered { operation: usize, reason: String },
    /// The algorithm asked for something that there is not.
    #[error("operation {operation}: a command was refused: {error}")]
    Refused { operation: usize, error: CommandError },
    /// The window left its bounds.
    #[error("operation {operation}, {at_us} us: the window is {cwnd_bytes} bytes, allowed are {min}..={max}")]
    Window {
        operation: usize,
        at_us: u64,
        cwnd_bytes: i64,
        /// The smallest allowed: a segment.
        min: i64,
        max: i64,
    },
    /// The rate left its bounds.
    #[error(
        "operation {operation}, {at_us} us: the rate is {rate_bytes_per_s} B/s, allowed are 0 and {min}..={max}"
    )]
    Rate {
        operation: usize,
        at_us: u64,
        /// The rate, bytes per second.
        rate_bytes_per_s: i64,
        min: i64,
        max: i64,
    },
    /// A saturation or a division by zero.
    #[error("operation {operation}, {at_us} us: {faults} saturations or divisions by zero")]
    Fault { operation: usize, at_us: u64, faults: u64 },
    /// No report for too long.
    #[error("operation {operation}, {at_us} us: no report for {silent_us} us, allowed are {limit_us}")]
    Silent {
        operation: usize,
        at_us: u64,
        /// The time since the last report, microseconds.
        silent_us: u64,
        limit_us: u64,
    },
    /// The flow did not come back after trouble.
    #[error(
        "after operation {operation}, {settle_us} us on a clean path: {used_percent} % of it, at least {floor_percent} are due"
    )]
    Stalled {
        /// The last operation of trouble.
        operation: usize,
        /// The time it had, microseconds.
        settle_us: u64,
        /// The flow's rate, percent of the path's.
        used_percent: u64,
        floor_percent: u64,
    },
    /// An executor did not do what the reference VM did.
    #[error("{executor} differs from the reference: {}", brief(divergence))]
    Diverged { executor: String, divergence: Divergence },
}

/// A divergence without the script, which may be megabytes.
fn brief(divergence: &Divergence) -> String {
    match divergence {
        Divergence::Effect { invocation, expected, found, .. } => {
            format!("invocation {invocation}: expected {expected:?}, found {found:?}")
        }
        other => other.to_string(),
    }
}

/// A violation with what led to it: paste the operations into [`crate::check`] to see it again.
#[derive(thiserror::Error)]
pub struct Failure {
    pub algorithm: &'static str,
    /// A scenario's name, or `random`.
    pub scenario: String,
    pub path: PathConfig,
    /// The operations that fail; of a random stream the smallest part that still does.
    pub operations: Vec<Operation>,
    pub violation: Box<Violation>,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Failure { algorithm, scenario, path, operations, violation } = self;
        write!(f, "{algorithm}, {scenario}: {violation}\n  on {path:?}\n  after {operations:?}")
    }
}

/// Formats as [`fmt::Display`] does, since a failed `unwrap` shows this text to people.
impl fmt::Debug for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
