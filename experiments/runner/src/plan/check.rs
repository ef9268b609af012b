//! What no single value of a plan shows: the way from its [`source`](super::source) to the [`model`](super::model).

mod background;
mod changes;

use std::collections::BTreeMap;
use std::sync::Arc;

use ccplane_alg::{Algorithm, ParameterError, configure};
use ccplane_netsim::workload::FlowSizes;
use ccplane_results::{Comparison, Datapath, PaperFigure};

use super::model::{
    Contender, Discipline, Impairments, Link, Medium, Policer, Queue, Scenario, Simulator, Tool, Traffic,
};
use super::number::decimal;
use super::source::{
    AlgorithmSource, CompareSource, KindName, LinkSource, MediumName, PaperSource, PlacementName, PlanSource,
    QueueName, ToolName, TrafficSource,
};
use super::{Known, MAX_ARRIVALS, MAX_FLOWS, MAX_NAME_CHARS};
use ccplane_document::Problem;

type Checked<T> = Result<T, Problem>;

/// Bytes of a full packet, by which a queue's length in bandwidth-delay products is counted.
const PACKET_BYTES: u64 = 1500;
/// A queue in bandwidth-delay products is never shorter than this.
const MIN_QUEUE_PACKETS: u64 = 4;
const PPM: u64 = 1_000_000;
/// Linux's TCP_RTO_MIN.
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
        let mut link = link(n, source_link, known)?;
        link.changes = changes::changes(n, source_link, &link, duration_ms)?;
        let traffic = traffic(source, &link, duration_ms)?;
        let sent = match &traffic {
            Traffic::Bulk { flows, stagger_ms, .. } => {
                if u64::from(flows - 1) * stagger_ms >= duration_ms {
                    return refuse("traffic.stagger_s", "the last flow would start after the run's end");
                }
                *flows
            }
            Traffic::Incast { senders, .. } => *senders,
            Traffic::ShortFlows { .. } => 0,
        };
        let (background, datagrams) =
            background::all(&plan.background, source_link.name.as_deref(), duration_ms, known)?;
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
        };
        let name = called + &swept;
        scenarios.push(Scenario { name, parameters, link, traffic, background, datagrams, simulator });
    }
    if scenarios.is_empty() {
        return refuse("link", "at least one [[link]] is needed, such as rate_mbit = 24, delay_ms = 20");
    }
    unique(scenarios.iter().zip(0..).map(|(s, n)| (s.name.as_str(), format!("link[{n}]"))), "links")?;
    Ok(scenarios)
}

fn default_name(link: &Link) -> String {
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

/// The shipped trace that [`Known::cellular`] stands in for.
const CELLULAR: &str = "cellular.up";

fn link(n: usize, source: &LinkSource, known: &Known<'_>) -> Checked<Link> {
    let field = |key: &str| format!("link[{n}].{key}");
    let trace = |key, name: &str| {
        let file = known.cellular.filter(|_| name == CELLULAR).unwrap_or(name);
        match (known.traces)(file) {
            Ok(trace) => {
                Ok(Medium::Trace { name: file.rsplit('/').next().unwrap_or(file).to_owned(), trace })
            }
            Err(why) => refuse(field(key), why),
        }
    };
    let medium = match (&source.rate_mbit, &source.trace, source.medium) {
        (Some(rate), None, None) => Medium::Rate(rate.get()),
        (None, Some(name), None) => trace("trace", name)?,
        (None, None, Some(MediumName::Veth)) => Medium::Veth,
        _ => {
            return refuse(
                format!("link[{n}]"),
                "one of rate_mbit = 24, trace = \"cellular.up\" and medium = \"veth\" is needed",
            );
        }
    };
    if medium == Medium::Veth {
        let set = [
            ("delay_ms", source.delay_ms.is_some()),
            ("queue", source.queue.is_some()),
            ("queue_packets", source.queue_packets.is_some()),
            ("queue_bytes", source.queue_bytes.is_some()),
            ("queue_bdp", source.queue_bdp.is_some()),
            ("loss", source.loss.is_some()),
            ("jitter_ms", source.jitter_ms.is_some()),
            ("reorder", source.reorder.is_some()),
            ("duplicate", source.duplicate.is_some()),
            ("policer_mbit", source.policer_mbit.is_some()),
            ("return_trace", source.return_trace.is_some()),
            ("return_rate_mbit", source.return_rate_mbit.is_some()),
            ("change", !source.change.is_empty()),
        ];
        return match set.iter().find(|(_, set)| *set) {
            Some((key, _)) => {
                refuse(field(key), "a veth pair is not emulated; use rate_mbit or trace instead of medium")
            }
            None => Ok(veth()),
        };
    }
    let way_back = match (&source.return_rate_mbit, &source.return_trace) {
        (None, None) => Medium::Unlimited,
        (Some(rate), None) => Medium::Rate(rate.get()),
        (None, Some(name)) => trace("return_trace", name)?,
        (Some(_), Some(_)) => {
            return refuse(field("return_trace"), "return_rate_mbit is set, too; only one can be");
        }
    };
    let Some(delay) = source.delay_ms else {
        return refuse(format!("link[{n}]"), "delay_ms, the delay of each direction, is needed");
    };
    let queue = queue(n, source, medium.rate_bit_per_s(), delay.get())?;
    let loss_ppm = source.loss.map_or(0, |share| share.small());
    let impairments = impairments(n, source)?;
    let changes = Vec::new();
    Ok(Link { medium, way_back, delay_us: delay.get(), queue, loss_ppm, impairments, changes })
}

fn veth() -> Link {
    Link {
        medium: Medium::Veth,
        way_back: Medium::Veth,
        delay_us: 0,
        queue: Queue::default(),
        loss_ppm: 0,
        impairments: Impairments::default(),
        changes: Vec::new(),
    }
}

/// How long packets are held back unless the plan says.
const DEFAULT_REORDER_US: u64 = 5_000;
/// A policer's bucket unless the plan says, in time of its rate, milliseconds.
const DEFAULT_POLICER_MS: u64 = 10;
const MIN_POLICER_BYTES: u64 = 15_000;

fn impairments(n: usize, source: &LinkSource) -> Checked<Impairments> {
    let field = |key: &str| format!("link[{n}].{key}");
    if source.reorder_ms.is_some() && source.reorder.is_none() {
        return refuse(field("reorder_ms"), "`reorder`, the share of packets held back, is needed");
    }
    if source.policer_bytes.is_some() && source.policer_mbit.is_none() {
        return refuse(field("policer_bytes"), "`policer_mbit`, the policer's rate, is needed");
    }
    let policer = source.policer_mbit.map(|rate| {
        let default = (rate.get() / 8000 * DEFAULT_POLICER_MS).max(MIN_POLICER_BYTES);
        Policer { bit_per_s: rate.get(), burst_bytes: source.policer_bytes.map_or(default, |b| b.get()) }
    });
    Ok(Impairments {
        jitter_us: source.jitter_ms.map_or(0, |j| j.get()),
        reorder_ppm: source.reorder.map_or(0, |r| r.small()),
        reorder_us: source.reorder_ms.map_or(DEFAULT_REORDER_US, |r| r.get()),
        duplicate_ppm: source.duplicate.map_or(0, |d| d.small()),
        policer,
    })
}

fn discipline(n: usize, source: &LinkSource, kind: QueueName) -> Checked<Discipline> {
    let set = [
        ("codel_target_ms", source.codel_target_ms.is_some(), QueueName::Codel),
        ("codel_interval_ms", source.codel_interval_ms.is_some(), QueueName::Codel),
        ("pie_target_ms", source.pie_target_ms.is_some(), QueueName::Pie),
        ("pie_burst_ms", source.pie_burst_ms.is_some(), QueueName::Pie),
    ];
    if let Some((key, ..)) = set.iter().find(|(_, set, of)| *set && *of != kind) {
        let of = key.split('_').next().unwrap_or_default();
        return refuse(format!("link[{n}].{key}"), format_args!("only with queue = \"{of}\""));
    }
    // What RFC 8289 and RFC 8033 suggest.
    Ok(match kind {
        QueueName::Infinite | QueueName::Droptail => Discipline::DropTail,
        QueueName::Drophead => Discipline::DropHead,
        QueueName::Codel => Discipline::Codel {
            target_us: source.codel_target_ms.map_or(5_000, |t| t.get()),
            interval_us: source.codel_interval_ms.map_or(100_000, |t| t.get()),
        },
        QueueName::Pie => Discipline::Pie {
            target_us: source.pie_target_ms.map_or(15_000, |t| t.get()),
            max_burst_us: source.pie_burst_ms.map_or(150_000, |t| t.get()),
        },
    })
}

fn queue(n: usize, source: &LinkSource, rate_bit_per_s: Option<u64>, delay_us: u64) -> Checked<Queue> {
    let field = |key: &str| format!("link[{n}].{key}");
    let kind = source.queue.unwrap_or(QueueName::Droptail);
    let discipline = discipline(n, source, kind)?;
    let limits = [
        ("queue_packets", source.queue_packets.is_some()),
        ("queue_bytes", source.queue_bytes.is_some()),
        ("queue_bdp", source.queue_bdp.is_some()),
    ];
    if kind == QueueName::Infinite {
        return match limits.iter().find(|(_, set)| *set) {
            Some((key, _)) => refuse(field(key), "an infinite queue has no limit"),
            None => Ok(Queue::default()),
        };
    }
    if source.queue_bdp.is_some() && (source.queue_packets.is_some() || source.queue_bytes.is_some()) {
        return refuse(field("queue_bdp"), "queue_packets or queue_bytes is set, too; only one can be");
    }
    let bytes = source.queue_bytes.map(|b| b.get());
    if let Some(packets) = source.queue_packets {
        return Ok(Queue { discipline, packets: Some(packets.small()), bytes });
    }
    if bytes.is_some() {
        return Ok(Queue { discipline, packets: None, bytes });
    }
    let bdp_ppm = source.queue_bdp.map_or(PPM, |b| b.get());
    let rate = rate_bit_per_s.unwrap_or(0);
    let bdp_bytes = u128::from(rate) * u128::from(2 * delay_us) / 8 / u128::from(PPM);
    let packets = bdp_bytes * u128::from(bdp_ppm) / u128::from(PPM) / u128::from(PACKET_BYTES);
    let packets = u32::try_from(packets.max(MIN_QUEUE_PACKETS.into())).unwrap_or(u32::MAX);
    match packets {
        packets if packets <= ccplane_emulator::MAX_BUFFER_PACKETS => {
            Ok(Queue { discipline, packets: Some(packets), bytes: None })
        }
        _ => refuse(
            field(if source.queue_bdp.is_some() { "queue_bdp" } else { "rate_mbit" }),
            format_args!(
                "a queue of {packets} packets, at most {} are allowed",
                ccplane_emulator::MAX_BUFFER_PACKETS
            ),
        ),
    }
}

fn traffic(source: &TrafficSource, link: &Link, duration_ms: u64) -> Checked<Traffic> {
    let kind = source.kind.unwrap_or(KindName::Bulk);
    let set = [
        ("flows", source.flows.is_some(), &[KindName::Bulk][..]),
        ("stagger_s", source.stagger_s.is_some(), &[KindName::Bulk]),
        ("tool", source.tool.is_some(), &[KindName::Bulk]),
        ("distribution", source.distribution.is_some(), &[KindName::ShortFlows]),
        ("load", source.load.is_some(), &[KindName::ShortFlows]),
        ("senders", source.senders.is_some(), &[KindName::Incast]),
        ("bytes", source.bytes.is_some(), &[KindName::ShortFlows, KindName::Incast]),
        ("every_ms", source.every_ms.is_some(), &[KindName::Incast]),
    ];
    if let Some((key, ..)) = set.iter().find(|(_, set, kinds)| *set && !kinds.contains(&kind)) {
        let keys: Vec<&str> = set.iter().filter(|(.., k)| k.contains(&kind)).map(|(key, ..)| *key).collect();
        return refuse(
            format!("traffic.{key}"),
            format_args!("not of this kind of traffic, which takes {}", keys.join(", ")),
        );
    }
    match kind {
        KindName::Bulk => bulk(source),
        KindName::ShortFlows => short_flows(source, link, duration_ms),
        KindName::Incast => {
            let (Some(senders), Some(bytes), Some(every)) = (source.senders, source.bytes, source.every_ms)
            else {
                return refuse("traffic", "incast needs senders, bytes (of each) and every_ms");
            };
            let (senders, every_us) = (senders.small(), every.get());
            let flows = u64::from(senders) * (duration_ms * 1000).div_ceil(every_us);
            if flows > MAX_ARRIVALS {
                let message = format!("{flows} flows in one run, at most {MAX_ARRIVALS} are allowed");
                return refuse("traffic.every_ms", message);
            }
            Ok(Traffic::Incast { senders, bytes: bytes.get(), every_us })
        }
    }
}

fn bulk(source: &TrafficSource) -> Checked<Traffic> {
    let tool = match source.tool.unwrap_or(ToolName::Native) {
        ToolName::Native => Tool::Native,
        ToolName::Iperf3 => Tool::Iperf3,
    };
    let flows = source.flows.map_or(1, |f| f.small());
    let stagger_ms = source.stagger_s.map_or(0, |s| s.get());
    if tool == Tool::Iperf3 && stagger_ms > 0 {
        return refuse("traffic.stagger_s", "iperf3 starts its flows together; tool = \"native\" can");
    }
    if tool == Tool::Iperf3 && flows > MAX_IPERF3_FLOWS {
        return refuse("traffic.flows", format_args!("iperf3 takes at most {MAX_IPERF3_FLOWS} flows"));
    }
    Ok(Traffic::Bulk { flows, stagger_ms, tool })
}

/// `iperf3 --parallel` takes so many.
const MAX_IPERF3_FLOWS: u32 = 128;

fn short_flows(source: &TrafficSource, link: &Link, duration_ms: u64) -> Checked<Traffic> {
    let sizes = match (source.distribution.as_deref(), source.bytes) {
        (None, Some(bytes)) => FlowSizes::fixed(bytes.get()),
        (Some(_), Some(_)) => {
            return refuse("traffic.bytes", "`distribution` is set, too; only one can be");
        }
        (name, None) => {
            let name = name.unwrap_or("web-search");
            match FlowSizes::named(name) {
                Some(sizes) => sizes,
                None => {
                    return refuse(
                        "traffic.distribution",
                        format_args!("no distribution is called `{name}`; there are web-search, data-mining"),
                    );
                }
            }
        }
    };
    let Some(rate_bit_per_s) = link.medium.rate_bit_per_s() else {
        return refuse(
            "traffic.kind",
            "a load is a share of the link's rate: the link needs rate_mbit or trace",
        );
    };
    let load_ppm = source.load.map_or(500_000, |l| l.small());
    let bits = u128::from(rate_bit_per_s) * u128::from(duration_ms) / 1000 * u128::from(load_ppm) / 1_000_000;
    let flows = bits / 8 / u128::from(sizes.mean_bytes());
    if flows > u128::from(MAX_ARRIVALS) {
        let message = format!("about {flows} flows in one run, at most {MAX_ARRIVALS} are allowed");
        return refuse("traffic.load", message);
    }
    Ok(Traffic::ShortFlows { sizes, load_ppm })
}

/// The algorithm of a contender or of background traffic, resolved and checked.
fn algorithm(
    field: &str,
    asked: &str,
    datapath: Datapath,
    parameters: &BTreeMap<String, i64>,
    known: &Known<'_>,
) -> Checked<()> {
    if datapath == Datapath::Kernel {
        if let Some(key) = parameters.keys().next() {
            let message = "the kernel's own algorithms take no parameters";
            return refuse(format!("{field}.parameters.{key}"), message);
        }
        return match known.kernel {
            Some(names) if !names.iter().any(|name| name == asked) => refuse(
                format!("{field}.algorithm"),
                format_args!("this kernel has no algorithm called `{asked}`; there are {}", names.join(", ")),
            ),
            _ => Ok(()),
        };
    }
    let found = find(asked, known).ok_or_else(|| {
        let names: Vec<&str> = known.algorithms.iter().map(|a| a.name()).collect();
        Problem::new(
            format!("{field}.algorithm"),
            format_args!("no algorithm is called `{asked}`; there are {}", names.join(", ")),
        )
    })?;
    let values = parameters.iter().map(|(name, value)| (name.as_str(), *value));
    match configure(found, values) {
        Ok(_) => Ok(()),
        Err(error) => {
            let key = match &error {
                ParameterError::Unknown { name, .. } => name.clone(),
                ParameterError::OutOfRange { parameter, .. } => parameter.name.to_owned(),
            };
            refuse(format!("{field}.parameters.{key}"), error)
        }
    }
}

fn find<'k>(name: &str, known: &Known<'k>) -> Option<&'k Arc<dyn Algorithm>> {
    known.algorithms.iter().find(|a| a.name() == name)
}

/// The contenders.
pub(super) fn contenders(sources: &[AlgorithmSource], known: &Known<'_>) -> Checked<Vec<Contender>> {
    if sources.is_empty() {
        return refuse("algorithm", "at least one [[algorithm]] is needed");
    }
    if sources.len() > super::MAX_CONTENDERS {
        return refuse("algorithm", format_args!("at most {} are allowed", super::MAX_CONTENDERS));
    }
    let contender = |(n, source): (usize, &AlgorithmSource)| {
        let field = format!("algorithm[{n}]");
        let resolved = placed(&field, source, known)?;
        algorithm(&field, &resolved, source.datapath, &source.parameters, known)?;
        if source.learning {
            can_learn(&field, &resolved, source.datapath, known)?;
        }
        let called = match &source.name {
            Some(given) => name(format!("{field}.name"), given)?,
            None => format!("{resolved} {}", source.datapath.name()),
        };
        Ok(Contender {
            name: called,
            algorithm: resolved,
            datapath: source.datapath,
            parameters: source.parameters.clone(),
            learning: source.learning,
        })
    };
    let contenders: Vec<Contender> = sources.iter().enumerate().map(contender).collect::<Checked<_>>()?;
    unique(
        contenders.iter().zip(0..).map(|(c, n)| (c.name.as_str(), format!("algorithm[{n}]"))),
        "contenders",
    )?;
    Ok(contenders)
}

/// An agent improves policies, of live flows.
fn can_learn(field: &str, name: &str, datapath: Datapath, known: &Known<'_>) -> Checked<()> {
    let learned = |a: &&Arc<dyn Algorithm>| !a.policies().is_empty();
    if matches!(datapath, Datapath::Kernel | Datapath::Sim) {
        return refuse(
            format!("{field}.learning"),
            "an agent learns beside flows on datapath = \"ebpf\", \"quic\" or \"dpdk\" only",
        );
    }
    if find(name, known).filter(learned).is_none() {
        let names: Vec<&str> = known.algorithms.iter().filter(learned).map(|a| a.name()).collect();
        let message = format!("`{name}` has no policy to improve; those that have one: {}", names.join(", "));
        return refuse(format!("{field}.learning"), message);
    }
    Ok(())
}

/// The algorithm's name where its decisions are made as asked. What decides per report in the agent is called `ccp-NAME` or
/// `NAME-agent`, a policy that was distilled `NAME-fold`; other programs are folds, and ask snapshots, as they are.
fn placed(field: &str, source: &AlgorithmSource, known: &Known<'_>) -> Checked<String> {
    let (Some(placement), asked) = (source.placement, &source.algorithm) else {
        return Ok(source.algorithm.clone());
    };
    let refused = |message: String| refuse(format!("{field}.placement"), message);
    if source.datapath == Datapath::Kernel {
        return refused("the kernel's own algorithms decide in the kernel".to_owned());
    }
    let learned = find(asked, known).is_some_and(|a| !a.policies().is_empty());
    let names = known.algorithms.iter().map(|a| a.name());
    match placement {
        PlacementName::Agent => {
            let versions = [format!("ccp-{asked}"), format!("{asked}-agent")];
            if let Some(version) = versions.into_iter().find(|v| find(v, known).is_some()) {
                return Ok(version);
            }
            let base = |n: &'static str| n.strip_prefix("ccp-").or_else(|| n.strip_suffix("-agent"));
            let able: Vec<&str> = names.filter_map(base).collect();
            refused(format!("only {} can decide in the agent", able.join(", ")))
        }
        PlacementName::Fold if learned => {
            let distilled = format!("{asked}-fold");
            if find(&distilled, known).is_some() {
                return Ok(distilled);
            }
            let able: Vec<&str> = names.filter_map(|n| n.strip_suffix("-fold")).collect();
            refused(format!("no distilled program of `{asked}`; there are those of {}", able.join(", ")))
        }
        PlacementName::Snapshot if !learned => refused(format!("`{asked}` asks no policy")),
        PlacementName::Fold | PlacementName::Snapshot => Ok(asked.clone()),
    }
}

/// What all scenarios and contenders together must keep.
pub(super) fn together(scenarios: &[Scenario], contenders: &[Contender], known: &Known<'_>) -> Checked<()> {
    let live = |c: &Contender| c.datapath != Datapath::Sim;
    for (n, contender) in contenders.iter().enumerate() {
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
            if user_space && scenario.background.iter().any(|b| b.datapath == Datapath::Ebpf) {
                let message = "an agent steers one datapath in a run: background on ebpf, or this contender";
                return refuse(format!("algorithm[{n}].datapath"), message);
            }
            let hard = &scenario.link.impairments;
            if simulated && (hard.reorder_ppm > 0 || hard.duplicate_ppm > 0 || hard.policer.is_some()) {
                let message = "the simulator has no reordering, copies or policer; leave this contender out";
                return refuse(format!("algorithm[{n}].datapath"), message);
            }
            if simulated && !scenario.link.changes.is_empty() {
                let message = "the simulator's links do not change; leave this contender out";
                return refuse(format!("algorithm[{n}].datapath"), message);
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

/// What the report must compare.
pub(super) fn comparisons(
    sources: &[CompareSource],
    scenarios: &[Scenario],
    contenders: &[Contender],
) -> Checked<Vec<Comparison>> {
    let comparison = |(n, source): (usize, &CompareSource)| {
        let field = |key: &str| format!("compare[{n}].{key}");
        for (key, name) in [("of", &source.of), ("against", &source.against)] {
            if !contenders.iter().any(|c| c.name == *name) {
                let names: Vec<&str> = contenders.iter().map(|c| c.name.as_str()).collect();
                let message = format!("no contender is called `{name}`; there are {}", names.join(", "));
                return refuse(field(key), message);
            }
        }
        if let Some(name) = source.scenario.as_ref().filter(|n| !scenarios.iter().any(|s| s.name == **n)) {
            let names: Vec<&str> = scenarios.iter().map(|s| s.name.as_str()).collect();
            let message = format!("no scenario is called `{name}`; there are {}", names.join("; "));
            return refuse(field("scenario"), message);
        }
        if source.of == source.against {
            return refuse(field("against"), "a contender is not compared with itself");
        }
        Ok(Comparison {
            metric: source.metric,
            of: source.of.clone(),
            against: source.against.clone(),
            scenario: source.scenario.clone(),
            within_ppm: source.within.map(|w| w.get()),
            at_most_ppm: source.at_most.map(|w| w.get()),
            at_least_ppm: source.at_least.map(|w| w.get()),
            paper: source.paper.clone(),
        })
    };
    sources.iter().enumerate().map(comparison).collect()
}

/// What papers say.
pub(super) fn paper(sources: &[PaperSource]) -> Vec<PaperFigure> {
    sources.iter().map(|p| PaperFigure { source: p.source.clone(), says: p.says.clone() }).collect()
}
