//! Records that the tests of this crate share.

use std::collections::BTreeMap;

use ccplane_results::{
    AgentUse, Capacity, Completion, Completions, Contender, Cpu, DatagramsUse, Datapath, FabricFlows,
    FlowResult, Header, Host, LinkRecord, LinkUse, Percentiles, Plan, Run, RunFigures, RunOutcome,
    SCHEMA_VERSION, Scenario, Series, StateChange, Stretch,
};
use proptest::prelude::*;

pub fn header() -> Header {
    Header {
        schema: SCHEMA_VERSION,
        plan: Plan { name: "p".into(), source: "[[link]]\n\"x\"".into(), repeats: 2, ..Plan::default() },
        scenarios: vec![Scenario {
            name: "s".into(),
            parameters: BTreeMap::from([("link.rate_mbit".into(), "24".into())]),
            link: LinkRecord {
                capacity: vec![Capacity { t_ms: 0, capacity_bps: 24_000_000 }],
                ..LinkRecord::default()
            },
            traffic: "one bulk flow".into(),
        }],
        contenders: vec![Contender {
            name: "a".into(),
            algorithm: "reno".into(),
            datapath: Datapath::Ebpf,
            parameters: BTreeMap::from([("beta".into(), -1)]),
            learning: true,
        }],
        host: Host::default(),
    }
}

pub fn run(contender: &str, repeat: u32) -> Run {
    Run {
        scenario: "s".into(),
        contender: contender.into(),
        repeat,
        attempt: 1,
        seed: u64::MAX,
        started_at: "2026-01-02T03:04:05Z".into(),
        wall_ms: 1,
        outcome: RunOutcome::Failed { error: "cut\nshort".into() },
    }
}

fn any_percentiles() -> impl Strategy<Value = Percentiles> {
    any::<[u64; 4]>().prop_map(|[mean, p50, p95, p99]| Percentiles { mean, p50, p95, p99 })
}

fn any_flow() -> impl Strategy<Value = FlowResult> {
    let columns = proptest::collection::vec(any::<[u64; 5]>(), 0..4);
    (any::<(String, Option<String>, [u64; 7])>(), any_percentiles(), columns).prop_map(
        |((name, background, n), rtt_us, rows)| {
            let column = |i: usize| rows.iter().map(|row| row[i]).collect();
            FlowResult {
                name,
                background,
                start_ms: n[0],
                end_ms: n[1],
                acked_bytes: n[2],
                throughput_bps: n[3],
                rtt_us,
                min_rtt_us: n[4],
                lost_pkts: n[5],
                retransmitted_pkts: n[6],
                series: Series {
                    t_ms: column(0),
                    throughput_bps: column(1),
                    srtt_us: column(2),
                    cwnd_pkts: column(3),
                    pacing_bps: column(4),
                },
                states: rows
                    .iter()
                    .map(|row| StateChange { t_ms: row[0], state: row[1].to_string() })
                    .collect(),
            }
        },
    )
}

fn any_stretch() -> impl Strategy<Value = Stretch> {
    (any::<[u64; 3]>(), any::<Option<u64>>()).prop_map(|(n, reached_ms)| Stretch {
        from_ms: n[0],
        to_ms: n[1],
        reward_ppm: n[2],
        reached_ms,
    })
}

fn any_measured() -> impl Strategy<Value = RunFigures> {
    let completion =
        || any::<[u64; 3]>().prop_map(|[start_us, bytes, fct_us]| Completion { start_us, bytes, fct_us });
    let completions = || {
        (any::<String>(), proptest::collection::vec(completion(), 0..3), any::<u64>())
            .prop_map(|(distribution, flows, unfinished)| Completions { distribution, flows, unfinished })
    };
    let datagrams = any::<[u64; 2]>().prop_map(|[sent, delivered]| DatagramsUse { sent, delivered });
    let numbers = || proptest::collection::vec(any::<u64>(), 0..4);
    let fabric = (numbers(), numbers(), numbers(), any::<u64>()).prop_map(
        |(bytes, fct_ns, unfinished, dropped_pkts)| FabricFlows { bytes, fct_ns, unfinished, dropped_pkts },
    );
    let link = (any::<[u64; 5]>(), any_percentiles()).prop_map(|(n, queue_delay_us)| LinkUse {
        utilisation_ppm: n[0],
        departed_pkts: n[1],
        dropped_pkts: n[2],
        lost_pkts: n[3],
        marked_pkts: n[4],
        queue_delay_us,
    });
    (
        proptest::option::of(link),
        proptest::collection::vec(any_flow(), 0..3),
        proptest::option::of(completions()),
        proptest::option::of(completions()),
        proptest::collection::vec(datagrams, 0..3),
        any::<Option<[u64; 4]>>(),
        any::<Option<[u64; 3]>>(),
        any::<Vec<String>>(),
        any::<bool>(),
        proptest::collection::vec(any_stretch(), 0..3),
        proptest::option::of(fabric),
    )
        .prop_map(
            |(
                link,
                flows,
                completions,
                background_completions,
                datagrams,
                cpu,
                agent,
                notes,
                iperf3,
                stretches,
                fabric,
            )| RunFigures {
                background_completions,
                datagrams,
                stretches,
                fabric,
                link,
                flows,
                completions,
                cpu: cpu.map(|[user_ms, system_ms, softirq_ms, idle_ms]| Cpu {
                    user_ms,
                    system_ms,
                    softirq_ms,
                    idle_ms,
                }),
                agent: agent.map(|[reports, faults, unsteered_flows]| AgentUse {
                    reports,
                    faults,
                    unsteered_flows,
                }),
                iperf3: iperf3.then(|| serde_json::json!({ "end": { "sum_sent": { "bytes": 1 } } })),
                notes,
            },
        )
}

pub fn any_run() -> impl Strategy<Value = Run> {
    let outcome = prop_oneof![
        any_measured().prop_map(|m| RunOutcome::Ok(Box::new(m))),
        any::<String>().prop_map(|error| RunOutcome::Failed { error }),
    ];
    (any::<(String, String, u32, u32, u64, String, u64)>(), outcome).prop_map(|(n, outcome)| Run {
        scenario: n.0,
        contender: n.1,
        repeat: n.2,
        attempt: n.3,
        seed: n.4,
        started_at: n.5,
        wall_ms: n.6,
        outcome,
    })
}
