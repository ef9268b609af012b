//! Algorithms in the simulated datapath, as the report shows them: what `sim` runs, and `demo` beside the kernel.

use ccplane_alg::Algorithm;
use ccplane_contract::FlowId;
use ccplane_netsim::trace::Trace;
use ccplane_netsim::{Capacity, LinkConfig};
use ccplane_report::{self as report, Flow, Sample, Totals};
use ccplane_runner::sim::{self, SimFlow, SimulateError, Simulation};
use ccplane_sim::{SimDatapath, Source, Stack};
use std::sync::Arc;

/// Flows of one simulation.
pub(crate) const MAX_FLOWS: usize = 1024;

/// What is simulated.
pub(crate) struct Scenario {
    /// Every flow's link, or the one that they share.
    pub(crate) link: LinkConfig,
    /// Whether all flows share one link.
    pub(crate) shared: bool,
    /// Delay of the way back, microseconds.
    pub(crate) return_delay_us: u64,
    /// How long, milliseconds of virtual time.
    pub(crate) duration_ms: u64,
    /// Between samples, milliseconds.
    pub(crate) sample_every_ms: u64,
    /// Decides random losses.
    pub(crate) seed: u64,
    /// Each flow's name and algorithm; all start at time 0.
    pub(crate) flows: Vec<(String, String)>,
}

/// Runs the scenario to its end.
///
/// # Errors
/// An algorithm that there is not, or a number outside its limits.
pub(crate) fn run(
    scenario: &Scenario,
    algorithms: &[Arc<dyn Algorithm>],
) -> Result<Vec<Flow>, SimulateError> {
    let count = scenario.flows.len();
    if count > MAX_FLOWS {
        return Err(SimulateError::TooMany { found: count, limit: MAX_FLOWS });
    }
    let flow = |((_, algorithm), n): (&(String, String), usize)| SimFlow {
        algorithm: algorithm.clone(),
        // Links of one network are few; their number is checked there.
        link: if scenario.shared { 0 } else { u8::try_from(n).unwrap_or(u8::MAX) },
        source: Source::Bulk,
        start_us: 0,
        stop_us: None,
        extra_delay_us: 0,
        stack: Stack::default(),
    };
    let duration_us = scenario.duration_ms * 1000;
    let simulation = Simulation {
        links: vec![scenario.link.clone(); if scenario.shared { 1 } else { count }],
        flows: scenario.flows.iter().zip(0..).map(flow).collect(),
        sample_every_us: scenario.sample_every_ms * 1000,
        ..Simulation::new(scenario.return_delay_us, duration_us, scenario.seed)
    };
    let done = sim::run(&simulation, algorithms, duration_us, &mut |_| true)?;
    let flows = scenario.flows.iter().zip(&done.flows);
    let shown = |((name, algorithm), id): (&(String, String), &FlowId)| {
        self::flow(name, algorithm, &done.datapath, *id, scenario.duration_ms)
    };
    Ok(flows.map(shown).collect())
}

fn flow(name: &str, algorithm: &str, sim: &SimDatapath, id: FlowId, duration_ms: u64) -> Flow {
    let stats = sim.stats(id);
    let mss_bytes = stats.as_ref().map_or(1, |s| u64::from(s.mss_bytes.max(1)));
    let mut samples = Vec::new();
    let mut before = (0, 0);
    for s in sim.samples(id) {
        let t_ms = s.at_us / 1000;
        let (delivered, elapsed_ms) = (s.delivered - before.1, t_ms - before.0);
        before = (t_ms, s.delivered);
        samples.push(Sample {
            t_ms,
            throughput_bps: (delivered * mss_bytes * 8000).checked_div(elapsed_ms).unwrap_or(0),
            srtt_us: u64::from(s.srtt_us),
            cwnd_pkts: s.cwnd_bytes / mss_bytes,
            pacing_bps: s.pacing_rate.saturating_mul(8),
            acked_bytes: s.bytes_acked,
            lost_pkts: s.lost,
            retransmitted_pkts: s.lost,
        });
    }
    let lost = stats.as_ref().map_or(0, |s| s.lost);
    Flow {
        name: name.to_owned(),
        algorithm: algorithm.to_owned(),
        datapath: report::Datapath::Sim,
        samples,
        totals: Totals {
            duration_ms,
            acked_bytes: stats.as_ref().map_or(0, |s| s.bytes_acked),
            lost_pkts: lost,
            // Every packet that is marked lost is sent again, once.
            retransmitted_pkts: lost,
            min_rtt_us: stats.as_ref().map_or(0, |s| u64::from(s.min_rtt_us)),
            reports: stats.as_ref().map(|s| s.reports),
            program_switches: None,
            faults: stats.as_ref().map(|s| s.faults),
        },
    }
}

/// What a link can carry, on the report's time axis.
pub(crate) fn capacity(capacity: &Capacity, duration_ms: u64) -> Vec<report::Capacity> {
    let (trace, repeat) = match capacity {
        Capacity::Rate { bit_per_s } | Capacity::Slots { bit_per_s } => {
            return vec![report::Capacity { t_ms: 0, capacity_bps: *bit_per_s }];
        }
        Capacity::Trace { trace, repeat } => (trace, *repeat),
    };
    let bins = ccplane_runner::capacity::of_trace(trace, repeat, duration_ms);
    bins.map(|(t_ms, capacity_bps)| report::Capacity { t_ms, capacity_bps }).collect()
}

/// One trace of several stretches, each from its own trace's start.
///
/// # Errors
/// No stretch has an opportunity.
pub(crate) fn concatenate(stretches: &[(Trace, u64)]) -> Result<Trace, ccplane_netsim::trace::TraceError> {
    let mut text = String::new();
    let mut start_ms = 0;
    for (trace, duration_ms) in stretches {
        for at_ms in trace.schedule(true).take_while(|at_ms| at_ms < duration_ms) {
            text.push_str(&format!("{}\n", start_ms + at_ms));
        }
        start_ms += duration_ms;
    }
    Trace::parse(&text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ccplane_netsim::QueueLimit;

    fn scenario() -> Scenario {
        Scenario {
            link: LinkConfig::new(
                Capacity::Rate { bit_per_s: 12_000_000 },
                20_000_000,
                QueueLimit::Packets(60),
            ),
            shared: false,
            return_delay_us: 20_000,
            duration_ms: 10_000,
            sample_every_ms: 100,
            seed: 1,
            flows: vec![("a".into(), "reno".into()), ("b".into(), "cubic".into())],
        }
    }

    #[test]
    fn flows_of_their_own_fill_their_links_and_runs_repeat() {
        let flows = run(&scenario(), &ccplane_algs::all()).unwrap();
        for flow in &flows {
            let bit_per_s = flow.totals.acked_bytes * 8 / 10;
            assert!((10_500_000..=12_000_000).contains(&bit_per_s), "{}: {bit_per_s}", flow.name);
            assert!(flow.totals.min_rtt_us >= 40_000 && flow.totals.reports > Some(0));
            assert!(flow.samples.len() >= 95);
        }
        assert_eq!(flows, run(&scenario(), &ccplane_algs::all()).unwrap());
    }

    #[test]
    fn flows_that_share_a_link_share_its_rate() {
        let flows = run(&Scenario { shared: true, ..scenario() }, &ccplane_algs::all()).unwrap();
        let bit_per_s = flows.iter().map(|f| f.totals.acked_bytes).sum::<u64>() * 8 / 10;
        assert!((10_500_000..=12_000_000).contains(&bit_per_s), "{bit_per_s}");
    }

    #[test]
    fn what_there_is_not_is_refused() {
        let flows = vec![("a".to_owned(), "none".to_owned())];
        let error = run(&Scenario { flows, ..scenario() }, &ccplane_algs::all()).unwrap_err().to_string();
        assert!(error.contains("no algorithm `none`"), "{error}");
        let flows = vec![("a".to_owned(), "reno".to_owned()); MAX_FLOWS + 1];
        assert!(matches!(
            run(&Scenario { flows, ..scenario() }, &[]),
            Err(SimulateError::TooMany { found: 1025, .. })
        ));
    }

    #[test]
    fn stretches_follow_each_other() {
        let one = Trace::parse("2\n4\n").unwrap();
        let two = Trace::parse("3\n").unwrap();
        let both = concatenate(&[(one, 7), (two, 5)]).unwrap();
        assert_eq!(both.opportunities_ms(), [2, 4, 6, 10]);
    }
}
