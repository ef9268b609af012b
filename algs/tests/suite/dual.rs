//! Dual over the simulated datapath, with the agent beside it.

use crate::common::{Lab, Link, S, Start, own_kind, starts};
use ccplane_netsim::trace::Trace;
use ccplane_netsim::{Acks, Capacity, LinkConfig, QueueLimit};
use ccplane_sim::{FlowConfig, Stack};

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
        let seen = own_kind("dual", (flows, mbit, rtt_ms), 20 * S);
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

// What dual was weak at, each as it was found.

/// Four flows and more of its own kind took each other for CUBIC, and filled the queue.
#[test]
fn four_and_eight_of_its_own_kind_keep_the_queue_short() {
    for (flows, mbit, rtt_ms) in [(4, 24, 40), (8, 48, 40), (8, 96, 20)] {
        let seen = own_kind("dual", (flows, mbit, rtt_ms), 25 * S);
        assert!(seen.jain() >= 0.9 && seen.used() > 98.0, "{seen:?}");
        assert!(seen.queued / (flows as f64) < 5.0, "{seen:?}");
    }
}

/// Dual took its own queue for the path where nothing was lost, every 15 s some more: 36 ms after nine minutes.
#[test]
fn the_queue_stays_short_for_minutes_where_nothing_is_lost() {
    for (flows, mbit, rtt_ms, queued) in [(1, 24, 40, 8.0), (1, 12, 20, 6.0), (4, 24, 40, 20.0)] {
        let mut lab = Lab::new(Link { mbit, rtt_ms, queue_packets: 1000 }, &starts("dual", flows, 2 * S));
        lab.run_until(270 * S);
        let seen = lab.run_until(300 * S);
        eprintln!("{flows} on {mbit} Mb/s, {rtt_ms} ms: {seen:?}");
        assert!(seen.queued < queued && seen.used() > 95.0, "{seen:?}");
    }
}

/// Tests that happened to meet a short queue of CUBIC's sent dual back to its delay mode, again and again.
#[test]
fn who_was_wrong_about_a_rival_asks_more_often_before_it_leaves_again() {
    let mut carried = Vec::new();
    for (mbit, rtt_ms, queue_packets) in [(52, 5, 31), (91, 14, 82), (35, 8, 36), (127, 5, 288)] {
        for (own_s, rival_s) in [(0, 5), (5, 0)] {
            let both = [("dual", own_s), ("cubic", rival_s)]
                .map(|(algorithm, second)| Start { algorithm, at_us: second * S });
            let mut lab = Lab::new(Link { mbit, rtt_ms, queue_packets }, &both);
            lab.run_until(15 * S);
            let seen = lab.run_until(60 * S);
            eprintln!("{mbit} Mb/s, {rtt_ms} ms, {own_s}: {seen:?}");
            carried.push(seen.shares[0]);
        }
    }
    let mean = carried.iter().sum::<f64>() / carried.len() as f64;
    eprintln!("{mean:.1} % of {carried:?}");
    assert!(mean > 33.0, "{mean}: {carried:?}");
}

/// Dual stayed competitive after CUBIC had left.
#[test]
fn some_seconds_after_its_rival_has_left_the_queue_is_short_again() {
    let link = Link { mbit: 24, rtt_ms: 40, queue_packets: 160 };
    let both = ["dual", "cubic"].map(|algorithm| Start { algorithm, at_us: 0 });
    let mut lab = Lab::new(link, &both);
    lab.run_until(15 * S);
    let beside = lab.run_until(25 * S);
    assert!(beside.shares[0] > 25.0 && beside.queued > 60.0, "it competes: {beside:?}");
    lab.sim.close(lab.flows[1]).unwrap();
    // Five seconds are wanted; the next test may come late.
    lab.run_until(40 * S);
    let alone = lab.run_until(60 * S);
    eprintln!("{beside:?}, then {alone:?}");
    assert!(alone.shares[0] > 95.0 && alone.queued < 20.0, "{alone:?}");
    assert_eq!(lab.reported(0, "mode"), DELAY);
}

/// Behind a queue of one packet half of all packets were lost.
#[test]
fn behind_a_queue_of_one_packet_it_fills_the_link_and_loses_some() {
    for stack in [Stack::Segments, Stack::Steered] {
        let link = Link { mbit: 12, rtt_ms: 30, queue_packets: 1 };
        let shape = |flow: &mut FlowConfig| flow.stack = stack;
        let mut lab = Lab::over(link, vec![link.config()], shape, &starts("dual", 1, 0), &[]);
        lab.run_until(5 * S);
        let seen = lab.run_until(35 * S);
        let sent = 30.0 * 1000.0 * seen.used() / 100.0;
        eprintln!("{stack:?}: {seen:?}, {:.3} lost", seen.lost as f64 / (sent + seen.lost as f64));
        assert!(seen.used() > 80.0, "{seen:?}");
        assert!((seen.lost as f64) < 0.2 * (sent + seen.lost as f64), "{seen:?}");
    }
}

/// A radio link's rate drops at once, and the queue that this leaves looked like a rival's.
#[test]
fn a_rate_that_falls_and_rises_as_on_radio_leaves_no_queue() {
    // Each second another rate, of 2 to 20 Mb/s: opportunities of 1504 bytes in each millisecond.
    let mbit = [12, 3, 20, 5, 2, 16, 8, 4, 18, 6];
    let mut opportunities = Vec::new();
    let mut bits = 0;
    for ms in 1..=10_000u32 {
        bits += mbit[(ms as usize - 1) / 1000] * 1000;
        while bits >= 12_032 {
            bits -= 12_032;
            opportunities.push(ms);
        }
    }
    let trace = Trace::from_opportunities_ms(opportunities).unwrap();
    let link = Link { mbit: 9, rtt_ms: 50, queue_packets: 500 };
    let radio = LinkConfig { capacity: Capacity::Trace { trace, repeat: true }, ..link.config() };
    let mut lab = Lab::over(link, vec![radio], |_| {}, &starts("dual", 1, 0), &[]);
    lab.run_until(10 * S);
    let seen = lab.run_until(70 * S);
    eprintln!("{seen:?}");
    // CUBIC holds the queue of 500 packets.
    assert!(seen.used() > 75.0 && seen.queued < 60.0, "{seen:?}");
}

/// A way back that lets ten acknowledgements through each 200 ms, into a deep queue, brought round trips of seconds.
#[test]
fn ten_acks_each_200_ms_into_a_deep_queue_leave_the_round_trip_short() {
    let link = Link { mbit: 24, rtt_ms: 40, queue_packets: 1000 };
    let trace = Trace::from_opportunities_ms(vec![200; 10]).unwrap();
    let back = LinkConfig::new(Capacity::Trace { trace, repeat: true }, 0, QueueLimit::Packets(1000));
    let shape = |flow: &mut FlowConfig| flow.path.return_links = vec![1];
    let mut lab = Lab::over(link, vec![link.config(), back], shape, &starts("dual", 1, 0), &[]);
    lab.run_until(20 * S);
    let seen = lab.run_until(60 * S);
    let srtt_us = lab.reported(0, "srtt_us");
    eprintln!("{seen:?}, srtt {srtt_us} us");
    assert!(srtt_us < 400_000 && seen.used() > 90.0, "{seen:?}, {srtt_us}");
}

/// Receivers that wait with their acknowledgements, or gather what arrives in a while, are no rivals, in the drains of few packets too.
#[test]
fn delayed_and_gathered_acknowledgements_are_no_rivals() {
    let gathered = |ns| Acks { aggregate_ns: ns, ..Acks::LINUX };
    for (acks, stack) in [
        (Acks { quick: 0, ..Acks::LINUX }, Stack::Segments),
        (Acks { every: 8, quick: 0, ..Acks::LINUX }, Stack::Linux),
        (gathered(2_000_000), Stack::Linux),
        (gathered(10_000_000), Stack::Linux),
    ] {
        for (mbit, rtt_ms) in [(1, 20), (24, 40), (96, 10)] {
            let link = Link { mbit, rtt_ms, queue_packets: 400 };
            let shape = |flow: &mut FlowConfig| {
                flow.path.acks = acks;
                flow.stack = stack;
            };
            let mut lab = Lab::over(link, vec![link.config()], shape, &starts("dual", 1, 0), &[]);
            lab.run_until(10 * S);
            let seen = lab.run_until(30 * S);
            let mode = lab.reported(0, "mode");
            eprintln!("{acks:?}, {stack:?}, {mbit} Mb/s: {seen:?}, mode {mode}");
            assert!(seen.used() > 85.0 && seen.queued < 40.0 && mode == DELAY, "{seen:?}, mode {mode}");
        }
    }
}
