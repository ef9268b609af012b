//! The ways there and back: topologies, acknowledgements on links, queues that mark, outages, cross traffic.

use ccplane_netsim::{
    ACK_BYTES, Acks, Capacity, CrossConfig, CrossPattern, Discipline, FlowIndex, LinkConfig, Network,
    Occurrence, Outage, PathConfig, QueueLimit, Segment, Topology,
};
use proptest::prelude::*;

const MS: u64 = 1_000_000;
const S: u64 = 1_000_000_000;

fn rate(mbit: u64) -> LinkConfig {
    let capacity = Capacity::Rate { bit_per_s: mbit * 1_000_000 };
    LinkConfig::new(capacity, 10 * MS, QueueLimit::Packets(1000))
}

fn packet(seq: u64) -> Segment {
    Segment { seq, tx: seq, bytes: 1500, push: false }
}

/// Senders that send one segment for each that is acknowledged, and a new window when nothing comes back.
struct World {
    net: Network,
    next: Vec<u64>,
    /// When each ACK came, with the segments it told of.
    acks: Vec<(FlowIndex, u64, Vec<u64>)>,
    marked: u64,
}

impl World {
    fn new(topology: &Topology, seed: u64) -> World {
        let mut net = Network::new(topology.links.clone(), seed).unwrap();
        topology.paths.iter().for_each(|path| {
            net.add_flow(path).unwrap();
        });
        World { net, next: vec![0; topology.paths.len()], acks: vec![], marked: 0 }
    }

    fn send(&mut self, flow: FlowIndex, count: u64) {
        for _ in 0..count {
            let seq = self.next[flow as usize];
            self.next[flow as usize] += 1;
            self.net.send(flow, packet(seq));
        }
    }

    fn run(&mut self, until_ns: u64, refill: bool) {
        while let Some(seen) = self.net.next(until_ns) {
            let Occurrence::Ack { flow, ack } = seen else { panic!("{seen:?}") };
            let told: Vec<u64> = self.net.acked().iter().map(|d| d.seq).collect();
            self.marked += self.net.acked().iter().filter(|d| d.marked).count() as u64;
            assert_eq!(told.last(), Some(&ack.seq));
            let count = told.len() as u64;
            self.acks.push((flow, self.net.now_ns(), told));
            if refill {
                self.send(flow, count);
            }
        }
    }
}

fn one(path: PathConfig, links: Vec<LinkConfig>) -> World {
    World::new(&Topology { links, paths: vec![path] }, 1)
}

#[test]
fn a_dumbbell_gives_each_flow_its_round_trip() {
    let mut w = World::new(
        &Topology::dumbbell(rate(12), &[0, 5 * MS, 50 * MS]).with_paths(|p| p.acks = Acks::EACH),
        1,
    );
    for flow in 0..3 {
        w.send(flow, 1);
        w.run(S * (u64::from(flow) + 1), false);
    }
    let rtts: Vec<u64> = w.acks.iter().map(|(flow, at_ns, _)| at_ns - u64::from(*flow) * S).collect();
    // 1 ms of service, 10 ms either way, and the access delay on either side twice.
    assert_eq!(rtts, [21 * MS, 31 * MS, 121 * MS]);
}

#[test]
fn a_parking_lot_has_long_and_short_ways() {
    let lot = Topology::parking_lot(vec![rate(12), rate(24), rate(6)], 2, 1);
    let links: Vec<&[u8]> = lot.paths.iter().map(|p| &p.links[..]).collect();
    assert_eq!(links, [&[0, 1, 2][..], &[0, 1, 2], &[0], &[1], &[2]]);
    assert_eq!(lot.paths.iter().map(|p| p.return_delay_ns / MS).collect::<Vec<_>>(), [30, 30, 10, 10, 10]);
    let both = lot.with_return_links(|there| LinkConfig { delay_ns: 2 * there.delay_ns, ..there.clone() });
    assert_eq!((both.links.len(), &both.paths[0].return_links[..]), (6, &[5, 4, 3][..]));
    assert!(both.paths.iter().all(|p| p.return_delay_ns == 0));
    let mut w = World::new(&both, 1);
    w.send(0, 1);
    w.run(S, false);
    let ack_ns = |mbit: u64| u64::from(ACK_BYTES) * 8 * 1000 / mbit;
    // 30 ms there, 60 ms back; 1, 0.5 and 2 ms for the segment.
    assert_eq!(w.acks[0].1, 93 * MS + 500_000 + ack_ns(12) + ack_ns(24) + ack_ns(6));
}

#[test]
fn acknowledgements_queue_on_a_slow_way_back() {
    // 52 bytes take 10.4 ms at 40 kb/s: 96 a second.
    let back = LinkConfig::new(Capacity::Rate { bit_per_s: 40_000 }, 0, QueueLimit::Packets(5));
    let path = PathConfig { acks: Acks::EACH, return_links: vec![1], ..PathConfig::new(vec![0], 0) };
    let mut w = one(path, vec![rate(12), back]);
    w.send(0, 200);
    w.run(10 * S, false);
    let stats = w.net.link_stats(1).unwrap();
    assert_eq!((stats.arrived, w.net.acks_sent()), (200, 200));
    assert!(stats.dropped > 150, "{stats:?}");
    // One that gets through tells of all that were lost before it.
    let told: Vec<u64> = w.acks.iter().flat_map(|(_, _, seqs)| seqs.clone()).collect();
    let last_through = *told.last().unwrap();
    assert!(told.into_iter().eq(0..=last_through));
    assert_eq!(w.net.acks_arrived(), w.acks.len() as u64);
    assert!(w.acks.windows(2).all(|p| p[1].1 - p[0].1 >= 10_400_000));
}

/// Goldens: when each segment's ACK comes, as Linux would send it.
#[test]
fn delayed_acknowledgements_on_the_clock() {
    let path = PathConfig { acks: Acks { quick: 2, ..Acks::LINUX }, ..PathConfig::new(vec![0], 0) };
    let mut w = one(path, vec![rate(12)]);
    w.send(0, 7);
    w.run(S, false);
    let seen: Vec<(u64, usize)> = w.acks.iter().map(|(_, at, told)| (at / MS, told.len())).collect();
    // Two at once, then pairs; the odd one out after 40 ms.
    assert_eq!(seen, [(11, 1), (12, 1), (14, 2), (16, 2), (57, 1)]);
}

#[test]
fn aggregated_acknowledgements_come_in_bursts() {
    for return_links in [vec![], vec![1]] {
        let acks = Acks { aggregate_ns: 5 * MS, ..Acks::EACH };
        let path = PathConfig { acks, return_links, ..PathConfig::new(vec![0], 10 * MS) };
        let fast = LinkConfig { delay_ns: 0, ..rate(100_000) };
        let mut w = one(path, vec![rate(12), fast]);
        w.send(0, 20);
        w.run(S, false);
        let at_ms: Vec<u64> = w.acks.iter().map(|(_, at, _)| at / MS).collect();
        // Segment n arrives after 11 + n ms; let go at the next multiple of 5, 10 ms more on the way.
        assert!(at_ms.into_iter().eq((0..20).map(|n| (11 + n as u64).next_multiple_of(5) + 10)));
        assert_eq!(w.acks.len(), 20);
    }
}

#[test]
fn jitter_delays_but_keeps_the_order() {
    let mut w = one(
        PathConfig { acks: Acks::EACH, ..PathConfig::new(vec![0], 0) },
        vec![LinkConfig { jitter_ns: 20 * MS, ..rate(120) }],
    );
    w.send(0, 500);
    w.run(S, false);
    assert!(w.acks.iter().flat_map(|(_, _, told)| told.clone()).eq(0..500));
    let gaps: Vec<u64> = w.acks.windows(2).map(|p| p[1].1 - p[0].1).collect();
    assert!(gaps.contains(&0) && gaps.iter().any(|gap| *gap > MS), "bursts and gaps");
    let last_ns = w.acks.last().unwrap().1;
    assert!((60 * MS..=80 * MS).contains(&last_ns), "{last_ns}");
}

#[test]
fn an_outage_holds_packets_up() {
    let outages = vec![Outage { from_ns: 5 * MS, until_ns: 105 * MS }];
    let path = PathConfig { acks: Acks::EACH, ..PathConfig::new(vec![0], 0) };
    let mut w = one(path, vec![LinkConfig { outages, ..rate(12) }]);
    w.send(0, 8);
    w.run(S, false);
    let at_ms: Vec<u64> = w.acks.iter().map(|(_, at, _)| at / MS).collect();
    assert_eq!(at_ms, [11, 12, 13, 14, 15, 116, 117, 118]);
    let wrong = vec![Outage { from_ns: 5, until_ns: 9 }, Outage { from_ns: 8, until_ns: 10 }];
    let refusal = Network::new(vec![LinkConfig { outages: wrong, ..rate(1) }], 1).err().unwrap();
    assert_eq!(refusal.to_string(), "outage 1 is out of order");
}

#[test]
fn a_threshold_marks_what_comes_to_a_long_queue() {
    let discipline = Discipline::EcnThreshold { mark_at: QueueLimit::Packets(10) };
    for (ecn, marked) in [(true, 30 - 11), (false, 0)] {
        let path = PathConfig { acks: Acks::EACH, ecn, ..PathConfig::new(vec![0], 0) };
        let mut w = one(path, vec![LinkConfig { discipline, ..rate(12) }]);
        // One in service, ten wait unmarked, the rest finds ten or more.
        w.send(0, 30);
        w.run(S, false);
        assert_eq!((w.marked, w.net.link_stats(0).unwrap().marked), (marked, marked));
        assert_eq!(w.net.receiver_stats(0).unwrap().marked, marked);
    }
}

#[test]
fn drophead_keeps_the_newest() {
    let link = LinkConfig { discipline: Discipline::DropHead, queue: QueueLimit::Packets(3), ..rate(12) };
    let mut w = one(PathConfig { acks: Acks::EACH, ..PathConfig::new(vec![0], 0) }, vec![link]);
    w.send(0, 10);
    w.run(S, false);
    let arrived: Vec<u64> = w.acks.iter().flat_map(|(_, _, told)| told.clone()).collect();
    assert_eq!(arrived, [0, 7, 8, 9]);
    assert_eq!(w.net.link_stats(0).unwrap().dropped, 6);
}

/// A window far too large for a droptail queue's delay: CoDel and PIE hold the queue at theirs, by drops or marks.
#[test]
fn active_queues_hold_their_delay() {
    let standing = |discipline: Discipline| {
        let path = PathConfig { acks: Acks::EACH, ecn: true, ..PathConfig::new(vec![0], 10 * MS) };
        let mut w = one(path, vec![LinkConfig { discipline, ..rate(12) }]);
        w.send(0, 60);
        // A crude response: an extra segment each 100 ms, none for one that is lost or marked.
        let (mut sum, mut samples) = (0, 0);
        for step in 1..600 {
            let marked = w.marked;
            w.run(step * 100 * MS, true);
            w.send(0, 1);
            if w.marked > marked {
                w.run(step * 100 * MS + 20 * MS, false);
            }
            if step > 300 {
                sum += w.net.queue_bytes(0).unwrap();
                samples += 1;
            }
        }
        let stats = w.net.link_stats(0).unwrap();
        (sum / samples / 1500, stats.dropped, stats.marked)
    };
    let (droptail, _, _) = standing(Discipline::DropTail);
    assert!(droptail > 200, "{droptail} packets");
    for (discipline, most) in [(Discipline::CODEL, 30), (Discipline::PIE, 60)] {
        let (queue, dropped, marked) = standing(discipline);
        assert!(queue < most && dropped > 10 && marked == 0, "{discipline:?}: {queue}, {dropped} dropped");
    }
    let Discipline::Codel { target_ns, interval_ns, .. } = Discipline::CODEL else { panic!() };
    let (queue, dropped, marked) = standing(Discipline::Codel { target_ns, interval_ns, ecn: true });
    assert!(queue < 60 && dropped == 0 && marked > 10, "{queue}, {dropped}, {marked}");
}

#[test]
fn cross_traffic_keeps_its_rate() {
    let on_off = CrossPattern::OnOff { on_ns: 100 * MS, off_ns: 300 * MS };
    for (pattern, percent, tolerance) in
        [(CrossPattern::Constant, 100, 0), (CrossPattern::Poisson, 100, 2), (on_off, 25, 3)]
    {
        let mut net = Network::new(vec![rate(100)], 5).unwrap();
        let config = CrossConfig { pattern, end_ns: 100 * S, ..CrossConfig::new(vec![0], 12_000_000) };
        let source = net.add_cross(&config).unwrap();
        assert_eq!(net.next(u64::MAX), None);
        let stats = net.cross_stats(source).unwrap();
        assert_eq!((stats.sent, net.cross_in_network()), (stats.delivered, 0));
        let expected = 100_000 * percent / 100;
        assert!(stats.sent.abs_diff(expected) <= expected * tolerance / 100, "{pattern:?}: {stats:?}");
    }
    let mut net = Network::new(vec![rate(100)], 5).unwrap();
    assert!(net.add_cross(&CrossConfig::new(vec![1], 1)).is_err());
    assert!(net.add_cross(&CrossConfig::new(vec![0], 0)).is_err());
}

#[test]
fn cross_traffic_takes_its_share_of_a_queue() {
    let mut w = one(PathConfig { acks: Acks::EACH, ..PathConfig::new(vec![0], 10 * MS) }, vec![rate(12)]);
    w.net.add_cross(&CrossConfig::new(vec![0], 9_000_000)).unwrap();
    w.send(0, 30);
    w.run(5 * S, true);
    let before = w.acks.len();
    w.run(10 * S, true);
    // A quarter of 1000 packets a second is left.
    assert!((w.acks.len() - before).abs_diff(5 * 250) < 5, "{}", w.acks.len() - before);
}

/// A digest over all of it, kept across versions.
#[test]
fn a_run_of_everything_is_the_same_on_every_machine() {
    let run = |seed| {
        let mut w = everything(seed);
        (w.run(3 * S, true), w.net.digest())
    };
    assert_eq!(run(1), run(1));
    assert_ne!(run(1), run(2));
    assert_eq!(run(1).1, 4_210_968_386_432_154_658);
}

fn everything(seed: u64) -> World {
    let mut links = vec![rate(12), rate(9), rate(15)];
    links[0].discipline = Discipline::CODEL;
    links[0].jitter_ns = MS;
    links[1].discipline = Discipline::PIE;
    links[1].loss_ppm = 5_000;
    links[2].discipline = Discipline::EcnThreshold { mark_at: QueueLimit::Packets(5) };
    links[2].outages = vec![Outage { from_ns: 400 * MS, until_ns: 500 * MS }];
    let mut n = 0;
    let topology = Topology::parking_lot(links, 2, 2)
        .with_return_links(|there| LinkConfig { loss_ppm: 20_000, outages: vec![], ..there.clone() })
        .with_paths(|path| {
            n += 1;
            path.ecn = n % 2 == 0;
            path.access_delay_ns = n * MS;
            path.acks.aggregate_ns = if n % 3 == 0 { 2 * MS } else { 0 };
        });
    let flows = topology.paths.len() as u32;
    let mut w = World::new(&topology, seed);
    for (link, pattern) in
        [(0, CrossPattern::Poisson), (1, CrossPattern::OnOff { on_ns: 50 * MS, off_ns: 50 * MS })]
    {
        w.net.add_cross(&CrossConfig { pattern, ..CrossConfig::new(vec![link], 3_000_000) }).unwrap();
    }
    (0..flows).for_each(|flow| w.send(flow, 40));
    w
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    /// Every segment, acknowledgement and packet of cross traffic is delivered, lost, dropped or under way.
    #[test]
    fn everything_is_conserved(seed: u64, until_ms in 1u64..1500) {
        let mut w = everything(seed);
        w.run(until_ms * MS, true);
        let net = &w.net;
        let links = (0..6).map(|l| net.link_stats(l).unwrap());
        let gone: u64 = links.map(|s| s.lost + s.dropped).sum();
        let arrived: u64 = (0..8).map(|f| net.receiver_stats(f).unwrap().arrived).sum();
        let cross = [0, 1].map(|c| net.cross_stats(c).unwrap());
        let sent = net.sent() + net.acks_sent() + cross.iter().map(|c| c.sent).sum::<u64>();
        let delivered = arrived + net.acks_arrived() + cross.iter().map(|c| c.delivered).sum::<u64>();
        let under_way = net.in_network() + net.acks_in_network() + net.cross_in_network();
        prop_assert_eq!(sent, delivered + gone + under_way);
        prop_assert_eq!(net.sent(), w.next.iter().sum::<u64>());
        for link in 0..6 {
            let s = net.link_stats(link).unwrap();
            prop_assert_eq!(s.arrived, s.lost + s.dropped + s.departed + net.held_packets(link).unwrap());
        }
        // Each path keeps its order, whatever happens on it.
        for flow in 0..8 {
            let told: Vec<u64> = w.acks.iter().filter(|a| a.0 == flow).flat_map(|a| a.2.clone()).collect();
            prop_assert!(told.windows(2).all(|p| p[0] < p[1]));
        }
    }
}
