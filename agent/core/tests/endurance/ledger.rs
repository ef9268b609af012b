//! Ledger of snapshots: each offer ends in one decision, and each trial in one more.

use ccplane_contract::SnapshotUid;
use ccplane_core::{DatapathId, Decision, Origin, Verdict, Why};
use std::collections::BTreeMap;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Trying,
    /// Active, or replaced since.
    Deployed,
    RolledBack,
    /// The datapath said no, which may be wrong where its answer was lost.
    Refused,
}

/// One agent's decisions on one datapath, from its attachment on.
#[derive(Default)]
struct Account {
    offered: u64,
    decided: u64,
    deployments: BTreeMap<SnapshotUid, State>,
}

/// The account of each datapath under one agent.
#[derive(Default)]
pub struct Ledger(BTreeMap<DatapathId, Account>);

impl Ledger {
    /// A datapath was attached.
    pub fn attached(&mut self, id: DatapathId) {
        self.0.insert(id, Account::default());
    }

    /// A datapath's slot is offered a snapshot.
    pub fn offered(&mut self, id: DatapathId) {
        self.0.entry(id).or_default().offered += 1;
    }

    /// A decision came; the deployment that is rolled back for good, if one is.
    pub fn decided(&mut self, decision: &Decision) -> Option<(DatapathId, SnapshotUid)> {
        let id = decision.datapath.expect("a datapath has the slot");
        let account = self.0.get_mut(&id).expect("it was attached");
        let offered = matches!(decision.origin, Origin::Learned(_) | Origin::Operator { .. });
        let Some(uid) = decision.uid else {
            assert!(offered || decision.origin == Origin::Shipped, "{decision:?}");
            account.decided += u64::from(offered);
            return None;
        };
        let before = account.deployments.get(&uid).copied();
        account.decided += u64::from(offered && before.is_none());
        use State::{Deployed, Refused, RolledBack, Trying};
        let after = match (&decision.verdict, before) {
            (Verdict::Pushed, None) => Deployed,
            (Verdict::Trial { .. }, None) => Trying,
            (Verdict::Refused(_) | Verdict::NoSlot, None) => Refused,
            // Found in the datapath: another agent's, or ours whose push, said to be refused, was carried out.
            (Verdict::TakenOver, None | Some(Refused | Deployed)) => Deployed,
            (Verdict::Promoted, Some(Trying)) => Deployed,
            (Verdict::RolledBack(_), Some(Trying)) => RolledBack,
            (Verdict::Refused(_), Some(Trying)) => Refused,
            (Verdict::RolledBack(Why::Operator | Why::Tripped), Some(Deployed)) => RolledBack,
            (Verdict::RolledBack(Why::Orphaned), None | Some(Refused)) => Refused,
            other => panic!("{other:?} of {uid:?}: {decision:?}"),
        };
        account.deployments.insert(uid, after);
        (after == RolledBack).then_some((id, uid))
    }

    /// Whether nothing is left to be decided on a datapath.
    pub fn is_settled(&self, id: DatapathId) -> bool {
        self.0.get(&id).is_none_or(|a| a.offered == a.decided)
    }

    /// Whether a snapshot is on trial on a datapath.
    pub fn has_trial(&self, id: DatapathId) -> bool {
        self.0.get(&id).is_some_and(|a| a.deployments.values().any(|s| *s == State::Trying))
    }

    /// A datapath was detached: nothing may be left open.
    pub fn detached(&mut self, id: DatapathId) {
        assert!(self.is_settled(id), "detached with an offer open: datapath {}", id.0);
        assert!(!self.has_trial(id), "detached with a trial open: datapath {}", id.0);
        self.0.remove(&id);
    }
}
