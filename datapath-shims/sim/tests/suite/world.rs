//! Flows in larger worlds: several bottlenecks, marks, lost acknowledgements, workloads, a data centre's incast, an
//! agent that takes its time, rows that wait for theirs.

use crate::common::*;
use ccplane_contract::suite::images::idle;
use ccplane_contract::{Datapath, Event, FlowId, Part, ProgramUid};
use ccplane_infer::{Bits, Shape};
use ccplane_netsim::workload::{Arrivals, FlowSizes};
use ccplane_netsim::{
    Acks, Capacity, CrossConfig, Discipline, LinkConfig, Outage, PathConfig, QueueLimit, Topology,
};
use ccplane_program::compile;
use ccplane_sim::{FlowConfig, SimConfig, SimDatapath, Source, Wake};

/// The flows of a topology, all bulk, from time 0 on.
fn on(topology: &Topology, seed: u64) -> (SimDatapath, Vec<FlowId>) {
    let mut sim = SimDatapath::new(SimConfig::new(topology.links.clone(), seed)).unwrap();
    let flow = |path: &PathConfig| FlowConfig { path: path.clone(), ..FlowConfig::new(Source::Bulk, 0) };
    let flows = topology.paths.iter().map(|p| sim.add_flow(&flow(p)).unwrap()).collect();
    (sim, flows)
}

fn delivered(sim: &SimDatapath, flow: FlowId) -> u64 {
    sim.stats(flow).unwrap().transport.delivered
}

#[test]
fn on_a_parking_lot_the_long_flow_gets_less() {
    let (mut sim, flows) = on(&Topology::parking_lot(vec![rate(12, 40); 3], 1, 1), 1);
    sim.step_until(120 * S);
    let got: Vec<u64> = flows.iter().map(|f| delivered(&sim, *f)).collect();
    // Three times the losses and the round trip: Reno gives it far less than half of each link, and leaves none idle.
    assert!(got[1..].iter().all(|short| got[0] * 3 < *short), "{got:?}");
    assert!(got[1..].iter().all(|short| (got[0] + short) * 100 > 120_000 * 95), "{got:?}");
}

#[test]
fn marks_are_answered_without_loss() {
    let mut link = rate(12, 200);
    link.discipline = Discipline::EcnThreshold { mark_at: QueueLimit::Packets(15) };
    for ecn in [true, false] {
        let paths = Topology::dumbbell(link.clone(), &[0, 0]).with_paths(|p| p.ecn = ecn);
        let (mut sim, flows) = on(&paths, 1);
        sim.step_until(30 * S);
        let stats = sim.network().link_stats(0).unwrap();
        let lost: u64 = flows.iter().map(|f| sim.stats(*f).unwrap().transport.lost).sum();
        let total: u64 = flows.iter().map(|f| delivered(&sim, *f)).sum();
        assert!(total > 26_000, "{total}");
        assert_eq!((lost == 0, stats.marked > 20), (ecn, ecn), "{lost} lost, {stats:?}");
        // Slow start overshoots by what it sends before the first mark is back.
        assert_eq!(stats.max_queue_bytes < 120 * 1500, ecn, "{stats:?}");
    }
}

const MARKS: &str = "(def (Report (packets 0) (bytes 0) (acked 0)))
    (when true (:= Report.packets (+ Report.packets Ack.ecn_packets))
      (:= Report.bytes (+ Report.bytes Ack.ecn_bytes))
      (:= Report.acked (+ Report.acked (+ Ack.packets_acked Ack.packets_misordered)))
      (:= Cwnd 57920) (report))";

#[test]
fn a_program_is_told_of_every_mark() {
    let mut link = rate(12, 200);
    link.discipline = Discipline::EcnThreshold { mark_at: QueueLimit::Packets(5) };
    let mut sim = sim(link);
    sim.install(ProgramUid(1), &compile(MARKS).unwrap()).unwrap();
    let mut config = FlowConfig::new(Source::Bytes(5000 * MSS), 10 * MS);
    config.path.ecn = true;
    let flow = sim.add_flow(&config).unwrap();
    let mut last = Vec::new();
    sim.run(60 * S, 100 * MS, &mut |_, wake, datapath| match wake {
        Wake::Event(Event::Created { flow, .. }) => datapath.set_program(flow, ProgramUid(1), &[]).unwrap(),
        Wake::Event(Event::Report { values, .. }) => last = values.into_vec(),
        Wake::Event(_) => {}
        Wake::Tick => datapath.heartbeat(),
    });
    let marked = sim.network().link_stats(0).unwrap().marked;
    assert!(marked > 1000, "{marked}");
    assert_eq!(last, [marked as i64, (marked * MSS) as i64, 5000]);
    assert!(sim.completion_us(flow).is_some());
}

#[test]
fn lost_acknowledgements_lose_nothing() {
    let back = LinkConfig { loss_ppm: 300_000, ..rate(12, 100) };
    let paths = Topology::dumbbell(rate(12, 60), &[0]).with_return_links(|_| back.clone());
    let mut sim = SimDatapath::new(SimConfig::new(paths.links.clone(), 3)).unwrap();
    let source = Source::Bytes(10_000 * MSS);
    let path = paths.paths[0].clone();
    let flow = sim.add_flow(&FlowConfig { path, ..FlowConfig::new(source, 0) }).unwrap();
    sim.step_until(60 * S);
    let stats = sim.stats(flow).unwrap();
    assert_eq!((stats.transport.bytes_acked, stats.transport.delivered), (10_000 * MSS, 10_000));
    let network = sim.network();
    let (there, back) = (network.link_stats(0).unwrap(), network.link_stats(1).unwrap());
    assert!(back.lost > 1000, "{back:?}");
    // A timeout may repeat what had arrived; each transmission beyond the segments was marked lost.
    assert_eq!(network.sent(), 10_000 + stats.transport.lost);
    let receiver = network.receiver_stats(0).unwrap();
    assert_eq!(stats.transport.lost, there.dropped + receiver.duplicates);
    assert!(receiver.duplicates < 50, "{receiver:?}");
    // 10 s at the link's rate.
    assert!(sim.completion_us(flow).unwrap() < 12 * S);
}

#[test]
fn a_workload_completes_and_repeats() {
    let run = |seed| {
        let mut sim = sim(rate(100, 200));
        let sizes = FlowSizes::web_search();
        let arrivals = Arrivals::new(&sizes, 500_000, 100_000_000, seed).unwrap();
        let template = FlowConfig::new(Source::Bulk, 10 * MS);
        let flows = sim.add_workload(&template, arrivals.take_while(|a| a.start_us < 60 * S)).unwrap();
        sim.step_until(200 * S);
        let times: Vec<u64> = flows.iter().map(|f| sim.completion_us(*f).unwrap()).collect();
        (times, sim.network().digest(), sim.memory_bytes())
    };
    let (times, digest, memory_bytes) = run(1);
    assert!((150..300).contains(&times.len()), "{}", times.len());
    // 8760 bytes in a round trip at the least.
    assert!(times.iter().all(|t| *t > 20_000));
    assert_eq!((run(1).1, run(2).1 == digest), (digest, false));
    assert!(memory_bytes / times.len() < 4096, "ended flows keep little: {memory_bytes} bytes");
}

#[test]
fn an_outage_ends_with_the_flow_alive() {
    let mut link = rate(12, 40);
    link.outages = vec![Outage { from_ns: 5_000_000_000, until_ns: 8_000_000_000 }];
    let mut sim = sim(link);
    let flow = sim.add_flow(&FlowConfig::new(Source::Bulk, 10 * MS)).unwrap();
    sim.step_until(7_900 * MS);
    let dark = delivered(&sim, flow);
    sim.step_until(15 * S);
    assert!(dark < 5_000 && delivered(&sim, flow) > dark + 5_500, "{dark}, {}", delivered(&sim, flow));
}

#[test]
fn cross_traffic_leaves_the_rest() {
    let mut sim = sim(rate(12, 60));
    let flow = sim.add_flow(&FlowConfig::new(Source::Bulk, 10 * MS)).unwrap();
    sim.add_cross(&CrossConfig::new(vec![0], 8_000_000)).unwrap();
    sim.step_until(60 * S);
    let cross = sim.network().cross_stats(0).unwrap();
    let (got, rest) = (delivered(&sim, flow), 60_000 - cross.delivered);
    assert!(rest.abs_diff(got) < 400 && got > 18_000, "{got} of {rest}");
}

/// A report leaves at 21 ms, with the flow's first ACK; the agent answers so much later.
#[test]
fn the_agent_takes_its_time() {
    const ASK: &str =
        "(def (Report (n 0)) (cwnd 14480)) (when true (:= Report.n (+ Report.n 1)) (:= Cwnd cwnd) (report))";
    let program = compile(ASK).unwrap();
    for latency_us in [0, 70, 30_000] {
        let config = SimConfig { agent_latency_us: latency_us, ..SimConfig::new(vec![rate(120, 100)], 1) };
        let mut sim = SimDatapath::new(config).unwrap();
        sim.install(ProgramUid(1), &program).unwrap();
        let flow = sim.add_flow(&flow(Source::Bulk)).unwrap();
        let mut seen = Vec::new();
        sim.run(200 * MS, S, &mut |now_us, wake, datapath| match wake {
            Wake::Event(Event::Created { flow, .. }) => {
                assert_eq!(now_us, latency_us);
                datapath.set_program(flow, ProgramUid(1), &[]).unwrap();
            }
            Wake::Event(Event::Report { at_us, .. }) => seen.push((at_us, now_us)),
            _ => {}
        });
        assert!(seen.len() > 50 && seen.iter().all(|(at_us, now_us)| now_us - at_us == latency_us));
        let first_ack_us = if latency_us < 20_100 { 20_100 } else { 40_200 };
        assert_eq!(seen[0].0, first_ack_us, "the program starts at the first ACK after it was set");
        assert_eq!(sim.stats(flow).unwrap().transport.faults, 0);
        let late = SimConfig { agent_latency_us: u64::MAX, ..SimConfig::new(vec![rate(1, 1)], 1) };
        assert!(SimDatapath::new(late).is_err());
    }
}

/// Rows wait for the batch's time, or for an event that wakes the agent: here the flow's end.
#[test]
fn rows_come_in_batches() {
    const ASK: &str = "(def (Report (uid 0))) (when true
        (history 1 Report.uid) (policy 0) (:= Report.uid Policy.snapshot) (report))";
    let program = compile(ASK).unwrap();
    let shape = Shape::new(Bits::W16, &[1, 1]).unwrap();
    for (batch_us, latency_us) in [(0, 0), (100 * MS, 0), (70 * MS, 5 * MS)] {
        let config =
            SimConfig { batch_us, agent_latency_us: latency_us, ..SimConfig::new(vec![rate(12, 100)], 1) };
        let mut sim = SimDatapath::new(config).unwrap();
        sim.define_slot(0, &shape).unwrap();
        sim.push(0, &idle(&shape, 7), Part::Active).unwrap();
        sim.install(ProgramUid(1), &program).unwrap();
        sim.add_flow(&flow(Source::Bytes(400 * MSS))).unwrap();
        let (mut seen, mut end_us, mut woken) = (Vec::new(), None, 0);
        sim.run(2 * S, S, &mut |now_us, wake, datapath| {
            woken += 1;
            match wake {
                Wake::Event(Event::Created { flow, .. }) => {
                    datapath.set_program(flow, ProgramUid(1), &[]).unwrap();
                }
                Wake::Event(Event::Report { at_us, values, seq, .. }) => {
                    assert!(end_us.is_none() && seq as usize == seen.len() + 1 && values[..] == [7]);
                    seen.push((at_us, now_us));
                }
                Wake::Event(Event::Closed { .. }) => end_us = Some(now_us),
                _ => {}
            }
        });
        let end_us = end_us.unwrap();
        let due_us = |at_us: u64| match batch_us {
            0 => at_us + latency_us,
            _ => (at_us.next_multiple_of(batch_us) + latency_us).min(end_us),
        };
        assert!(seen.len() > 300, "{}", seen.len());
        assert_eq!(seen.iter().find(|(at_us, now_us)| due_us(*at_us) != *now_us), None);
        assert!(batch_us == 0 || end_us % batch_us != latency_us, "the end is between two batches");
    }
    assert!(
        SimDatapath::new(SimConfig { batch_us: u64::MAX, ..SimConfig::new(vec![rate(1, 1)], 1) }).is_err()
    );
}

/// A data centre: flows that start at once onto a link of 10 Gb/s with 20 us of round trip.
#[test]
fn incast_at_microseconds() {
    let run = |discipline, ecn, min_rto_us| {
        let capacity = Capacity::Rate { bit_per_s: 10_000_000_000 };
        let link = LinkConfig { discipline, ..LinkConfig::new(capacity, 8_000, QueueLimit::Packets(200)) };
        let mut sim = SimDatapath::new(SimConfig::new(vec![link], 1)).unwrap();
        let mut config = FlowConfig { min_rto_us, ..FlowConfig::new(Source::Bytes(100_000), 8) };
        config.path.ecn = ecn;
        config.path.acks = Acks { delay_ns: 200_000, ..Acks::LINUX };
        let flows: Vec<FlowId> = (0..64).map(|_| sim.add_flow(&config).unwrap()).collect();
        sim.step_until(2 * S);
        let last_us = flows.iter().map(|f| sim.completion_us(*f).unwrap()).max().unwrap();
        (last_us, sim.stats(flows[0]).unwrap().transport.min_rtt_us)
    };
    let mark = Discipline::EcnThreshold { mark_at: QueueLimit::Packets(30) };
    // 64 * 70 segments of 1.2 us each: 5.4 ms at the least.
    let (slow_us, min_rtt_us) = run(Discipline::DropTail, false, 200_000);
    assert!((16..200).contains(&min_rtt_us), "{min_rtt_us}");
    let (fast_us, _) = run(Discipline::DropTail, false, 1_000);
    let (marked_us, _) = run(mark, true, 1_000);
    assert!(slow_us > 200_000, "a whole window lost costs Linux's timeout: {slow_us} us");
    assert!((5_300..25_000).contains(&fast_us), "{fast_us} us");
    assert!((5_300..25_000).contains(&marked_us), "{marked_us} us");
}

#[test]
fn delayed_acknowledgements_halve_the_acks() {
    let mut sim = sim(rate(12, 60));
    let flow = sim.add_flow(&FlowConfig::new(Source::Bulk, 10 * MS)).unwrap();
    sim.step_until(30 * S);
    let (acks, delivered) = (sim.network().acks_sent(), delivered(&sim, flow));
    assert!(
        delivered > 29_000 && (delivered / 2..delivered * 6 / 10).contains(&acks),
        "{acks} of {delivered}"
    );
}

/// A lossy link halves an honest receiver's Reno again and again; one that lies about holes is sent at full rate.
#[test]
fn a_receiver_that_conceals_losses_is_not_found_out() {
    // To a receiver that lies more and more is sent, so that each second takes longer to simulate.
    const TIME_US: u64 = 6 * S;
    let run = |conceals_losses| {
        let mut sim = sim(LinkConfig { loss_ppm: 20_000, ..rate(12, 60) });
        let mut config = FlowConfig::new(Source::Bulk, 10 * MS);
        config.path.acks.conceals_losses = conceals_losses;
        let flow = sim.add_flow(&config).unwrap();
        sim.step_until(TIME_US);
        (sim.stats(flow).unwrap().transport.lost, delivered(&sim, flow))
    };
    let (honest, lying) = (run(false), run(true));
    // Of the link's 1000 packets in a second, one in fifty is lost.
    assert!(honest.0 > 20 && lying.0 < honest.0 / 4, "{honest:?} {lying:?}");
    assert!(lying.1 > 5_600 && 3 * honest.1 < 2 * lying.1, "{honest:?} {lying:?}");
}
