//! Simulated data centre fabrics, on which programs decide which flow is served first and which path it takes.
//!
//! A [`Fabric`] is a leaf-spine network whose links serve by strict priority and mark packets, with DCTCP senders. A
//! [`Trial`] loads it with flows whose sizes can be predicted to a stated degree, under one algorithm for the hosts'
//! packets. It measures how long flows take. A [`FabricPlan`] says which trials; its results are records of
//! `ccplane_results`.
//!
//! The same questions are asked of this machine's own flows by a [`LiveTrial`].
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod ecmp;
mod error;
mod fabric;
mod figures;
mod learning;
mod live;
mod omniscient;
mod oracle;
mod page;
mod pathing;
mod plan;
mod play;
mod queue;
mod record;
mod recorder;
mod recordings;
mod replay;
mod setting;
mod thresholds;
mod trial;
mod uplinks;
mod wanted;

pub use error::FabricError;
pub use fabric::{Fabric, FabricChange, service_port};
pub use figures::{Figure, Interval, SizeClass, geometric_mean};
pub use learning::{Deviation, Learned, LearningConfig, LearningError, alone, learn, sized, training_trial};
pub use live::{Decides, LiveOutcome, LiveTrial, play_live};
pub use omniscient::PathOracle;
pub use oracle::Oracle;
pub use page::{csv, html, text};
pub use pathing::{LearnedPaths, PathingConfig, learn_paths};
pub use plan::{Contender, FabricPlan, Group, Kind, PLANS, Slot, is_fabric};
pub use play::{Ran, play};
pub use record::{Cell, cells, header, missing, record};
pub use recorder::Recorder;
pub use replay::replay;
pub use setting::LiveSetting;
pub use thresholds::{SizedFlow, demotions, demotions_of_sizes, thresholds};
pub use trial::{Completion, Trial, TrialOutcome};
pub use uplinks::Uplinks;
