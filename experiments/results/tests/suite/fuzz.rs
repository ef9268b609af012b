//! Fuzz target: no file panics the reader; what it reads is, written again, read as the same.
//!
//! `cargo test` runs it for a second, or for `BOLERO_RANDOM_TEST_TIME_MS`; with cargo-bolero,
//! `cargo bolero test -p ccplane-results --test suite fuzz::results_of_any_bytes_are_refused_or_read_back_as_themselves` runs
//! it guided by coverage.

use std::path::Path;

use crate::support::{header, run};
use ccplane_results::{ResultRecord, Results, read_from};
use ccplane_testing::fuzz::{Fuzz, JSON, shape};

fn line(record: &ResultRecord) -> Vec<u8> {
    [serde_json::to_vec(record).unwrap(), vec![b'\n']].concat()
}

fn written(results: &Results) -> Vec<u8> {
    let mut bytes = line(&ResultRecord::Header(Box::new(results.header.clone())));
    results.runs.iter().for_each(|r| bytes.extend(line(&ResultRecord::Run(Box::new(r.clone())))));
    bytes
}

fn check(bytes: &[u8]) {
    if let Ok(results) = read_from(bytes, Path::new("fuzz")) {
        let again = read_from(&written(&results)[..], Path::new("fuzz")).unwrap();
        assert_eq!(again, results);
    }
}

#[test]
fn results_of_any_bytes_are_refused_or_read_back_as_themselves() {
    let good = written(&Results { header: header(), runs: vec![run("a", 0), run("b", 1)] });
    check(&good);
    bolero::check!().for_each(|input: &[u8]| {
        check(input);
        // A good file with bytes changed: (where, what) each.
        let mut bytes = good.clone();
        for change in input.chunks_exact(3) {
            let at = usize::from(u16::from_le_bytes([change[0], change[1]])) % bytes.len();
            bytes[at] = change[2];
        }
        check(&bytes);
    });
}

#[test]
fn drawn_results_are_refused_or_read_back_as_themselves() {
    let tokens = ["\n", "\"record\":", "\"run\"", "\"header\""];
    let good = written(&Results { header: header(), runs: vec![run("a", 0)] });
    let lines: Vec<&[u8]> = good.split_inclusive(|byte| *byte == b'\n').collect();
    let target = Fuzz::new("results", env!("CARGO_MANIFEST_DIR"))
        .seeds([&good[..], lines[0]])
        .tokens(JSON)
        .tokens(tokens);
    target.max_bytes(good.len() + 256).part(2_000).run(|bytes| {
        check(bytes);
        match read_from(bytes, Path::new("fuzz")) {
            Ok(results) => results.runs.len() as u64,
            Err(error) => shape(&error),
        }
    });
}
