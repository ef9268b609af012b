//! Algorithms beside independent models of what they follow: these are short, in floats, and out of RFCs and papers
//! instead of the programs. They are driven by the same ACKs and must come to the same window.

mod models;

use ccplane_alg::{Algorithm, Control, Flow, FlowInfo, Report, configure};
use ccplane_algs::{Aurora, AuroraConfig};
use ccplane_contract::suite::{Executor, Reference, ScriptStep};
use ccplane_infer::image;
use ccplane_kit::Operation::{self, Ecn, Loss, Rate, Run, Timeout};
use ccplane_kit::{Bounds, PathConfig, check};
use ccplane_program::ir::Prim;
use models::interval::{Features, INTERVALS, Monitor, rate_after};
use models::{Cubic, MSS, Model, Reno};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// The measurements of an ACK, and the window that the algorithm then has; bytes and seconds.
#[derive(Clone, Copy, Debug)]
pub struct Ack {
    at_s: f64,
    acked: f64,
    in_flight: f64,
    /// Whether packets were lost or marked.
    is_congested: bool,
    is_timeout: bool,
    /// The RTT sample; `None` where there is none.
    rtt_s: Option<f64>,
    cwnd: f64,
    rate_per_s: f64,
    /// The delivery rate, as the datapath measured it.
    delivery_per_s: f64,
}

/// The algorithm of that name that ships, with parameters.
fn configured(name: &str, parameters: &[(&str, i64)]) -> Arc<dyn Algorithm> {
    let algorithm = ccplane_algs::all().into_iter().find(|a| a.name() == name).unwrap();
    configure(&algorithm, parameters.iter().copied()).unwrap()
}

/// The ACKs of a stream under an algorithm.
fn acks(name: &str, parameters: &[(&str, i64)], path: PathConfig, operations: &[Operation]) -> Vec<Ack> {
    let algorithm = configured(name, parameters);
    let trajectory = check(&algorithm, path, operations, &Bounds::default()).unwrap();
    let told = trajectory.script.steps.iter().filter_map(|step| match step {
        ScriptStep::Invoke(prims) => Some(prims),
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
            delivery_per_s: of(Prim::FlowRateIncoming),
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
/// one percent of the model's and this many segments. How far they do at most, and how many ACKs were compared.
fn assert_follows(name: &str, acks: &[Ack], mut model: impl Model, segments: f64) {
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
        let allowed = segments * MSS + model.cwnd() / 100.0;
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
    assert_follows("reno", &acks, Reno::default(), 2.0);
}

/// The same with losses in place of marks, of which CCP's Reno knows nothing, and a first loss that ends slow start.
fn lossy() -> Vec<Operation> {
    let unmarked = |operation| if let Ecn { packets } = operation { Loss { packets } } else { operation };
    let first = [run_s(0.07), Loss { packets: 1 }];
    first.into_iter().chain(troubled(false).into_iter().map(unmarked)).collect()
}

/// RFC 5681 section 3.2 and RFC 6582's recovery point: where slow start overflows the queue, one decrease answers all
/// that was outstanding. The losses may take more than a round trip to be found.
#[test]
fn ccp_reno_halves_once_where_slow_start_overflows() {
    for queue_us in [10_000, 40_000, 160_000] {
        let path = PathConfig { queue_us, ..PathConfig::default() };
        let acks = acks("ccp-reno", &[("report_us", 0)], path, &[run_s(2.0)]);
        let first = acks.iter().position(|ack| ack.is_congested).unwrap();
        let before = acks[first - 1].cwnd;
        let (mut left, mut losses) = (acks[first].in_flight, 0);
        let window = acks[first..].iter().take_while(|ack| {
            left -= ack.acked;
            left > 0.0
        });
        // The agent's answer to the first one is there at the next.
        for ack in window.skip(1) {
            losses += u32::from(ack.is_congested);
            assert!(!ack.is_timeout, "{ack:?}");
            assert_eq!(ack.cwnd, (before / 2.0).floor(), "{queue_us} us of queue: {ack:?}");
        }
        assert!(losses > 5, "{losses} ACKs that tell of losses");
    }
}

/// A queue that does not overflow: what is lost is lost at once, and nobody can take it for two episodes.
fn deep() -> PathConfig {
    PathConfig { queue_us: 4_000_000, ..PathConfig::default() }
}

/// Under a report for each ACK, so that only the agent's half decides when.
#[test]
fn ccp_reno_is_rfc_5681() {
    let acks = acks("ccp-reno", &[("report_us", 0)], deep(), &lossy());
    // The ACK that ends an episode grows nothing (section 3.2, step 6), in the model by all that it tells.
    assert_follows("ccp-reno", &acks, Reno::recovering_for(1.0), 4.0);
}

#[test]
fn an_aggregate_of_one_flow_is_rfc_5681() {
    let acks = acks("aggregate", &[("report_us", 0)], deep(), &lossy());
    // What an ACK tells beyond the end of an episode grows nothing: a segment an episode at most.
    assert_follows("aggregate", &acks, Reno::recovering_for(1.0), 4.0);
}

#[test]
fn cubic_is_rfc_9438() {
    let acks = acks("cubic", &[], PathConfig::default(), &troubled(false));
    assert_follows("cubic", &acks, Cubic::default(), 2.0);
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

/// The phases of the paper's section on STARTUP and DRAIN: 2/ln 2 times the largest delivery rate, until three round trips have
/// not brought a quarter more; then the inverse, until what is in flight is what the pipe holds.
#[test]
fn bbr_starts_up_and_drains_as_its_paper_says() {
    const HIGH_GAIN: f64 = 2.0 / std::f64::consts::LN_2;
    const BURSTS: f64 = 11.0 * MSS;
    for rate_bytes_per_s in [1_500_000, 6_000_000] {
        let path = PathConfig { rate_bytes_per_s, queue_us: 400_000, ..PathConfig::default() };
        let acks = acks("bbr", &[], path, &[run_s(3.0)]);
        let (rate, rtt_s) = (f64::from(rate_bytes_per_s), f64::from(path.rtt_us) / 1e6);
        let pipe = rate * rtt_s;
        let (mut best, mut full_s) = (0.0_f64, 0.0);
        let first = acks.iter().position(|ack| ack.delivery_per_s > 0.0).unwrap();
        let mut startup = acks[first..].iter().enumerate();
        let drain = startup
            .find(|(_, ack)| {
                if ack.delivery_per_s > 1.25 * best {
                    (best, full_s) = (ack.delivery_per_s, ack.at_s);
                }
                ack.rate_per_s < 0.5 * best
            })
            .map(|(at, _)| first + at)
            .unwrap();
        for ack in &acks[first + 1..drain] {
            let known = acks[first..].iter().take_while(|a| a.at_s <= ack.at_s);
            let largest = known.map(|a| a.delivery_per_s).fold(0.0, f64::max);
            let gain = ack.rate_per_s / 0.99 / largest;
            // Never slower than it was, so that the window that it begins with is paced until rates are known.
            assert!(gain > 0.98 * HIGH_GAIN, "{gain}: {ack:?}");
            assert!(largest < 0.5 * rate || gain < 1.02 * HIGH_GAIN, "{gain}: {ack:?}");
        }
        // The queue makes a round trip longer and longer meanwhile.
        let rounds = (acks[drain].at_s - full_s) / rtt_s;
        assert!((2.0..12.0).contains(&rounds), "{rounds} round trips without growth");
        let ends = drain + acks[drain..].iter().position(|ack| ack.rate_per_s > 0.6 * rate).unwrap();
        for ack in &acks[drain..ends] {
            let gain = ack.rate_per_s / 0.99 / rate;
            assert!((gain * HIGH_GAIN - 1.0).abs() < 0.03, "{gain}: {ack:?}");
            // Linux adds three bursts of two segments and rounds to pairs; a packet's own time is in the round trip.
            assert!(ack.in_flight + BURSTS > pipe, "{} of {pipe}: {ack:?}", ack.in_flight);
        }
        let left = acks[ends].in_flight;
        eprintln!("bbr at {rate}: {rounds:.1} round trips, {left} in flight of {pipe} after DRAIN");
        assert!(acks[drain].in_flight > 1.8 * pipe && left < pipe + BURSTS, "{left} of {pipe}");
    }
}

/// The paper's PROBE_RTT: four segments for 200 ms and a round trip, where no round trip as short was seen for ten seconds; then
/// the window that was.
#[test]
fn bbr_probes_the_rtt_as_its_paper_says() {
    const FOUR: f64 = 4.0 * MSS;
    let path = PathConfig::default();
    let acks = acks("bbr", &[], path, &[run_s(35.0)]);
    let mut probes: Vec<(usize, usize)> = Vec::new();
    for (n, ack) in acks.iter().enumerate().filter(|(_, ack)| ack.at_s > 2.0 && ack.cwnd <= FOUR) {
        match probes.last_mut() {
            Some((_, last)) if acks[*last].at_s + 1.0 > ack.at_s => *last = n,
            _ => probes.push((n, n)),
        }
    }
    assert!((2..=3).contains(&probes.len()), "{probes:?}");
    let sampled = acks[..probes[0].0].iter().filter_map(|ack| Some((ack.rtt_s?, ack.at_s)));
    let least = sampled.fold((f64::INFINITY, 0.0), |least, new| if new.0 <= least.0 { new } else { least });
    let since = acks[probes[0].0].at_s - least.1;
    assert!((10.0..10.2).contains(&since), "{since} s since the shortest round trip");
    for (from, until) in &probes {
        let probe = &acks[*from..=*until];
        assert!(probe.iter().all(|ack| ack.cwnd == FOUR), "four segments");
        let low = probe.iter().find(|ack| ack.in_flight <= FOUR).unwrap();
        let lasts_s = acks[until + 1].at_s - low.at_s;
        assert!((0.2..0.2 + 3.0 * f64::from(path.rtt_us) / 1e6).contains(&lasts_s), "{lasts_s}");
        let (before, after) = (acks[from - 1].cwnd, acks[until + 1].cwnd);
        assert!(after >= before && before > 10.0 * MSS, "{before} before, {after} after");
        let shortest = probe.iter().filter_map(|ack| ack.rtt_s).fold(f64::INFINITY, f64::min);
        assert!(shortest * 1e6 < f64::from(path.rtt_us) + 2_000.0, "an empty queue: {shortest}");
    }
    eprintln!("bbr: PROBE_RTT {} times, the first one {since:.2} s after the shortest", probes.len());
}

/// Nimbus's paper, section 3.4: for a quarter of 200 ms it is half a sine up by a quarter of the link's rate. For the
/// rest it is half a sine down by a twelfth; and section 4.1: BasicDelay rests where the queue is its target.
#[test]
fn nimbus_pulses_and_keeps_its_delay_as_its_paper_says() {
    const PERIOD_S: f64 = 0.2;
    for (target_ms, rtt_us) in [(12.5, 40_000), (25.0, 60_000)] {
        let path = PathConfig { rtt_us, queue_us: 200_000, ..PathConfig::default() };
        let link = f64::from(path.rate_bytes_per_s);
        let parameters = [("link_bytes_per_s", link as i64), ("target_delay_us", (target_ms * 1e3) as i64)];
        let acks = acks("nimbus", &parameters, path, &[run_s(40.0)]);
        let pulse = |phase: f64| {
            let quarter = PERIOD_S / 4.0;
            let arch = |part: f64| (std::f64::consts::PI * part).sin();
            if phase < quarter {
                link / 4.0 * arch(phase / quarter)
            } else {
                -link / 12.0 * arch((phase - quarter) / (3.0 * quarter))
            }
        };
        let late: Vec<&Ack> = acks.iter().filter(|ack| ack.at_s > 20.0).collect();
        // The pulses' phase is what fits best; a base rate that moves by little stays.
        let misfit = |shift: f64| {
            let rest = |ack: &&Ack| ack.rate_per_s - pulse((ack.at_s + shift).rem_euclid(PERIOD_S));
            let rests: Vec<f64> = late.iter().map(rest).collect();
            let mean = rests.iter().sum::<f64>() / rests.len() as f64;
            let square = rests.iter().map(|r| (r - mean).powi(2)).sum::<f64>() / rests.len() as f64;
            (square.sqrt() / link, mean / link)
        };
        let fits = (0..200).map(|n| misfit(f64::from(n) * PERIOD_S / 200.0));
        let (deviation, base) = fits.min_by(|a, b| a.0.total_cmp(&b.0)).unwrap();
        let least_s = late.iter().filter_map(|ack| ack.rtt_s).fold(f64::INFINITY, f64::min);
        let mean_s = late.iter().filter_map(|ack| ack.rtt_s).sum::<f64>() / late.len() as f64;
        let queue_ms = (mean_s - f64::from(rtt_us) / 1e6) * 1e3;
        eprintln!(
            "nimbus: pulses off by {deviation:.3} of the link's rate, base {base:.3}, queue {queue_ms:.1} ms of {target_ms}, \
             from {:.1} ms",
            (least_s - f64::from(rtt_us) / 1e6) * 1e3
        );
        // A pulse's own mean square is 0.10 of the link's rate.
        assert!(deviation < 0.02 && (base - 1.0).abs() < 0.01, "{deviation}, {base}");
        assert!((queue_ms / target_ms - 1.0).abs() < 0.25, "{queue_ms} ms, {target_ms} were asked for");
    }
}

/// Three flows of weights 1, 2 and 3 acknowledge and lose in an order that a seed draws: together they are one of RFC 5681, and
/// each has its part of it.
#[test]
fn an_aggregate_of_three_flows_is_one_of_rfc_5681_shared_by_weight() {
    const MSS_BYTES: u32 = 1448;
    let algorithm = ccplane_algs::all().into_iter().find(|a| a.name() == "aggregate").unwrap();
    let info = FlowInfo::example(MSS_BYTES, 10 * u64::from(MSS_BYTES));
    let mut control = Control::default();
    let mut flows: Vec<(f64, Box<dyn Flow>)> = (1..=3_i64)
        .map(|weight| {
            let weighted = configure(&algorithm, [("weight", weight)]).unwrap();
            (weight as f64, weighted.flow(&info, &mut control))
        })
        .collect();
    let mut model = Reno::recovering_for(0.0);
    model.begin(10.0 * MSS);
    let names = ["acked", "lost", "timeout", "rtt_us"].map(String::from);
    let (mut seed, mut decreases, mut worst) = (7_u64, 0, 0.0_f64);
    let mut draw = |most: u64| {
        // Knuth's linear congruence.
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) % most
    };
    for step in 0..30_000 {
        let (weight, flow) = &mut flows[draw(3) as usize];
        let is_lost = draw(700) == 0;
        let acked = if is_lost { 0 } else { (1 + draw(3)) * u64::from(MSS_BYTES) };
        let values = [acked as i64, i64::from(is_lost), 0, 40_000];
        control.clear();
        flow.on_report(
            step,
            &Report { program: "aggregate", names: &names, values: &values, truth: None },
            &mut control,
        );
        let fields = control.requests().flat_map(|request| request.fields.to_vec());
        let cwnd = fields.filter(|(name, _)| *name == "Cwnd").map(|(_, bytes)| bytes as f64).last().unwrap();
        let before = model.cwnd();
        model.on_ack(&Ack {
            at_s: step as f64,
            acked: acked as f64,
            // All of the window is on its way: nothing but windows limits these flows.
            in_flight: before,
            is_congested: is_lost,
            is_timeout: false,
            rtt_s: None,
            cwnd,
            rate_per_s: 0.0,
            delivery_per_s: 0.0,
        });
        decreases += u32::from(model.cwnd() < before);
        let off = (cwnd - model.cwnd() * *weight / 6.0).abs() / (MSS + 0.02 * model.cwnd() * *weight / 6.0);
        worst = worst.max(off);
        assert!(off <= 1.0, "step {step}: {cwnd} bytes of weight {weight}, all have {}", model.cwnd());
    }
    eprintln!("aggregate of three: {decreases} decreases, at most {worst:.2} of what is allowed");
    assert!(decreases >= 15);
}

/// The additions of a learned algorithm to the paper's state and rule, as its file states them.
struct Beside {
    /// The queue that counts as none, microseconds.
    slack_us: f64,
    /// Packets a round trip that each interval adds to the rate.
    added_packets: f64,
    /// The shortest interval, microseconds.
    floor_us: f64,
    /// Inputs that follow the state.
    constants: Vec<i32>,
}

/// Holds each decision on a troubled path against the model: the state that the network is shown (section 4.1 of Aurora's paper), and
/// the rate that its action makes.
fn assert_sees_and_decides(algorithm: Arc<dyn Algorithm>, beside: &Beside) {
    const ONE_Q16: f64 = 65_536.0;
    let name = algorithm.name();
    let algorithm = crate::common::pinned(algorithm).unwrap();
    let path = PathConfig::default();
    let mut operations = vec![run_s(2.0)];
    for n in 0..12 {
        operations.push(match n % 4 {
            0 => Loss { packets: 2 },
            1 => Rate { bytes_per_s: 900_000 },
            2 => Operation::Rtt { us: 55_000 },
            _ => Rate { bytes_per_s: 2_000_000 },
        });
        operations.push(run_s(0.6));
    }
    let script = check(&algorithm, path, &operations, &crate::common::bounds(&*algorithm)).unwrap().script;
    let step = script
        .images
        .first()
        .map(|words| image::i64_at(words, image::STEP_Q20) as f64 / 1_048_576.0)
        .unwrap();
    let observed = Reference.execute(&script).unwrap();
    let told = script.steps.iter().filter_map(|step| match step {
        ScriptStep::Invoke(prims) => Some(prims),
        _ => None,
    });
    let (mut monitor, mut state) = (None::<Monitor>, VecDeque::from([[0.0; 3]; INTERVALS]));
    let (mut rate, mut decisions, mut signs) = (0.0, 0, (0, 0));
    let (mut worst, mut worst_rate, mut by_count, mut intervals) = ([0.0_f64; 3], 0.0_f64, 0.0, 0.0);
    for (prims, after) in told.zip(&observed) {
        let policy = after.policy.as_ref().unwrap();
        let rate_then = after.rate_bytes_per_s as f64;
        let Some(monitor) = &mut monitor else {
            monitor = Monitor::begin(prims, rate_then, beside.floor_us);
            rate = rate_then;
            continue;
        };
        monitor.on_ack(prims);
        if after.report.is_some() {
            let ended = monitor.finish(prims, rate_then);
            assert!(ended.took_us >= ended.due_us - 1.0 && ended.acked > 0.0, "{name}: {ended:?}");
            let Features { inflation, inflation_by_count, latency_ratio, send_ratio } = ended.features;
            by_count += (inflation - inflation_by_count).abs();
            intervals += 1.0;
            let min_us = ended.rtt_us / latency_ratio;
            let latency_ratio = (ended.rtt_us + beside.slack_us) / (min_us + beside.slack_us);
            let bounded = |ratio: f64| (ratio - 1.0) / (ratio + 1.0);
            state.pop_front();
            state.push_back([inflation.clamp(-1.0, 10.0), bounded(latency_ratio), bounded(send_ratio)]);
            let cells = policy.histories.iter().map(|cell| f64::from(*cell) / ONE_Q16);
            for (n, (cell, value)) in cells.zip(state.iter().flatten()).enumerate() {
                worst[n % 3] = worst[n % 3].max((cell - value).abs());
            }
            if policy.asked {
                assert_eq!(policy.histories[3 * INTERVALS..], beside.constants, "{name}");
                let action = policy.action_q16 as f64 / ONE_Q16;
                let decided = rate_after(rate, step, action);
                let decided = decided + (beside.added_packets * MSS * 1e6 / ended.rtt_us).min(decided / 16.0);
                let delivered = ended.acked * MSS * 1e6 / ended.took_us;
                let sent =
                    if decided > 2.0 * delivered { (2.0 * delivered).max(rate / 2.0) } else { decided };
                let expected = sent.max(2.0 * MSS * 1e6 / ended.rtt_us);
                worst_rate = worst_rate.max((rate_then / expected - 1.0).abs());
                decisions += 1;
                signs = (signs.0 + u32::from(action > 0.0), signs.1 + u32::from(action < 0.0));
            }
        }
        rate = rate_then;
    }
    let by_count = by_count / intervals;
    eprintln!(
        "{name}: {decisions} decisions, {signs:?} up and down, off by at most {worst:?}, rates by {worst_rate:.2e}, {by_count:.4} by count"
    );
    assert!(decisions > 100 && signs.0 > 10 && signs.1 > 10, "{name}: {decisions} {signs:?}");
    assert!(worst_rate < 1e-5, "{name}: {worst_rate}");
    assert!(worst.iter().all(|off| *off < 1e-4) && by_count < 0.005, "{name}: {worst:?} {by_count}");
}

#[test]
fn aurora_sees_and_decides_as_its_paper_says() {
    let published: Arc<dyn Algorithm> = Arc::new(Aurora { config: AuroraConfig::published() });
    assert_sees_and_decides(
        published,
        &Beside { slack_us: 0.0, added_packets: 0.0, floor_us: 1.0, constants: Vec::new() },
    );
    let ships = Beside { slack_us: 2000.0, added_packets: 1.0, floor_us: 2000.0, constants: Vec::new() };
    assert_sees_and_decides(configured("aurora", &[]), &ships);
}

/// Its paper's section 4.1: Aurora's state, then the preference.
#[test]
fn mocc_sees_its_preference_and_decides_as_its_paper_says() {
    for preference in [[80, 10, 10], [10, 70, 20]] {
        let names = ["w_thr_pct", "w_lat_pct", "w_loss_pct"];
        let parameters: Vec<(&str, i64)> = names.into_iter().zip(preference.map(i64::from)).collect();
        let beside =
            Beside { slack_us: 2000.0, added_packets: 1.0, floor_us: 2000.0, constants: preference.to_vec() };
        assert_sees_and_decides(configured("mocc", &parameters), &beside);
    }
}

/// `ORACLES.md` has each algorithm once, and what it says holds one is a test of this file.
#[test]
fn the_table_of_oracles_is_whole() {
    let table = include_str!("../../ORACLES.md");
    let rows = table.lines().filter_map(|line| line.strip_prefix("| `"));
    let rows: BTreeMap<&str, &str> = rows.filter_map(|row| row.split_once("` |")).collect();
    let algorithms = ccplane_algs::all();
    let names: Vec<&str> = algorithms.iter().map(|a| a.name()).collect();
    assert!(names.iter().all(|name| rows.contains_key(name)), "{names:?}: {:?}", rows.keys());
    assert_eq!(names.len(), rows.len(), "{:?}", rows.keys());
    for (name, row) in rows {
        let held_by = row.rsplit('|').nth(1).unwrap();
        let tests: Vec<&str> = held_by.split('`').skip(1).step_by(2).collect();
        let is_test =
            |test: &&str| include_str!("references.rs").contains(&format!("#[test]\nfn {test}() {{"));
        assert!(tests.iter().all(is_test), "{name}: {held_by}");
        assert!(!tests.is_empty() || row.contains("nothing"), "{name}: {held_by}");
    }
}
