//! Tests of segment trains on links whose queues hold few packets.

use crate::common::*;
use ccplane_netsim::Capacity;
use ccplane_sim::{FlowConfig, SimDatapath, Source, Stack};

/// 12 Mb/s in opportunities of one packet a millisecond, 20 ms, room for so many.
fn run(stack: Stack, queue_packets: u32, packets: u64, rate: u64) -> (SimDatapath, u64) {
    let mut sim = sim(link(Capacity::Slots { bit_per_s: 12_032_000 }, queue_packets));
    let flow = sim.add_flow(&FlowConfig { stack, ..flow(Source::Bulk) }).unwrap();
    run_constant(&mut sim, 10 * S, packets, rate as i64);
    let delivered = sim.stats(flow).unwrap().transport.delivered;
    (sim, delivered)
}

/// Half of the link's rate, paced: alone each packet finds the link free; of a pair the second one finds no room.
#[test]
fn behind_room_for_one_packet_half_of_each_pair_is_lost() {
    let gone = |sim: &SimDatapath| sim.network().link_stats(0).unwrap().dropped;
    let (single, delivered) = run(Stack::Segments, 1, 1000, 500 * MSS);
    assert!(delivered > 4_900, "{delivered}");
    // Of the first ten, which come at once, nine are lost.
    assert_eq!(gone(&single), 9);
    let (pairs, delivered) = run(Stack::Linux, 1, 1000, 500 * MSS);
    let sent = pairs.network().sent();
    assert!(sent > 4_800, "{sent}");
    let lost = gone(&pairs) as f64 / sent as f64;
    assert!((0.45..0.55).contains(&lost), "{lost}");
    assert!((2_200..2_800).contains(&delivered), "{delivered}");
    // A flow of ours leaves in single segments there.
    let (steered, delivered) = run(Stack::Steered, 1, 1000, 500 * MSS);
    assert!(gone(&steered) < 20 && delivered > 4_800, "{} {delivered}", gone(&steered));
    // With room for two, none.
    let (roomy, delivered) = run(Stack::Linux, 2, 1000, 500 * MSS);
    assert!(gone(&roomy) < 10 && delivered > 4_900, "{} {delivered}", gone(&roomy));
}

/// The window and the rate are the same, whatever they come in.
#[test]
fn trains_carry_no_less_where_there_is_room() {
    for (packets, rate) in [(40, 0), (1000, 900 * MSS), (3, 0)] {
        let delivered = [Stack::Segments, Stack::Linux].map(|stack| run(stack, 100, packets, rate).1);
        assert!(delivered[1] * 100 >= delivered[0] * 97, "{packets} {rate}: {delivered:?}");
        assert!(delivered[1] <= delivered[0] + delivered[0] / 50, "{packets} {rate}: {delivered:?}");
    }
}
