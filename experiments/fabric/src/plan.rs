//! Plans of fabrics, in TOML: `kind = "flow-scheduling"` or `kind = "load-balancing"`, which is their first key.

use crate::fabric::Fabric;
use crate::recordings::recorded;
use crate::setting::{LiveSetting, within};
use crate::uplinks::Uplinks;
use ccplane_files::document::{self, DocumentError, Placed, Problem};
use ccplane_netsim::workload::{FlowSizes, Playback, Structure};
use ccplane_results::{PLAN_ADVICE, PLAN_VERSION};
use serde::Deserialize;
use std::fmt::Display;
use std::path::Path;

/// The plans that come with ccplane, each with its text.
pub const PLANS: &[(&str, &str)] = &[
    ("flow-scheduling", include_str!("../../plans/flow-scheduling.toml")),
    ("load-balancing", include_str!("../../plans/load-balancing.toml")),
    ("flow-scheduling-large", include_str!("../../plans/flow-scheduling-large.toml")),
    ("load-balancing-large", include_str!("../../plans/load-balancing-large.toml")),
];
/// Runs of one plan.
const MAX_RUNS: usize = 100_000;
/// The loads of a quick run, percent.
const QUICK_LOADS_PERCENT: [u32; 2] = [50, 70];
/// Flows of a quick run that are measured, and those before them.
const QUICK_FLOWS: (usize, usize) = (150, 40);

/// The question that a plan asks.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Kind {
    /// The order in which flows are served.
    Scheduling,
    /// The path that a flow takes.
    Balancing,
}

impl Kind {
    /// Both kinds of plan.
    pub const ALL: [Kind; 2] = [Kind::Scheduling, Kind::Balancing];

    /// Returns the name in plans.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Scheduling => "flow-scheduling",
            Kind::Balancing => "load-balancing",
        }
    }

    /// Returns the contenders that answer it.
    pub fn contenders(self) -> &'static [Contender] {
        match self {
            Kind::Scheduling => &Contender::SCHEDULERS,
            Kind::Balancing => &Contender::BALANCERS,
        }
    }

    /// The contender that ratios are to: what is used where nothing is learned.
    pub fn baseline(self) -> Contender {
        match self {
            Kind::Scheduling => Contender::Pias,
            Kind::Balancing => Contender::Ecmp,
        }
    }
}

/// Decides which flow is served first, or which path a flow takes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Contender {
    /// In the order of arrival: all packets are alike.
    Fifo,
    /// By the bytes that a flow has sent.
    Pias,
    /// By a network that the agent asks.
    SizeAgent,
    /// The same, where the agent takes longer: [`FabricPlan::late_agent_latency_us`].
    SizeAgentLate,
    /// By the same network, which the datapath asks.
    Size,
    /// By the true sizes of flows.
    KnownSizes,
    /// By the flow's hash.
    Ecmp,
    /// By the flow's hash, until its path marks or loses much.
    Plb,
    /// By the agent, which takes the path with the least bytes in flight of each report.
    LeastLoaded,
    /// By a network that the agent asks.
    PathAgent,
    /// The same, where the agent takes longer: [`FabricPlan::late_agent_latency_us`].
    PathAgentLate,
    /// By the same network, which the datapath asks.
    Path,
    /// By the true sizes of flows, what every link still has to carry, and which links are down.
    PresentLoads,
    /// By the same, and by when links will fail.
    KnownLoads,
}

impl Contender {
    /// Those that decide which flow is served first.
    pub const SCHEDULERS: [Contender; 6] = [
        Contender::Fifo,
        Contender::Pias,
        Contender::SizeAgent,
        Contender::SizeAgentLate,
        Contender::Size,
        Contender::KnownSizes,
    ];
    /// Those that decide which path a flow takes.
    pub const BALANCERS: [Contender; 8] = [
        Contender::Ecmp,
        Contender::Plb,
        Contender::LeastLoaded,
        Contender::PathAgent,
        Contender::PathAgentLate,
        Contender::Path,
        Contender::PresentLoads,
        Contender::KnownLoads,
    ];

    /// Returns whether the contender can decide about flows of this machine. No one knows the load of every link there, and
    /// an agent cannot be made late.
    pub fn runs_live(self) -> bool {
        !matches!(
            self,
            Contender::SizeAgentLate
                | Contender::PathAgentLate
                | Contender::PresentLoads
                | Contender::KnownLoads
        )
    }

    /// Whether it differs from all others where the uplinks are these: there is nothing to foresee but failures.
    pub fn differs_over(self, uplinks: Uplinks) -> bool {
        self != Contender::PresentLoads || uplinks == Uplinks::Failed
    }

    /// Returns the name in plans and reports.
    pub fn name(self) -> &'static str {
        match self {
            Contender::Fifo => "fifo",
            Contender::Pias => "pias",
            Contender::SizeAgent => "size-agent",
            Contender::SizeAgentLate => "size-agent-late",
            Contender::Size => "size",
            Contender::Ecmp => "ecmp",
            Contender::Plb => "plb",
            Contender::LeastLoaded => "least-loaded",
            Contender::PathAgent => "path-agent",
            Contender::PathAgentLate => "path-agent-late",
            Contender::Path => "path",
            Contender::PresentLoads => "oracle-present",
            Contender::KnownSizes | Contender::KnownLoads => "oracle",
        }
    }
}

/// The flows of some runs: their sizes, how far these repeat, and the uplinks that they meet.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Group {
    pub sizes: FlowSizes,
    /// The recording whose flows these are; `None` where they are drawn from the distribution.
    pub playback: Option<Playback>,
    /// The share by which sizes repeat, percent; 0 where paths are what is asked for, and of recordings, which repeat
    /// as they do.
    pub predictable_percent: u32,
    pub uplinks: Uplinks,
}

impl Group {
    /// Returns the name in reports, in a plan of this kind.
    pub fn name(&self, kind: Kind) -> String {
        match kind {
            Kind::Scheduling if self.playback.is_some() => self.sizes.name().to_owned(),
            Kind::Scheduling => {
                format!("{}, {} % predictable", self.sizes.name(), self.predictable_percent)
            }
            Kind::Balancing => format!("{}, {}", self.sizes.name(), self.uplinks.name()),
        }
    }

    /// The flows' structure on so many hosts.
    pub fn structure(&self, hosts: usize) -> Structure {
        Structure::new(hosts, self.predictable_percent * 10_000)
    }
}

/// One run of a plan.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Slot {
    /// Repeats come first, so that a plan that is cut short has compared everybody.
    pub repeat: u32,
    /// Index of the group in the plan.
    pub group: usize,
    pub load_percent: u32,
    pub contender: Contender,
}

/// A valid plan.
#[derive(Clone, PartialEq, Debug)]
pub struct FabricPlan {
    /// The file's name without `.toml`.
    pub name: String,
    pub title: String,
    pub about: String,
    /// The plan file, whole.
    pub source: String,
    pub kind: Kind,
    pub fabric: Fabric,
    /// The latency of the agent that is late, microseconds.
    pub late_agent_latency_us: u64,
    pub groups: Vec<Group>,
    pub loads_percent: Vec<u32>,
    /// The loads of groups whose flows are recorded.
    pub recorded_loads_percent: Vec<u32>,
    pub contenders: Vec<Contender>,
    pub repeats: u32,
    pub seed: u64,
    /// Flows of one run that are measured, and those before them.
    pub flows: usize,
    pub warm_up_flows: usize,
    /// The links and flows of live runs; `None` where there are none.
    pub live: Option<LiveSetting>,
    /// Whether this is about live runs: [`FabricPlan::as_live`].
    pub is_live: bool,
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
    #[serde(default = "default_late")]
    late_agent_latency_us: u64,
    sizes: Vec<String>,
    largest_flow_mb: u64,
    #[serde(default)]
    predictable_percent: Vec<u32>,
    #[serde(default)]
    uplinks: Vec<Uplinks>,
    load_percent: Vec<u32>,
    #[serde(default)]
    recorded_load_percent: Option<Vec<u32>>,
    contenders: Vec<String>,
    repeats: u32,
    #[serde(default = "default_seed")]
    seed: u64,
    flows: usize,
    warm_up_flows: usize,
    #[serde(default)]
    live: Option<LiveSetting>,
}

fn default_mss() -> u32 {
    1448
}

fn default_late() -> u64 {
    1000
}

fn default_seed() -> u64 {
    1
}

/// The kind that a text's first key names, if it is a plan of a fabric.
fn kind_of(text: &str) -> Option<Kind> {
    let mut keys = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    let first = keys.next()?.replace(' ', "");
    Kind::ALL.into_iter().find(|kind| first == format!("kind=\"{}\"", kind.name()))
}

/// Whether a text is a plan of a fabric.
pub fn is_fabric(text: &str) -> bool {
    kind_of(text).is_some()
}

impl FabricPlan {
    /// Parses the text of a plan; `file` names it, in refusals and by its stem, and files that it names are beside it. `repeats` replaces
    /// the plan's.
    ///
    /// # Errors
    /// The first problem, with its line, column and field.
    pub fn parse(file: &Path, text: &str, repeats: Option<u32>) -> Result<FabricPlan, DocumentError> {
        let refuse = |placed: Placed| DocumentError::at(file, text, placed);
        let mut document = document::parse(text).map_err(refuse)?;
        document::take_version(&mut document, PLAN_VERSION, PLAN_ADVICE).map_err(refuse)?;
        let source: Source = document::value(document.clone()).map_err(refuse)?;
        let folder = file.parent().unwrap_or(Path::new(""));
        let mut plan =
            check(source, folder).map_err(|problem| refuse(document::locate(&document, problem)))?;
        plan.name = file.file_stem().map_or_else(|| "plan".to_owned(), |s| s.to_string_lossy().into_owned());
        plan.repeats = repeats.unwrap_or(plan.repeats);
        text.clone_into(&mut plan.source);
        Ok(plan)
    }

    /// Returns a plan of the same question that takes less than a minute: one repeat, few flows, two loads, one distribution of sizes,
    /// and of degrees to which they repeat only the first and the last.
    #[must_use]
    pub fn quick(mut self) -> FabricPlan {
        self.name.push_str("-quick");
        self.repeats = 1;
        for loads in [&mut self.loads_percent, &mut self.recorded_loads_percent] {
            loads.retain(|load| QUICK_LOADS_PERCENT.contains(load));
            loads.truncate(QUICK_LOADS_PERCENT.len());
        }
        self.keep_few_groups();
        self.flows = self.flows.min(QUICK_FLOWS.0);
        self.warm_up_flows = self.warm_up_flows.min(QUICK_FLOWS.1);
        self
    }

    /// Keeps one distribution of sizes, and of degrees to which they repeat the first and the last.
    fn keep_few_groups(&mut self) {
        let sizes = self.groups.first().map(|group| group.sizes.clone());
        self.groups.retain(|group| Some(&group.sizes) == sizes.as_ref());
        if self.kind == Kind::Scheduling && self.groups.len() > 2 {
            self.groups.drain(1..self.groups.len() - 1);
        }
    }

    /// Returns the same question, asked of this machine's flows over emulated links, with fewer groups and contenders; `None` where the
    /// plan has no table `[live]`. `repeats` replaces that table's. Of a recording only the distribution of sizes is kept.
    #[must_use]
    pub fn as_live(mut self, repeats: Option<u32>) -> Option<FabricPlan> {
        let live = self.live.clone()?;
        self.name.push_str("-live");
        self.is_live = true;
        self.repeats = repeats.unwrap_or(live.repeats);
        self.loads_percent.clone_from(&live.load_percent);
        self.recorded_loads_percent.clone_from(&live.load_percent);
        (self.flows, self.warm_up_flows) = (live.flows, live.warm_up_flows);
        self.contenders.retain(|contender| contender.runs_live());
        self.keep_few_groups();
        for group in &mut self.groups {
            group.sizes = group.sizes.at_most(live.largest_flow_kb * 1000);
            group.playback = None;
        }
        let links = if self.kind == Kind::Scheduling { 1 } else { live.paths as u64 };
        self.fabric.edge_bit_per_s = links * u64::from(live.rate_mbit) * 1_000_000;
        Some(self)
    }

    /// The loads of a group, percent.
    pub fn loads_of(&self, group: usize) -> &[u32] {
        let is_recorded = self.groups.get(group).is_some_and(|group| group.playback.is_some());
        if is_recorded { &self.recorded_loads_percent } else { &self.loads_percent }
    }

    /// The contenders that run in a group.
    pub fn contenders_of(&self, group: usize) -> impl Iterator<Item = Contender> {
        let uplinks = self.groups.get(group).map_or(Uplinks::Even, |group| group.uplinks);
        self.contenders.iter().copied().filter(move |contender| contender.differs_over(uplinks))
    }

    /// All runs, in their order.
    pub fn slots(&self) -> Vec<Slot> {
        let mut slots = Vec::with_capacity(self.runs());
        for repeat in 0..self.repeats {
            for group in 0..self.groups.len() {
                for load_percent in self.loads_of(group).iter().copied() {
                    let slot = |contender| Slot { repeat, group, load_percent, contender };
                    slots.extend(self.contenders_of(group).map(slot));
                }
            }
        }
        slots
    }

    /// The network and its agent, in words.
    pub fn setting(&self) -> String {
        if let Some(LiveSetting { paths, rate_mbit, delay_us, queue_packets, .. }) =
            self.live.as_ref().filter(|_| self.is_live)
        {
            return format!(
                "this machine's flows (CUBIC, IPv4 and IPv6 in equal parts) over {paths} emulated links of {rate_mbit} Mb/s and {} ms each way \
                 with strict priorities and room for {queue_packets} packets",
                *delay_us as f64 / 1000.0
            );
        }
        let Fabric { shape, edge_bit_per_s, mss_bytes, hosts, .. } = &self.fabric;
        format!(
            "{} hosts, {} leaves, {} spines, {} Gb/s, segments of {mss_bytes} bytes; the agent's decisions take {} us",
            shape.hosts(),
            shape.leaves,
            shape.spines,
            edge_bit_per_s / 1_000_000_000,
            hosts.agent_latency_us,
        )
    }

    /// Returns the number of runs.
    pub fn runs(&self) -> usize {
        let of_group = |group: usize| self.loads_of(group).len() * self.contenders_of(group).count();
        (0..self.groups.len()).map(of_group).sum::<usize>() * self.repeats as usize
    }
}

fn check(source: Source, folder: &Path) -> Result<FabricPlan, Problem> {
    let kind = Kind::ALL.into_iter().find(|kind| kind.name() == source.kind);
    let kind =
        kind.ok_or_else(|| Problem::new("kind", "must be \"flow-scheduling\" or \"load-balancing\""))?;
    within("hosts", source.hosts as u64, 8, 64)?;
    if !source.hosts.is_multiple_of(8) {
        return Err(Problem::new("hosts", "must be a multiple of 8"));
    }
    within("rate_gbit", source.rate_gbit, 1, 100)?;
    within("mss_bytes", source.mss_bytes.into(), 500, 9000)?;
    within("agent_latency_us", source.agent_latency_us, 0, 1_000_000)?;
    within("late_agent_latency_us", source.late_agent_latency_us, 0, 1_000_000)?;
    within("largest_flow_mb", source.largest_flow_mb, 1, 10_000)?;
    within("repeats", source.repeats.into(), 1, 1000)?;
    within("flows", source.flows as u64, 10, 200_000)?;
    within("warm_up_flows", source.warm_up_flows as u64, 0, 200_000)?;
    let recorded_loads_percent =
        source.recorded_load_percent.clone().unwrap_or_else(|| source.load_percent.clone());
    let loads = [("load_percent", &source.load_percent), ("recorded_load_percent", &recorded_loads_percent)];
    for (key, loads) in loads {
        for (n, load) in loads.iter().enumerate() {
            within(&format!("{key}[{n}]"), (*load).into(), 1, 95)?;
        }
    }
    source.live.as_ref().map_or(Ok(()), LiveSetting::check)?;
    let groups = groups(kind, &source, folder)?;
    let mut contenders = Vec::new();
    for (n, name) in source.contenders.iter().enumerate() {
        let found = kind.contenders().iter().find(|contender| contender.name() == name);
        contenders.push(*found.ok_or_else(|| {
            let names: Vec<&str> = kind.contenders().iter().map(|contender| contender.name()).collect();
            Problem::new(format!("contenders[{n}]"), format!("must be one of {}", names.join(", ")))
        })?);
    }
    let mut fabric = Fabric::new(source.hosts, source.rate_gbit * 1_000_000_000);
    fabric.mss_bytes = source.mss_bytes;
    fabric.hosts.agent_latency_us = source.agent_latency_us;
    let plan = FabricPlan {
        name: String::new(),
        title: source.title,
        about: source.about,
        source: String::new(),
        kind,
        fabric,
        late_agent_latency_us: source.late_agent_latency_us,
        groups,
        loads_percent: source.load_percent,
        recorded_loads_percent,
        contenders,
        repeats: source.repeats,
        seed: source.seed,
        flows: source.flows,
        warm_up_flows: source.warm_up_flows,
        live: source.live,
        is_live: false,
    };
    within("repeats", plan.runs() as u64, 1, MAX_RUNS as u64)?;
    Ok(plan)
}

/// The groups of a plan: each distribution of sizes with each degree to which sizes repeat, or with each state of the uplinks.
///
/// A recording is one group of flow scheduling, and one with each state of load balancing.
fn groups(kind: Kind, source: &Source, folder: &Path) -> Result<Vec<Group>, Problem> {
    let (unasked, is_given) = match kind {
        Kind::Scheduling => ("uplinks", !source.uplinks.is_empty()),
        Kind::Balancing => ("predictable_percent", !source.predictable_percent.is_empty()),
    };
    if is_given {
        return Err(Problem::new(unasked, format!("is no key of a plan of {}", kind.name())));
    }
    for (n, percent) in source.predictable_percent.iter().enumerate() {
        within(&format!("predictable_percent[{n}]"), (*percent).into(), 0, 100)?;
    }
    let largest_bytes = source.largest_flow_mb * 1_000_000;
    let mut groups = Vec::new();
    for (n, name) in source.sizes.iter().enumerate() {
        let refused = |message: &dyn Display| Problem::new(format!("sizes[{n}]"), message);
        let (sizes, playback) = match recorded(name, folder) {
            Some(Ok(recorded)) => (Some(recorded.sizes), Some(recorded.playback.at_most(largest_bytes))),
            Some(Err(error)) => return Err(refused(&error)),
            None => (FlowSizes::named(name), None),
        };
        let sizes = sizes.ok_or_else(|| {
            refused(&"must be \"web-search\", \"data-mining\" or \"recording:\" with a name or a file")
        })?;
        let sizes = sizes.at_most(largest_bytes);
        let with = |predictable_percent, uplinks| Group {
            sizes: sizes.clone(),
            playback: playback.clone(),
            predictable_percent,
            uplinks,
        };
        match kind {
            Kind::Scheduling if playback.is_some() => groups.push(with(0, Uplinks::Even)),
            Kind::Scheduling => {
                let degrees = source.predictable_percent.iter().copied();
                groups.extend(degrees.map(|percent| with(percent, Uplinks::Even)));
            }
            Kind::Balancing => groups.extend(source.uplinks.iter().map(|uplinks| with(0, *uplinks))),
        }
    }
    Ok(groups)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn shipped(n: usize) -> FabricPlan {
        let (name, text) = PLANS[n];
        FabricPlan::parse(Path::new(&format!("{name}.toml")), text, None).unwrap()
    }

    #[test]
    fn shipped_plans_have_all_contenders_and_another_repeat_count_replaces_their_own() {
        assert!(!is_fabric("title = \"kind = \\\"flow-scheduling\\\"\""));
        for (n, (name, _)) in PLANS.iter().enumerate().skip(Kind::ALL.len()) {
            let large = shipped(n);
            assert_eq!(*name, format!("{}-large", large.kind.name()));
            assert_eq!((large.fabric.shape.hosts(), large.fabric.edge_bit_per_s), (64, 100_000_000_000));
            assert_eq!(
                (large.repeats, large.loads_percent.len(), &*large.contenders),
                (1, 2, large.kind.contenders())
            );
            assert!(large.as_live(None).is_none());
        }
        for (n, kind) in Kind::ALL.into_iter().enumerate() {
            assert_eq!((kind_of(PLANS[n].1), PLANS[n].0), (Some(kind), kind.name()));
            let plan = shipped(n);
            assert_eq!((plan.name.as_str(), &*plan.contenders), (kind.name(), kind.contenders()));
            assert_eq!(plan.loads_percent, [30, 50, 70, 90]);
            assert!(plan.contenders.contains(&kind.baseline()));
            let few = FabricPlan::parse(Path::new("x.toml"), PLANS[n].1, Some(1)).unwrap();
            assert_eq!(few.runs() * plan.repeats as usize, plan.runs());
            assert_eq!(plan.slots().len(), plan.runs());
            assert!(plan.slots().is_sorted_by_key(|slot| (slot.repeat, slot.group, slot.load_percent)));
        }
    }

    #[test]
    fn recordings_are_groups_of_their_own_with_few_loads() {
        for (n, names) in [
            (0, &["recording:shuffle"][..]),
            (
                1,
                &[
                    "recording:shuffle, even",
                    "recording:shuffle, slow uplink",
                    "recording:shuffle, failed uplink",
                ][..],
            ),
        ] {
            let plan = shipped(n);
            let recorded = (0..plan.groups.len()).filter(|group| plan.groups[*group].playback.is_some());
            let recorded: Vec<usize> = recorded.collect();
            let found: Vec<String> = recorded.iter().map(|n| plan.groups[*n].name(plan.kind)).collect();
            assert_eq!(found, names);
            for group in 0..plan.groups.len() {
                let loads = plan.loads_of(group);
                assert_eq!(loads, if recorded.contains(&group) { &[70][..] } else { &[30, 50, 70, 90] });
                let of_group = plan.slots().iter().filter(|slot| slot.group == group).count();
                assert_eq!(of_group, loads.len() * plan.contenders_of(group).count() * plan.repeats as usize);
            }
            // They are no reason for twice as many runs.
            let added = recorded.len() * plan.contenders.len() * plan.repeats as usize;
            assert!(8 * added <= plan.runs(), "{added} of {}", plan.runs());
            assert!(plan.quick().groups.iter().all(|group| group.playback.is_none()));
        }
        let text = PLANS[0].1.replacen("\"web-search\", ", "\"recording:http\", ", 1);
        let first = FabricPlan::parse(Path::new("x.toml"), &text, None).unwrap();
        assert_eq!(first.groups[0].name(first.kind), "recording:http");
        let live = first.as_live(None).unwrap();
        assert_eq!(live.groups.len(), 1);
        assert!(live.groups[0].playback.is_none() && live.groups[0].sizes.name() == "recording:http");
    }

    #[test]
    fn a_quick_plan_keeps_the_question_and_the_contenders() {
        let quick = shipped(0).quick();
        let degrees: Vec<u32> = quick.groups.iter().map(|group| group.predictable_percent).collect();
        assert_eq!((quick.name.as_str(), &*degrees), ("flow-scheduling-quick", &[0, 100][..]));
        let quick = shipped(1).quick();
        let uplinks: Vec<Uplinks> = quick.groups.iter().map(|group| group.uplinks).collect();
        assert_eq!(uplinks, [Uplinks::Even, Uplinks::Slow, Uplinks::Failed]);
        assert_eq!((quick.loads_percent.len(), quick.contenders.len(), quick.repeats), (2, 8, 1));
        let present = quick.slots().into_iter().filter(|slot| slot.contender == Contender::PresentLoads);
        let groups: BTreeSet<usize> = present.map(|slot| slot.group).collect();
        assert_eq!(groups, BTreeSet::from([2]), "only where a link fails is there something to foresee");
    }

    #[test]
    fn a_live_plan_asks_the_same_of_contenders_that_know_what_can_be_known() {
        for (n, kind) in Kind::ALL.into_iter().enumerate() {
            let live = shipped(n).as_live(None).unwrap();
            assert_eq!((live.name.as_str(), live.is_live), (&*format!("{}-live", kind.name()), true));
            assert!(live.contenders.contains(&kind.baseline()) && live.contenders.len() == 5);
            let setting = live.live.clone().unwrap();
            assert_eq!((live.repeats, live.flows), (setting.repeats, setting.flows));
            let links = if kind == Kind::Scheduling { 1 } else { setting.paths as u64 };
            assert_eq!(live.fabric.edge_bit_per_s, links * u64::from(setting.rate_mbit) * 1_000_000);
            let largest = setting.largest_flow_kb * 1000;
            assert!(live.groups.iter().all(|group| group.sizes.quantile(u32::MAX) <= largest));
            assert_eq!(shipped(n).as_live(Some(9)).unwrap().repeats, 9);
            let quick = live.clone().quick();
            assert!(quick.is_live && quick.runs() < live.runs() && quick.runs() > 0);
            assert!(live.setting().contains("emulated links"));
        }
        assert!(FabricPlan { live: None, ..shipped(0) }.as_live(None).is_none());
    }

    #[test]
    fn what_is_no_plan_is_refused_where_it_is() {
        let refused = |n: usize, from: &str, to: &str| {
            let text = PLANS[n].1.replacen(from, to, 1);
            assert_ne!(text, PLANS[n].1, "{from}");
            FabricPlan::parse(Path::new("x.toml"), &text, None).unwrap_err().to_string()
        };
        let same = PLANS[0].1.replacen("title", "version = 1\ntitle", 1);
        FabricPlan::parse(Path::new("x.toml"), &same, None).unwrap();
        let newer = refused(0, "title", "version = 2\ntitle");
        assert!(newer.contains("version: the file is of version 2, this program reads version 1"), "{newer}");
        for n in 0..2 {
            let hosts = refused(n, "hosts = 16", "hosts = 12");
            assert!(hosts.contains("x.toml:") && hosts.contains("hosts: must be a multiple of 8"), "{hosts}");
            assert!(refused(n, "\"web-search\"", "\"web\"").contains("sizes[0]: must be"));
            let unknown = refused(n, "\"web-search\"", "\"recording:ftp\"");
            assert!(unknown.contains("sizes[0]: no recording is called `ftp`"), "{unknown}");
            let load = refused(n, "recorded_load_percent = [70]", "recorded_load_percent = [99]");
            assert!(load.contains("recorded_load_percent[0]: is 99"), "{load}");
            assert!(
                refused(n, "\"oracle\"", "\"seer\"")
                    .contains(["contenders[5]: must be one of", "contenders[7]: must be one of"][n])
            );
            assert!(refused(n, "rate_gbit = 10", "rate_mbit = 10").contains("rate_mbit"));
            assert!(refused(n, "kind = \"", "kind = \"no-").contains("kind: must be"));
            let paths = refused(n, "\npaths = ", "\npaths = 1");
            assert!(paths.contains("live.paths: is 1"), "{paths}");
        }
        assert!(refused(0, "\"pias\"", "\"ecmp\"").contains("contenders[1]"));
        assert!(refused(0, "\nflows = ", "\nuplinks = [\"even\"]\nflows = ").contains("uplinks: is no key"));
        assert!(refused(1, "\"slow\"", "\"slowly\"").contains("uplinks"));
        assert!(refused(1, "\nflows = ", "\npredictable_percent = [1]\nflows = ").contains("is no key"));
    }
}
