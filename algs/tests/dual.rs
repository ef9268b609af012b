//! Dual over the simulated datapath, with the agent beside it.
#![allow(clippy::unwrap_used)]

mod common;

use common::{Lab, Link, S, Start, starts};

const DELAY: i64 = 0;

#[test]
fn alone_it_fills_the_link_and_queues_little() {
    for (mbit, rtt_ms, queued) in [(2, 40, 4.0), (12, 20, 6.0), (24, 40, 8.0), (96, 80, 16.0)] {
        let mut lab = Lab::new(Link { mbit, rtt_ms, queue_packets: 1000 }, &starts("dual", 1, 0));
        let early = lab.run_until(5 * S);
        let seen = lab.run_until(30 * S);
        eprintln!("{mbit} Mb/s, {rtt_ms} ms: {early:?}, then {seen:?}");
        assert!(early.used() > 80.0 && seen.used() > 98.0 && seen.lost + early.lost == 0, "{seen:?}");
        assert!(seen.queued < queued, "{seen:?}");
        assert_eq!(lab.reported(0, "mode"), DELAY);
    }
}

#[test]
fn its_own_kind_shares_fairly() {
    for (flows, mbit, rtt_ms) in [(2, 12, 20), (3, 24, 40)] {
        let link = Link { mbit, rtt_ms, queue_packets: 400 };
        let mut lab = Lab::new(link, &starts("dual", flows, S));
        lab.run_until(20 * S);
        let seen = lab.run_until(60 * S);
        eprintln!("{flows} flows: {seen:?}, Jain {:.4}", seen.jain());
        assert!(seen.jain() >= 0.95 && seen.used() > 99.0 && seen.lost == 0, "{seen:?}");
        assert!(seen.queued / (flows as f64) < 6.0, "{seen:?}");
    }
}

#[test]
fn beside_bbr_behind_a_shallow_queue_it_is_not_starved() {
    for (mbit, rtt_ms, queue_packets) in [(24, 40, 64), (84, 8, 80)] {
        let link = Link { mbit, rtt_ms, queue_packets };
        let both = ["dual", "bbr"].map(|algorithm| Start { algorithm, at_us: 0 });
        let mut lab = Lab::new(link, &both);
        lab.run_until(15 * S);
        let seen = lab.run_until(60 * S);
        eprintln!("{mbit} Mb/s, {rtt_ms} ms: {seen:?}");
        assert!(seen.shares[0] > 25.0, "{seen:?}");
    }
}
