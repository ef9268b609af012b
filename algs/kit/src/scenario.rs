//! The standard scenarios: each kind of trouble alone, and mixes. Goldens are taken of them.

use crate::operation::Operation::{self, *};
use crate::path::PathConfig;

/// A stream with a name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Scenario {
    pub name: &'static str,
    pub path: PathConfig,
    pub operations: Vec<Operation>,
}

/// One round trip of the default path without a queue.
const ROUND: Operation = Run { us: 40_000 };

/// Repeats an operation `count` times.
fn times(count: usize, operation: Operation) -> Vec<Operation> {
    vec![operation; count]
}

fn rounds(count: usize) -> Vec<Operation> {
    times(count, ROUND)
}

fn default(name: &'static str, parts: impl IntoIterator<Item = Vec<Operation>>) -> Scenario {
    Scenario { name, path: PathConfig::default(), operations: parts.into_iter().flatten().collect() }
}

/// Every one of them.
pub fn all() -> Vec<Scenario> {
    let one = |operation| vec![operation];
    let mut scenarios = vec![
        default("clean", [rounds(50)]),
        default(
            "loss",
            [rounds(20), one(Loss { packets: 1 }), rounds(15), one(Loss { packets: 5 }), rounds(15)],
        ),
        default(
            "ecn",
            [rounds(20), one(Ecn { packets: 1 }), rounds(15), one(Ecn { packets: 20 }), rounds(15)],
        ),
        default("timeout", [rounds(20), one(Timeout), rounds(30)]),
        default(
            "reordering",
            [
                rounds(15),
                // Overtaken by two packets, then by some twenty, so that they are taken for lost.
                one(Reorder { packets: 2, by_us: 2_000 }),
                rounds(10),
                one(Reorder { packets: 2, by_us: 20_000 }),
                rounds(15),
            ],
        ),
        default("app-limited", [rounds(10), one(AppLimit { packets: 4 }), rounds(20), one(Bulk), rounds(20)]),
        default("idle", [rounds(15), one(Idle { us: 3_000_000 }), rounds(20)]),
        default(
            "mtu",
            [
                rounds(15),
                one(Mtu { mss_bytes: 1_208 }),
                rounds(15),
                one(Mtu { mss_bytes: 8_948 }),
                rounds(15),
            ],
        ),
        default("blackout", [rounds(15), one(Blackout { us: 2_000_000 }), times(20, Run { us: 120_000 })]),
        default(
            "rtt-step",
            [
                rounds(15),
                one(Rtt { us: 80_000 }),
                times(20, Run { us: 80_000 }),
                one(Rtt { us: 40_000 }),
                rounds(15),
            ],
        ),
        default(
            "rate-step",
            [
                rounds(15),
                one(Rate { bytes_per_s: 500_000 }),
                rounds(25),
                one(Rate { bytes_per_s: 3_000_000 }),
                rounds(25),
            ],
        ),
        default(
            "clock-jump",
            [
                rounds(15),
                one(ClockJump { us: 60_000 }),
                rounds(10),
                one(ClockJump { us: 1_000_000 }),
                rounds(15),
            ],
        ),
        default("aggregation", [one(Aggregate { us: 8_000 }), rounds(40)]),
    ];
    scenarios.extend(mixes());
    scenarios
}

fn mixes() -> Vec<Scenario> {
    let trouble = [
        Loss { packets: 2 },
        AppLimit { packets: 10 },
        Ecn { packets: 3 },
        Bulk,
        Reorder { packets: 3, by_us: 15_000 },
        Mtu { mss_bytes: 1_000 },
        Timeout,
        Rate { bytes_per_s: 900_000 },
        Idle { us: 700_000 },
        Rtt { us: 60_000 },
        Aggregate { us: 3_000 },
        Blackout { us: 500_000 },
        ClockJump { us: 100_000 },
    ];
    let mixed = trouble.iter().flat_map(|t| [vec![*t], rounds(6)]).collect::<Vec<_>>();
    let steady = |us, count| times(count, Run { us });
    let on = |path, mut scenario: Scenario| {
        scenario.path = path;
        scenario
    };
    let standard = PathConfig::default();
    // 200 Mb/s and jumbo frames; a modem; a data centre.
    let fat = PathConfig { rate_bytes_per_s: 25_000_000, mss_bytes: 8_948, ..standard };
    let thin = PathConfig { rate_bytes_per_s: 16_000, rtt_us: 300_000, queue_us: 900_000, ..standard };
    let near = PathConfig { rate_bytes_per_s: 125_000_000, rtt_us: 100, queue_us: 200, ..standard };
    vec![
        default("mixed", [rounds(15)].into_iter().chain(mixed)),
        default("long", [steady(500_000, 60)]),
        on(fat, default("fat", [rounds(30), vec![Loss { packets: 1 }], rounds(20)])),
        on(thin, default("thin", [steady(300_000, 40), vec![Loss { packets: 1 }], steady(300_000, 20)])),
        on(near, default("near", [steady(1_000, 40), vec![Loss { packets: 1 }], steady(1_000, 20)])),
    ]
}
