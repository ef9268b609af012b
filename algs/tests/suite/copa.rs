//! Copa over the simulated datapath, with the agent beside it.

use crate::common::{Lab, Link, S, Start, own_kind, starts};

/// Packets that a flow alone keeps queued: one over delta, and one in service.
const ALONE: f64 = 2.0 + 1.0;

#[test]
fn keeps_about_one_over_delta_packets_queued() {
    for (mbit, rtt_ms) in [(2, 40), (12, 20), (24, 5), (24, 20), (12, 100), (96, 80)] {
        let mut lab = Lab::new(Link { mbit, rtt_ms, queue_packets: 1000 }, &starts("copa", 1, 0));
        let early = lab.run_until(20 * S);
        let seen = lab.run_until(40 * S);
        eprintln!("{mbit} Mb/s, {rtt_ms} ms: {early:?}, then {seen:?}");
        assert!(seen.used() > 99.0 && seen.lost + early.lost == 0, "{seen:?}");
        assert!((seen.queued - ALONE).abs() < 1.0, "{seen:?}");
        assert_eq!(lab.reported(0, "competitive"), 0);
    }
}

#[test]
fn equal_flows_share_fairly_and_stay_in_default_mode() {
    for (flows, mbit, rtt_ms) in [(2, 12, 20), (3, 24, 40), (10, 48, 40)] {
        let seen = own_kind("copa", (flows, mbit, rtt_ms), 20 * S);
        assert!(seen.jain() >= 0.98 && seen.used() > 99.0 && seen.lost == 0, "{seen:?}");
        assert!((1.0..=3.0).contains(&(seen.queued / flows as f64)), "{seen:?}");
    }
}

#[test]
fn holds_a_share_against_reno_and_gives_the_queue_back() {
    for queue_packets in [80, 160] {
        let link = Link { mbit: 24, rtt_ms: 40, queue_packets };
        let flows = [("copa", 0), ("reno", 10 * S)].map(|(algorithm, at_us)| Start { algorithm, at_us });
        let mut lab = Lab::new(link, &flows);
        lab.run_until(20 * S);
        let (mut competitive, mut copa) = (0, 0.0);
        for n in 1..=100 {
            copa += lab.run_until(20 * S + n * S).shares[0] / 100.0;
            competitive += lab.reported(0, "competitive");
        }
        eprintln!("{queue_packets} packets: {copa:.1} % in 100 s, competitive in {competitive} of 100 looks");
        assert!((25.0..=65.0).contains(&copa) && competitive >= 20, "{copa} {competitive}");
        let reno = lab.flows[1];
        lab.sim.close(reno).unwrap();
        lab.run_until(130 * S);
        let seen = lab.run_until(140 * S);
        eprintln!("alone again: {seen:?}");
        assert!(seen.queued < 5.0 && seen.used() > 99.0, "{seen:?}");
    }
}
