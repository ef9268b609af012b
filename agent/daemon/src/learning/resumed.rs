//! An algorithm that begins with what an earlier process learned.

use super::deployed;
use ccplane_alg::{Algorithm, Control, Flow, FlowInfo, Parameter, PolicySource, ProgramSource};
use ccplane_learn::Policy;
use ccplane_snapshot::{Hash, Snapshot};
use std::path::Path;
use std::sync::Arc;
use tracing::warn;

/// The algorithm as `directory` keeps it, and which snapshot its flows begin with; as it ships, where nothing is kept there
/// that its programs can ask.
pub(crate) fn resume(algorithm: &Arc<dyn Algorithm>, directory: &Path) -> (Arc<dyn Algorithm>, Option<Hash>) {
    let as_shipped = || (algorithm.clone(), None);
    let Some((policy, snapshot)) = deployed::latest(directory, algorithm.name()) else { return as_shipped() };
    // Learners are of the first.
    let mut policies = algorithm.policies();
    let Some(first) = policies.first_mut() else { return as_shipped() };
    let (hash, bytes) = (snapshot.hash(), policy.to_bytes().ok().filter(|_| fits(first, &policy, &snapshot)));
    let Some(bytes) = bytes else {
        let algorithm = algorithm.name();
        warn!(algorithm, snapshot = %hash, "what is kept is of another network than the one that ships: not used");
        return as_shipped();
    };
    (first.policy, first.snapshot) = (bytes.into(), snapshot.to_bytes().into());
    (Arc::new(Resumed { algorithm: algorithm.clone(), policies }), Some(hash))
}

/// Whether programs that ask the one that ships may ask this one: it sees the same and decides the same.
fn fits(shipped: &PolicySource, policy: &Policy, snapshot: &Snapshot) -> bool {
    Snapshot::parse(&shipped.snapshot).is_ok_and(|shipped| {
        shipped.shape() == snapshot.shape()
            && [snapshot.spec(), policy.spec()].iter().all(|spec| *spec == shipped.spec())
    })
}

/// An algorithm with other policies.
struct Resumed {
    algorithm: Arc<dyn Algorithm>,
    policies: Vec<PolicySource>,
}

impl Algorithm for Resumed {
    fn name(&self) -> &'static str {
        self.algorithm.name()
    }
    fn programs(&self) -> Vec<ProgramSource> {
        self.algorithm.programs()
    }
    fn flow(&self, info: &FlowInfo, control: &mut Control) -> Box<dyn Flow> {
        self.algorithm.flow(info, control)
    }
    fn policies(&self) -> Vec<PolicySource> {
        self.policies.clone()
    }
    fn parameters(&self) -> &'static [Parameter] {
        self.algorithm.parameters()
    }
    fn configured(&self, values: &[(&'static str, i64)]) -> Option<Arc<dyn Algorithm>> {
        let algorithm = self.algorithm.configured(values)?;
        Some(Arc::new(Resumed { algorithm, policies: self.policies.clone() }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::learning::deployed::Deployments;
    use crate::learning::twin::tests::decided;
    use ccplane_core::{Verdict, Why};

    fn aurora() -> Arc<dyn Algorithm> {
        Arc::new(ccplane_algs::Aurora::default())
    }

    /// Of the network that ships, under a name of its own.
    fn learned(n: u64) -> (Policy, Arc<Snapshot>) {
        let shipped = aurora().policies().remove(0);
        let mut parts = Snapshot::parse(&shipped.snapshot).unwrap().into_parts();
        parts.provenance.seed = n;
        (Policy::from_bytes(&shipped.policy).unwrap(), Arc::new(Snapshot::new(parts).unwrap()))
    }

    fn snapshot(algorithm: &dyn Algorithm) -> Hash {
        Snapshot::parse(&algorithm.policies()[0].snapshot).unwrap().hash()
    }

    #[test]
    fn what_was_promoted_is_what_flows_begin_with() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path();
        let shipped = snapshot(&*aurora());
        let begins = || {
            let (algorithm, from) = resume(&aurora(), path);
            assert_eq!(from.unwrap_or(shipped), snapshot(&*algorithm));
            from
        };
        assert_eq!(begins(), None);
        let (policy, own) = learned(0);
        let mut of = Deployments::new("aurora", policy, own, Some(path.to_owned()));
        let [one, two] = [1, 2].map(learned);
        let hashes = [&one, &two].map(|(_, snapshot)| snapshot.hash());
        for (policy, snapshot) in [one, two] {
            of.made(policy, snapshot);
        }
        assert_eq!(begins(), None, "made, not promoted");
        of.hear(&decided(hashes[0], Verdict::Promoted));
        assert_eq!(begins(), Some(hashes[0]));
        of.hear(&decided(hashes[1], Verdict::Promoted));
        assert_eq!(begins(), Some(hashes[1]));
        of.hear(&decided(hashes[1], Verdict::RolledBack(Why::Tripped)));
        assert_eq!(begins(), Some(hashes[0]), "rolled back");
        of.hear(&decided(hashes[0], Verdict::RolledBack(Why::Tripped)));
        assert_eq!(begins(), None, "rolled back to what it began with, which is not kept");

        // One process more: it begins with what is kept, and falls back on that.
        of.hear(&decided(hashes[1], Verdict::Promoted));
        let (resumed, _) = resume(&aurora(), path);
        let source = &resumed.policies()[0];
        let policy = Policy::from_bytes(&source.policy).unwrap();
        let begun = Arc::new(Snapshot::parse(&source.snapshot).unwrap());
        let mut next = Deployments::new("aurora", policy, begun, Some(path.to_owned()));
        let (policy, third) = learned(3);
        next.made(policy, third.clone());
        next.hear(&decided(third.hash(), Verdict::Promoted));
        assert_eq!(begins(), Some(third.hash()));
        next.hear(&decided(third.hash(), Verdict::RolledBack(Why::Worse)));
        assert_eq!(begins(), Some(hashes[1]));
    }

    #[test]
    fn what_cannot_be_asked_is_not_used() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path();
        let (policy, own) = learned(0);
        let mut of = Deployments::new("mocc", policy, own, Some(path.to_owned()));
        let (policy, one) = learned(1);
        of.made(policy, one.clone());
        of.hear(&decided(one.hash(), Verdict::Promoted));
        assert_eq!(resume(&aurora(), path).1, None, "another's");
        let mocc: Arc<dyn Algorithm> = Arc::new(ccplane_algs::Mocc::default());
        assert_eq!(resume(&mocc, path).1, None, "Aurora's network, which has fewer inputs");
        std::fs::rename(path.join("mocc.active"), path.join("aurora.active")).unwrap();
        assert_eq!(resume(&aurora(), path).1, Some(one.hash()));
        std::fs::write(path.join(format!("{}.snapshot", one.hash())), b"no snapshot").unwrap();
        assert_eq!(resume(&aurora(), path).1, None);
        std::fs::write(path.join("aurora.active"), b"../../etc/passwd").unwrap();
        assert_eq!(resume(&aurora(), path).1, None);
    }
}
