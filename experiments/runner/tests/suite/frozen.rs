//! Links by which algorithms are judged stay as they are: a change of these links has to change these hashes.

use ccplane_runner::plan::{Known, Overrides, Plan, Scenario, shipped};
use sha2::{Digest, Sha256};
use std::path::Path;

/// Says all of a plan that decides what happens on these links, and hashes it.
fn frozen(plan: &Plan, scenarios: &[&Scenario]) -> (String, String) {
    // In words, so that a field that is added to the type changes nothing.
    let link = |s: &&Scenario| format!("{}: {}, {:?}", s.name, s.link, s.traffic);
    let links: Vec<String> = scenarios.iter().map(link).collect();
    let decides = format!("{} {} {links:#?}", plan.duration_ms, plan.seed);
    let digest = Sha256::digest(&decides);
    (digest.iter().take(8).map(|byte| format!("{byte:02x}")).collect(), decides)
}

#[test]
fn links_that_algorithms_are_judged_by_are_frozen() {
    let algorithms = ccplane_algs::all();
    let traces = |name: &str| shipped::trace(Path::new(""), name);
    let known = Known { algorithms: &algorithms, kernel: None, traces: &traces, cellular: None };
    let mut found = Vec::new();
    for name in ["adapt", "adapt-random", "demo"] {
        let plan = shipped::load(name, &known, Overrides::default()).unwrap();
        found.push((name, frozen(&plan, &plan.scenarios.iter().collect::<Vec<_>>())));
    }
    let hashes: Vec<(&str, &str)> = found.iter().map(|(name, (hash, _))| (*name, hash.as_str())).collect();
    let expected =
        [("adapt", "72897e1714d11d3f"), ("adapt-random", "874fe2dd582af7fb"), ("demo", "e17b01bb234f7b39")];
    let links: Vec<&str> = found.iter().map(|(_, (_, links))| links.as_str()).collect();
    assert_eq!(hashes, expected, "{}", links.join("\n"));
}
