//! Fuzz target: no text panics the parser of plans, and a refusal points into the text.
//!
//! `cargo test` runs it for a second, or for `BOLERO_RANDOM_TEST_TIME_MS`; with cargo-bolero,
//! `cargo bolero test -p ccplane-runner --test fuzz plans` runs it guided by coverage.
#![allow(clippy::unwrap_used, missing_docs)]

use std::path::Path;

use ccplane_document::DocumentError;
use ccplane_netsim::trace::Trace;
use ccplane_runner::plan::{Known, Overrides, Plan, PlanError, shipped};

fn check(text: &str) {
    let algorithms = ccplane_algs::all();
    let traces = |_: &str| Trace::parse("1\n").map_err(|e| e.to_string());
    let known = Known { algorithms: &algorithms, kernel: None, traces: &traces, cellular: None };
    match Plan::parse(Path::new("p.toml"), text, &known, Overrides::default()) {
        Ok(plan) => assert!(plan.runs() > 0 && plan.warmup_ms < plan.duration_ms),
        Err(PlanError::Refused(DocumentError::Invalid { line, column, text: shown, .. })) => {
            assert_eq!(text.lines().nth(line - 1).unwrap_or_default(), shown);
            assert!(column <= shown.chars().count() + 1, "{line}:{column}");
        }
        Err(other) => panic!("{other}"),
    }
}

#[test]
fn plans() {
    let good: Vec<&str> = shipped::PLANS.iter().map(|p| p.source).collect();
    good.iter().for_each(|text| check(text));
    bolero::check!().for_each(|input: &[u8]| {
        check(&String::from_utf8_lossy(input));
        // A shipped plan with pieces of its own text put elsewhere: (where, from where, how much) each.
        let Some((which, changes)) = input.split_first() else { return };
        let mut bytes = good[usize::from(*which) % good.len()].as_bytes().to_vec();
        for change in changes.chunks_exact(5) {
            let at = |a, b| usize::from(u16::from_le_bytes([a, b])) % bytes.len();
            let (to, from, len) =
                (at(change[0], change[1]), at(change[2], change[3]), usize::from(change[4]));
            let piece = bytes[from..bytes.len().min(from + len)].to_vec();
            let end = bytes.len().min(to + len / 2);
            bytes.splice(to..end, piece);
            bytes.truncate(1 << 14);
            if bytes.is_empty() {
                return;
            }
        }
        check(&String::from_utf8_lossy(&bytes));
    });
}
