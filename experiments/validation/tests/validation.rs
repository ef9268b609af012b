//! The same algorithm on the same link achieves the same in the simulator and in the kernel: throughput within 3 %,
//! mean RTT within 5 %.
#![allow(clippy::unwrap_used)]

use ccplane_netsim::trace::Trace;
use ccplane_validation::{Capacity, Error, Outcome, Scenario, emulate, simulate};
use std::path::Path;

const THROUGHPUT_TOLERANCE: f64 = 0.03;
const RTT_TOLERANCE: f64 = 0.05;
/// A busy machine holds packets up. What looks wrong at first is run so many times, and the median counts.
const AGAIN: usize = 3;

fn scenarios() -> Vec<Scenario> {
    let trace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../traces/cellular.up");
    let cellular = Capacity::Trace(Trace::load(&trace).unwrap());
    let links = [
        ("12 Mb/s, 20 ms", Capacity::Rate(12_000_000), 10_000, 30),
        ("24 Mb/s, 40 ms", Capacity::Rate(24_000_000), 20_000, 60),
        ("cellular, 40 ms", cellular, 20_000, 100),
    ];
    let of = |algorithm: &str| {
        links.clone().map(|(name, capacity, one_way_delay_us, queue_packets)| Scenario {
            name: format!("{algorithm}, {name}, {queue_packets} packets"),
            algorithm: algorithm.to_owned(),
            capacity,
            one_way_delay_us,
            queue_packets,
            from_us: 1_000_000,
            until_us: 14_000_000,
        })
    };
    ["reno", "cubic"].into_iter().flat_map(of).collect()
}

/// Throughput and mean RTT of the kernel's flow over those of the simulator's.
fn ratios(scenario: &Scenario, kernel: &Outcome) -> (f64, f64) {
    let sim = simulate(scenario).unwrap();
    let throughput = kernel.throughput_bit_per_s(scenario) / sim.throughput_bit_per_s(scenario);
    let rtt = kernel.mean_rtt_us(scenario) / sim.mean_rtt_us(scenario);
    eprintln!(
        "{}: throughput {:.2} Mb/s, {:+.2} %; mean RTT {:.1} ms, {:+.2} % of the simulator's",
        scenario.name,
        kernel.throughput_bit_per_s(scenario) / 1e6,
        (throughput - 1.0) * 100.0,
        kernel.mean_rtt_us(scenario) / 1e3,
        (rtt - 1.0) * 100.0,
    );
    (throughput, rtt)
}

fn agree((throughput, rtt): (f64, f64)) -> bool {
    (throughput - 1.0).abs() <= THROUGHPUT_TOLERANCE && (rtt - 1.0).abs() <= RTT_TOLERANCE
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

#[test]
fn the_simulator_agrees_with_the_kernel() {
    let scenarios = scenarios();
    let kernel = match emulate(&scenarios, "a") {
        Err(Error::Missing(what)) => {
            eprintln!("SKIPPED: the_simulator_agrees_with_the_kernel: {what}");
            return;
        }
        outcomes => outcomes.unwrap(),
    };
    let doubtful: Vec<Scenario> = scenarios
        .into_iter()
        .zip(kernel)
        .filter(|(scenario, outcome)| !agree(ratios(scenario, outcome)))
        .map(|(scenario, _)| scenario)
        .collect();
    if doubtful.is_empty() {
        return;
    }
    eprintln!("again, {AGAIN} times each:");
    let again: Vec<Scenario> = doubtful.iter().flat_map(|s| vec![s.clone(); AGAIN]).collect();
    let seen: Vec<(f64, f64)> =
        again.iter().zip(emulate(&again, "b").unwrap()).map(|(s, o)| ratios(s, &o)).collect();
    for (scenario, runs) in doubtful.iter().zip(seen.chunks(AGAIN)) {
        let of = |pick: fn(&(f64, f64)) -> f64| median(runs.iter().map(pick).collect());
        let medians = (of(|r| r.0), of(|r| r.1));
        assert!(agree(medians), "{}: throughput, RTT {medians:.4?} of the simulator's", scenario.name);
    }
}

#[test]
fn what_there_is_not_is_refused() {
    let scenario = Scenario { algorithm: "nothing".into(), ..scenarios().remove(0) };
    assert_eq!(simulate(&scenario).unwrap_err().to_string(), "no algorithm `nothing`");
    assert!(matches!(emulate(&[scenario], "c"), Err(Error::NoAlgorithm(_))));
}
