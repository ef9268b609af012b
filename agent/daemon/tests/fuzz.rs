//! Fuzz target: no text panics the parser of configurations, what it takes reads back as itself, and a refusal points into
//! the text.
//!
//! `cargo test` runs it for a second, or for `BOLERO_RANDOM_TEST_TIME_MS`; with cargo-bolero,
//! `cargo bolero test -p ccplane --test fuzz configurations` runs it guided by coverage.
#![allow(clippy::unwrap_used, missing_docs)]

#[path = "../../document/tests/support/mod.rs"]
mod documents;

use std::path::Path;

use ccplane::config::{Config, DEFAULT_TOML};

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
        Err(refusal) => {
            documents::points_into(text, &refusal);
            false
        }
    }
}

#[test]
fn configurations() {
    let good = [DEFAULT_TOML, FULL];
    good.iter().for_each(|text| assert!(check(text), "{:?}", Config::parse(Path::new("c"), text, None)));
    bolero::check!().for_each(|input: &[u8]| {
        check(&String::from_utf8_lossy(input));
        if let Some(text) = documents::spliced(&good, input) {
            check(&text);
        }
    });
}
