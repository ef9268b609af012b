//! `ccplane sim`: algorithms in the simulator.

use super::{print, print_json, table};
use crate::cli::SimArgs;
use crate::failure::Failure;
use crate::simulate::{self, Scenario, Simulated};
use ccplane_alg::Algorithm;
use ccplane_netsim::trace::Trace;
use ccplane_netsim::{Capacity, LinkConfig, QueueLimit};
use ccplane_results::{
    AgentUse, Contender, Datapath, Flow, Header, Link, Measured, Outcome, Plan, Results, Run, SCHEMA_VERSION,
};
use ccplane_runner::host;
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

/// IP packets, bytes.
const MTU_BYTES: u64 = 1500;
const BIT_PER_MBIT: f64 = 1e6;
const PPM: f64 = 1e6;

/// One flow's line.
#[derive(Serialize)]
struct Line {
    flow: String,
    algorithm: String,
    throughput_mbit_per_s: f64,
    /// Of the link's capacity, 0 to 1; the link may be shared.
    utilisation: Option<f64>,
    rtt_mean_ms: Option<f64>,
    rtt_p95_ms: Option<f64>,
    lost_pkts: u64,
    reports: u64,
    faults: u64,
}

/// What `--json` prints.
#[derive(Serialize)]
struct Figures {
    flows: Vec<Line>,
    report: Option<PathBuf>,
}

/// `ccplane sim`
pub(crate) fn sim(args: &SimArgs, algorithms: &[Arc<dyn Algorithm>]) -> Result<(), Failure> {
    let scenario = scenario(args, algorithms)?;
    let flows = simulate::run(&scenario, algorithms).map_err(Failure::input)?;
    let link = link(args, &scenario);
    let lines: Vec<Line> = flows.iter().map(|f| line(f, &link, scenario.duration_ms)).collect();
    let written = match &args.report {
        Some(dir) => {
            let results = results(&scenario, &shape(args), link, &flows);
            let files = ccplane_report::experiment::write(&results, dir, "sim");
            Some(files.map_err(Failure::runtime)?.html)
        }
        None => None,
    };
    if args.json {
        return print_json(&Figures { flows: lines, report: written });
    }
    print(&text(&lines))?;
    written.map_or(Ok(()), |path| print(&format!("report: {}\n", path.display())))
}

fn scenario(args: &SimArgs, algorithms: &[Arc<dyn Algorithm>]) -> Result<Scenario, Failure> {
    let (capacity, repeat) = match &args.trace {
        Some(path) => (Some(Trace::load(path).map_err(Failure::input)?), true),
        None => (None, false),
    };
    let capacity = match capacity {
        Some(trace) => Capacity::Trace { trace, repeat },
        None => Capacity::Rate { bit_per_s: (args.rate_mbit * BIT_PER_MBIT) as u64 },
    };
    let link = LinkConfig {
        loss_ppm: (args.loss * PPM) as u32,
        ..LinkConfig::new(capacity, args.delay_ms * 1_000_000, QueueLimit::Packets(args.queue_packets))
    };
    let names: Vec<String> = if args.algorithms.is_empty() {
        algorithms.iter().map(|a| a.name().to_owned()).collect()
    } else {
        args.algorithms.clone()
    };
    let flows = names
        .iter()
        .flat_map(|name| (1..=args.flows).map(move |n| (format!("{name} {n}"), name.clone())))
        .collect();
    Ok(Scenario {
        link,
        shared: args.shared || args.flows > 1,
        return_delay_us: args.delay_ms * 1000,
        duration_ms: args.duration_s * 1000,
        sample_every_ms: args.sample_ms,
        seed: args.seed,
        flows,
    })
}

/// How fast the link is, in words.
fn shape(args: &SimArgs) -> String {
    match &args.trace {
        Some(path) => path.display().to_string(),
        None => format!("{} Mb/s", args.rate_mbit),
    }
}

/// The link in the words of results.
fn link(args: &SimArgs, scenario: &Scenario) -> Link {
    let capacity = match &scenario.link.capacity {
        Capacity::Rate { bit_per_s } | Capacity::Slots { bit_per_s } => vec![(0, *bit_per_s)],
        Capacity::Trace { trace, repeat } => {
            ccplane_runner::capacity::of_trace(trace, *repeat, scenario.duration_ms).collect()
        }
    };
    let step = |(t_ms, capacity_bps)| ccplane_results::Capacity { t_ms, capacity_bps };
    Link {
        description: format!(
            "{}, {} ms each way, queue {} packets, loss {}",
            shape(args),
            args.delay_ms,
            args.queue_packets,
            args.loss
        ),
        base_rtt_us: Some(2 * args.delay_ms * 1000),
        mtu_bytes: MTU_BYTES,
        capacity: capacity.into_iter().map(step).collect(),
        changes: Vec::new(),
    }
}

/// The flows as a plan's results: a contender for each algorithm, the others beside it where all share the link.
fn results(scenario: &Scenario, link_name: &str, link: Link, flows: &[Simulated]) -> Results {
    let share =
        if scenario.shared { "All flows share one link." } else { "Each flow has a link of its own." };
    let host = host::here(std::env::args().collect::<Vec<_>>().join(" "));
    let mut names: Vec<&str> = Vec::new();
    for flow in flows {
        if !names.contains(&flow.algorithm.as_str()) {
            names.push(&flow.algorithm);
        }
    }
    let contender = |name: &&str| Contender {
        name: (*name).to_owned(),
        algorithm: (*name).to_owned(),
        datapath: Datapath::Sim,
        parameters: BTreeMap::new(),
        learning: false,
    };
    let run = |name: &&str| Run {
        scenario: link_name.to_owned(),
        contender: (*name).to_owned(),
        repeat: 0,
        attempt: 1,
        seed: scenario.seed,
        started_at: host.started_at.clone(),
        wall_ms: 0,
        outcome: Outcome::Ok(Box::new(measured(name, scenario.shared, flows))),
    };
    let runs = names.iter().map(run).collect();
    let header = Header {
        schema: SCHEMA_VERSION,
        plan: Plan {
            name: "sim".to_owned(),
            title: "Simulated flows".to_owned(),
            about: share.to_owned(),
            repeats: 1,
            seed: scenario.seed,
            duration_ms: scenario.duration_ms,
            sample_ms: scenario.sample_every_ms,
            ..Plan::default()
        },
        contenders: names.iter().map(contender).collect(),
        scenarios: vec![ccplane_results::Scenario {
            name: link_name.to_owned(),
            parameters: BTreeMap::new(),
            link,
            traffic: String::new(),
        }],
        host,
    };
    Results { header, runs }
}

/// What the algorithm of this name did.
fn measured(name: &str, shared: bool, flows: &[Simulated]) -> Measured {
    let (own, others): (Vec<_>, Vec<_>) = flows.iter().partition(|f| f.algorithm == name);
    let beside = |f: &&Simulated| Flow { background: Some(f.algorithm.clone()), ..f.flow.clone() };
    let beside = others.iter().filter(|_| shared).map(beside);
    let agent = AgentUse {
        reports: own.iter().map(|f| f.reports).sum(),
        faults: own.iter().map(|f| f.faults).sum(),
        unsteered_flows: 0,
    };
    Measured {
        flows: own.iter().map(|f| f.flow.clone()).chain(beside).collect(),
        agent: Some(agent),
        ..Measured::default()
    }
}

fn line(simulated: &Simulated, link: &Link, duration_ms: u64) -> Line {
    let flow = &simulated.flow;
    let ends = link.capacity.iter().skip(1).map(|c| c.t_ms).chain([duration_ms]);
    let steps = link.capacity.iter().zip(ends);
    let offered: f64 =
        steps.map(|(c, end_ms)| c.capacity_bps as f64 * end_ms.saturating_sub(c.t_ms) as f64 / 1e3).sum();
    let rtt_ms = |us: u64| (us > 0).then_some(us as f64 / 1e3);
    Line {
        flow: flow.name.clone(),
        algorithm: simulated.algorithm.clone(),
        throughput_mbit_per_s: flow.throughput_bps as f64 / BIT_PER_MBIT,
        utilisation: (offered > 0.0).then(|| flow.acked_bytes as f64 * 8.0 / offered),
        rtt_mean_ms: rtt_ms(flow.rtt_us.mean),
        rtt_p95_ms: rtt_ms(flow.rtt_us.p95),
        lost_pkts: flow.lost_pkts,
        reports: simulated.reports,
        faults: simulated.faults,
    }
}

fn text(lines: &[Line]) -> String {
    let header = ["flow", "Mb/s", "of link", "RTT ms", "p95", "lost", "reports", "faults"];
    let one = |x: Option<f64>| x.map_or_else(|| "-".to_owned(), |x| format!("{x:.1}"));
    let rows: Vec<Vec<String>> = lines
        .iter()
        .map(|l| {
            vec![
                l.flow.clone(),
                format!("{:.2}", l.throughput_mbit_per_s),
                l.utilisation.map_or_else(|| "-".to_owned(), |u| format!("{:.1} %", u * 100.0)),
                one(l.rtt_mean_ms),
                one(l.rtt_p95_ms),
                l.lost_pkts.to_string(),
                l.reports.to_string(),
                l.faults.to_string(),
            ]
        })
        .collect();
    table(&header, &rows)
}
