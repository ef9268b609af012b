//! Tests priorities and routes: what is served first, what makes room, and which links a packet crosses.

use ccplane_netsim::{
    Capacity, Discipline, FlowIndex, LeafSpine, LinkConfig, Network, Occurrence, PathConfig, QueueLimit,
    Segment,
};

const BYTES: u16 = 1500;
/// The time in which the link sends a packet, nanoseconds.
const SLOT_NS: u64 = 12_000;

fn link(packets: u32) -> LinkConfig {
    let capacity = Capacity::Rate { bit_per_s: 1_000_000_000 };
    let discipline = Discipline::StrictPriority { mark_at: None };
    LinkConfig { discipline, ..LinkConfig::new(capacity, 0, QueueLimit::Packets(packets)) }
}

fn send(net: &mut Network, flow: FlowIndex, seq: u64) {
    net.send(flow, Segment { seq, tx: seq, bytes: BYTES, push: true });
}

/// The flows in the order in which acknowledgements of theirs arrive, with the times, in packets.
fn arrivals(net: &mut Network) -> Vec<(FlowIndex, u64)> {
    let mut all = Vec::new();
    while let Some(occurrence) = net.next(u64::MAX) {
        if let Occurrence::Ack { flow, .. } = occurrence {
            all.extend(net.acked().iter().map(|_| (flow, net.now_ns() / SLOT_NS)));
        }
    }
    all
}

#[test]
fn smaller_priorities_are_served_first_and_each_in_order() {
    let mut net = Network::new(vec![link(100)], 1).unwrap();
    let flows: Vec<_> = (0..4).map(|_| net.add_flow(&PathConfig::new(vec![0], 0)).unwrap()).collect();
    for (flow, priority) in flows.iter().zip([7, 0, 3, 3]) {
        assert!(net.steer(*flow, priority, 0));
    }
    // The first packet is in service when the others come.
    for seq in 0..2 {
        for flow in &flows {
            send(&mut net, *flow, seq);
        }
    }
    let order: Vec<FlowIndex> = arrivals(&mut net).into_iter().map(|(flow, _)| flow).collect();
    assert_eq!(order, [0, 1, 1, 2, 3, 2, 3, 0]);
}

#[test]
fn a_full_queue_drops_the_last_of_the_largest_priority() {
    let mut net = Network::new(vec![link(2)], 1).unwrap();
    let flows: Vec<_> = (0..3).map(|_| net.add_flow(&PathConfig::new(vec![0], 0)).unwrap()).collect();
    for (flow, priority) in flows.iter().zip([2, 5, 1]) {
        assert!(net.steer(*flow, priority, 0));
    }
    // One in service, two wait; a packet of priority 2 then takes the place of one of 5, a third of 5 finds none.
    for (flow, seq) in [(0, 0), (1, 0), (1, 1), (0, 1), (1, 2), (2, 0), (2, 1), (2, 2)] {
        send(&mut net, flow, seq);
    }
    let order: Vec<FlowIndex> = arrivals(&mut net).into_iter().map(|(flow, _)| flow).collect();
    assert_eq!(order, [0, 2, 2]);
    assert_eq!(net.link_stats(0).unwrap().dropped, 5);
}

#[test]
fn each_route_has_links_of_its_own_and_packets_under_way_keep_theirs() {
    let fabric = LeafSpine { leaves: 2, hosts_per_leaf: 2, spines: 3 };
    let (edge, mut core) = (link(100), link(100));
    core.delay_ns = 50 * SLOT_NS;
    let mut net = Network::new(fabric.links(&edge, &core).unwrap(), 1).unwrap();
    let flow = net.add_flow(&fabric.path(0, 3, 0)).unwrap();
    for route in 0..3 {
        assert!(net.steer(flow, 0, route));
        send(&mut net, flow, route.into());
    }
    assert!(!net.steer(flow, 0, 3), "there are three routes");
    assert!(!net.steer(flow, 8, 0), "there are eight priorities");
    assert_eq!(arrivals(&mut net).len(), 3);
    for spine in 0..3 {
        for link in [fabric.to_spine(0, spine), fabric.from_spine(1, spine)] {
            assert_eq!(net.link_stats(link).unwrap().departed, 1, "spine {spine}");
        }
        assert_eq!(net.link_stats(fabric.to_spine(1, spine)).unwrap().departed, 0);
    }
    let near = net.add_flow(&fabric.path(0, 1, 0)).unwrap();
    assert!(!net.steer(near, 0, 1), "hosts of one leaf have one route");
}

#[test]
fn a_fabric_of_64_hosts_fits_a_network_and_a_larger_one_is_refused() {
    let link = link(1);
    let links = |hosts_per_leaf| LeafSpine { leaves: 8, hosts_per_leaf, spines: 4 }.links(&link, &link);
    assert_eq!(links(8).unwrap().len(), 192);
    let error = links(16).unwrap_err().to_string();
    assert_eq!(error, "links is 320, allowed are 1..=256");
}
