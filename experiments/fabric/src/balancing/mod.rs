//! Which path: load balancing on fabrics whose paths are alike, or where one is slow or fails.

mod learning;
mod omniscient;
mod page;
mod plan;
mod play;
mod uplinks;

pub(crate) use omniscient::Omniscient;

pub use learning::{BalancingConfig, LearnedPaths, learn_paths};
pub use page::{balance_csv, balance_text};
pub use plan::{BALANCE_PLANS, BalancePlan, Balancer, is_balance};
pub use play::{BalanceCell, play_balance};
pub use uplinks::Uplinks;
