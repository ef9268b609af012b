//! Plans of load balancing, in TOML: `kind = "balance"`.

use super::uplinks::Uplinks;
use crate::fabric::Fabric;
use crate::plan::{default_seed, is_kind, parse};
use ccplane_files::document::{DocumentError, Problem};
use ccplane_netsim::workload::FlowSizes;
use serde::Deserialize;
use std::path::Path;

/// The plans that come with ccplane, each with its text.
pub const BALANCE_PLANS: &[(&str, &str)] =
    &[("load-balancing", include_str!("../../../plans/load-balancing.toml"))];
/// Runs of one plan.
const MAX_RUNS: usize = 100_000;

/// Who decides which path a flow takes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Balancer {
    /// The flow's hash.
    Ecmp,
    /// The flow's hash, until its path marks or loses much.
    Plb,
    /// The agent, by the least bytes in flight of each report.
    LeastLoaded,
    /// A network that the agent asks.
    PathAgent,
    /// The same network, which the datapath asks.
    Path,
    /// Who knows flows' sizes and what every link still has to carry.
    Oracle,
}

impl Balancer {
    /// As plans and reports spell it.
    pub fn name(self) -> &'static str {
        match self {
            Balancer::Ecmp => "ecmp",
            Balancer::Plb => "plb",
            Balancer::LeastLoaded => "least-loaded",
            Balancer::PathAgent => "path-agent",
            Balancer::Path => "path",
            Balancer::Oracle => "oracle",
        }
    }
}

/// A valid plan.
#[derive(Clone, PartialEq, Debug)]
pub struct BalancePlan {
    /// The file's name without `.toml`.
    pub name: String,
    pub title: String,
    pub about: String,
    pub fabric: Fabric,
    pub sizes: Vec<FlowSizes>,
    pub uplinks: Vec<Uplinks>,
    pub loads_percent: Vec<u32>,
    pub contenders: Vec<Balancer>,
    pub repeats: u32,
    pub seed: u64,
    /// Flows of one run that are measured, and those before them.
    pub flows: usize,
    pub warm_up_flows: usize,
}

#[derive(Deserialize, Debug)]
#[serde(deny_unknown_fields)]
struct Source {
    kind: String,
    title: String,
    #[serde(default)]
    about: String,
    hosts: usize,
    rate_gbit: u64,
    agent_latency_us: u64,
    sizes: Vec<String>,
    largest_flow_mb: u64,
    uplinks: Vec<Uplinks>,
    load_percent: Vec<u32>,
    contenders: Vec<Balancer>,
    repeats: u32,
    #[serde(default = "default_seed")]
    seed: u64,
    flows: usize,
    warm_up_flows: usize,
}

/// Whether a text is a plan of load balancing: its first key says so.
pub fn is_balance(text: &str) -> bool {
    is_kind(text, "balance")
}

impl BalancePlan {
    /// Parses the text of a plan; `file` names it, in refusals and by its stem. `repeats` replaces the plan's.
    ///
    /// # Errors
    /// The first problem, with its line, column and field.
    pub fn parse(file: &Path, text: &str, repeats: Option<u32>) -> Result<BalancePlan, DocumentError> {
        let (name, plan) = parse(file, text, check)?;
        let repeats = repeats.unwrap_or(plan.repeats);
        Ok(BalancePlan { name, repeats, ..plan })
    }

    /// How many runs there are.
    pub fn runs(&self) -> usize {
        let of_one = self.loads_percent.len() * self.contenders.len() * self.repeats as usize;
        self.sizes.len() * self.uplinks.len() * of_one
    }
}

fn check(source: Source) -> Result<BalancePlan, Problem> {
    let within = |field: &str, found: u64, min: u64, max: u64| {
        let is_within = (min..=max).contains(&found);
        if is_within {
            Ok(())
        } else {
            Err(Problem::new(field, format!("is {found}, allowed are {min} to {max}")))
        }
    };
    if source.kind != "balance" {
        return Err(Problem::new("kind", "must be \"balance\""));
    }
    within("hosts", source.hosts as u64, 8, 64)?;
    within("rate_gbit", source.rate_gbit, 1, 100)?;
    within("agent_latency_us", source.agent_latency_us, 0, 1_000_000)?;
    within("largest_flow_mb", source.largest_flow_mb, 1, 10_000)?;
    within("repeats", source.repeats.into(), 1, 1000)?;
    within("flows", source.flows as u64, 10, 200_000)?;
    within("warm_up_flows", source.warm_up_flows as u64, 0, 200_000)?;
    for (n, load) in source.load_percent.iter().enumerate() {
        within(&format!("load_percent[{n}]"), (*load).into(), 1, 95)?;
    }
    let mut sizes = Vec::new();
    for (n, name) in source.sizes.iter().enumerate() {
        let found = FlowSizes::named(name);
        let found = found.ok_or_else(|| {
            Problem::new(format!("sizes[{n}]"), "must be \"web-search\" or \"data-mining\"")
        })?;
        sizes.push(found.at_most(source.largest_flow_mb * 1_000_000));
    }
    if !source.hosts.is_multiple_of(8) {
        return Err(Problem::new("hosts", "must be a multiple of 8"));
    }
    let mut fabric = Fabric::new(source.hosts, source.rate_gbit * 1_000_000_000);
    fabric.hosts.agent_latency_us = source.agent_latency_us;
    let plan = BalancePlan {
        name: String::new(),
        title: source.title,
        about: source.about,
        fabric,
        sizes,
        uplinks: source.uplinks,
        loads_percent: source.load_percent,
        contenders: source.contenders,
        repeats: source.repeats,
        seed: source.seed,
        flows: source.flows,
        warm_up_flows: source.warm_up_flows,
    };
    within("repeats", plan.runs() as u64, 1, MAX_RUNS as u64)?;
    Ok(plan)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAN: &str = include_str!("../../../plans/load-balancing.toml");

    #[test]
    fn the_shipped_plan_is_one_of_load_balancing_and_mistakes_are_refused_where_they_are() {
        assert!(is_balance(PLAN) && !crate::is_fabric(PLAN));
        let plan = BalancePlan::parse(Path::new("load-balancing.toml"), PLAN, Some(2)).unwrap();
        assert_eq!((plan.name.as_str(), plan.runs()), ("load-balancing", 2 * 3 * 4 * 6 * 2));
        let refused = |from: &str, to: &str| {
            let text = PLAN.replace(from, to);
            assert_ne!(text, PLAN, "{from}");
            BalancePlan::parse(Path::new("x.toml"), &text, None).unwrap_err().to_string()
        };
        assert!(refused("hosts = 16", "hosts = 12").contains("hosts: must be a multiple of 8"));
        assert!(refused("\"slow\"", "\"slowly\"").contains("uplinks"));
        assert!(refused("repeats = 5", "repeats = 0").contains("repeats: is 0"));
    }
}
