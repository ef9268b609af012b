//! Algorithms in the simulated datapath, one flow each or several, as `ccplane sim` runs them.

use ccplane_alg::Algorithm;
use ccplane_contract::FlowId;
use ccplane_netsim::LinkConfig;
use ccplane_results::Flow;
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

/// A flow, and what no kernel tells of one.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Simulated {
    /// The algorithm's name.
    pub(crate) algorithm: String,
    /// As results have it.
    pub(crate) flow: Flow,
    /// Reports that its program sent.
    pub(crate) reports: u64,
    /// Saturations and divisions by zero in its programs.
    pub(crate) faults: u64,
}

/// Runs the scenario to its end.
///
/// # Errors
/// An algorithm that there is not, or a number outside its limits.
pub(crate) fn run(
    scenario: &Scenario,
    algorithms: &[Arc<dyn Algorithm>],
) -> Result<Vec<Simulated>, SimulateError> {
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
    Ok(flows.map(|((name, algorithm), id)| simulated(name, algorithm, &done.datapath, *id)).collect())
}

fn simulated(name: &str, algorithm: &str, sim: &SimDatapath, id: FlowId) -> Simulated {
    let stats = sim.stats(id);
    Simulated {
        algorithm: algorithm.to_owned(),
        flow: Flow { name: name.to_owned(), ..sim::measured(sim, id, 0, 0) },
        reports: stats.as_ref().map_or(0, |s| s.reports),
        faults: stats.as_ref().map_or(0, |s| s.faults),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ccplane_netsim::{Capacity, QueueLimit};

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
        for Simulated { flow, reports, .. } in &flows {
            let bit_per_s = flow.acked_bytes * 8 / 10;
            assert!((10_500_000..=12_000_000).contains(&bit_per_s), "{}: {bit_per_s}", flow.name);
            assert!(flow.min_rtt_us >= 40_000 && *reports > 0);
            assert!(flow.series.t_ms.len() >= 95);
        }
        assert_eq!(flows, run(&scenario(), &ccplane_algs::all()).unwrap());
    }

    #[test]
    fn flows_that_share_a_link_share_its_rate() {
        let flows = run(&Scenario { shared: true, ..scenario() }, &ccplane_algs::all()).unwrap();
        let bit_per_s = flows.iter().map(|f| f.flow.acked_bytes).sum::<u64>() * 8 / 10;
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
}
