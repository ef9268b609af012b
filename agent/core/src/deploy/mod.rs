//! Deployment of snapshots by LiteFlow's rules (SIGCOMM'22 section 3.2) and by trials on a share of the flows.
//!
//! A learner offers a [`Candidate`] with its [`Evidence`]. It is pushed if it is
//!
//! 1. *correct*: the learner's stability measure says that it has converged;
//! 2. *safe*: its decisions are within their bounds on nearly all of the calibration set and on most adversarial
//!    corners. It can also both speed up and slow down;
//! 3. *necessary*: it decides otherwise than the active snapshot, by more than `alpha` of the output range and than rounding
//!    to integers brings ([`PushRules::is_necessary`]).
//!
//! Then a share of the flows, or all where there are few, alternate between it and the active snapshot. Their rewards
//! under the one are compared with those under the other ([`switchback`], [`compare`]): it is promoted if it is better,
//! or in the end no worse, else rolled back. A flow that the datapath's monitor has taken off a snapshot on trial ends
//! the trial at once.
//!
//! Whatever is proposed ends in one [`Decision`], with its numbers; what is tried has one when that begins, too.

mod compare;
mod slot;
mod switchback;

pub use compare::{Comparison, Finding, MAX_PAIRS};
pub(crate) use slot::{SlotDeployment, SlotState};

use crate::action::DatapathId;
use ccplane_contract::{DatapathError, SnapshotUid};
use ccplane_snapshot::{Hash, TrustedSnapshot};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::Arc;
use switchback::Windows;

/// Policies that a difference is between, each of which was rounded to integers.
const ROUNDED: f64 = 2.0;

/// A gain from which on a candidate is a rescue, in units of a reward: a logarithm of the rate.
const RESCUE: f64 = 0.2;

/// When to push, and how to try.
#[derive(Clone, PartialEq, Debug)]
pub struct PushRules {
    /// By how much of the output range a candidate must decide otherwise.
    pub alpha: f64,
    /// The measure of fidelity loss that a push must exceed.
    pub necessity: Necessity,
    /// Share of the flows that try it, above 0 and below 1.
    pub canary_share: f64,
    /// The largest loss of reward that still counts as no worse: a share of the active snapshot's mean, or of 1
    /// if that is more.
    pub margin: f64,
    /// The longest first part of a trial's windows that is not counted, microseconds: queues are still those
    /// of the other snapshot.
    pub settle_us: u64,
    /// Whether a flow keeps its snapshot while a buffer holds it. Nothing can be tried then: [`Verdict::Pinned`].
    pub pin: bool,
    /// Standard deviation of the exploration noise on actions, Q16; 0 for none.
    pub noise_q16: u32,
}

impl Default for PushRules {
    fn default() -> PushRules {
        PushRules {
            alpha: 0.05,
            necessity: Necessity::Mean,
            canary_share: 0.25,
            margin: 0.05,
            settle_us: 1_600_000,
            pin: false,
            noise_q16: 0,
        }
    }
}

impl PushRules {
    /// Whether a candidate decides otherwise by enough: by more than `alpha`, and by more than two that were rounded from
    /// one float policy may. What is expected to gain nothing is not necessary either, nor where a number is none.
    pub fn is_necessary(&self, evidence: &Evidence) -> bool {
        let difference = match self.necessity {
            Necessity::Mean => evidence.fidelity_mean,
            Necessity::Min => evidence.fidelity_min,
        };
        let rounding = ROUNDED * evidence.quantisation_error;
        difference > self.alpha && difference > rounding && evidence.gain.is_none_or(|gain| gain > 0.0)
    }

    /// A trial's windows, with rows each `batch_us`.
    pub(crate) fn windows(&self, batch_us: u64) -> Windows {
        Windows::new(self.settle_us, batch_us)
    }

    /// The longest that a trial takes, with rows each `batch_us`: all of it in microseconds, of batch intervals that end
    /// when they are due. What has shown nothing by then is rolled back.
    pub fn longest_trial_us(&self, batch_us: u64) -> u64 {
        self.windows(batch_us).longest_us(batch_us)
    }
}

/// Over the visited states of the last batch, which difference of two policies counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Necessity {
    Mean,
    /// The smallest, as LiteFlow has it. Two continuous policies that cross somewhere in the batch have almost none,
    /// however far apart they are elsewhere.
    Min,
}

/// Measurements of a candidate by its learner.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Evidence {
    /// Whether tuning has converged.
    pub converged: bool,
    /// The learner's measure of convergence, of which it also sets the limit.
    pub stability: f64,
    /// Smallest difference from the active snapshot on the last batch, as a share of the output range: of what both span
    /// there.
    pub fidelity_min: f64,
    pub fidelity_mean: f64,
    /// Whether its decisions are within their bounds on nearly all of the calibration set and on most adversarial corners, as
    /// the learner counts them.
    pub safe: bool,
    /// Mean difference of an integer network from its float one, as a share of the same range: the candidate's or the
    /// active snapshot's, whichever is more.
    pub quantisation_error: f64,
    /// By how much the learner expects rewards to improve, or an error in octaves to fall, where it knows: nothing above 0
    /// is not necessary.
    pub gain: Option<f64>,
    /// States that all of this was measured on.
    pub states: u64,
}

impl Evidence {
    /// Whether the learner expects so much that flows by the active snapshot must have come down.
    pub(crate) fn is_rescue(&self) -> bool {
        self.gain.is_some_and(|gain| gain > RESCUE)
    }
}

/// Sources of a candidate.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Origin {
    /// Built into its algorithm.
    Shipped,
    /// The slot held it when the agent attached.
    TakenOver,
    /// Learned beside the flows.
    Learned(Evidence),
    /// By hand: it need be neither converged nor necessary.
    Operator {
        /// The share of flows to try it on; `None` for that of the rules.
        share: Option<f64>,
        /// To all flows at once.
        force: bool,
    },
}

impl Origin {
    /// Returns the learner's measurements, if a learner made the candidate.
    pub fn evidence(&self) -> Option<&Evidence> {
        if let Origin::Learned(evidence) = self { Some(evidence) } else { None }
    }
    /// "shipped", "taken over", "learned" or "operator".
    pub fn name(&self) -> &'static str {
        match self {
            Origin::Shipped => "shipped",
            Origin::TakenOver => "taken over",
            Origin::Learned(_) => "learned",
            Origin::Operator { .. } => "operator",
        }
    }
}

/// A snapshot that may be pushed.
#[derive(Clone, PartialEq, Debug)]
pub struct Candidate {
    /// The snapshot, admitted: what was not cannot reach a slot.
    pub snapshot: TrustedSnapshot,
    pub origin: Origin,
}

/// A snapshot in a slot.
#[derive(Clone, PartialEq, Debug)]
pub struct Deployment {
    pub uid: SnapshotUid,
    /// The snapshot's name; unknown if an earlier agent pushed it and its image does not say.
    pub snapshot: Option<Hash>,
    pub origin: Origin,
    /// When it was pushed, or found, microseconds on the agent's clock.
    pub since_us: u64,
}

/// Reasons why a snapshot was rolled back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Why {
    /// Its rewards are worse.
    Worse,
    /// Neither was shown: rewards are too noisy, or too few flows had any.
    Inconclusive,
    /// Its learner has taken it back: conditions are others than it was made for.
    Withdrawn,
    /// The datapath's monitor took flows off it.
    Tripped,
    Operator,
    /// An earlier agent left it on trial.
    Orphaned,
    /// The datapath has it no more.
    Gone,
}

/// Outcome of a push or of a trial.
#[derive(Clone, PartialEq, Debug)]
pub enum Verdict {
    /// Not pushed: tuning has not converged.
    NotConverged,
    /// Not pushed: a bound does not hold.
    Unsafe,
    /// Not pushed: it decides as the active snapshot does.
    NotNecessary,
    /// Not pushed: another one is on trial, or on its way.
    Busy,
    /// Not pushed: the slot takes another shape.
    Unfit,
    /// Not pushed: flows keep their snapshots, so nothing can be tried on them.
    Pinned,
    /// Not pushed: no datapath has the slot, or it went before the push.
    NoSlot,
    /// Not carried out: the datapath refused.
    Refused(Arc<DatapathError>),
    /// Flows decide by it already: an earlier agent pushed it.
    TakenOver,
    /// Pushed to all flows.
    Pushed,
    /// Some flows try it, or all.
    Trial {
        /// The share, in 2^-16.
        share: u16,
        /// Flows that try it.
        trying: usize,
        flows: usize,
    },
    /// All flows take it.
    Promoted,
    /// No flow takes it any more.
    RolledBack(Why),
}

impl Verdict {
    /// Whether flows decide by the snapshot from now on, all or some.
    pub fn is_pushed(&self) -> bool {
        matches!(self, Verdict::Pushed | Verdict::Trial { .. } | Verdict::Promoted)
    }

    /// One word, as logs have it.
    pub fn name(&self) -> &'static str {
        match self {
            Verdict::NotConverged => "not-converged",
            Verdict::Unsafe => "unsafe",
            Verdict::NotNecessary => "not-necessary",
            Verdict::Busy => "busy",
            Verdict::Unfit => "unfit",
            Verdict::Pinned => "pinned",
            Verdict::NoSlot => "no-slot",
            Verdict::TakenOver => "taken-over",
            Verdict::Refused(_) => "refused",
            Verdict::Pushed => "pushed",
            Verdict::Trial { .. } => "trial",
            Verdict::Promoted => "promoted",
            Verdict::RolledBack(_) => "rolled-back",
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Verdict::Unfit => f.write_str("unfit: the slot takes snapshots of another shape"),
            Verdict::Refused(error) => write!(f, "refused: {error}"),
            Verdict::Pinned => {
                f.write_str("not tried: flows keep their snapshots; it can be pushed to new ones by force")
            }
            Verdict::NoSlot => f.write_str("no datapath has its slot"),
            Verdict::TakenOver => f.write_str("taken over from an earlier agent"),
            Verdict::Trial { trying, flows, .. } => write!(f, "trial on {trying} of {flows} flows"),
            Verdict::RolledBack(why) => f.write_str(match why {
                Why::Worse => "rolled back: worse",
                Why::Withdrawn => "rolled back: conditions have changed",
                Why::Inconclusive => "rolled back: not shown to be no worse in time",
                Why::Tripped => "rolled back: the monitor tripped",
                Why::Operator => "rolled back by hand",
                Why::Orphaned => "rolled back: left on trial by an earlier agent",
                Why::Gone => "gone from the datapath",
            }),
            other => f.write_str(other.name()),
        }
    }
}

/// Record of one decision on a snapshot, with the numbers that led to it.
#[derive(Clone, PartialEq, Debug)]
pub struct Decision {
    /// When, microseconds on the agent's clock.
    pub at_us: u64,
    /// The datapath with the slot; `None` if no datapath has it.
    pub datapath: Option<DatapathId>,
    pub slot: u8,
    pub algorithm: &'static str,
    /// The snapshot's name; unknown if an earlier agent pushed it.
    pub snapshot: Option<Hash>,
    /// Its deployment, if it got that far.
    pub uid: Option<SnapshotUid>,
    pub origin: Origin,
    /// The last look at its trial.
    pub comparison: Option<Comparison>,
    pub verdict: Verdict,
}

impl Decision {
    /// On a candidate that no datapath took: none has this slot of the algorithm.
    pub fn no_slot(algorithm: &'static str, slot: u8, candidate: &Candidate, now_us: u64) -> Decision {
        Decision {
            at_us: now_us,
            datapath: None,
            slot,
            algorithm,
            snapshot: Some(candidate.snapshot.hash()),
            uid: None,
            origin: candidate.origin,
            comparison: None,
            verdict: Verdict::NoSlot,
        }
    }
}
