//! Results as a plan makes them, from a fluid model in integers: single flows on fixed and cellular links, several flows, short
//! flows, a sweep; with failed, mended and missing runs.

use ccplane_results::{
    AgentUse, Capacity, Change, Comparison, Completion, Completions, Contender, Cpu, Datapath, FlowResult,
    Header, Host, LinkRecord, LinkUse, Metric, PaperFigure, Percentiles, Plan, Results, Run, RunFigures,
    RunOutcome, SCHEMA_VERSION, Scenario, Series, Stretch,
};

pub const REPEATS: u32 = 5;
const DURATION_MS: u64 = 30_000;
const WARMUP_MS: u64 = 3_000;
const SAMPLE_MS: u64 = 100;
const MTU_BYTES: u64 = 1_500;

/// Small whole numbers that look random (splitmix64).
pub struct Dice(pub u64);

impl Dice {
    pub fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % n
    }
}

fn cellular_bps(t_ms: u64) -> u64 {
    let wave = [9, 14, 18, 12, 7, 4, 6, 11][(t_ms / 1_500 % 8) as usize];
    (wave * 2 + (t_ms / 100) * 7_919 % 17 / 2) * 1_000_000
}

fn contender(name: &str, algorithm: &str, datapath: Datapath) -> Contender {
    Contender {
        name: name.into(),
        algorithm: algorithm.into(),
        datapath,
        parameters: Default::default(),
        learning: false,
    }
}

fn scenario(name: &str, description: &str, traffic: &str, rtt_ms: u64, bps: impl Fn(u64) -> u64) -> Scenario {
    let mut capacity: Vec<Capacity> = Vec::new();
    for t_ms in (0..DURATION_MS).step_by(100) {
        if capacity.last().is_none_or(|c| c.capacity_bps != bps(t_ms)) {
            capacity.push(Capacity { t_ms, capacity_bps: bps(t_ms) });
        }
    }
    Scenario {
        name: name.into(),
        parameters: Default::default(),
        link: LinkRecord {
            description: description.into(),
            base_rtt_us: Some(rtt_ms * 1_000),
            mtu_bytes: MTU_BYTES,
            capacity,
            changes: Vec::new(),
        },
        traffic: traffic.into(),
    }
}

/// Window after a loss, percent; packets gained per eight round trips; largest queue, percent of the link's.
fn character(algorithm: &str) -> (u64, u64, u64) {
    match algorithm {
        "reno" => (50, 8, 100),
        "cubic" => (70, 13, 100),
        _ => (88, 20, 35),
    }
}

fn flow(
    name: &str,
    algorithm: &str,
    link: &LinkRecord,
    start_ms: u64,
    others: &dyn Fn(u64) -> u64,
    dice: &mut Dice,
) -> FlowResult {
    let base_us = link.base_rtt_us.unwrap_or(40_000);
    let (keep, gain, queue_percent) = character(algorithm);
    let mut cwnd = 80 + dice.below(24);
    let (mut lost, mut acked, mut slow_start) = (0, 0, true);
    let mut series = Series::default();
    for t_ms in (start_ms + SAMPLE_MS..=DURATION_MS).step_by(SAMPLE_MS as usize) {
        let now = link.capacity.iter().rev().find(|c| c.t_ms <= t_ms).map_or(24_000_000, |c| c.capacity_bps);
        let capacity = now / others(t_ms);
        let bdp = capacity * base_us / 1_000_000 / 8 / MTU_BYTES;
        let room = (bdp.max(20) * 12 / 10) * queue_percent / 100;
        let queue = (cwnd / 8).saturating_sub(bdp).min(room);
        let srtt_us = base_us + queue * MTU_BYTES * 8 * 1_000_000 / capacity + dice.below(base_us / 20);
        let rate = (cwnd / 8 * MTU_BYTES * 8 * 1_000_000 / srtt_us).min(capacity) * 1_448 / 1_500;
        acked += rate * SAMPLE_MS / 8_000;
        if cwnd / 8 > bdp + room || dice.below(300) == 0 {
            lost += cwnd / 80 + 1;
            cwnd = (cwnd * keep / 100).max(16);
            slow_start = false;
        } else {
            cwnd += if slow_start { cwnd } else { gain * SAMPLE_MS * 1_000 / srtt_us + dice.below(3) };
        }
        series.t_ms.push(t_ms);
        series.throughput_bps.push(rate);
        series.srtt_us.push(srtt_us);
        series.cwnd_pkts.push(cwnd / 8);
        series.pacing_bps.push(rate * 12 / 10);
    }
    let after = |column: &[u64]| -> Vec<u64> {
        series.t_ms.iter().zip(column).filter(|(t, _)| **t > WARMUP_MS).map(|(_, v)| *v).collect()
    };
    let throughput = after(&series.throughput_bps);
    FlowResult {
        name: name.into(),
        background: None,
        start_ms,
        end_ms: DURATION_MS,
        acked_bytes: acked,
        throughput_bps: throughput.iter().sum::<u64>() / throughput.len().max(1) as u64,
        rtt_us: percentiles(after(&series.srtt_us)),
        min_rtt_us: base_us,
        lost_pkts: lost,
        retransmitted_pkts: lost,
        series,
        states: Vec::new(),
    }
}

fn percentiles(mut values: Vec<u64>) -> Percentiles {
    values.sort_unstable();
    let at = |p: usize| {
        values.get((values.len() * p / 100).min(values.len().saturating_sub(1))).copied().unwrap_or(0)
    };
    Percentiles {
        mean: values.iter().sum::<u64>() / values.len().max(1) as u64,
        p50: at(50),
        p95: at(95),
        p99: at(99),
    }
}

fn completions(datapath: Datapath, dice: &mut Dice) -> Completions {
    let flows = (0..400)
        .map(|i| {
            // A heavy tail, as web search has it.
            let bytes = 3_000 + (1u64 << dice.below(22)) * (1 + dice.below(8));
            let slower = if datapath == Datapath::Kernel { 0 } else { dice.below(9) };
            let fct_us = 100_000 + bytes / 12 + dice.below(60_000) * (1 + dice.below(4)) + slower * 900;
            Completion { start_us: i * 70_000, bytes, fct_us }
        })
        .collect();
    Completions { distribution: "web-search".into(), flows, unfinished: dice.below(3) }
}

fn measured(scenario: &Scenario, contender: &Contender, dice: &mut Dice) -> RunFigures {
    let link = &scenario.link;
    let several = scenario.traffic.starts_with('3');
    let short = scenario.traffic.starts_with("short");
    let mut flows = Vec::new();
    let together =
        move |t_ms: u64| if several { 1 + u64::from(t_ms > 5_000) + u64::from(t_ms > 10_000) } else { 1 };
    for i in 0..if short {
        0
    } else if several {
        3
    } else {
        1
    } {
        flows.push(flow(&format!("flow {}", i + 1), &contender.algorithm, link, i * 5_000, &together, dice));
    }
    let completions = short.then(|| completions(contender.datapath, dice));
    let bytes: u64 = flows.iter().map(|f| f.acked_bytes).sum::<u64>()
        + completions.iter().flat_map(|c| &c.flows).map(|c| c.bytes).sum::<u64>();
    let ours = contender.datapath == Datapath::Ebpf;
    let system_ms = bytes / 400_000 * if ours { 104 } else { 100 } / 100 + dice.below(20);
    let sent = bytes / 1_448;
    let lost: u64 = flows.iter().map(|f| f.lost_pkts).sum();
    RunFigures {
        stretches: Vec::new(),
        link: Some(LinkUse {
            utilisation_ppm: (bytes * 8 * 1_500 / 1_448 * 1_000_000
                / (link.capacity[0].capacity_bps * DURATION_MS / 1_000))
                .min(1_000_000),
            departed_pkts: sent,
            dropped_pkts: lost,
            lost_pkts: 0,
            marked_pkts: 0,
            queue_delay_us: flows.first().map_or(Percentiles::default(), |f| Percentiles {
                mean: f.rtt_us.mean - f.min_rtt_us,
                p50: f.rtt_us.p50.saturating_sub(f.min_rtt_us),
                p95: f.rtt_us.p95 - f.min_rtt_us,
                p99: f.rtt_us.p99 - f.min_rtt_us,
            }),
        }),
        flows,
        completions,
        background_completions: None,
        datagrams: Vec::new(),
        fabric: None,
        cpu: Some(Cpu {
            user_ms: 40 + dice.below(10),
            system_ms,
            softirq_ms: system_ms / 3,
            idle_ms: 50_000,
        }),
        agent: ours.then_some(AgentUse { reports: 600 + dice.below(9), faults: 0, unsteered_flows: 0 }),
        iperf3: None,
        notes: if ours && dice.below(2) == 0 {
            vec!["the first report came after 80 ms".into()]
        } else {
            Vec::new()
        },
    }
}

fn comparisons() -> Vec<Comparison> {
    let mut all = Vec::new();
    for (of, against) in [("reno, ours", "reno, kernel"), ("cubic, ours", "cubic, kernel")] {
        for metric in [Metric::ThroughputBps, Metric::MeanRttUs] {
            all.push(Comparison {
                within_ppm: Some(50_000),
                scenario: Some("fixed 24 Mb/s".into()),
                ..Comparison::new(metric, of, against)
            });
        }
    }
    all.push(Comparison {
        within_ppm: Some(50_000),
        scenario: Some("short flows".into()),
        paper: Some("CCP: 30 % more".into()),
        ..Comparison::new(Metric::FctP95Us, "reno, ours", "reno, kernel")
    });
    all.push(Comparison {
        at_most_ppm: Some(1_100_000),
        scenario: Some("cellular".into()),
        paper: Some("CCP: 2.0 times".into()),
        ..Comparison::new(Metric::CpuUsPerGbyte, "reno, ours", "reno, kernel")
    });
    all.push(Comparison {
        scenario: Some("fixed 24 Mb/s".into()),
        at_least_ppm: Some(1_200_000),
        ..Comparison::new(Metric::ThroughputBps, "vegas", "cubic, kernel")
    });
    all
}

fn scenarios() -> Vec<Scenario> {
    let mut scenarios = vec![
        scenario(
            "fixed 24 Mb/s",
            "24 Mb/s, 20 ms each way, droptail of one bandwidth-delay product",
            "one bulk flow",
            40,
            |_| 24_000_000,
        ),
        scenario(
            "cellular",
            "Verizon LTE downlink, 20 ms each way, droptail",
            "one bulk flow",
            40,
            cellular_bps,
        ),
        scenario("three flows", "48 Mb/s, 10 ms each way, droptail", "3 bulk flows, 5 s apart", 20, |_| {
            48_000_000
        }),
        scenario(
            "short flows",
            "192 Mb/s, 50 ms each way",
            "short flows: web search at 50 % load",
            100,
            |_| 192_000_000,
        ),
    ];
    for rtt_ms in [20, 80] {
        for mbit in [6u64, 12, 24, 48, 96] {
            let name = format!("sweep {mbit} Mb/s, {rtt_ms} ms");
            let mut point =
                scenario(&name, &format!("{mbit} Mb/s, {rtt_ms} ms"), "one bulk flow", rtt_ms, |_| {
                    mbit * 1_000_000
                });
            point.parameters.insert("link.rate_mbit".into(), mbit.to_string());
            point.parameters.insert("link.rtt_ms".into(), rtt_ms.to_string());
            scenarios.push(point);
        }
    }
    scenarios
}

fn plan() -> Plan {
    Plan {
        name: "fidelity".into(),
        title: "Do fold programs in the kernel behave as the kernel’s own algorithms?".into(),
        about: "Reno and Cubic as fold programs against the kernel’s modules, alternating on the same links and seeds; Vegas for comparison.".into(),
        source: "title = \"Do fold programs ...\"\nrepeats = 5\n\n[[link]]\nrate_mbit = [6, 12, 24, 48, 96]\n".into(),
        digest: "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08".into(),
        repeats: REPEATS,
        seed: 42,
        duration_ms: DURATION_MS,
        warmup_ms: WARMUP_MS,
        sample_ms: SAMPLE_MS,
        comparisons: comparisons(),
        paper: vec![PaperFigure {
            source: "CCP, SIGCOMM’18, section 7.2, figure 6".into(),
            says: "CCP’s Cubic follows the kernel’s window on a fixed link; completion times of short flows are 30 % longer at the 95th percentile.".into(),
        }],
    }
}

fn host() -> Host {
    let sysctls = [
        ("net.ipv4.tcp_congestion_control", "cubic"),
        ("net.ipv4.tcp_rmem", "4096 131072 6291456"),
        ("net.ipv4.tcp_wmem", "4096 16384 4194304"),
        ("net.ipv4.tcp_no_metrics_save", "1"),
    ];
    Host {
        kernel: "Linux 6.18.44 x86_64".into(),
        processors: "2 × AMD EPYC".into(),
        sysctls: sysctls.into_iter().map(|(k, v)| (k.into(), v.into())).collect(),
        version: "0.1.0".into(),
        git_commit: "a75484d".into(),
        command: "ccplane run fidelity --out results".into(),
        started_at: "2026-01-02T03:04:05Z".into(),
    }
}

/// A whole plan: five contenders, fourteen scenarios.
pub fn whole_plan() -> Results {
    results(|_| true)
}

/// The part of it with the scenarios that are wanted.
pub fn results(wanted: impl Fn(&Scenario) -> bool) -> Results {
    let contenders = vec![
        contender("reno, kernel", "reno", Datapath::Kernel),
        contender("reno, ours", "reno", Datapath::Ebpf),
        contender("cubic, kernel", "cubic", Datapath::Kernel),
        contender("cubic, ours", "cubic", Datapath::Ebpf),
        contender("vegas", "vegas", Datapath::Ebpf),
    ];
    let scenarios = scenarios();
    let mut runs = Vec::new();
    for (s, scenario) in scenarios.iter().enumerate().filter(|(_, s)| wanted(s)) {
        for repeat in 0..REPEATS {
            for (c, contender) in contenders.iter().enumerate() {
                let seed = u64::from(repeat) * 1_000 + s as u64;
                let mut run = Run {
                    scenario: scenario.name.clone(),
                    contender: contender.name.clone(),
                    repeat,
                    attempt: 1,
                    seed,
                    started_at: "2026-01-02T03:05:06Z".into(),
                    wall_ms: DURATION_MS + 800,
                    outcome: RunOutcome::Failed {
                        error: "iperf3: unable to connect to server: Connection timed out".into(),
                    },
                };
                let (fails, mends) = ((s, repeat, c) == (0, 2, 3) || (s, repeat, c) == (3, 1, 1), s == 3);
                if fails {
                    runs.push(run.clone());
                    run.attempt = 2;
                    if !mends {
                        runs.push(run);
                        continue;
                    }
                }
                let mut dice = Dice(seed * 100 + c as u64);
                run.outcome = RunOutcome::Ok(Box::new(measured(scenario, contender, &mut dice)));
                runs.push(run);
            }
        }
    }
    // The last repeat of the last scenario was interrupted.
    runs.truncate(runs.len().saturating_sub(3));
    let scenarios = scenarios.into_iter().filter(|s| wanted(s)).collect();
    let header = Header { schema: SCHEMA_VERSION, plan: plan(), scenarios, contenders, host: host() };
    Results { header, runs }
}

/// The fixed link, which changes at 10 s to 48 Mb/s and 80 ms: Vegas learns, and is there after 4 s in every repeat; Reno is in
/// the first only; the others never are.
pub fn changing() -> Results {
    let mut results = results(|s| s.name.starts_with("fixed"));
    let link = &mut results.header.scenarios[0].link;
    link.changes = vec![Change { t_ms: 10_000, description: "48 Mb/s, 40 ms".into(), base_rtt_us: 80_000 }];
    link.capacity.push(Capacity { t_ms: 10_000, capacity_bps: 48_000_000 });
    results.header.contenders[4].learning = true;
    let adaptation = |of: &str, against: &str| Comparison {
        at_most_ppm: Some(1_000_000),
        ..Comparison::new(Metric::AdaptationUs, of, against)
    };
    results.header.plan.comparisons =
        vec![adaptation("vegas", "cubic, ours"), adaptation("cubic, ours", "cubic, kernel")];
    for run in &mut results.runs {
        let reached_ms = match (run.contender.as_str(), run.repeat) {
            ("vegas", _) => Some(4_000),
            ("reno, ours", 0) => Some(6_000),
            _ => None,
        };
        if let RunOutcome::Ok(measured) = &mut run.outcome {
            measured.stretches = vec![
                Stretch { from_ms: 0, to_ms: 10_000, reward_ppm: 912_000, reached_ms: Some(500) },
                Stretch { from_ms: 10_000, to_ms: DURATION_MS, reward_ppm: 430_000, reached_ms },
            ];
        }
    }
    results
}
