//! The conformance suite that every shim passes.
//!
//! Two parts. [`conform`] runs programs on streams of synthetic ACKs through an [`Executor`], the part of a shim
//! that runs programs. It holds every register, window, rate, fault count and report against the reference VM. In
//! the [named cases](cases) it also holds them against integers worked out by hand (promise 1 of the contract, and
//! the staging of promise 2). [`behaviour`] drives a live [`Datapath`](crate::Datapath) (promises 2 to 7).
//!
//! Datapaths that decide about packets have a third part: [`conform_packets`] says when programs run there, and what of their decisions
//! is in force.
//!
//! [`random`] makes the programs and streams, from a seed, for any other differential test.

pub mod behaviour;
pub mod cases;
mod conformance;
mod deploy;
mod draws;
mod executor;
pub mod images;
mod linear;
mod operation;
mod packets;
pub mod random;
mod waiting;

pub use conformance::Conformance;
pub use executor::{
    Divergence, Executor, ExecutorError, NO_PACKETS, Observation, PolicyObservation, Reference, Script,
    ScriptStep, ScriptedDatapath, Sending, check, reported, run_script,
};
pub use operation::{AckStream, Operation};
pub use packets::{
    OutPacket, PacketDivergence, PacketExecutor, PacketStream, PacketTreatment, check_packets,
    conform_packets, reference,
};
pub use waiting::{report_in, wait_for_event};

use ccplane_program::ir::Hook;
use rand_chacha::ChaCha8Rng;
use rand_core::SeedableRng;

/// Runs every named case, then `random_scripts` random programs from `seed`; every other one with policies, where the
/// executor runs those.
pub fn conform(executor: &mut dyn Executor, random_scripts: u32, seed: u64) -> Conformance {
    let mut result = Conformance::default();
    let policies = executor.policies();
    match cases::all() {
        Ok(cases) => cases.into_iter().filter(|c| policies || !c.is_beyond_stock()).for_each(|c| {
            let outcome = c.check(executor);
            result.note(c.name, outcome);
        }),
        Err(e) => result.note("cases".to_owned(), Err(Divergence::NotRun(e.into()))),
    }
    for n in 0..random_scripts {
        let mut rng = ChaCha8Rng::seed_from_u64(seed.wrapping_add(n.into()));
        let hook = Hook::ALL[n as usize / 2 % Hook::ALL.len()];
        let hook = if executor.hooks().contains(&hook) { hook } else { Hook::Ack };
        let shape = random::Shape { hook, policies: policies && n % 2 == 1, ..random::Shape::default() };
        let outcome = match random::script(&mut rng, &shape) {
            Ok(script) => check(executor, &script),
            Err(e) => Err(Divergence::NotRun(e.into())),
        };
        result.note(format!("random/{}", seed.wrapping_add(n.into())), outcome);
    }
    result
}
