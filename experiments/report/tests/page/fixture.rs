//! A report as the demo makes it, from a fluid model in integers.

use ccplane_report::{
    BaseRtt, Capacity, Datapath, Decision, Effect, Flow, Learned, Link, Phase, Report, Run, Sample, Totals,
};

const END_MS: u64 = 24_000;
const STEP_MS: u64 = 100;
const BASE_RTT_US: u64 = 40_000;
const MTU_BYTES: u64 = 1_500;
const QUEUE_PKTS: u64 = 120;

/// Bits per second: fixed, then up and down like a cellular link.
fn capacity_bps(t_ms: u64) -> u64 {
    if t_ms < END_MS / 2 {
        return 24_000_000;
    }
    let slow = (t_ms / 200) * 7_919 % 17;
    let wave = [9, 14, 18, 12, 7, 4, 6, 11][(t_ms / 1_500 % 8) as usize];
    (wave * 2 + slow / 2) * 1_000_000
}

/// A flow that adds `gain`/8 packets a round trip and keeps `keep_percent` of its window on loss.
fn flow(algorithm: &str, datapath: Datapath, gain: u64, keep_percent: u64, seed: u64) -> Flow {
    let mut cwnd = 10 * 8 + seed * 3;
    let (mut lost, mut acked) = (0, 0);
    let mut slow_start = true;
    let mut samples = Vec::new();
    for t_ms in (STEP_MS..=END_MS).step_by(STEP_MS as usize) {
        let capacity = capacity_bps(t_ms);
        let bdp = capacity * BASE_RTT_US / 1_000_000 / 8 / MTU_BYTES;
        let queue = (cwnd / 8).saturating_sub(bdp).min(QUEUE_PKTS);
        let srtt_us =
            BASE_RTT_US + queue * MTU_BYTES * 8 * 1_000_000 / capacity + (t_ms * 31 + seed * 17) % 900;
        let rate = (cwnd / 8 * MTU_BYTES * 8 * 1_000_000 / srtt_us).min(capacity) * 1448 / 1500;
        acked += rate * STEP_MS / 8_000;
        if cwnd / 8 > bdp + QUEUE_PKTS {
            lost += cwnd / 80 + 1;
            cwnd = cwnd * keep_percent / 100;
            slow_start = false;
        } else {
            cwnd += if slow_start { cwnd } else { gain * STEP_MS * 1_000 / srtt_us };
        }
        samples.push(Sample {
            t_ms,
            throughput_bps: rate,
            srtt_us,
            cwnd_pkts: cwnd / 8,
            pacing_bps: rate * 12 / 10,
            acked_bytes: acked,
            lost_pkts: lost,
            retransmitted_pkts: lost,
        });
    }
    let agent = datapath != Datapath::KernelNative;
    Flow {
        name: format!("{algorithm} {}", datapath.label()),
        algorithm: algorithm.into(),
        datapath,
        samples,
        totals: Totals {
            duration_ms: END_MS,
            acked_bytes: acked,
            lost_pkts: lost,
            retransmitted_pkts: lost,
            min_rtt_us: BASE_RTT_US,
            reports: agent.then_some(603 + seed),
            program_switches: agent.then_some(1),
            faults: agent.then_some(0),
        },
    }
}

/// Two algorithms, three datapaths each, two phases.
pub fn demo() -> Report {
    let mut flows = Vec::new();
    for (algorithm, gain, keep) in [("reno", 8, 50), ("cubic", 13, 70)] {
        for (i, datapath) in
            [Datapath::KernelNative, Datapath::CcplaneEbpf, Datapath::Sim].into_iter().enumerate()
        {
            flows.push(flow(algorithm, datapath, gain, keep, i as u64));
        }
    }
    Report {
        title: "Reno and Cubic as fold programs in the running kernel".into(),
        summary:
            "Each flow crosses its own emulated link, alone: first at a fixed rate, then along a cellular \
                  trace. The kernel’s own modules are the baseline."
                .into(),
        run: Run {
            command: "ccplane demo --seconds 24 --trace Verizon-LTE-short.down".into(),
            kernel: "Linux 6.18.44 x86_64".into(),
            git_commit: "a75484d".into(),
            started_at: "2026-01-02T03:04:05Z".into(),
        },
        link: Link {
            description: "20 ms each way, droptail queue of 120 packets".into(),
            base_rtt_us: Some(BASE_RTT_US),
            mtu_bytes: MTU_BYTES,
            capacity: (0..END_MS)
                .step_by(200)
                .map(|t_ms| Capacity { t_ms, capacity_bps: capacity_bps(t_ms) })
                .collect(),
        },
        phases: vec![
            Phase { label: "fixed 24 Mb/s".into(), t0_ms: 0, t1_ms: END_MS / 2 },
            Phase { label: "cellular: Verizon LTE".into(), t0_ms: END_MS / 2, t1_ms: END_MS },
        ],
        flows,
        learned: None,
        notes: vec!["This report was drawn from a fluid model, to test the page.".into()],
    }
}

/// The demo with a policy that learned, as the demo maps an agent's decisions: the link changes at 12 s; one snapshot is not
/// necessary, one is rolled back after its trial, one is promoted after its.
pub fn learned() -> Report {
    let report = demo();
    let changed_ms = END_MS / 2;
    let throughput = |name: &str, t_ms: u64| match (name, t_ms) {
        (_, t) if t <= changed_ms => 22_000_000,
        ("Aurora, learning", t) if t > 16_000 => 40_000_000,
        ("Aurora, as it is", _) | ("Aurora, learning", _) => 14_000_000,
        ("BBR, kernel", _) => 36_000_000,
        _ => 4_000_000,
    };
    let flow = |(name, algorithm, datapath): (&str, &str, Datapath)| {
        let mut acked_bytes = 0;
        let samples = (STEP_MS..=END_MS).step_by(STEP_MS as usize).map(|t_ms| {
            let throughput_bps = throughput(name, t_ms) + t_ms * 7_919 % 1_500_000;
            acked_bytes += throughput_bps * STEP_MS / 8_000;
            let base_us = if t_ms <= changed_ms { 40_000 } else { 120_000 };
            Sample {
                t_ms,
                throughput_bps,
                acked_bytes,
                srtt_us: base_us + t_ms * 31 % 9_000,
                ..Sample::default()
            }
        });
        let samples = samples.collect();
        Flow { name: name.into(), algorithm: algorithm.into(), datapath, samples, totals: Totals::default() }
    };
    let flows = [
        ("Aurora, learning", "aurora", Datapath::CcplaneEbpf),
        ("Aurora, as it is", "aurora-still", Datapath::CcplaneEbpf),
        ("CUBIC, kernel", "cubic", Datapath::KernelNative),
        ("BBR, kernel", "bbr", Datapath::KernelNative),
    ];
    let decision = |t_ms, hash: &str, effect, verdict: &str, text: &str| Decision {
        t_ms,
        algorithm: "aurora".into(),
        snapshot: hash.repeat(8),
        effect,
        verdict: verdict.into(),
        text: text.into(),
        numbers: vec![("stability".into(), "0.012".into()), ("differs by".into(), "7.4 %".into())],
    };
    let learned = Learned {
        link: Link {
            capacity: vec![
                Capacity { t_ms: 0, capacity_bps: 24_000_000 },
                Capacity { t_ms: changed_ms, capacity_bps: 48_000_000 },
            ],
            ..report.link.clone()
        },
        base_rtts: vec![
            BaseRtt { t_ms: 0, base_rtt_us: 40_000 },
            BaseRtt { t_ms: changed_ms, base_rtt_us: 120_000 },
        ],
        phases: vec![
            Phase { label: "24 Mb/s, 40 ms".into(), t0_ms: 0, t1_ms: changed_ms },
            Phase { label: "48 Mb/s, 120 ms, 8 % loss".into(), t0_ms: changed_ms, t1_ms: END_MS },
        ],
        flows: flows.into_iter().map(flow).collect(),
        decisions: vec![
            decision(
                13_000,
                "11aa22bb",
                Effect::None,
                "not-necessary",
                "it differs by 1.2 % of the range, 5 % are asked",
            ),
            decision(13_200, "55ee66ff", Effect::Trial, "trial", "one flow tries it"),
            decision(14_600, "55ee66ff", Effect::Rollback, "rolled-back", "worse: -0.95 against -0.84"),
            decision(15_000, "33cc44dd", Effect::Trial, "trial", "one flow tries it"),
            decision(16_000, "33cc44dd", Effect::Push, "promoted", "no worse: -0.21 against -0.84"),
        ],
    };
    Report { learned: Some(learned), ..report }
}
