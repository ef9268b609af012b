//! Prints both worlds beside each other, as CSV: `compare ALGORITHM MBIT ONE_WAY_MS QUEUE_PACKETS [TRACE]`.

use ccplane_netsim::trace::Trace;
use ccplane_validation::{Capacity, Outcome, Scenario, emulate, simulate};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [algorithm, mbit, one_way_ms, queue_packets, trace @ ..] = args.as_slice() else {
        return Err("compare ALGORITHM MBIT ONE_WAY_MS QUEUE_PACKETS [TRACE]".into());
    };
    let capacity = match trace.first() {
        Some(file) => Capacity::Trace(Trace::load(file.as_ref())?),
        None => Capacity::Rate(mbit.parse::<u64>()? * 1_000_000),
    };
    let scenario = Scenario {
        name: "compare".into(),
        algorithm: algorithm.clone(),
        capacity,
        one_way_delay_us: one_way_ms.parse::<u64>()? * 1000,
        queue_packets: queue_packets.parse()?,
        from_us: 2_000_000,
        until_us: 22_000_000,
    };
    let sim = simulate(&scenario)?;
    let kernel = emulate(std::slice::from_ref(&scenario), "x")?.remove(0);
    println!("ms,sim_cwnd,sim_srtt,sim_delivered,sim_lost,cwnd,srtt,delivered,lost");
    for point in sim.points.iter().step_by(5) {
        let near = kernel.points.partition_point(|k| k.at_us < point.at_us);
        let Some(k) = kernel.points.get(near) else { break };
        println!(
            "{},{},{},{},{},{},{},{},{}",
            point.at_us / 1000,
            point.cwnd_packets,
            point.srtt_us,
            point.delivered,
            point.lost,
            k.cwnd_packets,
            k.srtt_us,
            k.delivered,
            k.lost
        );
    }
    let line = |name: &str, o: &Outcome| {
        println!(
            "# {name}: {:.0} bit/s, {:.0} us",
            o.throughput_bit_per_s(&scenario),
            o.mean_rtt_us(&scenario)
        );
    };
    line("simulator", &sim);
    line("emulator", &kernel);
    Ok(())
}
