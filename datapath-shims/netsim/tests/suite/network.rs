//! The network's behaviour, seen from a sender that keeps a fixed number of segments in flight.

use ccplane_netsim::trace::Trace;
use ccplane_netsim::{
    Acks, Capacity, ConfigError, FlowIndex, LinkChange, LinkConfig, Network, Occurrence, PathConfig,
    QueueLimit, Segment,
};
use proptest::prelude::*;

const MS: u64 = 1_000_000;
const S: u64 = 1_000_000_000;
const WIRE_BYTES: u16 = 1500;

fn link(capacity: Capacity) -> LinkConfig {
    LinkConfig::new(capacity, 10 * MS, QueueLimit::Packets(1000))
}

fn rate(mbit: u64) -> LinkConfig {
    link(Capacity::Rate { bit_per_s: mbit * 1_000_000 })
}

fn path(links: &[u8]) -> PathConfig {
    PathConfig { acks: Acks::EACH, ..PathConfig::new(links.to_vec(), 10 * MS) }
}

/// Flows that keep `window` segments in flight and never look back.
struct World {
    net: Network,
    sent: Vec<u64>,
    acked: Vec<u64>,
    last_rtt_ns: Vec<u64>,
    sent_at_ns: Vec<Vec<u64>>,
}

impl World {
    fn new(links: Vec<LinkConfig>, seed: u64) -> World {
        let net = Network::new(links, seed).unwrap();
        World { net, sent: vec![], acked: vec![], last_rtt_ns: vec![], sent_at_ns: vec![] }
    }

    fn flow(&mut self, config: &PathConfig, window: u64) -> FlowIndex {
        let flow = self.net.add_flow(config).unwrap();
        self.sent.push(0);
        self.acked.push(0);
        self.last_rtt_ns.push(0);
        self.sent_at_ns.push(vec![]);
        (0..window).for_each(|_| self.send(flow));
        flow
    }

    fn send(&mut self, flow: FlowIndex) {
        let seq = self.sent[flow as usize];
        self.sent[flow as usize] += 1;
        self.sent_at_ns[flow as usize].push(self.net.now_ns());
        self.net.send(flow, Segment { seq, tx: seq, bytes: WIRE_BYTES, push: false });
    }

    fn run(&mut self, until_ns: u64) {
        while let Some(seen) = self.net.next(until_ns) {
            let Occurrence::Ack { flow, ack } = seen else { panic!("{seen:?}") };
            self.acked[flow as usize] += 1;
            self.last_rtt_ns[flow as usize] =
                self.net.now_ns() - self.sent_at_ns[flow as usize][ack.tx as usize];
            self.send(flow);
        }
    }
}

#[test]
fn a_full_window_fills_the_link_exactly() {
    let mut w = World::new(vec![rate(12)], 1);
    w.flow(&path(&[0]), 40);
    w.run(10 * S);
    // 1500 bytes take 1 ms at 12 Mb/s: segment n is acknowledged at n + 20 ms.
    assert_eq!(w.acked[0], 10_000 - 20);
    // 40 in flight, one leaves each ms.
    assert_eq!(w.last_rtt_ns[0], 40 * MS);
    // 20 on the wire, 1 in service.
    assert_eq!(w.net.queue_bytes(0), Some(19 * 1500));
}

#[test]
fn a_small_window_leaves_the_queue_empty() {
    let mut w = World::new(vec![rate(12)], 1);
    w.flow(&path(&[0]), 1);
    w.run(21 * 100 * MS);
    assert_eq!((w.acked[0], w.last_rtt_ns[0]), (100, 21 * MS));
    assert_eq!(w.net.link_stats(0).unwrap().max_queue_bytes, 0);
}

#[test]
fn a_rate_that_does_not_divide_stays_exact() {
    // 1714.29 ns a packet: a server that rounded would be 97 packets ahead after a second.
    let mut w = World::new(vec![LinkConfig { queue: QueueLimit::Packets(12_000), ..rate(7000) }], 1);
    w.flow(&path(&[0]), 12_000);
    w.run(S);
    assert_eq!(w.net.link_stats(0).unwrap().departed, 7_000_000_000 / 12_000);
}

#[test]
fn droptail_ends_where_it_is_told() {
    for (queue, held) in
        [(QueueLimit::Packets(7), 8), (QueueLimit::Bytes(7 * 1500), 8), (QueueLimit::Bytes(1499), 1)]
    {
        let mut net = Network::new(vec![LinkConfig { queue, ..rate(12) }], 1).unwrap();
        let flow = net.add_flow(&path(&[0])).unwrap();
        for n in 0..20 {
            net.send(flow, Segment { seq: n, tx: n, bytes: WIRE_BYTES, push: false });
        }
        assert_eq!(net.held_packets(0), Some(held));
        assert_eq!(net.link_stats(0).unwrap().dropped, 20 - held);
        let first: Vec<u64> = std::iter::from_fn(|| net.next(u64::MAX))
            .map(|seen| match seen {
                Occurrence::Ack { ack, .. } => ack.seq,
                other => panic!("{other:?}"),
            })
            .collect();
        assert!(first.into_iter().eq(0..held));
    }
}

#[test]
fn a_trace_serves_its_opportunities() {
    // Full-size tun packets: every opportunity carries one.
    let trace = Trace::parse("3\n3\n10\n").unwrap();
    let config = link(Capacity::Trace { trace, repeat: true });
    let mut net = Network::new(vec![config], 1).unwrap();
    let flow = net.add_flow(&PathConfig { return_delay_ns: 0, ..path(&[0]) }).unwrap();
    for n in 0..7 {
        net.send(flow, Segment { seq: n, tx: n, bytes: 1504, push: false });
    }
    let mut at_ms = vec![];
    while net.next(u64::MAX).is_some() {
        at_ms.push(net.now_ns() / MS - 10);
    }
    assert_eq!(at_ms, [3, 3, 10, 13, 13, 20, 23]);
    // An idle link can't use what passed, nor the millisecond that the packet arrives in.
    net.next(43 * MS + 400_000);
    net.send(flow, Segment { seq: 7, tx: 7, bytes: 100, push: false });
    assert!(net.next(u64::MAX).is_some());
    assert_eq!(net.now_ns() / MS - 10, 50);
}

#[test]
fn a_packet_larger_than_the_queue_is_dropped() {
    let trace = Trace::parse("1\n").unwrap();
    let small =
        LinkConfig { queue: QueueLimit::Bytes(1000), ..link(Capacity::Trace { trace, repeat: true }) };
    let mut net = Network::new(vec![small], 1).unwrap();
    let flow = net.add_flow(&path(&[0])).unwrap();
    for (seq, bytes) in [1500, 900].into_iter().enumerate() {
        net.send(flow, Segment { seq: seq as u64, tx: seq as u64, bytes, push: false });
    }
    assert!(matches!(net.next(u64::MAX), Some(Occurrence::Ack { ack, .. }) if ack.seq == 1));
    assert_eq!((net.link_stats(0).unwrap().dropped, net.in_network()), (1, 0));
}

#[test]
fn packets_span_opportunities() {
    let trace = Trace::parse("1\n2\n3\n").unwrap();
    let mut net = Network::new(vec![link(Capacity::Trace { trace, repeat: false })], 1).unwrap();
    let flow = net.add_flow(&PathConfig { return_delay_ns: 0, ..path(&[0]) }).unwrap();
    // 752 + 2000 bytes: done with 1.83 opportunities. 1760 more: past the trace's end.
    for (n, bytes) in [752, 2000, 1761].into_iter().enumerate() {
        net.send(flow, Segment { seq: n as u64, tx: n as u64, bytes, push: false });
    }
    let mut at_ms = vec![];
    while net.next(u64::MAX).is_some() {
        at_ms.push(net.now_ns() / MS - 10);
    }
    assert_eq!(at_ms, [1, 2]);
    assert_eq!(net.in_network(), 1, "the link is dead and holds the third");
}

#[test]
fn a_busy_trace_is_used_in_full() {
    let trace = Trace::constant(12).unwrap();
    let mut w = World::new(vec![link(Capacity::Trace { trace: trace.clone(), repeat: true })], 1);
    w.flow(&path(&[0]), 60);
    w.run(trace.period_ms() * 20 * MS);
    let bits = w.net.link_stats(0).unwrap().departed_bytes * 8;
    let offered = trace.mean_rate_bit_per_s() * trace.period_ms() * 20 / 1000;
    // All but the last, partly served packet.
    assert!(offered - bits < 12_000, "{bits} of {offered}");
}

#[test]
fn loss_comes_at_its_rate() {
    for ppm in [1_000, 20_000, 500_000] {
        let mut net = Network::new(vec![LinkConfig { loss_ppm: ppm, ..rate(1000) }], 7).unwrap();
        let flow = net.add_flow(&path(&[0])).unwrap();
        let (n, mut lost): (u64, u64) = (200_000, 0);
        for seq in 0..n {
            lost += u64::from(net.send(flow, Segment { seq, tx: seq, bytes: WIRE_BYTES, push: false }));
            while net.next((seq + 1) * 12_000).is_some() {}
        }
        assert_eq!(lost, net.link_stats(0).unwrap().lost);
        let mean = n * u64::from(ppm) / 1_000_000;
        // Six standard deviations of a binomial, squared.
        let variance = mean * (1_000_000 - u64::from(ppm)) / 1_000_000;
        assert!(lost.abs_diff(mean).pow(2) < 36 * variance, "{lost} of {mean}");
        assert_eq!(net.link_stats(0).unwrap().dropped, 0);
    }
    let mut net = Network::new(vec![LinkConfig { loss_ppm: 1_000_000, ..rate(10) }], 7).unwrap();
    let flow = net.add_flow(&path(&[0])).unwrap();
    for n in 0..100 {
        assert!(net.send(flow, Segment { seq: n, tx: n, bytes: WIRE_BYTES, push: false }));
    }
    assert_eq!(net.next(u64::MAX), None);
}

#[test]
fn links_lose_independently() {
    let lossy = LinkConfig { loss_ppm: 500_000, ..rate(1000) };
    let mut net = Network::new(vec![lossy.clone(), lossy], 7).unwrap();
    let flows = [net.add_flow(&path(&[0])).unwrap(), net.add_flow(&path(&[1])).unwrap()];
    for seq in 0..64 {
        for flow in flows {
            net.send(flow, Segment { seq, tx: seq, bytes: WIRE_BYTES, push: false });
        }
    }
    let mut arrived = [vec![], vec![]];
    while let Some(Occurrence::Ack { flow, ack }) = net.next(u64::MAX) {
        arrived[flow as usize].push(ack.seq);
    }
    assert_ne!(arrived[0], arrived[1]);
}

#[test]
fn flows_cross_their_own_links() {
    let mut w = World::new(vec![rate(12), rate(6)], 1);
    let (long, short) = (w.flow(&path(&[0, 1]), 1), w.flow(&path(&[1]), 1));
    w.run(S);
    // 1 + 10 + 2 + 10 + 10 ms, and 2 + 10 + 10 ms.
    assert_eq!(w.last_rtt_ns[long as usize], 33 * MS);
    assert_eq!(w.last_rtt_ns[short as usize], 22 * MS);
    assert_eq!(w.net.link_stats(0).unwrap().arrived, w.sent[0]);
}

#[test]
fn timers_fire_once_at_the_last_time_set() {
    let mut net = Network::new(vec![rate(12)], 1).unwrap();
    let flow = net.add_flow(&path(&[0])).unwrap();
    let due = |timer| Some(Occurrence::Timer { flow, timer });
    net.set_timer(flow, 0, Some(5 * MS));
    net.set_timer(flow, 1, Some(6 * MS));
    net.set_timer(flow, 0, Some(9 * MS));
    net.set_timer(flow, 0, Some(7 * MS));
    assert_eq!((net.next(u64::MAX), net.now_ns()), (due(1), 6 * MS));
    assert_eq!((net.next(u64::MAX), net.now_ns()), (due(0), 7 * MS));
    assert_eq!(net.next(u64::MAX), None);
    net.set_timer(flow, 0, Some(20 * MS));
    net.set_timer(flow, 0, Some(10 * MS));
    assert_eq!((net.next(u64::MAX), net.now_ns()), (due(0), 10 * MS));
    net.set_timer(flow, 0, Some(15 * MS));
    net.set_timer(flow, 0, None);
    net.wake_at(30 * MS, 77);
    assert_eq!((net.next(u64::MAX), net.now_ns()), (Some(Occurrence::Wake { token: 77 }), 30 * MS));
    net.set_timer(flow, 0, Some(1));
    assert_eq!((net.next(u64::MAX), net.now_ns()), (due(0), 30 * MS));
}

#[test]
fn refuses_what_is_out_of_range() {
    let refusal = |c: LinkConfig| Network::new(vec![c], 1).err().map(|e| e.to_string()).unwrap();
    assert_eq!(refusal(rate(0)), "bit_per_s is 0, allowed are 1..=1000000000000");
    assert_eq!(
        refusal(LinkConfig { loss_ppm: 1_000_001, ..rate(1) }),
        "loss_ppm is 1000001, allowed are 0..=1000000"
    );
    assert_eq!(
        refusal(LinkConfig { queue: QueueLimit::Packets(0), ..rate(1) }),
        "queue packets is 0, allowed are 1..=1048576"
    );
    let mut net = Network::new(vec![rate(1)], 1).unwrap();
    assert_eq!(net.add_flow(&path(&[0, 1])), Err(ConfigError::NoLink { found: 1, links: 1 }));
    assert_eq!(net.add_flow(&path(&[])).unwrap_err().to_string(), "hops is 0, allowed are 1..=16");
}

fn mixed_world(seed: u64) -> World {
    let trace = Trace::parse("2\n3\n3\n9\n20\n").unwrap();
    let lossy = LinkConfig { loss_ppm: 30_000, queue: QueueLimit::Packets(30), ..rate(20) };
    let mut w = World::new(vec![lossy, link(Capacity::Trace { trace, repeat: true })], seed);
    for n in 0..10u64 {
        let links: &[u8] = if n.is_multiple_of(2) { &[0] } else { &[0, 1] };
        w.flow(&PathConfig { return_delay_ns: n * MS, ..path(links) }, 30);
    }
    w.run(S);
    w
}

#[test]
fn the_same_seed_gives_the_same_run() {
    let run = |seed| {
        let w = mixed_world(seed);
        (w.net.digest(), w.acked, w.last_rtt_ns)
    };
    assert_eq!(run(1), run(1));
    assert_ne!(run(1).0, run(2).0);
}

/// A digest kept across versions: a change here means that the simulator no longer replays old runs.
#[test]
fn a_run_is_the_same_on_every_machine() {
    let w = mixed_world(1);
    assert_eq!(w.net.link_stats(0).unwrap().lost, 36);
    assert_eq!(w.net.digest(), 14_701_075_896_901_777_421);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn packets_are_conserved(
        seed: u64, loss_ppm in 0u32..200_000, queue in 1u32..40, kbit in 100u64..50_000,
        windows in prop::collection::vec(1u64..80, 1..6), until_ms in 1u64..2000,
    ) {
        let capacity = Capacity::Rate { bit_per_s: kbit * 1000 };
        let config = LinkConfig { loss_ppm, ..LinkConfig::new(capacity, 5 * MS, QueueLimit::Packets(queue)) };
        let mut w = World::new(vec![config, rate(3)], seed);
        for (n, window) in windows.iter().enumerate() {
            w.flow(&path(if n == 0 { &[0, 1] } else { &[0] }), *window);
        }
        w.run(until_ms * MS);
        let gone: u64 = (0..2).map(|l| w.net.link_stats(l).unwrap()).map(|s| s.lost + s.dropped).sum();
        let arrived: u64 = (0..windows.len()).map(|f| w.net.receiver_stats(f as u32).unwrap().arrived).sum();
        prop_assert_eq!(w.net.sent(), w.sent.iter().sum::<u64>());
        prop_assert_eq!(w.net.sent(), gone + arrived + w.net.in_network());
    }
}

/// Half of the rate, three times the delay, and then everything is lost.
#[test]
fn a_link_changes_while_it_runs() {
    let mut w = World::new(vec![rate(12)], 1);
    w.flow(&path(&[0]), 40);
    w.run(S);
    let change = LinkChange { bit_per_s: Some(6_000_000), delay_ns: Some(30 * MS), loss_ppm: None };
    w.net.change_link(0, &change).unwrap();
    assert_eq!(w.net.base_rtt_ns(0), Some(40 * MS));
    w.run(2 * S);
    let before = w.acked[0];
    w.run(3 * S);
    assert_eq!(w.acked[0] - before, 500);
    // 40 in flight, one leaves each 2 ms.
    assert_eq!(w.last_rtt_ns[0], 80 * MS);
    // Shorter again: nobody overtakes, none is lost, and the 15 that were under way come beside those behind them.
    w.net.change_link(0, &LinkChange { delay_ns: Some(0), ..LinkChange::default() }).unwrap();
    w.run(4 * S);
    assert_eq!(w.acked[0] - before - 500, 515);
    w.net.change_link(0, &LinkChange { loss_ppm: Some(1_000_000), ..LinkChange::default() }).unwrap();
    w.run(5 * S);
    assert_eq!(w.net.link_stats(0).unwrap().lost, 40);
}

#[test]
fn a_change_that_cannot_be_changes_nothing() {
    let trace = Trace::parse("1\n").unwrap();
    let mut net = Network::new(vec![rate(12), link(Capacity::Trace { trace, repeat: true })], 1).unwrap();
    let slow = LinkChange { bit_per_s: Some(1), delay_ns: Some(0), loss_ppm: None };
    assert_eq!(net.change_link(1, &slow), Err(ConfigError::NoRate { link: 1 }));
    assert_eq!(net.change_link(2, &slow), Err(ConfigError::NoLink { found: 2, links: 2 }));
    let lossy = LinkChange { loss_ppm: Some(1_000_001), delay_ns: Some(0), bit_per_s: None };
    assert!(matches!(net.change_link(0, &lossy), Err(ConfigError::OutOfRange { field: "loss_ppm", .. })));
    let flow = net.add_flow(&path(&[0, 1])).unwrap();
    assert_eq!(net.base_rtt_ns(flow), Some(30 * MS));
}
