//! Algorithms of generic_cong_avoid, for tests on any datapath.

use ccplane_portus_host::{Hosted, host};
use generic_cong_avoid::{
    Alg, DEFAULT_SS_THRESH, GenericCongAvoidAlg, GenericCongAvoidConfigReport, GenericCongAvoidConfigSS,
    reno::Reno,
};

/// The name that rules give generic_cong_avoid's Reno.
pub const RENO: &str = "generic-reno";

/// Makes the algorithm as `make_args` does, but of these arguments rather than of the process's.
pub fn generic<A: GenericCongAvoidAlg>(arguments: &[&str]) -> Alg<A> {
    let matches = clap2::App::new("generic").args(&A::args()).get_matches_from(arguments);
    Alg {
        deficit_timeout: 0,
        init_cwnd: 0,
        report_option: GenericCongAvoidConfigReport::Rtt,
        ss: GenericCongAvoidConfigSS::Ccp,
        ss_thresh: DEFAULT_SS_THRESH,
        use_compensation: false,
        alg: A::with_args(matches),
    }
}

pub fn reno() -> Hosted {
    host!(portus07, RENO, || generic::<Reno>(&["reno"]))
}
