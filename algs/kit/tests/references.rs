//! Algorithms beside independent models of what they follow: short ones in floats, out of RFCs and papers and not out of the
//! programs, which are driven by the same ACKs and must come to the same window.
#![allow(clippy::unwrap_used)]

mod models;

use ccplane_alg::configure;
use ccplane_contract::suite::{Executor, Reference, Step};
use ccplane_kit::Operation::{self, Ecn, Loss, Rate, Run, Timeout};
use ccplane_kit::{Bounds, PathConfig, check};
use ccplane_program::ir::Prim;
use models::{Cubic, MSS, Model, Reno};
use std::collections::BTreeMap;

/// What an ACK tells, and the window that the algorithm then has; bytes and seconds.
#[derive(Clone, Copy, Debug)]
pub struct Ack {
    at_s: f64,
    acked: f64,
    in_flight: f64,
    /// Losses or marks.
    is_congested: bool,
    is_timeout: bool,
    /// Where there is a sample.
    rtt_s: Option<f64>,
    cwnd: f64,
    rate_per_s: f64,
}

/// The ACKs of a stream under an algorithm.
fn acks(name: &str, parameters: &[(&str, i64)], path: PathConfig, operations: &[Operation]) -> Vec<Ack> {
    let algorithm = ccplane_algs::all().into_iter().find(|a| a.name() == name).unwrap();
    let algorithm = configure(&algorithm, parameters.iter().copied()).unwrap();
    let trajectory = check(&algorithm, path, operations, &Bounds::default()).unwrap();
    let told = trajectory.script.steps.iter().filter_map(|step| match step {
        Step::Invoke(prims) => Some(prims),
        _ => None,
    });
    let observed = Reference.execute(&trajectory.script).unwrap();
    let ack = |(prims, after): (&ccplane_program::vm::Prims, &ccplane_contract::suite::Observation)| {
        let of = |prim| prims.get(prim) as f64;
        let rtt_us = prims.get(Prim::FlowRttSampleUs);
        Ack {
            at_s: of(Prim::AckNow) / 1e6,
            acked: of(Prim::AckBytesAcked),
            in_flight: of(Prim::FlowBytesInFlight),
            is_congested: of(Prim::AckLostPktsSample) + of(Prim::AckEcnPackets) > 0.0,
            is_timeout: prims.get(Prim::FlowWasTimeout) != 0,
            rtt_s: (rtt_us < i64::from(i32::MAX)).then_some(rtt_us as f64 / 1e6),
            cwnd: after.cwnd_bytes as f64,
            rate_per_s: after.rate_bytes_per_s as f64,
        }
    };
    told.zip(&observed).map(ack).collect()
}

fn run_s(seconds: f64) -> Operation {
    Run { us: (seconds * 1e6) as u32 }
}

/// Losses and marks at times that are no multiple of anything, on links whose rate changes.
fn troubled(timeouts: bool) -> Vec<Operation> {
    let mut operations = vec![run_s(4.0)];
    for n in 0..24_u16 {
        operations.push(match n % 6 {
            0 | 3 => Loss { packets: 1 },
            1 => Ecn { packets: 1 },
            2 => Loss { packets: 3 },
            4 => Rate { bytes_per_s: if n < 12 { 3_000_000 } else { 1_000_000 } },
            _ if timeouts => Timeout,
            _ => Ecn { packets: 2 },
        });
        operations.push(run_s(0.7 + f64::from(n * 37 % 23) / 9.0));
    }
    operations
}

/// The model follows the algorithm's ACKs from its first decrease on. Where it is not in recovery, windows differ by at most
/// `percent` of the model's and two segments. How far they do at most, and how many ACKs were compared.
fn assert_follows(name: &str, acks: &[Ack], mut model: impl Model, percent: f64) {
    let first = acks.iter().position(|ack| ack.is_congested).unwrap();
    model.begin(acks[first - 1].cwnd);
    let (mut compared, mut decreases, mut worst) = (0, 0, (0.0, 0.0));
    for ack in &acks[first..] {
        let before = model.cwnd();
        model.on_ack(ack);
        decreases += u32::from(model.cwnd() < before);
        if model.is_recovering() {
            continue;
        }
        let off = (ack.cwnd - model.cwnd()).abs();
        let allowed = 2.0 * MSS + model.cwnd() * percent / 100.0;
        worst = if off / allowed > worst.0 { (off / allowed, ack.at_s) } else { worst };
        assert!(off <= allowed, "{name}: {} bytes, the model has {}: {ack:?}", ack.cwnd, model.cwnd());
        compared += 1;
    }
    eprintln!(
        "{name}: {compared} ACKs, {decreases} decreases, at most {:.2} of what is allowed at {}",
        worst.0, worst.1
    );
    assert!(compared > 10_000 && decreases >= 15, "{name}: {compared} ACKs, {decreases} decreases");
}

#[test]
fn reno_is_rfc_5681() {
    let acks = acks("reno", &[], PathConfig::default(), &troubled(true));
    assert_follows("reno", &acks, Reno::default(), 1.0);
}

#[test]
fn cubic_is_rfc_9438() {
    let acks = acks("cubic", &[], PathConfig::default(), &troubled(false));
    assert_follows("cubic", &acks, Cubic::default(), 1.0);
}

/// Brakmo's and Peterson's Diff, as segments in the queue: a flow alone ends between alpha and beta.
#[test]
fn vegas_queues_between_alpha_and_beta() {
    for (alpha, beta) in [(2, 4), (5, 9)] {
        let parameters = [("alpha_packets", alpha), ("beta_packets", beta)];
        let path = PathConfig::default();
        let acks = acks("vegas", &parameters, path, &[run_s(40.0)]);
        let base_s = acks.iter().filter_map(|ack| ack.rtt_s).fold(f64::INFINITY, f64::min);
        let late: Vec<_> = acks.iter().filter(|ack| ack.at_s > 21.0).collect();
        assert!(late.len() > 10_000);
        for ack in late {
            let rtt_s = ack.rtt_s.unwrap();
            let diff = (ack.cwnd / base_s - ack.cwnd / rtt_s) * base_s / MSS;
            assert!(
                diff >= alpha as f64 - 1.0 && diff <= beta as f64 + 1.0,
                "{alpha} to {beta}: {diff}: {ack:?}"
            );
        }
    }
}

/// Section 2.1 of Copa's paper: the rate's target is 1 / (delta dq), so that 1/delta packets wait at the equilibrium; and
/// section 3: the queue swings by 2.5/delta packets, and is empty once in each swing.
#[test]
fn copa_keeps_the_rate_at_its_target() {
    for inverse_delta in [2, 6] {
        let path = PathConfig::default();
        let acks = acks("copa", &[("inverse_delta_packets", inverse_delta)], path, &[run_s(40.0)]);
        let min_s = acks.iter().filter_map(|ack| ack.rtt_s).fold(f64::INFINITY, f64::min);
        let late = acks.iter().filter(|ack| ack.at_s > 21.0).filter_map(|ack| ack.rtt_s);
        let queued: Vec<f64> =
            late.map(|rtt_s| (rtt_s - min_s) * f64::from(path.rate_bytes_per_s) / MSS).collect();
        let mean = queued.iter().sum::<f64>() / queued.len() as f64 / inverse_delta as f64;
        let (least, most) = queued.iter().fold((f64::MAX, 0.0), |(a, b), q| (q.min(a), q.max(b)));
        eprintln!("copa, 1/delta {inverse_delta}: mean {mean:.2}/delta, {least:.1} to {most:.1} packets");
        assert!((0.6..1.6).contains(&mean), "{mean} / delta");
        assert!(least < 1.0 && most < 2.0 * 2.5 * inverse_delta as f64, "{least} to {most} packets");
    }
}

/// The paper's figure 1 and its gain cycle: the rate is the largest delivery rate of late times 5/4, 3/4 and six times 1, each
/// for one smallest round trip; the bottleneck's rate is what is delivered.
#[test]
fn bbr_cycles_its_gains_at_the_bottlenecks_rate() {
    let path = PathConfig::default();
    let acks = acks("bbr", &[], path, &[run_s(9.0)]);
    // PROBE_RTT comes after ten seconds.
    let late: Vec<_> = acks.iter().filter(|ack| ack.at_s > 4.0 && ack.at_s < 9.0).collect();
    // One percent less than the gain says, as Linux paces.
    let gain = |ack: &&Ack| ack.rate_per_s / 0.99 / f64::from(path.rate_bytes_per_s);
    let mut phases: Vec<(f64, f64, f64)> = Vec::new();
    for ack in &late {
        let now = gain(ack);
        match phases.last_mut() {
            Some((gain, _, until_s)) if (*gain - now).abs() < 0.06 => *until_s = ack.at_s,
            _ => phases.push((now, ack.at_s, ack.at_s)),
        }
    }
    // Without the first and the last, which are cut off.
    let whole = &phases[1..phases.len() - 1];
    let lasts_rtts =
        |(_, from_s, until_s): &(f64, f64, f64)| (until_s - from_s) / (f64::from(path.rtt_us) / 1e6);
    let mut counts = BTreeMap::new();
    for pair in whole.windows(2) {
        let next = match pair[0].0 {
            up if (1.2..1.3).contains(&up) => 0.75,
            down if (0.7..0.8).contains(&down) => 1.0,
            even if (0.97..1.03).contains(&even) => {
                assert!((5.0..7.5).contains(&lasts_rtts(&pair[0])), "six round trips: {pair:?}");
                1.25
            }
            other => panic!("a gain of {other}: {phases:?}"),
        };
        assert!((pair[1].0 - next).abs() < 0.05, "{pair:?}: {next} is next");
        *counts.entry((next * 4.0) as u32).or_insert(0) += 1;
    }
    assert!(counts.len() == 3 && counts.values().all(|n| *n > 8), "{counts:?}");
}

/// `ORACLES.md` has each algorithm once, and what it says holds one is a test of this file.
#[test]
fn the_table_of_oracles_is_whole() {
    let table = include_str!("../ORACLES.md");
    let rows = table.lines().filter_map(|line| line.strip_prefix("| `"));
    let rows: BTreeMap<&str, &str> = rows.filter_map(|row| row.split_once("` |")).collect();
    let algorithms = ccplane_algs::all();
    let names: Vec<&str> = algorithms.iter().map(|a| a.name()).collect();
    assert!(names.iter().all(|name| rows.contains_key(name)), "{names:?}: {:?}", rows.keys());
    assert_eq!(names.len(), rows.len(), "{:?}", rows.keys());
    for (name, row) in rows {
        let held_by = row.rsplit('|').nth(1).unwrap().trim().trim_matches('`');
        let is_test = include_str!("references.rs").contains(&format!("#[test]\nfn {held_by}() {{"));
        assert!(is_test || held_by.is_empty() && row.contains("nothing"), "{name}: {held_by}");
    }
}
