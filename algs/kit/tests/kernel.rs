//! Every algorithm that ships, on live kernel flows.
#![allow(clippy::unwrap_used)]

use ccplane_kit::live;

mod common;

#[test]
fn every_algorithm_steers_live_kernel_flows() {
    let algorithms: Vec<_> =
        ccplane_algs::all().into_iter().map(|a| (a.clone(), common::bounds(&*a))).collect();
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
