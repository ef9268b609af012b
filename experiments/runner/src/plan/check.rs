//! Checks a plan's values against each other: the way from its [`source`](super::source) to the
//! [`model`](super::model).

mod background;
mod changes;
mod compare;
mod contender;
mod link;
mod traffic;

use std::collections::BTreeMap;

use ccplane_files::document::Problem;
use ccplane_results::{Contender, Datapath, PaperFigure};

use super::model::{Medium, PlanLink, Scenario, Simulator, Tool, Traffic};
use super::number::decimal;
use super::source::{PaperSource, PlanSource, TrafficSource};
use super::{Known, MAX_AT_ONCE, MAX_FLOWS, MAX_NAME_CHARS};

pub(super) use compare::comparisons;
pub(super) use contender::contenders;
use contender::find;

type Checked<T> = Result<T, Problem>;

/// The value of Linux's TCP_RTO_MIN, microseconds.
const DEFAULT_MIN_RTO_US: u32 = 200_000;

fn refuse<T>(field: impl Into<String>, message: impl std::fmt::Display) -> Checked<T> {
    Err(Problem::new(field, message))
}

/// A name that a person gave, or would have been right to give.
fn name(field: String, given: &str) -> Checked<String> {
    let chars = given.chars().count();
    if chars == 0 || chars > MAX_NAME_CHARS || given.chars().any(char::is_control) {
        return refuse(field, format_args!("a name has 1 to {MAX_NAME_CHARS} characters, on one line"));
    }
    Ok(given.to_owned())
}

fn unique<'a>(names: impl Iterator<Item = (&'a str, String)>, what: &str) -> Checked<()> {
    let mut seen = BTreeMap::new();
    for (name, field) in names {
        if seen.insert(name, ()).is_some() {
            return refuse(
                field,
                format_args!("two {what} are called `{name}`; give each a `name` of its own"),
            );
        }
    }
    Ok(())
}

/// The scenarios of one point of the sweep: one for each link.
pub(super) fn scenarios(
    plan: &PlanSource,
    parameters: &BTreeMap<String, String>,
    known: &Known<'_>,
) -> Checked<Vec<Scenario>> {
    let duration_ms = plan.duration_s.get();
    let default = TrafficSource::default();
    let source = plan.traffic.as_ref().unwrap_or(&default);
    background::named(&plan.background, &plan.link)?;
    let mut scenarios = Vec::new();
    for (n, source_link) in plan.link.iter().enumerate() {
        let mut link = link::link(n, source_link, known)?;
        link.changes = changes::changes(n, source_link, &link, duration_ms)?;
        let mut traffic = traffic::traffic(source, &link, duration_ms)?;
        match (&mut traffic, source_link.flows) {
            (_, None) => {}
            (Traffic::Bulk { flows, .. }, Some(own)) => *flows = own.small(),
            _ => return refuse(format!("link[{n}].flows"), "only bulk flows are counted"),
        }
        let start_ms = source.start_s.map_or(0, |s| s.get());
        let extra_delays_us: Vec<u64> = source.extra_delay_ms.iter().map(|d| d.get()).collect();
        let own_paths = traffic::own_paths(source)?;
        let sent = match &traffic {
            Traffic::Bulk { flows, stagger_ms, .. } => {
                if start_ms + u64::from(flows - 1) * stagger_ms >= duration_ms {
                    return refuse("traffic.stagger_s", "the last flow would start after the run's end");
                }
                *flows
            }
            Traffic::Incast { senders, .. } => *senders,
            Traffic::ShortFlows { .. } => 0,
        };
        let beside =
            background::all(&plan.background, (source_link.name.as_deref(), &link), duration_ms, known)?;
        let background::Beside { flows: background, datagrams, short } = beside;
        if background.iter().map(|b| b.flows).sum::<u32>() + sent > MAX_FLOWS {
            return refuse("background", format_args!("more than {MAX_FLOWS} flows at once"));
        }
        let called = match &source_link.name {
            Some(given) => name(format!("link[{n}].name"), given)?,
            None => default_name(&link),
        };
        let shown = |key: &str| {
            source_link.name.is_none()
                && ["link.rate_mbit", "link.trace", "link.delay_ms", "link.loss", "link.medium"]
                    .contains(&key)
        };
        let swept: String = parameters
            .iter()
            .filter(|(key, _)| !shown(key))
            .map(|(key, value)| format!(", {} {value}", key.split_once('.').map_or(key.as_str(), |(_, k)| k)))
            .collect();
        let parameters = parameters.clone();
        let simulator = Simulator {
            agent_latency_us: plan.simulator.agent_latency_us.map_or(0, |l| l.get()),
            min_rto_us: plan.simulator.min_rto_ms.map_or(DEFAULT_MIN_RTO_US, |r| r.small()),
            emulated: plan.simulator.emulated.unwrap_or(false),
        };
        let name = called + &swept;
        scenarios.push(Scenario {
            name,
            parameters,
            link,
            traffic,
            start_ms,
            extra_delays_us,
            own_paths,
            ecn: source.ecn.unwrap_or(false),
            background,
            short,
            datagrams,
            simulator,
        });
    }
    if scenarios.is_empty() {
        return refuse(
            "link",
            "at least one [[link]] is needed, such as rate_mbit = 24, delay_ms = 20; or [random]",
        );
    }
    unique(scenarios.iter().zip(0..).map(|(s, n)| (s.name.as_str(), format!("link[{n}]"))), "links")?;
    Ok(scenarios)
}

fn default_name(link: &PlanLink) -> String {
    let speed = match &link.medium {
        Medium::Veth => return "veth".to_owned(),
        Medium::Unlimited => "no limit".to_owned(),
        Medium::Rate(bit_per_s) => format!("{} Mb/s", decimal(*bit_per_s, 1_000_000)),
        Medium::Trace { name, .. } => name.clone(),
    };
    let loss = match link.loss_ppm {
        0 => String::new(),
        ppm => format!(", {} % loss", decimal(ppm.into(), 10_000)),
    };
    format!("{speed}, {} ms{loss}", decimal(link.delay_us, 1000))
}

/// Checks the limits of all scenarios and contenders together.
pub(super) fn together(
    scenarios: &[Scenario],
    contenders: &[(usize, Contender)],
    known: &Known<'_>,
) -> Checked<()> {
    let live = |c: &Contender| c.datapath != Datapath::Sim;
    for (n, contender) in contenders {
        let simulated = contender.datapath == Datapath::Sim;
        for scenario in scenarios {
            if simulated && matches!(scenario.link.medium, Medium::Veth) {
                let message = "a veth pair cannot be simulated: the link needs rate_mbit or trace";
                return refuse(format!("algorithm[{n}].datapath"), message);
            }
            let user_space = matches!(contender.datapath, Datapath::Quic | Datapath::Dpdk);
            if user_space && !matches!(scenario.traffic, Traffic::Bulk { tool: Tool::Native, .. }) {
                let message = "quic and dpdk carry bulk flows by this program's own tool only";
                return refuse(format!("algorithm[{n}].datapath"), message);
            }
            if contender.datapath == Datapath::Dpdk && matches!(scenario.link.medium, Medium::Veth) {
                let message = "DPDK ports are at the ends of an emulated link: it needs rate_mbit or trace";
                return refuse(format!("algorithm[{n}].datapath"), message);
            }
            let other_agent = user_space || contender.datapath == Datapath::Module;
            if other_agent && scenario.background.iter().any(|b| b.datapath == Datapath::Ebpf) {
                let message = "an agent steers one datapath in a run: background on ebpf, or this contender";
                return refuse(format!("algorithm[{n}].datapath"), message);
            }
            let only = [
                ("traffic.extra_delay_ms", !scenario.extra_delays_us.is_empty()),
                ("traffic.extra_jitter_ms", !scenario.own_paths.jitters_us.is_empty()),
                ("traffic.aggregate_acks_ms", !scenario.own_paths.aggregated_acks_us.is_empty()),
                ("traffic.ack_every", scenario.own_paths.ack_every.is_some()),
                ("traffic.conceal_losses", scenario.own_paths.conceals_losses),
                ("traffic.ecn", scenario.ecn),
                ("link.queue_ecn", scenario.link.queue.marks),
                ("short flows as background", !scenario.short.is_empty()),
            ];
            if let Some((what, _)) = only.iter().find(|(_, set)| *set && !simulated) {
                let message = format!("{what}: simulated only; datapath = \"sim\", or leave it out");
                return refuse(format!("algorithm[{n}].datapath"), message);
            }
            for short in scenario.short.iter().filter(|s| s.algorithm == contender.algorithm) {
                if short.parameters != contender.parameters {
                    let message = "short flows of the contender's algorithm have its parameters";
                    return refuse(format!("algorithm[{n}].parameters"), message);
                }
            }
            for (b, background) in scenario.background.iter().enumerate() {
                let same = background.algorithm == contender.algorithm
                    && background.datapath == contender.datapath
                    && background.parameters != contender.parameters;
                if same && live(contender) {
                    let message = format!(
                        "the contender `{}` has other parameters; one agent runs one version of an algorithm",
                        contender.name
                    );
                    return refuse(format!("background[{b}].parameters"), message);
                }
                if simulated && find(&background.algorithm, known).is_none() {
                    let message = format!("`{}` cannot be simulated", background.algorithm);
                    return refuse(format!("background[{b}].algorithm"), message);
                }
            }
        }
    }
    Ok(())
}

/// Checks the limits of contenders that run at the same time.
pub(super) fn at_once(scenarios: &[Scenario], contenders: &[(usize, Contender)]) -> Checked<()> {
    if contenders.len() > MAX_AT_ONCE {
        return refuse("at_once", format_args!("more than {MAX_AT_ONCE} contenders"));
    }
    for (n, scenario) in scenarios.iter().enumerate() {
        if !matches!(scenario.traffic, Traffic::Bulk { tool: Tool::Native, .. }) {
            return refuse("at_once", "only bulk flows by this program's own tool run at once");
        }
        if scenario.link.medium == Medium::Veth {
            return refuse(
                format!("link[{n}].medium"),
                "at_once needs a link of their own for all contenders",
            );
        }
    }
    let on = |datapath| contenders.iter().find(|(_, c)| c.datapath == datapath);
    if let Some((n, _)) = on(Datapath::Dpdk) {
        return refuse(format!("algorithm[{n}].datapath"), "dpdk does not run at_once with others");
    }
    match (on(Datapath::Module), on(Datapath::Ebpf)) {
        (Some((n, _)), Some(_)) => refuse(
            format!("algorithm[{n}].datapath"),
            "module and ebpf do not run at_once: one agent steers the kernel's flows",
        ),
        _ => Ok(()),
    }
}

pub(super) fn paper(sources: &[PaperSource]) -> Vec<PaperFigure> {
    sources.iter().map(|p| PaperFigure { source: p.source.clone(), says: p.says.clone() }).collect()
}
