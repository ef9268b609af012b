//! The same algorithm on the same link achieves the same in the simulator and in the kernel: throughput within 3 %,
//! mean RTT within 5 %.
#![allow(clippy::unwrap_used)]

mod emulated;
mod harness;
mod simulated;

use ccplane_netsim::trace::Trace;
use ccplane_testing::{missed, tried, within_tries};
use emulated::emulate;
use harness::{Capacity, Error, Outcome, Scenario};
use simulated::simulate;
use std::path::Path;

const THROUGHPUT_TOLERANCE: f64 = 0.03;
const RTT_TOLERANCE: f64 = 0.05;
/// A busy machine holds packets up. What looks wrong at first is run again, at most so often, and must be right so many times.
const ROUNDS: u32 = 6;
const AGREED: usize = 2;

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

/// Else by how much they differ.
fn agree((throughput, rtt): (f64, f64)) -> Result<(), String> {
    if (throughput - 1.0).abs() <= THROUGHPUT_TOLERANCE && (rtt - 1.0).abs() <= RTT_TOLERANCE {
        return Ok(());
    }
    let [throughput, rtt] = [throughput, rtt].map(|ratio| (ratio - 1.0) * 100.0);
    Err(format!("the kernel has {throughput:+.2} % throughput, {rtt:+.2} % mean RTT"))
}

#[test]
fn the_simulator_agrees_with_the_kernel() {
    let scenarios = scenarios();
    let kernel = match emulate(&scenarios, "a") {
        Err(Error::Missing(what)) => {
            ccplane_testing::skipped("the_simulator_agrees_with_the_kernel", what);
            return;
        }
        outcomes => outcomes.unwrap(),
    };
    let mut doubtful: Vec<(Scenario, usize)> = Vec::new();
    for (scenario, outcome) in scenarios.into_iter().zip(kernel) {
        match agree(ratios(&scenario, &outcome)) {
            Ok(()) => tried(&scenario.name, 1, 1 + ROUNDS),
            Err(measured) => {
                missed(&scenario.name, 1, 1 + ROUNDS, measured);
                doubtful.push((scenario, 0));
            }
        }
    }
    for round in 0..ROUNDS {
        if doubtful.is_empty() {
            return;
        }
        let again: Vec<Scenario> = doubtful.iter().map(|(scenario, _)| scenario.clone()).collect();
        for ((scenario, agreed), outcome) in doubtful.iter_mut().zip(emulate(&again, "b").unwrap()) {
            match agree(ratios(scenario, &outcome)) {
                Ok(()) => *agreed += 1,
                Err(measured) => missed(&scenario.name, 2 + round, 1 + ROUNDS, measured),
            }
        }
        for (scenario, _) in doubtful.extract_if(.., |(_, agreed)| *agreed == AGREED) {
            tried(&scenario.name, 2 + round, 1 + ROUNDS);
        }
    }
    let names: Vec<&str> = doubtful.iter().map(|(scenario, _)| scenario.name.as_str()).collect();
    assert!(names.is_empty(), "not {AGREED} times in {ROUNDS}: {names:?}");
}

#[test]
fn what_there_is_not_is_refused() {
    let scenario = Scenario { algorithm: "nothing".into(), ..scenarios().remove(0) };
    assert_eq!(simulate(&scenario).unwrap_err().to_string(), "no algorithm `nothing`");
    assert!(matches!(emulate(&[scenario], "c"), Err(Error::NoAlgorithm(_))));
}

/// Behind room for one packet half of each pair would be lost: a flow whose queue is short leaves in single segments.
#[test]
fn a_paced_flow_fills_a_link_whose_queue_holds_one_packet() {
    const CHECK: &str = "a_paced_flow_fills_a_link_whose_queue_holds_one_packet";
    const TRIES: u32 = 4;
    /// In pairs it carries 1 at most.
    const LEAST_MBIT: f64 = 6.0;
    let scenario = Scenario {
        name: "bbr, 12 Mb/s, 20 ms, 1 packet".to_owned(),
        algorithm: "bbr".to_owned(),
        capacity: Capacity::Rate(12_000_000),
        one_way_delay_us: 10_000,
        queue_packets: 1,
        from_us: 2_000_000,
        until_us: 8_000_000,
    };
    within_tries(CHECK, TRIES, |n| match emulate(std::slice::from_ref(&scenario), &format!("d{n}")) {
        Err(Error::Missing(what)) => {
            ccplane_testing::skipped(CHECK, what);
            Ok(())
        }
        outcomes => {
            let mbit = outcomes.unwrap()[0].throughput_bit_per_s(&scenario) / 1e6;
            if mbit > LEAST_MBIT { Ok(()) } else { Err(format!("{mbit:.2} Mb/s of 12")) }
        }
    });
}
