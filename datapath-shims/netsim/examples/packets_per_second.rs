//! The speed of the simulator: packets of flows with a fixed window, per second of real time.

use ccplane_netsim::{
    Acks, Capacity, ConfigError, LinkConfig, Network, Occurrence, PathConfig, QueueLimit, Segment,
};
use std::time::Instant;

const VIRTUAL_NS: u64 = 20_000_000_000;

fn main() -> Result<(), ConfigError> {
    for (flows, window) in [(1, 200u64), (10, 50), (100, 20), (1000, 10)] {
        let capacity = Capacity::Rate { bit_per_s: 1_000_000_000 };
        let link =
            LinkConfig { loss_ppm: 10, ..LinkConfig::new(capacity, 1_000_000, QueueLimit::Packets(20_000)) };
        let mut net = Network::new(vec![link], 1)?;
        let mut next_seq = vec![0u64; flows];
        let mut send = |net: &mut Network, flow: u32| {
            let seq = next_seq[flow as usize];
            next_seq[flow as usize] += 1;
            net.send(flow, Segment { seq, tx: seq, bytes: 1500, push: false });
        };
        for n in 0..flows {
            let flow = net.add_flow(&PathConfig {
                acks: Acks::EACH,
                ..PathConfig::new(vec![0], n as u64 % 7 * 100_000)
            })?;
            (0..window).for_each(|_| send(&mut net, flow));
        }
        let start = Instant::now();
        while let Some(Occurrence::Ack { flow, .. }) = net.next(VIRTUAL_NS) {
            send(&mut net, flow);
        }
        let ns = start.elapsed().as_nanos() as u64;
        let packets = net.sent();
        println!("{flows} flows: {packets} packets, {} ns each", ns / packets.max(1));
    }
    Ok(())
}
