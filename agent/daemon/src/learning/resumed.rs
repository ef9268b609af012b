//! Flows that begin with a policy that an earlier process learned.

use super::deployed::{self, KeepError};
use crate::owned::{Folder, OwnedError};
use crate::place::StateFolder;
use crate::sequences::{Admissions, RefusedSnapshot};
use ccplane_alg::{Algorithm, PolicySource};
use ccplane_learn::Policy;
use ccplane_snapshot::{Hash, Snapshot, TrustedSnapshot};
use std::sync::Arc;
use tracing::{info, warn};

/// Policy and snapshot that an algorithm's flows begin with instead of the shipped ones.
#[derive(Clone, Debug)]
pub struct Beginning {
    pub algorithm: &'static str,
    pub policy: Policy,
    pub snapshot: TrustedSnapshot,
}

/// Reasons why flows do not begin with a kept policy.
#[derive(Debug, thiserror::Error)]
pub enum ResumeError {
    #[error(transparent)]
    Kept(#[from] KeepError),
    #[error("kept snapshot {hash}: {source}")]
    Refused { hash: Hash, source: RefusedSnapshot },
    #[error("kept snapshot {hash} is of another network than the one that ships")]
    Unfit { hash: Hash },
}

/// Reads the policy that `folder` keeps for the algorithm; `None` where it keeps none.
///
/// # Errors
/// What is kept there is not trusted, cannot be read, or is not what the algorithm's programs can ask.
pub fn resume(
    algorithm: &dyn Algorithm,
    folder: &Folder,
    admissions: &Admissions,
    allow_older: bool,
) -> Result<Option<Beginning>, ResumeError> {
    let Some((policy, snapshot)) = deployed::latest(folder, algorithm.name())? else { return Ok(None) };
    let hash = snapshot.hash();
    // Learners are of the first.
    if !algorithm.policies().first().is_some_and(|first| fits(first, &policy, &snapshot)) {
        return Err(ResumeError::Unfit { hash });
    }
    let snapshot = admissions.admit(snapshot, allow_older);
    let snapshot = snapshot.map_err(|source| ResumeError::Refused { hash, source })?;
    Ok(Some(Beginning { algorithm: algorithm.name(), policy, snapshot }))
}

/// Opens the folder of learned policies, and moves what earlier versions kept in the run directory there.
///
/// It logs what cannot be moved.
///
/// # Errors
/// The folder cannot be used.
pub(crate) fn open_kept(at: &StateFolder, algorithms: &[Arc<dyn Algorithm>]) -> Result<Folder, OwnedError> {
    let folder = Folder::open(&at.folder)?;
    let stays = |algorithm: &str, error: &OwnedError| {
        warn!(algorithm, %error, "what an earlier agent learned stays where it was, and is not used");
    };
    let former = match Folder::find(&at.former) {
        Ok(Some(former)) if at.former != at.folder => former,
        Ok(_) => return Ok(folder),
        Err(error) => {
            stays("all", &error);
            return Ok(folder);
        }
    };
    for algorithm in algorithms.iter().filter(|algorithm| algorithm.learns()) {
        let algorithm = algorithm.name();
        match deployed::move_kept(&former, &folder, algorithm) {
            Ok(false) => {}
            Ok(true) => {
                info!(algorithm, to = %at.folder.display(), "what an earlier agent learned was moved")
            }
            Err(error) => stays(algorithm, &error),
        }
    }
    Ok(folder)
}

/// Returns the usable policies that earlier agents learned for these algorithms; the others are logged.
pub(crate) fn resume_all(
    algorithms: &[Arc<dyn Algorithm>],
    folder: &Folder,
    admissions: &Admissions,
) -> Vec<Beginning> {
    let resumed = |algorithm: &Arc<dyn Algorithm>| {
        resume(&**algorithm, folder, admissions, false).unwrap_or_else(|error| {
            let algorithm = algorithm.name();
            warn!(algorithm, %error, "what an earlier agent learned is not used: flows begin with the shipped snapshot");
            None
        })
    };
    algorithms.iter().filter(|algorithm| algorithm.learns()).filter_map(resumed).collect()
}

/// Returns whether programs that ask the shipped policy may ask this one: the shape and the specification are the same.
fn fits(shipped: &PolicySource, policy: &Policy, snapshot: &Snapshot) -> bool {
    Snapshot::built_in(shipped.snapshot).is_ok_and(|shipped| {
        shipped.shape() == snapshot.shape()
            && [snapshot.spec(), policy.spec()].iter().all(|spec| *spec == shipped.spec())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::learning::deployed::Deployments;
    use crate::learning::twin::tests::decided;
    use ccplane_algs::{Aurora, Mocc};
    use ccplane_core::{Verdict, Why};
    use ccplane_snapshot::{SigningKey, SnapshotError, Terms, Trust};
    use std::path::Path;

    /// Of the network that ships, under a name of its own.
    fn learned(n: u64) -> (Policy, Arc<Snapshot>) {
        let shipped = Aurora::default().policies().remove(0);
        let mut parts = Snapshot::built_in(shipped.snapshot).unwrap().into_parts();
        parts.provenance.seed = n;
        (Policy::from_bytes(&shipped.policy).unwrap(), Arc::new(Snapshot::new(parts).unwrap()))
    }

    fn begins_with(algorithm: &dyn Algorithm, path: &Path) -> Result<Option<Hash>, ResumeError> {
        let any = Admissions::open(Trust::Any, None).unwrap();
        let found = resume(algorithm, &Folder::open(path).unwrap(), &any, false)?;
        Ok(found.map(|found| found.snapshot.hash()))
    }

    fn deployments(name: &'static str, begun: (Policy, Arc<Snapshot>), path: &Path) -> Deployments {
        Deployments::new(name, begun.0, begun.1, Some(Folder::open(path).unwrap()))
    }

    #[test]
    fn what_was_promoted_is_what_flows_begin_with() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path();
        let begins = || begins_with(&Aurora::default(), path).unwrap();
        assert_eq!(begins(), None);
        let mut of = deployments("aurora", learned(0), path);
        let [one, two] = [1, 2].map(learned);
        let hashes = [&one, &two].map(|(_, snapshot)| snapshot.hash());
        for (policy, snapshot) in [one, two] {
            of.made(policy, snapshot);
        }
        assert_eq!(begins(), None, "made, not promoted");
        of.on_decision(&decided(hashes[0], Verdict::Promoted));
        assert_eq!(begins(), Some(hashes[0]));
        of.on_decision(&decided(hashes[1], Verdict::Promoted));
        assert_eq!(begins(), Some(hashes[1]));
        of.on_decision(&decided(hashes[1], Verdict::RolledBack(Why::Tripped)));
        assert_eq!(begins(), Some(hashes[0]), "rolled back");
        of.on_decision(&decided(hashes[0], Verdict::RolledBack(Why::Tripped)));
        assert_eq!(begins(), None, "rolled back to what it began with, which is not kept");

        // One process more: it begins with what is kept, and falls back on that.
        of.on_decision(&decided(hashes[1], Verdict::Promoted));
        let (policy, begun) = deployed::latest(&Folder::open(path).unwrap(), "aurora").unwrap().unwrap();
        let mut next = deployments("aurora", (policy, Arc::new(begun)), path);
        let (policy, third) = learned(3);
        next.made(policy, third.clone());
        next.on_decision(&decided(third.hash(), Verdict::Promoted));
        assert_eq!(begins(), Some(third.hash()));
        next.on_decision(&decided(third.hash(), Verdict::RolledBack(Why::Worse)));
        assert_eq!(begins(), Some(hashes[1]));
    }

    /// Policies in the run directory, where versions before kept them, go to the folder that the next start of the machine leaves alone.
    #[test]
    fn what_a_version_before_kept_is_moved() {
        let base = tempfile::tempdir().unwrap();
        let at = StateFolder { folder: base.path().join("state"), former: base.path().join("run") };
        let aurora: [Arc<dyn Algorithm>; 1] = [Arc::new(Aurora::default())];
        let opened = || open_kept(&at, &aurora).unwrap();
        let begins = |path: &Path| begins_with(&*aurora[0], path).unwrap();
        opened();
        assert!(!at.former.exists(), "nothing was there");
        let mut of = deployments("aurora", learned(0), &at.former);
        let [one, two] = [1, 2].map(learned);
        let hashes = [&one, &two].map(|(_, snapshot)| snapshot.hash());
        for (policy, snapshot) in [one, two] {
            let hash = snapshot.hash();
            of.made(policy, snapshot);
            of.on_decision(&decided(hash, Verdict::Promoted));
        }
        std::fs::write(at.former.join("mine"), "not an agent's").unwrap();
        opened();
        assert_eq!(begins(&at.folder), Some(hashes[1]));
        let left: Vec<_> = std::fs::read_dir(&at.former).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(left, ["mine"]);
        // The one before is there, too, for a slot that still has it.
        let mut next = deployments("aurora", learned(0), &at.folder);
        next.on_decision(&decided(hashes[0], Verdict::TakenOver));
        assert_eq!(next.snapshot().hash(), hashes[0]);
        // Once something is there, an older agent's is not taken for newer.
        std::fs::write(at.former.join("aurora.active"), hashes[1].to_string()).unwrap();
        opened();
        assert_eq!(begins(&at.folder), Some(hashes[0]));
        assert!(at.former.join("aurora.active").exists());
    }

    /// A file that cannot be moved costs what was learned, not the agent.
    #[test]
    fn what_cannot_be_moved_stays() {
        let base = tempfile::tempdir().unwrap();
        let at = StateFolder { folder: base.path().join("state"), former: base.path().join("run") };
        let aurora: [Arc<dyn Algorithm>; 1] = [Arc::new(Aurora::default())];
        Folder::open(&at.former).unwrap().replace("aurora.active", &[b'0'; 99]).unwrap();
        open_kept(&at, &aurora).unwrap();
        assert!(at.former.join("aurora.active").exists() && !at.folder.join("aurora.active").exists());
        assert_eq!(begins_with(&*aurora[0], &at.folder).unwrap(), None);
    }

    #[test]
    fn what_cannot_be_asked_is_not_used() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path();
        let mut of = deployments("mocc", learned(0), path);
        let (policy, one) = learned(1);
        of.made(policy, one.clone());
        of.on_decision(&decided(one.hash(), Verdict::Promoted));
        let aurora = || begins_with(&Aurora::default(), path);
        assert_eq!(aurora().unwrap(), None, "another's");
        let mocc = begins_with(&Mocc::default(), path);
        assert!(matches!(mocc, Err(ResumeError::Unfit { .. })), "Aurora's network, which has fewer inputs");
        std::fs::rename(path.join("mocc.active"), path.join("aurora.active")).unwrap();
        assert_eq!(aurora().unwrap(), Some(one.hash()));
        std::fs::write(path.join(format!("{}.snapshot", one.hash())), b"no snapshot").unwrap();
        assert!(matches!(aurora(), Err(ResumeError::Kept(KeepError::Snapshot(_)))));
        std::fs::write(path.join(format!("{}.snapshot", one.hash())), learned(2).1.to_bytes()).unwrap();
        assert!(matches!(aurora(), Err(ResumeError::Kept(KeepError::Misnamed { .. }))));
        std::fs::write(path.join("aurora.active"), b"../../etc/passwd").unwrap();
        assert!(matches!(aurora(), Err(ResumeError::Kept(KeepError::Active { .. }))));
    }

    #[test]
    fn where_signatures_are_asked_for_what_is_kept_needs_one() {
        let [kept, state] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let mut of = deployments("aurora", learned(0), kept.path());
        let (policy, one) = learned(1);
        of.made(policy, one.clone());
        of.on_decision(&decided(one.hash(), Verdict::Promoted));
        let (key, other) = (SigningKey::generate().unwrap(), SigningKey::generate().unwrap());
        let resumes = |allow_older| {
            let trust = Trust::SignedBy(vec![key.verifying_key()]);
            let admissions = Admissions::open(trust, Some(state.path())).unwrap();
            let folder = Folder::open(kept.path()).unwrap();
            match resume(&Aurora::default(), &folder, &admissions, allow_older) {
                Ok(found) => Ok(found.unwrap().snapshot.hash()),
                Err(ResumeError::Refused { source: RefusedSnapshot::Snapshot(why), .. }) => Err(why),
                Err(other) => panic!("{other}"),
            }
        };
        let sign = |key: &SigningKey, sequence, expires_s| {
            let signed = Snapshot::clone(&one).sign(key, Terms { sequence, expires_s });
            std::fs::write(kept.path().join(format!("{}.snapshot", one.hash())), signed.to_bytes()).unwrap();
        };
        assert_eq!(resumes(false), Err(SnapshotError::Unsigned));
        assert_eq!(resumes(true), Err(SnapshotError::Unsigned));
        sign(&other, 9, u64::MAX);
        assert!(matches!(resumes(true), Err(SnapshotError::UnknownSigner { .. })));
        sign(&key, 9, u64::MAX);
        assert_eq!(resumes(false), Ok(one.hash()));
        // The number outlives the process; an older one is a replay.
        sign(&key, 8, u64::MAX);
        assert_eq!(resumes(false), Err(SnapshotError::Older { sequence: 8, newest: 9 }));
        assert_eq!(resumes(true), Ok(one.hash()));
        sign(&key, 9, u64::MAX);
        assert_eq!(resumes(false), Ok(one.hash()), "what was allowed by hand changes nothing");
        sign(&key, 10, 1_000_000_000);
        assert!(matches!(resumes(false), Err(SnapshotError::Expired { days }) if days > 7_000));
        // Numbers that cannot be read admit nothing.
        std::fs::write(state.path().join("sequences"), "aurora many\n").unwrap();
        let trust = Trust::SignedBy(vec![key.verifying_key()]);
        let refused = Admissions::open(trust, Some(state.path())).unwrap_err();
        assert!(matches!(refused, RefusedSnapshot::Corrupt { line: 1, .. }), "{refused}");
        // A file without a version is of the first one; another version's is refused.
        sign(&key, 10, u64::MAX);
        std::fs::write(state.path().join("sequences"), "aurora 11\n").unwrap();
        assert_eq!(resumes(false), Err(SnapshotError::Older { sequence: 10, newest: 11 }));
        std::fs::write(state.path().join("sequences"), "ccplane sequences 2\naurora 11\n").unwrap();
        let trust = Trust::SignedBy(vec![key.verifying_key()]);
        let refused = Admissions::open(trust, Some(state.path())).unwrap_err().to_string();
        assert!(refused.contains("version 2 of the format, this agent reads version 1"), "{refused}");
    }
}
