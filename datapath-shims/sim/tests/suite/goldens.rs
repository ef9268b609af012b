//! Golden tables of what flows achieve, in integers.

use crate::common::*;
use ccplane_contract::{Datapath, Event, FlowId, FlowStats, Mode};
use ccplane_netsim::{Acks, LinkConfig, PathConfig};
use ccplane_sim::{FlowConfig, Pacing, SimConfig, SimDatapath, SimError, Source, Wake};

fn bulk() -> FlowConfig {
    flow(Source::Bulk)
}

fn stats(sim: &SimDatapath, flow: FlowId) -> FlowStats {
    sim.stats(flow).unwrap()
}

/// A flow over a link after ten seconds with a window of so many packets, and its statistics.
fn held(link: LinkConfig, packets: u64) -> (SimDatapath, FlowId, FlowStats) {
    let mut sim = sim(link);
    let flow = sim.add_flow(&bulk()).unwrap();
    run_constant(&mut sim, 10 * S, packets, 0);
    let stats = stats(&sim, flow);
    (sim, flow, stats)
}

#[test]
fn a_fixed_window_above_the_bandwidth_delay_product() {
    let mut sim = sim(rate(12, 100));
    let flow = sim.add_flow(&bulk()).unwrap();
    let reports = run_constant(&mut sim, 10 * S, 40, 0);
    let s = stats(&sim, flow);
    assert_eq!(
        (s.mode, s.transport.snd_cwnd, s.transport.unacked, s.transport.lost, s.transport.faults),
        (Mode::Program, 40, 40, 0, 0)
    );
    // The first 10 are acknowledged from 21 ms on, 1 ms apart; from then on the link never rests but for the
    // gap between the 10th and the 11th, which leaves at 21 ms: 11 ms.
    assert_eq!(s.transport.delivered, 10_000 - 20 - 11);
    assert_eq!(s.transport.bytes_acked, s.transport.delivered * MSS);
    // The handshake met no queue; then 40 packets in flight, one a millisecond.
    assert_eq!((s.transport.min_rtt_us, s.transport.srtt_us), (20_000, 40_000));
    // 40 in flight: 20 propagating or acknowledged, 1 in service.
    assert_eq!(sim.network().queue_bytes(0), Some(19 * 1500));
    let delivered: i64 = reports.iter().map(|(_, values)| values[0]).sum();
    let last_report_covers = (s.transport.bytes_acked as i64 - delivered) / MSS as i64;
    assert!((0..101).contains(&last_report_covers), "{last_report_covers} packets not yet reported");
    assert_eq!(s.transport.reports, reports.len() as u64);
    assert_eq!(s.transport.reports, 98, "every 101 ms: the first ACK past 100");
}

#[test]
fn a_fixed_window_below_the_bandwidth_delay_product() {
    let (_, _, s) = held(rate(12, 100), 7);
    // The 10 of the initial window until 30 ms, the last 7 of which have successors 21 ms later, and so on: 474
    // more rounds until 9984 ms, and the first 2 of the next.
    assert_eq!(s.transport.delivered, 10 + 7 * 474 + 2);
    assert_eq!((s.transport.srtt_us, s.transport.unacked), (21_000, 7));
}

#[test]
fn a_paced_flow_keeps_its_rate_and_builds_no_queue() {
    let mut sim = sim(rate(12, 100));
    let flow = sim.add_flow(&bulk()).unwrap();
    // 500 packets a second.
    run_constant(&mut sim, 20 * S, 1000, 500 * MSS as i64);
    let before = stats(&sim, flow).transport.delivered;
    run_more(&mut sim, 40 * S);
    let s = stats(&sim, flow);
    assert_eq!(s.transport.delivered - before, 20 * 500);
    assert_eq!((s.transport.pacing_rate, s.transport.srtt_us), (500 * MSS, 21_000));
    // 2 ms apart over 21 ms.
    assert!(s.transport.unacked == 10 || s.transport.unacked == 11);
}

fn run_more(sim: &mut SimDatapath, until_us: u64) {
    sim.run(until_us, 100 * MS, &mut |_, wake, datapath| {
        if wake == Wake::Tick {
            datapath.heartbeat();
        }
    });
}

#[test]
fn a_full_queue_costs_packets_and_recovery_repairs_them() {
    let (sim, flow, s) = held(rate(12, 10), 100);
    let dropped = sim.network().link_stats(0).unwrap().dropped;
    assert!(dropped > 0);
    // What was dropped but not yet noticed is in flight.
    assert!(
        s.transport.lost <= dropped && dropped - s.transport.lost <= u64::from(s.transport.unacked),
        "{} of {dropped}",
        s.transport.lost
    );
    let receiver = sim.network().receiver_stats(flow.0 as u32).unwrap();
    assert_eq!(receiver.duplicates, 0, "nothing is retransmitted that arrived");
    // The link is full from the first round trip on, whatever is lost.
    assert!(receiver.bytes / 1500 > 9_900, "{}", receiver.bytes / 1500);
    assert_eq!(sim.network().sent(), receiver.arrived + dropped + sim.network().in_network());
}

#[test]
fn random_loss_is_repaired() {
    let mut sim = sim(LinkConfig { loss_ppm: 20_000, ..rate(12, 100) });
    let flow = sim.add_flow(&bulk()).unwrap();
    let finite = sim.add_flow(&FlowConfig::new(Source::Bytes(3_000_000), 10 * MS)).unwrap();
    run_constant(&mut sim, 20 * S, 20, 0);
    let (s, f) = (stats(&sim, flow), stats(&sim, finite));
    assert_eq!(f.transport.bytes_acked, 3_000_000);
    assert_eq!(f.transport.delivered, 3_000_000_u64.div_ceil(MSS));
    let lost = sim.network().link_stats(0).unwrap().lost;
    assert!(
        s.transport.lost + f.transport.lost <= lost
            && lost <= s.transport.lost + f.transport.lost + u64::from(s.transport.unacked)
    );
    assert_eq!(sim.network().receiver_stats(0).unwrap().duplicates, 0);
}

#[test]
fn a_finite_flow_ends_when_its_last_byte_arrives() {
    let mut sim = sim(rate(12, 100));
    // 10 packets at once, the last one of 1 byte: 53 wire bytes.
    let flow = sim.add_flow(&FlowConfig { start_us: 5 * MS, ..small(9 * MSS + 1) }).unwrap();
    let mut seen = Vec::new();
    sim.run(S, S, &mut |now_us, wake, _| seen.push((now_us, wake)));
    assert!(matches!(seen[0], (5_000, Wake::Event(Event::Created { flow: f, .. })) if f == flow));
    // 5 + 9 + 0.035 + 20 ms.
    assert_eq!(seen[1], (34_035, Wake::Event(Event::Closed { flow })));
    assert_eq!(seen[2], (S, Wake::Tick));
    assert_eq!(stats(&sim, flow).transport.bytes_acked, 9 * MSS + 1);
}

fn small(bytes: u64) -> FlowConfig {
    flow(Source::Bytes(bytes))
}

#[test]
fn an_application_that_writes_now_and_then_limits_its_flow() {
    let mut sim = sim(rate(12, 100));
    let source = Source::Chunks { bytes: 5 * MSS as u32, every_us: 50_000 };
    let flow = sim.add_flow(&FlowConfig { source, ..bulk() }).unwrap();
    sim.step_until(10 * S - 1);
    let s = stats(&sim, flow);
    assert_eq!((s.transport.delivered, s.transport.lost, s.mode), (5 * 200, 0, Mode::NativeNoProgram));
    assert_eq!(s.transport.snd_cwnd, 10, "a window that does not limit does not grow");
}

#[test]
fn a_flow_added_late_starts_now() {
    let mut sim = sim(rate(12, 100));
    sim.step_until(10 * S);
    let source = Source::Chunks { bytes: 3 * MSS as u32, every_us: 50_000 };
    let flow = sim.add_flow(&FlowConfig { source, ..bulk() }).unwrap();
    sim.step_until(10 * S + 49 * MS);
    assert_eq!(stats(&sim, flow).transport.bytes_acked, 3 * MSS, "one write, not those of ten seconds");
}

#[test]
fn a_blackout_ends_in_timeouts_and_a_fresh_start() {
    // Five seconds of 12 Mb/s, three of nothing, again and again.
    let text: String = (1..=5000).chain([8000]).map(|ms| format!("{ms}\n")).collect();
    let mut sim = sim(trace(&text, 30));
    let flow = sim.add_flow(&bulk()).unwrap();
    run_constant(&mut sim, 7900 * MS, 25, 0);
    let dark = stats(&sim, flow);
    assert!(dark.transport.lost >= 25, "the timer gave up what was in flight: {}", dark.transport.lost);
    let sent_in_the_dark = sim.network().sent();
    // Timeouts at about 0.2, 0.6, 1.4 and 3 s after the last ACK.
    assert!(sent_in_the_dark <= dark.transport.delivered + 25 + 4, "{sent_in_the_dark}");
    run_more(&mut sim, 13_000 * MS);
    let light = stats(&sim, flow);
    // It waits for its last timer at most, and then fills the link again.
    assert!(
        light.transport.delivered - dark.transport.delivered > 4_700,
        "{}",
        light.transport.delivered - dark.transport.delivered
    );
    assert_eq!(light.transport.snd_cwnd, 25);
}

#[test]
fn a_flow_fills_a_recorded_link() {
    let text: String = (0..600u64).map(|n| format!("{}\n", n * n / 400 + 1)).collect();
    let mut sim = sim(trace(&text, 200));
    let flow = sim.add_flow(&bulk()).unwrap();
    run_constant(&mut sim, 20 * S, 150, 0);
    let offered = 600 * 20_000 / 898;
    let delivered = stats(&sim, flow).transport.delivered;
    assert!(delivered * 100 > offered * 98, "{delivered} of {offered}");
}

#[test]
fn native_reno_fills_a_link() {
    let mut sim = sim(rate(12, 20));
    let flow = sim.add_flow(&bulk()).unwrap();
    sim.step_until(30 * S);
    let s = stats(&sim, flow);
    assert_eq!(s.mode, Mode::NativeNoProgram);
    assert!(s.transport.delivered > 29_400, "{}", s.transport.delivered);
    // 20 on the wire and as much queue: a saw-tooth between 20 and 41.
    let ssthresh = s.transport.snd_ssthresh;
    assert!(ssthresh.is_some_and(|n| (19..=21).contains(&n)), "{ssthresh:?}");
    // 45 after slow start; then one or two each 700 ms: a packet too many, and one more if the window grows again
    // before that is known.
    assert!(s.transport.lost < 45 + 2 * 43, "{}", s.transport.lost);
}

#[test]
fn the_native_algorithm_goes_on_from_the_window_it_finds() {
    for release in [true, false] {
        let mut sim = sim(rate(12, 100));
        let flow = sim.add_flow(&bulk()).unwrap();
        run_constant(&mut sim, 2 * S, 40, 0);
        if release {
            sim.release(flow).unwrap();
        } else {
            // Silent for longer than the timeout of a second.
            sim.step_until(3 * S);
        }
        sim.step_until(sim.now_us() + 50 * MS);
        let s = stats(&sim, flow);
        let mode = if release { Mode::NativeNoProgram } else { Mode::NativeAgentSilent };
        assert_eq!((s.mode, s.transport.snd_ssthresh), (mode, Some(40)));
        assert!(s.transport.snd_cwnd == 41, "{}", s.transport.snd_cwnd);
    }
}

#[test]
fn kernel_like_pacing_spreads_a_window() {
    let run = |pacing| {
        let mut sim = sim(rate(120, 1000));
        let source = Source::Chunks { bytes: 16 * MSS as u32, every_us: 100_000 };
        sim.add_flow(&FlowConfig { source, pacing, init_cwnd_packets: 1, ..bulk() }).unwrap();
        run_constant(&mut sim, S, 16, 0);
        sim.network().link_stats(0).unwrap().max_queue_bytes
    };
    assert_eq!(run(Pacing::AckClocked), 15 * 1500);
    assert_eq!(run(Pacing::Window), 0);
}

#[test]
fn a_hundred_flows_share_a_link() {
    let mut sim = sim(rate(96, 400));
    let flows: Vec<FlowId> = (0..100u64)
        .map(|n| {
            let path = PathConfig { acks: Acks::EACH, ..PathConfig::new(vec![0], (10 + n % 5) * 1_000_000) };
            sim.add_flow(&FlowConfig { start_us: n * 10 * MS, path, ..bulk() }).unwrap()
        })
        .collect();
    sim.step_until(20 * S);
    let delivered: Vec<u64> = flows.iter().map(|f| stats(&sim, *f).transport.delivered).collect();
    let total: u64 = delivered.iter().sum();
    assert!(total > 8 * 19_800, "{total}");
    assert!(delivered.iter().all(|d| *d > total / 100 / 4), "{delivered:?}");
    let link = sim.network().link_stats(0).unwrap();
    let arrived: u64 = (0..100).map(|f| sim.network().receiver_stats(f).unwrap().arrived).sum();
    assert_eq!(sim.network().sent(), arrived + link.dropped + sim.network().in_network());
}

#[test]
fn a_smaller_mtu_makes_smaller_segments() {
    let mut sim = sim(rate(12, 100));
    let flow = sim.add_flow(&bulk()).unwrap();
    run_constant(&mut sim, S, 40, 0);
    sim.set_mss(flow, 724).unwrap();
    run_more(&mut sim, 2 * S);
    let s = stats(&sim, flow);
    assert_eq!(
        (s.transport.mss_bytes, s.transport.snd_cwnd, s.transport.unacked),
        (724, 80, 80),
        "the same bytes in more packets"
    );
    assert_eq!(sim.set_mss(FlowId(9), 724), Err(SimError::NoFlow(FlowId(9))));
    let refusal = sim.set_mss(flow, 10).unwrap_err().to_string();
    assert_eq!(refusal, "mss_bytes is 10, allowed are 64..=16384");
}

#[test]
fn samples_follow_a_flow() {
    let config = SimConfig { sample_every_us: 100 * MS, ..SimConfig::new(vec![rate(12, 100)], 1) };
    let mut sim = SimDatapath::new(config).unwrap();
    let flow = sim.add_flow(&FlowConfig { start_us: 50 * MS, ..bulk() }).unwrap();
    run_constant(&mut sim, 2 * S, 40, 0);
    sim.close(flow).unwrap();
    assert_eq!(sim.close(flow), Err(SimError::NoFlow(flow)));
    let samples = sim.samples(flow);
    assert_eq!(samples.len(), 20 + 1, "the last one at the end");
    assert_eq!((samples[0].at_us, samples[20].at_us), (100 * MS, 2 * S));
    assert!(samples.windows(2).all(|w| w[0].bytes_acked <= w[1].bytes_acked));
    let last = samples[19];
    assert_eq!((last.cwnd_bytes, last.in_flight_bytes, last.srtt_us), (40 * MSS, 40 * MSS, 40_000));
}

#[test]
fn the_same_seed_gives_the_same_run() {
    let run = |seed| {
        let lossy = LinkConfig { loss_ppm: 5_000, ..rate(20, 50) };
        let mut sim = SimDatapath::new(SimConfig::new(vec![lossy], seed)).unwrap();
        let flows: Vec<FlowId> =
            (0..5).map(|n| sim.add_flow(&FlowConfig { start_us: n * 30 * MS, ..bulk() }).unwrap()).collect();
        let reports = run_constant(&mut sim, 5 * S, 30, 0);
        let stats: Vec<FlowStats> = flows.iter().map(|f| stats(&sim, *f)).collect();
        (sim.network().digest(), reports, stats)
    };
    assert_eq!(run(1), run(1));
    assert_ne!(run(1).0, run(2).0);
}
