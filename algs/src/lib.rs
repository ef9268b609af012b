//! Congestion control algorithms, one file each with its fold program beside it.
//!
//! Decisions per ACK and per loss are in the `.fold` program, so no packet waits for the agent. Where the program decides
//! everything, the file declares it as a [`FoldAlgorithm`](ccplane_alg::FoldAlgorithm). The other files keep one order:
//! state, behaviour, config, defaults, factory, tests.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

use ccplane_alg::Algorithm;
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
mod parameters;
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
pub use parameters::{DEFAULT_REPORT_US, MAX_MSS_BYTES, MAX_WINDOW_BYTES};
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
