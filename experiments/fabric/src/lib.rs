//! Simulated data centre fabrics, on which programs decide which flow is served first and which path it takes.
//!
//! A [`Fabric`] is a leaf-spine network whose links serve by strict priority and mark packets, with DCTCP senders. A [`Trial`]
//! loads it with flows whose sizes can be predicted to a stated degree, under one algorithm for the hosts' packets, and
//! measures how long flows take.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod balancing;
mod error;
mod fabric;
mod figures;
mod learning;
mod oracle;
mod page;
mod plan;
mod play;
mod queue;
mod replay;
mod thresholds;
mod trial;

pub use balancing::{
    BALANCE_PLANS, BalanceCell, BalancePlan, Balancer, BalancingConfig, LearnedPaths, Uplinks, balance_csv,
    balance_text, is_balance, learn_paths, play_balance,
};
pub use error::FabricError;
pub use fabric::{Fabric, FabricChange, service_port};
pub use figures::{Figure, Interval, SizeClass, completions_ns, geometric_mean};
pub use learning::{
    Deviation, Learned, LearningConfig, LearningError, Recorder, alone, learn, sized, training_trial,
};
pub use oracle::Oracle;
pub use page::{csv, html, text};
pub use plan::{Contender, FabricPlan, PLANS, Workload, is_fabric};
pub use play::{Cell, Played, Prepared, play};
pub use replay::replay;
pub use thresholds::{SizedFlow, demotions, thresholds};
pub use trial::{Completion, Outcome, Trial};
