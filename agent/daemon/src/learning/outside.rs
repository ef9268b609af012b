//! Learners in processes of their own, such as Python's.
//!
//! The agent listens on a socket in its run directory; one process at a time speaks to it. It is sent the policy
//! that flows decide by, rows of live flows, and what became of its offers. It offers policies. The agent makes integers of
//! them, judges them and has flows try them, as it does with what its own learners make: a process that is wrong, hung or killed costs
//! learning, and flows decide on what they have.
//!
//! A message is its length (four bytes, little-endian, of what follows), one byte that says what it is, and its content.
//! To the process: `P`, a policy file; `R`, rows as JSON; `D`, a decision as JSON. From it: `O`, the measure of its convergence (an
//! eight-byte float, little-endian) and a policy file.

mod peer;

use super::budget::cpu_time;
use super::candidate::{Claim, LEAST_STATES, States, candidate};
use super::deployed::Deployments;
use super::learner::Learn;
use super::mailbox::LoopId;
use super::rows::{FlowNumbers, ONE_Q16, normalised};
use ccplane_core::{Batch, Candidate, Decision, Verdict};
use ccplane_files::{Others, SocketError, SocketName};
use ccplane_learn::{Policy, PolicyError};
use ccplane_snapshot::Hash;
use nix::sys::socket::{Backlog, SockFlag, SockType, listen};
use peer::{Peer, PeerError};
use serde::Serialize;
use std::collections::VecDeque;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::time::Duration;
use tracing::{info, warn};

/// Rows that wait for the process; of more, all are forgotten.
const MAX_ROWS: usize = 4096;
/// Deployments that are remembered, at most: each datapath has its own.
const MAX_DEPLOYMENTS: usize = 256;
/// The socket's name after the algorithm's.
const SOCKET: &str = "learner";
/// The verdict on an offer that no loop of the agent could be asked to try.
const NOT_ASKED: &str = "not-asked";

/// A socket that processes find, and that is gone when this is dropped.
#[derive(Debug)]
pub(crate) struct LearnerSocket {
    listener: UnixListener,
    _name: SocketName,
}

impl LearnerSocket {
    /// Binds `ALGORITHM.learner` in `folder`, replacing the socket that a dead agent left.
    ///
    /// # Errors
    /// The folder is not ours alone, or the path cannot be bound.
    pub(crate) fn open(folder: &Path, algorithm: &str) -> Result<LearnerSocket, SocketError> {
        let path = folder.join(format!("{algorithm}.{SOCKET}"));
        let mut name = SocketName::new(&path, Others::Nothing)?;
        let socket = name.bind(SockType::Stream, SockFlag::SOCK_NONBLOCK)?;
        let io = |source| SocketError::io("listen on", &path, source);
        listen(&socket, Backlog::MAXCONN).map_err(|errno| io(errno.into()))?;
        Ok(LearnerSocket { listener: UnixListener::from(socket), _name: name })
    }
}

/// One interval of a live flow.
#[derive(Serialize)]
struct RowOut {
    /// The same for all rows of one flow, until rows were forgotten.
    flow: u64,
    /// The datapath's clock when the interval ended, microseconds.
    at_us: u64,
    /// The policy's observation, each number in [-1, 1].
    observation: Vec<f32>,
    /// The policy's action, exploration included.
    action: f32,
    /// The worth of the interval that ended, which the action of the flow's row before led to.
    reward: f32,
    /// Whether no row is missing between the flow's row before and this one. That row may be from before the process came.
    follows: bool,
    /// Whether the policy that was sent last decided, not one on trial or one before it.
    current: bool,
}

/// A decision on a snapshot of the slot.
#[derive(Serialize)]
struct DecisionOut<'a> {
    verdict: &'a str,
    /// The verdict's reason in words.
    why: String,
    /// Whether it is on a policy that a process offered.
    offered: bool,
}

/// A fault of an offer, for which it is refused.
#[derive(Debug, thiserror::Error)]
enum OfferError {
    #[error(transparent)]
    Policy(#[from] PolicyError),
    #[error("an offer begins with the measure of its convergence, a finite number of eight bytes")]
    Stability,
    #[error("the offered policy has other inputs, actions or networks than the deployed one")]
    Shape,
}

/// A learner in another process, whose snapshots are offered to the loops.
pub(crate) struct Outside {
    name: &'static str,
    socket: LearnerSocket,
    peer: Option<Peer>,
    deployments: Deployments,
    states: States,
    rows: Vec<RowOut>,
    flows: FlowNumbers,
    /// The snapshots of recent deployments, by the numbers that rows name these by; latest last.
    deployed: VecDeque<(u32, Hash)>,
    /// The snapshot whose policy was sent to the process.
    sent: Option<Hash>,
    /// The snapshot that waits for a verdict.
    offered: Option<Hash>,
    /// Whether it comes from the process that is here now.
    is_its_own: bool,
    /// An offer that waits until the one before is decided, and its stability; a later offer replaces it.
    waiting: Option<(Policy, f64)>,
}

impl Outside {
    pub(crate) fn new(name: &'static str, deployments: Deployments, socket: LearnerSocket) -> Outside {
        Outside {
            name,
            socket,
            peer: None,
            deployments,
            states: States::default(),
            rows: Vec::new(),
            flows: FlowNumbers::default(),
            deployed: VecDeque::new(),
            sent: None,
            offered: None,
            is_its_own: false,
            waiting: None,
        }
    }

    /// Forgets the rows that wait. Flows count as new ones then, so that no later row claims to follow one that was not sent.
    fn forget(&mut self) {
        self.rows.clear();
        self.flows.clear();
    }

    /// Lets the newest process in, which takes the place of the one before.
    fn accept(&mut self) {
        while let Ok((stream, _)) = self.socket.listener.accept() {
            match Peer::new(stream) {
                Ok(peer) => {
                    info!(algorithm = self.name, "a process learns");
                    (self.peer, self.sent, self.waiting) = (Some(peer), None, None);
                    self.is_its_own = false;
                    self.forget();
                }
                Err(error) => warn!(algorithm = self.name, %error, "a learning process is not let in"),
            }
        }
    }

    /// Receives an offer of the process, and sends it decisions and rows. After an error the process is not served any more.
    fn talk(&mut self) -> Result<(), PeerError> {
        let Some(peer) = &mut self.peer else { return Ok(()) };
        // Before anything is sent: an offer counts, even if its process has ended since.
        let offered = peer.read()?;
        let active = self.deployments.snapshot().hash();
        if self.sent != Some(active) {
            peer.queue(peer::POLICY, &self.deployments.policy().to_bytes()?)?;
            self.sent = Some(active);
        }
        if peer.is_idle() && !self.rows.is_empty() {
            peer.queue_json(peer::ROWS, &self.rows)?;
            self.rows.clear();
        }
        match offered.map(|content| self.offer(&content)) {
            None => {}
            Some(Ok(offer)) => self.waiting = Some(offer),
            Some(Err(error)) => {
                info!(algorithm = self.name, %error, "a learning process's offer is refused");
                self.queue_decision(&DecisionOut {
                    verdict: "refused",
                    why: error.to_string(),
                    offered: true,
                })?;
            }
        }
        self.peer.as_mut().map_or(Ok(()), Peer::write)
    }

    /// An offer's policy and stability.
    fn offer(&self, content: &[u8]) -> Result<(Policy, f64), OfferError> {
        let (stability, file) = content.split_first_chunk().ok_or(OfferError::Stability)?;
        let stability = f64::from_le_bytes(*stability);
        // It goes into answers in JSON, which has no other numbers.
        if !stability.is_finite() {
            return Err(OfferError::Stability);
        }
        let policy = Policy::from_bytes(file)?;
        let deployed = self.deployments.policy();
        if policy.spec() != deployed.spec() || policy.architecture() != deployed.architecture() {
            return Err(OfferError::Shape);
        }
        Ok((policy, stability))
    }

    fn queue_decision(&mut self, decision: &DecisionOut<'_>) -> Result<(), PeerError> {
        self.peer.as_mut().map_or(Ok(()), |peer| peer.queue_json(peer::DECISION, decision))
    }

    /// Makes a candidate of what waits, where nothing else is on trial.
    fn propose(&mut self) -> Option<Candidate> {
        if self.offered.is_some() || self.states.len() < LEAST_STATES {
            return None;
        }
        let (policy, stability) = self.waiting.take()?;
        let claim = Claim { converged: true, stability, gain: None, steers: true };
        match candidate(&policy, self.deployments.snapshot(), &self.states, claim) {
            Ok(candidate) => {
                (self.offered, self.is_its_own) = (Some(candidate.snapshot.hash()), true);
                self.deployments.made(policy, candidate.snapshot.shared().clone());
                Some(candidate)
            }
            Err(error) => {
                info!(algorithm = self.name, %error, verdict = "unsafe", "not pushed");
                let told = self.queue_decision(&DecisionOut {
                    verdict: "unsafe",
                    why: error.to_string(),
                    offered: true,
                });
                self.drop_if(told);
                None
            }
        }
    }

    fn drop_if(&mut self, result: Result<(), PeerError>) {
        if let Err(error) = result {
            info!(algorithm = self.name, %error, "the learning process has gone");
            self.peer = None;
        }
    }
}

impl Learn for Outside {
    fn take(&mut self, from: LoopId, batch: &Batch) {
        let active = self.deployments.snapshot().hash();
        for (flow, row) in &batch.rows {
            if row.inputs.len() != self.deployments.policy().architecture().inputs {
                continue;
            }
            self.states.push(&row.inputs);
            if self.peer.is_none() {
                continue;
            }
            if self.rows.len() >= MAX_ROWS {
                self.forget();
            }
            let observation = normalised(self.deployments.policy(), &row.inputs);
            let (flow, is_new) = self.flows.of((from, batch.datapath, flow.0));
            self.rows.push(RowOut {
                flow,
                at_us: row.at_us,
                observation,
                action: row.action_q16 as f32 / ONE_Q16,
                reward: row.reward,
                follows: row.follows && !is_new,
                current: self.deployed.contains(&(row.snapshot, active)),
            });
        }
    }

    fn on_decision(&mut self, decision: &Decision) {
        let before = self.deployments.snapshot().hash();
        self.deployments.on_decision(decision);
        if self.deployments.snapshot().hash() != before {
            // Rows that wait are sent after the new policy, which did not decide them.
            self.rows.iter_mut().for_each(|row| row.current = false);
        }
        if let (Some(uid), Some(hash)) = (decision.uid, decision.snapshot)
            && !self.deployed.contains(&(uid.0, hash))
        {
            if self.deployed.len() >= MAX_DEPLOYMENTS {
                self.deployed.pop_front();
            }
            self.deployed.push_back((uid.0, hash));
        }
        let offered = self.offered.is_some() && decision.snapshot == self.offered;
        let (verdict, why) = (decision.verdict.name(), decision.verdict.to_string());
        let told = self.queue_decision(&DecisionOut { verdict, why, offered: offered && self.is_its_own });
        self.drop_if(told);
        if offered && !matches!(decision.verdict, Verdict::Trial { .. }) {
            self.offered = None;
        }
    }

    fn not_asked(&mut self) {
        self.offered = None;
        let why = "no loop of the agent could be asked to try it".to_owned();
        let told = self.queue_decision(&DecisionOut { verdict: NOT_ASKED, why, offered: self.is_its_own });
        self.drop_if(told);
    }

    fn step(&mut self, _budget: Duration) -> Option<Candidate> {
        self.accept();
        let talked = self.talk();
        self.drop_if(talked);
        self.propose()
    }

    fn used(&self) -> Duration {
        cpu_time()
    }
}

#[cfg(test)]
pub(super) mod tests;
