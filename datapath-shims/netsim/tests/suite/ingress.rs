//! Tests of impairments before a link's queue, and of constant rates in opportunities.

use ccplane_netsim::{
    Acks, BurstLoss, Capacity, Ingress, LinkConfig, Network, Occurrence, PathConfig, Policer, QueueLimit,
    Reorder, Segment,
};
use proptest::option::of;
use proptest::prelude::*;

const MS: u64 = 1_000_000;

fn link(ingress: Ingress) -> LinkConfig {
    let capacity = Capacity::Rate { bit_per_s: 120_000_000 };
    LinkConfig { ingress, ..LinkConfig::new(capacity, 10 * MS, QueueLimit::Packets(1000)) }
}

/// Sends a segment each millisecond; what is acknowledged as it arrives, in order, with its time.
fn arrivals(net: &mut Network, count: u64) -> Vec<(u64, u64)> {
    let path = PathConfig { acks: Acks::EACH, ..PathConfig::new(vec![0], 0) };
    let flow = net.add_flow(&path).unwrap();
    (0..count).for_each(|n| net.wake_at(n * MS, n));
    let mut seen = Vec::new();
    while let Some(what) = net.next(u64::MAX) {
        match what {
            Occurrence::Wake { token } => {
                net.send(flow, Segment { seq: token, tx: token, bytes: 1500, push: false });
            }
            Occurrence::Ack { .. } => seen.extend(net.acked().iter().map(|d| (d.seq, net.now_ns()))),
            Occurrence::Timer { .. } => {}
        }
    }
    seen
}

#[test]
fn jitter_keeps_order_and_comes_before_the_queue() {
    let mut net = Network::new(vec![link(Ingress { jitter_ns: 20 * MS, ..Ingress::default() })], 3).unwrap();
    let seen = arrivals(&mut net, 5_000);
    assert!(seen.iter().map(|(seq, _)| *seq).eq(0..5_000));
    // Those that a late one held up leave the queue 0.1 ms apart.
    let apart: Vec<u64> = seen.windows(2).map(|pair| pair[1].1 - pair[0].1).collect();
    assert!(apart.iter().all(|ns| *ns >= 100_000), "{:?}", apart.iter().min());
    assert!(apart.iter().filter(|ns| **ns == 100_000).count() > 2_500);
    let late = seen.iter().map(|(seq, at_ns)| at_ns - seq * MS - 10 * MS - 100_000).max().unwrap();
    assert!((19 * MS..21 * MS).contains(&late), "{late}");
}

#[test]
fn held_packets_are_overtaken_by_those_of_their_time() {
    let reorder = Some(Reorder { ppm: 50_000, hold_ns: 5 * MS + MS / 2 });
    let mut net = Network::new(vec![link(Ingress { reorder, ..Ingress::default() })], 3).unwrap();
    let seen = arrivals(&mut net, 10_000);
    assert_eq!(seen.len(), 10_000);
    let late = seen.windows(2).filter(|pair| pair[1].0 < pair[0].0).count();
    assert!((400..560).contains(&late), "{late}");
    let most = seen.windows(6).map(|w| w[0].0.saturating_sub(w[1].0)).max().unwrap();
    assert_eq!(most, 5, "five leave in 5.5 ms");
}

/// A policer of 6 Mb/s lets half of 12 Mb/s through.
#[test]
fn a_policer_takes_what_exceeds_its_rate() {
    let policer = Some(Policer { bit_per_s: 6_000_000, burst_bytes: 15_000 });
    let mut net = Network::new(vec![link(Ingress { policer, ..Ingress::default() })], 1).unwrap();
    let seen = arrivals(&mut net, 10_000);
    // 20 at first: 10 in the bucket, which meanwhile gains 10 more; then each second one.
    assert!((5_005..=5_012).contains(&seen.len()), "{}", seen.len());
    assert_eq!(net.link_stats(0).unwrap().policed, 10_000 - seen.len() as u64);
    assert!(seen[..19].iter().map(|(seq, _)| *seq).eq(0..19));
}

/// The link behaves as the emulator's bottleneck: with room for one, the second of a pair is lost however
/// idle the link was.
#[test]
fn with_opportunities_a_packet_waits_in_the_queue_for_its_own() {
    let run = |capacity| {
        let config = LinkConfig { overhead_bytes: 4, ..LinkConfig::new(capacity, 0, QueueLimit::Packets(1)) };
        let mut net = Network::new(vec![config], 1).unwrap();
        let flow = net.add_flow(&PathConfig { acks: Acks::EACH, ..PathConfig::new(vec![0], 0) }).unwrap();
        // 1504 bytes last a millisecond.
        let mut seen = Vec::new();
        for round in 0..10 {
            assert_eq!(net.next(round * 10 * MS + MS / 4), None);
            (0..2).for_each(|n| {
                let seq = round * 2 + n;
                net.send(flow, Segment { seq, tx: seq, bytes: 1500, push: false });
            });
            while let Some(Occurrence::Ack { .. }) = net.next((round + 1) * 10 * MS) {
                seen.push((net.acked()[0].seq, net.now_ns() - round * 10 * MS));
            }
        }
        seen
    };
    let bit_per_s = 12_032_000;
    let slots = run(Capacity::Slots { bit_per_s });
    assert!(slots.into_iter().eq((0..10).map(|round| (round * 2, MS))), "at the next one, and one of two");
    assert_eq!(run(Capacity::Rate { bit_per_s }).len(), 20);
}

#[test]
fn opportunities_are_as_many_as_the_rate_says() {
    let config = LinkConfig {
        overhead_bytes: 4,
        ..LinkConfig::new(Capacity::Slots { bit_per_s: 7_000_000_000 }, 0, QueueLimit::Packets(700_000))
    };
    let mut net = Network::new(vec![config], 1).unwrap();
    let flow = net.add_flow(&PathConfig::new(vec![0], 60_000 * MS)).unwrap();
    for n in 0..700_000 {
        net.send(flow, Segment { seq: n, tx: n, bytes: 1500, push: false });
    }
    net.next(1_000 * MS);
    // A server that rounded would be 400 packets ahead.
    assert_eq!(net.link_stats(0).unwrap().departed, 7_000_000_000 / 12_032);
}

fn ingress() -> impl Strategy<Value = Ingress> {
    let share = || 0u32..200_000;
    let burst = (share(), 1u32..=1_000_000, share(), share()).prop_map(|(a, b, c, d)| BurstLoss {
        to_bad_ppm: a,
        to_good_ppm: b,
        loss_good_ppm: c,
        loss_bad_ppm: d,
    });
    let policer = (1_000_000u64..20_000_000, 1_500u64..30_000)
        .prop_map(|(bit_per_s, burst_bytes)| Policer { bit_per_s, burst_bytes });
    let reorder = (share(), 0..10 * MS).prop_map(|(ppm, hold_ns)| Reorder { ppm, hold_ns });
    (share(), of(burst), of(policer), 0..5 * MS, of(reorder)).prop_map(
        |(duplicate_ppm, burst_loss, policer, jitter_ns, reorder)| Ingress {
            duplicate_ppm,
            burst_loss,
            policer,
            jitter_ns,
            reorder,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// No packet vanishes or appears but by the counters, at any time, and a seed says what happens.
    #[test]
    fn packets_are_conserved_and_runs_repeat(
        ingress in ingress(), seed in 0u64..4, queue in 1u32..20, loss_ppm in 0u32..100_000,
        slots in any::<bool>(), sends in prop::collection::vec(0u64..2 * MS, 1..300),
    ) {
        let bit_per_s = 12_000_000;
        let capacity = if slots { Capacity::Slots { bit_per_s } } else { Capacity::Rate { bit_per_s } };
        let config = LinkConfig { ingress, loss_ppm, ..LinkConfig::new(capacity, 5 * MS, QueueLimit::Packets(queue)) };
        let run = || {
            let mut net = Network::new(vec![config.clone()], seed).unwrap();
            let flow = net.add_flow(&PathConfig::new(vec![0], MS)).unwrap();
            let mut at_ns = 0;
            for (n, after_ns) in (0u64..).zip(&sends) {
                at_ns += after_ns;
                while net.next(at_ns).is_some() {}
                let lost_before = net.link_stats(0).unwrap().lost;
                let is_lost = net.send(flow, Segment { seq: n, tx: n, bytes: 1500, push: false });
                assert_eq!(is_lost, net.link_stats(0).unwrap().lost > lost_before);
                let (link, receiver) = (net.link_stats(0).unwrap(), net.receiver_stats(flow).unwrap());
                let gone = link.lost + link.policed + link.dropped;
                assert_eq!(net.sent() + link.duplicated, gone + receiver.arrived + net.in_network());
            }
            while net.next(u64::MAX).is_some() {}
            (net.digest(), net.in_network())
        };
        let (digest, left) = run();
        prop_assert_eq!(left, 0);
        prop_assert_eq!(run().0, digest);
    }
}
