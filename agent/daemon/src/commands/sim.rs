//! `ccplane sim`: algorithms in the simulator.

use super::{print, print_json, table};
use crate::cli::SimArgs;
use crate::failure::Failure;
use crate::simulate::{self, Scenario, capacity};
use ccplane_alg::Algorithm;
use ccplane_netsim::trace::Trace;
use ccplane_netsim::{Capacity, LinkConfig, QueueLimit};
use ccplane_report::{Flow, Link, Phase, Report, Window, summary};
use ccplane_runner::host;
use serde::Serialize;
use std::path::PathBuf;
use std::sync::Arc;

/// IP packets, bytes.
const MTU_BYTES: u64 = 1500;
const BIT_PER_MBIT: f64 = 1e6;
const PPM: f64 = 1e6;

/// One flow's line.
#[derive(Serialize)]
pub(super) struct Line {
    flow: String,
    algorithm: String,
    throughput_mbit_per_s: f64,
    /// Of the link's capacity, 0 to 1; the link may be shared.
    utilisation: Option<f64>,
    rtt_mean_ms: Option<f64>,
    rtt_p95_ms: Option<f64>,
    lost_pkts: u64,
    reports: Option<u64>,
    faults: Option<u64>,
}

/// What `--json` prints.
#[derive(Serialize)]
pub(super) struct Figures {
    pub(super) flows: Vec<Line>,
    pub(super) notes: Vec<String>,
    pub(super) report: Option<PathBuf>,
}

/// `ccplane sim`
pub(crate) fn sim(args: &SimArgs, algorithms: &[Arc<dyn Algorithm>]) -> Result<(), Failure> {
    let scenario = scenario(args, algorithms)?;
    let flows = simulate::run(&scenario, algorithms).map_err(Failure::input)?;
    let report = report(args, &scenario, flows);
    let lines: Vec<Line> = report.flows.iter().map(|f| line(&report, f)).collect();
    let written = match &args.report {
        Some(dir) => Some(ccplane_report::write_to(&report, dir, "sim").map_err(Failure::runtime)?.html),
        None => None,
    };
    if args.json {
        return print_json(&Figures { flows: lines, notes: report.notes, report: written });
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

fn report(args: &SimArgs, scenario: &Scenario, flows: Vec<Flow>) -> Report {
    let shape = match &args.trace {
        Some(path) => path.display().to_string(),
        None => format!("{} Mb/s", args.rate_mbit),
    };
    let share =
        if scenario.shared { "All flows share one link." } else { "Each flow has a link of its own." };
    Report {
        title: "Simulated flows".to_owned(),
        summary: share.to_owned(),
        run: host::run_now(std::env::args().collect::<Vec<_>>().join(" ")),
        link: Link {
            description: format!(
                "{shape}, {} ms each way, queue {} packets, loss {}",
                args.delay_ms, args.queue_packets, args.loss
            ),
            base_rtt_us: Some(2 * args.delay_ms * 1000),
            mtu_bytes: MTU_BYTES,
            capacity: capacity(&scenario.link.capacity, scenario.duration_ms),
        },
        phases: vec![Phase { label: shape, t0_ms: 0, t1_ms: scenario.duration_ms }],
        flows,
        learned: None,
        notes: Vec::new(),
    }
}

pub(super) fn line(report: &Report, flow: &Flow) -> Line {
    let s = summary(flow, &report.link.capacity, Window::ALL);
    let ms = |us: f64| us / 1000.0;
    Line {
        flow: flow.name.clone(),
        algorithm: flow.algorithm.clone(),
        throughput_mbit_per_s: s.throughput_bps.unwrap_or(0.0) / BIT_PER_MBIT,
        utilisation: s.utilisation,
        rtt_mean_ms: s.rtt_mean_us.map(ms),
        rtt_p95_ms: s.rtt_p95_us.map(ms),
        lost_pkts: s.lost_pkts,
        reports: flow.totals.reports,
        faults: flow.totals.faults,
    }
}

pub(super) fn text(lines: &[Line]) -> String {
    let header = ["flow", "Mb/s", "of link", "RTT ms", "p95", "lost", "reports", "faults"];
    let one = |x: Option<f64>| x.map_or_else(|| "-".to_owned(), |x| format!("{x:.1}"));
    let count = |n: Option<u64>| n.map_or_else(|| "-".to_owned(), |n| n.to_string());
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
                count(l.reports),
                count(l.faults),
            ]
        })
        .collect();
    table(&header, &rows)
}
