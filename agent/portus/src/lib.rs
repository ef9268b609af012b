//! Hosts algorithm crates of portus, unmodified, in a process of ours, beside our own algorithms.
//!
//! ```ignore
//! use generic_cong_avoid::{Alg, reno::Reno};
//!
//! fn main() -> std::process::ExitCode {
//!     let (alg, _): (Alg<Reno>, String) = generic_cong_avoid::make_args("CCP Reno").unwrap();
//!     let reno = ccplane_portus_host::host!(portus, "generic-reno", move || alg);
//!     ccplane_portus_host::run(&ccplane_portus_host::from_environment(), [reno])
//! }
//! ```
//!
//! [`host!`] implements portus's own `Ipc` trait over a channel of this process, in the caller's crate and with the caller's portus: 0.7,
//! 0.8 or 0.9, whichever the algorithm was written for, several side by side. Portus's own loop runs the algorithm on a thread of its
//! own, so that neither it nor its flows need be `Send`; towards it the agent is a datapath, as towards a portus agent of another process
//! ([`ccplane_bridge`]). An algorithm that panics, or whose programs portus refuses, ends alone; one that hangs is silent.
#![forbid(unsafe_code)]

pub use ccplane_bridge::{Hosted, Wire, WireError};

use ccplane_agent::args::AgentArgs;
use ccplane_alg::Algorithm;
use clap::Parser;
use std::process::ExitCode;
use std::sync::Arc;

/// Makes a [`Hosted`] of a `portus::CongAlg`: `host!(portus, "name", make)`.
///
/// `portus` is the crate that the algorithm was written for, as the caller's crate calls it; the name is what rules use, no other
/// algorithm's; `make` is a closure that makes the algorithm, called once on the algorithm's own thread.
#[macro_export]
macro_rules! host {
    ($portus:ident, $name:expr, $make:expr) => {{
        /// Portus's end of the channel.
        struct Channel($crate::Wire);

        impl $portus::ipc::Ipc for Channel {
            /// The loop of the agent that speaks.
            type Addr = u32;

            fn name() -> ::std::string::String {
                ::std::string::String::from("a channel of the agent")
            }
            fn send(&self, message: &[u8], to: &u32) -> $portus::Result<()> {
                self.0.send(message, *to);
                ::std::result::Result::Ok(())
            }
            fn recv(&self, buffer: &mut [u8]) -> $portus::Result<(usize, u32)> {
                self.0
                    .recv(buffer)
                    .map_err(|error| $portus::Error(::std::string::ToString::to_string(&error)))
            }
            fn close(&mut self) -> $portus::Result<()> {
                ::std::result::Result::Ok(())
            }
        }

        let make = $make;
        $crate::Hosted::new($name, move |wire: $crate::Wire| {
            let running = wire.running();
            let backend = $portus::ipc::BackendBuilder { sock: Channel(wire) };
            let agent = $portus::RunBuilder::new(backend).default_alg(make()).with_stop_handle(running);
            agent.run().map_err(|error| error.0)
        })
    }};
}

/// Runs an agent of these algorithms and all of ours to its end, as `ccplaned` does, and returns the process's exit code.
pub fn run(args: &AgentArgs, hosted: impl IntoIterator<Item = Hosted>) -> ExitCode {
    ccplane_agent::run(args, &beside_ours(hosted))
}

/// Returns all of our algorithms, and these.
pub fn beside_ours(hosted: impl IntoIterator<Item = Hosted>) -> Vec<Arc<dyn Algorithm>> {
    let mut all = ccplane_algs::all();
    all.extend(hosted.into_iter().map(|one| Arc::new(one) as Arc<dyn Algorithm>));
    all
}

#[derive(Parser, Debug)]
struct Nothing {
    #[command(flatten)]
    agent: AgentArgs,
}

/// Returns the agent's arguments as `CCPLANE_CONFIG` and `CCPLANE_SOCKET` have them, where the command line is the algorithm's.
pub fn from_environment() -> AgentArgs {
    Nothing::parse_from(["ccplaned"]).agent
}
