//! A learner beside simulated flows, in their virtual time: plans whose contenders learn on `sim`, and tests.
//!
//! It works as a learner's thread does ([`super::thread`]), by the same budget of processor time. But each decision
//! that it learns from is charged what it costs on a usual machine ([`Meter`]), so that a run is the same everywhere.

use super::budget::{Budget, Pressure, Shares};
use super::deployed::Deployments;
use super::learner::{Learn, Meter};
use super::live::Live;
use super::mailbox::LoopId;
use super::supervised::Supervised;
use super::thread::STEP;
use super::twin::Twin;
use crate::config::{Learn as LearnConfig, LearnMode};
use ccplane_alg::Algorithm;
use ccplane_core::{Companion, Core, PushRules};
use ccplane_learn::Policy;
use ccplane_snapshot::Snapshot;
use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

type BoxError = Box<dyn Error + Send + Sync>;

/// A learner of this algorithm beside simulated flows; nothing is kept when it ends. Simulated flows explore with no noise, so `live`
/// learns by trials alone there.
///
/// # Errors
/// The algorithm has no policy, or one that cannot be read.
pub fn beside(
    algorithm: &Arc<dyn Algorithm>,
    seed: u64,
    mode: LearnMode,
) -> Result<Box<dyn Companion>, BoxError> {
    Ok(match mode {
        _ if algorithm.is_supervised() => Box::new(Simulated::supervised(algorithm, seed)?),
        LearnMode::Live => Box::new(Simulated::live(algorithm, seed)?),
        // A process does not live in virtual time.
        LearnMode::Twin | LearnMode::Outside | LearnMode::Off => Box::new(Simulated::twin(algorithm, seed)?),
    })
}

/// The algorithm has no policy.
#[derive(Debug, thiserror::Error)]
#[error("`{0}` has no policy to improve")]
struct NoPolicy(&'static str);

/// A learner, with the state that its thread would keep.
pub(super) struct Simulated<L> {
    pub(super) learner: L,
    algorithm: &'static str,
    slot: u8,
    budget: Budget,
    /// When it has rested.
    rested_at: Duration,
}

impl Simulated<Twin> {
    /// The twin of flows that begin with what ships with the algorithm.
    pub(super) fn twin(algorithm: &Arc<dyn Algorithm>, seed: u64) -> Result<Simulated<Twin>, BoxError> {
        let twin = |deployments| Ok(Twin::new(algorithm.clone(), deployments, seed, Meter::NOMINAL));
        Simulated::of(algorithm, twin)
    }
}

impl Simulated<Live> {
    /// Learns from the flows themselves, which begin with what ships with the algorithm.
    pub(super) fn live(algorithm: &Arc<dyn Algorithm>, seed: u64) -> Result<Simulated<Live>, BoxError> {
        let noise = PushRules::default().noise_q16 as f32 / 65536.0;
        Simulated::of(algorithm, |deployments| {
            Ok(Live::new(algorithm.name(), deployments, noise, seed, Meter::NOMINAL)?)
        })
    }
}

impl Simulated<Supervised> {
    /// Makes a learner of an algorithm whose flows begin with the shipped policy; the targets are the flows' outcomes.
    fn supervised(algorithm: &Arc<dyn Algorithm>, seed: u64) -> Result<Simulated<Supervised>, BoxError> {
        let learner = |deployments| Ok(Supervised::new(algorithm.name(), deployments, seed, Meter::NOMINAL));
        Simulated::of(algorithm, learner)
    }
}

impl<L: Learn> Simulated<L> {
    fn of(
        algorithm: &Arc<dyn Algorithm>,
        learner: impl FnOnce(Deployments) -> Result<L, BoxError>,
    ) -> Result<Simulated<L>, BoxError> {
        let name = algorithm.name();
        let source = algorithm.policies().into_iter().next().filter(|p| !p.policy.is_empty());
        let source = source.ok_or(NoPolicy(name))?;
        let policy = Policy::from_bytes(&source.policy)?;
        let snapshot = Arc::new(Snapshot::parse(source.snapshot)?);
        let deployments = Deployments::new(name, policy, snapshot, None).with_reserve(&**algorithm);
        let shares = Shares::of(&LearnConfig::default());
        let budget = Budget::new(shares, Duration::ZERO);
        let learner = learner(deployments)?;
        Ok(Simulated { learner, algorithm: name, slot: source.slot, budget, rested_at: Duration::ZERO })
    }
}

impl<L: Learn> Companion for Simulated<L> {
    fn after_turn(&mut self, core: &mut Core, now_us: u64) {
        let before = self.learner.used();
        core.take_decisions().iter().for_each(|decision| self.learner.on_decision(decision));
        for batch in core.take_rows().iter().filter(|b| b.algorithm == self.algorithm) {
            self.learner.take(LoopId(0), batch);
        }
        if let Some(candidate) = self.learner.withdrawn() {
            core.withdraw(self.algorithm, self.slot, candidate);
        }
        let now = Duration::from_micros(now_us);
        let mut used = self.learner.used().saturating_sub(before);
        while self.rested_at <= now {
            let (start, before) = (self.learner.used(), self.learner.pressure());
            let candidate = self.learner.step(STEP);
            used += self.learner.used().saturating_sub(start);
            if let Some(candidate) = candidate
                && !core.propose(self.algorithm, self.slot, &candidate, now_us)
            {
                self.learner.not_asked();
            }
            let pressure = self.learner.pressure();
            let ended = self.rested_at + used;
            self.rested_at = ended + self.budget.rest(used, self.rested_at, ended, pressure.max(before));
            used = Duration::ZERO;
            if pressure == Pressure::Steady {
                self.rested_at = self.rested_at.max(now);
                break;
            }
        }
    }
}
