//! A learner beside simulated flows, in their virtual time: plans whose contenders learn on `sim`, and tests.
//!
//! It goes as a learner's thread does ([`super::thread`]), by the same budget of processor time, but a decision that it learns
//! from costs what it costs on a machine of the usual kind ([`Meter`]), so that a run is the same everywhere.

use super::budget::Budget;
use super::deployed::Deployments;
use super::learner::{Learn, Meter, Pressure};
use super::mailbox::LoopId;
use super::thread::{STEP, Shares};
use super::twin::Twin;
use crate::config::Learn as LearnConfig;
use ccplane_alg::Algorithm;
use ccplane_core::Core;
use ccplane_learn::Policy;
use ccplane_runner::experiment::agents::{Beside, BoxError};
use ccplane_snapshot::Snapshot;
use std::sync::Arc;
use std::time::Duration;

/// A learner of this algorithm beside simulated flows; nothing is kept when it ends.
///
/// # Errors
/// The algorithm has no policy, or one that cannot be read.
pub(crate) fn beside(algorithm: &Arc<dyn Algorithm>, seed: u64) -> Result<Box<dyn Beside>, BoxError> {
    Ok(Box::new(Simulated::twin(algorithm, seed)?))
}

/// The algorithm has no policy.
#[derive(Debug, thiserror::Error)]
#[error("`{0}` has no policy to improve")]
struct NoPolicy(&'static str);

/// A learner and what its thread would keep.
pub(super) struct Simulated {
    pub(super) learner: Twin,
    algorithm: &'static str,
    slot: u8,
    budget: Budget,
    /// When it has rested.
    rested_at: Duration,
}

impl Simulated {
    /// The twin of flows that begin with what ships with the algorithm.
    pub(super) fn twin(algorithm: &Arc<dyn Algorithm>, seed: u64) -> Result<Simulated, BoxError> {
        let name = algorithm.name();
        let source = algorithm.policies().into_iter().next().filter(|p| !p.policy.is_empty());
        let source = source.ok_or(NoPolicy(name))?;
        let policy = Policy::from_bytes(&source.policy)?;
        let snapshot = Arc::new(Snapshot::parse(source.snapshot)?);
        let deployments = Deployments::new(name, policy, snapshot, None).with_reserve(&**algorithm);
        let learner = Twin::new(algorithm.clone(), deployments, seed, Meter::NOMINAL);
        let shares = Shares::of(&LearnConfig::default());
        let budget = Budget::new(shares, Duration::ZERO);
        Ok(Simulated { learner, algorithm: name, slot: source.slot, budget, rested_at: Duration::ZERO })
    }
}

impl Beside for Simulated {
    fn turned(&mut self, core: &mut Core, now_us: u64) {
        let before = self.learner.used();
        core.take_decisions().iter().for_each(|decision| self.learner.hear(decision));
        for batch in core.take_rows().iter().filter(|b| b.algorithm == self.algorithm) {
            self.learner.take(LoopId(0), batch);
        }
        if let Some(candidate) = self.learner.withdrawn() {
            core.withdraw(self.algorithm, self.slot, candidate);
        }
        let now = Duration::from_micros(now_us);
        let mut used = self.learner.used().saturating_sub(before);
        while self.rested_at <= now {
            let start = self.learner.used();
            let candidate = self.learner.step(STEP);
            used += self.learner.used().saturating_sub(start);
            if let Some(candidate) = candidate
                && !core.propose(self.algorithm, self.slot, &candidate, now_us)
            {
                self.learner.not_asked();
            }
            let pressure = self.learner.pressure();
            let ended = self.rested_at + used;
            self.rested_at = ended + self.budget.rest(used, self.rested_at, ended, pressure);
            used = Duration::ZERO;
            if pressure == Pressure::Steady {
                self.rested_at = self.rested_at.max(now);
                break;
            }
        }
    }
}
