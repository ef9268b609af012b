//! A candidate on its way to the loops, which ends in a decision wherever it ends.

use super::DecisionLog;
use ccplane_channel::clock;
use ccplane_core::{Candidate, Decision};
use ccplane_snapshot::Hash;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Request of a learner to the loops.
#[derive(Clone)]
pub(crate) enum Ask {
    /// To try its candidate.
    Try(Arc<Offer>),
    /// Not to try this one any more.
    Withdraw {
        algorithm: &'static str,
        slot: u8,
        /// The candidate's name.
        candidate: Hash,
    },
}

/// A candidate for a slot. Loops share it, and those whose datapaths have the slot decide on it; if none has, that is
/// its decision, made when the last of them lets go.
pub(crate) struct Offer {
    pub(crate) algorithm: &'static str,
    pub(crate) slot: u8,
    /// The candidate that is offered.
    pub(crate) candidate: Candidate,
    taken: AtomicBool,
    /// Set by the loop that refuses the offer; the learner polls it, so that no loop waits.
    refused: Arc<AtomicBool>,
    log: DecisionLog,
}

impl Offer {
    /// Makes an offer; `refused` becomes true if no loop takes it.
    pub(super) fn new(
        algorithm: &'static str,
        slot: u8,
        candidate: Candidate,
        refused: Arc<AtomicBool>,
        log: DecisionLog,
    ) -> Offer {
        Offer { algorithm, slot, candidate, taken: AtomicBool::new(false), refused, log }
    }

    /// A core has the slot, and decides.
    pub(crate) fn take(&self) {
        self.taken.store(true, Relaxed);
    }
}

impl Drop for Offer {
    fn drop(&mut self) {
        // Whoever took it did so before it let go, which orders the two.
        if !self.taken.load(Relaxed) {
            let decision = Decision::no_slot(self.algorithm, self.slot, &self.candidate, clock::now_us());
            self.log.log_decision("", &decision);
            self.refused.store(true, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::learning::twin::tests::policy_and_snapshot;
    use ccplane_core::Origin;
    use ccplane_snapshot::{Admission, Trust};

    #[test]
    fn a_candidate_that_no_loop_takes_is_refused() {
        let (_, snapshot) = policy_and_snapshot(1);
        let snapshot = Trust::OURS.admit(snapshot, &Admission::default()).unwrap();
        let candidate = Candidate { snapshot, origin: Origin::Operator { share: None, force: false } };
        for taken in [false, true] {
            let refused = Arc::<AtomicBool>::default();
            let offer = Offer::new("hung", 3, candidate.clone(), refused.clone(), DecisionLog::default());
            let offer = Arc::new(offer);
            let loops = [offer.clone(), offer];
            if taken {
                loops[0].take();
            }
            let mut loops = loops.into_iter();
            drop(loops.next());
            assert!(!refused.load(Relaxed), "the other one may take it");
            drop(loops);
            assert_eq!(refused.load(Relaxed), !taken);
        }
    }
}
