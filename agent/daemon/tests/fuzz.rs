//! Fuzz target: no text panics the parser of configurations, what it takes reads back as itself, and a refusal points into
//! the text.
//!
//! `cargo test` runs it for a second, or for `BOLERO_RANDOM_TEST_TIME_MS`; with cargo-bolero,
//! `cargo bolero test -p ccplane --test fuzz configurations` runs it guided by coverage.
#![allow(clippy::unwrap_used, missing_docs)]

use std::path::Path;

use ccplane::config::{Config, DEFAULT_TOML};
use ccplane_document::DocumentError;

/// Longest text, bytes: what is mutated grows.
const MAX_BYTES: usize = 1 << 14;

/// What the defaults leave out.
const FULL: &str = r#"
default_algorithm = "reno"
[control]
socket = "/run/x.sock"
[metrics]
listen = "127.0.0.1:9"
[[rule]]
algorithm = "cubic"
remote_port = "80-90"
remote = "10.0.0.0/8"
[[rule]]
algorithm = "aurora"
local_port = 5001
cgroup = "/x"
"#;

/// Whether it is a configuration.
fn check(text: &str) -> bool {
    match Config::parse(Path::new("c.toml"), text, None) {
        Ok(config) => {
            let again = toml::to_string(&config).unwrap();
            assert_eq!(Config::parse(Path::new("c.toml"), &again, None).unwrap(), config, "{again}");
            true
        }
        Err(DocumentError::Invalid { line, column, text: shown, .. }) => {
            assert_eq!(text.lines().nth(line - 1).unwrap_or_default(), shown);
            assert!(column <= shown.chars().count() + 1, "{line}:{column}");
            false
        }
        Err(other) => panic!("{other}"),
    }
}

#[test]
fn configurations() {
    let good = [DEFAULT_TOML, FULL];
    good.iter().for_each(|text| assert!(check(text), "{:?}", Config::parse(Path::new("c"), text, None)));
    bolero::check!().for_each(|input: &[u8]| {
        check(&String::from_utf8_lossy(input));
        // A good one with pieces of its own text put elsewhere: (where, from where, how much) each.
        let Some((which, changes)) = input.split_first() else { return };
        let mut bytes = good[usize::from(*which) % good.len()].as_bytes().to_vec();
        for change in changes.chunks_exact(5) {
            let at = |a, b| usize::from(u16::from_le_bytes([a, b])) % bytes.len();
            let (to, from, len) =
                (at(change[0], change[1]), at(change[2], change[3]), usize::from(change[4]));
            let piece = bytes[from..bytes.len().min(from + len)].to_vec();
            let end = bytes.len().min(to + len / 2);
            bytes.splice(to..end, piece);
            bytes.truncate(MAX_BYTES);
            if bytes.is_empty() {
                return;
            }
        }
        check(&String::from_utf8_lossy(&bytes));
    });
}
