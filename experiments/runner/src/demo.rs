//! The experiment of `ccplane demo`: the same algorithms, in the kernel's own modules and as fold programs, each flow alone
//! on a link of its own, all links alike and at the same time, through the same phases.

mod capacity;
mod config;
mod preflight;
mod run;

pub use config::{DemoConfig, FlowPlan, MAX_FLOWS, PhasePlan};
pub use preflight::{Missing, missing_for_flow, missing_for_links};
pub use run::{AgentView, Hooks, SeenFlow, learned, run};
