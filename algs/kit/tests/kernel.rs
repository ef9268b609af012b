//! Every algorithm that ships, on live kernel flows.
#![allow(clippy::unwrap_used)]

use ccplane_alg::Algorithm;
use ccplane_algs::{Arm, CUBIC, Dual, Portfolio, PortfolioConfig};
use ccplane_kit::live;
use std::sync::Arc;
use std::time::Duration;

mod common;

/// The window of `constant`, packets: a quarter of a second of its rate.
const CONSTANT_CWND_PACKETS: i64 = 200;

#[test]
fn every_algorithm_steers_live_kernel_flows() {
    let live = |algorithm: Arc<dyn Algorithm>| match algorithm.name() {
        // It goes on through a blackout, and what is lost then may be more than its receiver has memory to wait with.
        "constant" => algorithm.configured(&[("cwnd_packets", CONSTANT_CWND_PACKETS)]).unwrap(),
        _ => algorithm,
    };
    let all = ccplane_algs::all().into_iter().map(live);
    let algorithms: Vec<_> = all.map(|a| (a.clone(), common::bounds(&*a))).collect();
    match live::kernel("cct_kit", &algorithms) {
        Ok(None) => {}
        Ok(Some(ran)) => {
            assert_eq!(ran.len(), algorithms.len());
            for ran in ran {
                let used: Vec<_> = ran.phases.iter().map(|p| (p.name, p.used_percent)).collect();
                eprintln!("{}: {} reports, percent of what is due: {used:?}", ran.algorithm, ran.reports);
                assert!(ran.reports > 50, "{}: {} reports", ran.algorithm, ran.reports);
            }
        }
        Err(e) => panic!("{e}"),
    }
}

/// CUBIC fills the queue and dual empties it; from one to the other and back the flow is steered and the link carries half or more in
/// each half of a second.
#[test]
fn a_switch_between_arms_makes_no_dip() {
    const LEAST_PERCENT: u64 = 50;
    let arm = |algorithm: Arc<dyn Algorithm>, prior| Arm { algorithm, prior };
    let carried = |_| -> Result<(), String> {
        let arms = vec![arm(Arc::new(CUBIC), 0.9), arm(Arc::new(Dual::default()), 0.8)];
        let config = PortfolioConfig { interval_us: 500_000, ..PortfolioConfig::default() };
        let portfolio: Arc<dyn Algorithm> = Arc::new(Portfolio::new(arms, config).unwrap());
        let Some(ran) = live::switching("cct_kit_arms", &portfolio, Duration::from_millis(500), 24).unwrap()
        else {
            return Ok(());
        };
        eprintln!("{ran:?}");
        let least = ran.used_percent.iter().min().copied().unwrap_or(0);
        let holds = ran.switches >= 2 && least >= LEAST_PERCENT;
        if holds { Ok(()) } else { Err(format!("{} switches, at least {least} %", ran.switches)) }
    };
    ccplane_testing::within_tries("a switch between arms", 4, carried);
}
