use super::server::{Status, parse};
use super::*;
use crate::control::Counters;
use crate::learning::LearnerView;
use ccplane_contract::{FlowId, Mode, TransportStats};
use ccplane_core::{AlgorithmCounters, DatapathId, FlowCounters};
use std::collections::BTreeSet;

/// The dashboard that packages install.
const DASHBOARD: &str = include_str!("../../../packaging/grafana-dashboard.json");

/// A sampler of one loop that knows one flow, with this many packets delivered.
fn sampler() -> (Sampler, LoopMetrics) {
    let metrics = Metrics::new();
    let of_loop = metrics.of_loop("kernel");
    (Sampler::new(metrics, vec![("kernel", of_loop.clone())], vec![LearnerView::new("aurora")]), of_loop)
}

fn sample(flow: u64, delivered: u64) -> LoopSample {
    let counters = FlowCounters { reports: delivered / 10, program_changes: 1, ..FlowCounters::default() };
    LoopSample {
        flows: vec![FlowSample {
            datapath: "ebpf",
            id: (DatapathId(0), FlowId(flow)),
            algorithm: "cubic",
            mode: Mode::Program,
            transport: TransportStats {
                snd_cwnd: 40,
                srtt_us: 20_000,
                delivered,
                lost: 3,
                bytes_acked: delivered * 1448,
                ..TransportStats::default()
            },
            policy: None,
        }],
        datapaths: vec![DatapathSample { kind: "ebpf", max_flows: 4096, programs: 2, max_programs: 64 }],
        algorithms: [("cubic", AlgorithmCounters { flows_created: 1, flows_closed: 0, flows: counters })]
            .into(),
        counters: Counters { unseen_flows: delivered / 50, ..Counters::default() },
        verdicts: [(("aurora", "promoted"), delivered / 50)].into(),
    }
}

/// The text of all that there is once a loop has turned and a flow was sampled.
fn exported() -> String {
    let (mut sampler, of_loop) = sampler();
    of_loop.record_turn(0, Some(std::time::Duration::from_micros(20)));
    sampler.add(&[Some(sample(1, 100))]);
    sampler.text().unwrap()
}

fn has(text: &str, line: &str) {
    assert!(text.lines().any(|l| l == line), "no `{line}` in\n{text}");
}

#[test]
fn counters_grow_and_levels_follow() {
    let (mut sampler, _) = sampler();
    sampler.add(&[Some(sample(1, 100))]);
    sampler.add(&[Some(sample(1, 150))]);
    let text = sampler.text().unwrap();
    for line in [
        r#"ccplane_packets_delivered_total{datapath="ebpf",algorithm="cubic"} 150"#,
        r#"ccplane_packets_lost_total{datapath="ebpf",algorithm="cubic"} 3"#,
        r#"ccplane_snapshot_decisions_total{algorithm="aurora",verdict="promoted"} 3"#,
        r#"ccplane_acked_bytes_total{datapath="ebpf",algorithm="cubic"} 217200"#,
        r#"ccplane_reports_total{algorithm="cubic"} 15"#,
        "ccplane_flows_unseen_total 3",
        r#"ccplane_program_changes_total{algorithm="cubic"} 1"#,
        r#"ccplane_flows{datapath="ebpf",algorithm="cubic",mode="program"} 1"#,
        r#"ccplane_programs_installed{datapath="ebpf"} 2"#,
        r#"ccplane_loop_up{loop="kernel"} 1"#,
        r#"ccplane_srtt_seconds_count{datapath="ebpf",algorithm="cubic"} 2"#,
        r#"ccplane_cwnd_packets_bucket{le="64.0",datapath="ebpf",algorithm="cubic"} 2"#,
    ] {
        has(&text, line);
    }
    // The flow ends, another one starts.
    sampler.add(&[Some(LoopSample { flows: vec![], ..sample(1, 150) })]);
    assert!(!sampler.text().unwrap().contains("ccplane_flows{"), "no level of what is gone");
    sampler.add(&[Some(sample(2, 30))]);
    has(
        &sampler.text().unwrap(),
        r#"ccplane_packets_delivered_total{datapath="ebpf",algorithm="cubic"} 180"#,
    );
}

#[test]
fn a_loop_that_is_silent_is_down_and_nothing_is_counted_twice() {
    let (mut sampler, of_loop) = sampler();
    of_loop.record_turn(ccplane_channel::clock::now_us(), Some(std::time::Duration::from_micros(20)));
    sampler.add(&[Some(sample(1, 100))]);
    sampler.add(&[None]);
    has(&sampler.text().unwrap(), r#"ccplane_loop_up{loop="kernel"} 0"#);
    sampler.add(&[Some(sample(1, 100))]);
    let text = sampler.text().unwrap();
    has(&text, r#"ccplane_packets_delivered_total{datapath="ebpf",algorithm="cubic"} 100"#);
    has(&text, r#"ccplane_handling_seconds_count{loop="kernel"} 1"#);
}

/// Names of metrics in a text of queries or of samples.
fn names(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
    words.filter(|w| w.starts_with("ccplane_")).map(str::to_owned).collect()
}

#[test]
fn the_dashboard_asks_for_metrics_that_there_are() {
    let text = exported();
    let samples: String = text.lines().filter(|l| !l.starts_with('#')).collect::<Vec<_>>().join("\n");
    let there = names(&samples);

    let dashboard: serde_json::Value = serde_json::from_str(DASHBOARD).unwrap();
    let mut queries = Vec::new();
    collect(&dashboard, &mut queries);
    assert!(queries.len() > 10, "{queries:?}");
    for query in &queries {
        let asked = names(query);
        assert!(!asked.is_empty() && asked.is_subset(&there), "{query}: {asked:?} of {there:?}");
        // Of several agents, those that are chosen.
        let chosen = query.matches("{instance=~\"$instance\"").count();
        assert_eq!(chosen, query.matches("ccplane_").count(), "{query}");
    }
    // And each family has a panel.
    let all = names(&queries.join(" "));
    for family in text.lines().filter_map(|l| l.strip_prefix("# TYPE ")) {
        let family = family.split(' ').next().unwrap();
        assert!(all.iter().any(|asked| asked.starts_with(family)), "no panel shows {family}");
    }
}

/// Every query of a dashboard: its panels' `expr` and its variables' `query`.
fn collect(value: &serde_json::Value, into: &mut Vec<String>) {
    match value {
        serde_json::Value::Object(fields) => {
            for (key, value) in fields {
                match value.as_str() {
                    Some(text) if key == "expr" => into.push(text.to_owned()),
                    _ => collect(value, into),
                }
            }
        }
        serde_json::Value::Array(items) => items.iter().for_each(|v| collect(v, into)),
        _ => {}
    }
}

#[test]
fn requests_are_read_strictly() {
    for (head, status) in [
        ("GET /metrics HTTP/1.1\r\nHost: x", Status::Ok),
        ("GET /metrics?name=a HTTP/1.0", Status::Ok),
        ("HEAD /metrics HTTP/1.1", Status::Ok),
        ("GET / HTTP/1.1", Status::NotFound),
        ("GET /metrics/ HTTP/1.1", Status::NotFound),
        ("POST /metrics HTTP/1.1", Status::NotAllowed),
        ("GET /metrics", Status::Malformed),
        ("GET  /metrics HTTP/1.1", Status::Malformed),
        ("GET /metrics HTTP/2", Status::Malformed),
        ("\u{0}\u{1}", Status::Malformed),
        ("", Status::Malformed),
    ] {
        assert_eq!(parse(head.as_bytes()).0, status, "{head:?}");
    }
    assert!(!parse(b"HEAD /metrics HTTP/1.1").1);
}

/// Packages install alerts beside the dashboard.
#[test]
fn alerts_name_metrics_that_there_are() {
    let text = exported();
    let there: BTreeSet<&str> =
        text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next()).collect();
    let rules = include_str!("../../../packaging/prometheus-rules.yml");
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
    let words = rules.split(|c| !is_part(c));
    let named: BTreeSet<&str> = words.filter(|word| word.starts_with("ccplane_")).collect();
    assert!(named.len() > 5, "{named:?}");
    for name in named {
        let stem = ["_total", "_bucket", "_info"].iter().find_map(|suffix| name.strip_suffix(suffix));
        assert!(there.contains(stem.unwrap_or(name)), "{name} is not among {there:?}");
    }
    let verdict = ccplane_core::Verdict::RolledBack(ccplane_core::Why::Withdrawn).name();
    assert!(rules.contains(&format!("verdict=\"{verdict}\"")), "{verdict}");
}
