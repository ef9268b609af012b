//! Other placements of learned policies: the same program and the same snapshot, but who asks the network is another.
//!
//! Programs are derived from the algorithm's own, so they measure the same intervals in the same way, but for a text that a user gives.

mod agent;
mod fold;
mod pinned;
mod programmed;
mod still;

use ccplane_alg::{Algorithm, Control, Flow, FlowInfo, Report};

pub use agent::InAgent;
pub use fold::Distilled;
pub(crate) use pinned::algorithm_of;
pub use pinned::{UnfitSnapshot, WithSnapshot, free_slots};
pub use programmed::{UnfitProgram, WithProgram};
pub use still::Still;

/// The sign between an algorithm's name and the label of what it runs instead: a file, a program's name, a snapshot's hash.
pub const LABEL_SIGN: char = '@';

/// The agent's side of a flow without decisions in the agent, from which no learner learns.
struct Unattended;

impl Flow for Unattended {
    fn on_report(&mut self, _now_us: u64, _report: &Report<'_>, _control: &mut Control) {}
}

/// Returns the fields that `algorithm` sets when a flow starts.
fn fields_of(algorithm: &dyn Algorithm, info: &FlowInfo) -> Vec<(&'static str, i64)> {
    let mut asked = Control::default();
    drop(algorithm.flow(info, &mut asked));
    let set = asked.requests().find(|request| request.program.is_some());
    set.map_or_else(Vec::new, |request| request.fields.to_vec())
}
