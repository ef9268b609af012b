//! The agent with Reno of generic_cong_avoid in it: an algorithm crate of portus 0.7, as the registry has it. The command line is
//! the algorithm's own; the agent's configuration is where `CCPLANE_CONFIG` says. Rules name it `generic-reno`.

use ccplane_portus_host::{from_environment, host, run};
use generic_cong_avoid::{Alg, reno::Reno};
use std::process::ExitCode;

fn main() -> ExitCode {
    // As portus algorithms do it. The agent logs here, too, and leaves its own filter aside.
    tracing_subscriber::fmt().with_writer(std::io::stderr).init();
    let (alg, _): (Alg<Reno>, String) = match generic_cong_avoid::make_args("CCP Reno") {
        Ok(made) => made,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::from(2);
        }
    };
    // A crate that depends on one portus writes `portus` for `portus07`.
    let reno = host!(portus07, "generic-reno", move || alg);
    run(&from_environment(), [reno])
}
