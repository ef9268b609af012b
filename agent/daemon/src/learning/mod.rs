//! Learning beside live flows: a thread for each algorithm that has a policy.
//!
//! The loops post rows and decisions into a learner's mailbox and never wait; a learner offers candidates by asking
//! the loops, whose cores decide ([`ccplane_core::PushRules`]). A learner that panics, hangs or falls behind costs
//! learning: flows decide on what they have.

mod adjust;
mod budget;
mod candidate;
mod change;
mod decisions;
mod deployed;
mod estimate;
mod learner;
mod live;
mod mailbox;
mod offer;
mod outside;
mod resumed;
mod rows;
mod simulated;
mod supervised;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod tests_adapt;
#[cfg(test)]
mod tests_change;
#[cfg(test)]
mod tests_outside;
mod thread;
mod twin;

pub(crate) use budget::Shares;
pub(crate) use decisions::DecisionLog;
pub use deployed::KeepError;
pub(crate) use learner::Learn;
use learner::Meter;
pub(crate) use mailbox::LoopId;
pub(crate) use offer::{Ask, Offer};
pub(crate) use resumed::{Beginning, open_kept, resume_all};
pub use resumed::{ResumeError, resume};
pub use simulated::beside;
pub(crate) use thread::Gauges;

use crate::config::{Learn as LearnConfig, LearnMode};
use crate::control::LearnerRecord;
use crate::owned::{Folder, OwnedError};
use ccplane_alg::{Algorithm, PolicySource, configure};
use ccplane_core::{Batch, Decision, Rules};
use ccplane_learn::Policy;
use ccplane_snapshot::Snapshot;
use deployed::Deployments;
use live::Live;
use mailbox::{Mailbox, Poster};
use outside::{LearnerSocket, Outside};
use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use supervised::Supervised;
use thread::Wish;
use tracing::{info, warn};
use twin::Twin;

/// The destination of one loop's rows and decisions.
pub(crate) struct Post {
    learners: BTreeMap<&'static str, Poster>,
    log: DecisionLog,
}

impl Post {
    /// Returns the access of a loop that no learner learns from.
    pub(crate) fn none() -> Post {
        Post { learners: BTreeMap::new(), log: DecisionLog::default() }
    }

    /// Rows, to their learner.
    pub(crate) fn batch(&mut self, batch: Batch) {
        if let Some(poster) = self.learners.get_mut(batch.algorithm) {
            poster.batch(batch);
        }
    }

    /// A decision, to the log and its learner. `datapath`: its kind.
    pub(crate) fn decision(&mut self, datapath: &str, decision: Decision) {
        self.log.log_decision(datapath, &decision);
        if let Some(poster) = self.learners.get_mut(decision.algorithm) {
            poster.decision(decision);
        }
    }

    /// Posts again the messages that no learner could take at once.
    pub(crate) fn flush(&mut self) {
        self.learners.values_mut().for_each(Poster::flush);
    }
}

/// A learner as others see it.
#[derive(Clone)]
pub(crate) struct LearnerView {
    pub(crate) algorithm: &'static str,
    mailbox: Mailbox,
    pub(crate) gauges: Arc<Gauges>,
}

impl LearnerView {
    /// A learner that has done nothing.
    pub(crate) fn new(algorithm: &'static str) -> LearnerView {
        LearnerView { algorithm, mailbox: Mailbox::default(), gauges: Arc::default() }
    }

    /// Rows that it had no time for.
    pub(crate) fn dropped_rows(&self) -> u64 {
        self.mailbox.dropped()
    }

    /// Returns the learner's state for the control socket.
    pub(crate) fn record(&self) -> LearnerRecord {
        LearnerRecord {
            algorithm: self.algorithm.to_owned(),
            rows: self.gauges.rows.load(Relaxed),
            reward_sum: self.gauges.reward_sum(),
            dropped_rows: self.dropped_rows(),
            candidates: self.gauges.candidates.load(Relaxed),
            cpu_s: self.gauges.cpu_us.load(Relaxed) as f64 / 1e6,
            adapting: self.gauges.adapting.load(Relaxed),
            failed: self.gauges.failed.load(Relaxed),
        }
    }
}

struct PendingLearner {
    algorithm: Arc<dyn Algorithm>,
    policy: PolicySource,
    beginning: Option<Beginning>,
    view: LearnerView,
    /// The socket that a learning process connects to; `None` where the agent learns by itself.
    socket: Option<LearnerSocket>,
}

/// All learners.
pub(crate) struct Learning {
    pending: Vec<PendingLearner>,
    shares: Shares,
    mode: LearnMode,
    noise: f32,
    log: DecisionLog,
    /// The folder in which learned policies are kept.
    folder: Option<Folder>,
}

impl Learning {
    /// Mailboxes for the algorithms that have policies, as `rules` configure them. What is learned is kept in `folder`, if
    /// there is one, and processes that learn connect in `sockets`; learning goes on from the algorithm's beginning, if there is one.
    /// Nothing runs yet.
    ///
    /// # Errors
    /// The decision log cannot be opened.
    pub(crate) fn new(
        config: &LearnConfig,
        algorithms: &[Arc<dyn Algorithm>],
        rules: &Rules,
        folder: Option<Folder>,
        sockets: Option<&Path>,
        mut beginnings: Vec<Beginning>,
    ) -> io::Result<Learning> {
        let log = DecisionLog::open(config.decision_log.as_deref())?;
        let on = config.mode != LearnMode::Off;
        // One learner an algorithm: of its first policy.
        let pending_learner = |algorithm: &Arc<dyn Algorithm>| {
            // Without a float policy there is nothing to go on from.
            let policy = algorithm.policies().into_iter().next().filter(|p| !p.policy.is_empty())?;
            let view = LearnerView::new(algorithm.name());
            let at = beginnings.iter().position(|beginning| beginning.algorithm == algorithm.name());
            let beginning = at.map(|at| beginnings.swap_remove(at));
            // What is learned from targets is learned in this process, whatever the mode.
            let is_outside = config.mode == LearnMode::Outside && !algorithm.is_supervised();
            let socket = if is_outside { learner_socket(sockets, algorithm.name()) } else { None };
            Some(PendingLearner { algorithm: in_use(algorithm, rules), policy, beginning, view, socket })
        };
        Ok(Learning {
            pending: algorithms.iter().filter(|_| on).filter_map(pending_learner).collect(),
            shares: Shares::of(config),
            mode: config.mode,
            noise: config.noise() as f32,
            log,
            folder,
        })
    }

    /// Returns the post of one loop.
    pub(crate) fn post(&self, from: LoopId) -> Post {
        let poster = |p: &PendingLearner| (p.view.algorithm, Poster::new(p.view.mailbox.clone(), from));
        Post { learners: self.pending.iter().map(poster).collect(), log: self.log.clone() }
    }

    /// Returns the views of the learners.
    pub(crate) fn views(&self) -> Vec<LearnerView> {
        self.pending.iter().map(|p| p.view.clone()).collect()
    }

    /// Starts the threads; `ask` asks the loops, and says whether it reached one.
    pub(crate) fn start(self, ask: impl Fn(Ask) -> bool + Clone + Send + 'static) -> Running {
        let mut mailboxes = Vec::new();
        for PendingLearner { algorithm, policy, beginning, view, socket } in self.pending {
            let (name, slot, ask) = (view.algorithm, policy.slot, ask.clone());
            let unkept = |error: &OwnedError| warn!(algorithm = name, %error, "what it learns is not kept");
            let folder = self.folder.as_ref().and_then(|f| f.reopen().inspect_err(unkept).ok());
            let (mode, noise) = (self.mode, self.noise);
            let make = move || learner(mode, algorithm, &policy, beginning, noise, folder, socket);
            let (mailbox, log) = (view.mailbox.clone(), self.log.clone());
            let ask = move |wish| {
                ask(match wish {
                    Wish::Try(candidate, refused) => {
                        Ask::Try(Arc::new(Offer::new(name, slot, candidate, refused, log.clone())))
                    }
                    Wish::Withdraw(candidate) => Ask::Withdraw { algorithm: name, slot, candidate },
                })
            };
            match thread::spawn(name, mailbox.clone(), self.shares, view.gauges, make, ask) {
                Ok(_) => mailboxes.push(mailbox),
                Err(error) => {
                    warn!(algorithm = name, %error, "no thread for its learner: nothing is learned")
                }
            }
        }
        Running { mailboxes }
    }
}

/// Returns the socket at which a process that learns for an algorithm finds the agent; without it
/// nothing is learned.
fn learner_socket(folder: Option<&Path>, algorithm: &str) -> Option<LearnerSocket> {
    let Some(folder) = folder else {
        warn!(algorithm, "no process can learn for it: there is no folder for its socket");
        return None;
    };
    let closed = |error| warn!(algorithm, %error, "no process can learn for it");
    LearnerSocket::open(folder, algorithm).map_err(closed).ok()
}

/// An algorithm as its first rule configures it: a twin's flows are all alike.
fn in_use(algorithm: &Arc<dyn Algorithm>, rules: &Rules) -> Arc<dyn Algorithm> {
    let name = algorithm.name();
    let configured = rules.rules.iter().filter(|rule| rule.algorithm == name).map(|r| &*r.parameters);
    let variants: Vec<_> = configured.chain((rules.default == name).then_some([].as_slice())).collect();
    let Some(first) = variants.first() else { return algorithm.clone() };
    if variants.iter().any(|other| other != first) {
        warn!(algorithm = name, parameters = ?first, "rules differ in its parameters: learning goes by the first");
    }
    // Rules that it does not take are refused where flows are steered by them.
    let values = first.iter().map(|(name, value)| (name.as_str(), *value));
    configure(algorithm, values).unwrap_or_else(|_| algorithm.clone())
}

/// Running learners; they end when this is dropped, in their own time: nobody waits for one that hangs.
pub(crate) struct Running {
    mailboxes: Vec<Mailbox>,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.mailboxes.iter().for_each(Mailbox::close);
    }
}

/// The learner of one algorithm; none where its policy cannot be learned on.
fn learner(
    mode: LearnMode,
    algorithm: Arc<dyn Algorithm>,
    source: &PolicySource,
    beginning: Option<Beginning>,
    noise: f32,
    folder: Option<Folder>,
    socket: Option<LearnerSocket>,
) -> Option<Box<dyn Learn>> {
    let name = algorithm.name();
    let unreadable = |error: &dyn std::fmt::Display| {
        warn!(algorithm = name, %error, "nothing is learned: its policy cannot be read");
    };
    let (policy, snapshot) = if let Some(Beginning { policy, snapshot, .. }) = beginning {
        (policy, snapshot.shared().clone())
    } else {
        let policy = Policy::from_bytes(&source.policy).inspect_err(|e| unreadable(e)).ok()?;
        let snapshot = Snapshot::built_in(source.snapshot).inspect_err(|e| unreadable(e)).ok()?;
        (policy, Arc::new(snapshot))
    };
    let seed = policy.provenance.seed;
    info!(algorithm = name, mode = mode.name(), steps = policy.provenance.steps, "learning");
    let deployments = Deployments::new(name, policy, snapshot, folder).with_reserve(&*algorithm);
    match mode {
        LearnMode::Off => None,
        // No twin of a path knows what its flows will turn out to be.
        _ if algorithm.is_supervised() => {
            Some(Box::new(Supervised::new(name, deployments, seed, Meter::Thread)))
        }
        LearnMode::Outside => Some(Box::new(Outside::new(name, deployments, socket?))),
        LearnMode::Twin => Some(Box::new(Twin::new(algorithm, deployments, seed, Meter::Thread))),
        LearnMode::Live => match Live::new(name, deployments, noise, seed, Meter::Thread) {
            Ok(live) => Some(Box::new(live)),
            Err(error) => {
                warn!(algorithm = name, %error, "nothing is learned");
                None
            }
        },
    }
}
