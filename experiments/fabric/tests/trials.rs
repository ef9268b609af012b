//! Trials of small fabrics: what programs on packets are worth there, that nothing reorders, and that a seed decides everything.
#![allow(clippy::unwrap_used)]

use ccplane_alg::{Algorithm, Control, Flow, FlowInfo, ProgramSource, Report};
use ccplane_algs::{
    Demotions, LeastLoaded, Path, PathInAgent, Pias, Size, SizeInAgent, SizeThresholds, THRESHOLDS,
};
use ccplane_core::NATIVE;
use ccplane_fabric::{Fabric, PathOracle, Trial, TrialOutcome, Uplinks};
use ccplane_netsim::workload::recorded::{Recording, Unit};
use ccplane_netsim::workload::{FlowSizes, PPM, Playback, Split, Structure};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Web search flows of up to 5 MB between eight hosts at 10 Gb/s.
fn trial(predictable_ppm: u32, flows: usize, seed: u64) -> Trial {
    Trial {
        fabric: Fabric::new(8, 10_000_000_000),
        sizes: FlowSizes::web_search().at_most(5_000_000),
        load_ppm: 700_000,
        structure: Structure::new(8, predictable_ppm),
        playback: None,
        split: Split::Validation,
        seed,
        warm_up_flows: 20,
        flows,
        omniscient: None,
    }
}

fn over(uplinks: Uplinks, flows: usize, seed: u64) -> Trial {
    let mut trial = trial(0, flows, seed);
    uplinks.apply(&mut trial.fabric);
    trial
}

fn run(trial: &Trial, algorithm: impl Algorithm + 'static) -> TrialOutcome {
    let algorithm: Arc<dyn Algorithm> = Arc::new(algorithm);
    let name = algorithm.name();
    trial.run(&[algorithm], name).unwrap()
}

/// The mean logarithm (base 2) of completion times of flows of at least so many bytes.
fn mean_log2(outcome: &TrialOutcome, at_least_bytes: u64) -> f64 {
    let of = outcome.completions.iter().filter(|flow| flow.arrival.bytes >= at_least_bytes);
    let logs: Vec<f64> = of.map(|flow| (flow.completion_ns.unwrap() as f64).log2()).collect();
    logs.iter().sum::<f64>() / logs.len() as f64
}

/// Returns the ratio of times that flows take in one outcome and in another.
fn ratio(of: &TrialOutcome, against: &TrialOutcome) -> f64 {
    (mean_log2(of, 0) - mean_log2(against, 0)).exp2()
}

/// The page whose program and algorithm these are.
const PAGE: &str = include_str!("../../../algs/docs/packets.md");

/// The program of the page.
fn small() -> &'static str {
    let block = PAGE.split("```lisp\n").nth(1).unwrap();
    block.split("```").next().unwrap()
}

struct Small;

struct Ended;

impl Algorithm for Small {
    fn name(&self) -> &'static str {
        "small"
    }
    fn programs(&self) -> Vec<ProgramSource> {
        vec![ProgramSource { name: "small", source: small() }]
    }
    fn first(&self, control: &mut Control) {
        control.set_program("small", &[("small", 30_000)]);
    }
    fn flow(&self, _info: &FlowInfo, _control: &mut Control) -> Box<dyn Flow> {
        Box::new(Ended)
    }
}

impl Flow for Ended {
    fn on_report(&mut self, _now_us: u64, report: &Report<'_>, _control: &mut Control) {
        assert!(report.get("bytes").is_some_and(|bytes| bytes > 0));
    }
}

#[test]
fn the_program_of_the_page_serves_small_flows_first() {
    let trial = trial(0, 250, 1);
    let (first, alike) = (run(&trial, Small), trial.run(&[], NATIVE).unwrap());
    let mean_of_small = |outcome: &TrialOutcome| {
        let of = outcome.completions.iter().filter(|flow| flow.arrival.bytes <= 30_000);
        let logs: Vec<f64> = of.map(|flow| (flow.completion_ns.unwrap() as f64).log2()).collect();
        assert!(logs.len() > 50, "{}", logs.len());
        logs.iter().sum::<f64>() / logs.len() as f64
    };
    assert!(mean_of_small(&first) < mean_of_small(&alike));
    assert!(first.counters.reports > 0 && first.counters.panics == 0, "{:?}", first.counters);
    assert_eq!(first.overtaking, 0);
}

#[test]
fn a_seed_decides_every_bit_and_another_seed_other_ones() {
    for uplinks in [Uplinks::Even, Uplinks::Failed] {
        let first = run(&over(uplinks, 60, 1), Path::default());
        assert_eq!(first, run(&over(uplinks, 60, 1), Path::default()));
        assert_ne!(first.digest, run(&over(uplinks, 60, 2), Path::default()).digest);
    }
}

#[test]
fn no_packet_overtakes_one_of_its_flow_though_priorities_and_paths_change() {
    let size = run(&trial(PPM, 100, 1), Size::default());
    let even = run(&over(Uplinks::Even, 100, 1), Path::default());
    let failed = run(&over(Uplinks::Failed, 250, 1), Path::default());
    let agent = run(&over(Uplinks::Failed, 250, 1), PathInAgent::new(Arc::new(LeastLoaded)));
    for outcome in [&size, &even, &failed, &agent] {
        assert!(outcome.arrived > 50_000, "{}", outcome.arrived);
        assert_eq!(outcome.overtaking, 0);
    }
    // The runs are no runs of packets that are all alike.
    let alike = over(Uplinks::Even, 100, 1).run(&[], NATIVE).unwrap();
    assert!(even.digest != alike.digest && failed.digest != even.digest);
}

#[test]
fn recorded_flows_cross_a_fabric_in_their_own_sizes() {
    let recording = include_str!("../../traces/recordings/shuffle.jsonl");
    let recording = Recording::parse(recording).unwrap();
    let sizes: Vec<u64> = recording.transfers(Unit::Connection).iter().map(|t| t.bytes).collect();
    let playback = Some(Playback::new(&recording).unwrap());
    let trial = Trial { playback, ..trial(0, 120, 1) };
    let outcome = run(&trial, Size::default());
    assert_eq!(outcome.completions.len(), 120);
    for flow in &outcome.completions {
        assert!(flow.completion_ns.is_some() && sizes.contains(&flow.arrival.bytes), "{flow:?}");
    }
    assert_eq!(outcome, run(&trial, Size::default()));
    assert_eq!(outcome.overtaking, 0);
}

#[test]
fn where_sizes_repeat_the_network_in_the_datapath_is_better_than_in_an_agent_that_takes_its_time() {
    let mut trial = trial(PPM, 250, 1);
    trial.fabric.hosts.agent_latency_us = 2_000;
    let (datapath, agent) = (run(&trial, Size::default()), run(&trial, SizeInAgent::shipped().unwrap()));
    let found = ratio(&datapath, &agent);
    assert!(found < 0.98, "{found}");
}

#[test]
fn without_thresholds_of_the_prediction_flows_take_exactly_as_long_as_under_pias() {
    let demotions = Demotions::default();
    let predicted_q16 = [SizeThresholds::NEVER; THRESHOLDS];
    let trial = trial(0, 120, 1);
    let size = run(&trial, Size::new(SizeThresholds { demotions, predicted_q16 }));
    assert_eq!(size.completions, run(&trial, Pias { demotions }).completions);
    assert_ne!(size.completions, trial.run(&[], NATIVE).unwrap().completions);
}

#[test]
fn where_an_uplink_fails_the_network_in_the_datapath_is_better_than_in_the_agent_and_than_hashes() {
    let trial = over(Uplinks::Failed, 250, 1);
    let path = run(&trial, Path::default());
    let to_agent = ratio(&path, &run(&trial, PathInAgent::shipped().unwrap()));
    let to_hashes = ratio(&path, &trial.run(&[], NATIVE).unwrap());
    assert!(to_agent < 0.95 && to_hashes < 0.95, "{to_agent} {to_hashes}");
}

#[test]
fn an_oracle_of_paths_leaves_each_flow_one_path_that_is_not_down() {
    let mut trial = over(Uplinks::Failed, 250, 1);
    let hashes = trial.run(&[], NATIVE).unwrap();
    let mut run = |foresees| {
        trial.omniscient = Some(PathOracle { uplinks: Uplinks::Failed, foresees });
        let oracle = trial.run(&[], NATIVE).unwrap();
        assert_eq!(oracle.overtaking, 0);
        assert_eq!(oracle, trial.run(&[], NATIVE).unwrap());
        oracle
    };
    let (foresees, hears) = (run(true), run(false));
    assert!(ratio(&foresees, &hashes) < 0.95, "{}", ratio(&foresees, &hashes));
    // What has started when the link fails is lost to the one that only hears of it.
    assert_ne!(hears.digest, foresees.digest);
    assert!(ratio(&foresees, &hears) < 1.05, "{}", ratio(&foresees, &hears));
    assert!(ratio(&hears, &hashes) < 1.0, "{}", ratio(&hears, &hashes));
}

#[test]
fn a_fabric_of_64_hosts_at_100_gbit_carries_its_flows() {
    let mut large = trial(PPM, 150, 1);
    large.fabric = Fabric::new(64, 100_000_000_000);
    large.structure = Structure::new(64, PPM);
    // So low that all flows end within the longest time of a trial.
    large.load_ppm = 50_000;
    let outcome = run(&large, Size::default());
    assert!(outcome.completions.iter().all(|flow| flow.completion_ns.is_some()));
    let hosts: BTreeSet<usize> = outcome.completions.iter().map(|flow| flow.arrival.from).collect();
    assert!(hosts.len() > 40, "{hosts:?}");
    let shortest =
        |flow: &ccplane_fabric::Completion| large.fabric.ideal_ns(flow.arrival.bytes, flow.base_rtt_ns / 2);
    assert!(outcome.completions.iter().all(|flow| flow.completion_ns.unwrap() >= shortest(flow)));
}
