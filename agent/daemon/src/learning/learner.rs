//! What a learning thread runs.

use super::mailbox::LoopId;
use super::thread::cpu_time;
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

/// What learning costs, as processor time.
#[derive(Clone, Copy, Debug)]
pub(super) enum Meter {
    /// What the learner's thread has used.
    Thread,
    /// What learning from so many decisions costs on a machine of the usual kind: in virtual time runs are the same everywhere.
    Nominal {
        /// Decisions so far.
        decisions: u64,
    },
}

impl Meter {
    /// Nothing was decided yet.
    pub(super) const NOMINAL: Meter = Meter::Nominal { decisions: 0 };

    /// What a decision costs in simulation, its share of the updates included: measured with two learners' cores at work, 25
    /// to 60 us, the less the faster the machine.
    const NOMINAL_DECISION: Duration = Duration::from_micros(40);

    /// Processor time so far.
    pub(super) fn used(&self) -> Duration {
        match self {
            Meter::Thread => cpu_time(),
            Meter::Nominal { decisions } => {
                Meter::NOMINAL_DECISION * u32::try_from(*decisions).unwrap_or(u32::MAX)
            }
        }
    }

    /// So many decisions were simulated, or learned from.
    pub(super) fn simulated(&mut self, count: u64) {
        if let Meter::Nominal { decisions } = self {
            *decisions += count;
        }
    }
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

    /// Processor time that it has used so far.
    fn used(&self) -> Duration {
        cpu_time()
    }

    /// Whether to go on at once.
    fn pressure(&self) -> Pressure;
}
