//! Runs algorithms in the simulator: `ccplane sim`.

use super::output::{print, print_json, table};
use crate::cli::SimArgs;
use ccplane_agent::failure::Failure;
use ccplane_alg::Algorithm;
use ccplane_netsim::trace::Trace;
use ccplane_netsim::{Capacity, LinkConfig, QueueLimit};
use ccplane_results::{
    AgentUse, Contender, Datapath, FlowResult, Header, LinkRecord, Plan, Results, Run, RunFigures,
    RunOutcome, SCHEMA_VERSION,
};
use ccplane_runner::host;
use ccplane_runner::sim::{self, SimulateError, Simulation, SimulationFlow};
use ccplane_sim::Source;
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

/// The largest IP packet, bytes.
const MTU_BYTES: u64 = 1500;
const BIT_PER_MBIT: f64 = 1e6;
const PPM: f64 = 1e6;

/// The most flows of one simulation.
const MAX_FLOWS: usize = 1024;

/// The links and flows of one simulation.
struct Scenario {
    simulation: Simulation,
    link: LinkConfig,
    shared: bool,
    flow_names: Vec<String>,
}

/// A simulated flow with the counters of its program, of which a flow's results have none.
#[derive(Clone, PartialEq, Debug)]
struct Simulated {
    algorithm: String,
    flow: FlowResult,
    reports: u64,
    faults: u64,
}

/// The figures of one flow.
#[derive(Serialize)]
struct Line {
    flow: String,
    algorithm: String,
    throughput_mbit_per_s: f64,
    /// The share of the link's capacity, 0 to 1; others may use the rest.
    utilisation: Option<f64>,
    rtt_mean_ms: Option<f64>,
    rtt_p95_ms: Option<f64>,
    lost_pkts: u64,
    reports: u64,
    faults: u64,
}

/// The JSON output of `ccplane sim`.
#[derive(Serialize)]
struct Figures {
    flows: Vec<Line>,
    report: Option<PathBuf>,
}

pub(crate) fn sim(args: &SimArgs, algorithms: &[Arc<dyn Algorithm>]) -> Result<(), Failure> {
    let scenario = scenario(args, algorithms)?;
    let flows = simulate(&scenario, algorithms).map_err(Failure::input)?;
    let link = link(args, &scenario);
    let lines: Vec<Line> = flows.iter().map(|f| line(f, &link, args.duration_s * 1000)).collect();
    let written = match &args.report {
        Some(dir) => {
            let results = results(args, &scenario, link, &flows);
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
    let shared = args.shared || args.flows > 1;
    let mut simulation = Simulation::new(args.delay_ms * 1000, args.duration_s * 1_000_000, args.seed);
    simulation.sample_every_us = args.sample_ms * 1000;
    let mut flow_names = Vec::new();
    for name in &names {
        for n in 1..=args.flows {
            // A network has few links, which it checks.
            let link = if shared { 0 } else { u8::try_from(flow_names.len()).unwrap_or(u8::MAX) };
            simulation.flows.push(bulk_flow(name, link));
            flow_names.push(format!("{name} {n}"));
        }
    }
    let links = if shared { 1 } else { flow_names.len() };
    simulation.links = vec![link.clone(); links];
    Ok(Scenario { simulation, link, shared, flow_names })
}

fn bulk_flow(algorithm: &str, link: u8) -> SimulationFlow {
    SimulationFlow { link, ..SimulationFlow::new(algorithm, Source::Bulk, 0, None) }
}

fn simulate(scenario: &Scenario, algorithms: &[Arc<dyn Algorithm>]) -> Result<Vec<Simulated>, SimulateError> {
    let simulation = &scenario.simulation;
    let count = simulation.flows.len();
    if count > MAX_FLOWS {
        return Err(SimulateError::TooMany { found: count, limit: MAX_FLOWS });
    }
    let done = sim::run(simulation, algorithms, simulation.duration_us, &mut |_| true)?;
    let flows = simulation.flows.iter().zip(&scenario.flow_names).zip(&done.flows);
    let simulated = flows.map(|((flow, name), id)| {
        let stats = done.datapath.stats(*id);
        Simulated {
            algorithm: flow.algorithm.clone(),
            flow: FlowResult { name: name.clone(), ..sim::measured(&done.datapath, *id, 0, 0) },
            reports: stats.as_ref().map_or(0, |s| s.transport.reports),
            faults: stats.as_ref().map_or(0, |s| s.transport.faults),
        }
    });
    Ok(simulated.collect())
}

/// Returns the link's rate, or the path of its trace.
fn rate_or_trace(args: &SimArgs) -> String {
    match &args.trace {
        Some(path) => path.display().to_string(),
        None => format!("{} Mb/s", args.rate_mbit),
    }
}

/// Describes the link for results.
fn link(args: &SimArgs, scenario: &Scenario) -> LinkRecord {
    let capacity = match &scenario.link.capacity {
        Capacity::Rate { bit_per_s } | Capacity::Slots { bit_per_s } => vec![(0, *bit_per_s)],
        Capacity::Trace { trace, repeat } => {
            ccplane_runner::capacity::of_trace(trace, *repeat, args.duration_s * 1000).collect()
        }
    };
    let step = |(t_ms, capacity_bps)| ccplane_results::Capacity { t_ms, capacity_bps };
    LinkRecord {
        description: format!(
            "{}, {} ms each way, queue {} packets, loss {}",
            rate_or_trace(args),
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

/// Turns the flows into a plan's results: a contender for each algorithm, the others beside it where all share the link.
fn results(args: &SimArgs, scenario: &Scenario, link: LinkRecord, flows: &[Simulated]) -> Results {
    let link_name = rate_or_trace(args);
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
        scenario: link_name.clone(),
        contender: (*name).to_owned(),
        repeat: 0,
        attempt: 1,
        seed: args.seed,
        started_at: host.started_at.clone(),
        wall_ms: 0,
        outcome: RunOutcome::Ok(Box::new(measured(name, scenario.shared, flows))),
    };
    let runs = names.iter().map(run).collect();
    let header = Header {
        schema: SCHEMA_VERSION,
        plan: Plan {
            name: "sim".to_owned(),
            title: "Simulated flows".to_owned(),
            about: share.to_owned(),
            repeats: 1,
            seed: args.seed,
            duration_ms: args.duration_s * 1000,
            sample_ms: args.sample_ms,
            ..Plan::default()
        },
        contenders: names.iter().map(contender).collect(),
        scenarios: vec![ccplane_results::Scenario {
            name: link_name.clone(),
            parameters: BTreeMap::new(),
            link,
            traffic: String::new(),
        }],
        host,
    };
    Results { header, runs }
}

/// Returns the figures of one algorithm's flows, with the others beside them on a shared link.
fn measured(name: &str, shared: bool, flows: &[Simulated]) -> RunFigures {
    let (own, others): (Vec<_>, Vec<_>) = flows.iter().partition(|f| f.algorithm == name);
    let beside = |f: &&Simulated| FlowResult { background: Some(f.algorithm.clone()), ..f.flow.clone() };
    let beside = others.iter().filter(|_| shared).map(beside);
    let agent = AgentUse {
        reports: own.iter().map(|f| f.reports).sum(),
        faults: own.iter().map(|f| f.faults).sum(),
        unsteered_flows: 0,
    };
    RunFigures {
        flows: own.iter().map(|f| f.flow.clone()).chain(beside).collect(),
        agent: Some(agent),
        ..RunFigures::default()
    }
}

fn line(simulated: &Simulated, link: &LinkRecord, duration_ms: u64) -> Line {
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

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        args: SimArgs,
    }

    fn simulated(arguments: &str) -> Result<Vec<Simulated>, SimulateError> {
        let arguments = std::iter::once("sim").chain(arguments.split_whitespace());
        let algorithms = ccplane_algs::all();
        let scenario = scenario(&Command::parse_from(arguments).args, &algorithms);
        simulate(&scenario.unwrap_or_else(|failure| panic!("{}", failure.message())), &algorithms)
    }

    #[test]
    fn flows_on_links_of_their_own_fill_them_and_runs_repeat() {
        let arguments = "reno cubic --rate-mbit 12 --queue-packets 60 --duration-s 10";
        let flows = simulated(arguments).unwrap();
        for Simulated { flow, reports, .. } in &flows {
            let bit_per_s = flow.acked_bytes * 8 / 10;
            assert!((10_500_000..=12_000_000).contains(&bit_per_s), "{}: {bit_per_s}", flow.name);
            assert!(flow.min_rtt_us >= 40_000 && *reports > 0);
            assert!(flow.series.t_ms.len() >= 95);
        }
        assert_eq!(flows, simulated(arguments).unwrap());
    }

    #[test]
    fn flows_that_share_a_link_share_its_rate() {
        let flows =
            simulated("reno cubic --rate-mbit 12 --queue-packets 60 --duration-s 10 --shared").unwrap();
        let bit_per_s = flows.iter().map(|f| f.flow.acked_bytes).sum::<u64>() * 8 / 10;
        assert!((10_500_000..=12_000_000).contains(&bit_per_s), "{bit_per_s}");
    }

    #[test]
    fn unknown_algorithms_and_too_many_flows_are_refused() {
        let error = simulated("none").unwrap_err().to_string();
        assert!(error.contains("no algorithm `none`"), "{error}");
        let error = simulated("reno cubic --flows 513").unwrap_err();
        assert!(matches!(error, SimulateError::TooMany { found: 1026, limit: MAX_FLOWS }), "{error}");
    }
}
