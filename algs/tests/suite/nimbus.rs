//! Nimbus over the simulated datapath, with the agent beside it.

use crate::common::{Lab, Link, MSS, S, Start, WIRE_BYTES, starts};
use ccplane_alg::{Algorithm, configure};
use ccplane_algs::CONSTANT;
use std::sync::Arc;

/// 200 packets of bandwidth-delay product; the target of 12.5 ms is 50.
const LINK: Link = Link { mbit: 48, rtt_ms: 50, queue_packets: 400 };
const TARGET_PACKETS: f64 = 50.0;

/// Cross traffic at half of the rate of [`LINK`].
fn constant() -> Arc<dyn Algorithm> {
    let rate_bytes_per_s = (3_000_000 * MSS / WIRE_BYTES) as i64;
    let constant: Arc<dyn Algorithm> = Arc::new(CONSTANT);
    configure(&constant, [("rate_bytes_per_s", rate_bytes_per_s)]).unwrap()
}

/// Nimbus, and this one 15 s later.
fn against(cross: &'static str) -> Lab {
    let flows = [("nimbus", 0), (cross, 15 * S)].map(|(algorithm, at_us)| Start { algorithm, at_us });
    Lab::with(LINK, &flows, &[constant()])
}

/// Whether each second until then ended in competitive mode.
fn modes(lab: &mut Lab, from_s: u64, until_s: u64) -> Vec<bool> {
    let mut mode = |s: u64| {
        lab.run_until(s * S);
        lab.reported(0, "mode") != 0
    };
    (from_s + 1..=until_s).map(&mut mode).collect()
}

#[test]
fn alone_it_fills_the_link_and_keeps_its_target() {
    for (mbit, rtt_ms) in [(12, 30), (48, 50), (96, 100)] {
        let link = Link { mbit, rtt_ms, queue_packets: 1000 };
        let mut lab = Lab::new(link, &starts("nimbus", 1, 0));
        lab.run_until(10 * S);
        let seen = lab.run_until(40 * S);
        let target = mbit as f64 * 1e6 / 8.0 / WIRE_BYTES as f64 * 0.0125;
        eprintln!("{mbit} Mb/s, {rtt_ms} ms: {seen:?}, target {target:.1} packets");
        assert!(seen.used() > 99.0 && seen.lost == 0, "{seen:?}");
        assert!((seen.queued / target - 1.0).abs() < 0.25, "{seen:?}");
        assert_eq!(lab.reported(0, "mode"), 0);
    }
}

#[test]
fn inelastic_cross_traffic_leaves_it_in_delay_mode() {
    let mut lab = against("constant");
    assert!(modes(&mut lab, 0, 60).iter().all(|competitive| !competitive));
    let seen = lab.run_until(80 * S);
    eprintln!("{seen:?}");
    assert!((seen.shares[0] - 50.0).abs() < 1.0 && seen.lost == 0, "{seen:?}");
    assert!((seen.queued / TARGET_PACKETS - 1.0).abs() < 0.2, "{seen:?}");
}

#[test]
fn elastic_cross_traffic_is_found_and_competed_with() {
    for cross in ["reno", "cubic"] {
        let mut lab = against(cross);
        assert!(modes(&mut lab, 0, 15).iter().all(|competitive| !competitive), "{cross}");
        let found = modes(&mut lab, 15, 35);
        let after = found.iter().take_while(|competitive| !**competitive).count();
        let (mut share, mut competitive) = (0.0, 0);
        for n in 1..=80 {
            share += lab.run_until((35 + n) * S).shares[0] / 80.0;
            competitive += lab.reported(0, "mode");
        }
        eprintln!(
            "{cross}: found after {after} s, competitive in {competitive} of 80 s, {share:.0} % of the link"
        );
        assert!(after <= 10 && competitive >= 60, "{cross}: {after} {competitive}");
        assert!((20.0..=80.0).contains(&share), "{cross}: {share}");
    }
}

#[test]
fn delay_mode_is_back_when_the_elastic_flow_has_gone() {
    let mut lab = against("reno");
    assert_eq!(modes(&mut lab, 0, 40).last(), Some(&true));
    let reno = lab.flows[1];
    lab.sim.close(reno).unwrap();
    let modes = modes(&mut lab, 40, 60);
    let after = modes.iter().take_while(|competitive| **competitive).count();
    let seen = lab.run_until(80 * S);
    eprintln!("delay mode after {after} s, then {seen:?}");
    assert!(after <= 15 && seen.used() > 99.0, "{after} {seen:?}");
    assert!((seen.queued / TARGET_PACKETS - 1.0).abs() < 0.2, "{seen:?}");
}
