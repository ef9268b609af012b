//! Congestion control algorithms, one file each with its fold program beside it.
//!
//! Decisions per ACK and per loss are in the `.fold` program, so no packet waits for the agent. Where the program decides
//! everything, the file declares it as a [`FoldAlgorithm`](ccplane_alg::FoldAlgorithm). The other files keep one order:
//! state, behaviour, config, defaults, factory, tests.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

use ccplane_alg::{Algorithm, FlowInfo, Handover, Parameter, StartValue};
use std::sync::Arc;

mod aggregate;
mod aurora;
mod bbr;
mod ccp_reno;
mod constant;
mod copa;
mod cubic;
#[cfg(test)]
mod declared;
mod dual;
mod interval;
mod largest;
mod mocc;
mod neural;
mod nimbus;
mod path;
mod pias;
pub mod placed;
mod policy_program;
mod portfolio;
mod reno;
mod size;
#[cfg(test)]
mod testing;
mod usual;
mod vegas;

pub use aggregate::{Aggregate, AggregateConfig};
pub use aurora::{Aurora, AuroraConfig, Reward};
pub use bbr::BBR;
pub use ccp_reno::{CcpReno, CcpRenoConfig};
pub use constant::CONSTANT;
pub use copa::COPA;
pub use cubic::CUBIC;
pub use dual::{Dual, DualConfig};
pub use largest::Largest;
pub use mocc::{Mocc, MoccConfig};
pub use neural::{BOUND_Q16, DEPTH, FEATURES, INPUTS, Judge, Neural, NeuralInAgent};
pub use nimbus::Nimbus;
pub use path::{
    AT_START, FLOWLET_GAP, JITTER_Q16, LeastLoaded, PATH_BOUND_Q16, PATH_FEATURES, PATH_INPUTS, Path,
    PathDecision, PathInAgent, PathJudge, PathOutcome, PathSeen, Plb, SnapshotJudge,
};
pub use pias::{Demotions, Pias, THRESHOLDS};
pub use placed::{Distilled, InAgent, Still};
pub use policy_program::PolicyProgram;
pub use portfolio::{Arm, ArmsError, MAX_ARMS, Portfolio, PortfolioConfig, Utility};
pub use reno::RENO;
pub use size::{
    CENTRE, Predictor, SIZE_BOUND_Q16, SIZE_FEATURES, SIZE_INPUTS, Size, SizeDecision, SizeInAgent,
    SizeThresholds, SnapshotPredictor, log2_q16,
};
pub use vegas::VEGAS;

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
        Arc::new(RENO),
        Arc::new(CUBIC),
        Arc::new(CcpReno::default()),
        Arc::new(Aggregate::default()),
        Arc::new(BBR),
        Arc::new(CONSTANT),
        Arc::new(VEGAS),
        Arc::new(COPA),
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

/// Every algorithm of this crate that decides on packets on their way out, with its defaults.
pub fn on_packets() -> Vec<Arc<dyn Algorithm>> {
    let mut all: Vec<Arc<dyn Algorithm>> = vec![Arc::new(Pias::default()), Arc::new(Size::default())];
    all.extend(SizeInAgent::shipped().map(|placed| Arc::new(placed) as Arc<dyn Algorithm>));
    all.extend([Arc::new(Plb::default()) as Arc<dyn Algorithm>, Arc::new(Path::default())]);
    all.extend(PathInAgent::shipped().map(|placed| Arc::new(placed) as Arc<dyn Algorithm>));
    all.push(Arc::new(PathInAgent::least_loaded()));
    all
}

/// The register of the segment size, bytes.
const MSS_BYTES: Register = ("mss", |start| i64::from(start.info.mss_bytes.clamp(1, MAX_MSS_BYTES)));
/// The register of [`SSTHRESH_BYTES`].
const SSTHRESH: Register = ("ssthresh", |start| start.value(&SSTHRESH_BYTES));
/// The register of [`REPORT_US`].
const REPORT: Register = ("report_us", |start| start.value(&REPORT_US));

/// A control register and the function that computes its first value.
type Register = (&'static str, StartValue);

/// Returns [`REPORT_US`] as set among `values`, microseconds.
fn report_us(values: &[(&'static str, i64)]) -> u32 {
    u32::try_from(REPORT_US.value_in(values)).unwrap_or(DEFAULT_REPORT_US)
}

/// Limits a window to what programs hold, bytes.
fn window_of(bytes: u64) -> i64 {
    bytes.clamp(1, MAX_WINDOW_BYTES) as i64
}

/// Returns the window that keeps the rate of a flow that is taken over, bytes.
fn window(info: &FlowInfo, from: &Handover) -> i64 {
    window_of(from.window_bytes(info.mss_bytes))
}

/// Returns the window that keeps the rate of a flow that is taken over once its queue is gone, bytes.
fn drained_window(info: &FlowInfo, from: &Handover) -> i64 {
    window_of(from.drained_window_bytes(info.mss_bytes))
}

/// Limits a rate to what programs hold, bytes per second.
fn bounded_rate(bytes_per_s: u64) -> i64 {
    i64::from(u32::try_from(bytes_per_s).unwrap_or(u32::MAX - 1).max(1))
}
