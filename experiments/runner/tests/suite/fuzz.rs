//! Fuzz target: no text panics the parser of plans, and a refusal points into the text.
//!
//! `cargo test` runs it for a second, or for `BOLERO_RANDOM_TEST_TIME_MS`; with cargo-bolero,
//! `cargo bolero test -p ccplane-runner --test suite fuzz::any_plan_has_runs_or_is_refused_at_a_place` runs
//! it guided by coverage.

use std::path::Path;

use ccplane_netsim::trace::Trace;
use ccplane_runner::plan::{Known, Overrides, Plan, PlanError, shipped};
use ccplane_testing::document;
use ccplane_testing::fuzz::{Fuzz, TOML};

fn check(text: &str) {
    let algorithms = ccplane_algs::all();
    let traces = |_: &str| Trace::parse("1\n").map_err(|e| e.to_string());
    let known = Known { algorithms: &algorithms, kernel: None, traces: &traces, cellular: None };
    match Plan::parse(Path::new("p.toml"), text, &known, Overrides::default()) {
        Ok(plan) => assert!(plan.runs() > 0 && plan.warmup_ms < plan.duration_ms),
        Err(PlanError::Refused(refusal)) => document::points_into(text, &refusal),
        Err(other) => panic!("{other}"),
    }
}

#[test]
fn any_plan_has_runs_or_is_refused_at_a_place() {
    let good: Vec<&str> = shipped::PLANS.iter().map(|p| p.source).collect();
    good.iter().for_each(|text| check(text));
    bolero::check!().for_each(|input: &[u8]| {
        check(&String::from_utf8_lossy(input));
        if let Some(text) = document::spliced(&good, input) {
            check(&text);
        }
    });
}

#[test]
fn a_drawn_plan_has_runs_or_is_refused_at_a_place() {
    let tokens = [
        "title",
        "duration_s",
        "repeats",
        "link",
        "rate_mbit",
        "delay_ms",
        "queue",
        "algorithm",
        "datapath",
        "\"ebpf\"",
        "\"sim\"",
        "\"kernel\"",
        "traffic",
    ];
    let good = "title = \"t\"\nduration_s = 8\nrepeats = 2\nlink = [{ rate_mbit = 24, delay_ms = 20 }]\n\
                algorithm = [{ algorithm = \"reno\", datapath = \"sim\" }]\n";
    let target = Fuzz::new("plan", env!("CARGO_MANIFEST_DIR"))
        .seeds([good])
        .tokens(TOML)
        .tokens(tokens)
        .max_bytes(512);
    let algorithms = ccplane_algs::all();
    let traces = |_: &str| Trace::parse("1\n").map_err(|e| e.to_string());
    let known = Known { algorithms: &algorithms, kernel: None, traces: &traces, cellular: None };
    target.part(2_000).run(|bytes| {
        let text = String::from_utf8_lossy(bytes);
        match Plan::parse(Path::new("p.toml"), &text, &known, Overrides::default()) {
            Ok(plan) => {
                assert!(plan.runs() > 0 && plan.warmup_ms < plan.duration_ms);
                1
            }
            Err(PlanError::Refused(refusal)) => {
                document::points_into(&text, &refusal);
                document::way(&refusal)
            }
            Err(other) => panic!("{other}"),
        }
    });
}
