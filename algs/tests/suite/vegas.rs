//! Vegas over the simulated datapath, with the agent beside it.

use crate::common::{Lab, Link, S, starts};

#[test]
fn keeps_alpha_to_beta_packets_queued() {
    for (mbit, rtt_ms) in [(12, 20), (24, 20), (96, 80)] {
        let mut lab = Lab::new(Link { mbit, rtt_ms, queue_packets: 1000 }, &starts("vegas", 1, 0));
        let early = lab.run_until(20 * S);
        let seen = lab.run_until(40 * S);
        eprintln!("{mbit} Mb/s, {rtt_ms} ms: {early:?}, then {seen:?}");
        assert!(seen.used() > 99.0 && seen.lost + early.lost == 0, "{seen:?}");
        // One is in service, and its time is part of the base RTT; alpha and beta are 2 and 4.
        assert!((2.0..=5.5).contains(&seen.queued), "{seen:?}");
    }
}

#[test]
fn equal_flows_share_fairly() {
    let mut lab = Lab::new(Link { mbit: 24, rtt_ms: 40, queue_packets: 200 }, &starts("vegas", 4, 0));
    lab.run_until(30 * S);
    let seen = lab.run_until(90 * S);
    eprintln!("{seen:?}, Jain {:.4}", seen.jain());
    assert!(seen.jain() >= 0.9 && seen.used() > 99.0, "{seen:?}");
    assert!((8.0..=18.0).contains(&seen.queued), "{seen:?}");
}
