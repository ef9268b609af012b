//! Learners as their threads run them.

use super::budget::{Pressure, cpu_time};
use super::mailbox::LoopId;
use ccplane_core::{Batch, Candidate, Decision};
use ccplane_snapshot::Hash;
use std::time::Duration;

/// Meter of the processor time that learning takes.
#[derive(Clone, Copy, Debug)]
pub(super) enum Meter {
    /// The time that the learner's thread has used.
    Thread,
    /// A nominal time for each decision learned from, so that runs in virtual time are the same everywhere.
    Nominal {
        /// Decisions made so far.
        decisions: u64,
    },
}

impl Meter {
    /// Nothing was decided yet.
    pub(super) const NOMINAL: Meter = Meter::Nominal { decisions: 0 };

    /// Nominal time of a simulated decision, its share of the updates included; measured with two learners' cores at work as 25
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

    /// Takes a decision on a snapshot of its algorithm's slot.
    fn on_decision(&mut self, decision: &Decision);

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
    fn pressure(&self) -> Pressure {
        Pressure::Steady
    }
}
