//! Fuzz target: no text panics the parser of plans, and a refusal points into the text.
//!
//! `cargo test` runs it for a second, or for `BOLERO_RANDOM_TEST_TIME_MS`; with cargo-bolero,
//! `cargo bolero test -p ccplane-runner --test fuzz plans` runs it guided by coverage.
#![allow(clippy::unwrap_used, missing_docs)]

#[path = "../../../agent/document/tests/support/mod.rs"]
mod documents;

use std::path::Path;

use ccplane_netsim::trace::Trace;
use ccplane_runner::plan::{Known, Overrides, Plan, PlanError, shipped};

fn check(text: &str) {
    let algorithms = ccplane_algs::all();
    let traces = |_: &str| Trace::parse("1\n").map_err(|e| e.to_string());
    let known = Known { algorithms: &algorithms, kernel: None, traces: &traces, cellular: None };
    match Plan::parse(Path::new("p.toml"), text, &known, Overrides::default()) {
        Ok(plan) => assert!(plan.runs() > 0 && plan.warmup_ms < plan.duration_ms),
        Err(PlanError::Refused(refusal)) => documents::points_into(text, &refusal),
        Err(other) => panic!("{other}"),
    }
}

#[test]
fn plans() {
    let good: Vec<&str> = shipped::PLANS.iter().map(|p| p.source).collect();
    good.iter().for_each(|text| check(text));
    bolero::check!().for_each(|input: &[u8]| {
        check(&String::from_utf8_lossy(input));
        if let Some(text) = documents::spliced(&good, input) {
            check(&text);
        }
    });
}
