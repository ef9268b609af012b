//! Figures as CSV (RFC 4180), in the data's own integers and units.

use ccplane_results::{FlowResult, Results, Run, RunFigures, RunOutcome};

use super::fairness::{Convergence, convergence};
use super::figures::{METRICS, value};

/// A table of text.
struct Csv {
    out: String,
}

impl Csv {
    fn new(columns: impl IntoIterator<Item = impl AsRef<str>>) -> Self {
        let mut csv = Self { out: String::new() };
        csv.row(columns);
        csv
    }

    fn row(&mut self, cells: impl IntoIterator<Item = impl AsRef<str>>) {
        for (i, cell) in cells.into_iter().enumerate() {
            if i > 0 {
                self.out.push(',');
            }
            let cell = cell.as_ref();
            if cell.contains(['"', ',', '\n', '\r']) {
                self.out.push('"');
                self.out.push_str(&cell.replace('"', "\"\""));
                self.out.push('"');
            } else {
                self.out.push_str(cell);
            }
        }
        self.out.push_str("\r\n");
    }
}

const RUN: [&str; 9] =
    ["scenario", "contender", "algorithm", "datapath", "repeat", "attempt", "seed", "started_at", "status"];

fn run_cells(results: &Results, run: &Run) -> Vec<String> {
    let contender = results.header.contenders.iter().find(|c| c.name == run.contender);
    let datapath = contender.map(|c| c.datapath.name().to_owned());
    vec![
        run.scenario.clone(),
        run.contender.clone(),
        contender.map(|c| c.algorithm.clone()).unwrap_or_default(),
        datapath.unwrap_or_default(),
        run.repeat.to_string(),
        run.attempt.to_string(),
        run.seed.to_string(),
        run.started_at.clone(),
        if matches!(run.outcome, RunOutcome::Ok(_)) { "ok" } else { "failed" }.into(),
    ]
}

/// Names of the swept parameters, over all scenarios.
fn parameters(results: &Results) -> Vec<&String> {
    let mut keys: Vec<&String> = results.header.scenarios.iter().flat_map(|s| s.parameters.keys()).collect();
    keys.sort();
    keys.dedup();
    keys
}

const FLOW: [&str; 13] = [
    "flow",
    "background",
    "start_ms",
    "end_ms",
    "acked_bytes",
    "throughput_bps",
    "rtt_mean_us",
    "rtt_p50_us",
    "rtt_p95_us",
    "rtt_p99_us",
    "min_rtt_us",
    "lost_pkts",
    "retransmitted_pkts",
];

fn flow_cells(flow: &FlowResult) -> Vec<String> {
    let numbers = [
        flow.start_ms,
        flow.end_ms,
        flow.acked_bytes,
        flow.throughput_bps,
        flow.rtt_us.mean,
        flow.rtt_us.p50,
        flow.rtt_us.p95,
        flow.rtt_us.p99,
        flow.min_rtt_us,
        flow.lost_pkts,
        flow.retransmitted_pkts,
    ];
    [flow.name.clone(), flow.background.clone().unwrap_or_default()]
        .into_iter()
        .chain(numbers.map(|n| n.to_string()))
        .collect()
}

const MEASURED: [&str; 19] = [
    "link_departed_pkts",
    "link_dropped_pkts",
    "link_lost_pkts",
    "link_marked_pkts",
    "queue_mean_us",
    "queue_p50_us",
    "queue_p95_us",
    "queue_p99_us",
    "completions",
    "completions_unfinished",
    "convergence_ms",
    "cpu_user_ms",
    "cpu_system_ms",
    "cpu_softirq_ms",
    "cpu_idle_ms",
    "agent_reports",
    "agent_faults",
    "agent_unsteered_flows",
    "wall_ms",
];

fn measured_cells(run: &Run, m: &RunFigures, warmup_ms: u64) -> Vec<String> {
    let (link, queue) = (m.link, m.link.map(|l| l.queue_delay_us));
    let converged = match convergence(m) {
        Some(Convergence::After(ms)) => ms.to_string(),
        Some(Convergence::Never) => "never".into(),
        None => String::new(),
    };
    let mut cells: Vec<String> = METRICS
        .iter()
        .map(|metric| value(*metric, m, warmup_ms).map(|v| format!("{v:.0}")).unwrap_or_default())
        .collect();
    let some = |n: Option<u64>| n.map(|n| n.to_string()).unwrap_or_default();
    cells.extend(
        [
            link.map(|l| l.departed_pkts),
            link.map(|l| l.dropped_pkts),
            link.map(|l| l.lost_pkts),
            link.map(|l| l.marked_pkts),
            queue.map(|q| q.mean),
            queue.map(|q| q.p50),
            queue.map(|q| q.p95),
            queue.map(|q| q.p99),
            m.completions.as_ref().map(|c| c.flows.len() as u64),
            m.completions.as_ref().map(|c| c.unfinished),
        ]
        .map(some),
    );
    cells.push(converged);
    cells.extend(
        [
            m.cpu.map(|c| c.user_ms),
            m.cpu.map(|c| c.system_ms),
            m.cpu.map(|c| c.softirq_ms),
            m.cpu.map(|c| c.idle_ms),
            m.agent.map(|a| a.reports),
            m.agent.map(|a| a.faults),
            m.agent.map(|a| a.unsteered_flows),
            Some(run.wall_ms),
        ]
        .map(some),
    );
    cells
}

/// The metrics' names as the plan has them: `throughput_bps`.
fn metric_names() -> Vec<String> {
    let name = |m| serde_json::to_value(m).ok().and_then(|v| v.as_str().map(str::to_owned));
    METRICS.iter().filter_map(name).collect()
}

/// One row for each run and flow; the run's own figures (prefix `run_`) are the same in each of its rows. A run without long flows, or
/// failed, has one row.
pub fn runs(results: &Results) -> String {
    let parameters = parameters(results);
    let columns = RUN
        .iter()
        .map(|c| (*c).to_owned())
        .chain(parameters.iter().map(|p| (*p).clone()))
        .chain(FLOW.iter().map(|c| (*c).to_owned()))
        .chain(
            metric_names()
                .into_iter()
                .chain(MEASURED.iter().map(|c| (*c).to_owned()))
                .map(|c| format!("run_{c}")),
        )
        .chain(["error".to_owned()]);
    let mut csv = Csv::new(columns);
    let figures = METRICS.len() + MEASURED.len();
    for run in &results.runs {
        let scenario = results.header.scenarios.iter().find(|s| s.name == run.scenario);
        let swept = parameters
            .iter()
            .map(|p| scenario.and_then(|s| s.parameters.get(*p)).cloned().unwrap_or_default());
        let start: Vec<String> = run_cells(results, run).into_iter().chain(swept).collect();
        let mut row = |flow: Vec<String>, figures: &[String], error: &str| {
            csv.row(start.iter().chain(&flow).chain(figures).map(String::as_str).chain([error]));
        };
        let no_flow = || vec![String::new(); FLOW.len()];
        match &run.outcome {
            RunOutcome::Failed { error } => row(no_flow(), &vec![String::new(); figures], error),
            RunOutcome::Ok(m) => {
                let of_run = measured_cells(run, m, results.header.plan.warmup_ms);
                if m.flows.is_empty() {
                    row(no_flow(), &of_run, "");
                }
                m.flows.iter().for_each(|flow| row(flow_cells(flow), &of_run, ""));
            }
        }
    }
    csv.out
}

fn good_runs(results: &Results) -> impl Iterator<Item = (&Run, &RunFigures)> {
    results.runs.iter().filter_map(|run| match &run.outcome {
        RunOutcome::Ok(m) => Some((run, m.as_ref())),
        RunOutcome::Failed { .. } => None,
    })
}

/// One row for each sample of each flow.
pub fn series(results: &Results) -> String {
    let mut csv = Csv::new([
        "scenario",
        "contender",
        "repeat",
        "flow",
        "t_ms",
        "throughput_bps",
        "srtt_us",
        "cwnd_pkts",
        "pacing_bps",
    ]);
    for (run, measured) in good_runs(results) {
        let repeat = run.repeat.to_string();
        for flow in &measured.flows {
            let s = &flow.series;
            for (i, t_ms) in s.t_ms.iter().enumerate() {
                let cell = |column: &[u64]| column.get(i).map(u64::to_string).unwrap_or_default();
                let columns = [&s.throughput_bps, &s.srtt_us, &s.cwnd_pkts, &s.pacing_bps].map(|c| cell(c));
                let start =
                    [&run.scenario, &run.contender, &repeat, &flow.name, &t_ms.to_string()].map(String::from);
                csv.row(start.iter().chain(&columns));
            }
        }
    }
    csv.out
}

/// One row for each short flow that completed.
pub fn completions(results: &Results) -> String {
    let mut csv =
        Csv::new(["scenario", "contender", "repeat", "distribution", "start_us", "bytes", "fct_us"]);
    for (run, measured) in good_runs(results) {
        let repeat = run.repeat.to_string();
        if let Some(completions) = &measured.completions {
            for c in &completions.flows {
                csv.row([
                    &run.scenario,
                    &run.contender,
                    &repeat,
                    &completions.distribution,
                    &c.start_us.to_string(),
                    &c.bytes.to_string(),
                    &c.fct_us.to_string(),
                ]);
            }
        }
    }
    csv.out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_are_quoted_where_they_must_be() {
        let mut csv = Csv::new(["a", "b"]);
        csv.row(["x,y", "say \"z\"\nplease"]);
        assert_eq!(csv.out, "a,b\r\n\"x,y\",\"say \"\"z\"\"\nplease\"\r\n");
    }

    #[test]
    fn metrics_have_the_names_of_plans() {
        assert_eq!(metric_names().len(), METRICS.len());
        assert_eq!(metric_names()[0], "throughput_bps");
    }
}
