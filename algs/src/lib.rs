//! Congestion control algorithms, one file each with its fold program beside it.
//!
//! Every file keeps one order: state, behaviour, config, defaults, factory, tests. Decisions per ACK and per
//! loss are in the `.fold` program, so no packet waits for the agent; the Rust code sets parameters.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

use ccplane_alg::{Algorithm, Parameter};
use std::sync::Arc;

mod aggregate;
mod aurora;
mod bbr;
mod ccp_reno;
mod constant;
mod copa;
mod cubic;
mod dual;
mod interval;
mod largest;
mod mocc;
mod neural;
mod nimbus;
pub mod placed;
mod portfolio;
mod reno;
#[cfg(test)]
mod testing;
mod vegas;

pub use aggregate::{Aggregate, AggregateConfig};
pub use aurora::{Aurora, AuroraConfig, Reward};
pub use bbr::{Bbr, BbrConfig};
pub use ccp_reno::{CcpReno, CcpRenoConfig};
pub use constant::{Constant, ConstantConfig};
pub use copa::{Copa, CopaConfig};
pub use cubic::{Cubic, CubicConfig};
pub use dual::{Dual, DualConfig};
pub use largest::Largest;
pub use mocc::{Mocc, MoccConfig};
pub use neural::{BOUND_Q16, DEPTH, FEATURES, INPUTS, Judge, Neural, NeuralInAgent};
pub use nimbus::{Nimbus, NimbusConfig};
pub use placed::{Distilled, InAgent, Still};
pub use portfolio::{Arm, ArmsError, MAX_ARMS, Portfolio, PortfolioConfig, Utility};
pub use reno::{Reno, RenoConfig};
pub use vegas::{Vegas, VegasConfig};

/// Largest segment a program is told of, bytes: the bounds of its arithmetic rest on it.
pub const MAX_MSS_BYTES: u32 = 65_535;
/// Largest slow start threshold, and CUBIC's largest window, bytes: 1 GiB.
pub const MAX_WINDOW_BYTES: u64 = 1 << 30;
/// Reports of one flow are at least this far apart unless configured otherwise, microseconds.
pub const DEFAULT_REPORT_US: u32 = 10_000;

/// The parameter of that.
const REPORT_US: Parameter = Parameter {
    name: "report_us",
    about: "least time between two reports of a flow",
    default: DEFAULT_REPORT_US as i64,
    min: 0,
    max: 10_000_000,
};

/// The parameter of the slow start threshold.
const SSTHRESH_BYTES: Parameter = Parameter {
    name: "initial_ssthresh_bytes",
    about: "slow start threshold of a new flow",
    default: MAX_WINDOW_BYTES as i64,
    min: 1,
    max: MAX_WINDOW_BYTES as i64,
};

/// Every algorithm of this crate, with its defaults.
pub fn all() -> Vec<Arc<dyn Algorithm>> {
    let mut all: Vec<Arc<dyn Algorithm>> = vec![
        Arc::new(Reno::default()),
        Arc::new(Cubic::default()),
        Arc::new(CcpReno::default()),
        Arc::new(Aggregate::default()),
        Arc::new(Bbr::default()),
        Arc::new(Constant::default()),
        Arc::new(Vegas::default()),
        Arc::new(Copa::default()),
        Arc::new(Nimbus::default()),
        Arc::new(Dual::default()),
        Arc::new(Neural::default()),
        Arc::new(Aurora::default()),
        Arc::new(Mocc::default()),
        Arc::new(Distilled::default()),
    ];
    let in_agent = [InAgent::aurora(), InAgent::mocc()].into_iter().flatten();
    all.extend(in_agent.map(|placed| Arc::new(placed) as Arc<dyn Algorithm>));
    all.extend(NeuralInAgent::shipped().map(|placed| Arc::new(placed) as Arc<dyn Algorithm>));
    all.push(Arc::new(Portfolio::default()));
    all.extend(Still::aurora().map(|still| Arc::new(still) as Arc<dyn Algorithm>));
    all
}

/// A window as programs hold it, bytes.
fn window_of(bytes: u64) -> i64 {
    bytes.clamp(1, MAX_WINDOW_BYTES) as i64
}

/// A rate as programs hold it, bytes per second.
fn bounded_rate(bytes_per_s: u64) -> i64 {
    i64::from(u32::try_from(bytes_per_s).unwrap_or(u32::MAX - 1).max(1))
}

/// The parameters that every program here takes.
fn fields(mss_bytes: u32, initial_ssthresh_bytes: u64, report_us: u32) -> [(&'static str, i64); 3] {
    [
        ("mss", i64::from(mss_bytes.clamp(1, MAX_MSS_BYTES))),
        ("ssthresh", initial_ssthresh_bytes.min(MAX_WINDOW_BYTES) as i64),
        ("report_us", i64::from(report_us)),
    ]
}
