//! Plans of fabrics, in TOML: `kind = "fabric"`.

use crate::fabric::Fabric;
use ccplane_files::document::{self, DocumentError, Placed, Problem};
use ccplane_netsim::workload::{FlowSizes, Structure};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use std::path::Path;

/// The plans that come with ccplane, each with its text.
pub const PLANS: &[(&str, &str)] = &[("flow-scheduling", include_str!("../../plans/flow-scheduling.toml"))];
/// Runs of one plan.
const MAX_RUNS: usize = 100_000;

/// The rule by which flows are served.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Contender {
    /// In the order of arrival: all packets are alike.
    Fifo,
    /// By the bytes that a flow has sent.
    Pias,
    /// By a network that the agent asks.
    SizeAgent,
    /// By the same network, which the datapath asks.
    Size,
    /// By the true sizes of flows.
    Oracle,
}

impl Contender {
    /// As plans and reports spell it.
    pub fn name(self) -> &'static str {
        match self {
            Contender::Fifo => "fifo",
            Contender::Pias => "pias",
            Contender::SizeAgent => "size-agent",
            Contender::Size => "size",
            Contender::Oracle => "oracle",
        }
    }
}

/// A distribution of sizes and how far they repeat.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Workload {
    pub sizes: FlowSizes,
    pub predictable_percent: u32,
}

impl Workload {
    /// As reports spell it.
    pub fn name(&self) -> String {
        format!("{}, {} % predictable", self.sizes.name(), self.predictable_percent)
    }

    /// The flows' structure on so many hosts.
    pub fn structure(&self, hosts: usize) -> Structure {
        Structure::new(hosts, self.predictable_percent * 10_000)
    }
}

/// A valid plan.
#[derive(Clone, PartialEq, Debug)]
pub struct FabricPlan {
    /// The file's name without `.toml`.
    pub name: String,
    pub title: String,
    pub about: String,
    pub fabric: Fabric,
    pub workloads: Vec<Workload>,
    pub loads_percent: Vec<u32>,
    pub contenders: Vec<Contender>,
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
    #[serde(default = "default_mss")]
    mss_bytes: u32,
    agent_latency_us: u64,
    sizes: Vec<String>,
    largest_flow_mb: u64,
    predictable_percent: Vec<u32>,
    load_percent: Vec<u32>,
    contenders: Vec<Contender>,
    repeats: u32,
    #[serde(default = "default_seed")]
    seed: u64,
    flows: usize,
    warm_up_flows: usize,
}

fn default_mss() -> u32 {
    1448
}

pub(crate) fn default_seed() -> u64 {
    1
}

/// Whether a text is a plan of a fabric: its first key says so.
pub fn is_fabric(text: &str) -> bool {
    is_kind(text, "fabric")
}

/// Whether the first key of a plan says that it is of this kind.
pub(crate) fn is_kind(text: &str, kind: &str) -> bool {
    let keys = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    keys.take(1).any(|line| line.replace(' ', "") == format!("kind=\"{kind}\""))
}

/// Parses a plan and checks it; returns its name, which is its file's stem, too.
pub(crate) fn parse<S: DeserializeOwned, P>(
    file: &Path,
    text: &str,
    check: impl FnOnce(S) -> Result<P, Problem>,
) -> Result<(String, P), DocumentError> {
    let refuse = |placed: Placed| DocumentError::at(file, text, placed);
    let document = document::parse(text).map_err(refuse)?;
    let source: S = document::value(document.clone()).map_err(refuse)?;
    let plan = check(source).map_err(|problem| refuse(document::locate(&document, problem)))?;
    let name = file.file_stem().map_or_else(|| "plan".to_owned(), |s| s.to_string_lossy().into_owned());
    Ok((name, plan))
}

impl FabricPlan {
    /// Parses the text of a plan; `file` names it, in refusals and by its stem. `repeats` replaces the plan's.
    ///
    /// # Errors
    /// The first problem, with its line, column and field.
    pub fn parse(file: &Path, text: &str, repeats: Option<u32>) -> Result<FabricPlan, DocumentError> {
        let (name, plan) = parse(file, text, check)?;
        let repeats = repeats.unwrap_or(plan.repeats);
        Ok(FabricPlan { name, repeats, ..plan })
    }

    /// How many runs there are.
    pub fn runs(&self) -> usize {
        self.workloads.len() * self.loads_percent.len() * self.contenders.len() * self.repeats as usize
    }
}

fn check(source: Source) -> Result<FabricPlan, Problem> {
    let within = |field: &str, found: u64, min: u64, max: u64| {
        let is_within = (min..=max).contains(&found);
        if is_within {
            Ok(())
        } else {
            Err(Problem::new(field, format!("is {found}, allowed are {min} to {max}")))
        }
    };
    if source.kind != "fabric" {
        return Err(Problem::new("kind", "must be \"fabric\""));
    }
    within("hosts", source.hosts as u64, 8, 64)?;
    if !source.hosts.is_multiple_of(8) {
        return Err(Problem::new("hosts", "must be a multiple of 8"));
    }
    within("rate_gbit", source.rate_gbit, 1, 100)?;
    within("mss_bytes", source.mss_bytes.into(), 500, 9000)?;
    within("agent_latency_us", source.agent_latency_us, 0, 1_000_000)?;
    within("largest_flow_mb", source.largest_flow_mb, 1, 10_000)?;
    within("repeats", source.repeats.into(), 1, 1000)?;
    within("flows", source.flows as u64, 10, 200_000)?;
    within("warm_up_flows", source.warm_up_flows as u64, 0, 200_000)?;
    for (n, load) in source.load_percent.iter().enumerate() {
        within(&format!("load_percent[{n}]"), (*load).into(), 1, 95)?;
    }
    let mut workloads = Vec::new();
    for (n, name) in source.sizes.iter().enumerate() {
        let sizes = FlowSizes::named(name).ok_or_else(|| {
            Problem::new(format!("sizes[{n}]"), "must be \"web-search\" or \"data-mining\"")
        })?;
        for (n, percent) in source.predictable_percent.iter().enumerate() {
            within(&format!("predictable_percent[{n}]"), (*percent).into(), 0, 100)?;
            let sizes = sizes.at_most(source.largest_flow_mb * 1_000_000);
            workloads.push(Workload { sizes, predictable_percent: *percent });
        }
    }
    let mut fabric = Fabric::new(source.hosts, source.rate_gbit * 1_000_000_000);
    fabric.mss_bytes = source.mss_bytes;
    fabric.hosts.agent_latency_us = source.agent_latency_us;
    let plan = FabricPlan {
        name: String::new(),
        title: source.title,
        about: source.about,
        fabric,
        workloads,
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

    const PLAN: &str = PLANS[0].1;

    #[test]
    fn the_shipped_plan_is_one_of_a_fabric_and_another_repeat_count_replaces_its_own() {
        assert!(is_fabric(PLAN) && !is_fabric("title = \"kind = \\\"fabric\\\"\""));
        let plan = FabricPlan::parse(Path::new("flow-scheduling.toml"), PLAN, None).unwrap();
        assert_eq!((plan.name.as_str(), plan.contenders.len()), ("flow-scheduling", 5));
        let few = FabricPlan::parse(Path::new("x.toml"), PLAN, Some(1)).unwrap();
        assert_eq!(few.runs() * plan.repeats as usize, plan.runs());
    }

    #[test]
    fn what_is_no_plan_is_refused_where_it_is() {
        let refused = |from: &str, to: &str| {
            let text = PLAN.replace(from, to);
            assert_ne!(text, PLAN, "{from}");
            FabricPlan::parse(Path::new("x.toml"), &text, None).unwrap_err().to_string()
        };
        let hosts = refused("hosts = 16", "hosts = 12");
        assert!(hosts.contains("x.toml:") && hosts.contains("hosts: must be a multiple of 8"), "{hosts}");
        assert!(refused("\"web-search\"", "\"web\"").contains("sizes[0]: must be"));
        assert!(refused("\"oracle\"", "\"seer\"").contains("contenders"));
        assert!(refused("rate_gbit = 10", "rate_mbit = 10").contains("rate_mbit"));
    }
}
