//! What a learning thread runs.

use super::mailbox::LoopId;
use ccplane_core::{Batch, Candidate, Decision};
use ccplane_snapshot::Hash;
use std::time::Duration;

/// How much a learner has to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Pressure {
    /// Nothing until more rows come: it follows conditions that it knows.
    Steady,
    /// Conditions have changed: it learns them.
    Adapting,
}

/// One algorithm's learner. Made and used on one thread.
pub(crate) trait Learn {
    /// Takes rows of its flows.
    fn take(&mut self, from: LoopId, batch: &Batch);

    /// Hears what a slot of its algorithm has decided: what flows decide by, and what became of its candidates.
    fn hear(&mut self, decision: &Decision);

    /// Nobody could be asked to try its last candidate.
    fn not_asked(&mut self);

    /// Learns for about `budget` of processor time; a candidate, if it has one.
    fn step(&mut self, budget: Duration) -> Option<Candidate>;

    /// A candidate of its own that it does not want tried any more.
    fn withdrawn(&mut self) -> Option<Hash> {
        None
    }

    /// Whether to go on at once.
    fn pressure(&self) -> Pressure;
}
