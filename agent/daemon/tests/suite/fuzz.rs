//! Fuzz target: no text panics the parser of configurations, what it takes reads back as itself, and a refusal points into
//! the text.
//!
//! `cargo test` runs it for a second, or for `BOLERO_RANDOM_TEST_TIME_MS`; with cargo-bolero,
//! `cargo bolero test -p ccplane-agent --test suite fuzz::any_configuration_reads_back_as_itself_or_is_refused_at_a_place` runs
//! it guided by coverage.

use std::path::Path;

use ccplane_agent::config::{Config, DEFAULT_TOML};
use ccplane_agent::control::Request;
use ccplane_testing::document;
use ccplane_testing::fuzz::{Fuzz, JSON, TOML, shape};

/// Keys that the default configuration leaves out.
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
            document::points_into(text, &refusal);
            false
        }
    }
}

#[test]
fn any_configuration_reads_back_as_itself_or_is_refused_at_a_place() {
    let good = [DEFAULT_TOML, FULL];
    good.iter().for_each(|text| assert!(check(text), "{:?}", Config::parse(Path::new("c"), text, None)));
    bolero::check!().for_each(|input: &[u8]| {
        check(&String::from_utf8_lossy(input));
        if let Some(text) = document::spliced(&good, input) {
            check(&text);
        }
    });
}

#[test]
fn a_drawn_configuration_reads_back_as_itself_or_is_refused_at_a_place() {
    let tokens = [
        "[[rule]]",
        "learn.",
        "mode",
        "keys",
        "agent.",
        "control",
        "socket",
        "limits",
        "max_flows",
        "metrics",
        "algorithm",
        "remote_port",
        "cgroup",
        "parameters",
    ];
    let target = Fuzz::new("config", env!("CARGO_MANIFEST_DIR"))
        .seeds([FULL])
        .tokens(TOML)
        .tokens(tokens)
        .max_bytes(512);
    target.part(2_000).run(|bytes| {
        let text = String::from_utf8_lossy(bytes);
        check(&text);
        match Config::parse(Path::new("c.toml"), &text, None) {
            Ok(config) => config.rules.len() as u64,
            Err(refusal) => document::way(&refusal),
        }
    });
}

#[test]
fn a_control_request_that_is_read_is_written_as_the_same() {
    let tokens = [
        "\"request\"",
        "\"version\"",
        "\"push\"",
        "\"qlog\"",
        "\"set_rules\"",
        "\"snapshot\"",
        "\"slot\"",
        "\"canary\"",
        "\"force\"",
        "\"filter\"",
        "\"rules\"",
        "\"netns\"",
        "\\u0000",
    ];
    let seeds = [
        r#"{"request":"version"}"#,
        r#"{"request":"set_rules","default_algorithm":"reno","rules":[{"algorithm":"cubic","remote_port":443}]}"#,
        r#"{"request":"adopt","from":"cubic","netns":"/x"}"#,
        r#"{"request":"qlog","filter":{}}"#,
        r#"{"request":"push","snapshot":"00ff","slot":1,"canary":0.5,"force":false,"allow_older":true}"#,
        r#"{"request":"rollback","slot":255}"#,
    ];
    let target =
        Fuzz::new("control-request", env!("CARGO_MANIFEST_DIR")).seeds(seeds).tokens(JSON).tokens(tokens);
    target.max_bytes(256).run(|bytes| match serde_json::from_slice::<Request>(bytes) {
        Ok(request) => {
            let again = serde_json::to_vec(&request).unwrap();
            assert_eq!(serde_json::from_slice::<Request>(&again).unwrap(), request);
            shape(&request)
        }
        Err(error) => shape(&error.classify()),
    });
}
