//! The plans and traces that come with ccplane, inside the program.

use std::path::{Path, PathBuf};

use ccplane_netsim::trace::Trace;

use super::error::PlanError;
use super::{Known, Overrides, PLAN, Plan};

/// A plan that comes with ccplane.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shipped {
    /// The name that `ccplane run` takes.
    pub name: &'static str,
    pub source: &'static str,
}

macro_rules! shipped {
    ($($name:literal),* $(,)?) => {
        /// All of them, in the order in which to read them.
        pub const PLANS: &[Shipped] = &[
            $(Shipped {
                name: $name,
                source: include_str!(concat!("../../../plans/", $name, ".toml")),
            }),*
        ];
    };
}

shipped![
    "quickstart",
    "demo",
    "reno-cubic-bbr",
    "cubic-dynamics",
    "fidelity",
    "short-flows",
    "low-rtt-incast",
    "cpu",
    "slow-start",
    "fairness",
    "goodput",
    "placements",
    "adapt",
    "adapt-random",
    "share",
    "overhead",
    "unshaped",
    "rival-leaves",
    "everywhere",
    "agreement",
    "portfolio",
];

const TRACES: [(&str, &str); 2] = [
    ("cellular.up", include_str!("../../../traces/cellular.up")),
    ("cellular.down", include_str!("../../../traces/cellular.down")),
];

/// Reads a plan from a file, or takes the shipped one of that name. Traces are looked for beside the file, then among those
/// shipped. `known.traces` is not asked.
///
/// # Errors
/// There is no such plan, it cannot be read, or it is refused.
pub fn load(name: &str, known: &Known<'_>, overrides: Overrides) -> Result<Plan, PlanError> {
    let path = PathBuf::from(name);
    if !path.exists()
        && let Some(plan) = PLANS.iter().find(|p| p.name == name)
    {
        let file = PathBuf::from(format!("{name}.toml"));
        let traces = |name: &str| trace(Path::new(""), name);
        return Plan::parse(&file, plan.source, &Known { traces: &traces, ..*known }, overrides);
    }
    if !path.exists() {
        let known = PLANS.iter().map(|p| p.name).collect();
        return Err(PlanError::NoSuchPlan { name: name.to_owned(), known });
    }
    let text = ccplane_files::document::read(&path, PLAN)?;
    let directory = path.parent().map(Path::to_owned).unwrap_or_default();
    let traces = |name: &str| trace(&directory, name);
    Plan::parse(&path, &text, &Known { traces: &traces, ..*known }, overrides)
}

/// A trace from a file, relative to `directory`, or a shipped one.
///
/// # Errors
/// Neither is there, or the file is no trace: in words.
pub fn trace(directory: &Path, name: &str) -> Result<Trace, String> {
    let path = directory.join(name);
    if path.is_file() {
        return Trace::load(&path).map_err(|e| e.to_string());
    }
    match TRACES.iter().find(|(shipped, _)| *shipped == name) {
        Some((_, text)) => Trace::parse(text).map_err(|e| e.to_string()),
        None => Err(format!(
            "no file `{}`, and no such trace comes with ccplane; there are {}",
            path.display(),
            TRACES.map(|(name, _)| name).join(", ")
        )),
    }
}
