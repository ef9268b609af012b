//! The results of a plan's runs as versioned JSON Lines.
//!
//! The first line is the [`Header`]: the plan, the scenarios, the contenders, the host. Every further line is a
//! [`Run`]: one contender in one scenario, once, failed or not. A run's line is written when the run has ended. So a
//! file cut short holds whole runs only, and what is missing can be run later. The runner writes it, the report reads
//! it. The version of plans is here, too, for both programs that read them.
//!
//! Units are in the names. Shares are in millionths (`ppm`), so that every figure is an integer.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod file;
mod model;

pub use file::{RESULTS, Results, ResultsError, append, create, read, read_from, repair};
pub use model::{
    AgentUse, Capacity, Change, Comparison, Completion, Completions, Contender, Cpu, DatagramsUse, Datapath,
    FabricFlows, FlowResult, Header, Host, LinkRecord, LinkUse, Metric, PLAN_ADVICE, PLAN_VERSION,
    PaperFigure, Percentiles, Plan, ResultRecord, Run, RunFigures, RunOutcome, SCHEMA_VERSION, Scenario,
    Series, StateChange, Stretch,
};
